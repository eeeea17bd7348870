"""Targets: where served models live, and how a release gets there and back without ever being half there."""
