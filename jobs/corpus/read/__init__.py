"""Sources to documents: files of many kinds and encodings, damage counted."""
