"""Advice before a job has run: does it fit, with which settings, how long, at what cost. Pure; formulas in the docs."""
