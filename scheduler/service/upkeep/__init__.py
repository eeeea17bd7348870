"""Recurring duties: what is no longer needed leaves the database, the folders and the artifact store."""
