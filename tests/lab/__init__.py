"""The test library: worlds, faults, real processes to hurt, and instances. Nothing else is imported from tests."""
