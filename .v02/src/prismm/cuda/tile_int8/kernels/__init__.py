"""Kernels of products by tiles of INT8."""
