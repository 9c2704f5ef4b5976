"""Measurements of speed and quality; each is a command of its own."""
