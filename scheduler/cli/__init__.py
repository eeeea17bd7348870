"""The schedctl command line: its entry, the table of commands, and what is answered before the rest is loaded."""
