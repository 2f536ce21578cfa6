"""Products by tiles of INT8 on a CPU."""
