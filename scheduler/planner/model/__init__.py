"""The planner's model: jobs, pools with their free capacity, sessions, and the value of a session."""
