"""The data of a training: records, documents, images and packed rows, and the report on skipped records."""
