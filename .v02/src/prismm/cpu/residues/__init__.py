"""Products by residues on a CPU."""
