"""Khattak and Mikaitis, "Generalized methodology for determining numerical features of hardware floating-point matrix
multipliers" (HPEC 2025): tests that are written for any precision p of the results.

Later tests are built from what earlier ones found (extra bits, block length); here their inputs for every possible
finding go into the same call, and the judge picks those that apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.formats import FP16
from prismm.numerics.suite.expressions import value
from prismm.numerics.suite.framework import Case, Judge, Result, Setting, Test, Verdict, direction, not_applicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Values = Sequence[float | None]
    Earlier = Mapping[str, Result]

__all__ = ["tests"]


def tests(s: Setting) -> list[Test]:
    """The tests for an engine's formats, always all of them."""
    p = s.p
    tiny = f"2^-{p}"
    one_bit = Case((f"{tiny} * 1",) * 2, "1")
    two_bits = Case((f"{tiny} * 1", f"{tiny} * 2^-1", f"{tiny} * 2^-1"), "1")
    blocks = tuple(
        case for k in range(2, s.length + 1) for case in _both(Case(_with_last(k, f"2^{1 - p} * 1"), f"1+2^{1 - p}"))
    )
    late = Case((f"2^{3 - p}+2^-{p} * 1",) * 2, f"1-2^{3 - p}")
    rounded = _both(Case(("1 * 1",) * 3, f"1+2^{1 - p}+2^{2 - p}"))
    output = direction("4", f"4+2^{3 - p}")
    cut = tuple(case for n in range(3) for case in _both(Case((f"{tiny} * 2^-{n}+2^-{n + 1}",) * 2, "1")))
    between = tuple(
        case for block in range(1, s.length) for case in _both(Case((*("0",) * block, f"{tiny} * 1.5"), f"1+2^{1 - p}"))
    )
    found = [
        _test("1", "extra bits in the alignment", "extra bits", f"1+2^{1 - p}", (one_bit, two_bits), _extra(p)),
        _test("2", "carry bits", "carry bits", "from the block", blocks, _carry(s)),
        _test("3", "products that are summed together", "block", f"2+2^{2 - p} within", blocks, _block(s)),
        _test("4", "normalisation within a block", "normalisation", f"1+2^{3 - p}+2^{1 - p}", (late,), _pattern(p)),
        _test("5", "rounding of results", "rounding", "4 or its neighbour", rounded, output),
        _test("6", "rounding of FP16 results", "output rounding", "4 or its neighbour", rounded, output),
        _test("7", "rounding in the alignment (7 and 9)", "alignment", "1 or its neighbour", cut, _alignment(p), True),
        _test("8", "rounding between blocks", "rounding", f"1+2^{1 - p} or its neighbour", between, _between(p)),
    ]
    unfit = "6" if s.output != FP16 else "5"
    found = [not_applicable(t, "a test with other results") if t.id == unfit else t for t in found]
    return [not_applicable(t, "takes more products") if not (t.cases or t.reason) else t for t in found]


def _test(
    id: str, title: str, decides: str, expectation: str, cases: tuple[Case, ...], judge: Judge, partial: bool = False
) -> Test:
    source = "Khattak and Mikaitis 2025"
    return Test(id, "khattak", title, source, decides, expectation, cases, judge, partial)


def _both(case: Case) -> tuple[Case, Case]:
    return case, case.opposite()


def _with_last(k: int, product: str) -> tuple[str, ...]:
    """1 in the first place and a product in the k-th."""
    return ("1 * 1", *("0",) * (k - 2), product)


def _extra(p: int) -> Judge:
    def judge(values: Values, _: Earlier) -> Verdict:
        both = float(value(f"1+2^{1 - p}"))
        count = 2 if values[1] == both else 1 if values[0] == both else 0
        return Verdict("passed" if count else "failed", ">= 2" if count == 2 else str(count), count)

    return judge


def _length_of_blocks(values: Values, p: int) -> int | None:
    """k - 1 of the first k where both signs lose a bit; None if none does."""
    whole = float(value(f"2+2^{2 - p}"))
    pairs = zip(values[::2], values[1::2], strict=True)
    lost = (up != whole and down != -whole for up, down in pairs)
    return next((k - 1 for k, failed in enumerate(lost, 2) if failed), None)


def _block(s: Setting) -> Judge:
    def judge(values: Values, _: Earlier) -> Verdict:
        block = _length_of_blocks(values, s.p)
        return Verdict("passed", f">= {s.length}", s.length) if block is None else Verdict("passed", str(block), block)

    return judge


def _carry(s: Setting) -> Judge:
    """As many bits as the largest sum of a block's products needs, floor(log2(block·(2 - 2^(1-p_in))))."""

    def judge(values: Values, _: Earlier) -> Verdict:
        block = _length_of_blocks(values, s.p)
        largest = (block or s.length) * (2 - value(f"2^{1 - s.input.precision}"))
        bits = int(largest).bit_length() - 1
        return Verdict("passed", f">= {bits}" if block is None else str(bits), bits)

    return judge


def _pattern(p: int) -> Judge:
    def judge(values: Values, _: Earlier) -> Verdict:
        named = {
            float(value(f"1+2^{3 - p}+2^{1 - p}")): Verdict("passed", "late"),
            float(value(f"1+2^{3 - p}")): Verdict("failed", "immediate (RN, RZ or RD)"),
            float(value(f"1+2^{3 - p}+2^{2 - p}")): Verdict("failed", "immediate (RU)"),
        }
        return named.get(values[0] or 0.0, Verdict("failed", "neither"))

    return judge


def _alignment(p: int) -> Judge:
    """Of terms that reach half of a place below the extra bits."""

    def judge(values: Values, earlier: Earlier) -> Verdict:
        n = earlier["1"].number
        if n is None or None in values[2 * n : 2 * n + 2]:
            return Verdict("no conclusion")
        return direction("1", f"1+2^{2 - p - n}")(values[2 * n : 2 * n + 2], {})

    return judge


def _between(p: int) -> Judge:
    def judge(values: Values, earlier: Earlier) -> Verdict:
        found = earlier["3"]
        block = found.number
        if block is None or found.reading.startswith(">=") or None in values[2 * block - 2 : 2 * block]:
            return Verdict("no conclusion")
        return direction(f"1+2^{1 - p}", f"1+2^{2 - p}")(values[2 * block - 2 : 2 * block], {})

    return judge
