"""Facts in, readable documents out: summaries, weekly report, pictures."""
