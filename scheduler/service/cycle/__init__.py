"""One turn of the daemon, and what it looks after beside the plan: stalled, late and forgotten sessions."""
