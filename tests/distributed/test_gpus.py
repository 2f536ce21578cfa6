"""Products of DTensors whose ranks have a GPU each: the bits of a CPU."""

import itertools

import pytest

from tests.distributed import cases
from tests.distributed.cases import ALL, R, S
from tests.distributed.ranks import Ranks
from tests.distributed.test_products import DTYPES, EXACT

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def gpus():
    import torch

    count = min(4, torch.cuda.device_count())
    if count < 2:
        pytest.skip("needs two CUDA devices")
    pool = Ranks(count, device="cuda")
    yield pool
    pool.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_an_inner_dimension_over_gpus_are_those_of_a_cpu(dtype, gpus, rng):
    chosen = []
    for name, keywords in itertools.product(ALL, EXACT[:2]):
        sizes = tuple(map(int, rng.integers((1, 1, 1), (100, 300, 150))))
        chosen.append((name, sizes, int(rng.integers(1 << 30)), dtype, keywords, [S(1)], [S(0)]))
    failed = [each for found in gpus.run(cases.bits, (gpus.world,), chosen) for each in found]
    assert not failed, failed


def test_bits_of_sums_and_batches_over_gpus(gpus):
    sums = [
        ("wide_rows", dtype, keywords, factors, ("N", "T"), [S(1)], [S(1)], [R])
        for dtype in DTYPES for keywords in EXACT[:2] for factors in ((2.0, -0.5), (1.0, 0.0))
    ]  # fmt: skip
    gpus.run(cases.sums, (gpus.world,), sums)
    gpus.run(
        cases.batches, (gpus.world,), [((3, 20, 70), (70, 9), [S(2)], [S(0)]), ((2, 5, 70), (2, 70, 9), [S(2)], [S(1)])]
    )


def test_products_over_gpus_run_on_either_side(gpus):
    """Vectors, and shares that are empty."""
    shapes = [((40,), (40, 5)), ((1, 40), (40,)), ((1, 40), (40, 1)), ((3, 1), (1, 4))]
    placements = [([S(0)], [S(0)]), ([S(1)], [S(0)]), ([S(1)], [S(0)]), ([S(1)], [S(0)])]
    gpus.run(cases.batches, (gpus.world,), [(*x, *y) for x, y in zip(shapes, placements, strict=True)])
