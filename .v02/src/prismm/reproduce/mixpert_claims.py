"""What Lin et al. 2024 (MixPert) published, and how our rows are compared with it."""

from __future__ import annotations

from collections.abc import Callable

from prismm.reproduce.claims import Claim, at_least, at_most, equals, falls, within
from prismm.reproduce.framework import Rows

Measure = Callable[[Rows], list[float]]
_A100, _RTX = "an A100", "an RTX 3090"
_KINDS = ("uniform", "normal")


def _value(series: str, measure: str) -> Measure:
    return lambda rows: list(rows.curve("§3.2.3", series, measure).values())


def _mean(series: str, kind: str) -> Measure:
    """Mean of E over the inner dimensions."""

    def measure(rows: Rows) -> list[float]:
        values = rows.curve(f"9 {kind}", series, "E").values()
        return [sum(values) / len(values)] if values else []

    return measure


def _each(series: str, kind: str, most: float = float("inf")) -> Measure:
    return lambda rows: [value for k, value in rows.curve(f"9 {kind}", series, "E").items() if k <= most]


def _levels(rows: Rows) -> list[float]:
    """E of levels I, II, IV at the largest k of uniform data."""
    curves = [rows.curve("9 uniform", f"MixPert {level}", "E") for level in ("I", "II", "IV")]
    return [curve[max(curve)] for curve in curves if curve]


def _against(series: str, other: str, kind: str = "uniform") -> Measure:
    return lambda rows: rows.ratios(f"9 {kind}", series, other, "E")


def _wide(measure: str, binades: tuple[float, float]) -> Measure:
    low, high = binades
    return lambda rows: [v for x, v in rows.curve("§3.3.3", "with fallback", measure).items() if low <= x <= high]


_QUANTENSOR = (
    "quoted by the paper from QuanTensor's own, with data and sizes not stated; ours has a scale for each row and "
    "column, the original one for a matrix"
)
_APE = (
    "six products of exact BF16 words leave no more than FP32's own error: the published 1e-4 is that of sums which "
    "the tensor cores cut, which on data of one sign drift with k"
)
_APPLICATIONS = "the paper's mean is over GEMM, HPL-AI, MLP and Cholesky"
_APE_A100 = "APE, 3 BF16 words, A100"
_STAGED = "CUTLASS 3xTF32, A100, staged"
_STAGES = (
    "CUTLASS adds the tensor cores' sums of each main-loop step to a separate accumulator (its staged accumulation for "
    "3xTF32), as `chunk=` does here"
)
# where, what, our series, published value and text, factor, note
_MEANS = (
    ("Fig. 9, §4.3", "MixPert IV", "MixPert IV", 4.46e-7, "4.46e-7", 4, _APPLICATIONS),
    ("Fig. 9, §4.3", "FP32, sums one after the other", "FP32, one after the other", 1.14e-6, "1.14e-6 (cuBLAS)", 4, ""),
    ("Fig. 9, §4.3", "FP32, this CPU's SGEMM", "FP32", 1.14e-6, "1.14e-6 (cuBLAS)", 4, ""),
    ("Fig. 9, §4.3", "3xTF32, sums rounded", "CUTLASS 3xTF32", 4.61e-7, "4.61e-7 (CUTLASS)", 4, ""),
    ("Fig. 9, §4.3", "3xTF32, A100, sums of 32 staged", _STAGED, 4.61e-7, "4.61e-7 (CUTLASS)", 4, _STAGES),
    ("Fig. 9, §4.3", "3xTF32, A100, sums not staged", "CUTLASS 3xTF32, A100", 4.61e-7, "4.61e-7 (CUTLASS)", 4, ""),
    ("Fig. 9, §4.3", "APE, sums rounded", "APE, 3 BF16 words", 7.16e-5, "7.16e-5", 4, ""),
    ("Fig. 9, §4.3", "APE, A100, sums not staged", _APE_A100, 7.16e-5, "7.16e-5", 4, _APE),
    ("§2.2", "QuanTensor, two INT8 words", "QuanTensor, 4 products", 6.76e-5, "6.76e-5 (8:14 bits)", 10, _QUANTENSOR),
    ("§2.2", "QuanTensor, three INT8 words", "QuanTensor, 9 products", 1.5e-6, "1.5e-6", 10, _QUANTENSOR),
)


def _sampled(rows: Rows) -> list[float]:
    sampled, exact = (_value(name, "mean relative error")(rows) for name in ("Eq. 6, sampled", "Eq. 6"))
    return [sampled[0] / exact[0]] if sampled and exact else []


