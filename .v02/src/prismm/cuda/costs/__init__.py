"""Cost tables of GPUs, and where they come from."""
