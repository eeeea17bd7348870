"""A client of Kaggle's API, with plain values as arguments and results."""
