"""Products by slices on a GPU."""
