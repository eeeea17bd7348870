"""Sources to deduplicated, tagged, versioned shards, and per-job mixtures."""
