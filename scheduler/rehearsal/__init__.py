"""The rehearsal: a week on this machine with a fast clock and emulated platforms."""
