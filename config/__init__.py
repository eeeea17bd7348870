"""The settings model, the shipped defaults, and how both are loaded."""
