"""H2SGEMM (Xue et al. 2025): float32 products from two float16 words with an amplified low part.

prismm's own scheme scales rows and columns by powers of two before it splits, so its error cannot depend on the offset
exponent. The paper's algorithm does not, and its Fig. 8 shows just that: it is written out here (`_unscaled`) from
Eq. 7 and Fig. 7, and prismm stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.h2sgemm_claims import CLAIMS, KINDS
from prismm.reproduce.plot import Panel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _split(x: NDArray[np.float32], sb: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """High and amplified low float16 word (Eq. 7), as float32."""
    import numpy as np

    high = x.astype(np.float16).astype(np.float32)
    low = np.ldexp(x - high, sb).astype(np.float16).astype(np.float32)
    return high, low


def _unscaled(a: NDArray[np.float32], b: NDArray[np.float32], sb: int, order: str) -> NDArray[np.float32]:
    """The paper's product, rows and columns as they come: Fig. 7(a) "element", or (b) "term".

    Words multiply exactly in float32; sums are SGEMM's, as the accumulator of the paper's engine is not published.
    """
    import numpy as np

    (a_high, a_low), (b_high, b_low) = _split(a, sb), _split(b, sb)
    if order == "term":
        small = np.ldexp(a_low @ b_high + a_high @ b_low, -sb)
        return np.asarray(small + a_high @ b_high, np.float32)
    m, k = a.shape
    left = np.stack([np.ldexp(a_low, -sb), a_high, a_high], axis=2).reshape(m, 3 * k)
    right = np.stack([b_high, np.ldexp(b_low, -sb), b_high], axis=1).reshape(3 * k, b.shape[1])
    return np.asarray(left @ right, np.float32)


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
        for order in ("term", "element"):
            results[f"sb={sb}, {order}"] = _unscaled(a, b, sb, order)
    for order in ("term", "element"):
        scheme = prismm.ScaledHalf(sb=12, order=order)
        results[f"prismm ScaledHalf, {order}"] = prismm.matmul(a, b, scheme=scheme)
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
    """Values in [1, 2) with every pattern of the 13 bits that float16 drops, below even and odd high parts and carries."""
    import numpy as np

    heads = np.array([0, 1, 2, 511, 512, 1022, 1023])
    return np.ldexp(((1024 + heads)[:, None] * 8192 + np.arange(8192)).ravel().astype(np.float64), -23)


def _counting(rng: np.random.Generator) -> list[Row]:
    """Underflow of the low word and bits kept, counted over all patterns of discarded bits; and Eqs. 3 and 5."""
    import numpy as np

    from prismm.schemes.scaled_half import leading_zero_probability, underflow_probability

    values = _discarded_bits()
    rows = []
    rest = values - values.astype(np.float16).astype(np.float64)
    with np.errstate(divide="ignore"):
        zeros = np.where(rest == 0, 12, -12 - np.floor(np.log2(np.abs(rest))))
    for n in range(-1, 13):
        rows.append(Row("Eq. 3", "counted", "P(N=n)", float(np.mean(zeros == n)), "n", n))
        rows.append(Row("Eq. 3", "Eq. 3", "P(N=n)", float(leading_zero_probability(n)), "n", n))
    for exponent in range(-14, 16):
        x = np.ldexp(values, exponent)
        rest = np.abs(x - np.ldexp(values.astype(np.float16).astype(np.float64), exponent))
        # Zero rest counts as N=12 (Eq. 3), below any rest there is.
        rest = np.where(rest == 0, 2.0 ** (exponent - 24), rest)
        for measure, threshold, gradual in (("P_u+gu", 2.0**-14, True), ("P_u", 2.0**-24, False)):
            counted = float(np.mean(rest < threshold))
            rows.append(Row("2a", f"counted {measure}", "probability", counted, "offset exponent", exponent))
            equation = float(underflow_probability(exponent, gradual=gradual))
            rows.append(Row("2a", f"Eq. 5 {measure}", "probability", equation, "offset exponent", exponent))
        for sb in (0, 12):
            rows.append(Row("2b", f"sb={sb}", "bits", _bits_kept(x, sb), "offset exponent", exponent))
    return rows


def _bits_kept(x: NDArray[np.float64], sb: int) -> float:
    """Fraction bits b such that every x in a binade 2^e is kept within 2^(e-b-1), as RN to b fraction bits would."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        high = x.astype(np.float16).astype(np.float64)
        low = np.ldexp(x - high, sb).astype(np.float16).astype(np.float64)
        error = float(np.max(np.abs(x - high - np.ldexp(low, -sb))))
    if not np.isfinite(error):
        return 0.0
    binade = np.floor(np.log2(x[0]))
    return float(binade - 1 - np.log2(error)) if error else 23.0


