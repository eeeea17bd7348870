"""What people ask for, with or without a running daemon: jobs, sessions, checkpoints, questions."""
