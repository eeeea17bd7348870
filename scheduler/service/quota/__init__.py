"""Metered hours and money: what is used and left, and our ledger against the platforms' figures and bills."""
