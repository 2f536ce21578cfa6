"""The specification of `EngineModel`: one dot product in exact arithmetic, step by step, with a trace of what was lost.

Slow and plain on purpose: rationals (`fractions.Fraction`), no tricks. `simulate` computes the same bits in compiled
code, and is compared with this. The order of the steps is that of the text in `model`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError, ShapeError
from prismm.formats import E4M3, Format, Integer
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prismm.numerics.model import EngineModel
    from prismm.numerics.parts import Mode, Subnormals

__all__ = ["Step", "Term", "Trace", "dot", "round_to", "trace"]


@dataclass(frozen=True)
class Term:
    """One summand of a step.

    Args:
        label: "a[3]*b[3]", "c" or "sum" (the running one).
        value: before anything was cut off; inf and nan as floats.
        exponent: by which it was aligned; None for zeros and where nothing is aligned.
        kept: what entered the sum.
    """

    label: str
    value: Fraction | float
    exponent: int | None
    kept: Fraction | float

    @property
    def lost(self) -> Fraction:
        """value - kept; 0 for infinities and NaN."""
        if isinstance(self.value, float) or isinstance(self.kept, float):
            return Fraction(0)
        return self.value - self.kept


@dataclass(frozen=True)
class Step:
    """One rounding: the terms that were added, and what became of their sum.

    Args:
        kind: "block", "partial" (an addition inside a sequential or pairwise block), "join" or "convert".
        terms: the summands.
        quantum: exponent q: terms were cut off to multiples of 2^q; None where they were taken exactly.
        total: the sum of what was kept, after wrapping; inf and nan as floats.
        wrapped: whether the register overflowed.
        result: the rounded sum.
    """

    kind: str
    terms: tuple[Term, ...]
    quantum: int | None
    total: Fraction | float
    wrapped: bool
    result: Fraction | float

    @property
    def rounding_error(self) -> Fraction:
        """result - total; 0 where one is no number."""
        if isinstance(self.total, float) or isinstance(self.result, float):
            return Fraction(0)
        return self.result - self.total


@dataclass
class Trace:
    """What happened in one dot product: its steps in order, and d."""

    steps: list[Step] = field(default_factory=list)
    result: float = 0.0


def dot(
    model: EngineModel,
    a: Sequence[float],
    b: Sequence[float],
    c: float = 0.0,
    scale_a: Sequence[float] | None = None,
    scale_b: Sequence[float] | None = None,
) -> float:
    """c + Σ a·b as the model computes it; see `trace`."""
    return trace(model, a, b, c, scale_a, scale_b).result


def trace(
    model: EngineModel,
    a: Sequence[float],
    b: Sequence[float],
    c: float = 0.0,
    scale_a: Sequence[float] | None = None,
    scale_b: Sequence[float] | None = None,
) -> Trace:
    """c + Σ a·b as the model computes it, with every step.

    Args:
        model: of the engine.
        a, b: k >= 1 values of its input format each.
        c: a value of its output format.
        scale_a, scale_b: ceil(k / scale.length) factors each, of an engine with block scales.

    Raises:
        ShapeError: if lengths do not fit.
        ArgumentError: for scales that are missing or too many.

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> volta = EngineModel("v100", FP16, FP32, block=4, fraction_bits=23, rounding="zero")
    >>> t = trace(volta, [1.0, 2.0**-12], [1.0, 2.0**-12])
    >>> t.result, t.steps[0].terms[2].lost == Fraction(1, 2**24)
    (1.0, True)
    """
    k = len(a)
    if len(b) != k or k == 0:
        raise ShapeError(f"a has {k} elements and b {len(b)}; pass the same number, at least one")
    if isinstance(model.input, Integer):
        return _integer_dot(model, a, b, c)
    scales = _scales(model, k, scale_a, scale_b)
    record = Trace()
    depth = model.instruction_depth
    total = c
    for start in range(0, k, depth):
        indices = range(start, start + depth)
        x = [a[i] if i < k else 0.0 for i in indices]
        y = [b[i] if i < k else 0.0 for i in indices]
        total = _Instruction(model, x, y, start, scales, record).run(total)
    record.result = total
    return record


def _integer_dot(model: EngineModel, a: Sequence[float], b: Sequence[float], c: float) -> Trace:
    output = model.output
    assert isinstance(output, Integer)
    record = Trace()
    depth = model.instruction_depth
    total = int(c)
    for start in range(0, len(a), depth):
        stop = min(start + depth, len(a))
        terms = [Term("c" if start == 0 else "sum", Fraction(total), None, Fraction(total))]
        terms += [_whole(f"a[{i}]*b[{i}]", Fraction(int(a[i]) * int(b[i]))) for i in range(start, stop)]
        exact = total + sum(int(a[i]) * int(b[i]) for i in range(start, stop))
        if model.overflow == "saturate":
            total = min(max(exact, output.min), output.max)
        else:
            total = (exact - output.min) % (1 << output.bits) + output.min
        wrapped = total != exact
        record.steps.append(Step("block", tuple(terms), None, Fraction(exact), wrapped, Fraction(total)))
    record.result = float(total)
    return record


def round_to(value: Fraction, format: Format, mode: Mode, overflow: str = "infinity") -> float:
    """An exact number, not 0, rounded once to a format of gradual underflow; what becomes zero keeps its sign.

    >>> from prismm.formats import FP16, FP32
    >>> round_to(Fraction(1) + Fraction(1, 2**24), FP32, "nearest"), round_to(Fraction(-1, 2**30), FP16, "zero")
    (1.0, -0.0)
    >>> round_to(Fraction(65520), FP16, "zero"), round_to(Fraction(65520), FP16, "nearest")
    (65504.0, inf)
    """
    size, sign = abs(value), 1.0 if value > 0 else -1.0
    quantum = Fraction(2) ** (max(binade(size), format.minexp) - format.fraction_bits)
    if mode == "floor":
        units = abs(math.floor(value / quantum))
    else:
        units = math.floor(size / quantum)
        rest = size / quantum - units
        if mode == "nearest":
            units += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and units % 2)
        elif mode == "odd":
            units |= rest > 0
    rounded = units * quantum
    if rounded >= Fraction(2) ** format.maxexp:
        return sign * (format.max if overflow == "saturate" else math.inf)
    return sign * float(rounded)


def binade(size: Fraction) -> int:
    """floor(log2(size))."""
    e = size.numerator.bit_length() - size.denominator.bit_length()
    return e if size >= Fraction(2) ** e else e - 1


def _whole(label: str, value: Fraction | float, exponent: int | None = None) -> Term:
    return Term(label, value, exponent, value)


def _flushed(x: float, format: Format, policy: Subnormals) -> float:
    if policy == "keep" or not 0.0 < abs(x) < format.smallest_normal:
        return x
    return math.copysign(0.0, x) if policy == "flush" else 0.0


def _exponent(x: float, format: Format) -> int:
    """floor(log2|x|), and that of the least normal value for subnormal x."""
    return max(math.frexp(x)[1] - 1, format.minexp)


def _scales(
    model: EngineModel, k: int, scale_a: Sequence[float] | None, scale_b: Sequence[float] | None
) -> tuple[Sequence[float], Sequence[float]] | None:
    """Both scales, checked."""
    if model.scale is None:
        if scale_a is not None or scale_b is not None:
            raise ArgumentError(f"{model.name} has no block scales; leave out scale_a and scale_b")
        return None
    count = -(-k // model.scale.length)
    if scale_a is None or scale_b is None or len(scale_a) != count or len(scale_b) != count:
        raise ArgumentError(f"{model.name} takes {count} scale factors for each operand of {k} elements")
    for x in (*scale_a, *scale_b):
        if not (math.isnan(x) or (model.scale.format == "ue4m3" and 0.0 <= x <= E4M3.max)):
            power = x > 0.0 and math.isfinite(x) and math.frexp(x)[0] == 0.5 and -127 <= math.frexp(x)[1] - 1 <= 127
            if model.scale.format == "ue4m3" or not power:
                raise ArgumentError(f"{x!r} is no {model.scale.format} value")
    return scale_a, scale_b


class _Instruction:
    """One instruction: `depth` pairs, padded with zeros."""

    def __init__(
        self,
        model: EngineModel,
        a: Sequence[float],
        b: Sequence[float],
        start: int,
        scales: tuple[Sequence[float], Sequence[float]] | None,
        record: Trace,
    ) -> None:
        assert isinstance(model.input, Format)
        self.model, self.inputs, self.sums, self.start, self.record = model, model.input, model.sums, start, record
        self.a = [_flushed(x, self.inputs, model.subnormal_inputs) for x in a]
        self.b = [_flushed(x, self.inputs, model.subnormal_inputs) for x in b]
        self.scales = scales

    def run(self, c: float) -> float:
        """d."""
        model, output = self.model, self.model.output
        assert isinstance(output, Format)
        c = _flushed(c, output, model.subnormal_accumulators)
        blocks = [
            [sequence[i : i + model.block] for i in range(0, len(sequence), model.block)]
            for sequence in model.sequences()
        ]
        if isinstance(model.join, LateJoin):
            return self._late([found[0] for found in blocks], c)
        if model.join == "inside":
            total: float | None = c
            label, running = ("c" if self.start == 0 else "sum"), output
            for indices in blocks[0]:
                total = self._block(total, label, running, indices)
                label, running = "sum", self.sums
            assert total is not None
            return self._converted(total)
        totals: list[float] = []
        for sequence in blocks:
            total = None
            for indices in sequence:
                total = self._block(total, "sum", self.sums, indices)
            assert total is not None
            totals.append(total)
        total = totals[0]
        for other in totals[1:]:
            total = self._add("join", [("sum", total), ("sum", other)], self.sums, model.rounding)
        label = "c" if self.start == 0 else "sum"
        return self._add("join", [("sum", total), (label, c)], output, model.last_rounding)

    def _converted(self, x: float) -> float:
        """A running sum in the output format."""
        output = self.model.output
        assert isinstance(output, Format)
        if x == 0.0 or not math.isfinite(x) or self.model.accumulator is None:
            return x
        result = self._finished(round_to(Fraction(x), output, self.model.last_rounding, self.model.overflow), output)
        if result != x:
            term = _whole("sum", Fraction(x))
            self.record.steps.append(Step("convert", (term,), None, Fraction(x), False, _number(result)))
        return result

    def _finished(self, x: float, format: Format) -> float:
        """A rounded result, flushed and with the sign that its zero has."""
        x = _flushed(x, format, self.model.subnormal_outputs)
        return x + 0.0 if self.model.zeros == "unsigned" else x

    def _rounded(self, exact: Fraction, signs: list[float], format: Format, mode: Mode) -> float:
        """An exact sum of terms whose zeros have these signs."""
        if exact == 0:
            return -0.0 if self.model.zeros == "ieee" and all(s < 0 for s in signs) else 0.0
        return self._finished(round_to(exact, format, mode, self.model.overflow), format)

    def _add(self, kind: str, terms: list[tuple[str, float]], format: Format, mode: Mode) -> float:
        """The sum of floats, rounded once."""
        values = [x for _, x in terms]
        special = _special(values)
        named = tuple(_whole(label, _number(x)) for label, x in terms)
        if special is not None:
            self.record.steps.append(Step(kind, named, None, special, False, special))
            return special
        exact = sum((Fraction(x) for x in values), Fraction(0))
        signs = [math.copysign(1.0, x) for x in values if x == 0.0] if all(x == 0.0 for x in values) else [1.0]
        result = self._rounded(exact, signs, format, mode)
        self.record.steps.append(Step(kind, named, None, exact, False, _number(result)))
        return result

    def _product(self, i: int) -> float | Fraction:
        """a[i]·b[i], exact or rounded; zeros (with their sign), infinities and NaN as floats."""
        model, x, y = self.model, self.a[i], self.b[i]
        if not (math.isfinite(x) and math.isfinite(y)) or x == 0.0 or y == 0.0:
            return x * y  # NaN for inf·0
        exact = Fraction(x) * Fraction(y)
        sign = math.copysign(1.0, x) * math.copysign(1.0, y)
        if model.product_overflow == "infinity" and abs(exact) >= Fraction(2) ** self.sums.maxexp:
            return sign * math.inf
        if model.product_rounding is not None:
            rounded = _flushed(
                round_to(exact, self.sums, model.product_rounding, model.overflow), self.sums, model.subnormal_products
            )
            return rounded if rounded == 0.0 or math.isinf(rounded) else Fraction(rounded)
        if model.subnormal_products != "keep" and abs(exact) < Fraction(self.sums.smallest_normal):
            return sign * 0.0 if model.subnormal_products == "flush" else 0.0
        return exact

    def _products(self, indices: Sequence[int]) -> list[tuple[str, Fraction | float, int | None]]:
        """Label, value and exponent of a block's products, scaled; groups of scaled products are one term each."""
        found: list[tuple[str, Fraction | float, int | None]] = []
        for i in indices:
            p = self._product(i)
            exponent = None
            if isinstance(p, Fraction):
                exponent = _exponent(self.a[i], self.inputs) + _exponent(self.b[i], self.inputs)
                if self.model.product_exponent == "normalised" or self.model.product_rounding is not None:
                    exponent = binade(abs(p))
            found.append((f"a[{self.start + i}]*b[{self.start + i}]", p, exponent))
        return found if self.scales is None else self._scaled(indices, found)

    def _scaled(
        self, indices: Sequence[int], products: list[tuple[str, Fraction | float, int | None]]
    ) -> list[tuple[str, Fraction | float, int | None]]:
        scale = self.model.scale
        assert scale is not None and self.scales is not None
        found: list[tuple[str, Fraction | float, int | None]] = []
        groups: dict[int, list[tuple[str, Fraction | float, int | None]]] = {}
        for i, item in zip(indices, products, strict=True):
            groups.setdefault((self.start + i) // scale.length, []).append(item)
        for g, items in groups.items():
            # Beyond the operands' end there are zeros, whatever their factor.
            x, y = (s[g] if g < len(s) else 1.0 for s in self.scales)
            factor = x * y  # exact: two bytes' worth of significand
            if scale.summation == "terms":
                for label, p, e in items:
                    if math.isnan(factor):
                        found.append((label, math.nan, None))
                    elif isinstance(p, Fraction) and e is not None:
                        found.append((label, p * Fraction(factor), e + math.frexp(factor)[1] - 1))
                    else:
                        found.append((label, p, None))
                continue
            special = _special([p for _, p, _ in items])
            if math.isnan(factor) or special is not None:
                found.append((f"group[{g}]", math.nan if special is None or math.isnan(factor) else special, None))
            elif factor == 0.0 or all(not p for _, p, _ in items):
                found.append((f"group[{g}]", 0.0, None))
            else:
                exact = sum((Fraction(p) for _, p, _ in items), Fraction(0)) * Fraction(factor)
                found.append((f"group[{g}]", exact, _exponent(x, E4M3) + _exponent(y, E4M3)))
                if scale.format == "ue8m0":
                    found[-1] = (f"group[{g}]", exact, math.frexp(factor)[1] - 1)
        return found

    def _block(self, total: float | None, label: str, running: Format, indices: Sequence[int]) -> float:
        """One block's products added to the running sum, a value of `running` (None: there is none yet)."""
        products = self._products(indices)
        if self.model.summation == "aligned":
            return self._aligned(total, label, running, products)
        if self.model.summation == "sequential":
            return self._sequential(total, label, products)
        tree = self._tree(products)
        if total is None:
            return tree
        return self._add("block", [(label, total), ("sum", tree)], self.sums, self.model.rounding)

    def _aligned(
        self,
        total: float | None,
        label: str,
        running: Format,
        products: list[tuple[str, Fraction | float, int | None]],
    ) -> float:
        terms = list(products)
        if total is not None:
            nonzero = total != 0.0 and math.isfinite(total)
            exponent = _exponent(total, running) if nonzero else None
            terms.insert(0, (label, Fraction(total) if nonzero else total, exponent))
        special = _special([x for _, x, _ in terms])
        if special is not None:
            self._record_special(terms, special)
            return special
        exact, kept, quantum, wrapped = self._cut(terms, floor_exponent=not total)
        signs = [math.copysign(1.0, x) for _, x, _ in terms if isinstance(x, float)]
        if len(signs) < len(terms):
            signs = [1.0]
        result = self._rounded(exact, signs, self.sums, self.model.rounding)
        self.record.steps.append(Step("block", kept, quantum, exact, wrapped, _number(result)))
        return result

    def _cut(
        self, terms: list[tuple[str, Fraction | float, int | None]], floor_exponent: bool
    ) -> tuple[Fraction, tuple[Term, ...], int | None, bool]:
        """Terms aligned and cut off: their sum, what was kept of each, the quantum, whether the register wrapped."""
        model = self.model
        exponents = [e for _, _, e in terms if e is not None]
        if floor_exponent and model.zero_exponent is not None:
            exponents.append(model.zero_exponent)
        if model.fraction_bits is None or not exponents:
            kept = tuple(_whole(label, Fraction(x), e) for label, x, e in terms)
            return sum((Fraction(x) for _, x, _ in terms), Fraction(0)), kept, None, False
        quantum = max(exponents) - model.fraction_bits
        unit = Fraction(2) ** quantum
        cut = math.floor if model.alignment == "floor" else math.trunc
        units = [cut(Fraction(x) / unit) for _, x, _ in terms]
        kept = tuple(Term(label, Fraction(x), e, u * unit) for (label, x, e), u in zip(terms, units, strict=True))
        total = sum(units)
        wrapped = False
        if model.carry_bits is not None:
            half = 1 << (model.fraction_bits + 2 + model.carry_bits)
            inside = (total + half) % (2 * half) - half
            wrapped, total = inside != total, inside
        return total * unit, kept, quantum, wrapped

    def _record_special(self, terms: list[tuple[str, Fraction | float, int | None]], special: float) -> None:
        named = tuple(_whole(label, x, e) for label, x, e in terms)
        self.record.steps.append(Step("block", named, None, special, False, special))

    def _partial(self, x: tuple[str, Fraction | float], y: tuple[str, Fraction | float]) -> Fraction | float:
        """x + y, normalised and rounded to the partial sums' precision; zeros, infinities and NaN as floats."""
        model = self.model
        special = _special([x[1], y[1]])
        named = tuple(_whole(label, value) for label, value in (x, y))
        if special is not None:
            self.record.steps.append(Step("partial", named, None, special, False, special))
            return special
        zeros = [math.copysign(1.0, value) for _, value in (x, y) if isinstance(value, float)]
        exact = Fraction(x[1]) + Fraction(y[1])
        signs = zeros if len(zeros) == 2 else [1.0]
        result: Fraction | float
        if model.fraction_bits is None:
            result = _number(self._rounded(exact, signs, self.sums, model.rounding))
        elif exact == 0:
            result = -0.0 if model.zeros == "ieee" and all(s < 0 for s in signs) else 0.0
        else:
            result = _to_precision(exact, model.fraction_bits, model.alignment)
        self.record.steps.append(Step("partial", named, None, exact, False, result))
        return result

    def _sequential(
        self, total: float | None, label: str, products: list[tuple[str, Fraction | float, int | None]]
    ) -> float:
        """(((c + p0) + p1) + …), or ((p0 + p1) + …) where there is no running sum."""
        queue: list[tuple[str, Fraction | float]] = [(name, value) for name, value, _ in products]
        if total is not None:
            queue.insert(0, (label, _number(total)))
        partial = queue[0]
        for term in queue[1:]:
            partial = ("sum", self._partial(partial, term))
        return self._collapsed(partial[1], alone=len(queue) == 1)

    def _tree(self, products: list[tuple[str, Fraction | float, int | None]]) -> float:
        """Neighbours in pairs, then pairs in pairs; an odd one waits for the next round."""
        level: list[tuple[str, Fraction | float]] = [(name, value) for name, value, _ in products]
        while len(level) > 1:
            pairs = [("sum", self._partial(level[i], level[i + 1])) for i in range(0, len(level) - 1, 2)]
            level = [*pairs, *level[len(level) - len(level) % 2 :]]
        return self._collapsed(level[0][1], alone=len(products) == 1)

    def _collapsed(self, partial: Fraction | float, alone: bool) -> float:
        """A partial sum, or the only product, as a value of the accumulator."""
        if isinstance(partial, float):
            if alone and partial == 0.0:
                return self._rounded(Fraction(0), [math.copysign(1.0, partial)], self.sums, self.model.rounding)
            return partial
        result = self._rounded(partial, [], self.sums, self.model.rounding)
        if _number(result) != partial:
            term = _whole("sum", partial)
            self.record.steps.append(Step("block", (term,), None, partial, False, _number(result)))
        return result

    def _late(self, blocks: Sequence[Sequence[int]], c: float) -> float:
        """Unrounded sums of the groups, then c, aligned with them."""
        model, join, output = self.model, self.model.join, self.model.output
        assert isinstance(join, LateJoin) and isinstance(output, Format) and model.fraction_bits is not None
        groups = [self._products(indices) for indices in blocks]
        special = _special([x for terms in groups for _, x, _ in terms] + [c])
        label = "c" if self.start == 0 else "sum"
        if special is not None:
            self._record_special([term for terms in groups for term in terms] + [(label, c, None)], special)
            return special
        found: list[tuple[int, Fraction]] = []
        for terms in groups:
            exact, kept, quantum, wrapped = self._cut(terms, floor_exponent=True)
            if quantum is not None:
                found.append((quantum + model.fraction_bits, exact))
                self.record.steps.append(Step("block", kept, quantum, exact, wrapped, exact))
        largest = max((e for e, _ in found), default=None)
        total = Fraction(0)
        if largest is not None:
            unit = Fraction(2) ** (largest - model.fraction_bits)
            total = sum((math.floor(x / unit) * unit for _, x in found), Fraction(0))
        addend, exponent = Fraction(c), _exponent(c, output) if c else None
        exponents = [e for e in (largest, exponent) if e is not None]
        if not exponents:
            signs = [math.copysign(1.0, x) for terms in groups for _, x, _ in terms if isinstance(x, float)]
            return self._rounded(Fraction(0), [*signs, math.copysign(1.0, c)], output, model.rounding)
        top = max(exponents)
        if join.cutoff is not None and exponent is not None and exponent < top - join.cutoff:
            addend = Fraction(0)
        kept_sum = _floor_to(total, top - join.sum_bits)
        kept_c = _floor_to(addend, top - join.accumulator_bits)
        exact = kept_sum + kept_c
        if exact:
            exact = _floor_to(exact, binade(abs(exact)) - join.total_bits)
        result = self._rounded(exact, [1.0], output, model.rounding)
        named = (Term("sum", total, largest, kept_sum), Term(label, Fraction(c), exponent, kept_c))
        self.record.steps.append(Step("join", named, None, exact, False, _number(result)))
        return result


def _floor_to(x: Fraction, exponent: int) -> Fraction:
    unit = Fraction(2) ** exponent
    return math.floor(x / unit) * unit


def _to_precision(x: Fraction, fraction_bits: int, mode: Mode) -> Fraction:
    """x, not 0, rounded to 1 + fraction_bits significant bits, of any exponent."""
    unit = Fraction(2) ** (binade(abs(x)) - fraction_bits)
    q = x / unit
    if mode == "nearest":
        return round(q) * unit  # Python's rounds ties to even
    if mode == "floor":
        return math.floor(q) * unit
    units = math.trunc(q)
    if mode == "odd" and units != q and units % 2 == 0:
        units += 1 if q > 0 else -1
    return units * unit


def _number(x: float) -> Fraction | float:
    """Finite numbers other than zero as rationals."""
    return x if x == 0.0 or not math.isfinite(x) else Fraction(x)


def _special(values: Sequence[Fraction | float]) -> float | None:
    """NaN or an infinity, where the terms make their sum one; else None."""
    floats = [x for x in values if isinstance(x, float) and not math.isfinite(x)]
    if not floats:
        return None
    if any(math.isnan(x) for x in floats) or (math.inf in floats and -math.inf in floats):
        return math.nan
    return floats[0]
