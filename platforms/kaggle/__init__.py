"""Kaggle: one private kernel per launch, identified by its slug."""
