"""FTTN, "Feature-targeted testing for numerical properties of NVIDIA and AMD matrix accelerators" (Li et al. 2024).

Its tests are adaptive: what one reads decides whether another can be read at all, which is "no conclusion" here where
it cannot. Inputs are those published for FP16, with m = 2^-14 its smallest normal value; for subnormal inputs of other
formats, their own smallest value times what makes it normal. "T_prod" needs inputs with FP32's significands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.formats import FP16, FP32
from prismm.numerics.suite.framework import (
    Case,
    Judge,
    Result,
    Setting,
    Test,
    Verdict,
    direction,
    not_applicable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Values = Sequence[float | None]
    Earlier = Mapping[str, Result]

__all__ = ["tests"]

_PAIR = 1 + 2.0**-23
"""1 and two terms of 2^-24, where both were kept."""


def tests(s: Setting) -> list[Test]:
    """The suite for an engine's formats, always all of it."""
    return [*_subnormals(s), *(_single(s, test) for test in _bits() + _sums(s)), *(_half(s, t) for t in _halves())]


def _test(
    id: str, title: str, decides: str, expectation: str, cases: Sequence[Case], judge: Judge, partial: bool = False
) -> Test:
    source = "Li et al. 2024, arXiv 2403.00232"
    return Test(id, "fttn", title, source, decides, expectation, tuple(cases), judge, partial)


def _single(s: Setting, test: Test) -> Test:
    return test if s.output == FP32 else not_applicable(test, "a test with FP32 results")


def _half(s: Setting, test: Test) -> Test:
    return test if s.output == FP16 else not_applicable(test, "a test with FP16 results")


def _kept(values: Values, _: Earlier) -> Verdict:
    """Whether nothing became zero."""
    return Verdict("passed", "yes") if all(values) else Verdict("failed", "no")


def _is(value: float, yes: str, no: str) -> Judge:
    """Whether the first value is this one."""

    def judge(values: Values, _: Earlier) -> Verdict:
        return Verdict("passed", yes) if values[0] == value else Verdict("failed", no)

    return judge


def _given(id: str, status: str, judge: Judge, *readings: str) -> Judge:
    """A judge that speaks only where an earlier test ended so (and, if any are given, read one of these)."""

    def judged(values: Values, earlier: Earlier) -> Verdict:
        found = earlier.get(id)
        if found is None or found.status != status or (readings and found.reading not in readings):
            return Verdict("no conclusion")
        return judge(values, earlier)

    return judged


def _subnormals(s: Setting) -> list[Test]:
    low, m = s.input.subnormal_exponent, s.input.minexp
    factor = "1" if s.input == FP16 else f"2^{s.input.fraction_bits}"
    inputs = (Case((f"2^{low} * {factor}",)), Case((f"{factor} * 2^{low}",)))
    outputs = _test(
        "T_no_so",
        "normal inputs, subnormal results",
        "subnormal outputs",
        f"2^{m - 1}",
        (Case((f"2^{m} * 2^-1",)),),
        _kept,
    )
    if s.input.minexp != s.output.minexp:
        outputs = not_applicable(outputs, "products of normal inputs are normal results")
    c = f"2^{s.output.minexp - 1}"
    return [
        _test("T_si_no", "subnormal inputs, normal results", "subnormal inputs", "not 0", inputs, _kept),
        outputs,
        _test("T_sa", "subnormal accumulators", "subnormal accumulators", c, (Case((), c),), _kept),
    ]


def _bits() -> list[Test]:
    """Rounding directions and extra bits."""
    products = Case(("1 * 2", "2^-14 * 2^-9+2^-10"))
    added = Case(("2^-14 * 2^-9+2^-10",), "2")
    negative = Case(("1 * -2",), "-2^-23-2^-24")
    # Two ways to look for three bits: where sums are cut off, and where they are rounded to nearest.
    cut = Case(("1 * 1.25",), "-2^-3-2^-25")
    nearest = Case(("1 * 1.25",), "-2^-3-2^-24-2^-26")
    return [
        _test(
            "T_rnd_dir products",
            "rounding of sums of products",
            "rounding",
            "2 and -2, or 2+2^-22",
            (products, products.opposite()),
            direction("2", "2+2^-22"),
        ),
        _test(
            "T_rnd_dir",
            "rounding of c plus a product",
            "rounding",
            "2 and -2, or 2+2^-22",
            (added, negative),
            direction("2", "2+2^-22"),
        ),
        _test(
            "T_1_bit",
            "an extra bit in the alignment",
            "extra bits",
            "2^-24",
            (Case(("1 * 1",), "-1+2^-24"),),
            _is(2.0**-24, "yes", "no"),
        ),
        _test(
            "T_3_bits_fin_rnd",
            "more extra bits",
            "extra bits",
            "1.125-2^-23",
            (cut, nearest),
            _given("T_1_bit", "passed", _more_bits),
        ),
        _test(
            "T_tie",
            "ties are rounded to even",
            "rounding",
            "1",
            (Case(("2^-14 * 2^-10",), "1"),),
            _given("T_rnd_dir", "passed", _is(1.0, "to even", "away"), "RN"),
        ),
        _test(
            "T_sticky",
            "bits below the extra ones count",
            "extra bits",
            "1+2^-23",
            (Case(("1 * 1",), "2^-24+2^-27"),),
            _given("T_rnd_dir", "passed", _is(1 + 2.0**-23, "yes", "no"), "RN"),
        ),
    ]


