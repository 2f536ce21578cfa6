"""What Xue et al. 2025 (H2SGEMM) published, and how our rows are compared with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from prismm.reproduce.claims import Claim, at_least, at_most, between, equals, within
from prismm.reproduce.framework import Rows

KINDS = ("symmetric", "non-negative")
ORDERS: tuple[Literal["term", "element"], ...] = ("term", "element")
LOW = -10
"""Offset exponents from here down are the low-exponent region, where underflow is significant (§3.1.2)."""

_ASCEND = "an Ascend 910A NPU"
_ERROR = "relative error"
Measure = Callable[[Rows], list[float]]


def _fig8(top: str, bottom: str, high: float = 0, low: float = -99, kinds: tuple[str, ...] = KINDS) -> Measure:
    """Ratios of two series at the offset exponents in [low, high]."""

    def measure(rows: Rows) -> list[float]:
        found = []
        for kind in kinds:
            above = rows.curve(f"8 {kind}", top, _ERROR)
            below = rows.curve(f"8 {kind}", bottom, _ERROR)
            found += [value / below[e] for e, value in above.items() if e in below and low <= e <= high]
        return found

    return measure


def _mean_reduction(rows: Rows) -> list[float]:
    """Geometric mean of what sb=12 gains over sb=0 in the low-exponent region, for each kind of input."""
    found = [_fig8("sb=0, term", "sb=12, term", LOW, -12, kinds=(kind,))(rows) for kind in KINDS]
    return [math.prod(ratios) ** (1 / len(ratios)) for ratios in found if ratios]


def _fig9(figure: str, top: str, bottom: str, kinds: tuple[str, ...] = KINDS, least: float = 0) -> Measure:
    def measure(rows: Rows) -> list[float]:
        return [r for kind in kinds for r in rows.ratios(f"{figure} {kind}", top, bottom, _ERROR, least)]

    return measure


def _spread(figure: str, series: str) -> Measure:
    """Largest over smallest error of a series, one number for each kind of input."""

    def measure(rows: Rows) -> list[float]:
        curves = [list(rows.curve(f"{figure} {kind}", series, _ERROR).values()) for kind in KINDS]
        return [max(curve) / min(curve) for curve in curves if len(curve) > 1]

    return measure


def _growth(rows: Rows) -> list[float]:
    """Term-wise over SGEMM at the smallest and at the largest k."""
    found = []
    for kind in KINDS:
        ratios = rows.ratios(f"9b {kind}", "sb=12, term", "SGEMM", _ERROR)
        found += [ratios[-1] / ratios[0]] if len(ratios) > 1 else []
    return found


def _value(figure: str, series: str, measure: str, x: float = 0.0) -> Measure:
    return lambda rows: [v for at, v in rows.curve(figure, series, measure).items() if at == x]


def _gap(figure: str, pairs: tuple[tuple[str, str], ...], measure: str) -> Measure:
    """Largest difference between two series at the same x."""

    def gap(rows: Rows) -> list[float]:
        found = []
        for one, other in pairs:
            left, right = (rows.curve(figure, name, measure) for name in (one, other))
            found += [abs(left[x] - right[x]) for x in left if x in right]
        return [max(found)] if found else []

    return gap


def _first_exponent(rows: Rows) -> list[float]:
    """The lowest offset exponent at which the unscaled split keeps as many bits as at 0."""
    curve = rows.curve("2b", "counted, sb=0", "bits")
    return [min(e for e, bits in curve.items() if bits >= curve[0.0])] if 0.0 in curve else []


def _bits_above(rows: Rows) -> list[float]:
    """Bits counted less those of Fig. 2(b)'s rule, where both words are in range."""
    found = []
    for sb in (0, 12):
        counted, rule = (rows.curve("2b", f"{name}, sb={sb}", "bits") for name in ("counted", "Fig. 2(b)"))
        found += [counted[e] - rule[e] for e in counted if e in rule]
    return found


def _sum_of_probabilities(rows: Rows) -> list[float]:
    found = rows.curve("Eq. 3", "Eq. 3", "P(N=n)").values()
    return [sum(found)] if found else []


