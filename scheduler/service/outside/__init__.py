"""The outside world: ports, validation of reported data, and calls and child processes that may hang."""
