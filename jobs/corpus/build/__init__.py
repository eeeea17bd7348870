"""Documents to a corpus: deduplicated, tagged, clustered, split."""
