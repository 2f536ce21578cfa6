"""What Valero-Lara et al. 2023 published, and how our rows are compared with it."""

from __future__ import annotations

from collections.abc import Callable

from prismm.reproduce.claims import Claim, Rule, at_least, at_most, between, within
from prismm.reproduce.framework import Rows

Measure = Callable[[Rows], list[float]]
_L2 = "l2 error"
_A100 = "an A100"


def series(words: int, products: int, exponent_bits: int) -> str:
    """The name of a line of the open question's figure."""
    return f"{words} words, {products} products, {exponent_bits} exponent bits"


def _ratios(figure: str, top: str, bottom: str, least: float = 0.0) -> Measure:
    return lambda rows: rows.ratios(figure, top, bottom, _L2, least)


def _errors(figure: str, series: str, least: float) -> Measure:
    return lambda rows: [value for n, value in rows.curve(figure, series, _L2).items() if n >= least]


def _excess(figure: str, top: str, bottom: str) -> Measure:
    """The first ratio less 1, over the last less 1: how much the difference shrinks with n."""

    def measure(rows: Rows) -> list[float]:
        ratios = rows.ratios(figure, top, bottom, _L2)
        return [abs(ratios[-1] - 1) / abs(ratios[0] - 1)] if len(ratios) > 1 and ratios[0] != 1 else []

    return measure


def _all_norms(figure: str, top: str, bottom: str) -> Measure:
    return lambda rows: [r for p in ("l1", "l2", "linf") for r in rows.ratios(figure, top, bottom, f"{p} error")]


def _fewest_bits(words: int, products: int, exponent_bits: int, factor: float) -> Measure:
    """Fewest fraction bits from which on the error stays within a factor of DGEMM's."""
    name = series(words, products, exponent_bits)

    def measure(rows: Rows) -> list[float]:
        dgemm = list(rows.curve("formats", f"{name} DGEMM", _L2).values())
        curve = rows.curve("formats", name, _L2)
        enough = [all(v <= factor * dgemm[0] for b, v in curve.items() if b >= bits) for bits in curve] if dgemm else []
        return [bits for bits, good in zip(curve, enough, strict=False) if good][:1]

    return measure


def _open(words: int, products: int, exponent_bits: int, note: str = "") -> Claim:
    what = f"fraction bits for 2x DGEMM's error: {words} words, {products} products, {exponent_bits} exponent bits"
    return Claim("§5", what, "open", None, _fewest_bits(words, products, exponent_bits, 2.0), "words", note)


_FOUR: Rule = within(2, 4)
_SAME_INPUTS = (
    "with equal 11-bit significands and FP32 sums FP16 and TF32 are the same arithmetic on this data: the factor can "
    "only come from FP16 sums or output"
)

CLAIMS = (
    Claim(
        "Fig. 4, §3.2",
        "1xTF32 error, n >= 512",
        "1e-5 ... 1e-6",
        between(1e-6, 2e-5),
        _errors("4", "1xTF32", 512),
        note="falls as 1/sqrt(n) on data of one sign",
    ),
    Claim("Fig. 4, §3.2", "1xFP16 over 1xTF32", "about 4", _FOUR, _ratios("4", "1xFP16", "1xTF32"), note=_SAME_INPUTS),
    Claim(
        "Fig. 4, §3.2",
        "1xFP16 with FP16 output over 1xTF32",
        "about 4",
        _FOUR,
        _ratios("4", "1xFP16, FP16 output", "1xTF32"),
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xFP16 with FP16 sums over 1xTF32",
        "about 4",
        _FOUR,
        _ratios("4", "1xFP16, FP16 sums", "1xTF32"),
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xFP16 with FP16 sums, simulated A100, over 1xTF32",
        "about 4",
        _FOUR,
        _ratios("4", "1xFP16, FP16 sums, A100", "1xTF32"),
        note="blocks of 8 are added exactly and rounded to FP16",
    ),
    Claim(
        "Fig. 4, §3.2",
        "1xTF32 over 3xTF32",
        "error much lower",
        at_least(10),
        _all_norms("4", "1xTF32", "3xTF32"),
        "words",
    ),
    Claim("Fig. 4, §3.2", "3xTF32 over SGEMM", "close", within(2, 1), _all_norms("4", "3xTF32", "SGEMM"), "words"),
    Claim("-", "3xTF32 no worse than SGEMM", "-", at_most(1.0), _all_norms("4", "3xTF32", "SGEMM"), "words"),
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
        "-",
        "3xTF32 on the simulated A100 over SGEMM",
        "-",
        None,
        _ratios("4", "3xTF32, A100", "SGEMM"),
        "words",
        "its sums are cut, not rounded: on data of one sign the error grows with k; prismm adds chunks outside the engine",
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
        at_most(10),
        _all_norms("5", "3xTF64", "DGEMM"),
        "words",
    ),
    Claim("-", "3xTF64 over DGEMM, n >= 512", "-", at_most(2), _ratios("5", "3xTF64", "DGEMM", 512), "words"),
    Claim(
        "Fig. 5, §3.3", "1xTF64 over 3xTF64", "on the order of 1e7", within(5, 1e7), _ratios("5", "1xTF64", "3xTF64")
    ),
    Claim(
        "Fig. 5, §3.3",
        "3xTF64 over 4xTF64, n <= 64",
        "noticeable in small matrices",
        at_least(1.1),
        lambda rows: rows.ratios("5", "3xTF64", "4xTF64", _L2)[:2],
        "words",
    ),
    Claim(
        "Fig. 5, §3.3",
        "|3x/4x - 1|, largest n over smallest n",
        "particularly in small matrices",
        at_most(0.9),
        _excess("5", "3xTF64", "4xTF64"),
        "words",
    ),
    Claim(
        "Fig. 5, §3.3",
        "|DGEMM - 3xTF64| over 1xTF64",
        "shown, not quoted",
        at_most(1e-5),
        _ratios("5", "|DGEMM - 3xTF64|", "1xTF64"),
        "words",
    ),
    _open(2, 3, 8, "8 exponent bits are those of FP32, TF32 and BF16; 23 fraction bits would be the paper's TF64"),
    _open(2, 4, 8),
    _open(2, 3, 6),
    _open(2, 3, 5, "rows and columns are scaled first; with 5 exponent bits the second word falls into the subnormals"),
    _open(2, 3, 11),
    _open(3, 6, 8),
    _open(3, 6, 5),
)
