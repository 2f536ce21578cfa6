"""DGEMM from FP16 slices (Mukunoki et al. 2020): the Ozaki scheme in DP, SP and CR mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from prismm.reproduce.dgemm_tc_claims import CLAIMS, PHIS
from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.plot import Panel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.schemes.slices import Slices

_PANEL = 256


def draw(rng: np.random.Generator, m: int, n: int, phi: float) -> NDArray[np.float64]:
    """(rand − 0.5)·exp(φ·randn), §5."""
    import numpy as np

    result: NDArray[np.float64] = (rng.random((m, n)) - 0.5) * np.exp(phi * rng.standard_normal((m, n)))
    return result


def _accuracy(n: int, phi: float) -> Point:
    """Largest relative error against the correctly rounded product (Figs. 3 and 8), and CR's wrong entries."""

    def run(rng: np.random.Generator) -> list[Row]:
        import numpy as np

        import prismm
        from prismm.reproduce.algorithm3 import paper_bits, sum_of_slices
        from prismm.reproduce.reference import max_relative

        a, b = draw(rng, n, n, phi), draw(rng, n, n, phi)
        rows = []

        def judge(figure: str, name: str, c: NDArray[Any], correct: NDArray[Any]) -> None:
            rows.append(Row(f"{figure} phi={phi:g}", name, "max relative error", max_relative(c, correct), "n", n))

        def schemes(mode: Literal["DP", "SP"]) -> dict[str, prismm.Slices]:
            return {
                f"prismm Slices {mode}, the paper's slices": _as_published(n, mode),
                f"prismm Slices {mode}": prismm.Slices("fp16", mode),
            }

        correct = prismm.matmul(a, b, accuracy="correctly-rounded")
        judge("3", "DGEMM", a @ b, correct)
        judge("3", "DGEMM-TC-DP, FP64 sums", sum_of_slices(a, b, paper_bits(n), 2.0**-53), correct)
        exact = {"DGEMM-TC-CR": prismm.Slices("fp16", "CR"), "DGEMM-DP-CR": prismm.Slices("fp64", "CR")}
        for name, scheme in (schemes("DP") | exact).items():
            c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
            judge("3", name, c, correct)
            rows.extend(_counts(f"3 phi={phi:g}", name, report, n))
            if name in exact:
                wrong = float(np.count_nonzero(c != correct))
                rows.append(Row(f"3 phi={phi:g}", name, "wrong entries", wrong, "n", n))
                rows.append(Row(f"3 phi={phi:g}", name, "repaired entries", report.repaired, "n", n))
        a32, b32 = a.astype(np.float32), b.astype(np.float32)
        correct = prismm.matmul(a32, b32, accuracy="correctly-rounded")
        judge("8", "SGEMM", a32 @ b32, correct)
        published = sum_of_slices(a32.astype(np.float64), b32.astype(np.float64), paper_bits(n), 2.0**-24)
        judge("8", "SGEMM-TC-SP, FP32 sums", published.astype(np.float32), correct)
        for name, scheme in schemes("SP").items():
            judge("8", name, prismm.matmul(a32, b32, scheme=scheme), correct)
        return rows

    return Point(f"figs3,8 phi={phi:g} n={n}", run)


def _as_published(k: int, mode: Literal["DP", "SP"]) -> Slices:
    """`Slices` as published: one block of k, exponents from the current maximum, β of Algorithm 1, fast mode.

    Algorithm 1 adds and subtracts a power of two whose unit is 2^(τ-β) below and 2^(τ-β+1) above it: slices toward
    zero with digits of β bits are the nearest that `Slices` has.
    """
    import prismm
    from prismm.reproduce.algorithm3 import paper_bits

    return prismm.Slices(
        "fp16", mode, exponents="adaptive", rounding="toward-zero", fast=True, k_block=k, bits=paper_bits(k)
    )


def _counts(figure: str, name: str, report: Any, n: int) -> list[Row]:
    """Products and the shares of the time of one run."""
    phases = {"split": "split", "multiply": "products and sums", "join and certify": "rounding"}
    seconds = {name: report.timings.get(phase, 0.0) for phase, name in phases.items()}
    total = sum(seconds.values())
    rows = [Row(figure, name, f"share of {phase}", value / total, "n", n) for phase, value in seconds.items() if total]
    return [Row(figure, name, "products", report.products, "n", n), *rows]


def _slices(n: int, phi: float, rows_drawn: int) -> Point:
    """Slices and products by Algorithms 1 and 3 (Figs. 5(b) and 9), without the product.

    Of A at most `rows_drawn` rows: the largest over its rows is then a lower estimate.
    """

    def run(rng: np.random.Generator) -> list[Row]:
        from prismm.reproduce.algorithm3 import magnitude_sums, paper_bits, products_for, slices_needed

        sums = magnitude_sums(draw(rng, min(_PANEL, n - start), n, phi) for start in range(0, n, _PANEL))
        panels = [draw(rng, min(_PANEL, rows_drawn - start), n, phi) for start in range(0, rows_drawn, _PANEL)]
        rows = []
        for figure, u in (("5(b)", 2.0**-53), ("9", 2.0**-24)):
            operand = _as(panels, u)
            d, fast = slices_needed(operand, sums, paper_bits(n), u)
            rows.append(Row(figure, f"phi={phi:g}", "slices", d, "n", n))
            rows.append(Row(figure, f"phi={phi:g}", "products", products_for(d, fast), "n", n))
            rows.append(Row(figure, f"prismm, phi={phi:g}", "slices", _slices_of_ours(operand, sums, u), "n", n))
        return rows

    return Point(f"slices n={n} phi={phi:g} rows={rows_drawn}", run)


