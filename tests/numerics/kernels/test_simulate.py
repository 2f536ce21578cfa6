"""The simulating kernels by whole columns, bit for bit against the specification in exact arithmetic."""

import numpy as np
import pytest

from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format
from prismm.numerics import simulate, specification
from prismm.numerics.model import EngineModel
from prismm.numerics.products import columnwise, path
from tests.cpu.kernels.harness import differing, same_bits
from tests.numerics.kernels.low_precision import KINDS, operands, patterns

E8M13 = Format(8, 13, "e8m13")
E5M2 = Format(5, 2, "e5m2")


def aligned(inputs, sums, rounding, block, kept, zero_exponent=-132, **more):
    return EngineModel(
        "aligned", inputs, sums, block=block, fraction_bits=kept, zero_exponent=zero_exponent, rounding=rounding, **more
    )


def chained(inputs, sums, rounding="nearest", zeros="ieee", **more):
    return EngineModel("chained", inputs, sums, rounding=rounding, zeros=zeros, **more)


ALIGNED = [
    aligned(FP16, FP32, "zero", 4, 23),
    aligned(FP16, FP32, "nearest", 4, 23),
    aligned(FP16, FP16, "nearest", 4, 23, -19, zeros="unsigned"),
    aligned(FP16, FP16, "zero", 16, 25, -21),
    aligned(BF16, FP32, "zero", 8, 24, zeros="unsigned"),
    aligned(TF32, FP32, "zero", 8, 25, -133),
    aligned(TF32, FP32, "nearest", 7, 30, None, depth=14),
    aligned(E5M2, FP32, "zero", 32, 13, accumulator=E8M13),
    aligned(FP16, E8M13, "nearest", 1, 40),
    aligned(FP16, Format(5, 4, "e5m4"), "nearest", 5, 6, -17),
]
CHAINED = [
    chained(FP16, FP16),
    chained(FP16, FP32),
    chained(FP16, FP32, "zero", "positive"),
    chained(FP32, FP32, depth=4),
    chained(FP32, FP32, "zero"),
    chained(FP32, FP64),
    chained(FP32, FP64, "zero", "positive"),
    chained(TF32, FP16, "zero"),
    chained(Format(10, 25, "e10m25"), Format(11, 50, "e11m50")),
    chained(Format(10, 25, "e10m25"), FP64, "zero"),
    chained(FP64, FP64),
    chained(BF16, FP32, summation="sequential", block=4, depth=8),
]


def name(model):
    return f"{model.input.name}-{model.output.name}-{model.rounding}-{model.block}-{model.fraction_bits}"


@pytest.mark.covering("model")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ALIGNED + CHAINED, ids=name)
def test_every_bit_is_that_of_the_specification(model, kind, rng):
    assert path(model) == ("aligned" if model in ALIGNED else "fused" if model.input == FP64 else "chained")
    block = model.block
    for k in sorted({1, max(block - 1, 1), block, block + 1, 3 * block + 2, 41}):
        a, b = operands(kind, model.input, 3, k, 6, rng)
        got = columnwise(model, a, b, 2)
        wanted = [[specification.dot(model, row.tolist(), column.tolist()) for column in b.T] for row in a]
        assert same_bits(got, wanted), (k, differing(np.ravel(got), np.ravel(wanted)))


@pytest.mark.parametrize("model", [ALIGNED[0], CHAINED[1]], ids=name)
def test_tiles_and_workers_change_no_bit(model, rng):
    fmt = model.input
    a, b = patterns(fmt, (300, 37), rng) * 2.0**-3, patterns(fmt, (37, 700), rng)
    a = a.astype(np.float16).astype(float)
    whole = columnwise(model, a, b, 2)
    assert same_bits(whole, columnwise(model, a, b, 1))
    for i, j in ((0, 0), (255, 127), (256, 128), (299, 699), (13, 511), (14, 512)):
        assert same_bits(whole[i, j], specification.dot(model, a[i].tolist(), b[:, j].tolist())), (i, j)


def test_overflow_stays_and_signs_of_zeros():
    wide = aligned(BF16, FP32, "zero", 4, 24)
    top = BF16.max
    a, b = np.array([[top, top, 0, 0, -top, -top, -top, -top]]), np.full((8, 1), 2.0**100)
    tiny = np.array([[-(2.0**-24)]])
    least = np.array([[-(2.0**-75)]])
    for model, x, y, expected in (
        (wide, a, b, np.inf),
        (wide, a[:, :4], b[:4] * 2.0**-100, np.inf),
        (wide, a, -b, -np.inf),
        (wide, least, -least / 2, -0.0),
        (wide, least * 2.0**-50, -least, 0.0),
        (aligned(BF16, FP32, "zero", 4, 24, zeros="unsigned"), least, -least / 2, 0.0),
        (chained(FP16, FP16), tiny, -tiny, -0.0),
        (chained(FP16, FP16, depth=2), tiny, -tiny, 0.0),
        (chained(FP16, FP16), np.array([[-1.0, 1.0]]), np.ones((2, 1)), 0.0),
    ):
        got = columnwise(model, x, y, 1)[0, 0]
        assert same_bits(got, expected)
        assert same_bits(got, specification.dot(model, x[0].tolist(), y[:, 0].tolist()))
        assert same_bits(got, simulate.dot(model, x[0], y[:, 0]))
