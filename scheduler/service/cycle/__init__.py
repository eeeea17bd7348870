"""One cycle of the daemon, and its duties besides the plan: stalled, late and forgotten sessions."""
