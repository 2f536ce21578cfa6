"""`Words` on a CPU: words by a compiled kernel, products by BLAS or a simulated engine, and the bound of their sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prismm.core.composite import Joined, Scaled, Setting
from prismm.cpu.composite import CompositeImplementation
from prismm.cpu.engines.floats import Accumulation, engine_for
from prismm.errors import ArgumentError
from prismm.formats import FP32, FP64
from prismm.schemes.multiword import Words

# Elements that a worker splits at a time, in whole rows.
_ROWS = 1 << 18


@dataclass(frozen=True)
class WordParts:
    """An operand in words: (words, rows, columns) of scale·x, and what the bound needs.

    norm1: Σ|x| per vector, rounded up, in units of scale·x; excess (words + 1, vectors) and present as
    `cpu.kernels.multiword` has them.
    """

    words: NDArray[Any]
    norm1: NDArray[np.float64]
    excess: NDArray[np.float64]
    present: NDArray[np.bool_]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.words.nbytes + self.norm1.nbytes + self.excess.nbytes)


class Implementation(CompositeImplementation):
    """`Words` on a CPU."""

    scheme: Words

    def engine_for(self, name: str | None) -> Any:
        """The float engine of this name; see `cpu.engines.floats`.

        Raises:
            ArgumentError: for one that does not multiply this format.
        """
        engine = engine_for(name)
        reason = engine.refuse(self.scheme.format, self.scheme.accumulate_format)
        if reason is not None:
            raise ArgumentError(
                f"{self.scheme} on engine {engine.name!r}: {reason}; pass another accumulate= or engine='simulated:…'"
            )
        return engine

    def split(self, x: Scaled, setting: Setting) -> WordParts:
        """The words of a scaled operand."""
        import numpy as np

        from prismm.core import threads
        from prismm.cpu.kernels import multiword as kernels

        left = x.side == "left"
        dtype = np.float64 if self.scheme.accumulate_format == FP64 else np.float32
        kernel = kernels.split_float64 if dtype is np.float64 else kernels.split_float32
        m, n = x.data.shape
        out = np.empty((self.scheme.words, m, n), dtype)
        step = max(1, _ROWS // max(1, n))
        ranges = [(i, min(m, i + step)) for i in range(0, m, step)]
        vectors = m if left else n
        # Rows are one worker's each, columns are everybody's: there each range of rows finds maxima of its own.
        excess = np.zeros((1 if left else len(ranges), self.scheme.words + 1, vectors))
        present = np.zeros((len(ranges), self.scheme.words + 1), np.uint8)
        factors = np.array(self.scheme._factors())
        common = (
            math.ldexp(1.0, self.scheme.scale_exponent(x.k)), 53 - self.scheme.format.precision,
            self.scheme.rounding == "toward-zero",
            self.scheme.format.smallest_normal, self.scheme.format.smallest_subnormal, factors, left, out,
        )  # fmt: skip

        def task(index: int) -> None:
            kernel(x.data, *ranges[index], *common, excess[0 if left else index], present[index])

        threads.spread(task, list(range(len(ranges))), setting.workers)
        worst: NDArray[np.float64] = excess.max(axis=0, initial=0.0)
        found: NDArray[np.bool_] = present.max(axis=0, initial=0) > 0
        norm1 = np.ldexp(np.abs(x.data).sum(axis=x.axis) * (1.0 + 2.0**-20), self.scheme.scale_exponent(x.k))
        return WordParts(out, norm1, worst * (1.0 + 2.0**-40), found)

    def multiply(self, left: WordParts, right: WordParts, setting: Setting) -> Joined:
        """The kept products of each chunk, smallest first, and the sum of all chunks."""
        import numpy as np

        from prismm.core.composite import Joined

        k = left.words.shape[2]
        chunk = self.scheme.chunk_for(k)
        pairs = [(i, j) for i, j in self.scheme.pairs if left.present[i] and right.present[j]]
        # A binary counter: sums of 1, 2, 4, … chunks, each met by its equal, so that few additions follow any of them.
        sums: list[NDArray[Any]] = []
        for number, h in enumerate(range(0, k if pairs else 0, chunk), start=1):
            total: NDArray[Any] | None = None
            for i, j in pairs:
                x, y = left.words[i, :, h : h + chunk], right.words[j, h : h + chunk]
                value = setting.engine.multiply(
                    x, y, self.scheme.format, self.scheme.accumulate_format, setting.workers
                )
                total = value if total is None else self._add(total, value)
            assert total is not None
            while number % 2 == 0:
                total, number = self._add(sums.pop(), total), number // 2
            sums.append(total)
        while len(sums) > 1:
            last = sums.pop()
            sums[-1] = self._add(sums[-1], last)
        # A power of two, so that the return to unscaled units is exact.
        scale = math.ldexp(1.0, -2 * self.scheme.scale_exponent(k))
        if sums:
            high = np.multiply(sums[0], scale, dtype=np.float64)
        else:
            high = np.zeros((left.words.shape[1], right.words.shape[2]))
        gamma, rows, columns, floor = self.bound_terms(left, right, k, setting.engine)
        return Joined(high, None, gamma, rows, columns, floor, len(pairs))

    def _add(self, total: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        """RN(total + value) in the accumulator's format."""
        import numpy as np

        if self.scheme.accumulate_format in (FP32, FP64):
            sums: NDArray[Any] = np.add(total, value, out=total)
            return sums
        from prismm.cpu.kernels.multiword import add_rounded

        both = np.array(total, np.float64), np.array(value, np.float64)
        wide = self.scheme.accumulate_format
        add_rounded(*both, 53 - wide.precision, wide.smallest_normal, wide.smallest_subnormal)
        return both[0]

    def bound_terms(
        self, left: WordParts, right: WordParts, k: int, engine: Any
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64], float]:
        """gamma, rows, columns and floor of the bound, in scaled units.

        With A = ΣW_i + R and B = ΣV_j + S the value misses RB + (A - R)S (the rest), the dropped W_i·V_j, and of each
        kept one what the engine and the additions after it lose: AB - value = RB + (A-R)S + Σ_dropped W_iV_j +
        Σ_kept (error of W_iV_j). Each of these is at most c·(|X||Y|) with |X_ih| <= κ|a_ih| + ω_i, |Y_hj| <= λ|b_hj| +
        ω'_j, where ω is the measured excess (0 but for underflow) and κ is 0 for words that are all zero (few bits
        are then exact). Hence c·(κλ|a||b| + κ‖a_i‖₁ω'_j + ω_iλ‖b_j‖₁ + kω_iω'_j).

        A product loses γ·|W||V| in the engine (`FloatEngine.accumulation`) and at most u·(1+u)^n·(1+γ)|W||V| in each
        of the n additions that follow it: of later products of its chunk, and at most bit_length(chunks) of chunks.
        """
        import numpy as np

        base = self.scheme._factors()
        kappa = [f if p else 0.0 for f, p in zip(base, left.present, strict=True)]
        other = [f if p else 0.0 for f, p in zip(base, right.present, strict=True)]
        rest = self.scheme.words
        coefficients: list[tuple[int, int, float]] = []
        chunk, accumulate = self.scheme.chunk_for(k), self.scheme.accumulate_format
        chunks = -(-k // chunk)
        accumulation: Accumulation = engine.accumulation(
            min(k, chunk), self.scheme.format, accumulate, math.ldexp(1.0, self.scheme.scale_exponent(k))
        )
        pairs = [(i, j) for i, j in self.scheme.pairs if left.present[i] and right.present[j]]
        between = chunks.bit_length() if chunks > 1 else 0
        unit = accumulate.unit_roundoff
        growth = (1.0 + accumulation.gamma) * math.exp((len(pairs) + between) * unit) * (1.0 + 2.0**-40)
        for index, (i, j) in enumerate(pairs):
            # The first product has no addition of its own; each of the others has one, and all those that follow.
            follow = min(len(pairs) - index, len(pairs) - 1) + between
            coefficients.append((i, j, (accumulation.gamma + follow * unit) * growth))
        dropped = {(i, j) for i in range(rest) for j in range(rest)} - set(self.scheme.pairs)
        coefficients += [(i, j, 1.0) for i, j in dropped]
        gamma = 0.0
        ones = np.zeros(right.norm1.size), np.zeros(left.norm1.size)
        both: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        for i, j, c in coefficients:
            gamma += c * kappa[i] * other[j]
            ones[0][:] += c * kappa[i] * right.excess[j]
            ones[1][:] += c * other[j] * left.excess[i]
            both.append((c * k * left.excess[i], right.excess[j]))
        # R·B, and (A - R)·S, where |A - R| <= (1 + ρ)|a| + ω.
        gamma += kappa[rest] + (1.0 + kappa[rest]) * other[rest]
        ones[1][:] += (1.0 + other[rest]) * left.excess[rest]
        ones[0][:] += (1.0 + kappa[rest]) * right.excess[rest]
        both.append((k * left.excess[rest], right.excess[rest]))
        t = self.scheme.scale_exponent(k)
        rows, columns = [left.norm1, ones[1]], [ones[0], right.norm1]
        for x, y in both:
            if x.any() and y.any():
                rows.append(x)
                columns.append(y)
        up = 1.0 + 2.0**-30
        floor = len(pairs) * chunks * accumulation.floor * growth
        return (
            gamma * up,
            np.ldexp(np.stack(rows) * up, -t),
            np.ldexp(np.stack(columns) * up, -t),
            # η makes up for what the return to scaled units may round away.
            math.ldexp(floor, -2 * t) * up + (2.0**-1074 if t * 2 + 200 > 1000 else 0.0),
        )

    def relative_bound(self, k: int) -> float:
        """ε/(|a||b|) for data of which nothing underflows, on the CPU's engine; infinite where the format's exponents
        are so few that ordinary data underflow.
        """
        import numpy as np

        if self.scheme.format.exponent_bits < 8:
            return math.inf
        all_there, nothing = np.ones(self.scheme.words + 1, np.bool_), np.zeros((self.scheme.words + 1, 1))
        part = WordParts(np.empty((self.scheme.words, 1, 1)), np.zeros(1), nothing, all_there)
        return self.bound_terms(part, part, k, engine_for(None))[0]
