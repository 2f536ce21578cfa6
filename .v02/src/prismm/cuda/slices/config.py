"""What slices are made of on a GPU, how many there are, and the workspace that they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.cuda.device import FP16, FP64, INT8
from prismm.cuda.residues.split import STATISTICS

if TYPE_CHECKING:
    import torch

    from prismm.cuda.residues.tables import CertificateTest


MOST_BALANCED = 10
"""Slices of eight bits with carry that the split makes at most."""

MOST_BITS = 128
"""Bits of a vector's slices at most: more would leave the range of the factors that scale it."""

MOST_ADAPTIVE = 256
"""Slices with exponents of their own, of which each has a launch of products and a number an entry and pair."""

_SHORTEST = 256
"""The inner dimension is not cut into shorter blocks to fill the GPU."""


@dataclass(frozen=True)
class Digits:
    """What slices are made of: the engine that multiplies them, their type on the device, bits and bytes of each;
    truncated: whether they are rounded toward zero; adaptive: whether each has an exponent of its own.
    """

    engine: str
    kind: str
    bits: int
    truncated: bool = False
    adaptive: bool = False

    @property
    def size(self) -> int:
        """Bytes of a digit."""
        return {"int8": 1, "float64": 8}.get(self.kind, 2)

    @property
    def balanced(self) -> bool:
        """Whether they are in [-128, 127], with carry."""
        return self.kind == "int8" and self.bits == 8 and not (self.truncated or self.adaptive)

    @property
    def longest_sum(self) -> int:
        """Terms that the unit adds exactly."""
        from prismm.cuda.slices.kernels.product import longest_sum

        return longest_sum(self.bits, self.size, self.truncated)

    @property
    def dtype(self) -> torch.dtype:
        """Their type."""
        import torch

        found: torch.dtype = getattr(torch, self.kind)
        return found

    @property
    def below(self) -> torch.dtype:
        """Of what is stored of a sum for each group but the first: so many bits without a sign."""
        import torch

        # Unsigned numbers of β bits in signed types: the sign bit of 16 or 32 bits must stay free, while bytes have
        # none.
        return torch.uint8 if self.bits <= 8 else torch.int16 if self.bits < 16 else torch.int32

    @property
    def top(self) -> torch.dtype:
        """Of what is above that."""
        import torch

        return torch.int64 if self.size == 8 else torch.int32


_UNITS = {
    "int8": (INT8, "int8"), "fp16": (FP16, "float16"), "fp16-fp16": (FP16, "float16"), "bf16": (FP16, "float16"),
    "fp64": (FP64, "float64"), "fp32-fp64": (FP64, "float64"),
}  # fmt: skip


def digits_for(unit: str, bits: int, truncated: bool = False, adaptive: bool = False) -> Digits:
    """How a GPU holds slices of a unit of `schemes.slice_layout`: in its own type, or one that holds its integers and
    sums.

    >>> digits_for("fp16", 8)
    Digits(engine='cuda:fp16', kind='float16', bits=8, truncated=False, adaptive=False)
    """
    return Digits(*_UNITS[unit], bits, truncated, adaptive)


def tile_of(digits: Digits) -> tuple[int, int]:
    """Rows and columns that a program multiplies."""
    from prismm.cuda.slices.kernels.product import TILES

    return TILES[digits.size][:2]


def refuse(digits: Digits, slices: int, groups: int, k: int) -> str | None:
    """Why a GPU does not multiply so many slices, or None; with what to pass instead."""
    from prismm.cuda.slices.kernels import join as slice_join
    from prismm.cuda.slices.kernels import product as slice_product

    # Neither the bits of a grid nor limbs of the join limit adaptive slices: no pair shares a weight with another.
    if digits.adaptive:
        if slices > MOST_ADAPTIVE:
            return f"a GPU has {MOST_ADAPTIVE} adaptive slices at most; pass fewer, or mode='CR'"
    else:
        if digits.balanced and slices > MOST_BALANCED:
            return f"a GPU has {MOST_BALANCED} slices of 8 bits at most on unit 'int8'; pass fewer, or mode='CR'"
        if slices * digits.bits > MOST_BITS:
            return f"a GPU has slices of {MOST_BITS} bits together; pass slices={MOST_BITS // digits.bits} or fewer"
        if len(slice_join.limbs(groups, digits.bits, digits.size, digits.truncated)) > slice_join.MOST_LIMBS:
            return "its sums have more bits than a GPU joins; pass fewer slices, or fast=True"
    longest, depth = digits.longest_sum, slice_product.TILES[digits.size][2]
    # A step of the kernel multiplies `depth` terms before it can empty the unit's sum; terms beyond k are zeros.
    if longest < min(k, depth):
        most = slice_product.most_bits(digits.size, digits.truncated)
        return f"slices of {digits.bits} bits multiply {longest} terms at a time; pass bits={most} or less"
    return None


