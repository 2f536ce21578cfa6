"""Norms of matrices without overflow, as a float64 and an exponent: what `prismm.metrics` divides.

The 2-norm is the largest singular value: from LAPACK's singular values up to n = 512, beyond that from a Lanczos
iteration (Golub and Van Loan 2013, §10.4), which comes from below and is within 10^-3 as a rule.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prismm.errors import ArgumentError, ShapeError

__all__ = ["Order", "matrix_norm", "scaled_norm"]

Order = Literal[1, 2, "fro"] | float
"""1: largest column sum of magnitudes; 2: largest singular value; inf: largest row sum; "fro": Frobenius."""

_DIRECT = 512
_STEPS = 150


def matrix_norm(x: NDArray[Any], p: Order = 2) -> float:
    """‖x‖_p: the operator norms of order 1, 2 and inf, and the Frobenius norm.

    Args:
        x: (m, n), real or complex floating point.
        p: 1, 2, ``numpy.inf`` or "fro".

    Returns:
        0.0 for an empty matrix, inf where an entry is infinite, NaN where one is NaN.

    Raises:
        ArgumentError: for another p.
        ShapeError: if x is no matrix.

    >>> import numpy as np
    >>> from prismm.metrics import matrix_norm
    >>> x = np.array([[3.0, 0.0], [4.0, 5.0]])
    >>> [matrix_norm(x, p) for p in (1, np.inf)], round(matrix_norm(x, 2) ** 2)
    ([7.0, 9.0], 45)
    """
    fraction, exponent = scaled_norm(x, p)
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(fraction, exponent))


def scaled_norm(x: NDArray[Any], p: Order) -> tuple[float, int]:
    """The norm as fraction·2^exponent: it neither overflows nor vanishes. Arguments as `matrix_norm`."""
    x = np.asarray(x)
    if p not in (1, 2, np.inf, "fro"):
        raise ArgumentError(f"p={p!r} is no norm known here; pass 1, 2, numpy.inf or 'fro'")
    if x.ndim != 2:
        raise ShapeError(f"x has shape {x.shape}; pass a matrix")
    parts = [x.real, x.imag] if np.iscomplexobj(x) else [x]
    sizes = [np.abs(part.astype(np.float64)) for part in parts]
    largest = max((float(np.max(size, initial=0.0)) for size in sizes), default=0.0)
    if any(np.isnan(size).any() for size in sizes):
        return float("nan"), 0
    if largest == 0.0 or np.isinf(largest):
        return largest, 0
    exponent = int(np.frexp(largest)[1])
    scaled = [np.ldexp(part.astype(np.float64), -exponent) for part in parts]
    if p == 2:
        whole = scaled[0] if len(scaled) == 1 else scaled[0] + 1j * scaled[1]
        return _spectral(whole), exponent
    size = np.abs(scaled[0]) if len(scaled) == 1 else np.hypot(*scaled)
    if p == "fro":
        return float(np.linalg.norm(size.ravel())), exponent
    return float(np.max(size.sum(axis=0 if p == 1 else 1))), exponent


def _spectral(x: NDArray[Any]) -> float:
    """The largest singular value of a finite matrix that is not 0."""
    if min(x.shape) <= _DIRECT:
        return float(np.linalg.norm(x, 2))
    return _lanczos(x if x.shape[0] >= x.shape[1] else x.conj().T)


def _lanczos(x: NDArray[Any]) -> float:
    """Golub-Kahan-Lanczos bidiagonalisation with full reorthogonalisation, from a fixed start; from below."""
    rng = np.random.default_rng(0)
    v = np.asarray(rng.standard_normal(x.shape[1]), x.dtype)
    v /= np.linalg.norm(v)
    right: list[NDArray[Any]] = [v]
    left: list[NDArray[Any]] = []
    alphas: list[float] = []
    betas: list[float] = []
    found = 0.0
    for step in range(min(_STEPS, x.shape[1])):
        u = x @ right[-1]
        for known in left:
            u -= np.vdot(known, u) * known
        alphas.append(float(np.linalg.norm(u)))
        if alphas[-1] > 0.0:
            u /= alphas[-1]
        left.append(u)
        v = x.conj().T @ u
        for known in right:
            v -= np.vdot(known, v) * known
        beta = float(np.linalg.norm(v))
        if step % 10 == 9 or beta <= 1e-12 * alphas[0]:
            upper = np.diag(alphas) + np.diag(betas, 1)
            before, found = found, float(np.linalg.norm(upper, 2))
            if beta <= 1e-12 * alphas[0] or found - before <= 1e-6 * found:
                return found
        betas.append(beta)
        right.append(v / beta)
    return float(np.linalg.norm(np.diag(alphas) + np.diag(betas[: len(alphas) - 1], 1), 2))
