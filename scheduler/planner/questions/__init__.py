"""Questions to a planner: why, what if, what changed, and how simpler orders would do."""
