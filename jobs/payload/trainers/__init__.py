"""Training commands shipped with the payload."""
