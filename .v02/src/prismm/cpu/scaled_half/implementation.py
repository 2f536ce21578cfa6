"""`ScaledHalf` on a CPU: FP16 words, products by BLAS or a simulated engine, and the bound of their sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prismm.core.composite import Joined, Scaled, Setting
from prismm.cpu.composite import CompositeImplementation
from prismm.cpu.engines.floats import Accumulation, FloatEngine, engine_for
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP16, FP32
from prismm.schemes.half_model import admissible_sb
from prismm.schemes.scaled_half import ScaledHalf

_SLACK = 1.0 + 2.0**-28


@dataclass(frozen=True)
class HalfWords:
    """An operand as high and low words (float32 arrays of FP16 values), in units of 2^-shift per row or column.

    high_norm, low_norm, residual: 2-norms per row or column of the high words, the low ones times 2^-sb and what both
    leave out, in the units of the scaled operand, rounded up.
    """

    high: NDArray[np.float32]
    low: NDArray[np.float32]
    shift: NDArray[np.int64]
    high_norm: NDArray[np.float64]
    low_norm: NDArray[np.float64]
    residual: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self.high, self.low, self.shift, self.high_norm, self.low_norm, self.residual)
        return sum(x.nbytes for x in arrays)

    @property
    def residue(self) -> NDArray[np.float64]:
        """At least ‖x - high‖₂."""
        return self.low_norm + self.residual

    @property
    def size(self) -> NDArray[np.float64]:
        """At least ‖x‖₂."""
        return self.high_norm + self.low_norm + self.residual


class Implementation(CompositeImplementation):
    """`ScaledHalf` on a CPU."""

    scheme: ScaledHalf

    def engine_for(self, name: str | None) -> FloatEngine:
        """See `Composite.engine_for`: BLAS, or a simulated engine with FP32 sums."""
        engine = engine_for(name)
        reason = engine.refuse(FP16, FP32)
        if reason is not None:
            raise EngineError(
                f"engine {name!r} cannot serve {self.scheme}: {reason}; sums in less than fp32 would lose what the "
                f"low words "
                "keep; pass engine='cpu', or a simulated one with fp32 sums such as 'simulated:volta'"
            )
        return engine

    def split(self, x: Scaled, setting: Setting) -> HalfWords:
        """See `Composite.split`.

        Raises:
            ArgumentError: with scale=False, for elements that FP16 words do not hold.
        """
        from prismm.cpu.kernels import half

        count = x.exponent.size
        shift = np.full(count, self.scheme.largest_exponent + 1, np.int64)
        if not self.scheme.scale:
            shift = np.where(np.any(x.data, axis=x.axis), x.exponent, 0).astype(np.int64)
        high, low = np.empty(x.data.shape, np.float32), np.empty(x.data.shape, np.float32)
        squares = np.zeros((3, count))
        # From 2^16 on there is no FP16 number, and words would be infinite.
        beyond = int(np.count_nonzero(shift > 16))
        if not beyond:
            kernel = half.split_rows if x.side == "left" else half.split_columns
            beyond = kernel(x.data, shift, self.scheme.sb, self.scheme.rounding == "zero", high, low, *squares)
        if beyond:
            raise self._overflow(int(shift.max(initial=-1)) - 1)
        # Sums of k squares err by at most (k+2)u relatively, their roots by u.
        norms = np.sqrt(squares) * (_SLACK + x.k * 2.0**-53)
        norms[:2] = np.ldexp(norms[:2], -np.maximum(shift, -900))
        norms[1] = np.ldexp(norms[1], -self.scheme.sb)
        return HalfWords(high, low, shift, norms[0], norms[1], norms[2])

    def _overflow(self, exponent: int) -> ArgumentError:
        low, high = admissible_sb(exponent, exponent)
        fits = f"{low} <= sb <= {high}" + (" below 65520" if exponent == 15 else "")
        fits = fits if exponent <= 15 else "no sb at all"
        return ArgumentError(
            f"{self.scheme} takes operands as they are, and words beyond FP16's 65504 appear: the largest element "
            f"has the "
            f"exponent {exponent}, which admits {fits}; pass scale=True, or operands scaled by a power of two"
        )

    def multiply(self, left: HalfWords, right: HalfWords, setting: Setting) -> Joined:
        """See `Composite.multiply`; the bound is proved in `_bound`."""
        engine: FloatEngine = setting.engine
        k = left.high.shape[1]
        chunk = self.scheme.chunk_for(k)
        slices = [slice(h, min(h + chunk, k)) for h in range(0, k, chunk)]
        # Low words that are all zero add nothing, as of operands that are FP16 numbers themselves.
        lows = (bool(left.low_norm.any()), bool(right.low_norm.any()))

        def product(x: NDArray[np.float32], y: NDArray[np.float32], s: slice) -> NDArray[Any]:
            return engine.multiply(x[:, s], y[s], FP16, FP32, setting.workers)

        m, n = left.high.shape[0], right.high.shape[1]
        down = 2.0**-self.scheme.sb
        if self.scheme.order == "term":
            value = np.zeros((m, n))
            for s in slices:
                if lows[1]:
                    value += product(left.high, right.low, s)
                if lows[0]:
                    value += product(left.low, right.high, s)
            value *= down
            high = np.zeros((m, n))
            for s in slices:
                high += product(left.high, right.high, s)
            value += high
        else:
            total = np.zeros((m, n), np.float32)
            for s in slices:
                total += product(left.high, right.high, s)
                if lows[1]:
                    total += product(left.high, right.low, s) * np.float32(down)
                if lows[0]:
                    total += product(left.low, right.high, s) * np.float32(down)
            value = total.astype(np.float64)
        if self.scheme.scale:
            value *= 2.0 ** (-2 * (self.scheme.largest_exponent + 1))
        else:
            value = np.ldexp(np.ldexp(value, -left.shift[:, None]), -right.shift[None, :])
        return self._bound(value, left, right, engine, chunk, len(slices), 1 + sum(lows))

    def _bound(
        self,
        value: NDArray[np.float64],
        left: HalfWords,
        right: HalfWords,
        engine: FloatEngine,
        chunk: int,
        chunks: int,
        products: int,
    ) -> Joined:
        """The value with its bound.

        With a = h + l + δ per element (l the low word times 2^-sb), ab - (hh' + hl' + lh') = ll' + δ(h' + l') + aδ'.
        The engine errs by γ·Σ|words||words'| + φ a chunk and product; sums of the 3·chunks results outside by
        G·Σ|results|, G = (3·chunks + 2)·u (u = 2^-53, or 2^-24 for one FP32 accumulator; scaling by powers of two is
        exact, as words are multiples of 2^-24 and -16 <= sb <= 40). Together Γ = γ + G/(1 - G)·(1 + γ) times
        Σ|h||h'| + |h||l'| + |l||h'|, and |h||h'| <= (|a| + |r|)(|a'| + |r'|) <= |a||a'| + |r|(|a'| + |r'|) + |a||r'|
        with r = a - h = l + δ. Sums of products of the others are at most products of 2-norms (Cauchy and Schwarz).
        """
        # |high| <= 2^shift, |low| <= 2^(shift - 11 + sb), with either rounding.
        top = max(int(left.shift.max(initial=-99)), int(right.shift.max(initial=-99)))
        found: Accumulation = engine.accumulation(chunk, FP16, FP32, 2.0 ** max(top, top - 11 + self.scheme.sb))
        g = (3 * chunks + 2) * (2.0**-53 if self.scheme.order == "term" else 2.0**-24)
        outer = g / (1.0 - g) if g < 0.5 else math.inf
        gamma = (found.gamma + outer * (1.0 + found.gamma)) * _SLACK
        floor = chunks * (1.0 + 2.0 * 2.0**-self.scheme.sb) * found.floor * (1.0 + outer) * _SLACK
        x, y = left.size, right.size
        r, s = left.residue, right.residue
        rows = [left.low_norm, left.residual + gamma * (r + left.low_norm), x]
        columns = [right.low_norm, y + s, right.residual + gamma * (s + right.low_norm)]
        if self.scheme.scale:
            floor = math.ldexp(floor, -2 * (self.scheme.largest_exponent + 1))
        else:
            # In the data's own units the floor differs from entry to entry: a row's unit times a column's.
            rows.append(floor * np.ldexp(1.0, -left.shift))
            columns.append(np.ldexp(1.0, -right.shift))
            floor = 0.0
        return Joined(value, None, gamma, np.stack(rows) * _SLACK, np.stack(columns) * _SLACK, floor, products)
