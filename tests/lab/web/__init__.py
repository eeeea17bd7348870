"""A year of sessions to look at, for the status page's tests and benchmark."""
