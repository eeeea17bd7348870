"""Turns a snapshot into a plan: pure, seeded, every choice with its reason."""
