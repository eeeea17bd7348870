"""The data of a training: records, documents, images and packed rows, and what became of each record."""
