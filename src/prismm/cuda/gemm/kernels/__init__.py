"""Kernels of gemm."""
