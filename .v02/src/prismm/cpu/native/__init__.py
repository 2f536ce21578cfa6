"""Native products on a CPU."""
