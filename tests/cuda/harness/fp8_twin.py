"""Slow twins of the FP8 kernels, an FP8 unit of few bits for Triton's interpreter, and programs of whole products."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from prismm.core import accuracy
from prismm.core.fp8_moduli import digit_table, fp8_moduli
from prismm.core.moduli import coprime_moduli, scheme_product
from prismm.core.problem import Problem
from prismm.cuda.backend import GpuCall
from prismm.cuda.blocks import Blocks
from prismm.cuda.device import FP8, Device
from prismm.cuda.execute import _queued
from prismm.cuda.plan import LaunchPlan
from prismm.cuda.residues.fp8 import family_for
from prismm.formats import E4M3, FP32, FP64
from prismm.numerics import encodings
from prismm.schemes.residues import Residues

UNITS = {
    "blackwell": Device("interpreter", False, True, 4, fp8_sum_bits=24),
    "any": Device("interpreter", False, False, 4, fp8_sum_bits=24),
    "hopper": Device("interpreter", True, True, 4, fp8_sum_bits=14),
    "ada": Device("interpreter", False, False, 4, fp8_sum_bits=14),
}
"""Devices by how their FP8 sums are made, in Triton's interpreter."""


def program_of(
    a: Any, b: Any, out: Any, moduli: int, target: str | None, device: Device, engine: str = FP8, c: Any = None
) -> Any:
    """out = a @ b (+ c) of tensors (batch, ·, ·) by an engine of residues."""
    form = FP64 if out.dtype in (torch.float64, torch.complex128) else FP32
    chosen = accuracy.parse_target(target) if target else None
    m, k, n = a.shape[1], a.shape[2], b.shape[2]
    problem = Problem(m, n, k, (), form, chosen, False, True, out.is_complex(), c is not None)
    planned = LaunchPlan(Residues(moduli), engine, (), Blocks(m, n, 0, 2))
    call = GpuCall(
        (), (), (), out.dtype, ("", ""), planned, problem, device, 0, SimpleNamespace(target=chosen), None
    )  # fmt: skip
    return _queued(call, a, b, out, False, c).program


# --- Twins ------------------------------------------------------------------------------------------------------------


