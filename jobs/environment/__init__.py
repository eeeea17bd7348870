"""A job's own packages: what its requirement file asks for, and the lock that this comes to on each platform."""
