"""What people declare: dataclasses that files are read into and on which decisions are made."""
