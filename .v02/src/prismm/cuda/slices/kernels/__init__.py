"""Kernels of products by slices."""
