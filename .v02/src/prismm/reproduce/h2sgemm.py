"""H2SGEMM (Xue et al. 2025): float32 products from two float16 words with an amplified low part.

By default prismm's scheme scales rows and columns by powers of two before it splits, so its error cannot depend on the
offset exponent. The paper's algorithm does not, and its Fig. 8 shows just that: so the series of the paper are
`ScaledHalf(scale=False, chunk=None)`, and prismm's own choice stands beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.h2sgemm_claims import CLAIMS, KINDS, ORDERS
from prismm.reproduce.plot import Panel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _draw(
    rng: np.random.Generator, m: int, k: int, n: int, exponent: int, kind: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    import numpy as np

    low, high = (-1.0 if kind == "symmetric" else 0.0), 1.0

    def matrix(*shape: int) -> NDArray[np.float32]:
        return np.ldexp(rng.uniform(low, high, shape), exponent).astype(np.float32)

    return matrix(m, k), matrix(k, n)


def _errors(a: NDArray[np.float32], b: NDArray[np.float32], all_orders: bool) -> dict[str, float]:
    """Eq. 11 with the Frobenius norm and DGEMM as the truth (itself within k·2^-53 of |a||b|), method by method."""
    import numpy as np

    import prismm
    from prismm.reproduce.reference import relative_frobenius

    truth = a.astype(np.float64) @ b.astype(np.float64)
    half = a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)
    results: dict[str, Any] = {"half": half, "SGEMM": a @ b}
    for sb in (0, 6, 12) if all_orders else (12,):
        # Element-wise means per position; the NPU's cube multiplies blocks of 16, so the terms meet every 16.
        for order in ORDERS:
            chunk = None if order == "term" else 16
            paper = prismm.ScaledHalf(sb=sb, order=order, chunk=chunk, scale=False)
            results[f"sb={sb}, {order}"] = prismm.matmul(a, b, scheme=paper)
    for order in ORDERS:
        results[f"prismm, {order}"] = prismm.matmul(a, b, scheme=prismm.ScaledHalf(order=order))
    return {name: relative_frobenius(result.astype(np.float64) - truth, truth) for name, result in results.items()}


def _against_exponent(exponent: int, m: int, k: int, n: int) -> Point:
    def run(rng: np.random.Generator) -> list[Row]:
        rows = []
        for kind in KINDS:
            for name, error in _errors(*_draw(rng, m, k, n, exponent, kind), all_orders=True).items():
                rows.append(Row(f"8 {kind}", name, "relative error", error, "offset exponent", exponent))
        return rows

    return Point(f"fig8 e={exponent} {m}x{k}x{n}", run)


def _against_size(figure: str, variable: str, x: int, m: int, k: int, n: int) -> Point:
    def run(rng: np.random.Generator) -> list[Row]:
        rows = []
        for kind in KINDS:
            for name, error in _errors(*_draw(rng, m, k, n, 0, kind), all_orders=False).items():
                rows.append(Row(f"{figure} {kind}", name, "relative error", error, variable, x))
        return rows

    return Point(f"fig{figure} {m}x{k}x{n}", run)


def _discarded_bits() -> NDArray[np.float64]:
    """Values in [1, 2) with every pattern of the 13 bits that float16 drops, below even and odd high words."""
    import numpy as np

    heads = np.array([0, 1, 2, 511, 512, 1022, 1023])
    return np.ldexp(((1024 + heads)[:, None] * 8192 + np.arange(8192)).ravel().astype(np.float64), -23)


def _counting(rng: np.random.Generator) -> list[Row]:
    """Underflow of the low word and bits kept, counted over all patterns of discarded bits; and Eqs. 3 and 5."""
    import numpy as np

    from prismm.schemes.half_model import leading_zeros_probability, retained_bits, underflow_probability

    values = _discarded_bits()
    rows = []
    rest = values - values.astype(np.float16).astype(np.float64)
    with np.errstate(divide="ignore"):
        zeros = np.where(rest == 0, 12, -12 - np.floor(np.log2(np.abs(rest))))
    for n in range(-1, 13):
        equation = leading_zeros_probability(n, "truncated") + leading_zeros_probability(n, "rounded")
        rows.append(Row("Eq. 3", "counted", "P(N=n)", float(np.mean(zeros == n)), "n", n))
        rows.append(Row("Eq. 3", "Eq. 3", "P(N=n)", float(equation), "n", n))
    for exponent in range(-14, 15):
        x = np.ldexp(values, exponent)
        # A rest of 0 counts as N=12 (Eq. 3), below any other rest.
        size = np.where(rest == 0, 2.0 ** (exponent - 24), np.ldexp(np.abs(rest), exponent))
        for measure, threshold, gradual in (("P_u+gu", 2.0**-14, True), ("P_u", 2.0**-24, False)):
            counted = float(np.mean(size < threshold))
            rows.append(Row("2a", f"counted {measure}", "probability", counted, "offset exponent", exponent))
            found = float(underflow_probability(exponent, gradual=gradual))
            rows.append(Row("2a", f"Eq. 5 {measure}", "probability", found, "offset exponent", exponent))
        for sb in (0, 12):
            rows.append(
                Row("2b", f"counted, sb={sb}", "bits", _bits_kept(x, exponent, sb), "offset exponent", exponent)
            )
            bits = retained_bits(exponent, sb)
            rows.append(Row("2b", f"Fig. 2(b), sb={sb}", "bits", bits, "offset exponent", exponent))
    return rows


def _bits_kept(x: NDArray[np.float64], exponent: int, sb: int) -> float:
    """Significant bits b with |x - (high + low·2^-sb)| <= 2^(e-b) for every x of the binade 2^e."""
    import numpy as np

    high = x.astype(np.float16).astype(np.float64)
    with np.errstate(over="ignore"):
        low = np.ldexp(x - high, sb).astype(np.float16).astype(np.float64)
    error = float(np.max(np.abs(x - high - np.ldexp(low, -sb))))
    return float(np.floor(exponent - np.log2(error))) if error else 24.0


def _blocking(rng: np.random.Generator) -> list[Row]:
    """Eqs. 6 and 8-10: admissible sb, fused blocks, the correction f, and the optimal block height."""
    from prismm.schemes.half_model import Blocking, admissible_sb, feasible_blocks, optimal_rows, paper_sb_range

    low, high = paper_sb_range(-14, 15)
    rows = [
        Row("Eq. 8", "(176, 64, 176)", "N_fused", Blocking(176, 64, 176).fused),
        Row("Eq. 6", "paper", "lowest sb", low),
        Row("Eq. 6", "paper", "highest sb", high),
        Row("Eq. 6", "prismm", "highest sb", admissible_sb(-14, 15)[1]),
    ]
    # Eq. 10's discussion wants L1/(b_m b_k) >= 16, the figure 0.5 <= b_n/b_m <= 2.
    blocks = [
        b for b in feasible_blocks() if b.cache.l1 >= 16 * b.rows * b.depth and b.rows <= 2 * b.columns <= 4 * b.rows
    ]
    for ratio in (0.5, 1.0, 2.0):
        least: dict[int, float] = {}
        for block in blocks:
            if block.columns == ratio * block.rows:
                size = block.rows * block.depth
                least[size] = min(block.efficiency, least.get(size, 1.0))
        rows += [Row("5", f"b_n/b_m = {ratio:g}", "f", f, "b_m b_k", size) for size, f in sorted(least.items())]
    efficiencies = [block.efficiency for block in blocks]
    rows += [Row("5", "all blocks", name, pick(efficiencies)) for name, pick in (("least f", min), ("largest f", max))]
    share = sum(f >= 0.92 for f in efficiencies) / len(efficiencies)
    rows.append(Row("5", "all blocks", "share with f >= 0.92", share))
    return rows + [Row("Eq. 9", f"f={f:g}", "optimal b_m", optimal_rows(f)) for f in (0.92, 1.0)]


def _points(size: Size) -> list[Point]:
    exponents = {"quick": (-12, -10, -8, -4, 0), "default": range(-14, 1), "full": range(-24, 15)}[size]
    m, k, n = {"quick": (64, 704, 64), "default": (176, 2816, 176), "full": (704, 2816, 704)}[size]
    points = [Point("Eqs. 3-6, Fig. 2", _counting), Point("Eqs. 6, 8-10, Fig. 5", _blocking)]
    points += [_against_exponent(e, m, k, n) for e in exponents]
    orders = {"quick": (64, 128), "default": (64, 128, 256, 512, 1024), "full": (64, 128, 256, 512, 1024, 2048, 4096)}
    depths = {
        "quick": (32, 256, 2048),
        "default": tuple(32 << i for i in range(10)),
        "full": tuple(32 << i for i in range(12)),
    }
    points += [_against_size("9a", "m = n", x, x, 704 if size == "quick" else 2816, x) for x in orders[size]]
    points += [_against_size("9b", "k", x, 176, x, 32) for x in depths[size]]
    points += [_against_size("9c", "m = n = k", x, x, x, x) for x in orders[size]]
    return points


def _size_panel(figure: str, variable: str, kind: str) -> Panel:
    return Panel(
        f"Fig. {figure[0]}({figure[1]}), {kind}", f"{figure} {kind}", "relative error", variable, "relative error"
    )


EXPERIMENT = Experiment(
    name="h2sgemm",
    version=1,
    setup=(
        "Inputs: uniform float32 in [-2^e, 2^e] (symmetric) or [0, 2^e] (non-negative). Error: Eq. 11 with\n"
        "the Frobenius norm against DGEMM, whose own error is below k·2^-53 of |a||b|. 'sb=…': ScaledHalf as\n"
        "in the paper, without scaling, element-wise in steps of 16. 'prismm': ScaledHalf() as it is. Sums of\n"
        "the words' exact products are SGEMM's: the NPU's accumulator is not published. Figs. 10 and 11 are\n"
        "throughput of an NPU."
    ),
    points=_points,
    claims=CLAIMS,
    panels=(
        Panel("Fig. 2(a): underflow", "2a", "probability", "offset exponent", "probability", logx=False, logy=False),
        Panel("Fig. 2(b): bits kept", "2b", "bits", "offset exponent", "bits", logx=False, logy=False),
        Panel(
            "Fig. 5",
            "5",
            "f",
            "b_m b_k",
            "f",
            logy=False,
            band=(0.92, 1.0, "published range"),
        ),
        *(
            Panel(
                f"Fig. 8, {kind}",
                f"8 {kind}",
                "relative error",
                "offset exponent",
                "relative error",
                logx=False,
                levels=((1e-4, "published, half: 1e-4"),),
            )
            for kind in KINDS
        ),
        _size_panel("9a", "m = n", "symmetric"),
        *(_size_panel("9b", "k", kind) for kind in KINDS),
        _size_panel("9c", "m = n = k", "symmetric"),
    ),
)
