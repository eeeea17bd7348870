"""Kaggle: one private kernel for each launch, found again by its slug."""
