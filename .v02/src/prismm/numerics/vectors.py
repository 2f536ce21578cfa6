"""Hostile inputs of dot products, aimed at the thresholds of a model: where alignment cuts, where sums round, wrap,
underflow, overflow, and where one block ends.

Every class makes terms whose exponents lie just above, at and below one threshold, so that two models that differ in it
disagree on a fair share of them. What is not known yet (an `Aim` without it) is spread over its whole range. How each
does it stands in `numerics.kernels.draw`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from struct import pack, unpack
from typing import TYPE_CHECKING

from prismm.formats import Format
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Batch = tuple[Array, Array, Array]

__all__ = ["CLASSES", "Aim", "aim_at", "draw", "ends", "share", "structure"]


@dataclass(frozen=True)
class Aim:
    """What inputs are aimed at.

    Args:
        input, output: formats of the engine.
        kept: fraction bits that may survive alignment; () for unknown.
        precision: fraction bits of running sums that may be rounded to.
        zero_exponent: guesses; () for unknown.
        block: guesses of products per step; () for unknown.
        minexp: smallest normal exponents that running sums may have; () for the output's.
        plain: whether to keep away from the ends of the formats' ranges.
    """

    input: Format
    output: Format
    kept: tuple[int, ...] = ()
    precision: tuple[int, ...] = ()
    zero_exponent: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    minexp: tuple[int, ...] = ()
    plain: bool = False

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """As `numerics.kernels.draw` takes it, but for the first, the state of its generator."""
        import numpy as np

        low = self.input.minexp if self.plain else self.input.subnormal_exponent
        high = self.input.maxexp - 1 - (self.input.max < 2.0 ** (self.input.maxexp - 1))
        words = [word for format in (self.input, self.output) for word in _format_words(format)]
        words = [0, *words, low, high, self.plain]
        guesses = [sorted(g) for g in (self.kept, self.precision, self.zero_exponent, self.minexp)]
        first = len(words) + len(guesses) + 1
        words += [first + sum(map(len, guesses[:i])) for i in range(len(guesses) + 1)]
        return np.array([*words, *chain(*guesses)], np.int64)


def _format_words(format: Format) -> list[int]:
    (largest,) = unpack("q", pack("d", format.max))
    return [format.fraction_bits, format.minexp, format.maxexp, largest, format.has_infinity, format.has_nan]


def aim_at(*models: EngineModel) -> Aim:
    """At the thresholds of these models, of the same formats."""
    inputs, output = models[0].input, models[0].output
    assert isinstance(inputs, Format) and isinstance(output, Format)
    kept = {m.fraction_bits for m in models if m.fraction_bits is not None}
    for m in models:
        if isinstance(m.join, LateJoin):
            kept |= {m.join.sum_bits, m.join.accumulator_bits, m.join.total_bits}
    return Aim(
        inputs,
        output,
        tuple(sorted(kept)),
        tuple(sorted({m.sums.fraction_bits for m in models} | {output.fraction_bits})),
        tuple(sorted({m.zero_exponent for m in models if m.zero_exponent is not None})),
        tuple(sorted({m.block for m in models})),
        tuple(sorted({m.sums.minexp for m in models} | {output.minexp})),
    )


CLASSES = (
    "cut",
    "alone",
    "round",
    "sticky",
    "carry",
    "subnormal",
    "floor",
    "least",
    "special",
    "zero",
    "random",
    "few",
    "order",
)
"""What the inputs of each class are aimed at, in the order in which the kernel numbers them; its functions of these
names say how."""


def share(each: int, k: int, least: int) -> int:
    """How many dot products of length k: `each` up to 16, as many products in longer ones, `least` at least.

    >>> share(40, 1, 3), share(40, 64, 3), share(40, 1024, 3)
    (40, 10, 3)
    """
    return max(least, each * 16 // max(k, 16))


def draw(aim: Aim, name: str, k: int, n: int, rng: np.random.Generator) -> Batch:
    """n dot products of length k from one of `CLASSES`.

    Returns:
        a, b of shape (n, k), values of the input format, and c of shape (n,), values of the output format.
    """
    return _drawn(aim, CLASSES.index(name), k, n, rng)


def structure(aim: Aim, k: int, n: int, rng: np.random.Generator) -> Batch:
    """M, -M and units, as far apart as the formats allow (Collins' and FPRev's way of seeing an order of summation)."""
    return _drawn(aim, len(CLASSES), k, n, rng)


def ends(aim: Aim, k: int, n: int, rng: np.random.Generator) -> Batch:
    """Products that are zeros, all but a few -0, and c = -0 or tiny: only what rounds or pads them can change the sign.

    Where a block or an instruction ends shows in nothing else where its sum is rounded after every addition.
    """
    return _drawn(aim, len(CLASSES) + 1, k, n, rng)


def _drawn(aim: Aim, which: int, k: int, n: int, rng: np.random.Generator) -> Batch:
    import numpy as np

    from prismm.numerics.kernels import draw as kernels
    from prismm.numerics.kernels.draw_random import STATE

    a, b, c = np.empty((n, k)), np.empty((n, k)), np.empty(n)
    words = aim.words.copy()
    words[STATE] = rng.integers(-(1 << 63), 1 << 63)
    kernels.draw(which, words, a, b, c)
    return a, b, c
