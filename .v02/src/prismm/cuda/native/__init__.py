"""Products by sums in float64 and float32 on a GPU."""
