"""Kernels of partial products."""
