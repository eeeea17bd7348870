"""The local machine: checks of the doctor, acceptance runs, and the program as a systemd service."""
