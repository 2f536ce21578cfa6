"""ScaledHalf on a GPU."""
