"""Tasks: their format on disk, metrics, grading, leaderboards, and the formats of other benchmarks."""
