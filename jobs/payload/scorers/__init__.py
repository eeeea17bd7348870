"""Scorers: programs that give every item of a test set a number, and the sandbox for code that a model wrote."""
