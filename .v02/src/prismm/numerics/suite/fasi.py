"""The test suite of Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ 2021).

Inputs are those of the paper's §3.1.1 to §3.1.4 and of the programs published with it: one for the V100, whose
engine drops every bit below FP32's, and one for T4 and A100, which keep one more (`tests`, `volta_tests`). FP16, BF16,
TF32 and FP64 have a program each, alike but for the formats' ranges; of other inputs those tests apply whose values
they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.formats import FP16, FP32, FP64
from prismm.numerics.suite.framework import Case, Judge, Result, Setting, Test, Verdict, equal, not_applicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["tests", "volta_tests"]

_SECTIONS = {"A": "§3.1.1", "B": "§3.1.2", "C": "§3.1.3", "D": "§3.1.4"}


def tests(s: Setting) -> list[Test]:
    """The suite for an engine's formats, always all of it."""
    return _doubles(s) if s.input == FP64 and s.output == FP64 else _subnormals(s) + _sums(s) + _accumulator(s)


def volta_tests(s: Setting) -> list[Test]:
    """The five tests whose inputs are others in the program for the V100."""
    lost = ("1 * 2^-24",) * 4
    moved = _moved("1 * 1", lost, "2^-24")
    below = "1-2^-24"
    return [
        _single(s, _test("B3", "sums are rounded to binary32", "precision", "1", (Case(lost, "1"),), equal("1"), True)),
        _single(s, _test("B4", "sums start from the largest term", "order", "1", moved, _one_everywhere, True)),
        _single(
            s,
            _test("D1", "no extra bits", "extra bits", "2^-23", (Case(("1 * 1",), "-1+2^-24"),), equal("2^-23"), True),
        ),
        _single(
            s,
            _test(
                "D3",
                "no normalisation in subtraction",
                "normalisation",
                "2^-23",
                (Case(("1 * 1", "1 * -2^-24"), "-1+2^-24"),),
                equal("2^-23"),
                True,
            ),
        ),
        _single(
            s,
            _test(
                "D5",
                "not monotonic",
                "monotonicity",
                "a smaller c gives a larger d",
                (Case(lost, below), Case(lost, "1")),
                _falls,
                True,
            ),
        ),
    ]


def _test(
    id: str, title: str, decides: str, expectation: str, cases: Sequence[Case], judge: Judge, volta: bool = False
) -> Test:
    return Test(
        id,
        "fasi-v100" if volta else "fasi",
        title,
        f"Fasi et al. 2021, {_SECTIONS[id[0]]}",
        decides,
        expectation,
        tuple(cases),
        judge,
    )


def _moved(term: str, others: tuple[str, ...], c: str) -> tuple[Case, ...]:
    """A product in every place among others."""
    return tuple(Case((*others[:j], term, *others[j + 1 :]), c) for j in range(len(others)))


def _single(s: Setting, test: Test) -> Test:
    """A test of the binary32 mode."""
    return test if s.output == FP32 else not_applicable(test, "a test with FP32 results")


def _half(s: Setting, test: Test) -> Test:
    """A test of the binary16 mode."""
    return test if s.output == FP16 else not_applicable(test, "a test with FP16 results")


def _one_everywhere(values: Sequence[float | None], _: Mapping[str, Result]) -> Verdict:
    same = "order does not matter" if len(set(values)) == 1 else "order matters"
    return Verdict("passed" if set(values) == {1.0} else "failed", same)


def _falls(values: Sequence[float | None], _: Mapping[str, Result]) -> Verdict:
    smaller, larger = values
    assert smaller is not None and larger is not None
    return Verdict("passed" if larger < smaller else "failed", "not monotonic" if larger < smaller else "")


