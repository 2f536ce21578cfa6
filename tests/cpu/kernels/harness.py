"""Compiled kernels called by parameter name, and the exact integers that they are judged by."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from prismm.core.moduli import ResidueSystem, norm_limit, residue_system
from prismm.formats import FP32, FP64, Format, round_fraction

LARGEST = {"int8": 256, "int8-7bit": 128, "float64": 1 << 22}
"""The largest modulus of each engine's system."""

KINDS = LARGEST | {"digits": 256}
"""The same of each kind of product that is joined: bytes that are reduced already are one."""

FORMATS = {53: FP64, 24: FP32}
REAL, DIFFERENCE, CROSS = 0, 1, 2
RAW, ROUNDING, MAGNITUDE, PAIR = 0, 1, 2, 3


def call(kernel: Any, **values: Any) -> Any:
    """The kernel on arguments given by name; what it has no parameter for is left out."""
    return kernel(*(values[name] for name in inspect.signature(kernel.function).parameters))


def systems() -> Iterator[tuple[int, str, ResidueSystem]]:
    """Every system that any engine uses: (moduli of the scheme, kind, system)."""
    for moduli in range(2, 23):
        for kind, largest in LARGEST.items():
            yield moduli, kind, residue_system(moduli, largest)


def largest_product(moduli: int) -> int:
    """The largest |C'| that scaled operands may have."""
    return norm_limit(moduli) // 2


def exact_power(exponent: int) -> Fraction:
    """2^exponent."""
    return Fraction(2) ** exponent


def rn(x: Fraction, fmt: Format) -> float:
    """RN of a dyadic fraction."""
    return round_fraction(fmt, x.numerator, 1 - x.denominator.bit_length())


def integers(x: Any) -> tuple[list[int], int]:
    """A float vector as integers and the e of their common unit 2^-e."""
    ratios = [float(v).as_integer_ratio() for v in x]
    places = max((d.bit_length() for _, d in ratios), default=1)
    return [n << (places - d.bit_length()) for n, d in ratios], places - 1


def dot(a: Any, b: Any) -> Fraction:
    """The exact dot product of two float vectors."""
    (x, e), (y, f) = integers(a), integers(b)
    return Fraction(sum(v * w for v, w in zip(x, y, strict=True)), 1 << (e + f))


def same_bits(got: Any, expected: Any) -> bool:
    """Equal as float64 bit patterns: signs of zero count."""
    return bool(
        np.array_equal(np.asarray(got, np.float64).view(np.int64), np.asarray(expected, np.float64).view(np.int64))
    )


def differing(got: Any, expected: Any) -> list[tuple[int, float, float]]:
    """The first places where two float64 vectors differ in bits."""
    x, y = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return [(int(i), float(x[i]), float(y[i])) for i in np.flatnonzero(x.view(np.int64) != y.view(np.int64))[:5]]


