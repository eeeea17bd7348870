"""Dataclasses of the things that people declare in files: pools, quotas, opening hours, and values of keys."""
