"""The simulating kernels, bit for bit against the specification in Python integers."""

import numpy as np
import pytest

from kernels.harness import differing, same_bits
from kernels.low_precision import KINDS, operands, patterns
from prismm.engines.simulated import Accumulator, SimulatedEngine, Unit
from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format

E8M13 = Format(8, 13, "e8m13")
E5M2 = Format(5, 2, "e5m2")


ALIGNED = [
    (FP16, Accumulator(FP32, "zero", 4, 23)),
    (FP16, Accumulator(FP32, "nearest", 4, 23)),
    (FP16, Accumulator(FP16, "nearest", 4, 23, -19)),
    (FP16, Accumulator(FP16, "zero", 16, 25, -21)),
    (BF16, Accumulator(FP32, "zero", 8, 24)),
    (TF32, Accumulator(FP32, "zero", 8, 25, -133)),
    (TF32, Accumulator(FP32, "nearest", 7, 30)),
    (E5M2, Accumulator(E8M13, "zero", 32, 13)),
    (FP16, Accumulator(E8M13, "nearest", 1, 40)),
    (FP16, Accumulator(Format(5, 4, "e5m4"), "nearest", 5, 6, -17)),
]
CHAINED = [
    (FP16, Accumulator(FP16)),
    (FP16, Accumulator(FP32)),
    (FP16, Accumulator(FP32, "zero")),
    (FP32, Accumulator(FP32)),
    (FP32, Accumulator(FP32, "zero")),
    (FP32, Accumulator(FP64)),
    (FP32, Accumulator(FP64, "zero")),
    (TF32, Accumulator(FP16, "zero")),
    (Format(10, 25, "e10m25"), Accumulator(Format(11, 50, "e11m50"))),
    (Format(10, 25, "e10m25"), Accumulator(FP64, "zero")),
]


def name(case):
    fmt, acc = case
    return f"{fmt.name}-{acc.format.name}-{acc.rounding}-{acc.block}-{acc.kept}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ALIGNED + CHAINED, ids=name)
def test_every_bit_is_that_of_the_specification(case, kind, rng):
    fmt, acc = case
    engine = SimulatedEngine("simulated:test", (Unit(fmt, acc),))
    for k in sorted({0, 1, acc.block - 1, acc.block, acc.block + 1, 3 * acc.block + 2, 41}):
        a, b = operands(kind, fmt, 3, k, 6, rng)
        got = engine.multiply(a, b, fmt, acc.format, 2)
        wanted = [[acc.dot(row.tolist(), column.tolist(), fmt) for column in b.T] for row in a]
        assert same_bits(got, wanted), (k, differing(np.ravel(got), np.ravel(wanted)))


@pytest.mark.parametrize("case", [ALIGNED[0], CHAINED[1]], ids=name)
def test_tiles_and_workers_change_no_bit(case, rng):
    fmt, acc = case
    engine = SimulatedEngine("simulated:test", (Unit(fmt, acc),))
    a, b = patterns(fmt, (300, 37), rng) * 2.0**-3, patterns(fmt, (37, 700), rng)
    a = a.astype(np.float16).astype(float)
    whole = engine.multiply(a, b, fmt, acc.format, 2)
    assert same_bits(whole, engine.multiply(a, b, fmt, acc.format, 1))
    for i, j in ((0, 0), (255, 127), (256, 128), (299, 699), (13, 511), (14, 512)):
        assert same_bits(whole[i, j], acc.dot(a[i].tolist(), b[:, j].tolist(), fmt)), (i, j)


def test_overflow_stays_and_signs_of_zeros():
    aligned = Accumulator(FP32, "zero", 4, 24)
    top = BF16.max
    a, b = np.array([[top, top, 0, 0, -top, -top, -top, -top]]), np.full((8, 1), 2.0**100)
    tiny = np.array([[-(2.0**-24)]])
    for fmt, acc, x, y, expected in (
        (BF16, aligned, a, b, np.inf),
        (BF16, aligned, a[:, :4], b[:4] * 2.0**-100, np.inf),
        (BF16, aligned, a, -b, -np.inf),
        (BF16, aligned, np.array([[-(2.0**-133)]]), np.array([[2.0**-133]]), 0.0),
        (FP16, Accumulator(FP16), tiny, -tiny, -0.0),
        (FP16, Accumulator(FP16), np.array([[-1.0, 1.0]]), np.ones((2, 1)), 0.0),
    ):
        engine = SimulatedEngine("simulated:test", (Unit(fmt, acc),))
        got = engine.multiply(x, y, fmt, acc.format, 1)[0, 0]
        assert same_bits(got, expected) and same_bits(got, acc.dot(x[0].tolist(), y[:, 0].tolist(), fmt))
