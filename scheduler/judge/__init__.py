"""Scores and gates in, verdicts with their evidence out: the statistics of promotion and of going back, all pure."""
