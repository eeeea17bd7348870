"""Use cases, one per file: load, decide, apply."""
