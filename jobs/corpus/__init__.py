"""Training text: sources to a deduplicated, tagged, content-versioned corpus, and mixtures of it per job."""
