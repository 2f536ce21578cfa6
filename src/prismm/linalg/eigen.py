"""Eigenvalues and eigenvectors of Hermitian matrices, refined by products, with proved bounds.

Refinement (Ogita and Aishima 2018, "Iterative refinement for symmetric eigenvalue decomposition", algorithm 1), from
LAPACK's X: with R = 1 - XᴴX, S = XᴴAX, λ_i = s_ii/(1 - r_ii) and
δ = 2(‖S - D‖ + ‖A‖‖R‖) the next X is X + XE,
e_ij = (s_ij + λ_j·r_ij)/(λ_j - λ_i) where |λ_i - λ_j| > δ, else r_ij/2. R, S and X + XE are rounded once each.

Bounds, of the w and V that are returned, whatever their origin. With ε >= ‖1 - VᴴV‖∞ < 1 and F = VᴴAV - W, W the
diagonal matrix of w: by Weyl the k-th eigenvalue of VᴴAV is within ‖F‖∞ of w_k; where Gershgorin's disc about w_k with
radius Σ_j|F_kj| meets no other, within that. By Ostrowski it is θ·λ_k(A) with 1-ε <= θ <= 1+ε. So with f either
radius |λ_k - w_k| <= f + ε(|w_k| + f)/(1 - ε).

The angle between v_k and an eigenvector of λ_k: sin <= ‖Av_k - w_k·v_k‖/(‖v_k‖·gap_k), gap_k the distance of w_k to the
other eigenvalues (Parlett 1998, theorem 11.7.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.errors import NotCertified
from prismm.linalg.entries import beside, largest, ldexp, namespace, of_type
from prismm.linalg.expansions import Products, expand
from prismm.linalg.matrices import adjoint, contiguous, host, identity, one_above_another, product_above, side_by_side
from prismm.linalg.operands import check_hermitian_operand, common, operand_where_it_is, real_form
from prismm.linalg.rounding import ETA, U, above, below, inflation, sum_above

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STEPS = 6
"""Steps at most; they end where the defect ‖S - D‖ + ‖A‖‖R‖ falls no more, and the best X counts."""

HEADROOM = 64
"""Sums of n products with vectors of length 1 are below n·2^2 times the largest entry; n < 2^60."""

SMALL, MOST_SHIFT = 2.0**-300, 1000
"""A matrix whose entries are all below SMALL is multiplied by a power of two, 2^MOST_SHIFT at most, for the proof."""


@dataclass(frozen=True, eq=False)
class EighReport:
    """Returned beside eigenvalues and eigenvectors by ``full_output=True``; all proved, for the arrays as returned.

    Attributes:
        bounds: at least |w_k - λ_k|, with eigenvalues λ in ascending order, (..., n).
        residuals: at least ‖a·v_k - w_k·v_k‖₂, (..., n).
        orthogonality: at least ‖1 - vᴴv‖₂; an array for a batch.
        angles: at least the sine of the angle between v_k and an eigenvector of λ_k, (..., n); 1 where the bounds do
            not separate w_k from other eigenvalues.

    >>> import numpy as np, prismm.linalg
    >>> _, _, report = prismm.linalg.eigh(np.diag([1.0, 2.0]), full_output=True)
    >>> report.bounds.shape, bool((report.angles < 1e-12).all())
    ((2,), True)
    """

    bounds: NDArray[np.float64]
    residuals: NDArray[np.float64] = field(repr=False)
    orthogonality: Any
    angles: NDArray[np.float64] = field(repr=False)


def eigh(a: Any, /, *, full_output: bool = False) -> Any:
    """(w, v): eigenvalues in ascending order and eigenvectors of a Hermitian matrix, refined, with proved bounds.

    Args:
        a: (..., n, n), as in `prismm.linalg.solve`.
        full_output: return (w, v, `EighReport`).

    Returns:
        w of shape (..., n), real, and v of shape (..., n, n), a column each.

    Raises:
        NotCertified: where v is not close to orthogonal, and where an eigenvalue or a bound overflows.
        ArgumentError: for a matrix that is not Hermitian, NaN, and Inf. ShapeError, DTypeError, OperandError: for what
            is no matrix.

    Sources: Ogita and Aishima 2018; Weyl, Ostrowski, Gershgorin; Parlett 1998.

    >>> import numpy as np, prismm.linalg
    >>> w, v, report = prismm.linalg.eigh(np.array([[2.0, 1.0], [1.0, 2.0]]), full_output=True)
    >>> w, bool((report.bounds < 1e-15).all()), report.orthogonality < 1e-15
    (array([1., 3.]), True, True)
    """
    source = operand_where_it_is(a, "a")
    check_hermitian_operand(source, "a")
    _, dtype = common({"a": source})
    *batch, n, _ = source.data.shape
    real = np.dtype(np.float32 if dtype in (np.dtype(np.float32), np.dtype(np.complex64)) else np.float64)
    w, v = np.zeros((*batch, n), real), np.zeros((*batch, n, n), dtype)
    bounds, residuals, angles, orthogonality = *np.zeros((3, *batch, n)), np.zeros(batch)
    products = Products(source.device)
    for at in np.ndindex(*batch) if n else ():
        w[at], v[at], proof = _one(source.matrix(at), dtype, real, products)
        bounds[at], residuals[at], angles[at], orthogonality[at] = (
            proof.bounds, proof.residuals, proof.angles, proof.orthogonality
        )  # fmt: skip
    report = EighReport(bounds, residuals, orthogonality if batch else float(orthogonality), angles)
    if not np.isfinite(w).all():
        raise NotCertified(f"an eigenvalue of a is beyond {real}", None, report)
    if not (orthogonality < 0.5).all():
        raise NotCertified("the eigenvectors of a overflow, or are not orthogonal", None, report)
    if not (np.isfinite(report.bounds).all() and np.isfinite(report.residuals).all()):
        raise NotCertified("the bounds of the eigenvalues of a overflow", None, report)
    answer = source.returned(w), source.returned(v)
    return (*answer, report) if full_output else answer


def _one(
    a: Any, dtype: np.dtype[Any], real: np.dtype[Any], products: Products
) -> tuple[NDArray[Any], NDArray[Any], EighReport]:
    """Eigenvalues and eigenvectors of one matrix in the types asked for, with what is proved of them."""
    is_complex = dtype.kind == "c"
    with np.errstate(all="ignore"):
        w, v = _refined(a, products)
        w, v = w.astype(real), of_type(v, dtype)
        exact = of_type(v, np.complex128 if is_complex else np.float64)
        proof = _scaled_proof(real_form(a, is_complex), w.astype(np.float64), real_form(exact, is_complex), products)
    return w, host(v), proof


def _refined(a: Any, products: Products) -> tuple[Floats, Any]:
    """Algorithm 1, from LAPACK's eigenvectors; a is scaled by a power of two. Of a tensor the vectors are one."""
    n, xp = len(a), namespace(a)
    exponent = int(np.frexp(float(abs(a).max()))[1])
    a = a * 2.0 ** (-exponent // 2) * 2.0 ** (-exponent - (-exponent // 2))
    x = xp.linalg.eigh(a)[1]
    size = float(xp.linalg.norm(a, 2))
    best: tuple[float, Any, Any] | None = None
    for step in range(STEPS + 1):
        xh = adjoint(x)
        r = products.rounded(xh, x, identity(n, x), -1.0)
        s = products.rounded(side_by_side([xh, xh]), one_above_another(_pair(products, a, x)))
        values = s.diagonal().real / (1.0 - r.diagonal().real)
        defect = float(xp.linalg.norm(s - xp.diag(values)) + size * xp.linalg.norm(r))
        if np.isfinite(defect) and (best is None or defect < best[0]):
            best = defect, values, x
        elif best is not None:
            break
        distance = values - values[:, None]
        apart = abs(distance) > 2.0 * defect
        e = xp.where(apart, (s + values * r) / xp.where(apart, distance, 1.0), r * 0.5)
        e[np.arange(n), np.arange(n)] = r.diagonal() * 0.5
        if step == STEPS or not xp.isfinite(e).all():
            break
        x = products.rounded(x, e, x)
    values, x = (np.full(n, np.nan), x) if best is None else (host(best[1]), best[2])
    order = np.argsort(values, kind="stable")
    return np.ldexp(values[order], exponent), contiguous(x[:, order])


def _pair(products: Products, a: Any, x: Any) -> list[Any]:
    """AX in two parts."""
    found = expand(products, [a], [x], 2)
    return [*found, *(x * 0.0 for _ in range(2 - len(found)))]


def _scaled_proof(a: Any, w: Floats, v: Any, products: Products) -> EighReport:
    """The bounds. Entries near an end of the range are multiplied by 2^-shift first, where that is exact: large ones
    would overflow, and what the bounds allow for underflow would exceed small ones. Bounds are never NaN: a bound that
    is not known is infinite.
    """
    largest_entry, shift = float(abs(a).max()), 0
    if largest_entry >= 2.0 ** (1024 - HEADROOM):
        shift = HEADROOM
    elif 0.0 < largest_entry < SMALL:
        shift = max(int(np.frexp(largest_entry)[1]), -MOST_SHIFT)
    if shift:
        scaled_a, scaled_w = ldexp(a, -shift), np.ldexp(w, -shift)
        if (ldexp(scaled_a, shift) == a).all() and (np.ldexp(scaled_w, shift) == w).all():
            a, w = scaled_a, scaled_w
        else:
            shift = 0
    report = _proved(a, w, v, products)

    def known(bound: Floats, most: float, by: int = 0) -> Floats:
        scaled = np.ldexp(bound, by)
        scaled = np.where(np.ldexp(scaled, -by) < bound, np.nextafter(scaled, np.inf), scaled)
        return np.where(np.isnan(bound), most, scaled)

    return EighReport(
        known(report.bounds, np.inf, shift), known(report.residuals, np.inf, shift), report.orthogonality,
        known(report.angles, 1.0),
    )  # fmt: skip


def _proved(a: Any, w: Floats, v: Any, products: Products) -> EighReport:
    """The bounds, of real matrices: (n, n) or, of complex ones, of their real forms with every eigenvalue twice."""
    n, size, xp = len(w), len(v), namespace(v)
    twice = beside(np.diag(np.concatenate([w] * (size // n))), v)
    vt, magnitude = adjoint(v), abs(v)
    r = products.rounded(vt, v, identity(size, v), -1.0)
    epsilon = float(sum_above(above(abs(r) * (1.0 + 4.0 * U) + ETA), 1).max())
    # VᵀAV - W: of AV in two parts |VᵀΔ| <= |Vᵀ||Δ| remains, |Δ| <= u·|second part| + η.
    image = expand(products, [a], [v], 2)
    rest = above(above(abs(image[-1]) * U) + ETA)
    f = expand(products, [vt], image, 1, [-twice])[0]
    left_out = product_above(adjoint(magnitude), rest, products)
    # Of a real form both rows of a pair; the two discs are one.
    rows = host(sum_above((abs(f) * (1.0 + 4.0 * U) + ETA + left_out) * inflation(4), 1)).reshape(-1, n).max(axis=0)
    low, high = (beside(x, v) for x in (below(w - rows), above(w + rows)))
    meets = (low[:, None] <= high) & (low <= high[:, None])
    radius = np.where(host(meets.sum(axis=1)) == 1, rows, rows.max())
    spread = above(above(epsilon * above(np.abs(w) + radius)) / below(1.0 - epsilon))
    bounds = above(radius + spread)
    difference = products.rounded(side_by_side([a, -v]), one_above_another([v, twice]))
    sizes = above(abs(difference) * (1.0 + 4.0 * U) + ETA)
    shift = np.frexp(host(largest(sizes)))[1]
    scaled = above(ldexp(sizes, beside(-shift, v)))
    squares = host(sum_above(above(scaled * scaled), 0))
    residuals = above(np.ldexp(above(np.sqrt(squares)), shift))[:n]
    others = beside(w, v)
    gaps = below(below(abs(others[:, None] - others)) - beside(bounds, v))
    gaps[np.arange(n), np.arange(n)] = np.inf
    gap = below(host(xp.amin(gaps, axis=1)))
    length = below(np.sqrt(below(1.0 - epsilon)))
    angles = np.where(gap > 0.0, np.minimum(above(residuals / below(length * gap)), 1.0), 1.0)
    good = epsilon < 1.0
    return EighReport(
        np.where(good, bounds, np.inf), residuals, epsilon if np.isfinite(epsilon) else np.inf,
        np.where(good, angles, 1.0),
    )  # fmt: skip
