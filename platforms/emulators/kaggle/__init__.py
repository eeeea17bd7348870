"""An emulator of Kaggle on this machine: the real protocol, the real rules, and really running kernels."""