def _more_bits(values: Values, earlier: Earlier) -> Verdict:
    """Two bits or more show where sums are cut off, three where they are rounded to nearest."""
    mode = earlier["T_rnd_dir"].reading
    if mode not in ("RZ", "RD", "RN"):
        return Verdict("no conclusion")
    found, at_least = (values[1], "3") if mode == "RN" else (values[0], ">= 2")
    if found == 1.125 - 2.0**-23:
        return Verdict("passed", at_least, int(at_least[-1]))
    return Verdict("failed", "1", 1)


def _sums(s: Setting) -> list[Test]:
    """Order, width, normalisation, monotonicity."""
    tiny, half = "2^-14 * 2^-10", "2^-14 * 2^-11"  # normal factors of 2^-24 and 2^-25
    places = (Case((tiny, tiny), "1"), Case(("1 * 1", tiny), "2^-24"), Case((tiny, "1 * 1"), "2^-24"))
    widths = tuple(Case((tiny, *("0",) * (i - 1), tiny), "1") for i in range(1, s.length))
    width = _test(
        "T_blk_fma_width",
        "products that are summed together",
        "block",
        "1 from the width on",
        widths,
        _given_pair(_width(s.length)),
    )
    if not widths:
        width = not_applicable(width, "takes more than 1 product")
    prod = (Case(("1+2^-22+2^-23 * 1.25",)), Case(("1+2^-21+2^-23 * 1.125",)), Case(("1+2^-21 * 1.125",)))
    return [
        _test(
            "T_prod",
            "rounding of products",
            "products",
            "1.25 + 3.75 * 2^-23, rounded",
            (prod[0], prod[0].opposite(), *prod[1:]),
            _product,
        ),
        _test("T_acc_order", "where 1 and two terms of 2^-24 stand", "order", "1+2^-23 thrice", places, _order),
        _test(
            "T_pres_extra_acc",
            "extra bits are kept between terms",
            "extra bits",
            "1+2^-23",
            (Case((tiny, half, half), "1"),),
            _is(_PAIR, "yes", "no"),
        ),
        width,
        _test(
            "T_norm",
            "sums are normalised once",
            "normalisation",
            "1+2^-23",
            (Case(("2^-14 * 2^-9", half, half), "1-2^-24"),),
            _given("T_1_bit", "passed", _is(_PAIR, "once", "between")),
        ),
        _test(
            "T_monotone",
            "sums are monotonic",
            "monotonicity",
            "a larger c gives no smaller d",
            (Case(("1 * 1",) * 8, "2^25-2"), Case(("1 * 1",) * 8, "2^25")),
            _monotonic,
        ),
    ]


def _given_pair(judge: Judge) -> Judge:
    """A judge that speaks where c = 1 and two products of 2^-24, side by side, give 1 + 2^-23."""

    def judged(values: Values, earlier: Earlier) -> Verdict:
        kept = earlier["T_acc_order"].values[:1] == (_PAIR,)
        return judge(values, earlier) if kept else Verdict("no conclusion")

    return judged


def _order(values: Values, _: Earlier) -> Verdict:
    if all(v == _PAIR for v in values):
        return Verdict("passed", "kept", 1)
    return Verdict("failed", "lost", 3) if all(v == 1.0 for v in values) else Verdict("failed", "order matters", 2)


def _width(length: int) -> Callable[[Values, Earlier], Verdict]:
    def judge(values: Values, _: Earlier) -> Verdict:
        first = next((i for i, v in enumerate(values, 1) if v == 1.0), None)
        if first == 1:
            return Verdict("no conclusion")
        return Verdict("passed", f">= {length}" if first is None else str(first), first or length)

    return judge


def _product(values: Values, _: Earlier) -> Verdict:
    """1.25 + 3.75 ulp, its opposite, 1.125 + 5.625 ulp, and 1.125 + 4.5 ulp."""
    found = direction("1.25+3*2^-23", "1.25+4*2^-23")(values[:2], {})
    if found.reading == "RN":
        tie = values[2:] == (1.125 + 6 * 2.0**-23, 1.125 + 4 * 2.0**-23)
        return Verdict("passed", "RN, ties to even" if tie else "RN")
    return found


def _monotonic(values: Values, _: Earlier) -> Verdict:
    smaller, larger = values
    assert smaller is not None and larger is not None
    return Verdict("failed", "violated") if larger < smaller else Verdict("passed", "not violated")


def _halves() -> list[Test]:
    """FP16 results; nothing of these is adaptive."""
    up = Case(("1 * 2", "1 * 3*2^-11"))
    pair = ("1 * 1", "1 * 2^-11")

    def wider(values: Values, _: Earlier) -> Verdict:
        return Verdict("passed", "yes") if values == (1.0, 1 + 2.0**-10) else Verdict("failed", "no")

    return [
        _test(
            "T_rnd_half",
            "rounding to FP16",
            "output rounding",
            "2 and -2, or 2+2^-9",
            (up, up.opposite()),
            direction("2", "2+2^-9"),
        ),
        _test(
            "T_wide_half",
            "sums are wider than FP16",
            "precision",
            "1, 1+2^-10",
            (Case(pair), Case(pair, "2^-14")),
            wider,
        ),
    ]
