"""Designs: machine learning pipelines as choices of whole numbers, and the scripts that they stand for."""
