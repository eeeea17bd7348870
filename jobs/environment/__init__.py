"""A job's own packages: the requirements, and their lock for each platform."""
