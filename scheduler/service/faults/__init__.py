"""Who is kept apart because of what it did: runs, jobs and pools, and for how long."""
