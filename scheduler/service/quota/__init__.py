"""Quotas: use and rest of metered hours and money, and the comparison of the ledger with the platforms' figures."""
