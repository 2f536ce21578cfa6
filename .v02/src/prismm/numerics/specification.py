"""The specification of `EngineModel`: one dot product in exact arithmetic, step by step, with a trace of what was lost.

Slow and plain on purpose: rationals (`fractions.Fraction`), no tricks. `simulate` computes the same bits in compiled
code, and is compared with this. The order of the steps is that of the text in `model`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from prismm.formats import E4M3, Format, Integer
from prismm.numerics import operands
from prismm.numerics.parts import LateJoin
from prismm.numerics.rationals import (
    binade,
    exponent_of,
    floor_to,
    flushed,
    number,
    round_to,
    scaled_sum,
    special_of,
    times,
    to_precision,
)
from prismm.numerics.steps import Loss, Step, Term, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prismm.numerics.model import EngineModel
    from prismm.numerics.parts import Mode

__all__ = ["dot", "trace"]


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
        PrismmError: those that `simulate.dot` raises, for the same reasons.

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> volta = EngineModel("v100", FP16, FP32, block=4, fraction_bits=23, rounding="zero")
    >>> t = trace(volta, [1.0, 2.0**-12], [1.0, 2.0**-12])
    >>> t.result, t.steps[0].terms[2].lost == Fraction(1, 2**24)
    (1.0, True)
    """
    a, b, c, factors_a, factors_b = operands.checked(model, a, b, c, scale_a, scale_b)
    if isinstance(model.input, Integer):
        return _integer_dot(model, a, b, c)
    record = Trace()
    depth = model.instruction_depth
    total = c
    for start in range(0, len(a), depth):
        x, y = ([*z[start : start + depth], *[0.0] * (start + depth - len(z))] for z in (a, b))
        total = _Instruction(model, x, y, start, (factors_a, factors_b), record).run(total)
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
        for i in range(start, stop):
            product = Fraction(int(a[i]) * int(b[i]))
            terms.append(Term(f"a[{i}]*b[{i}]", product, None, product))
        exact = total + sum(int(a[i]) * int(b[i]) for i in range(start, stop))
        if model.overflow == "saturate":
            total = min(max(exact, output.min), output.max)
        else:
            total = (exact - output.min) % (1 << output.bits) + output.min
        wrapped = total != exact
        record.steps.append(Step("block", tuple(terms), None, Fraction(exact), wrapped, Fraction(total)))
    record.result = float(total)
    return record


@dataclass(frozen=True)
class _Summand:
    """A term on its way to the summation.

    Args:
        value: what is left of it; zeros (with their sign), infinities and NaN as floats.
        exact: before anything was lost.
        exponent: by which it is aligned.
        losses: between the two.
    """

    label: str
    value: Fraction | float
    exact: Fraction | float
    exponent: int | None = None
    losses: tuple[Loss, ...] = ()

    def term(self, kept: Fraction | None = None) -> Term:
        """What a trace says of it; None: all that is left is kept."""
        return Term(self.label, self.exact, self.exponent, self.value if kept is None else kept, self.losses)


def _known(label: str, value: Fraction | float) -> _Summand:
    """A term of which nothing has been lost."""
    return _Summand(label, number(value), number(value))


def _lost(what: str, how: str, before: Fraction | float, after: Fraction | float) -> tuple[Loss, ...]:
    """A loss, if there is one; of NaN there is none."""
    return () if before == after or before != before else (Loss(what, how, number(before), number(after)),)


