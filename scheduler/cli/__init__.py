"""The schedctl command line: one file per command group."""
