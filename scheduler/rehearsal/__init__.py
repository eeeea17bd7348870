"""A whole week on this machine: its folder, its emulators of platforms, and how it is run."""