class _Instruction:
    """One instruction: `depth` pairs, padded with zeros."""

    def __init__(
        self,
        model: EngineModel,
        a: list[float],
        b: list[float],
        start: int,
        scales: tuple[list[float], list[float]],
        record: Trace,
    ) -> None:
        assert isinstance(model.input, Format)
        self.model, self.inputs, self.sums, self.start, self.record = model, model.input, model.sums, start, record
        self.a, self.b, self.scales = a, b, scales

    def run(self, c: float) -> float:
        """d."""
        model, output = self.model, self.model.output
        assert isinstance(output, Format)
        label = "c" if self.start == 0 else "sum"
        left = flushed(c, output, model.subnormal_accumulators)
        addend = _Summand(label, number(left), number(c), losses=_lost(label, "flushed", c, left))
        blocks = [
            [sequence[i : i + model.block] for i in range(0, len(sequence), model.block)]
            for sequence in model.sequences()
        ]
        if isinstance(model.join, LateJoin):
            return self._late([found[0] for found in blocks], addend)
        if model.join == "inside":
            total, running = addend, output
            for indices in blocks[0]:
                total, running = _known("sum", self._block(total, running, indices)), self.sums
            return self._converted(float(total.value))
        totals = [self._chain(sequence) for sequence in blocks]
        total = totals[0]
        for other in totals[1:]:
            total = _known("sum", self._add("join", [total, other], self.sums, model.rounding))
        return self._add("join", [total, addend], output, model.last_rounding)

    def _chain(self, blocks: Sequence[Sequence[int]]) -> _Summand:
        """A running sum of its own, without c."""
        total = _known("sum", self._block(None, self.sums, blocks[0]))
        for indices in blocks[1:]:
            total = _known("sum", self._block(total, self.sums, indices))
        return total

    def _note(
        self,
        kind: str,
        terms: Sequence[Term],
        total: Fraction | float,
        result: Fraction | float,
        quantum: int | None = None,
        wrapped: bool = False,
    ) -> None:
        self.record.steps.append(Step(kind, tuple(terms), quantum, total, wrapped, number(result)))

    def _special_sum(self, kind: str, terms: Sequence[_Summand]) -> float | None:
        """The sum, noted, where it is NaN or infinite because a term is; else None."""
        special = special_of([term.value for term in terms])
        if special is not None:
            self._note(kind, [term.term() for term in terms], special, special)
        return special

    def _converted(self, x: float) -> float:
        """A running sum in the output format."""
        output = self.model.output
        assert isinstance(output, Format)
        if x == 0.0 or not math.isfinite(x) or self.model.accumulator is None:
            return x
        result = self._finished(round_to(Fraction(x), output, self.model.last_rounding, self.model.overflow), output)
        if result != x:
            self._note("convert", [_known("sum", x).term()], Fraction(x), result)
        return result

    def _finished(self, x: float, format: Format) -> float:
        """A rounded result, flushed and with the sign that its zero has."""
        x = flushed(x, format, self.model.subnormal_outputs)
        return x + 0.0 if self.model.zeros == "unsigned" else x

    def _rounded(self, exact: Fraction, terms: Sequence[_Summand], format: Format, mode: Mode) -> float:
        """The exact sum of terms, rounded."""
        if exact == 0:
            return self._zero(terms)
        return self._finished(round_to(exact, format, mode, self.model.overflow), format)

    def _zero(self, terms: Sequence[_Summand]) -> float:
        """The sum of terms that cancel, or are zeros."""
        negative = all(term.value == 0 and math.copysign(1.0, float(term.value)) < 0 for term in terms)
        return -0.0 if self.model.zeros == "ieee" and negative else 0.0

    def _add(self, kind: str, terms: list[_Summand], format: Format, mode: Mode) -> float:
        """The sum of terms, rounded once."""
        special = self._special_sum(kind, terms)
        if special is not None:
            return special
        exact = _sum(terms)
        result = self._rounded(exact, terms, format, mode)
        self._note(kind, [term.term() for term in terms], exact, result)
        return result

    def _product(self, i: int) -> _Summand:
        """a[i]·b[i], exact or rounded."""
        model, at = self.model, self.start + i
        x, y = (flushed(z[i], self.inputs, model.subnormal_inputs) for z in (self.a, self.b))
        label, value = f"a[{at}]*b[{at}]", times(x, y)
        losses = _lost(f"a[{at}]", "flushed", self.a[i], x) + _lost(f"b[{at}]", "flushed", self.b[i], y)
        for how, changed in self._narrowed(value):
            losses += _lost(label, how, value, changed)
            value = changed
        exponent = None
        if isinstance(value, Fraction):
            exponent = exponent_of(x, self.inputs) + exponent_of(y, self.inputs)
            if model.product_exponent == "normalised" or model.product_rounding is not None:
                exponent = binade(abs(value))
        return _Summand(label, value, times(self.a[i], self.b[i]), exponent, losses)

    def _narrowed(self, product: Fraction | float) -> Iterator[tuple[str, Fraction | float]]:
        """What an exact product becomes, step by step, and how."""
        model, sums = self.model, self.sums
        if isinstance(product, float):
            return
        sign = 1.0 if product > 0 else -1.0
        if model.product_overflow == "infinity" and abs(product) >= Fraction(2) ** sums.maxexp:
            yield "overflowed", sign * math.inf
            return
        left: Fraction | float = product
        if model.product_rounding is not None:
            left = number(round_to(product, sums, model.product_rounding, model.overflow))
            yield "rounded", left
        tiny = isinstance(left, Fraction) and abs(left) < Fraction(sums.smallest_normal)
        if tiny and model.subnormal_products != "keep":
            yield "flushed", sign * 0.0 if model.subnormal_products == "flush" else 0.0

    def _products(self, indices: Sequence[int]) -> list[_Summand]:
        """A block's products, scaled; groups of scaled products are one term each."""
        found = [self._product(i) for i in indices]
        return found if self.model.scale is None else self._scaled(indices, found)

    def _scaled(self, indices: Sequence[int], products: list[_Summand]) -> list[_Summand]:
        scale = self.model.scale
        assert scale is not None
        found: list[_Summand] = []
        groups: dict[int, list[_Summand]] = {}
        for i, item in zip(indices, products, strict=True):
            groups.setdefault((self.start + i) // scale.length, []).append(item)
        for g, items in groups.items():
            # Beyond the operands' end there are zeros, whatever their factor.
            x, y = (s[g] if g < len(s) else 1.0 for s in self.scales)
            factor = x * y  # exact: two bytes' worth of significand
            if scale.summation == "terms":
                for p in items:
                    value, exact = times(p.value, factor), times(p.exact, factor)
                    exponent = None
                    if isinstance(value, Fraction) and p.exponent is not None:
                        exponent = p.exponent + math.frexp(factor)[1] - 1
                    found.append(replace(p, value=value, exact=exact, exponent=exponent))
                continue
            value, exact = (scaled_sum(z, factor) for z in ([p.value for p in items], [p.exact for p in items]))
            exponent = None
            if isinstance(value, Fraction):
                exponent = exponent_of(x, E4M3) + exponent_of(y, E4M3)
                if scale.format == "ue8m0":
                    exponent = math.frexp(factor)[1] - 1
            losses = tuple(loss for p in items for loss in p.losses)
            found.append(_Summand(f"group[{g}]", value, exact, exponent, losses))
        return found

    def _block(self, total: _Summand | None, running: Format, indices: Sequence[int]) -> float:
        """One block's products added to the running sum, a value of `running` (None: there is none yet)."""
        products = self._products(indices)
        if self.model.summation == "aligned":
            return self._aligned(total, running, products)
        if self.model.summation == "sequential":
            return self._sequential(products if total is None else [total, *products])
        tree = self._tree(products)
        if total is None:
            return tree
        return self._add("block", [total, _known("sum", tree)], self.sums, self.model.rounding)

    def _aligned(self, total: _Summand | None, running: Format, products: list[_Summand]) -> float:
        terms = list(products)
        if total is not None:
            nonzero = total.value != 0 and math.isfinite(total.value)
            terms.insert(0, replace(total, exponent=exponent_of(total.value, running) if nonzero else None))
        special = self._special_sum("block", terms)
        if special is not None:
            return special
        exact, kept, quantum, wrapped = self._cut(terms, floor_exponent=total is None or total.value == 0)
        result = self._rounded(exact, terms, self.sums, self.model.rounding)
        self._note("block", kept, exact, result, quantum, wrapped)
        return result

    def _cut(self, terms: list[_Summand], floor_exponent: bool) -> tuple[Fraction, list[Term], int | None, bool]:
        """Terms aligned and cut off: their sum, what was kept of each, the quantum, whether the register wrapped."""
        model = self.model
        exponents = [term.exponent for term in terms if term.exponent is not None]
        if floor_exponent and model.zero_exponent is not None:
            exponents.append(model.zero_exponent)
        if model.fraction_bits is None or not exponents:
            return _sum(terms), [term.term(Fraction(term.value)) for term in terms], None, False
        quantum = max(exponents) - model.fraction_bits
        unit = Fraction(2) ** quantum
        cut = math.floor if model.alignment == "floor" else math.trunc
        units = [cut(Fraction(term.value) / unit) for term in terms]
        kept = [term.term(u * unit) for term, u in zip(terms, units, strict=True)]
        total = sum(units)
        wrapped = False
        if model.carry_bits is not None:
            half = 1 << (model.fraction_bits + 2 + model.carry_bits)
            inside = (total + half) % (2 * half) - half
            wrapped, total = inside != total, inside
        return total * unit, kept, quantum, wrapped

    def _partial(self, x: _Summand, y: _Summand) -> _Summand:
        """x + y, normalised and rounded to the partial sums' precision."""
        model, terms = self.model, [x, y]
        special = self._special_sum("partial", terms)
        if special is not None:
            return _known("sum", special)
        exact = _sum(terms)
        result: Fraction | float
        if exact == 0 or model.fraction_bits is None:
            result = self._rounded(exact, terms, self.sums, model.rounding)
        else:
            result = to_precision(exact, model.fraction_bits, model.alignment)
        self._note("partial", [term.term() for term in terms], exact, result)
        return _known("sum", result)

    def _sequential(self, terms: list[_Summand]) -> float:
        """(((t0 + t1) + t2) + …)."""
        partial = terms[0]
        for term in terms[1:]:
            partial = self._partial(partial, term)
        return self._collapsed(partial, alone=len(terms) == 1)

    def _tree(self, products: list[_Summand]) -> float:
        """Neighbours in pairs, then pairs in pairs; an odd one waits for the next round."""
        level = products
        while len(level) > 1:
            pairs = [self._partial(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
            level = [*pairs, *level[len(level) - len(level) % 2 :]]
        return self._collapsed(level[0], alone=len(products) == 1)

    def _collapsed(self, partial: _Summand, alone: bool) -> float:
        """A partial sum, or the only product, as a value of the accumulator."""
        value = partial.value
        if isinstance(value, Fraction):
            result = self._rounded(value, [partial], self.sums, self.model.rounding)
        else:
            result = self._zero([partial]) if alone and value == 0.0 else value
        if alone or (isinstance(value, Fraction) and number(result) != value):
            self._note("block", [partial.term()], value, result)
        return result

    def _late(self, blocks: Sequence[Sequence[int]], c: _Summand) -> float:
        """Unrounded sums of the groups, then c, aligned with them."""
        model, join, output = self.model, self.model.join, self.model.output
        assert isinstance(join, LateJoin) and isinstance(output, Format) and model.fraction_bits is not None
        groups = [self._products(indices) for indices in blocks]
        terms = [*(term for products in groups for term in products), c]
        special = self._special_sum("block", terms)
        if special is not None:
            return special
        found: list[_Summand] = []
        for products in groups:
            exact, kept, quantum, wrapped = self._cut(products, floor_exponent=True)
            self._note("block", kept, exact, exact, quantum, wrapped)
            found.append(_Summand("sum", exact, exact, None if quantum is None else quantum + model.fraction_bits))
        total = found[0] if len(found) == 1 else self._joined(found)
        exponent = exponent_of(c.value, output) if c.value else None
        exponents = [e for e in (total.exponent, exponent) if e is not None]
        if not exponents:
            result = self._zero(terms)
            self._note("join", [total.term(), c.term()], Fraction(0), result)
            return result
        top = max(exponents)
        cut_off = join.cutoff is not None and exponent is not None and exponent < top - join.cutoff
        kept_sum = floor_to(Fraction(total.value), top - join.sum_bits)
        kept_c = Fraction(0) if cut_off else floor_to(Fraction(c.value), top - join.accumulator_bits)
        exact = left = kept_sum + kept_c
        if exact:
            left = floor_to(exact, binade(abs(exact)) - join.total_bits)
        result = self._rounded(left, [total], output, model.rounding)
        self._note("join", [total.term(kept_sum), replace(c, exponent=exponent).term(kept_c)], exact, result)
        return result

    def _joined(self, sums: list[_Summand]) -> _Summand:
        """The sum of the groups' sums, each cut to the floor as those of the largest exponent are."""
        assert self.model.fraction_bits is not None
        largest = max((x.exponent for x in sums if x.exponent is not None), default=None)
        if largest is None:
            return sums[0]
        quantum = largest - self.model.fraction_bits
        kept = [floor_to(Fraction(x.value), quantum) for x in sums]
        total = sum(kept, Fraction(0))
        self._note("join", [x.term(k) for x, k in zip(sums, kept, strict=True)], total, total, quantum)
        return _Summand("sum", total, total, largest)


def _sum(terms: Sequence[_Summand]) -> Fraction:
    return sum((Fraction(term.value) for term in terms), Fraction(0))
