"""MixPert (Lin et al. 2024): float32 on INT8 with one exponent a tile, beside the schemes it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.mixpert_claims import CLAIMS
from prismm.reproduce.plot import Panel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = ("uniform", "normal")
LEVELS = ("I", "II", "III", "IV")
A100 = "simulated:ampere"
_CUT = 3  # bits that the packer drops


def _scalar(rng: np.random.Generator) -> list[Row]:
    """Eq. 6 by enumeration. x' and y' are independent and alike, so the mean is 2·2^-33·E[x₀/x']·E[x₃/x'] exactly."""
    import numpy as np

    x0 = np.arange(64, int(np.sqrt(2.0**13) - 1) + 1)[:, None, None, None]
    x1 = x2 = np.arange(128)
    x3 = np.array([0, 16, 32, 48])
    strict = x0 * 2.0**-6 + x1[:, None, None] * 2.0**-13 + x2[:, None] * 2.0**-20 + x3 * 2.0**-27
    mean = 2 * 2.0**-33 * float(np.mean(x0 / strict)) * float(np.mean(x3 / strict))
    # Both factors fall with x₁ and x₂; x₀/x' is largest and x₃/x' as well where they are 0 and x₀ = 64.
    worst = 2 * 2.0**-33 * float(np.max((x0 / strict)[..., -1] * (48 / strict)[..., -1]))
    return [
        Row("§3.2.3", "Eq. 6", "mean relative error", mean),
        Row("§3.2.3", "Eq. 6", "largest relative error", worst),
        *_scalar_of_ours(rng),
    ]


def _scalar_of_ours(rng: np.random.Generator) -> list[Row]:
    """prismm's products of single numbers: significands uniform in [1, 2), rounded to nearest at bit 20."""
    import numpy as np

    import prismm

    x, y = ((1 + rng.random((1, 2000))).astype(np.float32) for _ in range(2))
    scheme = prismm.TileInt8(level="IV")
    exact = x.astype(np.float64).T @ y.astype(np.float64)  # one product an entry: exact, 48 bits
    c = prismm.matmul(np.ascontiguousarray(x.T), y, scheme=scheme, out_dtype=np.float64)
    error = np.abs(c - exact) / exact
    return [
        Row("§3.2.3", "prismm TileInt8 IV", "mean relative error", float(np.mean(error))),
        Row("§3.2.3", "prismm TileInt8 IV", "largest relative error", float(np.max(error))),
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

        a, b = _operands(rng, kind, m, k, n)
        truth = a.astype(np.float64) @ b.astype(np.float64)
        methods: dict[str, tuple[Any, str | None]] = {
            f"MixPert {level}": (prismm.TileInt8(level=level), None) for level in LEVELS
        }
        methods |= {
            "CUTLASS 3xTF32": (prismm.Words(TF32, words=2, products=3), None),
            "APE, 3 BF16 words": (prismm.Words(BF16, words=3, products=6), None),
            "2 BF16 words": (prismm.Words(BF16, words=2, products=3), None),
            "QuanTensor, 1 product": (prismm.QuanTensor(words=1), None),
            "QuanTensor, 9 products": (prismm.QuanTensor(words=3), None),
        }
        if simulated:
            methods["CUTLASS 3xTF32, A100"] = (prismm.Words(TF32, words=2, products=3), A100)
            methods["APE, 3 BF16 words, A100"] = (prismm.Words(BF16, words=3, products=6), A100)
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
        for name, scheme in (("with fallback", prismm.TileInt8(level="IV")), ("FP32", None)):
            if scheme is None:
                c = a @ b
            else:
                c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
                tiles, total = fallback_tiles(report)
                rows.append(
                    Row("§3.3.3", name, "share of tile pairs that fall back", tiles / total, "binades", 2 * spread)
                )
            error = relative_frobenius(c.astype(np.float64) - truth, truth)
            rows.append(Row("§3.3.3", name, "E", error, "binades", 2 * spread))
        return rows

    return Point(f"fallback spread={spread} n={n}", run)


def fallback_tiles(report: Any) -> tuple[int, int]:
    """Tile pairs that fell back, and tile pairs in all."""
    raise NotImplementedError


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
        "Inputs of the products: float32, uniform on (0, 1) and standard normal, m = n fixed and k up to the paper's "
        "24576: E depends on k, hardly on m and n.\nError E: Eq. 10 against DGEMM. The paper's means are over GEMM, "
        "HPL-AI, MLP and Cholesky on an A100; ours over these products only.\n'A100' is the simulated engine, whose sums "
        "are cut; the other methods add in float32 rounded to nearest."
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
