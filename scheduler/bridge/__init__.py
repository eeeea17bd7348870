"""Programs as readers: one table of verbs, spoken over a port by other languages and over MCP by coding agents."""
