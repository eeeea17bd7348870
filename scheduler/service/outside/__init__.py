"""The outside world: its ports, the border that what it says must pass, calls and processes that may hang."""
