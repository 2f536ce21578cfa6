"""Residues: Ozaki scheme II. Integer matrix products modulo many small coprime numbers, joined exactly.

Row i of A is scaled by the largest power of two 2^s_i, column j of B by 2^t_j, that keep every entry of the product
of the rounded operands A' = RN(2^s·a), B' = RN(2^t·b) below P/2, where P is the product of the moduli. Then A'B' is
computed modulo each modulus (exactly: INT8 products, INT32 sums; on FP8 with other moduli, `core.fp8_moduli`), joined
by the Chinese remainder theorem in exact multi-limb arithmetic, and rounded once (Ozaki, Uchino and Imamura 2025;
Uchino, Ozaki and Imamura 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

from prismm.core.moduli import MAX_MODULI, operand_bits
from prismm.core.scheme import BuiltIn
from prismm.errors import ArgumentError


@dataclass(frozen=True)
class Residues(BuiltIn):
    """Exact product of the operands rounded to `moduli`-dependent integers; one rounding at the end.

    Value: c_ij = RN(Σ_h A'_ih·B'_hj · 2^-(s_i+t_j)). Bound, before that rounding: the smaller of
    2^-s·½‖b_j‖₁ + 2^-t·½‖a_i‖₁ + k/4·2^-(s+t) and ‖δa_i‖₂‖b̂_j‖₂ + (‖â_i‖₂ + ‖δa_i‖₂)‖δb_j‖₂ with the rounding
    errors δ; 0 where row and column are represented exactly. Reproducible: yes. Scale-invariant: yes. Complex: one
    scale for both parts, three real products per modulus.

    Args:
        moduli: 2 to 22. 7 give float32 grade, 15 float64 grade. With 18 to 20 few entries of a correctly rounded
            float64 product need repair.

    Raises:
        ArgumentError: for another number.

    Source: Ozaki, Uchino and Imamura, "Ozaki Scheme II", arXiv:2504.08009, 2025.

    >>> from prismm import Residues
    >>> Residues(moduli=15).bits
    58.39
    """

    room = "residues"

    moduli: int = 15

    def __post_init__(self) -> None:
        if isinstance(self.moduli, bool) or not isinstance(self.moduli, int) or not 2 <= self.moduli <= MAX_MODULI:
            raise ArgumentError(f"Residues(moduli={self.moduli!r}); pass an integer from 2 to {MAX_MODULI}")

    @property
    def reproducible(self) -> bool:
        """Always True."""
        return True

    @property
    def bits(self) -> float:
        """L, the bits that the 2-norm of a scaled row or column may have."""
        return round(operand_bits(self.moduli), 2)
