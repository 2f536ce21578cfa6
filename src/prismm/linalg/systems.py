"""Solutions of linear systems with proved bounds: `solve`, `inv`, `lstsq`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prismm.core.accuracy import Target, parse_target
from prismm.errors import AccuracyError, ArgumentError, NotCertified, ShapeError
from prismm.linalg import unproved
from prismm.linalg.entries import beside
from prismm.linalg.expansions import Products
from prismm.linalg.factors import singular_values
from prismm.linalg.matrices import columns_scaled, host, identity, one_above_another, row_norm, side_by_side, zeros
from prismm.linalg.operands import (
    Operand,
    check_hermitian,
    check_square,
    common,
    larger_half,
    operand,
    operand_where_it_is,
    real_form,
    real_matrix_on_gpu,
    stacked,
    unstacked,
)
from prismm.linalg.refinement import Enclosure, Rounded, Solution, relative_target, rounded, solve_real
from prismm.linalg.report import SolveReport

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    One = tuple[NDArray[Any], Rounded, Solution, float]

FEW = 16
"""Columns of right-hand sides up to which bounds beside a tensor are made in main memory: a GPU would wait for each."""


def solve(
    a: Any,
    b: Any,
    /,
    *,
    accuracy: str | float | None = None,
    assume: Literal["general", "pos"] = "general",
    full_output: bool = False,
) -> Any:
    """The solution of a·x = b, with a proved error.

    Every component x_i of the result (of complex ones each part) is at most one unit in the last place off the exact
    solution of the system with the given entries, or the call raises. Where |x_i| is below 2^-212 of the largest
    component of its column, the error may be as large as that; where x_i is subnormal, 3 units. The proof encloses
    I - RA for an approximate inverse R by certified products: `prismm.linalg.refinement` has it.

    Args:
        a: (..., n, n): float64, float32, complex128, complex64, or integers and narrow floats, which are taken exactly.
            NumPy array or torch tensor.
        b: (..., n, k), or (n,) for one right-hand side of every matrix; batches broadcast.
        accuracy: "native" (default), as above; "correctly-rounded", where every component is proved to be the nearest
            number (a component that is exactly 0 is proved only if the zeros of a show it, or the residual of its
            column is exactly 0); a tolerance tol, with |x_i - exact| <= tol·|x_i| and half a unit in the last place;
            "fast", which refines with exact residuals and proves nothing.
        assume: "pos" for a Hermitian matrix that is expected to be positive definite: factorised by Cholesky.
        full_output: return (x, `SolveReport`).

    Returns:
        x of shape (..., n, k), or (..., n) for b of shape (n,), of the operands' promoted type, as their kind of array.

    Raises:
        NotCertified: for a singular matrix, and where a proof is out of reach; its ``result`` and ``report`` have what
            is known. ShapeError, DTypeError, OperandError, AccuracyError: for bad arguments.
        ArgumentError: for NaN, Inf, integers beyond 2^53, and with assume="pos" a matrix that is not Hermitian.

    Sources: Krawczyk 1969; Rump 1990, 2009, 2010; Carson and Higham 2018.

    >>> import numpy as np, prismm.linalg
    >>> hilbert = 1.0 / np.add.outer(np.arange(12.0), np.arange(1.0, 13.0))
    >>> x, report = prismm.linalg.solve(hilbert, np.ones(12), full_output=True)
    >>> bool((report.bounds <= np.spacing(np.abs(x))).all()), bool(report.condition > 1e15)
    (True, True)
    """
    target = parse_target("native" if accuracy is None else accuracy)
    if assume not in ("general", "pos"):
        raise ArgumentError(f"assume={assume!r}; pass 'general' or 'pos'")
    right = operand(b, "b")
    on_gpu = real_matrix_on_gpu(a, "a") if assume == "general" and right.data.ndim <= 2 else None
    left = on_gpu if on_gpu is not None and right.data.dtype.kind != "c" else operand(a, "a")
    source, dtype = common({"a": left, "b": right})
    check_square(left.data, "a")
    if assume == "pos":
        check_hermitian(left.data, "a")
    vector = right.data.ndim == 1
    if right.data.ndim == 0 or right.data.shape[0 if vector else -2] != left.data.shape[-1]:
        raise ShapeError(f"a has shape {left.data.shape}, b has shape {right.data.shape}: b needs as many rows as a")
    columns = right.data[:, None] if vector else right.data

    found = _batch(left, columns, dtype, lambda x, y: _one(x, y, dtype, target, source, assume == "pos"))
    return _answer(found, source, vector, full_output, target, "a")


def inv(a: Any, /, *, accuracy: str | float | None = None, full_output: bool = False) -> Any:
    """The inverse of a matrix, with a proved error: the solution of a·x = 1.

    Args:
        a: (..., n, n), as in `solve`.
        accuracy: of every entry, as in `solve`.
        full_output: return (inverse, `SolveReport`).

    Returns:
        The inverse, (..., n, n), of the type that a product with a has, as the caller's kind of array.

    Raises:
        NotCertified, ShapeError, DTypeError, OperandError, ArgumentError, AccuracyError: as `solve`.

    Sources: those of `solve`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.inv(np.array([[3.0, 1.0], [0.0, 1.0]]))
    array([[ 0.33333333, -0.33333333],
           [ 0.        ,  1.        ]])
    """
    target = parse_target("native" if accuracy is None else accuracy)
    source = operand_where_it_is(a, "a")
    check_square(source.data, "a")
    _, dtype = common({"a": source})
    unit = np.eye(source.data.shape[-1])
    found = _batch(source, unit, dtype, lambda x, y: _one(x, y, dtype, target, source, False))
    return _answer(found, source, False, full_output, target, "a")


def lstsq(a: Any, b: Any, /, *, accuracy: str | float | None = None, full_output: bool = False) -> Any:
    """The least-squares solution of a·x ≈ b for a of full column rank, which is proved, with a proved error.

    It is a part of the solution of the augmented system [[s·I, a], [aᴴ, 0]]·[r/s; x] = [b; 0] (Björck 1967), of m + n
    rows, with s a power of two near the smallest singular value: that system is singular exactly where the columns of a
    depend on each other. Columns of a are scaled by powers of two before.

    Args:
        a: (..., m, n), m >= n, as in `solve`.
        b: (..., m, k) or (m,).
        accuracy: of every component, as in `solve`.
        full_output: return (x, `SolveReport`).

    Returns:
        x of shape (..., n, k), or (..., n) for b of shape (m,), of the type and kind of array that `solve` returns.

    Raises:
        ShapeError: for m < n, besides the errors of `solve`. AccuracyError: for "fast". NotCertified: for a matrix
            whose columns depend on each other, or nearly do.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.lstsq(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 2.0, 4.0]))
    array([0.83333333, 1.5       ])
    """
    target = parse_target("native" if accuracy is None else accuracy)
    if target.kind == "fast":
        raise AccuracyError("accuracy='fast' is for solve; pass None, 'correctly-rounded' or a tolerance")
    left, right = operand_where_it_is(a, "a"), operand(b, "b")
    source, dtype = common({"a": left, "b": right})
    shape, vector = left.data.shape, right.data.ndim == 1
    if left.data.ndim < 2 or shape[-2] < shape[-1]:
        raise ShapeError(f"a has shape {shape}; pass a matrix of at least as many rows as columns")
    if right.data.ndim == 0 or right.data.shape[0 if vector else -2] != shape[-2]:
        raise ShapeError(f"a has shape {shape}, b has shape {right.data.shape}: b needs as many rows as a")
    columns = right.data[:, None] if vector else right.data
    found = _batch(left, columns, dtype, lambda x, y: _least_squares(x, y, dtype, target, source))
    return _answer(found, source, vector, full_output, target, "the augmented matrix of a")


def _batch(
    a: Operand, b: NDArray[Any], dtype: np.dtype[Any], one: Callable[[Any, NDArray[Any]], One]
) -> tuple[tuple[int, ...], tuple[int, int], np.dtype[Any], list[One]]:
    """Every pair of matrices of broadcast batches."""
    shape = a.data.shape
    try:
        batch = np.broadcast_shapes(shape[:-2], b.shape[:-2])
    except ValueError:
        raise ShapeError(f"batches {shape[:-2]} of a and {b.shape[:-2]} of b do not broadcast") from None
    right = np.broadcast_to(b, batch + b.shape[-2:])
    with np.errstate(all="ignore"):
        found = [one(a.matrix(index, batch), right[index]) for index in np.ndindex(*batch)]
    return batch, (shape[-1], b.shape[-1]), dtype, found


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.itemsize // (2 if dtype.kind == "c" else 1) == 4 else np.dtype(np.float64)


def _reached(value: Rounded, target: Target) -> Any:
    """Where a target is proved to be met."""
    if target.kind == "correctly-rounded":
        return value.correct
    return relative_target(value, target.tolerance)


def _columns(value: Rounded, target: Target) -> Any:
    """The columns in which it is."""
    return host(_reached(value, target).all(axis=0))


def _one(a: Any, b: NDArray[Any], dtype: np.dtype[Any], target: Target, source: Operand, positive: bool) -> One:
    """One system, by its real form."""
    is_complex, real = dtype.kind == "c", _real(dtype)
    matrix, right = real_form(a, is_complex), stacked(b, is_complex)
    products = Products(source.device)
    if target.kind == "fast":
        solution = unproved.refined(matrix, right, products, positive)
    else:
        right = beside(right, matrix) if right.shape[1] > FEW else right
        solution = solve_real(matrix, right, lambda x: _columns(rounded(x, real), target), products, positive)
    return _rounded(solution, real, target, matrix)


def _rounded(solution: Solution, real: np.dtype[Any], target: Target, matrix: Any) -> One:
    """The parts of a solution that `_answer` needs."""
    value = rounded(solution.enclosure, real).fetched()
    solution = replace(solution, enclosure=solution.enclosure.fetched())
    # The norm serves the condition number, which needs an inverse.
    return _reached(value, target), value, solution, row_norm(matrix) if solution.inverse is not None else 0.0


def _least_squares(a: Any, b: NDArray[Any], dtype: np.dtype[Any], target: Target, source: Operand) -> One:
    """One problem, by the augmented system of its real form; what is judged is x alone."""
    is_complex, real = dtype.kind == "c", _real(dtype)
    matrix, right = real_form(a, is_complex), stacked(b, is_complex)
    (m, n), (matrix, columns) = matrix.shape, columns_scaled(matrix)
    singular = singular_values(matrix)
    # Any power of two serves; this one keeps the condition number near that of a (Björck 1967).
    size = float(max(singular[-1], singular[0] * 2.0**-52)) if n else 1.0
    s = 2.0 ** np.clip(np.frexp(size)[1] - 1, -1000, 1000) if size else 1.0
    upper = side_by_side([s * identity(m, matrix), matrix])
    wide = one_above_another([upper, side_by_side([matrix.T, zeros((n, n), matrix)])])
    tall = np.concatenate([right, np.zeros((n, right.shape[1]))])

    def lower(x: Enclosure) -> Enclosure:
        exponents = x.exponents[m:] + beside(columns[:, None], x.exponents)
        return Enclosure(tuple(part[m:] for part in x.parts), x.radius[m:], exponents)

    tall = beside(tall, wide) if tall.shape[1] > FEW else tall
    solution = solve_real(wide, tall, lambda x: _columns(rounded(lower(x), real), target), Products(source.device))
    return _rounded(replace(solution, enclosure=lower(solution.enclosure)), real, target, wide)


def _answer(
    found: tuple[tuple[int, ...], tuple[int, int], np.dtype[Any], list[One]],
    source: Operand,
    vector: bool,
    full_output: bool,
    target: Target,
    name: str,
) -> Any:
    """The result, or NotCertified with what is known."""
    batch, shape, dtype, ones = found
    whole = batch + (shape[:1] if vector else shape)
    is_complex = dtype.kind == "c"

    def joined(pieces: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
        return np.stack(pieces).astype(kind, copy=False).reshape(whole) if pieces else np.zeros(whole, kind)

    result = source.returned(joined([unstacked(value.value, is_complex) for _, value, _, _ in ones], dtype))
    report = None
    fast = target.kind == "fast"
    missed = [
        (solution, value, met) for met, value, solution, _ in ones
        if (np.isnan(value.value).any() if fast else not met.all())
    ]  # fmt: skip
    if full_output or missed:
        report = _report(ones, joined, batch, is_complex)
    if missed:
        solution, value, met = missed[0]
        where = "" if len(ones) == 1 else f", in {len(missed)} of {len(ones)} matrices"
        if fast:
            raise NotCertified(
                f"{name} is singular, or too close to it, or the solution overflows{where}", None, report
            )
        if solution.inverse is None or not np.isfinite(solution.enclosure.radius).any():
            raise NotCertified(f"{name} is singular, or too close to it for a proof{where}", None, report)
        if (~np.isfinite(value.value) & np.isfinite(solution.enclosure.radius)).any():
            raise NotCertified(f"the solution of {name} overflows {dtype}{where}", result, report)
        raise NotCertified(
            f"{int((~met).sum())} of {met.size} components miss accuracy={target}{where}; the error's report has the "
            "bounds that are proved",
            result, report,
        )  # fmt: skip
    return (result, report) if full_output else result


def _report(
    ones: list[One], joined: Callable[[list[NDArray[Any]], Any], NDArray[Any]], batch: tuple[int, ...], is_complex: bool
) -> SolveReport:
    """Of all systems of a batch."""
    most = max((len(solution.enclosure.parts) for _, _, solution, _ in ones), default=1)
    kind = np.complex128 if is_complex else np.float64

    def part(solution: Solution, i: int) -> NDArray[Any]:
        parts, exponents = solution.enclosure.parts, solution.enclosure.exponents
        return unstacked(np.ldexp(parts[i], exponents) if i < len(parts) else np.zeros(exponents.shape), is_complex)

    def radius(solution: Solution) -> Floats:
        # `rounded` with the first part alone has no rounding but that of the scaling to add.
        scaled = np.ldexp(solution.enclosure.radius, solution.enclosure.exponents)
        return np.where(solution.enclosure.radius > 0.0, np.nextafter(scaled, np.inf) + most * 2.0**-1073, 0.0)

    with np.errstate(all="ignore"):
        condition = np.array(
            [norm * solution.inverse_norm if norm else np.inf for _, _, solution, norm in ones]
        ).reshape(batch)
        contraction = np.array([np.inf if x.inverse is None else x.inverse.contraction for _, _, x, _ in ones]).reshape(
            batch
        )
        return SolveReport(
            joined([larger_half(value.bounds, is_complex) for _, value, _, _ in ones], np.float64),
            joined([~larger_half(~value.correct, is_complex) for _, value, _, _ in ones], np.bool_),
            tuple(joined([part(solution, i) for _, _, solution, _ in ones], kind) for i in range(most)),
            joined([larger_half(radius(solution), is_complex) for _, _, solution, _ in ones], np.float64),
            condition if batch else float(condition),
            contraction if batch else float(contraction),
            max((solution.steps for _, _, solution, _ in ones), default=0),
            max((len(x.inverse.parts) if x.inverse is not None else 0 for _, _, x, _ in ones), default=0),
        )
