"""Kernels of products by several words."""
