"""How imagining is done: real and imagined steps, anchors, and learning."""
