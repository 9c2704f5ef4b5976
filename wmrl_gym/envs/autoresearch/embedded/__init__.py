"""The tasks that the package brings: where their rows come from, and how their folders are written."""
