"""What catalogue entries say of themselves: where a model comes from, and how sure it is."""

from __future__ import annotations

__all__ = ["BOTH", "KM", "MEASURED", "MMASIM", "PTX", "REPLAYED", "SIMULATED", "STATED"]

MMASIM = "MMA-Sim"
KM = "Khattak and Mikaitis, arXiv 2510.15884"
PTX = "PTX ISA 9.7.14"

MEASURED = "reproduces published hardware outputs"
"""Bit for bit. Such outputs bound the block's length from below: a longer one would show in longer products only."""
REPLAYED = "reproduces 131,072 hostile answers of an H200"
"""Bit for bit, of each instruction: the corpora that prismm's tests replay."""
BOTH = "two published models agree"
SIMULATED = "one published simulator"
STATED = "vendor document"
