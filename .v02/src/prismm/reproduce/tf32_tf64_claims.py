"""What Valero-Lara et al. 2023 published, and how our rows are compared with it."""

from __future__ import annotations

import math
from collections.abc import Callable

from prismm.reproduce.claims import Claim, Rule, at_least, at_most, between, within
from prismm.reproduce.framework import Rows

Measure = Callable[[Rows], list[float]]
_L2 = "l2 error"
_A100 = "an A100"
KINDS = ("uniform", "normal")
FORMAT_KINDS = ("uniform", "wide")


def series(words: int, products: int, exponent_bits: int) -> str:
    """The name of a line of the open question's figure."""
    return f"{words} words, {products} products, {exponent_bits} exponent bits"


def _ratios(figure: str, top: str, bottom: str, least: float = 0.0, kinds: tuple[str, ...] = KINDS) -> Measure:
    """l2 errors of one series over another's, n from `least` on."""
    return lambda rows: [r for kind in kinds for r in rows.ratios(f"{figure} {kind}", top, bottom, _L2, least)]


def _mean_ratios(figure: str, top: str, bottom: str) -> Measure:
    """Geometric mean over n of the ratio of l2 errors, for each kind of data."""

    def measure(rows: Rows) -> list[float]:
        found = [rows.ratios(f"{figure} {kind}", top, bottom, _L2) for kind in KINDS]
        return [math.prod(ratios) ** (1 / len(ratios)) for ratios in found if ratios]

    return measure


def _errors(figure: str, series: str, least: float, norms: tuple[str, ...], kind: str) -> Measure:
    return lambda rows: [
        v for p in norms for n, v in rows.curve(f"{figure} {kind}", series, f"{p} error").items() if n >= least
    ]


def _all_norms(figure: str, top: str, bottom: str, least: float = 0.0) -> Measure:
    def measure(rows: Rows) -> list[float]:
        return [
            ratio
            for kind in KINDS
            for p in ("l1", "l2", "linf")
            for ratio in rows.ratios(f"{figure} {kind}", top, bottom, f"{p} error", least)
        ]

    return measure


def _excess(top: str, bottom: str, kind: str) -> Measure:
    """|ratio - 1| at the largest n over that at the smallest."""

    def measure(rows: Rows) -> list[float]:
        ratios = rows.ratios(f"5 {kind}", top, bottom, _L2)
        return [abs(ratios[-1] - 1) / abs(ratios[0] - 1)] if len(ratios) > 1 and ratios[0] != 1 else []

    return measure


def _small(top: str, bottom: str, kind: str) -> Measure:
    """Ratios at the two smallest n."""
    return lambda rows: rows.ratios(f"5 {kind}", top, bottom, _L2)[:2]


def _fewest_bits(kind: str, words: int, products: int, exponent_bits: int, factor: float) -> Measure:
    """Fewest fraction bits from which on the error stays within a factor of DGEMM's."""
    name = series(words, products, exponent_bits)

    def measure(rows: Rows) -> list[float]:
        dgemm = list(rows.curve(f"formats {kind}", f"{name}: DGEMM", _L2).values())
        curve = rows.curve(f"formats {kind}", name, _L2)
        if not dgemm or not curve:
            return []
        enough = [all(v <= factor * dgemm[0] for b, v in curve.items() if b >= bits) for bits in curve]
        return [bits for bits, good in zip(curve, enough, strict=True) if good][:1] or [math.inf]

    return measure


def _open(kind: str, words: int, products: int, exponent_bits: int, note: str = "") -> Claim:
    what = (
        f"fewest fraction bits for 2x DGEMM's error, {kind} data: {words} words, {products} products, "
        f"{exponent_bits} exponent bits"
    )
    measure = _fewest_bits(kind, words, products, exponent_bits, 2.0)
    return Claim("§5", what, "open", None, measure, "words", note, show=_bits)


def _bits(count: float) -> str:
    return "none up to 25" if math.isinf(count) else f"{count:g}"


_FOUR: Rule = within(2, 4)
_SAME_INPUTS = (
    "with equal 11-bit significands and FP32 sums FP16 and TF32 are the same arithmetic on this data: the factor can "
    "only come from FP16 sums or output"
)

