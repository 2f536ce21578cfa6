"""`slice_join.expand_slices` in Triton's interpreter against integers; tells what is wrong with each.

python -m tests.cuda.harness.interpreter sums [seed]
"""

import math
from fractions import Fraction

import numpy as np
import torch
import triton
import triton.language as tl

from prismm.cuda.slices.kernels.join import expand_slices
from tests.cuda.harness.evidence import launch, tell


@triton.jit
def expand(
    low, top, out, plane, blocks, GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """out (3, SIZE) = h, low and tail of SIZE entries."""
    at = tl.arange(0, SIZE)
    h, m, t = expand_slices(low + at, top + at, plane, blocks, at < SIZE, GROUPS, BITS, TRUNCATED)
    tl.store(out + at, h)
    tl.store(out + SIZE + at, m)
    tl.store(out + 2 * SIZE + at, t)


SHAPES = [
    (8, 7, 1, 1), (8, 7, 1, 70), (8, 13, 1, 66), (8, 17, 1, 3), (8, 10, 1, 50), (9, 5, 2, 40), (10, 11, 2, 70),
    (12, 9, 2, 1), (4, 27, 2, 7), (21, 5, 8, 1), (21, 7, 8, 5), (26, 5, 8, 2), (25, 4, 8, 40), (16, 7, 8, 66),
    (8, 1, 1, 9), (1, 3, 1, 4),
]  # fmt: skip
TRUNCATED = [(7, 9, 1, 1), (7, 15, 1, 70), (8, 13, 2, 66), (9, 11, 2, 70), (5, 19, 2, 3), (21, 5, 8, 5), (24, 5, 8, 40)]
"""Bits, groups, bytes of a digit, blocks of the inner dimension; of digits to nearest and toward zero."""
SIZE = 128


def drawn(rng: np.random.Generator, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of so many bits, many of which are all ones, one, or zero."""
    full = (1 << bits) - 1
    usual = rng.integers(0, full + 1, shape)
    return np.choose(rng.integers(0, 5, shape), [usual, full, 0, 1, full - 1])


def main(seed: str = "0") -> None:
    rng = np.random.default_rng(int(seed) % 2**32)
    shapes = [*((*shape, False) for shape in SHAPES), *((*shape, True) for shape in TRUNCATED)]
    for bits, groups, size, blocks, truncated in shapes:
        # The largest sums that the accumulators of all blocks together can have.
        most = 23 + 2 * (bits - 1 + truncated) if size != 8 else 53
        most = min(most - math.ceil(math.log2(blocks)), 30 if size != 8 else 54)
        low = drawn(rng, bits, (blocks, groups - 1, SIZE))
        top = drawn(rng, most, (blocks, SIZE)) * rng.choice([-1, 1], (blocks, SIZE))
        # Sums near zero, and exactly zero.
        if groups > 1:
            below = sum(low[:, x].sum(0).astype(object) << (bits * x) for x in range(groups - 1))
            rest = -(-below >> bits * (groups - 1))
            fix_slice_count = -(top[1:].sum(0).astype(object) + rest) + rng.integers(-1, 2, SIZE)
            fits = (np.abs(fix_slice_count.astype(np.float64)) < 2.0**most) & (rng.random(SIZE) < 0.6)
            top[0] = np.where(fits, fix_slice_count, top[0]).astype(np.int64)
        exact = sum(
            (low[:, x].sum(0).astype(object) << (bits * x) for x in range(groups - 1)),
            top.sum(0).astype(object) << (bits * (groups - 1)),
        )
        kinds = (
            torch.uint8 if bits <= 8 else torch.int16 if bits < 16 else torch.int32,
            (torch.int64 if size == 8 else torch.int32),
        )
        planes, tops = torch.from_numpy(low).to(kinds[0]), torch.from_numpy(top).to(kinds[1])
        planes = planes if groups > 1 else torch.zeros(1, dtype=torch.uint8)
        out = torch.zeros(3, SIZE, dtype=torch.float64)
        constants = {"GROUPS": groups, "BITS": bits, "TRUNCATED": truncated, "SIZE": SIZE}
        launch(expand, (1,), planes, tops, out, SIZE, blocks, **constants)
        h, m, t = out.numpy()
        rest = [value - Fraction(x) - Fraction(y) for value, x, y in zip(exact, h, m, strict=True)]
        wrong = h + m != h
        # Half an ulp, of which a tie has half an ulp of its own behind it.
        half = [Fraction(math.ulp(y)) / 2 * (1 + Fraction(2) ** -52) for y in m]
        wrong |= np.array([abs(x) > y for x, y in zip(rest, half, strict=True)]) & (m != 0)
        wrong |= np.array([(x > y) - (x < y) for x, y in zip(rest, [0] * SIZE, strict=True)]) != np.sign(t)
        wrong |= (m == 0) & (t != 0)
        tell([bits, groups, size, blocks, truncated], wrong=int(wrong.sum()))
