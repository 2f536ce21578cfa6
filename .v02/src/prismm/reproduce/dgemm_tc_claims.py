"""What Mukunoki, Ozaki, Ogita and Imamura 2020 published, and how our rows are compared with it."""

from __future__ import annotations

from collections.abc import Callable

from prismm.reproduce.claims import Claim, at_least, at_most, equals, rises, within
from prismm.reproduce.framework import Rows

PHIS = (0.1, 1.0, 2.0)
_ERROR = "max relative error"
_PAPER = "prismm Slices DP, the paper's slices"
_TITAN, _V100 = "a Titan RTX", "a Titan RTX and a Tesla V100"
Measure = Callable[[Rows], list[float]]


def _ratios(figure: str, top: str, bottom: str) -> Measure:
    """Error of one method over another's, every n and φ."""
    return lambda rows: [r for phi in PHIS for r in rows.ratios(f"{figure} phi={phi:g}", top, bottom, _ERROR)]


def _all(figure: str, series: str, measure: str) -> Measure:
    return lambda rows: [row.value for phi in PHIS for row in rows.pick(f"{figure} phi={phi:g}", series, measure)]


def _at(figure: str, series: str, measure: str, x: float) -> Measure:
    return lambda rows: [value for at, value in rows.curve(figure, series, measure).items() if at == x]


def _against_phi(measure: str, figure: str = "5(b)") -> Measure:
    """A count at the largest n that every φ has, in order of φ."""

    def measured(rows: Rows) -> list[float]:
        curves = [rows.curve(figure, f"phi={phi:g}", measure) for phi in PHIS]
        common = set.intersection(*(set(curve) for curve in curves)) if curves else set()
        return [curve[max(common)] for curve in curves] if common else []

    return measured


def _against_n(measure: str, phi: float) -> Measure:
    return lambda rows: list(rows.curve("5(b)", f"phi={phi:g}", measure).values())


def _shares(rows: Rows) -> list[float]:
    """Share of the time in products and their sums at the largest n, at least 512, for every φ."""
    curves = [rows.curve(f"3 phi={phi:g}", _PAPER, "share of products and sums") for phi in PHIS]
    return [curve[max(curve)] for curve in curves if curve and max(curve) >= 512]


def _over(figure: str, one: str, other: str, measure: str) -> Measure:
    return lambda rows: [r for phi in PHIS for r in rows.ratios(f"{figure} phi={phi:g}", one, other, measure)]


def _units(name: str, other: str, figure: str = "§6", k: float = 0) -> Measure:
    """Slices of one unit over another's, at one k or at all."""

    def measure(rows: Rows) -> list[float]:
        above, below = (rows.curve(figure, unit, "slices") for unit in (name, other))
        return [above[x] / below[x] for x in above if x in below and k in (0, x)]

    return measure


def _gemms(name: str) -> Measure:
    """Products in fast mode at k = 7168."""
    return _at("§6", name, "products", 7168)


_BETTER = (
    "what is left out lies below the criterion by a slice's bits, and sums of slices are shorter than DGEMM's: where "
    "DGEMM cancels most, its error is the larger; prismm adds exactly on top of that"
)
_RANGES = {0.1: (9.8e-10, 0.89), 1.0: (1.4e-9, 160.0)}

