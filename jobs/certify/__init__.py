"""Resume certificates: whether a script that is interrupted on this machine continues as if it had run through."""
