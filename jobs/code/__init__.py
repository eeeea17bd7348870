"""A job's own code: the files of a folder or a commit, and the digest that identifies them."""
