"""One reading of the state of things for command line, pages, metrics, messages and reports."""