CLAIMS = (
    *(
        Claim(
            "§5",
            f"{what} magnitude of 10240 x 10240 inputs, phi={phi:g}",
            f"{value:g}",
            within(factor, value),
            _at("§5", "inputs", f"{what} magnitude", phi),
            note=note,
        )
        for phi, (low, high) in _RANGES.items()
        for what, value, factor, note in (
            ("smallest", low, 30.0, "the smallest of 1e8 draws varies by such factors from draw to draw"),
            ("largest", high, 3.0, ""),
        )
    ),
    Claim(
        "Fig. 3",
        "DGEMM-TC-DP, FP64 sums, over DGEMM",
        "equivalent, some differences",
        within(10, 1.0),
        _ratios("3", "DGEMM-TC-DP, FP64 sums", "DGEMM"),
        "words",
        _BETTER,
    ),
    Claim(
        "Fig. 3",
        "prismm Slices DP, the paper's slices, over DGEMM",
        "equivalent",
        at_most(2.0),
        _ratios("3", _PAPER, "DGEMM"),
        "words",
        _BETTER,
    ),
    Claim(
        "§5",
        "CR mode: entries that are not correctly rounded",
        "0",
        equals(0.0),
        _all("3", "DGEMM-TC-CR", "wrong entries"),
    ),
    Claim(
        "§5",
        "CR mode: entries that prismm had to repair",
        "none",
        equals(0.0),
        _all("3", "DGEMM-TC-CR", "repaired entries"),
        "words",
        "so that the zero above is the scheme's own",
    ),
    Claim(
        "Fig. 8",
        "SGEMM-TC-SP, FP32 sums, over SGEMM",
        "equivalent",
        within(10, 1.0),
        _ratios("8", "SGEMM-TC-SP, FP32 sums", "SGEMM"),
        "words",
        _BETTER,
    ),
    Claim(
        "Fig. 8",
        "prismm Slices SP, the paper's slices, over SGEMM",
        "equivalent",
        at_most(2.0),
        _ratios("8", "prismm Slices SP, the paper's slices", "SGEMM"),
        "words",
        _BETTER,
    ),
    Claim(
        "Fig. 5(b), §5",
        "GEMMs at n=7168, phi=0.1 (Algorithm 3)",
        "66",
        equals(66),
        _at("5(b)", "phi=0.1", "products", 7168),
        note="counted from Algorithms 1 and 3 alone, whose listings the text lost: reconstructed",
    ),
    Claim(
        "Fig. 5(b)",
        "slices at n=7168, phi=0.1",
        "11 (66 = 11·12/2)",
        equals(11),
        _at("5(b)", "phi=0.1", "slices", 7168),
        "equation",
    ),
    Claim("Fig. 5(b)", "slices against phi", "depends on the range", rises(), _against_phi("slices"), "words"),
    Claim(
        "Fig. 5(b), §3.2",
        "slices against n, phi=1",
        "depends on the inner dimension",
        rises(),
        _against_n("slices", 1.0),
        "words",
    ),
    Claim(
        "Fig. 9",
        "SGEMM-TC-SP slices over DP slices",
        "decreased",
        at_most(0.75),
        lambda rows: [r for phi in PHIS for r in _series_ratio(rows, phi)],
        "words",
    ),
    Claim(
        "Fig. 5(b)",
        "slices at n=7168, phi=0.1, prismm with the paper's slices",
        "11",
        equals(11),
        _at("5(b)", "prismm, phi=0.1", "slices", 7168),
        "equation",
    ),
    Claim(
        "Fig. 5(a)",
        "share of products and sums in the time, largest n",
        "about 70 %, dominates",
        at_least(0.5),
        _shares,
        "text",
        "of split, products with sums, and rounding on this CPU; on the GPU, of products alone",
    ),
    Claim(
        "Fig. 7, §5",
        "products in CR mode over DP mode, the paper's slices",
        "increased, fast mode disabled",
        at_least(1.0),
        _over("3", "DGEMM-TC-CR", _PAPER, "products"),
        "words",
    ),
    Claim(
        "Table 1",
        "products of DGEMM-DP-CR over DGEMM-TC-CR",
        "FP64 units instead of FP16",
        at_most(0.5),
        _over("3", "DGEMM-DP-CR", "DGEMM-TC-CR", "products"),
        "words",
    ),
    Claim(
        "Table 1",
        "DGEMM-DP-CR: entries that are not correctly rounded",
        "0",
        equals(0.0),
        _all("3", "DGEMM-DP-CR", "wrong entries"),
        "words",
    ),
    Claim(
        "§6",
        "slices: FP16 sums over FP32 sums, k blocked",
        "would increase",
        at_least(1.01),
        _units("fp16-fp16", "fp16", "§6 blocked"),
        "words",
    ),
    Claim(
        "§6",
        "slices: BF16 over FP16, k=16",
        "worsened: fewer significand bits",
        at_least(1.01),
        _units("bf16", "fp16", k=16),
        "words",
        "from 256 terms on the FP32 sums are the limit, not BF16",
    ),
    Claim(
        "§6",
        "slices: FP32 with FP64 sums over FP16 with FP32 sums",
        "can substitute full FP64 FPUs",
        at_most(0.6),
        _units("fp32-fp64", "fp16", k=7168),
        "words",
    ),
    Claim(
        "§6",
        "slices: INT8 over FP16, k=7168",
        "fewer, for the same bit length",
        at_most(0.99),
        _units("int8", "fp16", k=7168),
        "words",
        "INT8 has half FP16's length",
    ),
    Claim("§6", "GEMMs for float64 at k=7168: FP32 units with FP64 sums", "open", None, _gemms("fp32-fp64"), "words"),
    Claim(
        "§6",
        "GEMMs for float64 at k=7168: FP16 units with FP32 sums",
        "open",
        None,
        _gemms("fp16"),
        "words",
        "45, not 66: prismm's slices are rounded to nearest, one bit more each than those of Algorithm 1",
    ),
    Claim("§6", "GEMMs for float64 at k=7168: INT8 units", "open", None, _gemms("int8"), "words"),
    Claim("Fig. 4", "DGEMM-TC-DP at n=7168; cublasDgemm", "980; 539 GFlops", None, device=_TITAN),
    Claim("Fig. 5(c)", "cublasGemmEx", "92 TFlops", None, device=_TITAN),
    Claim("Fig. 6", "DGEMM-TC-CR performance", "lower than DP", None, device=_TITAN),
    Claim("Fig. 9", "SGEMM-TC-SP performance", "below cublasSgemm, above DGEMM-TC", None, device=_TITAN),
    Claim("Table 1", "performance at 10240", "TC loses to cublasDgemm on V100", None, device=_V100),
)


def _series_ratio(rows: Rows, phi: float) -> list[float]:
    single, double = (rows.curve(figure, f"phi={phi:g}", "slices") for figure in ("9", "5(b)"))
    return [value / double[n] for n, value in single.items() if n in double]
