"""What no device knows itself in: arrays, accuracy, moduli, bounds, reports, threads, compiled kernels' files."""
