"""ScaledHalf on a CPU."""
