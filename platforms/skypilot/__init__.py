"""SkyPilot: sessions are clusters on any cloud that a SkyPilot API server drives, spoken to over HTTP alone."""
