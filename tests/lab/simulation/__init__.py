"""The deterministic simulation: the production daemon on a virtual clock, in a world that knows the truth."""
