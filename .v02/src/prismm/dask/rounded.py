"""Products of native grade whose inner dimension lies in pieces: the pieces' products, added in a tree.

Bound. A piece of K_p terms, with S_p = |a||b| of its own, errs by at most K_p·(u·S_p + η); with K_q terms in the
longest piece, all together by at most K_q·u·S + K·η. Rounded sums of P numbers, in any order, err by at most
(P - 1)·u·Σ|terms| (Jeannerod and Rump 2013, proposition 3.1), where Σ|terms| <= S + K_q·u·S + K·η. Empty pieces are
zeros and count for nothing, so K_q <= K - P + 1, and

    |c - exact| <= (K_q + (P - 1)·(1 + K_q·u))·u·S + (1 + P·u)·K·η <= K·(1 + P·u)·(u·S + η).

Where a sum overflows on the way, the pieces are added again in float64, of operands times 2^-540: no sum of 2^50 terms
overflows then. What underflows is below 2^490 a term for float64, and below 2^6 for float32, while S is at least
2^1023, or 2^127. Operands are no wider than the result here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np

from prismm import dispatch
from prismm.core.outcome import real_parts
from prismm.dask.operands import Call, chunk, labels, mapped, multiplied, token
from prismm.dask.trees import added

if TYPE_CHECKING:
    from numpy.typing import NDArray


SCALE = -540
"""Operands are multiplied by 2 to this power where sums overflow."""


class Sum(NamedTuple):
    """Rounded sums of a result chunk.

    Attributes:
        value: as they are.
        scaled: times 2^(2·SCALE), in float64, where some value is not finite; else None.
    """

    value: NDArray[Any]
    scaled: NDArray[Any] | None


def product(a: da.Array, b: da.Array, call: Call) -> da.Array:
    """The sum of the pieces' products, of operands no wider than the result."""
    name, names = token(a, b, None, call), labels(a, b)[2]
    pieces = multiplied(_piece, a, b, name="prismm-rounded-" + name, dtype=call.dtype, call=call)
    total = added(pieces, _add, call.dtype)
    return mapped(_finish, names, total.chunks, total, names, name="prismm-sum-" + name, dtype=call.dtype)


@np.errstate(all="ignore")
def _piece(a: Any, b: Any, *, call: Call) -> Sum:
    call.check()
    a, b = chunk(a), chunk(b)
    value = np.asarray(dispatch.matmul(a, b, call.task_keywords))
    if np.isfinite(value).all():
        return Sum(value, None)
    wide = "complex128" if value.dtype.kind == "c" else "float64"
    keywords = (*call.task_keywords[:3], wide, *call.task_keywords[4:])
    return Sum(value, np.asarray(dispatch.matmul(_times(a, SCALE), _times(b, SCALE), keywords)))


def _times(x: NDArray[Any], power: int) -> NDArray[Any]:
    """x·2^power in float64, real and imaginary parts apart."""
    found = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    for part in real_parts(found):
        np.ldexp(part, power, out=part)
    return found


@np.errstate(all="ignore")
def _add(sums: list[Sum]) -> Sum:
    value = functools.reduce(np.add, [x.value for x in sums])
    if all(x.scaled is None for x in sums) and np.isfinite(value).all():
        return Sum(value, None)
    scaled = [x.scaled if x.scaled is not None else _times(x.value, 2 * SCALE) for x in sums]
    return Sum(value, functools.reduce(np.add, scaled))


@np.errstate(all="ignore")
def _finish(total: Sum) -> NDArray[Any]:
    if total.scaled is None:
        return total.value
    found, whole = total.value.copy(), _times(total.scaled, -2 * SCALE)
    for part, other in zip(real_parts(found), real_parts(whole), strict=True):
        part[...] = np.where(np.isfinite(part), part, other)
    return found
