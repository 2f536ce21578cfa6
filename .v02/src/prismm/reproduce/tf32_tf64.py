"""TF32 and TF64 (Valero-Lara et al. 2023): SGEMM and DGEMM from words half as long, and what fewer bits would give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.plot import Panel
from prismm.reproduce.tf32_tf64_claims import CLAIMS, FORMAT_KINDS, KINDS, series

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXPONENT_BITS = (5, 6, 8, 11)
FRACTION_BITS = (7, 9, 10, 11, 13, 15, 17, 19, 21, 22, 23, 24, 25)
_A100, _A100_FP16 = "simulated:ampere", "simulated:ampere-fp16"


def _rows(
    figure: str, results: dict[str, Any], a: NDArray[Any], b: NDArray[Any], high: Any, low: Any, n: int
) -> list[Row]:
    """‖C − Ĉ‖_p / (‖A‖_p ‖B‖_p), p = 1, 2, ∞ (§3.1), of every result."""
    from prismm.reproduce.reference import error_of, norms

    sizes = {p: x * y for (p, x), y in zip(norms(a).items(), norms(b).values(), strict=True)}
    rows = []
    for name, c in results.items():
        for p, error in norms(error_of(c, high, low)).items():
            rows.append(Row(figure, name, f"{p} error", error / sizes[p], "n", n))
    return rows


def _difference(
    figure: str, name: str, c: NDArray[Any], d: NDArray[Any], a: NDArray[Any], b: NDArray[Any], n: int
) -> list[Row]:
    """The same measure of |c − d|, which the paper draws at the right of its graphs."""
    import numpy as np

    return _rows(figure, {name: c}, a, b, np.asarray(d, np.float64), None, n)


def _draw(rng: np.random.Generator, kind: str, n: int) -> NDArray[np.float64]:
    import numpy as np

    if kind == "wide":
        result: NDArray[np.float64] = (rng.random((n, n)) - 0.5) * np.exp(2.0 * rng.standard_normal((n, n)))
        return result
    return rng.random((n, n)) if kind == "uniform" else rng.standard_normal((n, n))


def _figure_4(kind: str, n: int, simulated: bool) -> Point:
    figure = f"4 {kind}"

    def run(rng: np.random.Generator) -> list[Row]:
        import numpy as np

        import prismm
        from prismm.formats import FP16

        a, b = (_draw(rng, kind, n).astype(np.float32) for _ in range(2))
        a64, b64 = a.astype(np.float64), b.astype(np.float64)

        results = {
            name: prismm.matmul(a, b, scheme=scheme)
            for name, scheme in (
                ("1xFP16", prismm.Words.fp16(products=1, chunk=n)),
                ("1xTF32", prismm.Words.tf32(products=1, chunk=n)),
                ("3xTF32", prismm.Words.tf32(products=3, chunk=n)),
                ("4xTF32", prismm.Words.tf32(products=4, chunk=n)),
                ("3xTF32, in chunks", prismm.Words.tf32(products=3)),
            )
        }
        results["SGEMM"] = a @ b
        results["1xFP16, FP16 output"] = results["1xFP16"].astype(np.float16)
        if simulated:
            for name, scheme, engine in (
                ("1xFP16, FP16 sums", prismm.Words.fp16(products=1, accumulate=FP16, chunk=n), "simulated:fp16"),
                ("1xFP16, FP16 sums, A100", prismm.Words.fp16(products=1, accumulate=FP16, chunk=n), _A100_FP16),
                ("1xTF32, A100", prismm.Words.tf32(products=1, chunk=n), _A100),
                ("3xTF32, A100", prismm.Words.tf32(products=3, chunk=n), _A100),
                ("3xTF32, A100, chunks of 32", prismm.Words.tf32(products=3, chunk=32), _A100),
            ):
                results[name] = prismm.matmul(a, b, scheme=scheme, engine=engine)
        # DGEMM of float32 data: within n·2^-53 of |A||B|, five orders below what is judged.
        rows = _rows(figure, results, a64, b64, a64 @ b64, None, n)
        return rows + _difference(figure, "|SGEMM - 3xTF32|", results["3xTF32"], results["SGEMM"], a64, b64, n)

    return Point(f"fig4 {kind} n={n}" + (" simulated" if simulated else ""), run)


def _figure_5(kind: str, n: int) -> Point:
    figure = f"5 {kind}"

    def run(rng: np.random.Generator) -> list[Row]:
        import numpy as np

        import prismm
        from prismm.reproduce.reference import twofold

        a, b = _draw(rng, kind, n), _draw(rng, kind, n)
        cases: dict[str, dict[str, Any]] = {
            "": {"chunk": n},
            ", in chunks": {},
            ", words cut": {"chunk": n, "rounding": "toward-zero"},
        }
        results: dict[str, Any] = {
            f"{products}xTF64{suffix}": prismm.matmul(a, b, scheme=prismm.Words.tf64(products=products, **options))
            for suffix, options in cases.items()
            for products in (1, 3, 4)
        }
        results["DGEMM"] = a @ b
        results["SGEMM"] = a.astype(np.float32) @ b.astype(np.float32)
        rows = _rows(figure, results, a, b, *twofold(a, b), n)
        return rows + _difference(figure, "|DGEMM - 3xTF64|", results["3xTF64"], results["DGEMM"], a, b, n)

    return Point(f"fig5 {kind} n={n}", run)


def _formats(kind: str, n: int, words: int, products: int, exponent_bits: int) -> Point:
    """Error of TF64 with lower formats against fraction bits: the open question of §5."""
    name = series(words, products, exponent_bits)

    def run(rng: np.random.Generator) -> list[Row]:
        import prismm
        from prismm.formats import FP64, Format
        from prismm.reproduce.reference import error_of, norms, twofold

        a, b = _draw(rng, kind, n), _draw(rng, kind, n)
        high, low = twofold(a, b)
        size = norms(a)["l2"] * norms(b)["l2"]

        def row(series: str, c: NDArray[Any], bits: int) -> Row:
            error = norms(error_of(c, high, low))["l2"] / size
            return Row(f"formats {kind}", series, "l2 error", error, "fraction bits", bits)

        rows = [row(f"{name}: DGEMM", a @ b, 52)]
        for bits in FRACTION_BITS:
            fmt = Format(exponent_bits=exponent_bits, fraction_bits=bits)
            scheme = prismm.Words(fmt, words=words, products=products, accumulate=FP64)
            rows.append(row(name, prismm.matmul(a, b, scheme=scheme), bits))
        return rows

    return Point(f"formats {kind} {name} n={n}", run)


def _points(size: Size) -> list[Point]:
    singles = {"quick": (32, 128), "default": (32, 64, 128, 256, 512, 1024), "full": tuple(32 << i for i in range(8))}
    simulated = {"quick": 64, "default": 512, "full": 1024}[size]
    doubles = {"quick": (32, 64), "default": (32, 64, 128, 256, 512, 1024), "full": tuple(32 << i for i in range(8))}
    order = {"quick": 32, "default": 256, "full": 1024}[size]
    points = [_figure_4(kind, n, simulated=n <= simulated) for kind in KINDS for n in singles[size]]
    points += [_figure_5(kind, n) for kind in KINDS for n in doubles[size]]
    counts = ((2, 3), (2, 4), (3, 6))
    return points + [_formats(kind, order, w, p, e) for kind in FORMAT_KINDS for w, p in counts for e in EXPONENT_BITS]


def _error_panels() -> tuple[Panel, ...]:
    return tuple(
        Panel(
            f"Fig. {figure}: {what}, {kind} data, {p}",
            f"{figure} {kind}",
            f"{p} error",
            "n",
            "error",
            band=(1e-6, 1e-5, "published, 1xTF32") if figure == "4" else None,
        )
        for figure, what in (("4", "TF32"), ("5", "TF64"))
        for kind, p in (("uniform", "l1"), ("uniform", "l2"), ("uniform", "linf"), ("normal", "l2"), ("normal", "linf"))
    )


EXPERIMENT = Experiment(
    name="tf32-tf64",
    version=1,
    setup=(
        "Inputs: square, uniform on (0, 1) and standard normal (the paper says random); wide: (rand -\n"
        "0.5)·exp(2·randn). Error: ‖C - Ĉ‖_p/(‖A‖_p‖B‖_p). Reference: DGEMM for float32 data (within n·2^-53\n"
        "of |A||B|), for float64 a two-fold product (within 2^-98). Sums of the words' exact products are\n"
        "SGEMM's and DGEMM's; 'in chunks' is prismm's default. 'A100' is the simulated engine, 'FP16 sums'\n"
        "rounds every sum to float16. The paper's Fig. 2 lists A2·B2 twice: the third product must be A2·B1."
    ),
    points=_points,
    claims=CLAIMS,
    panels=(
        *_error_panels(),
        *(
            Panel(
                f"Open question: TF64 from lower formats, {words} words, {kind} data",
                f"formats {kind}",
                "l2 error",
                "fraction bits",
                "l2 error",
                logx=False,
                series=tuple(series(words, p, e) for p in products for e in EXPONENT_BITS),
            )
            for kind in FORMAT_KINDS
            for words, products in ((2, (3, 4)), (3, (6,)))
        ),
    ),
)
