"""The ``schedctl`` command line: entry point, table of commands, and fast paths that skip the command parser."""
