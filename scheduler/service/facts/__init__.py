"""Facts: observed outside, written down in one transaction, read as the planner's snapshot."""
