"""A controlled stream with known truth: which correction wins under which error of the world model."""
