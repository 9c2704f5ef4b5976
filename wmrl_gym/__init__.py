"""Expensive tasks as Gymnasium environments, trained in a world model that real execution keeps honest."""
