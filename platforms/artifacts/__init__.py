"""Artifact stores: where checkpoints, corpora and run records are kept."""