def _subnormals(s: Setting) -> list[Test]:
    """Group A."""
    low, m = s.input.subnormal_exponent, s.input.minexp
    up = 2 if s.input == FP16 else s.input.fraction_bits  # to the smallest normal value where c has no more range
    product = Case((f"2^{low} * 2^{up}",))
    result = f"2^{low + up}"
    subnormal = f"2^{m - 1}"
    produced = (Case((f"2^{m} * 2^-1",)), Case((f"2^{m} * 1",), f"-2^{m - 1}"))
    c = f"2^{FP32.subnormal_exponent}"
    decides = "subnormal inputs"
    # With FP16 inputs what is made of them is subnormal in FP16, and normal in FP32.
    made = "subnormal outputs" if m <= s.output.minexp else "small outputs"
    return [
        _half(s, _test("A1", "subnormal inputs (fp16 results)", decides, result, (product,), equal(result))),
        _single(s, _test("A2", "subnormal inputs (fp32 results)", decides, result, (product,), equal(result))),
        _single(s, _test("A3", "subnormal c and d", "subnormal accumulators", c, (Case((), c),), equal(c))),
        _test("A4", "subnormal results", made, f"{subnormal}, twice", produced, equal(subnormal, subnormal)),
    ]


def _sums(s: Setting) -> list[Test]:
    """Groups B and C."""
    p = s.input.precision
    below = f"1-2^-{p}"
    squares = f"4-2^{3 - p}+2^{2 - 2 * p}"
    exact = _test("B1", "products are exact", "products", squares, (Case((f"{below} * {below}",) * 4),), equal(squares))
    if 2 * p > FP32.precision:
        exact = not_applicable(exact, "FP32 does not hold the products")
    tiny = ("0.5 * 2^-24",) * 4
    moved = _moved("1 * 1", tiny, "2^-24")
    above = Case(("1 * 2", "1 * 2^-23+2^-24"))
    return [
        _single(s, exact),
        _half(
            s,
            _test(
                "B2",
                "products are exact (fp16 results)",
                "products",
                "1-2^-10+2^-11",
                (Case(("1-2^-11 * 1-2^-11", "1-2^-11 * 2^-11")),),
                equal("1-2^-10+2^-11"),
            ),
        ),
        _single(s, _test("B3", "sums are rounded to binary32", "precision", "1", (Case(tiny, "1"),), equal("1"))),
        _single(s, _test("B4", "sums start from the largest term", "order", "1 four times", moved, _one_everywhere)),
        _single(
            s,
            _test(
                "C1",
                "positive sums are rounded down",
                "rounding",
                "2",
                (above,),
                equal("2", readings={"2": "RZ or RD", "2+2^-22": "RN or RU"}),
            ),
        ),
        _single(
            s,
            _test(
                "C2",
                "negative sums are rounded up",
                "rounding",
                "-2",
                (above.opposite(),),
                equal("-2", readings={"-2": "RZ or RU", "-2-2^-22": "RN or RD"}),
            ),
        ),
        _half(
            s,
            _test(
                "C3",
                "results are rounded to nearest (fp16 results)",
                "output rounding",
                "2^-24",
                (Case(("2^-24 * 2^-1", "2^-24 * 2^-2")),),
                equal("2^-24", readings={"2^-24": "RN or RU", "0": "RZ or RD"}),
            ),
        ),
    ]


def _accumulator(s: Setting) -> list[Test]:
    """Group D."""
    c = "1+2^-22+2^-23"
    ones = ("1 * 1",) * 4
    carried = _moved("1 * 2^-23", ones, c)
    rounded = Case(ones, c)
    tiny = ("0.5 * 2^-24",) * 3 + ("0.5 * 2^-23+2^-24",)
    found = [
        _test(
            "D1",
            "extra bits below FP32's",
            "extra bits",
            "2^-24",
            (Case(("1 * 1",), "-1+2^-24"),),
            equal("2^-24", readings={"2^-24": "one or more", "2^-23": "none"}),
        ),
        _test(
            "D2",
            "no normalisation between additions",
            "normalisation",
            "1+2^-23",
            (Case(("1 * 2^-24",) * 4, "1-2^-24"),),
            equal("1+2^-23", readings={"1+2^-23": "once", "1": "after each addition"}),
        ),
        _test(
            "D3",
            "normalisation in subtraction",
            "normalisation",
            "0",
            (Case(("1 * 1", "1 * -2^-24"), "-1+2^-24"),),
            equal("0"),
        ),
        _test("D4a", "two carry bits", "carry bits", "4+2^-21 four times", carried, equal(*["4+2^-21"] * 4)),
        _test(
            "D4b",
            "three carry bits",
            "carry bits",
            "8",
            (Case(("1 * 1", "1 * 1.5", "1 * 1.75", "1 * 1.875"), "1.875"),),
            equal("8"),
        ),
        _test(
            "D4c",
            "normalised sums are rounded toward zero",
            "rounding",
            "5 and -5",
            (rounded, rounded.opposite()),
            equal("5", "-5"),
        ),
        _test(
            "D5",
            "not monotonic",
            "monotonicity",
            "a smaller c gives a larger d",
            (Case(tiny, "1-2^-24"), Case(tiny, "1")),
            _falls,
        ),
    ]
    return [_single(s, test) for test in found]