CLAIMS = (
    Claim(
        "Fig. 4, §3.2",
        "1xTF32 error, l2, uniform data, n >= 512",
        "1e-5 ... 1e-6",
        between(1e-6, 1e-5),
        _errors("4", "1xTF32", 512, ("l2",), "uniform"),
        note="falls as 1/sqrt(n) on data of one sign",
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xTF32 error, l1 and linf, normal data, n >= 512",
        "1e-5 ... 1e-6",
        between(1e-6, 2e-5),
        _errors("4", "1xTF32", 512, ("l1", "linf"), "normal"),
        note="l2 stays near 1e-4 there, whatever n",
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xFP16 over 1xTF32, mean over n",
        "about 4",
        _FOUR,
        _mean_ratios("4", "1xFP16", "1xTF32"),
        note=_SAME_INPUTS,
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xFP16 with FP16 output over 1xTF32, mean over n",
        "about 4",
        _FOUR,
        _mean_ratios("4", "1xFP16, FP16 output", "1xTF32"),
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xFP16 with FP16 sums over 1xTF32, mean over n",
        "about 4",
        _FOUR,
        _mean_ratios("4", "1xFP16, FP16 sums", "1xTF32"),
        note="every sum rounded to FP16; grows with n",
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xFP16 with FP16 sums, simulated A100, over 1xTF32, mean over n",
        "about 4",
        _FOUR,
        _mean_ratios("4", "1xFP16, FP16 sums, A100", "1xTF32"),
        note="blocks of 8 are added exactly and rounded to FP16; grows with n, too",
        least="default",
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xTF32 over 3xTF32",
        "error much lower",
        at_least(10),
        _all_norms("4", "1xTF32", "3xTF32"),
        "words",
    ),
    Claim("Fig. 4, §3.2", "3xTF32 over SGEMM", "close", at_most(2), _all_norms("4", "3xTF32", "SGEMM"), "words"),
    Claim(
        "-",
        "3xTF32 in chunks no worse than SGEMM",
        "-",
        at_most(1.05),
        _all_norms("4", "3xTF32, in chunks", "SGEMM"),
        "words",
        "prismm's default: chunks of the inner dimension are added outside; 5 % allowed",
    ),
    Claim(
        "Fig. 4, §3.2",
        "3xTF32 over 4xTF32",
        "no noticeable effect",
        within(1.1, 1),
        _all_norms("4", "3xTF32", "4xTF32"),
        "words",
    ),
    Claim(
        "Fig. 4, §3.2",
        "|SGEMM - 3xTF32| over SGEMM",
        "a close approximation",
        at_most(2),
        _ratios("4", "|SGEMM - 3xTF32|", "SGEMM"),
        "words",
    ),
    Claim(
        "Fig. 4, §3.2",
        "3xTF32, simulated A100, over SGEMM, normal data",
        "close",
        within(4, 1),
        _ratios("4", "3xTF32, A100", "SGEMM", kinds=("normal",)),
        "words",
        "its sums are cut after every block of 4, which normal data survives",
    ),
    Claim(
        "Fig. 4, §3.2",
        "3xTF32, simulated A100, over SGEMM, uniform data",
        "close",
        within(4, 1),
        _ratios("4", "3xTF32, A100", "SGEMM", kinds=("uniform",)),
        "words",
        "on data of one sign cut sums drift with k",
    ),
    Claim(
        "-",
        "3xTF32, simulated A100, chunks of 32, over SGEMM, uniform data",
        "-",
        None,
        _ratios("4", "3xTF32, A100, chunks of 32", "SGEMM", kinds=("uniform",)),
        "words",
        "prismm's remedy: chunks are added outside of the engine, to nearest",
    ),
    Claim("§3.2", "3xTF32 over SGEMM, speed", "2.6x, 53 Tflop/s", None, device=_A100),
    Claim(
        "Fig. 5, §3.3",
        "1xTF64 over SGEMM",
        "more precision than SGEMM",
        at_most(1.0),
        _ratios("5", "1xTF64", "SGEMM"),
        "words",
    ),
    Claim(
        "Fig. 5, §3.3",
        "3xTF64 over DGEMM",
        "equivalent in magnitude",
        within(10, 1),
        _all_norms("5", "3xTF64", "DGEMM"),
        "words",
    ),
    Claim(
        "-",
        "3xTF64 in chunks over DGEMM, n >= 512",
        "-",
        at_most(2),
        _all_norms("5", "3xTF64, in chunks", "DGEMM", 512),
        "words",
    ),
    Claim(
        "Fig. 5, §3.3", "1xTF64 over 3xTF64", "on the order of 1e7", within(10, 1e7), _ratios("5", "1xTF64", "3xTF64")
    ),
    Claim(
        "Fig. 5, §3.3",
        "3xTF64 over 4xTF64, n <= 64, normal data",
        "noticeable in small matrices",
        at_least(1.05),
        _small("3xTF64", "4xTF64", "normal"),
        "words",
    ),
    Claim(
        "Fig. 5, §3.3",
        "3xTF64 over 4xTF64, n <= 64, uniform data",
        "noticeable in small matrices",
        at_least(1.05),
        _small("3xTF64", "4xTF64", "uniform"),
        "words",
        "the error of DGEMM's sums hides it",
    ),
    Claim(
        "Fig. 5, §3.3",
        "3xTF64 over 4xTF64, words cut, n <= 64, uniform data",
        "noticeable in small matrices",
        at_least(1.05),
        _small("3xTF64, words cut", "4xTF64, words cut", "uniform"),
        "words",
        "words cut toward zero: the fourth product then has one sign, but the error is that of cut words",
    ),
    Claim(
        "Fig. 5, §3.3",
        "|3x/4x - 1|, largest n over smallest n, normal data",
        "particularly in small matrices",
        at_most(0.9),
        _excess("3xTF64", "4xTF64", "normal"),
        "words",
        least="default",
    ),
    Claim(
        "Fig. 5, §3.3",
        "|DGEMM - 3xTF64| over DGEMM",
        "included, not quoted",
        None,
        _ratios("5", "|DGEMM - 3xTF64|", "DGEMM"),
        "words",
    ),
    *(
        _open(kind, words, products, bits)
        for kind in FORMAT_KINDS
        for words, products, bits in ((2, 3, 8), (2, 3, 5), (2, 4, 8), (3, 6, 8), (3, 6, 5))
    ),
)
