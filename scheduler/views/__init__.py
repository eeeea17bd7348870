"""One reading of the state of things for command line, pages, metrics, letters and reports."""
