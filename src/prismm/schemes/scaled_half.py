"""ScaledHalf: float32-grade products from two FP16 words, of which the low one is amplified.

x ≈ high + low·2^-sb with high = fl16(x), low = fl16((x - high)·2^sb), and
AB ≈ A_high·B_high + (A_high·B_low + A_low·B_high)·2^-sb: three products of FP16 words with FP32 sums (Ootomo and
Yokota 2022; Xue et al. 2025, H2SGEMM, Eq. 7, with its orders of summation, Fig. 7, and its rules for sb, Eq. 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prismm.core.composite import Joined, Scaled, Setting
from prismm.core.scheme import BuiltIn
from prismm.cpu.engines.floats import Accumulation, FloatEngine, engine_for
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP16, FP32, Format
from prismm.schemes.half_model import admissible_sb

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SB_MIN, _SB_MAX = -16, 40
_SLACK = 1.0 + 2.0**-28


@dataclass(frozen=True)
class ScaledHalf(BuiltIn):
    """Two FP16 words per number, the low one times 2^sb; three products.

    Value: the words' products (without low·low), each summed by the engine over chunks of k, joined as `order` says.
    Bound, entry by entry, with w = low·2^-sb, δ what the words leave out and r = w + δ, all as measured 2-norms of the
    row and the column: w·w' + δ·(x' + r') + x·δ' for what is left out, gamma·(|a||b|) for the sums of high words,
    gamma·((r + w)·(x' + r') + x·(r' + w')) for their difference to the operands and for the sums of low words. So a
    row that spans more than 28 binades, whose small elements keep fewer than 22 bits, gets the bound that it deserves.
    Reproducible: no (the engine chooses the order of summation). Scale-invariant: yes, with `scale`.

    Args:
        sb: the exponent of the amplification; 0 for plain low words. Admissible for operands with exponents from e_min
            to e_max: -2 - e_min <= sb <= 26 - e_max keeps 22 bits of all of them (see `half_model`); sb = 12 does for
            the most, from -14 to 14.
        order: "term" adds whole products, the small ones first, in float64; "element" adds high·high, high·low and
            low·high of each chunk into one FP32 accumulator per entry, to nearest.
        chunk: inner dimension of one engine product, whose results are added outside; at most a quarter of k (but 16
            or more) in order "term"; None for all of k.
        rounding: of the split, "nearest" or "zero".
        scale: rows and columns are scaled by powers of two until their largest elements have the exponent
            min(14, 26 - sb). False takes the operands as they are, like the paper: small ones lose bits, large ones
            are refused.

    Raises:
        ArgumentError: for other values, and for an sb that no exponent admits.

    >>> ScaledHalf().largest_exponent, ScaledHalf(sb=20).largest_exponent
    (14, 6)
    """

    room = "scaled_half"

    sb: int = 12
    order: Literal["term", "element"] = "term"
    chunk: int | None = 256
    rounding: Literal["nearest", "zero"] = "nearest"
    scale: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.sb, bool) or not isinstance(self.sb, int) or not _SB_MIN <= self.sb <= _SB_MAX:
            raise ArgumentError(
                f"ScaledHalf(sb={self.sb!r}); pass an integer from {_SB_MIN} to {_SB_MAX}: numbers with exponents e "
                "keep 22 bits if -2 - e_min <= sb <= 26 - e_max, and FP16 holds -14 <= e <= 14 after rounding. "
                "(H2SGEMM's Eq. 6 has 27: but a tie leaves |x - high| = 2^(e-11), so that sb = 27 - e gives "
                "low = 2^16, which FP16 does not hold.)"
            )
        if self.order not in ("term", "element"):
            raise ArgumentError(f"ScaledHalf(order={self.order!r}); pass 'term' or 'element'")
        if self.chunk is not None and (
            isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or self.chunk < 1
        ):
            raise ArgumentError(f"ScaledHalf(chunk={self.chunk!r}); pass an integer of 1 or more, or None for all of k")
        if self.rounding not in ("nearest", "zero"):
            raise ArgumentError(f"ScaledHalf(rounding={self.rounding!r}); pass 'nearest' or 'zero'")
        if not isinstance(self.scale, bool):
            raise ArgumentError(f"ScaledHalf(scale={self.scale!r}); pass True or False")

    def __repr__(self) -> str:
        changed = [f"{f.name}={value!r}" for f in fields(self)[1:] if (value := getattr(self, f.name)) != f.default]
        return f"ScaledHalf({', '.join([f'sb={self.sb}', *changed])})"

    @property
    def reproducible(self) -> bool:
        """Always False: the engine orders its sums."""
        return False

    @property
    def granule(self) -> tuple[int, int]:
        """(1, 1): every entry is made from its own row and column."""
        return 1, 1

    @property
    def largest_exponent(self) -> int:
        """e_max: the exponent to which the largest elements of rows and columns are scaled.

        As large as overflow of either word permits, so that as few low words as possible underflow.
        """
        return min(14, 26 - self.sb)

    def engine_for(self, name: str | None) -> FloatEngine:
        """See `Composite.engine_for`: BLAS, or a simulated engine with FP32 sums."""
        engine = engine_for(name)
        reason = engine.refuse(FP16, FP32)
        if reason is not None:
            raise EngineError(
                f"engine {name!r} cannot serve {self}: {reason}; sums in less than fp32 would lose what the low words "
                "keep; pass engine='cpu', or a simulated one with fp32 sums such as 'simulated:volta'"
            )
        return engine

    def check(self, k: int, result: Format) -> None:
        """See `Composite.check`: any inner dimension and result will do."""

    def chunk_for(self, k: int) -> int:
        """The inner dimension of one engine product."""
        if self.chunk is None:
            return max(1, k)
        # The sums outside have 53 bits: several chunks make up for what the split loses where k is short.
        quarter = 16 * -(-k // 64) if self.order == "term" else k
        return max(1, min(self.chunk, max(16, quarter)))

    def products_for(self, k: int, result: Format) -> int:
        """See `Composite.products_for`."""
        return 3

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """See `Composite.workspace`: words of 4 bytes, two float64 sums and a float32 product per entry."""
        return 8 * k * (m + n) + 28 * m * n

    def split(self, x: Scaled, setting: Setting) -> HalfWords:
        """See `Composite.split`.

        Raises:
            ArgumentError: with scale=False, for elements that FP16 words do not hold.
        """
        from prismm.cpu.kernels import half

        count = x.exponent.size
        shift = np.full(count, self.largest_exponent + 1, np.int64)
        if not self.scale:
            shift = np.where(np.any(x.data, axis=x.axis), x.exponent, 0).astype(np.int64)
        high, low = np.empty(x.data.shape, np.float32), np.empty(x.data.shape, np.float32)
        squares = np.zeros((3, count))
        beyond = int(np.count_nonzero(shift > 16))
        if not beyond:
            kernel = half.split_rows if x.side == "left" else half.split_columns
            beyond = kernel(x.data, shift, self.sb, self.rounding == "zero", high, low, *squares)
        if beyond:
            raise self._overflow(int(shift.max(initial=-1)) - 1)
        # Sums of k squares err by at most (k+2)u relatively, their roots by u.
        norms = np.sqrt(squares) * (_SLACK + x.k * 2.0**-53)
        norms[:2] = np.ldexp(norms[:2], -np.maximum(shift, -900))
        norms[1] = np.ldexp(norms[1], -self.sb)
        return HalfWords(high, low, shift, norms[0], norms[1], norms[2])

    def _overflow(self, exponent: int) -> ArgumentError:
        low, high = admissible_sb(exponent, exponent)
        fits = f"{low} <= sb <= {high}" + (" below 65520" if exponent == 15 else "")
        fits = fits if exponent <= 15 else "no sb at all"
        return ArgumentError(
            f"{self} takes operands as they are, and words beyond FP16's 65504 appear: the largest element has the "
            f"exponent {exponent}, which admits {fits}; pass scale=True, or operands scaled by a power of two"
        )

    def multiply(self, left: HalfWords, right: HalfWords, setting: Setting) -> Joined:
        """See `Composite.multiply`; the bound is proved in `_bound`."""
        engine: FloatEngine = setting.engine
        k = left.high.shape[1]
        chunk = self.chunk_for(k)
        slices = [slice(h, min(h + chunk, k)) for h in range(0, k, chunk)]
        lows = (bool(left.low_norm.any()), bool(right.low_norm.any()))

        def product(x: NDArray[np.float32], y: NDArray[np.float32], s: slice) -> NDArray[Any]:
            return engine.multiply(x[:, s], y[s], FP16, FP32, setting.workers)

        m, n = left.high.shape[0], right.high.shape[1]
        down = 2.0**-self.sb
        if self.order == "term":
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
        if self.scale:
            value *= 2.0 ** (-2 * (self.largest_exponent + 1))
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
        found: Accumulation = engine.accumulation(chunk, FP16, FP32, 2.0 ** max(top, top - 11 + self.sb))
        g = (3 * chunks + 2) * (2.0**-53 if self.order == "term" else 2.0**-24)
        outer = g / (1.0 - g) if g < 0.5 else math.inf
        gamma = (found.gamma + outer * (1.0 + found.gamma)) * _SLACK
        floor = chunks * (1.0 + 2.0 * 2.0**-self.sb) * found.floor * (1.0 + outer) * _SLACK
        x, y = left.size, right.size
        r, s = left.residue, right.residue
        rows = [left.low_norm, left.residual + gamma * (r + left.low_norm), x]
        columns = [right.low_norm, y + s, right.residual + gamma * (s + right.low_norm)]
        if self.scale:
            floor = math.ldexp(floor, -2 * (self.largest_exponent + 1))
        else:
            rows.append(floor * np.ldexp(1.0, -left.shift))
            columns.append(np.ldexp(1.0, -right.shift))
            floor = 0.0
        return Joined(value, None, gamma, np.stack(rows) * _SLACK, np.stack(columns) * _SLACK, floor, products)


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
