"""Settings model, shipped defaults, and how both are loaded."""
