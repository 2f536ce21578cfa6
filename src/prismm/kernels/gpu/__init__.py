"""GPU kernels, in Triton: one idea a file, compiled on first use; imported only where a product runs on a GPU."""
