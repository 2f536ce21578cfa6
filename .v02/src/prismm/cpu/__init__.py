"""Products on a CPU: engines, flows of each scheme, repair."""
