"""Inputs of a job: where they come from, and how folders are packed as trees of the artifact store."""
