"""Matrix engines that this machine lacks, simulated bit for bit: what they keep, what they cut off, how they round.

Two arithmetics cover what is known of floating-point matrix engines (Fasi, Higham, Mikaitis and Pranesh 2021, §3;
the models that reproduce published outputs of V100, A100 and H100 agree):

- *aligned*: products of a block, and the accumulator with them, are shifted to the largest exponent among them, cut
  off (toward zero, sign and magnitude, each for itself) after `kept` fraction bits, added exactly, and rounded once;
- *chained*: every product is exact and is added by itself, and every sum is rounded, as in a loop of FMAs.

| name | inputs | sums | block | kept bits | rounding |
| --- | --- | --- | --- | --- | --- |
| simulated:volta | fp16 | fp32, fp16 | 4 | 23 | toward zero; fp16: to nearest |
| simulated:turing | fp16 | fp32, fp16 | 8 | 24 | the same |
| simulated:ampere | fp16, bf16, tf32 | fp32; fp16 of fp16 | 8, tf32 4 | 24 | the same |
| simulated:hopper | fp16, bf16, tf32 | fp32; fp16 of fp16 | 16, tf32 8 | 25 | the same |
| …-fp16 | fp16 | fp16 only | as above | as above | to nearest |
| simulated:fp16 | fp16 | fp16 | chained | all | to nearest (HGEMM of FMAs) |
| simulated:rn, simulated:rz | any with exact products | any | chained | all | to nearest, toward zero |

A unit also takes formats whose every value is one of its own input format.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from prismm.engines.floats import Accumulation
from prismm.errors import ArgumentError, EngineError
from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format, round_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Accumulator", "SimulatedEngine", "Unit", "engine", "names"]

_PANEL = 256
_STRIP = 512


@dataclass(frozen=True)
class Accumulator:
    """How sums of exact products are made.

    Args:
        format: of the accumulator, to which every (block's) sum is rounded.
        rounding: of that sum, "nearest" (ties to even) or "zero". Sums from 2^maxexp on become infinite and stay so.
        block: products that are aligned and added at once; the inner dimension is padded with zeros.
        kept: fraction bits, relative to the largest power of two among the block's terms, that survive alignment;
            None for sums of one product without any loss (then block is 1).
        least: that power of two is 2^least at least, which matters while the accumulator is 0.

    Raises:
        ArgumentError: for parameters that exclude each other or leave float64's exact range.

    >>> from prismm.formats import FP16, FP32
    >>> volta = Accumulator(FP32, "zero", block=4, kept=23)
    >>> volta.dot([1.0, 2.0**-12], [1.0, 2.0**-12], FP16)  # 2^-24 is cut off; a sum of fp32 values would keep it
    1.0
    """

    format: Format
    rounding: Literal["nearest", "zero"] = "nearest"
    block: int = 1
    kept: int | None = None
    least: int = -132

    def __post_init__(self) -> None:
        if self.rounding not in ("nearest", "zero"):
            raise ArgumentError(f"rounding={self.rounding!r}; pass 'nearest' or 'zero'")
        if self.kept is None:
            if self.block != 1:
                raise ArgumentError(f"block={self.block} needs kept=, the fraction bits that survive alignment")
            if 51 < self.format.precision < 53:
                raise ArgumentError(f"sums in {self.format} cannot be simulated; pass at most 50 fraction bits, or 52")
            return
        if not 1 <= self.block <= 64 or not 2 <= self.kept <= 40:
            raise ArgumentError(f"block={self.block}, kept={self.kept}; pass a block of 1 to 64 and 2 to 40 kept bits")
        if self.format.fraction_bits > self.kept or self.format.exponent_bits > 8:
            raise ArgumentError(f"accumulators in {self.format} do not fit {self.kept} kept bits; pass a narrower one")
        if not self.format.subnormal_exponent - 16 <= self.least < self.format.minexp:
            raise ArgumentError(
                f"least={self.least}; pass an exponent from {self.format.subnormal_exponent - 16} to "
                f"{self.format.minexp - 1}, below that of the accumulator's normal values"
            )

    def dot(self, a: Sequence[float], b: Sequence[float], inputs: Format) -> float:
        """The specification: one entry of a product, in exact arithmetic, step by step.

        Args:
            a, b: of equal length, values of `inputs`.
            inputs: the unit's input format, which says what is subnormal.
        """
        total = 0.0
        for start in range(0, len(a), self.block):
            pairs = list(zip(a[start : start + self.block], b[start : start + self.block], strict=True))
            if math.isinf(total):
                return total
            if self.kept is None:
                ((x, y),) = pairs
                exact = Fraction(total) + Fraction(x) * Fraction(y)
                # A sum of zeros has the sign that IEEE 754 gives it.
                total = self._round(exact) if exact else total + x * y
                continue
            terms = [
                (Fraction(x) * Fraction(y), _exponent(x, inputs) + _exponent(y, inputs)) for x, y in pairs if x and y
            ]
            if total:
                terms.append((Fraction(total), _exponent(total, self.format)))
            largest = max([e for _, e in terms] + ([] if total else [self.least]))
            unit = Fraction(2) ** (largest - self.kept)
            cut = sum(math.trunc(term / unit) for term, _ in terms)
            total = self._round(cut * unit) + 0.0  # no zero is negative
        return total

    def _round(self, x: Fraction) -> float:
        if self.rounding == "zero" and abs(x) >= Fraction(2) ** self.format.maxexp:
            return math.inf if x > 0 else -math.inf
        how: Literal["nearest", "down", "up"] = "nearest"
        if self.rounding == "zero":
            how = "up" if x < 0 else "down"
        return round_fraction(self.format, x.numerator, 1 - x.denominator.bit_length(), how)

    def bound(self, k: int, inputs: Format, largest: float) -> Accumulation:
        """|computed - exact| <= gamma·(|a||b|) + floor for dots of length k of magnitudes up to `largest`.

        With c the accumulator, P the block's products: the block's sum is c + P + δ, and its rounding errs by at most
        r·|c + P + δ| + η, r = u to nearest and 2u toward zero, η half or all of the accumulator's smallest subnormal.
        Of the block + 1 terms at most `cut` lose bits, each less than 2^(E-kept): all but the largest one, which has no
        bits to lose where 2·fraction_bits of the inputs (the accumulator's always) are <= kept; else all. So
        |δ| <= g·2^E, g = cut·2^-kept, and 2^E <= |c| + |P| + σ, where σ = μ + block·λ·(2·largest + λ): λ and μ are
        the least normal values of inputs and accumulator, because subnormal factors count with exponents above their
        own, |2^(e_a+e_b)| <= max(|a|, λ)·max(|b|, λ) <= |a||b| + λ(|a| + |b|) + λ². By induction with A = |a||b| and
        |c| <= A + ε: ε' <= (1+r)(1+g)·ε + ((1+r)(1+g) - 1)·A + (1+r)·g·σ + η, hence after n blocks
        gamma = ((1+r)(1+g))^n - 1 and floor = n·(1+gamma)·((1+r)·g·σ + η). Chained sums have g = 0.
        """
        blocks = -(-k // self.block)
        nearest = self.rounding == "nearest"
        r = self.format.unit_roundoff if nearest else 2.0 * self.format.unit_roundoff
        eta = self.format.smallest_subnormal * (0.5 if nearest else 1.0)
        g = 0.0
        if self.kept is not None:
            g = (self.block + (2 * inputs.fraction_bits > self.kept)) * 2.0**-self.kept
        growth = blocks * (math.log1p(r) + math.log1p(g))
        gamma = math.expm1(growth) * (1.0 + 2.0**-40) if growth < 600.0 else math.inf
        sigma = 0.0
        if self.kept is not None:
            least = inputs.smallest_normal
            sigma = self.format.smallest_normal + self.block * least * (2.0 * largest + least)
        floor = blocks * (1.0 + gamma) * ((1.0 + r) * g * sigma + eta) * (1.0 + 2.0**-40)
        return Accumulation(gamma, floor)


def _exponent(x: float, format: Format) -> int:
    """floor(log2|x|), and that of the least normal value for subnormal x."""
    return max(math.frexp(x)[1] - 1, format.minexp)


@dataclass(frozen=True)
class Unit:
    """An instruction of an engine: values of `inputs` (None: any format with exact products) into `accumulator`.

    accumulator None: chained sums in any format, with `rounding`.
    """

    inputs: Format | None
    accumulator: Accumulator | None
    rounding: Literal["nearest", "zero"] = "nearest"

    def __post_init__(self) -> None:
        aligned = self.accumulator is not None and self.accumulator.kept is not None
        if aligned and (self.inputs is None or self.inputs.exponent_bits > 8 or not _exact_products(self.inputs)):
            raise ArgumentError(
                f"inputs={self.inputs} cannot be aligned; pass a format of at most 8 exponent and 25 fraction bits"
            )

    def serves(self, inputs: Format, accumulate: Format) -> bool:
        """Whether values of `inputs` can be multiplied with sums in `accumulate`."""
        if self.inputs is not None and not _contains(self.inputs, inputs):
            return False
        if self.inputs is None and not _exact_products(inputs):
            return False
        if self.accumulator is None:
            return accumulate.precision <= 51 or _same(accumulate, FP64)
        return _same(self.accumulator.format, accumulate)


def _same(x: Format, y: Format) -> bool:
    return (x.exponent_bits, x.fraction_bits) == (y.exponent_bits, y.fraction_bits)


def _contains(outer: Format, inner: Format) -> bool:
    """Whether every finite value of `inner` is one of `outer`."""
    return (
        inner.precision <= outer.precision
        and inner.maxexp <= outer.maxexp
        and inner.subnormal_exponent >= outer.subnormal_exponent
    )


def _exact_products(inputs: Format) -> bool:
    """Whether float64 holds every product of two values exactly."""
    return 2 * inputs.precision <= 53 and 2 * inputs.maxexp <= 1024 and 2 * inputs.subnormal_exponent >= -1074


@dataclass(frozen=True)
class SimulatedEngine:
    """A `FloatEngine` (see `engines.floats`) that adds as its units say, whatever this machine's own arithmetic.

    Results are functions of the entry's row and column alone: the same on all machines, for all numbers of workers.
    """

    name: str
    units: tuple[Unit, ...]

    def unit(self, inputs: Format, accumulate: Format) -> tuple[Format, Accumulator] | None:
        """Input format and accumulator of the first unit that serves, or None."""
        for unit in self.units:
            if unit.serves(inputs, accumulate):
                accumulator = unit.accumulator or Accumulator(accumulate, unit.rounding)
                return unit.inputs or inputs, accumulator
        return None

    def refuse(self, inputs: Format, accumulate: Format) -> str | None:
        """See `FloatEngine.refuse`."""
        if self.unit(inputs, accumulate) is not None:
            return None
        has = ", ".join(dict.fromkeys(_described(unit) for unit in self.units))
        return f"it has no {_named(inputs)} inputs with sums in {_named(accumulate)}; it has {has}"

    def accumulation(self, k: int, inputs: Format, accumulate: Format, largest: float = math.inf) -> Accumulation:
        """See `FloatEngine.accumulation`; proved in `Accumulator.bound`."""
        format, accumulator = self._unit(inputs, accumulate)
        return accumulator.bound(k, format, min(largest, inputs.max))

    def _unit(self, inputs: Format, accumulate: Format) -> tuple[Format, Accumulator]:
        found = self.unit(inputs, accumulate)
        if found is None:
            raise EngineError(
                f"engine {self.name!r} cannot be used here: {self.refuse(inputs, accumulate)}; "
                f"pass another of {', '.join(names())}"
            )
        return found

    def multiply(
        self, left: NDArray[Any], right: NDArray[Any], inputs: Format, accumulate: Format, workers: int
    ) -> NDArray[Any]:
        """See `FloatEngine.multiply`.

        Raises:
            EngineError: if no unit serves, or an operand holds what is no value of `inputs`.
        """
        import numpy as np

        from prismm.engines import pool
        from prismm.kernels.cpu import simulate

        format, accumulator = self._unit(inputs, accumulate)
        for side, x in (("left", left), ("right", right)):
            count = _foreign(x, inputs)
            if count:
                raise EngineError(f"{count} elements of the {side} operand are no {_named(inputs)} values; round them")
        m, n = left.shape[0], right.shape[1]
        to = accumulator.format
        out = np.empty((m, n))
        rounding = simulate.ZERO if accumulator.rounding == "zero" else simulate.NEAREST
        narrow = (52 - to.fraction_bits, to.smallest_normal, to.smallest_subnormal)
        overflow = math.inf if to.maxexp == 1024 else 2.0**to.maxexp
        if accumulator.kept is not None:
            block, padded = accumulator.block, -(-accumulator.block // 4) * 4
            a, b = _blocked(left, block, padded, axis=1), _blocked(right, block, padded, axis=0)
            a = np.ascontiguousarray(a.transpose(1, 0, 2))
            b = b.reshape(-1, n)
            extra = (accumulator.kept, format.smallest_normal, 2.0**accumulator.least)

            def task(at: tuple[int, int, int, int]) -> None:
                simulate.aligned_product(a, b, *at, *extra, *narrow, overflow, rounding, out)
        else:
            x, y = (np.array(z, np.float64, order="C") for z in (left, right))

            def task(at: tuple[int, int, int, int]) -> None:
                simulate.chained_product(x, y, *at, *narrow, overflow, rounding, out)

        tiles = [
            (i, min(i + _PANEL, m), j, min(j + _STRIP, n)) for j in range(0, n, _STRIP) for i in range(0, m, _PANEL)
        ]
        pool.spread(task, tiles, workers)
        return out.astype(np.float32) if _contains(FP32, to) else out


def _blocked(x: NDArray[Any], block: int, padded: int, axis: int) -> NDArray[np.float64]:
    """The inner dimension as (blocks, padded): rows (m, blocks, padded), or (blocks, padded, n), filled with zeros."""
    import numpy as np

    k = x.shape[axis]
    blocks = -(-k // block)
    if axis == 0:
        by_rows = np.zeros((blocks, padded, x.shape[1]))
        whole = k // block * block
        by_rows[: k // block, :block] = x[:whole].reshape(-1, block, x.shape[1])
        if whole < k:
            by_rows[-1, : k - whole] = x[whole:]
        return by_rows
    by_columns = np.zeros((x.shape[0], blocks, padded))
    whole = k // block * block
    by_columns[:, : k // block, :block] = x[:, :whole].reshape(x.shape[0], -1, block)
    if whole < k:
        by_columns[:, -1, : k - whole] = x[:, whole:]
    return by_columns


def _foreign(x: NDArray[Any], format: Format) -> int:
    """How many elements are no finite values of the format."""
    import numpy as np

    y = np.ascontiguousarray(x, dtype=np.float64)
    bits = y.view(np.int64)
    size = np.abs(y)
    bad = (bits & ((1 << (52 - format.fraction_bits)) - 1) != 0) | ~(size <= format.max)
    small = (size < format.smallest_normal) & ~bad
    if small.any():
        units = np.ldexp(size[small], -format.subnormal_exponent)
        bad[small] = units != np.rint(units)
    return int(np.count_nonzero(bad))


def _named(format: Format) -> str:
    return format.name or f"e{format.exponent_bits}m{format.fraction_bits}"


def _described(unit: Unit) -> str:
    inputs = "any format with exact products" if unit.inputs is None else _named(unit.inputs)
    return f"{inputs} -> {'any format' if unit.accumulator is None else _named(unit.accumulator.format)}"


def _nvidia(block: int, kept: int, zero: int, *formats: Format) -> tuple[Unit, ...]:
    """Units of one generation: blocks of `block` 16-bit inputs, half as many of tf32; least exponents for fp16 sums."""
    wide = tuple(
        Unit(f, Accumulator(FP32, "zero", block // 2 if f == TF32 else block, kept, -132 - (kept - 24)))
        for f in (FP16, *formats)
    )
    return (*wide, Unit(FP16, Accumulator(FP16, "nearest", block, kept, zero)))


@functools.cache
def _catalogue() -> dict[str, SimulatedEngine]:
    generations = {
        "volta": _nvidia(4, 23, -19),
        "turing": _nvidia(8, 24, -20),
        "ampere": _nvidia(8, 24, -20, BF16, TF32),
        "hopper": _nvidia(16, 25, -21, BF16, TF32),
    }
    units: dict[str, tuple[Unit, ...]] = dict(generations)
    units |= {f"{name}-fp16": (found[-1],) for name, found in generations.items()}
    units["fp16"] = (Unit(FP16, Accumulator(FP16)),)
    units["rn"] = (Unit(None, None, "nearest"),)
    units["rz"] = (Unit(None, None, "zero"),)
    return {f"simulated:{name}": SimulatedEngine(f"simulated:{name}", found) for name, found in units.items()}


def names() -> list[str]:
    """Every simulated engine, as `engine=` takes it.

    >>> names()[:3]
    ['simulated:volta', 'simulated:turing', 'simulated:ampere']
    """
    return list(_catalogue())


def engine(name: str) -> SimulatedEngine:
    """The simulated engine of this name.

    Raises:
        ArgumentError: for an unknown name, with those there are.

    >>> engine("simulated:rz").accumulation(8, FP16, FP32).gamma < 8.1 * 2**-23
    True
    """
    found = _catalogue().get(name)
    if found is None:
        raise ArgumentError(f"unknown simulated engine {name!r}; pass one of {', '.join(map(repr, names()))}")
    return found