CLAIMS = (
    Claim(
        "§3.2.3",
        "expected e of a scalar product",
        "2.82e-7",
        within(1.1, 2.82e-7),
        _value("Eq. 6", "mean relative error"),
        note="the stated distributions give 2.98e-7, by enumeration of all values; not the printed 2.82e-7",
    ),
    Claim("§3.2.3", "expected e, sampled over enumerated", "-", within(1.01, 1.0), _sampled),
    Claim("§3.2.3", "expected e, limit", "< 1.5·2^-22", at_most(1.5 * 2**-22), _value("Eq. 6", "mean relative error")),
    Claim("§3.2.3", "worst e", "7.15e-7", within(1.001, 7.15e-7), _value("Eq. 6", "largest relative error")),
    Claim("§3.2.3", "worst e, limit", "< 3·2^-22", at_most(3 * 2**-22), _value("Eq. 6", "largest relative error")),
    Claim(
        "-",
        "expected e of prismm's TileInt8 IV",
        "-",
        None,
        _value("prismm TileInt8 IV", "mean relative error"),
        "words",
        "it rounds at bit 20 where Eq. 6 assumes truncation",
    ),
    *(
        Claim(
            where,
            f"mean E of {what}, {kind}",
            text,
            within(factor, published),
            _mean(series, kind),
            note=note,
            least="default",
        )
        for where, what, series, published, text, factor, note in _MEANS
        for kind in _KINDS
    ),
    Claim(
        "-",
        "E of MixPert IV, uniform, k <= 16384",
        "-",
        at_most(5e-7),
        _each("MixPert IV", "uniform", 16384),
        "words",
    ),
    Claim(
        "§2.2",
        "E of APE on GEMM, simulated A100, uniform, largest k",
        "9.85e-5",
        within(4, 9.85e-5),
        lambda rows: list(rows.curve("9 uniform", _APE_A100, "E").values())[-1:],
        least="default",
    ),
    Claim(
        "Fig. 9, §4.3",
        "MixPert IV over FP32 (one after the other), uniform",
        "significantly lower",
        at_most(1.0),
        _against("MixPert IV", "FP32, one after the other"),
        "words",
    ),
    Claim(
        "Fig. 9, §4.3",
        "E of MixPert IV, normal, largest k over smallest",
        "robust against larger input sizes",
        at_most(2.0),
        lambda rows: [max(c) / min(c) for c in [_each("MixPert IV", "normal")(rows)] if len(c) > 1],
        "words",
    ),
    Claim("§3.3.1", "E of levels I, II, IV", "falls with every level", falls(), _levels, "words"),
    Claim(
        "§3.3.1",
        "levels II over III, uniform",
        "-",
        within(1.5, 1.0),
        _against("MixPert II", "MixPert III"),
        "words",
        "they mirror each other",
    ),
    Claim(
        "§3.3.3",
        "tile pairs that fall back, one binade of spread",
        "locality fulfils it in most cases",
        equals(0.0),
        _wide("share of tile pairs that fall back", (0, 0)),
        "words",
    ),
    Claim(
        "§3.3.3",
        "tile pairs that fall back, 24 binades",
        "identified and switched",
        at_least(0.5),
        _wide("share of tile pairs that fall back", (24, 24)),
        "words",
    ),
    Claim("§3.3.3", "E with fallback, any spread", "around 1e-6 (§4.3)", at_most(2e-6), _wide("E", (0, 99)), "words"),
    Claim("Fig. 8, §4.2", "speed over cuBLAS FP32: mean; GEMM at 24576", "1.72x; 2.71x", None, device=_A100),
    Claim("Fig. 8, §4.2", "speed of APE; of CUTLASS", "1.41x; 1.45x", None, device=_A100),
    Claim("Fig. 10, §4.4", "tuned Cholesky at tolerance 5e-4", "25 % faster", None, device=_A100),
    Claim(
        "Fig. 11, §4.5",
        "overhead: MixPert, large sizes; APE; CUTLASS",
        "11.1 %, 4.24 %; 4.29 %; 30.5 %",
        None,
        device=_A100,
    ),
    Claim("Fig. 12(a), §4.6", "speed over cuBLAS FP32: mean; larger", "1.12x; 1.30x", None, device=_RTX),
    Claim("Fig. 12(b), §4.6", "1 to 8 processes: over CUTLASS, APE", "24.3 %, 33.9 %", None, device=_A100),
    Claim(
        "Fig. 9, §4.3",
        "HPL-AI, MLP, Cholesky errors",
        "about 1e-6",
        None,
        device="`prismm bench apps`",
    ),
)
