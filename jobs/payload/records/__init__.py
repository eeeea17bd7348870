"""Records from files of any kind and encoding, for trainers, scorers and the corpus; every damage has a place."""
