"""Words: multiword arithmetic. Elements are sums of short floating-point numbers, whose products a matrix unit makes.

x ≈ w_1 + … + w_p with w_1 = RN(x), w_2 = RN(x - w_1), … in a format such as TF32 or BF16; the products w_i·v_j are
exact in the accumulator, and those with i + j > p + 1 are usually left out (Fasi, Higham, Lopez, Mary and Mikaitis
2023; Valero-Lara et al. 2023: 1×, 3×, 4×TF32 and the proposed TF64; Henry, Tang and Heinecke 2019: BF16).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from prismm.core.scheme import BuiltIn
from prismm.errors import ArgumentError
from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format

if TYPE_CHECKING:
    pass

LARGEST_PRECISION = 26
_SCALE_LIMIT = 200


@dataclass(frozen=True)
class Words(BuiltIn):
    """Products of words of a short format, added in chunks.

    Value: in each chunk of the inner dimension the engine's products w_i·v_j of the kept pairs (i, j), added smallest
    first; then the sum of the chunks, pairwise; every addition to nearest in the accumulator's format. Bound: see
    `bound_terms`. Reproducible: no, the engine chooses its order within a chunk. Scale-invariant: yes; rows and columns
    are scaled so that no word and no sum overflows and as few low words as possible underflow.

    Args:
        format: of the words: `formats.TF32`, `BF16`, `FP16`, `FP32`, or any `Format` of at most 26 bits of precision.
        words: p, how many an element is cut into.
        products: how many pairs (i, j) are multiplied: all with i + j <= d for some d. Default: d = p + 1.
        chunk: inner dimension of one product on the engine. Default: see `chunk_for`.
        rounding: of the words: "nearest" (ties to even), or "toward-zero" as older methods have it.
        accumulate: format in which products are added; FP32 for words of at most 12 bits and 8 exponent bits, else
            FP64, by default. FP64 for narrower words is the "TF64" of Valero-Lara et al.

    Raises:
        ArgumentError: for values outside these ranges.

    Source: Valero-Lara, Jorquera, Liu and Vetter, "Mixed-precision S/DGEMM using the TF32 and TF64 frameworks on
    low-precision AI tensor cores", SC-W 2023.

    >>> from prismm import Words
    >>> Words.tf32(products=3)
    Words(tf32, words=2, products=3)
    >>> Words.bf16(products=6).words, Words.tf64(products=3).accumulate.name
    (3, 'fp64')
    """

    room = "multiword"

    format: Format = TF32
    words: int = 2
    products: int | None = None
    chunk: int | None = None
    rounding: Literal["nearest", "toward-zero"] = "nearest"
    accumulate: Format | None = field(default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.format, Format):
            raise ArgumentError(f"format={self.format!r}; pass a prismm.formats.Format such as formats.TF32")
        if self.format.precision > LARGEST_PRECISION:
            raise ArgumentError(
                f"format={_name(self.format)} has {self.format.precision} bits of precision; products are exact in "
                f"fp64 up to {LARGEST_PRECISION}: pass a format with fraction_bits <= {LARGEST_PRECISION - 1}"
            )
        chunk = 1 if self.chunk is None else self.chunk
        for name, value, low, high in (("words", self.words, 1, 8), ("chunk", chunk, 1, 1 << 30)):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ArgumentError(f"{name}={value!r}; pass an integer from {low} to {high}")
        counts = [len(_pairs(self.words, d)) for d in range(2, 2 * self.words + 1)]
        if self.products is None:
            object.__setattr__(self, "products", counts[self.words - 1])
        elif type(self.products) is not int or self.products not in counts:
            raise ArgumentError(
                f"products={self.products!r} for {self.words} words; pass one of {', '.join(map(str, counts))} "
                f"(all pairs with i + j <= d)"
            )
        if self.rounding not in ("nearest", "toward-zero"):
            raise ArgumentError(f"rounding={self.rounding!r}; pass 'nearest' or 'toward-zero'")
        short = self.format.precision <= 12 and self.format.exponent_bits <= 8
        if self.accumulate is None:
            object.__setattr__(self, "accumulate", FP32 if short else FP64)
        if not isinstance(self.accumulate, Format):
            raise ArgumentError(f"accumulate={self.accumulate!r}; pass a prismm.formats.Format such as formats.FP32")
        if self.accumulate.precision < self.format.precision:
            raise ArgumentError(
                f"accumulate={_name(self.accumulate)} is narrower than the words ({_name(self.format)}); pass "
                f"formats.FP32 or formats.FP64"
            )
        if 25 < self.accumulate.precision < 53:
            raise ArgumentError(
                f"accumulate={_name(self.accumulate)} has {self.accumulate.precision} bits of precision; pass one "
                f"of at most 25 bits, or formats.FP64"
            )
        if self.accumulate != FP64 and self.format.exponent_bits > 8:
            raise ArgumentError(
                f"accumulate={_name(self.accumulate)} cannot hold words of {self.format.exponent_bits} exponent bits; "
                f"pass accumulate=formats.FP64"
            )

    def __repr__(self) -> str:
        shown = [_name(self.format), f"words={self.words}", f"products={self.products}"]
        plain = Words(self.format, self.words)
        if self.chunk != plain.chunk:
            shown.append(f"chunk={self.chunk}")
        if self.rounding != plain.rounding:
            shown.append(f"rounding={self.rounding!r}")
        if self.accumulate != plain.accumulate:
            shown.append(f"accumulate={_name(self.accumulate_format)}")
        return f"Words({', '.join(shown)})"

    @classmethod
    def tf32(cls, products: int = 3, **options: Any) -> Words:
        """1×, 3× or 4×TF32 (Valero-Lara et al. 2023)."""
        return cls(TF32, **_counted(products), **options)

    @classmethod
    def bf16(cls, products: int = 6, **options: Any) -> Words:
        """BF16 ×1, ×3 (two words), ×6 or ×9 (three words)."""
        return cls(BF16, **_counted(products), **options)

    @classmethod
    def fp16(cls, products: int = 3, **options: Any) -> Words:
        """FP16 ×1, ×3 or ×4; its five exponent bits let low words underflow, which `ScaledHalf` avoids."""
        return cls(FP16, **_counted(products), **options)

    @classmethod
    def tf64(cls, products: int = 3, format: Format = FP32, **options: Any) -> Words:
        """1×, 3× or 4×TF64 (Valero-Lara et al. 2023, §5): words of FP32 or another format, sums in FP64."""
        return cls(format, **_counted(products), accumulate=FP64, **options)

    @property
    def reproducible(self) -> bool:
        """Always False: the order of summation within a chunk is the engine's."""
        return False

    @property
    def granule(self) -> tuple[int, int]:
        """Any block will do."""
        return 1, 1

    @property
    def accumulate_format(self) -> Format:
        """The accumulator's format."""
        assert self.accumulate is not None
        return self.accumulate

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The kept pairs of words, counted from 0, in the order in which they are added."""
        assert self.products is not None
        return _product_pairs(self.words, self.products)

    def chunk_for(self, k: int) -> int:
        """Inner dimension of one product on the engine: the chunk asked for, or a power of two near k/4 from 8 to 128.

        The error of a sum grows with its length: chunks make up for what two words of TF32 lose of float32 data, at
        any k from 32 on, and their number stays small.
        """
        if self.chunk is not None:
            return self.chunk
        return min(128, max(8, 1 << max(0, (k // 4).bit_length() - 1)))

    def scale_exponent(self, k: int) -> int:
        """t: words are those of 2^t·x with |x| < 1, so that no word exceeds 2^t and no sum of k products the
        accumulator: t <= maxexp - 1 and k·4^t <= 2^(maxexp - 2) there. Larger t would only bring overflow, smaller t
        more underflow.
        """
        room = (self.accumulate_format.maxexp - 2 - max(1, k - 1).bit_length()) // 2
        return min(self.format.maxexp - 1, room, _SCALE_LIMIT)

    def check(self, k: int, result: Format) -> None:
        """ArgumentError where no scale keeps sums of k products from overflowing and the largest words normal."""
        if self.scale_exponent(k) - 1 < self.format.minexp:
            raise ArgumentError(
                f"sums of {k} products overflow {_name(self.accumulate_format)} unless words of {_name(self.format)} "
                f"underflow; pass accumulate=formats.FP32 or FP64"
            )

    def _factors(self) -> list[float]:
        """κ_1, …, κ_p, ρ with |w_i| <= κ_i·|x| and |x - Σw| <= ρ·|x| away from underflow.

        RN: |x - w_1| <= u|x| and |w_1| <= (1+u)|x|, so what is left after i words is at most u^i·|x|, and w_i at most
        (1+u)·u^(i-1)·|x|. Toward zero: 2u instead of u, and |w_1| <= |x|.
        """
        step = self.format.unit_roundoff * (1 if self.rounding == "nearest" else 2)
        first = 1.0 + step if self.rounding == "nearest" else 1.0
        return [first * step**i for i in range(self.words)] + [step**self.words]

    def products_for(self, k: int, result: Format) -> int:
        """The kept pairs."""
        return len(self.pairs)

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """Words of both operands, one product, the sums of chunks that wait, and the sum in float64."""
        size = 8 if self.accumulate_format == FP64 else 4
        waiting = (-(-max(1, k) // self.chunk_for(k))).bit_length()
        return self.words * size * k * (m + n) + ((2 + waiting) * size + 8) * m * n


def _name(format: Format) -> str:
    return format.name or f"Format({format.exponent_bits}, {format.fraction_bits})"


@functools.cache
def _pairs(words: int, limit: int) -> list[tuple[int, int]]:
    """Pairs (i, j), counted from 0, with i + j + 2 <= limit: smallest products first."""
    pairs = [(i, j) for i in range(words) for j in range(words) if i + j + 2 <= limit]
    return sorted(pairs, key=lambda pair: (-sum(pair), pair))


@functools.cache
def _product_pairs(words: int, products: int) -> list[tuple[int, int]]:
    return next(p for d in range(2, 2 * words + 1) if len(p := _pairs(words, d)) == products)


def _counted(products: Any) -> dict[str, Any]:
    """words and products for a count that is p(p+1)/2 or p² for some p: 1, 3, 4, 6, 9, …"""
    for words in range(1, 9):
        if products in (words * (words + 1) // 2, words * words):
            return {"words": words, "products": products}
    raise ArgumentError(f"products={products!r}; pass 1, 3, 4, 6 or 9, or Words(format, words=…, products=…)")
