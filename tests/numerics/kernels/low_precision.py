"""Matrices of values of narrow formats at which a simulated engine could stumble."""

import numpy as np


def patterns(fmt, shape, rng):
    """Finite values of uniformly drawn bit patterns: every exponent, subnormals, both zeros."""
    top = ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits
    size = rng.integers(0, top, shape)
    field, fraction = size >> fmt.fraction_bits, size & ((1 << fmt.fraction_bits) - 1)
    significand = fraction + np.where(field > 0, 1 << fmt.fraction_bits, 0)
    x = np.ldexp(significand.astype(float), np.maximum(field, 1) - 1 + fmt.subnormal_exponent)
    return np.where(rng.random(shape) < 0.5, -x, x)


def narrow(fmt, shape, rng, spread):
    """Full significands within a few binades around 1, so that sums cancel and carry."""
    significand = rng.integers(1 << fmt.fraction_bits, 2 << fmt.fraction_bits, shape)
    x = np.ldexp(significand.astype(float), rng.integers(-spread, spread + 1, shape) - fmt.fraction_bits)
    return np.where(rng.random(shape) < 0.5, -x, x)


def cancelling(fmt, m, k, n, rng):
    """The second half undoes the first but for a few elements: exact zeros, tiny results after large sums."""
    half = k // 2
    a, b = narrow(fmt, (m, k), rng, 3), narrow(fmt, (k, n), rng, 3)
    a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
    b[half : half + 1] *= 0.5
    return a, b


def operands(kind, fmt, m, k, n, rng):
    if kind == "patterns":
        return patterns(fmt, (m, k), rng), patterns(fmt, (k, n), rng)
    if kind == "cancelling":
        return cancelling(fmt, m, k, n, rng)
    if kind == "largest":
        a, b = np.full((m, k), fmt.max), np.full((k, n), fmt.max)
        a[1::2, ::3] *= -1.0
        b[:, 1::2] *= 2.0**-5
        return a, b
    if kind == "smallest":
        steps = rng.integers(-3, 4, (m, k)), rng.integers(-3, 4, (k, n))
        return tuple(s * fmt.smallest_subnormal * 2.0 ** rng.integers(0, 5) for s in steps)
    return narrow(fmt, (m, k), rng, 14), narrow(fmt, (k, n), rng, 14)


KINDS = ["patterns", "cancelling", "largest", "smallest", "narrow"]
