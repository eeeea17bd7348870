"""A job's own code: which files of a folder or a commit it is, and the digest that names them."""
