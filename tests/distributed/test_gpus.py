"""Products of DTensors whose ranks have a GPU each: the bits of a CPU. Without GPUs, ranks interpret the kernels."""

import itertools

import pytest

from tests.distributed import cases
from tests.distributed.cases import ALL, R, S
from tests.distributed.ranks import Ranks, interpret_as
from tests.distributed.test_products import DTYPES, EXACT

pytest.importorskip("triton")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks_that_interpret():
    """Four ranks whose GPUs are interpreted; smaller meshes are made of some of them."""
    pool = Ranks(4, device="interpreted")
    yield pool
    pool.close()


@pytest.fixture
def interpreted(ranks_that_interpret):
    """Ranks with GPUs that have nothing of NVIDIA's."""
    ranks_that_interpret.run(interpret_as, "any")
    return ranks_that_interpret


def cases_of(rng, dtype, most, kinds=EXACT[:2]):
    """A case of each family."""
    found = []
    for name, keywords in itertools.product(ALL, kinds):
        sizes = tuple(map(int, rng.integers((1, 1, 1), most)))
        found.append((name, sizes, int(rng.integers(1 << 30)), dtype, keywords, [S(1)], [S(0)]))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_interpreted_ranks_have_the_bits_of_a_cpu(dtype, interpreted, rng):
    """Every one of four ways once: three times of rows and columns of four families, once of one family alone. An
    interpreted product takes as long for one row as for a block of them.
    """
    names = rng.permutation(list(ALL)).tolist()
    alone = int(rng.integers(4))
    chosen = []
    for turn, keywords in enumerate(EXACT[:4]):
        some = names.pop() if turn == alone else tuple(names.pop() for _ in range(4))
        most = (12, 40, 12) if turn == alone else (4, 40, 4)
        sizes = tuple(map(int, rng.integers((1, 1, 1), most)))
        chosen.append((some, sizes, int(rng.integers(1 << 30)), dtype, keywords, [S(1)], [S(0)]))
    failed = [each for found in interpreted.run(cases.bits, (3,), chosen) for each in found]
    assert not failed, failed


def test_interpreted_ranks_make_batches_and_sums(interpreted):
    shapes = [
        ((2, 5, 7), (2, 7, 3), [S(2)], [S(1)]),
        ((40,), (40, 5), [S(0)], [S(0)]),
        ((3, 1), (1, 4), [S(1)], [S(0)]),
    ]
    interpreted.run(cases.batches, (3,), shapes)
    interpreted.run(cases.small_blocks_of_gpus, (3,))
    interpreted.run(cases.rounded_sums, 2)
    sums = [
        ("wide_rows", "complex64", keywords, (2.0, -0.5), ("N", "T"), [S(1)], [S(1)], [R]) for keywords in EXACT[:2]
    ]
    interpreted.run(cases.sums, (3,), sums)


@pytest.mark.parametrize("kind", ["any", "hopper"])
def test_interpreted_grids_of_ranks_have_the_bits_of_a_cpu(kind, interpreted):
    """Blocks of either operand, and sums over two dimensions of a mesh; on a Hopper GPU with its own product."""
    placements = [([S(0), S(1)], [R, S(0)]), ([S(1), R], [S(0), S(1)]), ([S(1), S(1)], [S(0), S(0)])]
    interpreted.run(interpret_as, kind)
    families, sizes = (("normal", "wide_rows"), (5, 30, 4)) if kind == "any" else ("normal", (9, 30, 7))
    chosen = [
        (families, sizes, 5, dtype, EXACT[turn % 2], left, right)
        for turn, ((left, right), dtype) in enumerate(zip(placements, DTYPES, strict=False))
    ]
    failed = [each for found in interpreted.run(cases.bits, (2, 2), chosen) for each in found]
    assert not failed, failed
    if kind == "any":
        interpreted.run(cases.small_blocks_of_gpus, (2, 2))


def cases_of_more(rng, sizes, mesh):
    """Products of which much is left at first."""
    inner = [S(1)] * len(mesh), [S(0)] * len(mesh)
    correct, reproducible = {"accuracy": "correctly-rounded", "scheme": "residues:9"}, {"reproducible": True}
    few = correct | {"scheme": "residues:6"}
    return [
        ("phi4", sizes, int(rng.integers(1 << 30)), dtype, keywords, *inner)
        for dtype, keywords in (
            ("float64", correct), ("complex128", correct), ("float32", few), ("float64", reproducible),
            ("complex64", reproducible),
        )
    ]  # fmt: skip


