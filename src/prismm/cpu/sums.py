"""The sums of uncertified entries of gemm: f·X + Σ g·c, where X is a product of real operands, and each c is a number
of the entry's own.

Parts of alpha·AB are one product times a factor, unless both parts of alpha and of AB are there. Two products are one
of longer operands: with f·y = p + e (Dekker's product, which loses nothing), and P and E all p and e,

    f·XY + f'·X'Y' = [X, X, X', X']·[P; E; P'; E'],

exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.error_free import two_product
from prismm.core.outcome import Job, real_parts
from prismm.core.specials import layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.cpu.entries import Entries

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sum:
    """What entries of one real part are, beside AB.

    Attributes:
        part: 0 for real parts, 1 for imaginary ones.
        factors: f of both real products, as of `Epilogue.factors`; None for the part of AB itself.
        shares: g of each number.
        numbers: c, one array for each g, a number for each entry.
    """

    part: int
    factors: tuple[float, float] | None = None
    shares: tuple[float, ...] = ()
    numbers: tuple[Floats, ...] = ()

    def keep(self, index: Any) -> Sum:
        """Of some of the entries."""
        return replace(self, numbers=tuple(each[index] for each in self.numbers))

    @property
    def summands(self) -> tuple[float, ...]:
        """f, where `operands` are a single product, or 1, and all g; empty for the part of AB itself."""
        if self.factors is None:
            return ()
        first, second = self.factors
        return (1.0 if first and second else first or second, *self.shares)

    def operands(self, a: NDArray[Any], b: NDArray[Any], memory: float) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Real operands whose product is X.

        Args:
            a, b: rows (m, k) and columns (k, n), perhaps complex.
            memory: bytes of longer operands, at most.

        Returns:
            (m, K) and (K, n), K >= k; None where longer ones take too much memory, or have elements beyond float64.
        """
        if self.factors is None or not all(self.factors):
            part = self.part if self.factors is None else int(bool(self.factors[1]))
            return layout(a, part, "left"), layout(b, part, "right")
        # Four times as many terms, each of them of two numbers.
        if 8 * (a.shape[0] + b.shape[1]) * 8 * a.shape[1] > memory:
            return None
        lefts, rights = [layout(a, 0, "left")[:, :0]], [layout(b, 0, "right")[:0]]
        for part, factor in enumerate(self.factors):
            scaled = _times(layout(b, part, "right").astype(np.float64, copy=False), factor)
            if scaled is None:
                return None
            lefts += [layout(a, part, "left")] * len(scaled)
            rights += scaled
        return np.concatenate(lefts, axis=1), np.concatenate(rights, axis=0)

    @staticmethod
    def of(out: NDArray[Any], entries: Entries, job: Job) -> Sum:
        """Of the entries, whose C is finite."""
        if job.epilogue is None or job.epilogue.trivial:
            return Sum(entries.part)
        parts = len(real_parts(out))
        factors = job.epilogue.factors(entries.part, parts).tolist()
        of_product = (factors[0], factors[1] if parts > 1 else 0.0)
        if job.epilogue.c is None:
            return Sum(entries.part, of_product)
        added = [(g, x) for g, x in zip(factors[2:], real_parts(job.epilogue.c), strict=False) if g]
        numbers = tuple(x[entries.place].astype(np.float64) for _, x in added)
        return Sum(entries.part, of_product, tuple(g for g, _ in added), numbers)


@np.errstate(all="ignore")
def _times(y: Floats, factor: float) -> list[Floats] | None:
    """One or two arrays whose sum is factor·y exactly; None where one would overflow or lose bits below 2^-1074."""
    (size, exponent), (fraction, extra) = np.frexp(y), math.frexp(factor)
    exponent = exponent + extra
    # Fractions in [1/2, 1) have products that lose nothing.
    products = [x for x in two_product(size, np.full(1, fraction)) if x.any()]
    found = [np.ldexp(x, exponent) for x in products]
    exact = all((np.ldexp(x, -exponent) == each).all() for x, each in zip(found, products, strict=True))
    return found if exact else None
