"""Kaggle's calls, with plain values in and out."""