@pytest.mark.parametrize("mesh, bits", [((2,), None), ((2, 2), (14, 14)), ((2,), (60, 60))], ids=str)
def test_interpreted_ranks_make_what_is_left_by_more_moduli(mesh, bits, interpreted, rng):
    """Proved on the GPUs, or left to CPUs where the bits are too few."""
    found = interpreted.run(cases.bits_by_more, mesh, cases_of_more(rng, (5, 40, 6), mesh), bits, {})
    failed = [each for some in found if some for each in some[0]]
    assert not failed, failed
    assert sum(each[1] for each in found if each) >= 4 * len(mesh) * 2, found
    left = sum(each[2] for each in found if each)
    assert left < 10 if bits is None else left > 20, found


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_few_entries_are_made_again_where_cpus_take_longer(seconds, interpreted, rng):
    """The tiles of all entries are uncertified, but few entries are left of them, so the time for these decides."""
    given = {"accuracy": "correctly-rounded", "scheme": "residues:15"}
    chosen = [("normal", (12, 40, 12), int(rng.integers(1 << 30)), "float64", given, [S(1)], [S(0)])]
    found = interpreted.run(cases.bits_by_more, (2,), chosen, None, {"AGAIN": 1.01, "ENTRY_SECONDS": seconds})
    assert not [each for some in found if some for each in some[0]]
    made, left = (sum(each[which] for each in found if each) for which in (1, 2))
    assert (made > 0, left > 0) == (seconds > 0.0, seconds == 0.0), found


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("bits", [None, (20, 20)], ids=str)
def test_what_is_left_over_gpus_is_made_by_more_moduli(bits, number, gpus, rng):
    chosen = cases_of_more(rng, (150, 333, 200), (gpus.world,))[number]
    found = gpus.run(cases.bits_by_more, (gpus.world,), [chosen], bits, {})
    failed = [each for some in found for each in some[0]]
    assert not failed, failed
    assert sum(each[1] for each in found) >= gpus.world, found
    left = sum(each[2] for each in found)
    assert left < 100 if bits is None else left > 1000, found


@pytest.fixture(scope="module")
def gpus():
    import torch

    count = min(4, torch.cuda.device_count())
    if count < 2:
        pytest.skip("needs two CUDA devices")
    pool = Ranks(count, device="cuda")
    yield pool
    pool.close()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_an_inner_dimension_over_gpus_are_those_of_a_cpu(dtype, gpus, rng):
    chosen = cases_of(rng, dtype, (100, 300, 150))
    failed = [each for found in gpus.run(cases.bits, (gpus.world,), chosen) for each in found]
    assert not failed, failed


@pytest.mark.gpu
def test_bits_of_sums_and_batches_over_gpus(gpus):
    sums = [
        ("wide_rows", dtype, keywords, factors, ("N", "T"), [S(1)], [S(1)], [R])
        for dtype in DTYPES for keywords in EXACT[:2] for factors in ((2.0, -0.5), (1.0, 0.0))
    ]  # fmt: skip
    gpus.run(cases.sums, (gpus.world,), sums)
    gpus.run(
        cases.batches, (gpus.world,), [((3, 20, 70), (70, 9), [S(2)], [S(0)]), ((2, 5, 70), (2, 70, 9), [S(2)], [S(1)])]
    )


@pytest.mark.gpu
def test_products_over_gpus_run_on_either_side(gpus):
    """Vectors, and shares that are empty."""
    shapes = [((40,), (40, 5)), ((1, 40), (40,)), ((1, 40), (40, 1)), ((3, 1), (1, 4))]
    placements = [([S(0)], [S(0)]), ([S(1)], [S(0)]), ([S(1)], [S(0)]), ([S(1)], [S(0)])]
    gpus.run(cases.batches, (gpus.world,), [(*x, *y) for x, y in zip(shapes, placements, strict=True)])


@pytest.mark.gpu
@pytest.mark.parametrize("recipe, sequence", [("native", False), ("correctly-rounded", True)])
def test_tensor_parallel_layers_over_gpus_have_the_bits_of_one_gpu(recipe, sequence, gpus):
    gpus.run(cases.tensor_parallel, recipe, sequence)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_data_parallel_models_over_gpus(kind, gpus):
    gpus.run(cases.data_parallel, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["native reproducible", "correctly-rounded", "1e-13"])
def test_sums_of_the_operator_over_gpus_are_rounded_as_on_one_gpu(recipe, gpus):
    gpus.run(cases.operator_sums, recipe)


@pytest.mark.gpu
def test_addends_of_every_placement_over_gpus(gpus):
    gpus.run(cases.addends)
