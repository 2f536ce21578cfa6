"""DGEMM from FP16 slices (Mukunoki et al. 2020): the Ozaki scheme in DP, SP and CR mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.reproduce.dgemm_tc_claims import CLAIMS, PHIS
from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.plot import Panel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
        from prismm.reproduce.reference import max_relative

        a, b = draw(rng, n, n, phi), draw(rng, n, n, phi)
        rows = []

        def judge(figure: str, name: str, c: NDArray[Any], correct: NDArray[Any]) -> None:
            rows.append(Row(f"{figure} phi={phi:g}", name, "max relative error", max_relative(c, correct), "n", n))

        correct = prismm.matmul(a, b, accuracy="correctly-rounded")
        for name, c, report in (
            ("DGEMM", a @ b, None),
            *(
                (f"DGEMM-TC-{mode}", *prismm.matmul(a, b, scheme=prismm.Slices(mode=mode), full_output=True))
                for mode in ("DP", "CR")
            ),
        ):
            judge("3", name, c, correct)
            if report is not None:
                rows += _counts(f"3 phi={phi:g}", name, report, n)
            if name.endswith("CR"):
                wrong = float(np.count_nonzero(c != correct))
                rows.append(Row(f"3 phi={phi:g}", name, "wrong entries", wrong, "n", n))
        a32, b32 = a.astype(np.float32), b.astype(np.float32)
        correct32 = prismm.matmul(a32, b32, accuracy="correctly-rounded")
        judge("8", "SGEMM", a32 @ b32, correct32)
        judge("8", "SGEMM-TC-SP", prismm.matmul(a32, b32, scheme=prismm.Slices(mode="SP")), correct32)
        return rows

    return Point(f"figs3,8 phi={phi:g} n={n}", run)


def _counts(figure: str, name: str, report: Any, n: int) -> list[Row]:
    """Products and the shares of the time of one run."""
    rows = [Row(figure, name, "products", float(report.products), "n", n)]
    phases = {phase: seconds for phase, seconds in report.timings.items() if phase in ("split", "multiply", "join")}
    total = sum(phases.values())
    if total:
        rows += [Row(figure, name, f"share of {p}", s / total, "n", n) for p, s in phases.items()]
    return rows


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
            d, fast = slices_needed(_as(panels, u), sums, paper_bits(n), u)
            rows.append(Row(figure, f"phi={phi:g}", "slices", d, "n", n))
            rows.append(Row(figure, f"phi={phi:g}", "products", products_for(d, fast), "n", n))
        return rows

    return Point(f"slices n={n} phi={phi:g} rows={rows_drawn}", run)


def _as(panels: list[NDArray[np.float64]], unit_roundoff: float) -> list[NDArray[np.float64]]:
    """The operand that a product in this precision gets: rounded to float32 for SGEMM."""
    import numpy as np

    return panels if unit_roundoff < 2.0**-30 else [panel.astype(np.float32).astype(np.float64) for panel in panels]


def _units(phi: float, rows_drawn: int) -> Point:
    """Slices and products for float64 by unit (§6), of inner dimension 256, and 16 where formats differ."""

    def run(rng: np.random.Generator) -> list[Row]:
        from prismm.reproduce.algorithm3 import magnitude_sums, products_for, slices_needed
        from prismm.schemes.units import UNITS, slice_bits

        rows = []
        for k, names in ((256, tuple(UNITS)), (16, ("fp16", "bf16"))):
            sums = magnitude_sums([draw(rng, k, 1024, phi)])
            panel = draw(rng, rows_drawn, k, phi)
            for name in names:
                # The paper's rule: digits up to 2^β, k·2^2β <= T, which a truncating split has too.
                bits = slice_bits(UNITS[name], k, "toward-zero")
                d, fast = slices_needed([panel], sums, bits, 2.0**-53)
                series = name if k == 256 else f"{name}, k={k}"
                for measure, value in (("bits", bits), ("slices", d), ("products", products_for(d, fast))):
                    rows.append(Row(f"§6 phi={phi:g}", series, measure, value, "k", 256))
        return rows

    return Point(f"units phi={phi:g} rows={rows_drawn}", run)


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
    points += [_units(phi, drawn) for phi in PHIS]
    return points + ([] if size == "quick" else [_range(phi, 10240) for phi in PHIS])


EXPERIMENT = Experiment(
    name="dgemm-tc",
    version=1,
    setup=(
        "Inputs: (rand - 0.5)·exp(φ·randn), square. Error: largest relative error of an entry against the correctly "
        "rounded product.\nCR: prismm's Slices until nothing is left over, compared bit for bit with prismm's own "
        "correctly rounded product.\nCounts of slices come from Algorithms 1 and 3 alone, at the paper's sizes; speeds "
        "in GFlops are its GPUs'."
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
    ),
)
