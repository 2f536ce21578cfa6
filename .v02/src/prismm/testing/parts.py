"""Real and complex matrices as tuples of exact parts, and the operations of the reference on them.

A real matrix is ``(real,)`` and a complex one ``(real, imaginary)``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prismm.errors import ArgumentError
from prismm.testing.dyadic import Backend, Dyadic, multiply

__all__ = [
    "Parts",
    "Side",
    "add",
    "moduli",
    "moduli_product",
    "product",
    "read",
    "real_arrays",
    "scalar",
    "scaled",
]

Parts: TypeAlias = tuple[Dyadic, ...]
Side: TypeAlias = Literal["down", "up"]

_GUARD_BITS = 128  # kept below the last bit of an operand in the modulus of a complex entry


def real_arrays(x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The real array, or the two of a complex one (views)."""
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def read(x: NDArray[Any]) -> Parts:
    """The exact parts of a finite array."""
    return tuple(Dyadic.from_array(part) for part in real_arrays(x))


def scalar(name: str, value: complex) -> Parts:
    """The exact parts of a finite factor, of shape (1, 1)."""
    if not np.isfinite(value):
        raise ArgumentError(f"{name}={value} is not finite; pass a finite float or complex")
    return read(np.full((1, 1), value))


def add(x: Parts, y: Parts) -> Parts:
    """x + y, real or complex each."""
    if len(x) < len(y):
        x, y = y, x
    return (x[0] + y[0], *(x[1:] if len(y) == 1 else (x[1] + y[1],)))


def _bilinear(x: Parts, y: Parts, times: Callable[[Dyadic, Dyadic], Dyadic]) -> Parts:
    """The complex product from real ones, whatever ``times`` is."""
    if len(x) == len(y) == 1:
        return (times(x[0], y[0]),)
    if len(x) == 1:
        return (times(x[0], y[0]), times(x[0], y[1]))
    if len(y) == 1:
        return (times(x[0], y[0]), times(x[1], y[0]))
    return (times(x[0], y[0]) - times(x[1], y[1]), times(x[0], y[1]) + times(x[1], y[0]))


def product(x: Parts, y: Parts, backend: Backend | None) -> Parts:
    """The exact matrix product, from four real ones if both are complex."""
    return _bilinear(x, y, lambda p, q: multiply(p, q, backend))


def scaled(factor: Parts, x: Parts) -> Parts:
    """x times a factor of shape (1, 1)."""
    return _bilinear(factor, x, lambda p, q: p.times(q))


def moduli(x: Parts, way: Side) -> Dyadic:
    """|x| entry by entry; of complex x a bound on that side, by 128 bits past its last one."""
    if len(x) == 1:
        return abs(x[0])
    real, imaginary = x
    low = np.minimum(real.exponents, imaginary.exponents)
    squares = (real.times(real) + imaginary.times(imaginary)).numerators  # over 4^low
    root = np.frompyfunc(lambda s: _root(s << (2 * _GUARD_BITS), way), 1, 1)
    return Dyadic(root(squares), low - _GUARD_BITS)


def _root(square: int, way: Side) -> int:
    floor = isqrt(square)
    return floor + (way == "up" and floor * floor < square)


def moduli_product(x: Parts, y: Parts, way: Side, backend: Backend | None) -> Dyadic:
    """|x| @ |y|; a bound on that side where a modulus is irrational."""
    return multiply(moduli(x, way), moduli(y, way), backend)
