"""Recurring duties: what nobody needs any more leaves the database, the folders and the artifact store."""
