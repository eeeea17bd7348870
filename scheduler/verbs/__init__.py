"""Verbs: the table of all queries and changes. The page, the JSON API, the port and the MCP server are made from it."""
