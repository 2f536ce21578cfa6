"""Words on a CPU."""
