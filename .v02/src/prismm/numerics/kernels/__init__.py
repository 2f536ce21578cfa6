"""Kernels of simulated matrix units, that Numba compiles."""
