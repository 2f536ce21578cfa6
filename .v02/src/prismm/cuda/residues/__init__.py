"""Products by residues on a GPU."""
