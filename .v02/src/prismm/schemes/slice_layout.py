"""Matrix units that multiply slices without error, and how many bits a slice may have on each.

A product of slices is exact where every partial sum is an integer that the accumulator holds: digits |d| <= D and an
inner dimension k with k·D² <= T. T is 2^p for an accumulator of p bits (Mukunoki et al. 2020, second property of
Algorithm 1), 2^31 - 1 for INT32. Sums of partial sums stay below T too, so the order of summation, and whether a unit
truncates or rounds what does not fit, cannot matter: below T nothing is ever cut off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from prismm.errors import ArgumentError
from prismm.formats import BF16, FP16, FP32, FP64, Format

Digits = Literal["nearest", "toward-zero"]

LIMB = 24
"""Bits of a limb in which products of slices are added; `cpu.kernels.weigh` has the same."""


@dataclass(frozen=True)
class Unit:
    """A matrix unit: what its digits and its sums can be.

    inputs, accumulate: floating-point formats, None for INT8 and INT32. digit_limit: integers up to this are inputs
    (INT8: one less on the positive side). sum_limit: T. dtype: the NumPy type that holds digits on a CPU; sums take
    the same (INT32 for INT8).
    """

    name: str
    inputs: Format | None
    accumulate: Format | None
    digit_limit: int
    sum_limit: int
    dtype: Literal["int8", "float32", "float64"]

    @property
    def bytes(self) -> int:
        """Bytes of a digit on this CPU."""
        return {"int8": 1, "float32": 4, "float64": 8}[self.dtype]

    def largest_digit(self, bits: int, rounding: Digits) -> int:
        """D, the largest magnitude of a digit of that many bits."""
        return 1 << (bits - 1) if rounding == "nearest" else (1 << bits) - 1

    def holds(self, bits: int, k: int, rounding: Digits) -> bool:
        """Whether slices of that many bits multiply exactly over an inner dimension of k."""
        largest = self.largest_digit(bits, rounding)
        # INT8 ends at 127 on the positive side: a truncated digit of 128 or more does not fit, a rounded one of 8
        # bits is balanced into [-128, 127].
        fits = largest <= self.digit_limit if rounding == "nearest" or self.inputs else largest < self.digit_limit
        return fits and max(k, 1) * largest * largest <= self.sum_limit


def _float_unit(name: str, inputs: Format, accumulate: Format) -> Unit:
    return Unit(
        name, inputs, accumulate, 1 << inputs.precision, 1 << accumulate.precision,
        "float32" if accumulate.precision <= 24 else "float64",
    )  # fmt: skip


UNITS: dict[str, Unit] = {
    "fp16": _float_unit("fp16", FP16, FP32),
    "int8": Unit("int8", None, None, 128, (1 << 31) - 1, "int8"),
    "fp64": _float_unit("fp64", FP64, FP64),
    "fp16-fp16": _float_unit("fp16-fp16", FP16, FP16),
    "bf16": _float_unit("bf16", BF16, FP32),
    "fp32-fp64": _float_unit("fp32-fp64", FP32, FP64),
}
"""By name: inputs, or inputs and accumulator."""

MOST_BITS = 26
"""No slice is longer: products of two must stay below 2^53."""


def slice_bits(unit: Unit, k: int, rounding: Digits) -> int:
    """β: the most bits that slices may have over an inner dimension (or block of it) of k.

    Raises:
        ArgumentError: where not even one bit fits; the message tells the largest block.

    >>> slice_bits(UNITS["fp16"], 7168, "nearest"), slice_bits(UNITS["fp16"], 7168, "toward-zero")
    (6, 5)
    >>> slice_bits(UNITS["int8"], 1024, "nearest"), slice_bits(UNITS["fp16"], 4, "nearest")
    (8, 12)
    """
    for bits in range(MOST_BITS, 0, -1):
        if unit.holds(bits, k, rounding):
            return bits
    raise ArgumentError(
        f"no slice multiplies exactly on unit {unit.name!r} over an inner dimension of {k}; "
        f"pass k_block={unit.sum_limit} or less"
    )


def longest_block(unit: Unit, bits: int, rounding: Digits) -> int:
    """The largest inner dimension over which slices of that many bits multiply exactly; 0 where they do not fit."""
    largest = unit.largest_digit(bits, rounding)
    return unit.sum_limit // (largest * largest) if unit.holds(bits, 1, rounding) else 0


_JOIN = 32
"""What joining one product costs, in terms of the inner dimension: one entry's sum is taken out, shifted and added in
about the time of this many multiplications. The choice changes only where this is off by a factor of 3 or so."""


def choose_block(unit: Unit, k: int, rounding: Digits, precision: int = 53) -> int:
    """The block of the inner dimension that makes slices of `precision` bits cheapest: at most k.

    A shorter block allows longer slices, so fewer products (d(d+1)/2 of them), but each block's sums must be joined.
    The cost is d(d+1)/2·(1 + 32/block); the paper proposes such blocking and leaves it undone. Depends on nothing
    but its arguments, so that it cannot spoil reproducibility.

    >>> choose_block(UNITS["fp16"], 7168, "nearest"), choose_block(UNITS["fp16-fp16"], 7168, "nearest")
    (1024, 32)
    >>> choose_block(UNITS["int8"], 7168, "nearest")
    7168
    """
    best, found = math.inf, 0
    for bits in range(1, MOST_BITS + 1):
        block = min(longest_block(unit, bits, rounding), max(k, 1))
        if block == 0:
            continue
        d = -(-(precision + 2) // bits)
        cost = d * (d + 1) / 2 * (1.0 + (_JOIN / block if block < k else 0.0))
        if cost <= best:
            best, found = cost, block
    if not found:
        slice_bits(unit, 1, rounding)
    return found


@dataclass(frozen=True)
class Layout:
    """How an operand is sliced: by what unit, into how many bits, on which exponents, in which blocks.

    block: digits of the inner dimension that one product on the engine spans; blocks·block >= k, padded with zeros.
    """

    unit: Unit
    bits: int
    rounding: Digits
    adaptive: bool
    k: int
    block: int

    @property
    def blocks(self) -> int:
        """Blocks of the inner dimension."""
        return max(1, -(-self.k // self.block))

    @property
    def carried(self) -> bool:
        """Whether digits are balanced with carry: a fixed grid of 8 bits on INT8."""
        return self.unit.inputs is None and self.rounding == "nearest" and self.bits == 8 and not self.adaptive

    @property
    def largest_digit(self) -> int:
        """D."""
        return self.unit.largest_digit(self.bits, self.rounding)

    @property
    def together(self) -> int:
        """Products of slices that may be added inside the accumulator: (their number)·block·D² <= T."""
        return max(1, self.unit.sum_limit // (max(self.block, 1) * self.largest_digit**2))


def expected_slices(bits: int, k: int, precision: int) -> int:
    """What Algorithm 3 gives for even data ((rand - 0.5)·exp(0.1·randn)), a priori: for plans and first guesses.

    Slice d is at most what the d - 1 before it left, half a unit or one: about 2^(-β(d-1)) of a row's largest element,
    as slice 1 is about a row's magnitude; so 2^(-β(d-1)) <= √k·u.

    >>> expected_slices(5, 7168, 53), expected_slices(8, 1024, 53), expected_slices(8, 1024, 24)
    (11, 7, 4)
    """
    needed = precision - 0.5 * math.log2(max(k, 1))
    return 1 + max(1, math.ceil(needed / bits))


def limb_count(positions: int, products: int) -> int:
    """Limbs for products of 53 bits at positions up to that one, their carries and a sign."""
    return -(-(positions + 54 + max(products, 1).bit_length()) // LIMB) + 1
