"""A server that runs already."""
