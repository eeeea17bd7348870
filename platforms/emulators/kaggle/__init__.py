"""An emulator of Kaggle on this machine: its protocol, its rules, and kernels that really run."""
