"""The analysis behind `ScaledHalf`: what two FP16 words keep of an FP32 number, and how H2SGEMM blocks for its cache.

Equations 3 to 6 and 8 to 10 of Xue et al. 2025 (H2SGEMM) as functions, with the paper's symbols in their docstrings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from prismm.errors import ArgumentError
from prismm.formats import FP16, FP32

__all__ = [
    "CACHE",
    "Blocking",
    "Traffic",
    "admissible_sb",
    "feasible_blocks",
    "leading_zeros_probability",
    "optimal_rows",
    "paper_sb_range",
    "retained_bits",
    "underflow_probability",
]

_DROPPED = FP32.fraction_bits - FP16.fraction_bits
"""Bits of an FP32 fraction that the high word has no room for (13)."""


def leading_zeros_probability(zeros: int, case: Literal["truncated", "rounded"]) -> Fraction:
    """P(N, X) of Eq. 3: the low word has N leading zeros, and the high word was truncated (T) or rounded up (R).

    Args:
        zeros: N. The low word of a number with exponent e has exponent e - 12 - N: N = 0, …, 11 for one to twelve
            significant bits, -1 for ties (half of the high word's last place), and 12 where it is 0.
        case: X.

    Returns:
        The exact probability over uniformly distributed FP32 fractions; all of them add up to 1.

    Raises:
        ArgumentError: for another case.

    >>> leading_zeros_probability(0, "truncated"), leading_zeros_probability(-1, "rounded")
    (Fraction(1, 4), Fraction(1, 16384))
    """
    if case not in ("truncated", "rounded"):
        raise ArgumentError(f"case={case!r}; pass 'truncated' or 'rounded'")
    if zeros < -1 or zeros > _DROPPED - 1:
        return Fraction(0)
    if zeros == -1:
        return Fraction(1, 2 ** (_DROPPED + 1))
    if zeros < _DROPPED - 1:
        return Fraction(1, 2 ** (zeros + 2))
    return Fraction(1, 2**_DROPPED) if case == "truncated" else Fraction(0)


def underflow_probability(exponent: int, sb: int = 0, *, gradual: bool = False) -> Fraction:
    """P_u of Eq. 5: that the low word of a number is below FP16's least subnormal; P_{u+gu} if `gradual`: subnormal or
    below.

    As Eq. 5 has it, a low word of 0 counts as one with N = 12 leading zeros. Amplification by 2^sb acts as if the
    exponent were larger by sb (Fig. 2).

    Args:
        exponent: offset exponent E of the FP32 number, 2^E <= |x| < 2^(E+1).
        sb: the exponent of the amplification.

    >>> round(float(underflow_probability(0, gradual=True)), 3), underflow_probability(-14)
    (0.125, Fraction(1, 1))
    """
    least = FP16.subnormal_exponent if not gradual else FP16.minexp
    # Eq. 4: the low word's exponent E - 12 - N + sb is below `least`.
    first = exponent + sb - (FP16.fraction_bits + 2) - least + 1
    total = Fraction(0)
    for zeros in range(max(first, -1), _DROPPED):
        total += leading_zeros_probability(zeros, "truncated") + leading_zeros_probability(zeros, "rounded")
    return total


def retained_bits(exponent: int, sb: int = 0) -> int:
    """Significant bits that high + low·2^-sb keeps of every FP32 number of this exponent (Fig. 2b).

    |x - (high + low·2^-sb)| <= 2^(E - bits) for all numbers with 2^E <= |x| < 2^(E+1): 22 where both words are normal
    (the sign of the low word is worth one more), fewer where the low word runs into FP16's least subnormal, 11 where
    nothing of it is left, or of the high word, fewer where that happens to both; and none where either word overflows.

    >>> retained_bits(0), retained_bits(-8), retained_bits(-8, sb=12), retained_bits(-20, sb=12)
    (22, 16, 22, 16)
    """
    if exponent > FP16.maxexp - 2 or exponent > 26 - sb:
        return 0
    least = -FP16.subnormal_exponent
    high = min(FP16.precision, max(0, exponent + least + 1))
    both = max(FP16.precision, min(2 * FP16.precision, high + FP16.precision))  # the low word alone: 11
    return max(high, min(both, exponent + least + sb))


def paper_sb_range(e_min: int, e_max: int) -> tuple[int, int]:
    """The least and the largest sb of Eq. 6, as printed: -24 + 22 - e_min and 15 + 12 - e_max.

    The upper end is one too large (`admissible_sb`).

    >>> paper_sb_range(-14, 15)
    (12, 12)
    """
    return FP16.subnormal_exponent + 2 * FP16.precision - e_min, 15 + 12 - e_max


def admissible_sb(e_min: int, e_max: int) -> tuple[int, int]:
    """The least and the largest sb with which all FP32 numbers with exponents e_min to e_max keep 22 bits.

    Eq. 6 takes the low word's exponent to be at most e - 12 + sb. But a tie leaves |x - high| = 2^(e-11): with
    sb = 27 - e_max the low word is 2^16, an overflow (32784 with sb = 12, for one). So the upper end is 26 - e_max,
    for e_max <= 14 (from 65520 on the high word overflows). Where the least is above the largest no sb will do.

    >>> admissible_sb(-14, 14)
    (12, 12)
    """
    return FP16.subnormal_exponent + 2 * FP16.precision - e_min, 26 - e_max


@dataclass(frozen=True)
class Cache:
    """What bounds the blocks of Eq. 10: FP16 elements or bytes, and cores. Defaults: Ascend 910A.

    l1: elements of the L1 buffer as Eq. 8 counts them. (512 KB of FP16 would be half as many; the paper's published
    values, 44 fused blocks of (176, 64, 176), follow from 524288.) l0: elements of each of L0A and L0B. unified: bytes
    of the buffer that holds 6 bytes per entry of a block of C. step: of which blocks are multiples.
    """

    l1: int = 512 * 1024
    l0: int = 64 * 256
    unified: int = 248 * 1024
    step: int = 16
    cores: int = 32


CACHE = Cache()


@dataclass(frozen=True)
class Blocking:
    """A block of A (rows x depth), of B (depth x columns), of C (rows x columns): b_m, b_k, b_n of Eqs. 8 to 10.

    Args:
        rows: b_m.
        depth: b_k.
        columns: b_n.
        cache: sizes of the memories, in elements.

    >>> block = Blocking(176, 64, 176)
    >>> block.fused, round(block.efficiency, 4), block.violations()
    (44, 0.9453, ())
    """

    rows: int
    depth: int
    columns: int
    cache: Cache = CACHE

    def __post_init__(self) -> None:
        if min(self.rows, self.depth, self.columns) < 1:
            raise ArgumentError(f"blocks of {self.rows} x {self.depth} x {self.columns}; pass positive sizes")

    @property
    def fused(self) -> int:
        """N_fused of Eq. 8: blocks of A that stay in L1 beside two buffers for blocks of B; not below 0."""
        left = self.cache.l1 - 2 * self.depth * self.columns
        return max(0, left // (self.rows * self.depth))

    @property
    def efficiency(self) -> float:
        """F of Eq. 8: the share of L1 that blocks of A fill, N_fused = f·L1/(b_m·b_k)."""
        return self.fused * self.rows * self.depth / self.cache.l1

    def violations(self) -> tuple[str, ...]:
        """The constraints of Eq. 10 that the block breaks, in words; empty where it fits."""
        found = []
        if self.rows % self.cache.step or self.depth % self.cache.step or self.columns % self.cache.step:
            found.append(f"b_m, b_k and b_n must be multiples of {self.cache.step}")
        if self.rows * self.depth > self.cache.l0:
            found.append(f"b_m·b_k = {self.rows * self.depth} exceeds L0A's {self.cache.l0}")
        if self.depth * self.columns > self.cache.l0:
            found.append(f"b_k·b_n = {self.depth * self.columns} exceeds L0B's {self.cache.l0}")
        if 6 * self.rows * self.columns > self.cache.unified:
            found.append(f"6·b_m·b_n = {6 * self.rows * self.columns} exceeds {self.cache.unified} bytes of L0C and UB")
        return tuple(found)

    def traffic(self, m: int, k: int, n: int) -> Traffic:
        """Elements moved between main memory and L1 for C = AB (Eq. 9)."""
        if not self.fused:
            raise ArgumentError(f"no block of {self.rows} x {self.depth} fits L1 of {self.cache.l1}; pass smaller ones")
        return Traffic(
            a=float(m * k),
            b=m * k * n / (self.cache.cores * self.rows),
            # 2·b_m·b_n·M·N·K/N_fused with K = k/b_k: 2·m·n·k/(b_k·N_fused) = 2·m·k·n·b_m/(f·L1)
            c=2.0 * m * k * n / (self.depth * self.fused),
        )


@dataclass(frozen=True)
class Traffic:
    """Elements that Eq. 9 counts.

    Attributes:
        a: of A, read once.
        b: of B, read for every block row of a core.
        c: of C, read and written.
    """

    a: float
    b: float
    c: float

    @property
    def total(self) -> float:
        """data_rw of Eq. 9."""
        return self.a + self.b + self.c


def optimal_rows(efficiency: float, cache: Cache = CACHE) -> float:
    """The b_m that makes the traffic of Eq. 9 least: sqrt(f·L1/(2·N_core)), where B's and C's terms are equal.

    With f from 0.92 to 1: 86.8 to 90.5. The paper takes the next multiple of 16, 96 (its "nearest" holds from 88 on).

    >>> round(optimal_rows(0.92), 1), round(optimal_rows(1.0), 1), blocks_up(optimal_rows(0.95))
    (86.8, 90.5, 96)
    """
    return math.sqrt(efficiency * cache.l1 / (2 * cache.cores))


def blocks_up(rows: float, cache: Cache = CACHE) -> int:
    """The next multiple of 16 (the cube's step) from `rows` on."""
    return cache.step * math.ceil(rows / cache.step)


def feasible_blocks(cache: Cache = CACHE) -> Iterator[Blocking]:
    """Every block that Eq. 10 admits (what Fig. 5 plots: N_fused and f against b_m·b_k and b_n/b_m)."""
    largest = cache.l0 // cache.step
    for rows in range(cache.step, largest + 1, cache.step):
        for depth in range(cache.step, cache.l0 // rows + 1, cache.step):
            for columns in range(cache.step, cache.l0 // depth + 1, cache.step):
                if 6 * rows * columns > cache.unified:
                    break
                yield Blocking(rows, depth, columns, cache)
