"""Verbs: all queries and changes in one table, which the page, the JSON API, the port and the MCP server share."""
