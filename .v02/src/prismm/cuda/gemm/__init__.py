"""gemm on a GPU: sums with C."""
