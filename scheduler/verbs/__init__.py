"""Verbs: the one table of what may be asked and changed. Page, JSON API, port and coding agents are made of it."""
