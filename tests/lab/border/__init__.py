"""Sessions and platforms that say odd things to the real daemon's cycle."""
