"""ScaledHalf: float32-grade products from two FP16 words, of which the low one is amplified.

x ≈ high + low·2^-sb with high = fl16(x), low = fl16((x - high)·2^sb), and
AB ≈ A_high·B_high + (A_high·B_low + A_low·B_high)·2^-sb: three products of FP16 words with FP32 sums (Ootomo and
Yokota 2022; Xue et al. 2025, H2SGEMM, Eq. 7, with its orders of summation, Fig. 7, and its rules for sb, Eq. 6).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from prismm.core.scheme import BuiltIn
from prismm.errors import ArgumentError
from prismm.formats import Format

if TYPE_CHECKING:
    pass

_SB_MIN, _SB_MAX = -16, 40


@dataclass(frozen=True)
class ScaledHalf(BuiltIn):
    """Two FP16 words per number, the low one times 2^sb; three products.

    Value: the words' products (without low·low), each summed by the engine over chunks of k, joined as `order` says.
    Bound, entry by entry, with w = low·2^-sb, δ what the words leave out and r = w + δ, all as measured 2-norms of the
    row and the column: w·w' + δ·(x' + r') + x·δ' for what is left out, gamma·(|a||b|) for the sums of high words,
    gamma·((r + w)·(x' + r') + x·(r' + w')) for their difference to the operands and for the sums of low words. So a
    row that spans more than 28 binades, whose small elements keep fewer than 22 bits, gets the bound that it deserves.
    Reproducible: no (the engine chooses the order of summation). Scale-invariant: yes, with `scale`.

    Args:
        sb: the exponent of the amplification; 0 for plain low words. Admissible for operands with exponents from e_min
            to e_max: -2 - e_min <= sb <= 26 - e_max keeps 22 bits of all of them (see `half_model`); sb = 12 does for
            the most, from -14 to 14.
        order: "term" adds whole products, the small ones first, in float64; "element" adds high·high, high·low and
            low·high of each chunk into one FP32 accumulator per entry, to nearest.
        chunk: inner dimension of one engine product, whose results are added outside; at most a quarter of k (but 16
            or more) in order "term"; None for all of k.
        rounding: of the split, "nearest" or "zero".
        scale: rows and columns are scaled by powers of two until their largest elements have the exponent
            min(14, 26 - sb). False takes the operands as they are, like the paper: small ones lose bits, large ones
            are refused.

    Raises:
        ArgumentError: for other values, and for an sb that no exponent admits.

    Source: Xue et al., "H2SGEMM", arXiv:2507.23387, 2025.

    >>> from prismm import ScaledHalf
    >>> ScaledHalf().largest_exponent, ScaledHalf(sb=20).largest_exponent
    (14, 6)
    """

    room = "scaled_half"

    sb: int = 12
    order: Literal["term", "element"] = "term"
    chunk: int | None = 256
    rounding: Literal["nearest", "zero"] = "nearest"
    scale: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.sb, bool) or not isinstance(self.sb, int) or not _SB_MIN <= self.sb <= _SB_MAX:
            raise ArgumentError(
                f"ScaledHalf(sb={self.sb!r}); pass an integer from {_SB_MIN} to {_SB_MAX}: numbers with exponents e "
                "keep 22 bits if -2 - e_min <= sb <= 26 - e_max, and FP16 holds -14 <= e <= 14 after rounding. "
                "(H2SGEMM's Eq. 6 has 27: but a tie leaves |x - high| = 2^(e-11), so that sb = 27 - e gives "
                "low = 2^16, which FP16 does not hold.)"
            )
        if self.order not in ("term", "element"):
            raise ArgumentError(f"ScaledHalf(order={self.order!r}); pass 'term' or 'element'")
        if self.chunk is not None and (
            isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or self.chunk < 1
        ):
            raise ArgumentError(f"ScaledHalf(chunk={self.chunk!r}); pass an integer of 1 or more, or None for all of k")
        if self.rounding not in ("nearest", "zero"):
            raise ArgumentError(f"ScaledHalf(rounding={self.rounding!r}); pass 'nearest' or 'zero'")
        if not isinstance(self.scale, bool):
            raise ArgumentError(f"ScaledHalf(scale={self.scale!r}); pass True or False")

    def __repr__(self) -> str:
        changed = [f"{f.name}={value!r}" for f in fields(self)[1:] if (value := getattr(self, f.name)) != f.default]
        return f"ScaledHalf({', '.join([f'sb={self.sb}', *changed])})"

    @property
    def reproducible(self) -> bool:
        """Always False: the engine orders its sums."""
        return False

    @property
    def granule(self) -> tuple[int, int]:
        """(1, 1): every entry is made from its own row and column."""
        return 1, 1

    @property
    def largest_exponent(self) -> int:
        """e_max: the exponent to which the largest elements of rows and columns are scaled.

        As large as overflow of either word permits, so that as few low words as possible underflow.
        """
        return min(14, 26 - self.sb)

    def check(self, k: int, result: Format) -> None:
        """See `Composite.check`: any inner dimension and result will do."""

    def chunk_for(self, k: int) -> int:
        """The inner dimension of one engine product."""
        if self.chunk is None:
            return max(1, k)
        # The sums outside have 53 bits: several chunks make up for what the split loses where k is short.
        quarter = 16 * -(-k // 64) if self.order == "term" else k
        return max(1, min(self.chunk, max(16, quarter)))

    def products_for(self, k: int, result: Format) -> int:
        """See `Composite.products_for`."""
        return 3

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """See `Composite.workspace`: words of 4 bytes, two float64 sums and a float32 product per entry."""
        return 8 * k * (m + n) + 28 * m * n
