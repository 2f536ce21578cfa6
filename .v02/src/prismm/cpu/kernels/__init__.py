"""Kernels that Numba compiles."""
