"""Products on a GPU: plans, programs of launches, kernels of each scheme."""
