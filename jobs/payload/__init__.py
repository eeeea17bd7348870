"""The payload: shipped to the platform and run there; it imports no other package of this project."""
