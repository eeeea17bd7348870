"""Nouns: what people declare, each as one dataclass that files are read into and that decisions are made on."""
