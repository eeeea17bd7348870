"""Requests of people, with or without a running daemon: jobs, sessions, checkpoints, models, what-if questions."""
