"""The linear programme: time spans and markets, prices of hours, and plans in parts for thousands of jobs."""
