"""Local servers that speak the real platforms' protocols and really run payloads."""
