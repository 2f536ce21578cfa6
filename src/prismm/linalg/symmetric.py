"""BLAS's products with symmetric and triangular matrices, to a stated accuracy: `gram`, `syrk`, `herk`, `symm`, `trmm`.

Names and arguments are those of the Level 3 BLAS (Dongarra, Du Croz, Hammarling and Duff 1990).

prismm computes about half the entries of a symmetric product and copies them across the diagonal: the result is
symmetric, or Hermitian, in every bit. A correctly rounded or reproducible entry depends on its row and its column
alone, so it has the bits of the whole product.

- By residues, and on a GPU by words, one product is made, without the tiles that lie above the diagonal. On a GPU its
  matrix is split once. NumPy calls BLAS's ``syrk`` for a matrix times its own transpose.
- Other products are made in panels: some rows at a time, times the columns up to the diagonal. Eight panels are 56 % of
  the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prismm import _api, dispatch
from prismm.core import arrays, threads
from prismm.core.request import finite_scalar
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.linalg.entries import is_complex
from prismm.linalg.operands import check_mirrored
from prismm.schemes.names import scheme_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TILE = 256
"""Rows and columns that are copied across the diagonal at a time: both stay in the cache."""

SMALLEST = 2048
"""Products up to this size are not made in panels, and diagonal blocks of triangular ones are multiplied whole: splits
and copies of smaller ones take what products save.
"""

KEYWORDS = ("accuracy", "scheme", "reproducible", "out_dtype", "engine", "threads")


def gram(a: Any, /, **keywords: Any) -> Any:
    """aᴴ·a, Hermitian in every bit, by about half the products.

    Args:
        a: (..., m, n): NumPy array or torch tensor of any type that `prismm.matmul` takes; bools are the numbers 0 and
            1, as in `prismm.gemm`.
        **keywords: accuracy, scheme, reproducible, out_dtype, engine and threads, as in `prismm.matmul`.

    Returns:
        (..., n, n), with the target of `prismm.matmul` in every entry; the diagonal of a complex one is real.

    Raises:
        ArgumentError: for other keywords. ShapeError: unless a is a matrix. Also the errors of `prismm.gemm`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.gram(np.array([[1.0, 2.0], [3.0, 4.0]]), accuracy="correctly-rounded")
    array([[10., 14.],
           [14., 20.]])
    """
    return _rank_k(a, None, 1.0, 0.0, "C", None, True, keywords)


def syrk(
    a: Any, c: Any = None, /, *, alpha: complex = 1.0, beta: complex = 0.0, trans: Literal["N", "T"] = "N",
    uplo: Literal["L", "U"] | None = None, **keywords: Any,
) -> Any:  # fmt: skip
    """alpha·a·aᵀ + beta·c, or alpha·aᵀ·a + beta·c for trans="T", symmetric in every bit.

    Args:
        a: (..., n, k), or (..., k, n) for trans="T".
        c: (..., n, n), symmetric; with ``uplo`` one triangle is read. Not read where beta is 0.
        alpha, beta: finite scalars, taken exactly; the sum is rounded as one, as in `prismm.gemm`.
        trans: "N" or "T".
        uplo: "L" or "U" returns that triangle alone; in the other one stands what c has there, rounded to the result's
            type, or 0 without c.
        **keywords: as in `gram`.

    Returns:
        (..., n, n), with the target of `prismm.gemm` in every entry.

    Raises:
        ArgumentError: for a c that is not symmetric, without uplo; entries that are NaN on both sides of the diagonal
            count as equal. The errors of `gram`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.syrk(np.array([[1.0], [2.0]]), np.eye(2), alpha=2.0, beta=1.0, uplo="L")
    array([[3., 0.],
           [4., 9.]])
    """
    _check(trans, ("N", "T"), "trans")
    return _rank_k(a, c, alpha, beta, trans, uplo, False, keywords)


def herk(
    a: Any, c: Any = None, /, *, alpha: float = 1.0, beta: float = 0.0, trans: Literal["N", "C"] = "N",
    uplo: Literal["L", "U"] | None = None, **keywords: Any,
) -> Any:  # fmt: skip
    """alpha·a·aᴴ + beta·c, or alpha·aᴴ·a + beta·c for trans="C", Hermitian in every bit, its diagonal real.

    Args:
        a: (..., n, k), or (..., k, n) for trans="C".
        c: (..., n, n), Hermitian; with ``uplo`` one triangle is read, and of its diagonal the real part.
        alpha, beta: finite real scalars, of any type; a complex one whose imaginary part is 0 is real.
        trans: "N" or "C".
        uplo: as in `syrk`.
        **keywords: as in `gram`.

    Returns:
        (..., n, n), with the target of `prismm.gemm` in every entry.

    Raises:
        ArgumentError: for complex scalars, and for a c that is not Hermitian, without uplo. The errors of `gram`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.herk(np.array([[1j], [2.0]]))
    array([[1.+0.j, 0.+2.j],
           [0.-2.j, 4.+0.j]])
    """
    _check(trans, ("N", "C"), "trans")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if finite_scalar(value, name).imag != 0:
            raise ArgumentError(f"{name}={value!r} is complex; herk takes real factors, syrk complex ones")
    return _rank_k(a, c, alpha, beta, trans, uplo, True, keywords)


def symm(
    a: Any, b: Any, c: Any = None, /, *, alpha: complex = 1.0, beta: complex = 0.0, side: Literal["L", "R"] = "L",
    uplo: Literal["L", "U"] | None = None, **keywords: Any,
) -> Any:  # fmt: skip
    """alpha·a·b + beta·c with a symmetric, or alpha·b·a + beta·c for side="R".

    Args:
        a: (..., n, n), symmetric; with ``uplo`` that triangle alone is read.
        b: (..., n, m), or (..., m, n) for side="R".
        c: of the result's shape.
        alpha, beta: as in `syrk`.
        side: where a stands, "L" or "R".
        uplo: "L" or "U".
        **keywords: as in `gram`.

    Returns:
        The sum, of b's shape, with the target of `prismm.gemm` in every entry.

    Raises:
        ArgumentError: for an a that is not symmetric, without uplo, as of c in `syrk`. The errors of `gram`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.symm(np.array([[1.0, 7.0], [2.0, 3.0]]), np.eye(2), uplo="L")
    array([[1., 2.],
           [2., 3.]])
    """
    _check(side, ("L", "R"), "side")
    _check_keywords(keywords)
    a = _whole(_array(a, "a"), uplo, False, "a")
    left, right = (a, _array(b, "b")) if side == "L" else (_array(b, "b"), a)
    return _api.gemm(left, right, c, alpha=alpha, beta=beta, **keywords)


def trmm(
    a: Any, b: Any, /, *, alpha: complex = 1.0, side: Literal["L", "R"] = "L", uplo: Literal["L", "U"] = "L",
    trans: Literal["N", "T", "C"] = "N", unit: bool = False, **keywords: Any,
) -> Any:  # fmt: skip
    """alpha·op(a)·b with a triangular, or alpha·b·op(a) for side="R", by about half the products.

    Blocks of rows of op(a) meet the rows of b up to the end of their diagonal block alone; K of the accuracy targets is
    as small.

    Args:
        a: (..., n, n), of which one triangle is read.
        b: (..., n, m), or (..., m, n) for side="R".
        alpha: as in `syrk`.
        side: where a stands, "L" or "R".
        uplo: the triangle, "L" or "U".
        trans: op, "N", "T" or "C".
        unit: whether the diagonal counts as ones, and is not read.
        **keywords: as in `gram`.

    Returns:
        The product, of b's shape, with the target of `prismm.matmul` in every entry.

    Raises:
        ArgumentError: for another side, uplo or trans. ShapeError: for shapes that do not fit. The errors of `gram`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.trmm(np.array([[2.0, 9.0], [1.0, 2.0]]), np.array([[1.0], [1.0]]))
    array([[2.],
           [3.]])
    """
    _check(side, ("L", "R"), "side")
    _check(uplo, ("L", "U"), "uplo")
    _check(trans, ("N", "T", "C"), "trans")
    if not isinstance(unit, (bool, np.bool_)):
        raise ArgumentError(f"unit={unit!r}; pass True or False")
    _check_keywords(keywords)
    a, b = _array(a, "a"), _array(b, "b")
    _check_square(a, "a")
    if b.ndim < 2 or b.shape[-2 if side == "L" else -1] != a.shape[-1]:
        raise ShapeError(f"a has shape {tuple(a.shape)}, b has shape {tuple(b.shape)}: they do not fit on side {side}")
    if trans != "N":
        a, uplo = _transposed(a, trans == "C"), ("U" if uplo == "L" else "L")
    lower = (uplo == "L") == (side == "L")
    if side == "R":  # (b·t)ᵀ = tᵀ·bᵀ
        return _swapped(_triangle(_swapped(a), _swapped(b), alpha, lower, unit, keywords))
    return _triangle(a, b, alpha, lower, unit, keywords)


def _triangle(a: Any, b: Any, alpha: complex, lower: bool, unit: bool, keywords: dict[str, Any]) -> Any:
    """alpha·t·b with t a triangle of a: blocks of rows of t, each up to the end of its diagonal block."""
    n = a.shape[-1]
    t = _where(_mask(a, n, lower), a, _zeros(a))
    if unit:
        t = _where(_diagonal(a, n), _zeros(a) + 1, t)
    step = max(SMALLEST, -(-n // 8))
    blocks = []
    for start in range(0, max(n, 1), step):
        end = min(start + step, n)
        met = slice(0, end) if lower else slice(start, n)
        blocks.append(_api.gemm(t[..., start:end, met], b[..., met, :], alpha=alpha, **keywords))
    return _joined(blocks, -2)


def _rank_k(
    a: Any, c: Any, alpha: complex, beta: complex, trans: str, uplo: Any, hermitian: bool, keywords: dict[str, Any]
) -> Any:
    """alpha·op(a)·op(a)ᵀ + beta·c; hermitian: with the conjugate transpose."""
    _check_keywords(keywords)
    a = _array(a, "a")
    if a.ndim < 2:
        raise ShapeError(f"a has shape {tuple(a.shape)}; pass a matrix")
    if uplo is not None:
        _check(uplo, ("L", "U"), "uplo")
    rows = _transposed(a, hermitian) if trans != "N" else a
    n = rows.shape[-2]
    reads = finite_scalar(beta, "beta") != 0
    if reads and c is None:
        raise ArgumentError(f"beta={beta!r} needs c; pass it, or beta=0")
    given = None if c is None or not (reads or uplo) else _array(c, "c")
    if given is not None:
        if arrays.is_tensor(given) != arrays.is_tensor(a) or (arrays.is_tensor(a) and given.device != a.device):
            raise OperandError("a and c are different kinds of arrays, or on different devices; convert one of them")
        if not _fits(given, rows, n):
            raise ShapeError(
                f"c has shape {tuple(given.shape)}, the product {(*rows.shape[:-2], n, n)}; pass equal shapes"
            )
    addend = _whole(given, uplo, hermitian, "c") if reads else None
    whole = _without_tiles(rows, addend, alpha, beta, hermitian, keywords)
    if whole is None:
        whole = _in_panels(rows, addend, alpha, beta, hermitian, keywords)
    if uplo is None:
        return whole
    other = _zeros(whole) if given is None else _of_type(given, whole)
    return _where(_mask(whole, n, uplo == "L"), whole, other)


def _fits(c: Any, rows: Any, n: int) -> bool:
    """Whether c has the last two dimensions of the product, and broadcasts to the others."""
    try:
        return np.broadcast_shapes(c.shape[:-2], rows.shape[:-2]) == tuple(rows.shape[:-2]) and c.shape[-2:] == (n, n)
    except ValueError:
        return False


def _of_type(c: Any, whole: Any) -> Any:
    """c in the type of the result."""
    if arrays.is_tensor(c):
        found = c.to(whole.dtype)
    else:
        with np.errstate(all="ignore"):
            found = (c if np.iscomplexobj(whole) else c.real).astype(whole.dtype)
    if is_complex(c) and not is_complex(whole):
        raise DTypeError(f"c has dtype {c.dtype}, the product {whole.dtype}; pass a real c")
    return found


def _without_tiles(rows: Any, c: Any, alpha: complex, beta: complex, hermitian: bool, keywords: dict[str, Any]) -> Any:
    """The product made without tiles above the diagonal; None where it cannot be: a tensor that torch has to follow, a
    scheme of rounded parts, small matrices of a batch.
    """
    if arrays.compiling() or arrays.traced(rows, rows if c is None else c):
        return None
    given = {"reproducible": False, **keywords}
    asked = (*(given.get(name) for name in KEYWORDS), None)
    factors = alpha, beta if c is not None else 0.0
    if arrays.lives_on_gpu(rows):
        return dispatch.symmetric(rows, c, factors, hermitian, asked)
    scheme = scheme_of(keywords.get("scheme"))
    serves = scheme is None or getattr(scheme, "reproducible", False) or getattr(scheme, "is_conventional", False)
    batch = tuple(rows.shape[:-2])
    if not serves or (batch and rows.shape[-2] <= SMALLEST // 4):
        return None
    x = arrays.normalise(rows, "a").data
    z = None if c is None else np.broadcast_to(arrays.normalise(c, "c").data, (*batch, *c.shape[-2:]))
    if not batch:
        whole = _by_tiles(x, z, factors, hermitian, asked)
    elif not x.size:
        return None
    else:
        found = [_by_tiles(x[at], None if z is None else z[at], factors, hermitian, asked) for at in np.ndindex(*batch)]
        whole = np.stack(found).reshape(*batch, *found[0].shape)
    if not arrays.is_tensor(rows):
        return whole
    import torch

    return torch.from_numpy(whole)


def _by_tiles(
    rows: NDArray[Any], c: Any, factors: tuple[complex, complex], hermitian: bool, asked: tuple[Any, ...]
) -> NDArray[Any]:  # fmt: skip
    """The whole product of a matrix in main memory; entries above the diagonal are copies of those below it."""
    whole: NDArray[Any] = dispatch.gemm(rows, rows, c, factors, ("N", "C" if hermitian else "T"), asked, lower=True)
    _mirror(whole, hermitian, asked[KEYWORDS.index("threads")])
    if hermitian and np.iscomplexobj(whole):
        np.fill_diagonal(whole.imag, 0.0)
    return whole


def _mirror(whole: NDArray[Any], hermitian: bool, workers: int | None) -> None:
    """Copy what lies below the diagonal of an array by rows across it."""
    n = len(whole)
    if whole.dtype in (np.float64, np.float32):
        from prismm.cpu.kernels.mirror import mirror, mirror_single

        kernel = mirror if whole.dtype == np.float64 else mirror_single
        # The last rows, which are the longest, first.
        starts = list(range(0, n, _TILE))[::-1]
        count = threads.worker_count(workers) if n > 2 * _TILE else 1
        threads.spread(lambda i: kernel(whole, i, min(n, i + _TILE)), starts, count, joining=True)
        return
    for i in range(0, n, _TILE):
        here = slice(i, i + _TILE)
        block = whole[here, here]
        whole[here, here] = _where(_mask(block, len(block), True), block, _transposed(block, hermitian))
        for j in range(i + _TILE, n, _TILE):
            there = slice(j, j + _TILE)
            whole[here, there] = _transposed(whole[there, here], hermitian)


def _in_panels(rows: Any, c: Any, alpha: complex, beta: complex, hermitian: bool, keywords: dict[str, Any]) -> Any:
    """The whole product, from panels of rows up to the diagonal; entries above it are copies."""
    n = rows.shape[-2]
    factors: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta if c is not None else 0.0,
        "trans_b": "C" if hermitian else "T",
    }
    step = max(1, n) if n <= SMALLEST else max(1, SMALLEST // 4, -(-n // 8))
    panels = []
    for start in range(0, max(n, 1), step):
        end = min(start + step, n)
        addend = None if c is None else c[..., start:end, :end]
        panel = _api.gemm(rows[..., start:end, :], rows[..., :end, :], addend, **factors, **keywords)
        panels.append(panel if end == n else _joined([panel, _no_entries(panel, n - end)], -1))
    whole = panels[0] if len(panels) == 1 else _joined(panels, -2)
    whole = _where(_mask(whole, n, True), whole, _transposed(whole, hermitian))
    return _real_diagonal(whole, n) if hermitian else whole


def _no_entries(panel: Any, columns: int) -> Any:
    """Zeros in so many columns more."""
    shape = (*panel.shape[:-1], columns)
    return panel.new_zeros(shape) if arrays.is_tensor(panel) else np.zeros(shape, panel.dtype)


def _real_diagonal(x: Any, n: int) -> Any:
    """x without the imaginary parts of its diagonal, which are exactly 0."""
    if not is_complex(x):
        return x
    return _where(_diagonal(x, n), x.real + _zeros(x), x)


def _array(x: Any, name: str) -> Any:
    """A tensor as it is, anything else as a NumPy array.

    Raises:
        OperandError: for a tensor that is no grid of entries, has none, or has to be followed by torch.
    """
    if not arrays.is_tensor(x):
        return arrays.normalise(x, name).data
    if not arrays.compiling():
        arrays.check_dense(x, name)
        if not arrays.sharded(x):
            arrays.refuse_traced(x, name)
        if x.is_meta:
            arrays.normalise(x, name)  # raises
    return x


def _check(value: Any, known: tuple[str, ...], name: str) -> None:
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name}={value!r}; pass {' or '.join(map(repr, known))}")


def _check_keywords(keywords: dict[str, Any]) -> None:
    for name in keywords:
        if name not in KEYWORDS:
            raise ArgumentError(f"unknown keyword {name!r}; pass {', '.join(KEYWORDS)}")


def _check_square(x: Any, name: str) -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}; pass a square matrix (..., n, n)")


def _whole(x: Any, uplo: Any, hermitian: bool, name: str) -> Any:
    """The symmetric or Hermitian matrix that x is, or that its triangle gives."""
    _check_square(x, name)
    n = x.shape[-1]
    if uplo is None:
        if bool((x != _transposed(x, hermitian)).any()):
            data = x.detach().cpu().resolve_conj().numpy() if arrays.is_tensor(x) else x
            check_mirrored(data, name, hermitian, "; pass uplo='L' or 'U' to read one triangle")
        return x
    _check(uplo, ("L", "U"), "uplo")
    whole = _where(_mask(x, n, uplo == "L"), x, _transposed(x, hermitian))
    return _real_diagonal(whole, n) if hermitian else whole


def _mask(like: Any, n: int, lower: bool) -> Any:
    """The lower or upper triangle, diagonal included, as a mask."""
    if arrays.is_tensor(like):
        import torch

        square = torch.ones(n, n, dtype=torch.bool, device=like.device)
        return square.tril() if lower else square.triu()
    ones = np.ones((n, n), bool)
    return np.tril(ones) if lower else np.triu(ones)


def _diagonal(like: Any, n: int) -> Any:
    return _mask(like, n, True) & _mask(like, n, False)


def _zeros(like: Any) -> Any:
    if arrays.is_tensor(like):
        import torch

        return torch.zeros_like(like)
    return np.zeros_like(like)


def _where(mask: Any, x: Any, y: Any) -> Any:
    if arrays.is_tensor(x):
        import torch

        return torch.where(mask, x, y)
    return np.where(mask, x, y)


def _swapped(x: Any) -> Any:
    return x.mT if arrays.is_tensor(x) else np.swapaxes(x, -1, -2)


def _transposed(x: Any, conjugate: bool) -> Any:
    x = _swapped(x)
    if not conjugate:
        return x
    # `np.conj` copies a real array; the method returns the array itself.
    return x.conj().resolve_conj() if arrays.is_tensor(x) else x.conj()


def _joined(blocks: list[Any], axis: int) -> Any:
    if arrays.is_tensor(blocks[0]):
        import torch

        return torch.cat(blocks, dim=axis)
    return np.concatenate(blocks, axis=axis)
