"""Faults: runs, jobs and pools that are isolated because they failed, and for how long."""
