"""Products by several words on a GPU."""
