"""Launches: reserve quota and devices, prepare everything that a session needs, and call the platform."""