def _doubles(s: Setting) -> list[Test]:
    """The program for FP64, which expects a chain of IEEE operations."""
    up, tie = Case(("1 * 2", "1 * 2^-52+2^-53")), Case(("1 * 2", "1 * 2^-53"))
    carried = (Case(("1 * 2^-52", "1 * 1"), "1+2^-51+2^-52"), Case(("1 * 1", "1 * 2^-52"), "1+2^-51+2^-52"))
    rising = ("1 * 2^-54", "1 * 2^-53+2^-54")

    def carry(values: Sequence[float | None], _: Mapping[str, Result]) -> Verdict:
        return Verdict("passed" if set(values) <= {2.0, 2.0 + 2.0**-50} else "failed")

    def rises(values: Sequence[float | None], earlier: Mapping[str, Result]) -> Verdict:
        falls = _falls(values, earlier).status == "passed"
        return Verdict("failed", "not monotonic") if falls else Verdict("passed")

    return [
        _test(
            "A2",
            "subnormal inputs",
            "subnormal inputs",
            "2^-1022",
            (Case(("2^-1074 * 2^52",)),),
            equal("2^-1022"),
        ),
        _test(
            "A4",
            "subnormal results",
            "subnormal outputs",
            "2^-1023, twice",
            (Case(("2^-1022 * 2^-1",)), Case(("2^-1022 * 1",), "-2^-1023")),
            equal("2^-1023", "2^-1023"),
        ),
        _test(
            "B3",
            "sums are rounded to binary64",
            "precision",
            "1",
            (Case(("0.5 * 2^-53",) * 2, "1"),),
            equal("1"),
        ),
        _test("C1", "positive sums are rounded to nearest", "rounding", "2+2^-51, 2", (up, tie), equal("2+2^-51", "2")),
        _test(
            "C2",
            "negative sums are rounded to nearest",
            "rounding",
            "-2-2^-51, -2",
            (up.opposite(), tie.opposite()),
            equal("-2-2^-51", "-2"),
        ),
        _test(
            "C3",
            "ties are rounded to even",
            "rounding",
            "2, 2+2^-50",
            (Case(("1 * 2", "1 * 2^-52")), Case(("1 * 2+2^-51", "1 * 2^-52"))),
            equal("2", "2+2^-50"),
        ),
        _test(
            "D1",
            "extra bits below FP64's",
            "extra bits",
            "2^-53",
            (Case(("1 * 1",), "-1+2^-53"),),
            equal("2^-53", readings={"2^-53": "one or more", "2^-52": "none"}),
        ),
        _test(
            "D2",
            "normalisation after each addition",
            "normalisation",
            "1",
            (Case(("1 * 2^-53",) * 2, "1-2^-53"),),
            equal("1", readings={"1": "after each addition", "1+2^-52": "once"}),
        ),
        _test(
            "D3",
            "normalisation in subtraction",
            "normalisation",
            "0",
            (Case(("1 * 1", "1 * -2^-53"), "-1+2^-53"),),
            equal("0"),
        ),
        _test("D4a", "no carry bits are seen", "carry bits", "2 or 2+2^-50", carried, carry),
        _test(
            "D5",
            "monotonic",
            "monotonicity",
            "a larger c gives no smaller d",
            (Case(rising, "1-2^-53"), Case(rising, "1")),
            rises,
        ),
    ]
