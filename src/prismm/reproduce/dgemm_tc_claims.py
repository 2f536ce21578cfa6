"""What Mukunoki, Ozaki, Ogita and Imamura 2020 published, and how our rows are compared with it."""

from __future__ import annotations

from collections.abc import Callable

from prismm.reproduce.claims import Claim, at_least, at_most, equals, rises, within
from prismm.reproduce.framework import Rows

PHIS = (0.1, 1.0, 2.0)
_ERROR = "max relative error"
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


def _share_of_products(rows: Rows) -> list[float]:
    """Share of the time in products at the largest n, for every φ."""
    curves = [rows.curve(f"3 phi={phi:g}", "DGEMM-TC-DP", "share of products") for phi in PHIS]
    return [curve[max(curve)] for curve in curves if curve]


def _over(figure: str, one: str, other: str, measure: str) -> Measure:
    return lambda rows: [r for phi in PHIS for r in rows.ratios(f"{figure} phi={phi:g}", one, other, measure)]


def _unit(name: str, other: str, measure: str = "slices") -> Measure:
    """A count of one unit over another's, every φ."""
    return lambda rows: [r for phi in PHIS for r in rows.ratios(f"§6 phi={phi:g}", name, other, measure)]


def _counts(name: str, measure: str) -> Measure:
    return lambda rows: [row.value for phi in PHIS for row in rows.pick(f"§6 phi={phi:g}", name, measure)]


_RANGES = {0.1: (9.8e-10, 0.89), 1.0: (1.4e-9, 160.0)}

CLAIMS = (
    *(
        Claim("§5", f"{what} magnitude of 10240 x 10240 inputs, phi={phi:g}", f"{value:g}", within(factor, value),
              _at("§5", "inputs", f"{what} magnitude", phi), note=note)
        for phi, (low, high) in _RANGES.items()
        for what, value, factor, note in (
            ("smallest", low, 30.0, "the smallest of 1e8 draws varies by such factors from draw to draw"),
            ("largest", high, 3.0, ""),
        )
    ),
    Claim("Fig. 3", "DGEMM-TC-DP over DGEMM, max relative error", "equivalent, some differences", within(10, 1.0),
          _ratios("3", "DGEMM-TC-DP", "DGEMM"), "words"),
    Claim("§5", "CR mode: entries that are not correctly rounded", "0", equals(0.0),
          _all("3", "DGEMM-TC-CR", "wrong entries")),
    Claim("Fig. 8", "SGEMM-TC-SP over SGEMM, max relative error", "equivalent", within(10, 1.0),
          _ratios("8", "SGEMM-TC-SP", "SGEMM"), "words"),
    Claim("Fig. 5(b), §5", "GEMMs at n=7168, phi=0.1 (Algorithm 3)", "66", equals(66),
          _at("5(b)", "phi=0.1", "products", 7168),
          note="counted from Algorithms 1 and 3 alone, whose listings the text lost: reconstructed"),
    Claim("Fig. 5(b)", "slices at n=7168, phi=0.1", "11 (66 = 11·12/2)", equals(11),
          _at("5(b)", "phi=0.1", "slices", 7168), "equation"),
    Claim("Fig. 5(b)", "slices against phi", "depends on the range", rises(), _against_phi("slices"), "words"),
    Claim("Fig. 5(b), §3.2", "slices against n, phi=1", "depends on the inner dimension", rises(),
          _against_n("slices", 1.0), "words"),
    Claim("Fig. 9", "SGEMM-TC-SP slices over DP slices", "decreased", at_most(0.75),
          lambda rows: [r for phi in PHIS for r in _series_ratio(rows, phi)], "words"),
    Claim("Fig. 5(a)", "share of products in the time, largest n", "about 70 %, dominates", at_least(0.5),
          _share_of_products, "text", "of split, products and join on this CPU"),
    Claim("Fig. 7, §5", "products in CR mode over DP mode", "increased, fast mode disabled", at_least(1.0),
          _over("3", "DGEMM-TC-CR", "DGEMM-TC-DP", "products"), "words"),
    Claim("Table 1", "products of CR on FP64 slices over CR on FP16 slices", "DGEMM-DP-CR: FP64 instead of FP16",
          at_most(1.0), _over("3", "DGEMM-DP-CR", "DGEMM-TC-CR", "products"), "words"),
    Claim("Table 1", "DGEMM-DP-CR: entries that are not correctly rounded", "0", equals(0.0),
          _all("3", "DGEMM-DP-CR", "wrong entries"), "words"),
    Claim("§6", "slices: FP16 sums over FP32 sums, k=256", "would increase", at_least(1.01),
          _unit("fp16-fp16", "fp16"), "words"),
    Claim("§6", "slices: BF16 over FP16, k=16", "worsened", at_least(1.01), _unit("bf16, k=16", "fp16, k=16"), "words"),
    Claim("§6", "slices: FP32 with FP64 sums over FP16 with FP32 sums", "can substitute full FP64 FPUs", at_most(0.5),
          _unit("fp32-fp64", "fp16"), "words"),
    Claim("§6", "products on FP32 units with FP64 sums", "-", None, _counts("fp32-fp64", "products"), "words"),
    Claim("§6", "products on FP16 units with FP32 sums", "-", None, _counts("fp16", "products"), "words"),
    Claim("§6", "products on INT8 units", "fast integer units are desired", None, _counts("int8", "products"), "words"),
    Claim("Fig. 4", "DGEMM-TC-DP at n=7168; cublasDgemm", "980; 539 GFlops", None, device=_TITAN),
    Claim("Fig. 5(c)", "cublasGemmEx", "92 TFlops", None, device=_TITAN),
    Claim("Fig. 6", "DGEMM-TC-CR performance", "lower than DP", None, device=_TITAN),
    Claim("Fig. 9", "SGEMM-TC-SP performance", "below cublasSgemm, above DGEMM-TC", None, device=_TITAN),
    Claim("Table 1", "performance at 10240", "TC loses to cublasDgemm on V100", None, device=_V100),
)  # fmt: skip


def _series_ratio(rows: Rows, phi: float) -> list[float]:
    single, double = (rows.curve(figure, f"phi={phi:g}", "slices") for figure in ("9", "5(b)"))
    return [value / double[n] for n, value in single.items() if n in double]
