"""A whole week on this machine: its folder, its stand-ins for platforms, and how it is run."""
