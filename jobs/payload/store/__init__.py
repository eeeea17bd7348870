"""The artifact store as sessions reach it: checkpoints brought back and published."""
