"""Device functions that the kernels of several schemes share."""
