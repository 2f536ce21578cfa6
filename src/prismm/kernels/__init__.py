"""Compiled element-wise kernels: split, join, certify, repair."""
