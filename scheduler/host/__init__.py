"""This machine: what the doctor checks of it, and the program as a service of systemd."""
