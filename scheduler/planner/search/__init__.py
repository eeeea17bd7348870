"""Improves the first plan: candidate policies, deadlines, local search, idle pools."""
