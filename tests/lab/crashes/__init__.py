"""Accidents with real processes: a small rehearsal to hurt, ways to hurt it, and an audit of what it left behind."""
