"""Build a corpus from documents: deduplicate, tag, cluster and split them."""
