"""The list dispatcher, and the one reason why a job waits."""
