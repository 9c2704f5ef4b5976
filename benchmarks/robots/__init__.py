"""Robot tasks learnt with world models: what :mod:`benchmarks.manipulation` compares, runs and reports."""
