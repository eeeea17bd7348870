"""Recurring duties: remove data that nothing needs from the database, the folders and the artifact store."""
