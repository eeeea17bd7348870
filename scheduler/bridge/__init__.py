"""Bridges to other programs: the verbs over a port (other languages) and over MCP (coding agents)."""