@dataclass(frozen=True)
class LaunchConfig:
    """How out = a @ b is multiplied: d slices, pairs with p + q < groups (0 first), the test of entries, and digits."""

    slices: int
    groups: int
    test: CertificateTest
    digits: Digits = Digits(INT8, "int8", 8)

    @property
    def pairs(self) -> int:
        """Products of slices."""
        return sum(min(s, self.slices - 1) - max(0, s - self.slices + 1) + 1 for s in range(self.groups))

    @property
    def widest(self) -> int:
        """The longest block of the inner dimension."""
        from prismm.cuda.slices.kernels.product import widest

        # Adaptive pairs are multiplied apart, so an accumulator takes one product of slices, not a group of them.
        together = 1 if self.digits.adaptive else self.slices
        return widest(together, self.digits.bits, self.digits.size, self.digits.truncated)

    def cut(self, tiles: int, k: int, programs: int) -> Cut:
        """How the inner dimension is cut for so many tiles: pairs that are multiplied apart fill the GPU themselves."""
        return cut_for(self.widest, tiles * (self.slices if self.digits.adaptive else 1), k, programs)

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry's sum in a block of the inner dimension, or of all its pairs."""
        if self.digits.adaptive:
            return self.pairs * self.digits.top.itemsize
        return self.digits.top.itemsize + (self.groups - 1) * self.digits.below.itemsize


@dataclass(frozen=True)
class Cut:
    """How the inner dimension is cut: so many blocks, padded to this width."""

    blocks: int
    width: int


def cut_for(widest: int, tiles: int, k: int, programs: int) -> Cut:
    """Blocks that the accumulators hold; more where the tiles of all matrices leave programs idle.

    >>> cut_for(18432, 2048, 8192, 132), cut_for(18432, 32, 1024, 132), cut_for(18432, 2048, 20000, 132)
    (Cut(blocks=1, width=8192), Cut(blocks=4, width=256), Cut(blocks=2, width=10112))
    """
    from prismm.cuda.slices.kernels.product import PADDED

    # Blocks beyond what accumulators ask for pay only while programs idle: each one writes sums of its own to be
    # joined.
    blocks = max(-(-k // widest), min(programs // max(1, tiles), k // _SHORTEST), 1)
    # Of long vectors multiples of twice that: a grid has only so many tiles of columns (`LONGEST_GRID`).
    width = _ceil(-(-k // blocks), PADDED if k <= PADDED << 15 else 2 * PADDED)
    # Widths are rounded up, so that fewer blocks may hold all of k; one more would multiply zeros only.
    return Cut(-(-k // width), width)


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


def workspace(config: LaunchConfig, rows: int, columns: int, k: int, batch: int = 1, programs: int = 1) -> int:
    """Bytes of workspace for a product of so many rows and columns, one of a batch that so many programs multiply."""
    cut = config.cut(-(-rows // 128) * -(-columns // 256) * batch, k, programs)
    vectors = _ceil(rows, 64) + _ceil(columns, 64)
    digits = config.slices * cut.blocks * cut.width * vectors * config.digits.size
    # Three numbers a slice (`adaptive.CUTS`), or three a vector (`split.EXTRAS`).
    extras = 3 * config.slices if config.digits.adaptive else 3
    if config.digits.adaptive:  # vectors that are copied first
        digits += 8 * k * (rows + columns)
    entries, statistics = rows * _ceil(columns, 64), 8 * (STATISTICS + extras) * (rows + columns)
    return digits + statistics + cut.blocks * entries * config.entry_bytes + entries // 8
