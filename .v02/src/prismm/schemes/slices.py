"""Slices: Ozaki scheme I. Operands cut into slices of small integers, whose products are exact on a matrix unit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from prismm.core.scheme import BuiltIn
from prismm.errors import ArgumentError
from prismm.schemes.slice_layout import (
    MOST_BITS,
    UNITS,
    Digits,
    Layout,
    choose_block,
    expected_slices,
    limb_count,
    longest_block,
    slice_bits,
)

if TYPE_CHECKING:
    from prismm.formats import Format

PRECISION = {"DP": 53, "SP": 24}
"""Bits of the products that the modes are as accurate as."""


@dataclass(frozen=True)
class Slices(BuiltIn):
    """Products of slices, exact each, and summed exactly (Mukunoki et al. 2020; Ozaki et al. 2012).

    Row i of A is Σ_p 2^(x_ip)·A^(p)_i + δ with digits |A^(p)| <= D, columns of B likewise, and k·D² <= T, so that a
    matrix unit multiplies two slices without error. The products, with their powers of two, are added in long
    accumulators and rounded once.

    Value: RN(Σ 2^(x_ip + y_qj)·A^(p)_i·B^(q)_j) over the pairs kept: all, or with `fast` those with p + q <= d + 1.
    Bound: AB less that sum is Σ_p A^(p)·(B - B^(1) - … - B^(Q(p))) + δA·B, where Q(p) is the number of q kept beside p
    (expand B in each term); so it is at most Σ_p ‖A^(p)_i‖₁·max|B_j - …| + max|δA_i|·‖B_j‖₁, all of it measured by
    maxima and sums of integers, whose order does not matter. "CR": 0. Reproducible: with `slices` given, or "CR"; not
    with a number that Algorithm 3 estimated from whole matrices. Scale-invariant: yes.

    Args:
        unit: "fp16" (FP16 inputs, FP32 sums: T = 2^24), "int8" (T = 2^31 - 1), "fp64" (2^53), "fp16-fp16" (2^11),
            "bf16" (2^24, digits of 8 bits), "fp32-fp64" (2^53, digits of 24 bits).
        mode: "DP" or "SP": as many slices as Algorithm 3 of the paper estimates for the accuracy of a float64 or
            float32 product, or `slices`. "CR": until nothing is left, all products; the correctly rounded product. A
            call with this mode means accuracy="correctly-rounded".
        slices: d, for "DP" and "SP".
        exponents: "grid": a vector's slices lie β bits apart, so that products of equal p + q have equal weight and are
            added in the accumulator while they fit. "adaptive": each slice begins at its vector's current maximum, as
            in the paper, so that wide vectors have no empty slices; one call multiplies a slice by all of the other
            side.
        rounding: of the slices: "nearest" (D = 2^(β-1)) or "toward-zero" (D = 2^β - 1: one bit less a slice).
        fast: keep p + q <= d + 1 only: d(d+1)/2 products. Where Algorithm 3 finds that a split ends first it is off.
        k_block: inner dimension that one product spans; None: what makes slices cheapest (`units.choose_block`);
            k or more for none, as in the paper.
        bits: β; None: the most that unit and block hold.
        group: whether several products of slices are made in one call at all.

    The paper's own settings at an inner dimension of k are ``Slices("fp16", exponents="adaptive",
    rounding="toward-zero", fast=True, k_block=k)``; its rounding, of negative numbers to one bit more than of positive
    ones, comes to the same number of slices.

    Raises:
        ArgumentError: for values outside these, with what to pass instead.

    >>> import numpy as np
    >>> from prismm.schemes.slices import Slices
    >>> Slices("int8", slices=7, fast=True).products_for(1024, "fp64")
    28
    """

    room = "slices"

    unit: str = "fp16"
    mode: Literal["DP", "SP", "CR"] = "DP"
    slices: int | None = None
    exponents: Literal["grid", "adaptive"] = "grid"
    rounding: Digits = "nearest"
    fast: bool = False
    k_block: int | None = None
    bits: int | None = None
    group: bool = True

    def __post_init__(self) -> None:
        for what, value, known in (
            ("unit", self.unit, tuple(UNITS)),
            ("mode", self.mode, ("DP", "SP", "CR")),
            ("exponents", self.exponents, ("grid", "adaptive")),
            ("rounding", self.rounding, ("nearest", "toward-zero")),
            ("fast", self.fast, (False, True)),
            ("group", self.group, (False, True)),
        ):
            if value not in known or (isinstance(value, int) and not isinstance(value, bool)):
                raise ArgumentError(f"Slices({what}={value!r}); pass one of {', '.join(map(repr, known))}")
        for what, number, most in (
            ("slices", self.slices, 256), ("k_block", self.k_block, 2**62), ("bits", self.bits, MOST_BITS)
        ):  # fmt: skip
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
                raise ArgumentError(f"Slices({what}={number!r}); pass an integer from 1 to {most}, or None")
        if self.mode == "CR" and self.slices is not None:
            raise ArgumentError(
                f"Slices(mode='CR', slices={self.slices}): CR splits until nothing is left; leave slices out, or pass "
                "mode='DP'"
            )
        if self.mode == "CR" and self.fast:
            raise ArgumentError(
                "Slices(mode='CR', fast=True): CR needs all products; leave fast out, or pass mode='DP'"
            )
        if self.bits is not None and longest_block(UNITS[self.unit], self.bits, self.rounding) == 0:
            raise ArgumentError(
                f"Slices(bits={self.bits}) do not fit unit {self.unit!r}; pass at most "
                f"bits={slice_bits(UNITS[self.unit], 1, self.rounding)}"
            )

    def __repr__(self) -> str:
        """Unit and mode, and what differs from the defaults."""
        shown = [f.name for f in fields(self) if f.name in ("unit", "mode") or getattr(self, f.name) != f.default]
        return f"Slices({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def reproducible(self) -> bool:
        """Whether d comes from the scheme or from each vector alone: given, or until nothing is left."""
        return self.mode == "CR" or self.slices is not None

    @property
    def rounds_correctly(self) -> bool:
        """Whether the value is the correctly rounded product by definition, so that no accuracy need be named."""
        return self.mode == "CR"

    @property
    def takes_workspace(self) -> bool:
        """Slices, sums and products go to the memory that the caller lends, if any."""
        return True

    @property
    def granule(self) -> tuple[int, int]:
        """Any rows and columns: an entry depends on its row and column alone."""
        return (1, 1)

    def layout(self, k: int) -> Layout:
        """β and the block for an inner dimension of k: functions of k and the scheme, never of the engine.

        Raises:
            ArgumentError: where `bits` and `k_block` together do not fit the unit.
        """
        unit = UNITS[self.unit]
        length = max(k, 1)
        if self.k_block is not None:
            block = min(self.k_block, length)
        elif self.bits is not None:
            block = min(longest_block(unit, self.bits, self.rounding), length)
        else:
            block = choose_block(unit, length, self.rounding, PRECISION.get(self.mode, 53))
        bits = self.bits or slice_bits(unit, block, self.rounding)
        if not unit.holds(bits, block, self.rounding):
            most = longest_block(unit, bits, self.rounding)
            raise ArgumentError(
                f"{self}: slices of {bits} bits over {block} terms exceed what unit {self.unit!r} sums exactly; pass "
                f"k_block={most} or less, or leave bits out"
            )
        blocks = -(-length // block)
        return Layout(unit, bits, self.rounding, self.exponents == "adaptive", k, -(-length // blocks))

    def check(self, k: int, result: Format) -> None:
        """See `Composite.check`."""
        self.layout(k)

    def expected(self, k: int) -> int:
        """Slices for even data."""
        if self.slices is not None:
            return self.slices
        bits = self.layout(k).bits
        if self.mode == "CR":
            return -(-(53 + 12) // bits)
        return expected_slices(bits, k, PRECISION[self.mode])

    def products_for(self, k: int, result: Format | str) -> int:
        """See `Composite.products_for`: d² or d(d+1)/2, for each block of k."""
        d = self.expected(k)
        return (d * (d + 1) // 2 if self.fast else d * d) * self.layout(k).blocks

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """Bytes: (d_A·m + d_B·n)·k digits, and per entry 8 a limb, 16 for the value, and the products of one batch.

        The paper keeps all products, d_A·d_B·m·n sums; here at most 16 (adaptive: one slice times all others).
        """
        layout, d = self.layout(k), self.expected(k)
        size = 4 if layout.unit.dtype == "int8" else layout.unit.bytes
        limbs = limb_count(2 * d * layout.bits, d * d * layout.blocks)
        digits = d * (m + n) * layout.blocks * layout.block * layout.unit.bytes
        return digits + m * n * (8 * limbs + 16 + size * min(16, d if layout.adaptive else 2 * d))
