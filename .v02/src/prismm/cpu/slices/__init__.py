"""Products by slices on a CPU."""