def scaled(x: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """A' = RN(x·2^s), ties to even, as Python's integers; rows of real numbers that are not finite are 0."""
    found = np.zeros(x.shape, object)
    for i, row in enumerate(x.astype(np.float64)):
        if np.isfinite(row).all():
            for h, value in enumerate(row):
                numerator, denominator = float(value).as_integer_ratio()
                shift = int(shifts[i])
                numerator, denominator = numerator << max(shift, 0), denominator << max(-shift, 0)
                quotient, rest = divmod(numerator, denominator)
                up = 2 * rest > denominator or (2 * rest == denominator and quotient % 2)
                found[i, h] = quotient + int(up)
    return found


def digit_planes(integers: np.ndarray, moduli: int, device: Device, *, left: bool) -> np.ndarray:
    """Patterns (products, vectors, k) of the digits of integers (vectors, k)."""
    family = family_for(device)
    chosen = fp8_moduli(moduli, family)
    whole, planes = math.prod(chosen), []
    for q in chosen:
        factor = pow(whole // q, -1, q) if left else 1
        residues = (integers * factor % q).astype(np.int64)
        planes += list(digit_table(q, family).digits[:, residues])
    return encodings.encode(np.array(planes, np.float64), E4M3).astype(np.uint8)


def product_residues(left: np.ndarray, right: np.ndarray, moduli: int, device: Device) -> np.ndarray:
    """Residues (products, m, n) of products of planes (products, ·, k), as exact integers."""
    family = family_for(device)
    owners = [q for q in fp8_moduli(moduli, family) for _ in digit_table(q, family).weights]
    x, y = (encodings.decode(planes, E4M3).astype(np.int64) for planes in (left, right))
    return np.stack([(u @ v.T) % q for u, v, q in zip(x, y, owners, strict=True)])


def converted(integers: np.ndarray, moduli: int) -> np.ndarray:
    """The digits (moduli, …) of integers C': C'·(P/p)^-1 modulo p."""
    product = scheme_product(moduli)
    return np.array([integers * pow(product // p, -1, p) % p for p in coprime_moduli(256, moduli)]).astype(np.uint8)


def residues_of(integers: np.ndarray, moduli: int, device: Device, rng: np.random.Generator) -> np.ndarray:
    """Residues (products, …) of which `scheme_digits` makes the integers: those of three products are of random digits
    but for one that mends the sum.
    """
    family = family_for(device)
    chosen = fp8_moduli(moduli, family)
    whole, found = math.prod(chosen), []
    for q in chosen:
        weights = digit_table(q, family).weights
        d = (integers * pow(whole // q, -1, q) % q).astype(np.int64)
        others = [rng.integers(0, q, integers.shape) for _ in weights[1:]]
        rest = d - sum((w * r for w, r in zip(weights[1:], others, strict=True)), np.zeros_like(d))
        found += [rest * pow(weights[0], -1, q) % q, *others]
    return np.array(found).astype(np.int16)


def extreme_integers(moduli: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Integers C' of all sizes up to the largest that operands may give, its neighbours, and 0."""
    most = (scheme_product(moduli) - (scheme_product(moduli) >> 16)) // 2
    values = [0, 1, -1, most, -most, most - 1, 1 - most]
    while len(values) < count:
        size = int(rng.integers(1, most.bit_length() + 1))
        value = int.from_bytes(rng.bytes(24), "little") % (1 << size) % (most + 1)
        values.append(value if rng.integers(2) else -value)
    return np.array(values[:count], object)


def combined(digits: np.ndarray, moduli: int) -> np.ndarray:
    """Of digits (3·moduli, …) of a complex product those of real and imaginary parts, (2, moduli, …)."""
    primes = np.array(coprime_moduli(256, moduli)).reshape(-1, *[1] * (digits.ndim - 1))
    d, e, f = digits.astype(np.int64).reshape(3, moduli, *digits.shape[1:])
    return np.stack([(d - e) % primes, (f - d - e) % primes])


# --- A unit of few bits -----------------------------------------------------------------------------------------------


def _kept(x: np.ndarray, bits: int) -> np.ndarray:
    """Integers as float32, cut off behind so many significand bits."""
    exponent = np.frexp(x)[1]
    unit = np.ldexp(1.0, np.maximum(exponent - bits, 0))
    return (np.trunc(x / unit) * unit).astype(np.float32)


@contextlib.contextmanager
def unit_of(bits: int) -> Iterator[None]:
    """Inside, `tl.dot` of e4m3 in Triton's interpreter adds instructions of 32 products as a unit does that keeps so
    many bits of each sum, from the third operand on or, where the kernel asks for sums of their own, from 0.
    """
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    before = builder.create_dot

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: int) -> Any:
        if a.dtype.name != "fp8e4nv":
            return before(self, a, b, d, precision, imprecise)
        assert imprecise in (0, 32)
        x, y = (_DECODED[z.data.view(np.uint8)] for z in (a, b))
        total = d.data.astype(np.float32)
        for h in range(0, x.shape[1], 32):
            # Products of digits up to 448 are exact in float64, and so are sums of 32.
            products = x[:, h : h + 32] @ y[h : h + 32]
            if imprecise:
                total = (total + _kept(products, bits)).astype(np.float32)
            else:
                total = _kept(total.astype(np.float64) + products, bits)
        return interpreter.TensorHandle(total, d.dtype.scalar)

    builder.create_dot = dot
    try:
        yield
    finally:
        builder.create_dot = before


_DECODED = encodings.decode(np.arange(256, dtype=np.uint8), E4M3)
"""The numbers of all patterns."""
