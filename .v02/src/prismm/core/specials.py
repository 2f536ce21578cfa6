"""Entries that meet Inf or NaN: what the defining sum gives, from signs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side


def signs(x: NDArray[Any]) -> NDArray[np.float64]:
    """-1, 0, 1 for finite numbers; Inf and NaN stay."""
    x = np.asarray(x, dtype=np.float64)
    return np.where(np.isfinite(x), np.sign(x), x)


def special_product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """The IEEE value of Σ a_h·b_h for each row of a (m, k) and column of b (k, n) of which one holds Inf or NaN.

    Signs cannot overflow, so ±Inf and NaN come from the operands' own: Inf·0 and Inf - Inf are NaN. Entries whose
    row and column are both finite are meaningless here.
    """
    m, k = a.shape
    n = b.shape[1]
    left, right = signs(a), signs(b)
    out = np.zeros((m, n))
    with np.errstate(invalid="ignore"):
        # einsum without BLAS: no library's shortcut for zero factors may hide a NaN.
        step = max(1, (1 << 22) // max(1, n))
        for h in range(0, k, step):
            out += np.einsum("ik,kj->ij", left[:, h : h + step], right[h : h + step], optimize=False)
    return out


def real_operands(a: NDArray[Any], b: NDArray[Any], part: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Real matrices whose product is the real (part 0) or imaginary (1) part of a·b, for complex a and b, or a, b
    themselves.
    """
    if not np.iscomplexobj(a):
        return a, b
    if part == 0:
        return np.concatenate([a.real, -a.imag], axis=1), np.concatenate([b.real, b.imag], axis=0)
    return np.concatenate([a.real, a.imag], axis=1), np.concatenate([b.imag, b.real], axis=0)


def patch(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    rows: NDArray[np.bool_],
    columns: NDArray[np.bool_],
    epilogue: Any = None,
) -> int:
    """Set the entries of `out` whose row of a or column of b is not finite; returns how many (real parts counted)."""
    if not rows.any() and not columns.any():
        return 0
    i = np.flatnonzero(rows)
    j = np.flatnonzero(columns)
    complex_result = np.iscomplexobj(out)
    for selection in ("rows", "columns"):
        x, y = (a[i], b) if selection == "rows" else (a, b[:, j])
        if x.shape[0] == 0 or y.shape[1] == 0:
            continue
        count = 2 if complex_result else 1
        values = [special_product(*real_operands(x, y, part)) for part in range(count)]
        where = (i, slice(None)) if selection == "rows" else (slice(None), j)
        if epilogue is not None and not epilogue.trivial:
            parts = [] if epilogue.c is None else _parts(epilogue.c[where], count)
            values = [_summed(epilogue, part, values, parts) for part in range(count)]
        for part, value in enumerate(values):
            _parts(out, count)[part][where] = value
    touched = i.size * out.shape[1] + j.size * out.shape[0] - i.size * j.size
    return int(touched) * (2 if complex_result else 1)


def patch_addend(out: NDArray[Any], epilogue: Any, keep: NDArray[np.bool_]) -> tuple[list[NDArray[np.bool_]], int]:
    """Set the real parts of alpha·AB + beta·C, with AB finite, that meet Inf or NaN in C: to beta·C.

    A zero part of beta leaves that part of C alone. keep: entries that have their value. Returns a mask per real part,
    and the count.
    """
    parts = _parts(out, 2 if np.iscomplexobj(out) else 1)
    masks = [np.zeros(out.shape, np.bool_) for _ in parts]
    if epilogue is None or epilogue.c is None or epilogue.trivial or np.isfinite(epilogue.c).all():
        return masks, 0
    for part, (target, mask) in enumerate(zip(parts, masks, strict=True)):
        value = _summed(epilogue, part, [np.zeros(out.shape)] * len(parts), _parts(epilogue.c, len(parts)))
        mask |= ~np.isfinite(value) & ~keep
        target[mask] = value[mask]
    return masks, sum(int(mask.sum()) for mask in masks)


def _parts(x: NDArray[Any], count: int) -> list[NDArray[Any]]:
    """x, or its two real parts."""
    return [x] if count == 1 else [x.real, x.imag]


def _summed(epilogue: Any, part: int, products: list[NDArray[Any]], addends: list[NDArray[Any]]) -> NDArray[np.float64]:
    """A part of alpha·AB + beta·C from the signs of its terms: a zero part of a factor leaves what it would multiply
    alone, and a finite term that overflows is not special.
    """
    factors = epilogue.factors(part, len(products))
    terms = [*zip(factors[:2], products, strict=False), *zip(factors[2:], addends, strict=False)]
    value = np.zeros(products[0].shape)
    with np.errstate(invalid="ignore"):
        for factor, term in terms:
            if factor != 0.0:
                value = value + np.sign(factor) * signs(term)
    return value


def layout(x: NDArray[Any], part: int, side: Side) -> NDArray[Any]:
    """The real operand of this side for the real (part 0) or imaginary (1) part of a product; x itself if real."""
    if not np.iscomplexobj(x):
        return x
    if side == "left":
        return np.concatenate([x.real, x.imag if part else -x.imag], axis=1)
    return np.concatenate([x.imag, x.real] if part else [x.real, x.imag], axis=0)
