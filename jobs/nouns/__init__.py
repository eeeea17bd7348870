"""Dataclasses of what people declare in files: pools, quotas, windows and other values of decisions."""
