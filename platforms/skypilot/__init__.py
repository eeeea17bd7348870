"""SkyPilot: sessions are clusters on any cloud of a SkyPilot API server, which is called over HTTP."""
