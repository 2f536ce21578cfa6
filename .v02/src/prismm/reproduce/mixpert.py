"""MixPert (Lin et al. 2024): float32 on INT8 with one exponent a tile, beside the schemes it is compared with."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.mixpert_claims import CLAIMS
from prismm.reproduce.plot import Panel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = ("uniform", "normal")
LEVELS = {"I": 1, "II": 2, "III": 3, "IV": 4}
_A100 = "simulated:ampere"


def _scalar(rng: np.random.Generator) -> list[Row]:
    """Eq. 6 by enumeration, and products of single numbers as TileInt8 makes them, which rounds at bit 20."""
    import numpy as np

    from prismm.reproduce.tile_model import expected_error, sampled_errors, scalar_product, worst_error

    x, y = ((1 + rng.random(1 << 20)).astype(np.float32).astype(np.float64) for _ in range(2))
    ours = np.abs(scalar_product(x, y) - x * y) / (x * y)  # products of float32 values are exact
    sampled = sampled_errors(1 << 20, rng)
    return [
        Row("§3.2.3", name, measure, float(value))
        for name, mean, largest in (
            ("Eq. 6", expected_error(), worst_error()),
            ("Eq. 6, sampled", np.mean(sampled), np.max(sampled)),
            ("prismm TileInt8 IV", np.mean(ours), np.max(ours)),
        )
        for measure, value in (("mean relative error", mean), ("largest relative error", largest))
    ]


def _operands(
    rng: np.random.Generator, kind: str, m: int, k: int, n: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    import numpy as np

    draw = rng.random if kind == "uniform" else rng.standard_normal
    return draw((m, k)).astype(np.float32), draw((k, n)).astype(np.float32)


def _gemm(kind: str, m: int, k: int, n: int, simulated: bool) -> Point:
    """E_γ (Eq. 10) of every method against DGEMM of the float32 data, whose own error is below k·2^-53."""

    def run(rng: np.random.Generator) -> list[Row]:
        import numpy as np

        import prismm
        from prismm.formats import BF16, TF32
        from prismm.reproduce.reference import relative_frobenius
        from prismm.schemes.baselines import QuanTensor

        a, b = _operands(rng, kind, m, k, n)
        truth = a.astype(np.float64) @ b.astype(np.float64)
        methods: dict[str, tuple[Any, str | None]] = {
            f"MixPert {name}": (prismm.TileInt8(level=level), None) for name, level in LEVELS.items()
        }
        methods |= {
            "CUTLASS 3xTF32": (prismm.Words(TF32, words=2, products=3, chunk=k), None),
            "APE, 3 BF16 words": (prismm.Words(BF16, words=3, products=6, chunk=k), None),
            "2 BF16 words": (prismm.Words(BF16, words=2, products=3, chunk=k), None),
            "QuanTensor, 1 product": (QuanTensor(words=1), None),
            "QuanTensor, 4 products": (QuanTensor(words=2), None),
            "QuanTensor, 9 products": (QuanTensor(words=3), None),
        }
        if simulated:
            methods["CUTLASS 3xTF32, A100"] = (prismm.Words(TF32, words=2, products=3, chunk=k), _A100)
            methods["CUTLASS 3xTF32, A100, staged"] = (prismm.Words(TF32, words=2, products=3, chunk=32), _A100)
            methods["APE, 3 BF16 words, A100"] = (prismm.Words(BF16, words=3, products=6, chunk=k), _A100)
        results = {"FP32": a @ b, "FP32, one after the other": _chain(a, b)}
        results |= {name: prismm.matmul(a, b, scheme=s, engine=e) for name, (s, e) in methods.items()}
        return [
            Row(f"9 {kind}", name, "E", relative_frobenius(c.astype(np.float64) - truth, truth), "k", k)
            for name, c in results.items()
        ]

    return Point(f"gemm {kind} {m}x{k}x{n}" + (" simulated" if simulated else ""), run)


def _chain(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums in float32 one product after the other, as a GPU thread adds them; products rounded, as without FMA."""
    import numpy as np

    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for h in range(a.shape[1]):
        total += a[:, h, None] * b[h]
    return total


def _fallback(spread: float, n: int) -> Point:
    """Tile pairs that fall back for wide data (§3.3.3), and the error that is left."""

    def run(rng: np.random.Generator) -> list[Row]:
        import numpy as np

        import prismm
        from prismm.reproduce.reference import relative_frobenius

        a, b = (
            (rng.standard_normal((n, n)) * np.exp2(rng.uniform(-spread, spread, (n, n)))).astype(np.float32)
            for _ in "ab"
        )
        truth = a.astype(np.float64) @ b.astype(np.float64)
        rows = []
        for name, scheme in (("with fallback", prismm.TileInt8(level=4)), ("FP32", None)):
            if scheme is None:
                c = a @ b
            else:
                c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
                tiles = report.notes.get("fallback tiles", 0)
                total = prod(-(-n // size) for size in scheme.tile)
                rows.append(
                    Row("§3.3.3", name, "share of tile pairs that fall back", tiles / total, "binades", 2 * spread)
                )
            error = relative_frobenius(c.astype(np.float64) - truth, truth)
            rows.append(Row("§3.3.3", name, "E", error, "binades", 2 * spread))
        return rows

    return Point(f"fallback spread={spread} n={n}", run)


def _points(size: Size) -> list[Point]:
    depths = {
        "quick": (256, 1024),
        "default": (256, 1024, 4096, 8192, 16384, 24576),
        "full": (256, 512, 1024, 2048, 4096, 8192, 12288, 16384, 20480, 24576),
    }[size]
    order = {"quick": 32, "default": 64, "full": 256}[size]
    spreads = {"quick": (0, 12), "default": (0, 2, 4, 8, 12), "full": (0, 1, 2, 3, 4, 6, 8, 10, 12)}[size]
    points = [Point("scalar", _scalar)]
    points += [_gemm(kind, order, k, order, simulated=True) for kind in KINDS for k in depths]
    return points + [_fallback(spread, 256 if size != "quick" else 64) for spread in spreads]


EXPERIMENT = Experiment(
    name="mixpert",
    version=1,
    setup=(
        "Inputs: float32, uniform on (0, 1) and standard normal; m = n fixed and k up to the paper's 24576,\n"
        "since E depends on k, hardly on m and n. Error: E of Eq. 10 against DGEMM, whose own error is below\n"
        "k·2^-53 of |a||b|. The paper's means are over GEMM, HPL-AI, MLP and Cholesky on an A100; ours are\n"
        "over these products. 'A100' is the simulated engine, whose sums are cut; the other methods add in\n"
        "float32, rounded to nearest."
    ),
    points=_points,
    claims=CLAIMS,
    panels=(
        *(
            Panel(
                f"Fig. 9, GEMM, {kind} data",
                f"9 {kind}",
                "E",
                "k",
                "mean relative error E",
                levels=((4.46e-7, "MixPert 4.46e-7"), (1.14e-6, "cuBLAS FP32 1.14e-6"), (7.16e-5, "APE 7.16e-5")),
            )
            for kind in KINDS
        ),
        Panel("§3.3.3: wide tiles", "§3.3.3", "E", "binades of spread", "E", logx=False),
        Panel(
            "§3.3.3: tile pairs that fall back",
            "§3.3.3",
            "share of tile pairs that fall back",
            "binades of spread",
            "share",
            logx=False,
            logy=False,
        ),
    ),
)
