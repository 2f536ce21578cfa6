"""Kernels of products by sums in float64 and float32."""
