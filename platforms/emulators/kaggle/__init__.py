"""A stand-in for Kaggle on this machine: the real protocol, the real rules, and really running kernels."""
