"""Where training runs: one adapter per place, the artifact stores and the emulators."""
