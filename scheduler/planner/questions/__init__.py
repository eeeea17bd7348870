"""Questions about a plan: why a job waits, what if, what changed, and how simpler orders compare."""