def _half(kind: str) -> Measure:
    """Where float16 itself does not underflow."""
    return lambda rows: [value for e, value in rows.curve(f"8 {kind}", "half", _ERROR).items() if LOW <= e <= 0]


_TERM, _ELEMENT, _OURS = "sb=12, term", "sb=12, element", "prismm, term"
_BLAS = (
    "the accumulator of the paper's NPU is not published; sums here are SGEMM's own, which adds the products "
    "of words with the same roundings as float32's"
)
CLAIMS = (
    Claim("Eq. 3", "sum of P(N=n)", "1", equals(1.0), _sum_of_probabilities, "equation"),
    Claim(
        "Eq. 3",
        "|Eq. 3 - counted|",
        "exact",
        equals(0.0),
        _gap("Eq. 3", (("Eq. 3", "counted"),), "P(N=n)"),
        "equation",
        "counted over every pattern of the 13 discarded bits; low word 0 counts as N=12, the tie as N=-1",
    ),
    Claim(
        "Fig. 2(a), Eq. 5",
        "|Eq. 5 - counted|, all exponents",
        "exact",
        equals(0.0),
        _gap("2a", (("Eq. 5 P_u+gu", "counted P_u+gu"), ("Eq. 5 P_u", "counted P_u")), "probability"),
        "equation",
    ),
    Claim(
        "Fig. 2(a)",
        "P of gradual underflow at exponent 0",
        "> 10 %",
        at_least(0.1),
        _value("2a", "counted P_u+gu", "probability", 0),
    ),
    Claim(
        "Fig. 2(a)",
        "P of underflow at exponent -9",
        "significant only below -10",
        at_most(0.1),
        _value("2a", "counted P_u", "probability", -9),
        "words",
    ),
    Claim(
        "Fig. 2(a)",
        "P of underflow at exponent -13",
        "approaching 100 % below -12",
        at_least(0.95),
        _value("2a", "counted P_u", "probability", -13),
    ),
    Claim(
        "Fig. 2(b)",
        "bits kept at exponent 0, sb=12",
        "at least 22",
        between(22, 23),
        _value("2b", "counted, sb=12", "bits", 0),
        note="one more: the low word's sign",
    ),
    Claim("Rule 1", "offset exponent from which 22 bits need no scaling", "-2", equals(-2), _first_exponent),
    Claim("Fig. 2(b)", "bits kept at exponent -14, sb=0", "11", equals(11), _value("2b", "counted, sb=0", "bits", -14)),
    Claim(
        "Fig. 2(b)",
        "bits counted less those of its rule, sb=0 and 12",
        "0 or more",
        between(0, 1),
        _bits_above,
        "equation",
    ),
    Claim(
        "Eq. 6",
        "sb for exponents -14 to 15, lowest",
        "12",
        equals(12),
        _value("Eq. 6", "paper", "lowest sb"),
        "equation",
    ),
    Claim(
        "Eq. 6",
        "sb for exponents -14 to 15, highest",
        "12",
        equals(12),
        _value("Eq. 6", "paper", "highest sb"),
        "equation",
        "a tie leaves x - hi = 2^(e-11): 32784 with sb=12 gives a low word of 65536, which float16 lacks; "
        "prismm's own limit is one lower, and it scales to exponents up to 14",
    ),
    Claim(
        "§3.3.1, Eq. 8",
        "N_fused of (176, 64, 176)",
        "44",
        equals(44),
        _value("Eq. 8", "(176, 64, 176)", "N_fused"),
        "equation",
        "with 524288 taken as elements; 524288 bytes of float16 would give 21",
    ),
    Claim(
        "Fig. 5",
        "least f, 0.5 <= b_n/b_m <= 2",
        "0.92",
        at_least(0.915),
        _value("5", "all blocks", "least f"),
        "text",
        "over every block that Eq. 10 allows with L1/(b_m b_k) >= 16; the paper does not say which it drew",
    ),
    Claim(
        "Fig. 5", "share of those blocks with f >= 0.92", "all", None, _value("5", "all blocks", "share with f >= 0.92")
    ),
    Claim("Fig. 5", "largest f", "1.0", at_most(1.0), _value("5", "all blocks", "largest f")),
    Claim(
        "§3.3.1",
        "optimal b_m for f = 0.92 and 1",
        "86 to 90",
        between(86, 91),
        lambda r: [v for s in ("f=0.92", "f=1") for v in r.curve("Eq. 9", s, "optimal b_m").values()],
        "equation",
        "the multiple of 16 nearest to 86.8 is 80; the paper's 96 is the nearest only above 88",
    ),
    *(
        Claim("Fig. 8", f"half precision, relative error, {kind}", "1e-4", within(10, 1e-4), _half(kind), note=note)
        for kind, note in zip(KINDS, ("", "falls as 1/sqrt(k) for data of one sign"), strict=True)
    ),
    Claim(
        "Fig. 8",
        "sb=0 over SGEMM, exponents <= -1",
        "higher error than SGEMM",
        at_least(1.0),
        _fig8("sb=0, term", "SGEMM", -1),
        "words",
    ),
    Claim(
        "Fig. 8",
        f"sb=0 over sb=12, term, mean over exponents {LOW} to -12",
        "1-2 orders of magnitude",
        between(5, 500),
        _mean_reduction,
        "words",
    ),
    Claim(
        "Fig. 8",
        f"sb=6 over sb=12, term, exponents <= {LOW}, symmetric",
        "performs poorly",
        at_least(1.5),
        _fig8("sb=6, term", _TERM, LOW, kinds=("symmetric",)),
        "words",
    ),
    Claim(
        "Fig. 8",
        "sb=12 element-wise over SGEMM",
        "comparable",
        within(3, 1.0),
        _fig8(_ELEMENT, "SGEMM", 0, -12),
        "words",
        _BLAS,
    ),
    Claim(
        "Fig. 8",
        f"sb=12 term-wise over SGEMM, exponents <= {LOW}",
        "surpasses SGEMM",
        at_most(1.0),
        _fig8(_TERM, "SGEMM", LOW, -12),
        "words",
        _BLAS,
    ),
    Claim(
        "Fig. 8",
        "sb=12 term-wise over element-wise",
        "better",
        at_most(1.0),
        _fig8(_TERM, _ELEMENT, 0, -12),
        "words",
        least="default",
    ),
    Claim(
        "Fig. 9(a)",
        "largest over smallest error against m = n, term",
        "stable",
        at_most(1.5),
        _spread("9a", _TERM),
        "words",
    ),
    Claim(
        "Fig. 9(b)",
        "term-wise over SGEMM, k >= 1024",
        "lower error",
        at_most(1.0),
        _fig9("9b", _TERM, "SGEMM", least=1024),
        "words",
        _BLAS,
    ),
    Claim(
        "Fig. 9(b)",
        "growth of that ratio from the smallest k to the largest",
        "scales better",
        at_most(1.0),
        _growth,
        "words",
    ),
    Claim(
        "Fig. 9(c)",
        "term-wise over SGEMM, m = n = k >= 64",
        "lower error",
        at_most(1.0),
        _fig9("9c", _TERM, "SGEMM", least=64),
        "words",
        _BLAS,
    ),
    Claim(
        "-",
        "prismm term-wise over SGEMM, every k of Fig. 9(b)",
        "-",
        at_most(1.0),
        _fig9("9b", _OURS, "SGEMM"),
        "words",
    ),
    Claim(
        "-",
        "prismm term-wise over SGEMM, every exponent of Fig. 8",
        "-",
        at_most(1.0),
        _fig8(_OURS, "SGEMM"),
        "words",
        "prismm scales rows and columns first, so its error cannot depend on the offset exponent",
    ),
    Claim("Fig. 10", "single-buffered peak", "41.7 TFLOPS", None, device=_ASCEND),
    Claim(
        "Fig. 10",
        "double-buffered peak at (176, 64, 176), N_fused = 44",
        "65.3 TFLOPS, 57 % more",
        None,
        device=_ASCEND,
    ),
    Claim("Fig. 10", "share of 256/3 = 85.3 TFLOPS", "77 %", None, device=_ASCEND),
    Claim(
        "Fig. 11",
        "against m = n, k, all; H2SGEMM on 910A, SGEMM on 910B3",
        "60 and 63 TFLOPS",
        None,
        device="Ascend 910A and 910B3 NPUs",
    ),
)
