"""Slices: Ozaki scheme I. Operands cut into slices of small integers, whose products are exact on a matrix unit."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Literal

from prismm.core.composite import Joined, Scaled, Setting
from prismm.core.scheme import BuiltIn
from prismm.core.workspace import Scratch
from prismm.cpu.slices.count import estimate, expected_slices, magnitude_weights
from prismm.cpu.slices.engines import SliceEngine, engine_for_unit, prove
from prismm.cpu.slices.products import exact_sum, kept_pairs, limb_count, multiply_slices
from prismm.cpu.slices.split import Layout, Sliced, cut, cut_to_the_end, held_by
from prismm.errors import ArgumentError
from prismm.schemes.slice_units import MOST_BITS, UNITS, Digits, choose_block, longest_block, slice_bits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.formats import Format

PRECISION = {"DP": 53, "SP": 24}
"""Bits of the products that the modes are as accurate as."""

_JOIN_ERROR = 2.0**-104
_UP = 1.0 + 2.0**-40


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

    def engine_for(self, name: str | None) -> SliceEngine:
        """See `slice_engines.engine_for_unit`."""
        return engine_for_unit(UNITS[self.unit], name)

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

    def split(self, x: Scaled, setting: Setting) -> Sliced:
        """See `Composite.split`."""
        engine: SliceEngine = setting.engine
        layout = held_by(self.layout(x.k), engine.dtype, engine.sum_limit if self.group else None)
        empty = setting.workspace.empty if setting.workspace is not None else None
        if self.mode == "CR":
            return cut_to_the_end(x, layout, setting.workers, empty=empty)
        if self.slices is not None:
            return cut(x, layout, self.slices, setting.workers, empty=empty)
        slices = expected_slices(layout.bits, x.k, PRECISION[self.mode]) + 1
        return cut(x, layout, slices, setting.workers, empty=empty, keep=True)

    def multiply(self, left: Sliced, right: Sliced, setting: Setting) -> Joined:
        """See `Composite.multiply`."""
        import numpy as np

        engine: SliceEngine = setting.engine
        layout = left.layout
        m, n = left.exponent.shape[1], right.exponent.shape[1]
        if not (m and n and layout.k):
            nothing = np.zeros((1, m)), np.zeros((1, n))
            return Joined(np.zeros((m, n)), None, 0.0, *nothing, 0.0, 0)
        fast = self.fast
        if self.slices is None and self.mode != "CR":
            left, right, d, ended = self._estimated(left, right, setting)
            fast = fast and not ended
            used = min(d, left.used), min(d, right.used)
        else:
            used = left.used, right.used
            d = self.slices or max(used)
        if engine.float_engine is not None:
            for together in {layout.block, layout.block * layout.together}:
                prove(engine, UNITS[self.unit], layout.bits, together, self.rounding)
        pairs = kept_pairs(*used, d if fast else None)
        memory = max(setting.memory - left.nbytes - right.nbytes, setting.memory // 4, 1 << 20)
        with Scratch() as scratch:
            empty = setting.workspace.empty if setting.workspace is not None else scratch.empty
            found = multiply_slices(
                left, right, pairs, engine, group=self.group, workers=setting.workers,
                memory=memory, empty=empty, further=setting.further,
            )  # fmt: skip
        rows, columns = bound_terms(left, right, used, d if fast else None)
        settled = not columns[0].any() and not rows[1].any()
        # In CR mode every value is RN(exact) whatever the bound says, so it may depend on what was seen; elsewhere
        # it must not depend on neighbours.
        gamma = 0.0 if self.mode == "CR" and found.exact else _JOIN_ERROR
        floor = 0.0 if settled and not found.underflow else 2.0**-1070
        blocks = self.layout(layout.k).blocks
        found.notes["most slices"] = max(used)
        if blocks > 1:
            found.notes["most blocks of the inner dimension"] = blocks
        if setting.workspace is not None and setting.workspace.beyond:
            found.notes["most bytes beyond the workspace"] = setting.workspace.beyond
        return Joined(
            found.high, found.low, gamma, rows, columns, floor, found.products * blocks, found.notes,
            rounds=True, rest=found.rest,
            whole=None if found.complete else partial(exact_sum, left, right, pairs), lost=found.lost,
        )  # fmt: skip

    def _estimated(self, left: Sliced, right: Sliced, setting: Setting) -> tuple[Sliced, Sliced, int, bool]:
        """Algorithm 3 on both sides; slices are added where they do not suffice to tell."""
        roundoff = math.ldexp(1.0, -PRECISION[self.mode])
        weights = magnitude_weights(left), magnitude_weights(right)
        sides = [left, right]
        found = []
        for index in (0, 1):
            told = estimate(sides[index], weights[1 - index], roundoff, setting.workers)
            while told.slices is None:
                source = sides[index].source
                assert source is not None
                more = 2 * sides[index].slices
                sides[index] = cut(source, sides[index].layout, more, setting.workers, keep=True)
                told = estimate(sides[index], weights[1 - index], roundoff, setting.workers)
            found.append(told)
        d = max(told.slices or 1 for told in found)
        for index in (0, 1):
            if sides[index].slices < d and not sides[index].ended:
                source = sides[index].source
                assert source is not None
                sides[index] = cut(source, sides[index].layout, d, setting.workers, keep=True)
        return sides[0], sides[1], d, found[0].ended or found[1].ended


def bound_terms(
    left: Sliced, right: Sliced, used: tuple[int, int], drop_above: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two outer products: (Σ_p w_p·‖A^(p)_i‖₁)·(max_p R_Q(p)(j)/w_p) and max|δA_i|·‖B_j‖₁, rounded up.

    R_Q(j) = max|B_j - first Q slices|. The weights w_p = 2^(βp) even out the terms of fast mode, where R_Q(p) rises as
    the slices fall; without it all R are the same and w_p = 1.
    """
    import numpy as np

    m, n = left.exponent.shape[1], right.exponent.shape[1]
    first = np.zeros(m)
    largest = np.zeros(n)
    for p in range(used[0]):
        kept = used[1] if drop_above is None else max(0, min(used[1], drop_above - p))
        weight = 0 if drop_above is None else min(left.layout.bits * p, 900)
        # Exponents below -1000 are raised to that, so that nothing underflows: the bound only grows.
        size = np.ldexp(left.magnitude[p], np.maximum(left.exponent[p], -1000 - weight).astype(np.int32) + weight)
        first += np.where(left.magnitude[p] > 0, size, 0.0)
        rest = right.remainder[kept]
        largest = np.maximum(largest, np.where(rest > 0, np.maximum(np.ldexp(rest, -weight), 2.0**-1070), 0.0))
    rows = np.stack([first * _UP, left.remainder[used[0]]])
    columns = np.stack([largest * _UP, right.norm * _UP])
    return rows, columns
