"""What catalogue entries say of themselves: where a model comes from, and how sure it is."""

from __future__ import annotations

__all__ = ["BOTH", "BUT_SUBNORMALS", "BUT_ZEROS", "KM", "MEASURED", "MMASIM", "PTX", "REPLAYED", "SIMULATED", "STATED"]

MMASIM = "MMA-Sim"
KM = "Khattak and Mikaitis, arXiv 2510.15884"
PTX = "PTX ISA 9.7.14"

MEASURED = "reproduces published hardware outputs"
"""Bit for bit. Such outputs bound the block's length from below: a longer one would show in longer products only."""
REPLAYED = "reproduces 131,072 hostile answers of an H200"
"""Bit for bit, of each instruction: the corpora that prismm's tests replay."""
BOTH = "two published models agree"
_UNPUBLISHED = "MMA-Sim reports that it equals the hardware, whose answers to these are not published"
BUT_ZEROS = (
    "two published models agree but on signs of zero; MMA-Sim 2.1.1 takes -0 in a, b and c for +0, as if it were "
    "subnormal, and this model keeps it: with a = +0 and b = -2^-12 throughout and c = -0, MMA-Sim gives +0 and this "
    f"model -0; {_UNPUBLISHED}"
)
BUT_SUBNORMALS = (
    "two published models agree but on subnormal results; MMA-Sim 2.1.1 cuts a last sum below 2^-126 to the floor at "
    "2^-157, and this model every one 31 bits below its leading one: a = -0x1.02p-57, b = -0x1.fep-94 and c = 0 give 0 "
    f"there and 2^-149 here; {_UNPUBLISHED}"
)
"""What the two were found to differ in, with inputs that show it; tests replay both sides."""
SIMULATED = "one published simulator"
STATED = "vendor document"
