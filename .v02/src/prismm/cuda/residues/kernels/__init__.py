"""Kernels of products by residues."""
