"""Views: what the command line, pages, metrics, messages and reports show, read from the database in one place."""