def _as(panels: list[NDArray[np.float64]], unit_roundoff: float) -> list[NDArray[np.float64]]:
    """The operand that a product in this precision gets: rounded to float32 for SGEMM."""
    import numpy as np

    return panels if unit_roundoff < 2.0**-30 else [panel.astype(np.float32).astype(np.float64) for panel in panels]


def _slices_of_ours(panels: list[NDArray[np.float64]], sums: NDArray[np.float64], unit_roundoff: float) -> float:
    """Algorithm 3 as `Slices` has it, with the paper's slices, on the rows of A."""
    import numpy as np

    from prismm.core.composite import Scaled
    from prismm.cpu.slices.count import estimate
    from prismm.cpu.slices.split import cut

    most, k = 0, sums.size
    layout = _as_published(k, "DP").layout(k)
    for panel in panels:
        exponent = np.frexp(np.abs(panel).max(axis=1))[1].astype(np.int64)
        data = np.ldexp(panel, -exponent[:, None])
        scaled = Scaled("left", data, exponent, np.zeros(len(panel), np.bool_))
        told = estimate(cut(scaled, layout, 20, 1, keep=True), sums, unit_roundoff)
        most = max(most, told.slices or 99)
    return float(most)


def _units(rng: np.random.Generator) -> list[Row]:
    """Slices and products for float64 on each unit (§6), blocked along k and not, for even data."""
    from prismm.cpu.slices.count import slices_table

    rows = []
    for figure, block in (("§6", False), ("§6 blocked", True)):
        for k in (16, 256, 1024, 7168):
            for found in slices_table(k, 53, block=block):
                if found["slices"]:
                    rows.append(Row(figure, found["unit"], "slices", found["slices"], "k", k))
                    rows.append(Row(figure, found["unit"], "products", found["fast"], "k", k))
    return rows


def _range(phi: float, n: int) -> Point:
    """Smallest and largest magnitude of an n x n input (§5)."""

    def run(rng: np.random.Generator) -> list[Row]:
        import numpy as np

        low, high = np.inf, 0.0
        for start in range(0, n, 512):
            block = np.abs(draw(rng, min(512, n - start), n, phi))
            low, high = min(low, float(block.min())), max(high, float(block.max()))
        return [
            Row("§5", "inputs", "smallest magnitude", low, "phi", phi),
            Row("§5", "inputs", "largest magnitude", high, "phi", phi),
        ]

    return Point(f"range phi={phi:g} n={n}", run)


def _points(size: Size) -> list[Point]:
    orders = {"quick": (64, 128), "default": (128, 256, 512, 1024), "full": (128, 256, 512, 1024, 2048, 4096)}[size]
    counted = (1024, 2048) if size == "quick" else (1024, 2048, 4096, 7168, 10240)
    drawn = {"quick": 64, "default": 512, "full": 10240}[size]
    points = [_accuracy(n, phi) for phi in PHIS for n in orders]
    # The published count is of the whole matrix; a few rows find it too, but do not prove it.
    points += [_slices(n, phi, min(n, drawn)) for phi in PHIS for n in counted if (n, phi) != (7168, 0.1)]
    points += [_slices(7168, 0.1, 64 if size == "quick" else 7168)]
    points += [Point("units", _units)]
    return points + ([] if size == "quick" else [_range(phi, 10240) for phi in PHIS])


EXPERIMENT = Experiment(
    name="dgemm-tc",
    version=1,
    setup=(
        "Inputs: (rand - 0.5)·exp(φ·randn), square. Error: largest relative error of an entry against the\n"
        "correctly rounded product. 'FP64 sums' and 'FP32 sums': the paper's algorithm written out; prismm\n"
        "adds the products of slices exactly. CR: Slices until nothing is left over, compared bit for bit\n"
        "with prismm's correctly rounded product. Counts of slices come from Algorithms 1 and 3 alone, at the\n"
        "paper's sizes."
    ),
    points=_points,
    claims=CLAIMS,
    panels=(
        *(
            Panel(
                f"Fig. {figure}: {what}, φ = {phi:g}",
                f"{figure} phi={phi:g}",
                "max relative error",
                "n",
                "max relative error",
            )
            for figure, what in (("3", "DP mode"), ("8", "SP mode"))
            for phi in PHIS
        ),
        Panel(
            "Fig. 5(b): slices, DP mode",
            "5(b)",
            "slices",
            "n",
            "slices",
            logy=False,
            published=(("published, φ = 0.1", ((7168.0, 11.0),)),),
        ),
        Panel(
            "Fig. 5(b): GEMMs, DP mode",
            "5(b)",
            "products",
            "n",
            "GEMMs",
            logy=False,
            published=(("published, φ = 0.1", ((7168.0, 66.0),)),),
        ),
        Panel("§6: GEMMs by unit, k not blocked", "§6", "products", "k", "GEMMs, fast mode"),
    ),
)
