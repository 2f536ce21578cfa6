"""What is summed in uncertified entries of gemm: alpha·AB + beta·C as a product with an addend, or as a product alone.

Where the factors are powers of two that lose nothing, the rows of A take alpha, and beta·C is a number for each entry.
Otherwise the sum is the product of longer operands. With f·y = p + e (Dekker's product, which loses nothing), X and Y
the real operands of AB, P and E all p and e, and beta·C an addend for each column,

    f·XY + g·C = [X, X, C]·[P; E; g·I],

exactly. The real part of complex numbers has a second product and a second addend, and the imaginary part likewise.
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

    from prismm.cpu.repair import Entries

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]


@dataclass(frozen=True)
class Sum:
    """What entries of one real part are, beside AB.

    Attributes:
        part: 0 for real parts, 1 for imaginary ones.
        alpha: a power of two that loses nothing of the rows' elements; 1.0 where `factors` are given.
        addend: a number to add to each entry, or None.
        factors: of both real products, and of both of C's parts; None where alpha and addend say all.
        parts: of C, a number for each entry.
    """

    part: int
    alpha: float = 1.0
    addend: Floats | None = None
    factors: tuple[float, ...] | None = None
    parts: tuple[Floats, ...] = ()

    def keep(self, index: Any) -> Sum:
        """Of some of the entries."""
        addend = None if self.addend is None else self.addend[index]
        return replace(self, addend=addend, parts=tuple(each[index] for each in self.parts))

    def within_product(self) -> Sum:
        """The same with the addend as a part of the product: exact where a float64 addend cancels most of it."""
        alphas = (0.0, self.alpha) if self.part else (self.alpha, 0.0)
        assert self.addend is not None
        return Sum(self.part, factors=(*alphas, 1.0, 0.0), parts=(self.addend,))

    def operands(
        self, a: NDArray[Any], b: NDArray[Any], place: tuple[Index, Index], memory: float
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Real operands whose product has the entries, but for the addend, at some places.

        Args:
            a, b: rows (m, k) and columns (k, n), perhaps complex.
            place: rows and columns of the entries.
            memory: bytes of longer operands, at most.

        Returns:
            (m, K) and (K, n), K >= k; None where longer ones take too much memory, or have elements beyond float64.
        """
        if self.factors is None:
            left, right = layout(a, self.part, "left"), layout(b, self.part, "right")
            return (left if self.alpha == 1.0 else left * self.alpha), right
        m, n = a.shape[0], b.shape[1]
        lefts: list[NDArray[Any]] = []
        rights: list[NDArray[Any]] = []
        count = sum(f != 0.0 for f in self.factors[:2]) * 2 * a.shape[1] * (2 if np.iscomplexobj(a) else 1)
        if 8 * (m + n) * (count + n * len(self.parts)) > memory:
            return None
        for part, factor in enumerate(self.factors[:2]):
            if factor:
                scaled = _times(layout(b, part, "right").astype(np.float64, copy=False), factor)
                if scaled is None:
                    return None
                left = layout(a, part, "left")
                for each in scaled:
                    lefts.append(left)
                    rights.append(each)
        for factor, number in zip(self.factors[2:], self.parts, strict=False):
            if factor:
                addend = np.zeros((m, n))
                addend[place] = number
                lefts.append(addend)
                rights.append(np.diag(np.full(n, factor)))
        return np.concatenate(lefts, axis=1), np.concatenate(rights, axis=0)

    @staticmethod
    @np.errstate(all="ignore")
    def of(a: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job) -> Sum:
        """Of the entries, whose C is finite."""
        if job.epilogue is None or job.epilogue.trivial:
            return Sum(entries.part)
        found = _by_powers(a, entries, job)
        if found is not None:
            return found
        c, factors = job.epilogue.c, job.epilogue.factors(entries.part, len(real_parts(out))).tolist()
        if c is None or not any(factors[2:]):
            return Sum(entries.part, factors=(*factors[:2], 0.0, 0.0))
        numbers = tuple(x[entries.place].astype(np.float64) for x in real_parts(c))
        return Sum(entries.part, factors=tuple(factors), parts=numbers)


def _by_powers(a: NDArray[Any], entries: Entries, job: Job) -> Sum | None:
    """With alpha and an addend, where both factors are real, powers of two, and lose nothing; None elsewhere."""
    assert job.epilogue is not None
    alpha, beta, c = complex(job.epilogue.alpha), complex(job.epilogue.beta), job.epilogue.c
    powers = all(abs(math.frexp(x.real)[0]) in (0.0, 0.5) and x.imag == 0.0 for x in (alpha, beta))
    if not powers or alpha.real == 0.0:
        return None
    # Rows that are not finite have no entries here.
    if abs(alpha.real) != 1.0 and any(
        ((x * alpha.real / alpha.real != x) & np.isfinite(x)).any() for x in real_parts(a)
    ):
        return None
    if c is None or beta.real == 0.0:
        return Sum(entries.part, alpha.real)
    given = real_parts(c)[entries.part][entries.place].astype(np.float64)
    addend = given * beta.real
    return Sum(entries.part, alpha.real, addend) if (addend / beta.real == given).all() else None


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
