"""CPU kernels, compiled by Numba on first use and kept on disk."""