def hostile_integers(limit: int, rng: np.random.Generator, count: int) -> list[int]:
    """Integers of at most `limit` in magnitude, at which a multi-limb join could stumble."""
    bits = limit.bit_length()
    found = [0, 1, limit, limit - 1, limit // 2, limit // 2 + 1]
    for i in range(bits):
        found += [1 << i, (1 << i) + 1, (1 << i) - 1]
    for limb in (20, 22, 39, 40, 43, 44, 79, 80, 81, 119, 120, 159, 160):
        found += [(1 << limb) + d * (1 << e) for d in (-1, 1) for e in (0, 1, 27, 39, 40, 53) if e <= limb]
    while len(found) < count:
        length = int(rng.integers(1, bits + 1))
        kind = int(rng.integers(0, 5))
        if kind == 0:  # any integer
            value = int.from_bytes(rng.bytes(32), "little") >> (256 - length)
        elif kind in (1, 2):  # a midpoint of float64 or float32, or one next to it
            precision = 53 if kind == 1 else 24
            odd = 2 * int(rng.integers(1 << (precision - 1), 1 << precision)) + 1
            scale = max(0, int(rng.integers(0, max(1, bits - precision))))
            value = (odd << scale) + int(rng.integers(-1, 2))
        elif kind == 3:  # limbs at their borders
            borders = [0, 1, -1, 1 << 39, -(1 << 39), (1 << 39) - 1, 1 - (1 << 39)]
            value = sum(borders[int(rng.integers(0, 7))] << (40 * x) for x in range(-(-length // 40)))
        else:  # nearly a power of two
            value = (1 << length) - (1 << int(rng.integers(0, length))) + int(rng.integers(-1, 2))
        found.append(value)
    return [sign * v for v in found if abs(v) <= limit for sign in (1, -1)]


def encode(
    system: ResidueSystem, values: list[int], part: int, rng: np.random.Generator, wide: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Products (moduli, 1, n) of which the given part (D, D - E or F - D - E) joins to these integers.

    Any representative will do, so random multiples of the modulus and random E, D are drawn, as large as sums may be.
    """
    count, n = len(system.moduli), len(values)
    q_product = math.prod(system.moduli)
    top = 1 << (50 if wide else 31)
    shape = (count, 1, n)
    c0, c1, c2 = (np.zeros(shape, np.int64) for _ in range(3))
    for index, q in enumerate(system.moduli):
        inverse = pow(q_product // q, -1, q)
        digit = np.array([v * inverse % q for v in values], np.int64)
        others = rng.integers(-top + 2 * q, top - 2 * q, (2, n))
        if part == REAL:
            c0[index, 0] = _representative(digit, q, others[0])
        elif part == DIFFERENCE:
            c1[index, 0] = others[0]
            c0[index, 0] = _representative(digit + others[0] % q, q, others[1])
        else:
            c0[index, 0], c1[index, 0] = others
            c2[index, 0] = _representative(
                digit + others[0] % q + others[1] % q, q, rng.integers(-top + 2 * q, top - 2 * q, n)
            )
    kind = np.float64 if wide else np.int32
    assert max(abs(x).max(initial=0) for x in (c0, c1, c2)) < top
    return c0.astype(kind), c1.astype(kind), c2.astype(kind)


def _representative(digit: np.ndarray, q: int, near: np.ndarray) -> np.ndarray:
    """The number congruent to `digit` next to `near`."""
    return near - (near - digit) % q


def bound_vectors(bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column terms (one row) with which the kernel's bound of entry j is exactly bounds[j]."""
    n = len(bounds)
    rows, columns = np.zeros((4, 1)), np.zeros((4, n))
    rows[1, 0] = rows[3, 0] = 1.0
    columns[0] = columns[2] = bounds
    return rows, columns


def join(
    system: ResidueSystem,
    values: list[int],
    shift: Any,
    rng: np.random.Generator,
    *,
    kind: str,
    part: int = REAL,
    precision: int = 53,
    mode: int = RAW,
    bounds: Any = None,
    kappa: float = 0.0,
    **more: Any,
) -> tuple[np.ndarray, np.ndarray, set[int]]:
    """Join one row of integers: (values as float64, low parts, listed entries)."""
    from prismm.cpu.kernels import join as kernels
    from tests.cpu.kernels import panels

    n = len(values)
    rows, columns = bound_vectors(np.zeros(n) if bounds is None else np.asarray(bounds, np.float64))
    c0, c1, c2 = encode(system, values, part, rng, kind == "float64")
    out, out32 = np.full((1, n), np.nan), np.full((1, n), np.nan, np.float32)
    low, failed = np.full((1, n), np.nan), np.empty(n, np.int32)
    arguments = {
        "c": c0, "c0": c0, "c1": c1, "c2": c2, "part": part,
        "limbs": system.limbs, "split": system.digit_split, "modulus": system.modulus, "reciprocal": system.reciprocal,
        "weights": system.weights, "product": system.product, "quotient": system.quotient,
        "row_shift": np.zeros(1, np.int64), "column_shift": np.zeros(n, np.int64) + shift,
        "row_terms": rows, "column_terms": columns, "terms": 0.0, "row_power": np.zeros(1, np.int64),
        "column_power": np.zeros(n, np.int64), "row_counts": np.empty((1, 0), np.int64),
        "column_counts": np.empty((n, 0), np.int64), "k": 1, "mode": mode, "kappa": kappa, "magnitude_kappa": kappa,
        "precision": precision, "out": out, "out32": out32, "low": low, "failed": failed,
    }  # fmt: skip
    arguments.update(more)
    if kind == "digits":
        kernel = panels.join_panels
        arguments["digits"] = np.stack([panels.digits_of(x, system.moduli, rng) for x in (c0, c1, c2)])
    elif kind == "float64":
        kernel = kernels.join_float64
    elif part == REAL and system.limbs <= 4:
        kernel = kernels.join_fused
    else:
        kernel = kernels.join_int32
    count = call(kernel, **arguments)
    listed = failed[:count].tolist()
    assert len(set(listed)) == count
    return (out if precision == 53 else out32.astype(np.float64))[0], low[0], set(listed)
