"""How imagining is done: real and imagined steps, anchors, and learning. Wrappers and integrations stand on it; users need not."""