def _blocking(rng: np.random.Generator) -> list[Row]:
    """Eqs. 6 and 8-10: admissible sb, fused blocks, the correction f, and the optimal block height."""
    from prismm.schemes.scaled_half import blocks_fit, fused_blocks, optimal_block_height, sb_range

    l1 = 512 * 1024  # the paper's numbers come out with its 512 KB taken as as many elements
    rows = [
        Row("Eq. 8", "(176, 64, 176)", "N_fused", float(fused_blocks(176, 64, 176, l1))),
        Row("Eq. 6", "paper", "lowest sb", float(sb_range(-14, 15, paper=True)[0])),
        Row("Eq. 6", "paper", "highest sb", float(sb_range(-14, 15, paper=True)[1])),
        Row("Eq. 6", "prismm", "highest sb", float(sb_range(-14, 15)[1])),
    ]
    least = most = None
    blocks = range(16, 513, 16)
    for bm in blocks:
        for bk in blocks:
            for bn in blocks:
                if not blocks_fit(bm, bk, bn) or not 0.5 <= bn / bm <= 2 or l1 < 16 * bm * bk:
                    continue
                count = fused_blocks(bm, bk, bn, l1)
                f = count * bm * bk / l1
                least, most = min(f, least or f), max(f, most or f)
                rows.append(Row("5", f"b_n/b_m={bn / bm:g}", "f", f, "b_m b_k", bm * bk)) if bn in (
                    bm // 2,
                    bm,
                    2 * bm,
                ) else None
    assert least is not None and most is not None
    rows += [Row("5", "all blocks", "least f", least), Row("5", "all blocks", "largest f", most)]
    for f in (0.92, 1.0):
        rows.append(Row("Eq. 9", f"f={f:g}", "optimal b_m", optimal_block_height(f, l1, 32)))
    return rows


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
        "Inputs: uniform float32 in [-2^e, 2^e] (symmetric) or [0, 2^e] (non-negative). Error: Eq. 11 with the Frobenius "
        "norm against DGEMM,\nwhose own error is below k·2^-53 of |a||b|. 'sb=…' is the paper's algorithm without "
        "scaling, with SGEMM's sums of exact products;\n'prismm ScaledHalf' is the library's scheme. Figs. 10 and 11 are "
        "throughput of an NPU."
    ),
    points=_points,
    claims=CLAIMS,
    panels=(
        Panel("Fig. 2(a): underflow", "2a", "probability", "offset exponent", "probability", logx=False, logy=False),
        Panel("Fig. 2(b): bits kept", "2b", "bits", "offset exponent", "fraction bits", logx=False, logy=False),
        Panel("Fig. 5", "5", "f", "b_m b_k", "f", logy=False),
        *(
            Panel(f"Fig. 8, {kind}", f"8 {kind}", "relative error", "offset exponent", "relative error", logx=False)
            for kind in KINDS
        ),
        _size_panel("9a", "m = n", "symmetric"),
        *(_size_panel("9b", "k", kind) for kind in KINDS),
        _size_panel("9c", "m = n = k", "symmetric"),
    ),
)
