"""Entries that meet Inf or NaN: what the defining sum gives, from signs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        value: NDArray[Any] = np.empty((x.shape[0], y.shape[1]), np.complex128 if complex_result else np.float64)
        for part in range(2 if complex_result else 1):
            target = (value.real, value.imag)[part] if complex_result else value
            target[...] = special_product(*real_operands(x, y, part))
        where = (i, slice(None)) if selection == "rows" else (slice(None), j)
        if epilogue is not None and not epilogue.trivial:
            with np.errstate(invalid="ignore", over="ignore"):
                alpha = epilogue.alpha if complex_result else epilogue.alpha.real
                value = alpha * value
                if epilogue.c is not None:
                    beta = epilogue.beta if complex_result else epilogue.beta.real
                    value = value + beta * epilogue.c[where]
        out[where] = value
    touched = i.size * out.shape[1] + j.size * out.shape[0] - i.size * j.size
    return int(touched) * (2 if complex_result else 1)


def patch_addend(out: NDArray[Any], epilogue: Any, keep: NDArray[np.bool_]) -> tuple[list[NDArray[np.bool_]], int]:
    """Set the real parts of alpha·AB + beta·C, with AB finite, that meet Inf or NaN in C: to beta·C.

    A zero part of beta leaves that part of C alone. keep: entries already settled. Returns a mask per real part, and
    the count.
    """
    parts = [out.real, out.imag] if np.iscomplexobj(out) else [out]
    masks = [np.zeros(out.shape, np.bool_) for _ in parts]
    if epilogue is None or epilogue.c is None or epilogue.trivial or np.isfinite(epilogue.c).all():
        return masks, 0
    beta = complex(epilogue.beta)
    c = epilogue.c
    if len(parts) == 1:
        terms = [[(beta.real, c)]]
    else:
        terms = [[(beta.real, c.real), (-beta.imag, c.imag)], [(beta.imag, c.real), (beta.real, c.imag)]]
    for part, mask, some in zip(parts, masks, terms, strict=True):
        value = np.zeros(out.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            for factor, addend in some:
                if factor != 0.0:
                    # signs only: a finite product that overflows is not special
                    value = value + np.sign(factor) * signs(addend)
        mask |= ~np.isfinite(value) & ~keep
        part[mask] = value[mask]
    return masks, sum(int(mask.sum()) for mask in masks)
