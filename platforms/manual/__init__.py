"""The manual platform: sessions that a person starts by hand, where no program may."""
