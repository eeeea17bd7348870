"""What the daemon does and people ask of it: load, decide, apply. One use case a file."""
