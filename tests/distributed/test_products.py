"""Products of DTensors on real ranks: bits, placements, bounds, derivatives, bytes."""

import itertools

import numpy as np
import pytest

from tests.distributed import cases
from tests.distributed.cases import ALL, P, R, S
from tests.distributed.ranks import alone

EXACT = (
    {"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": "residues:9"},
    {"accuracy": 1e-11, "reproducible": True}, {"accuracy": "fast", "reproducible": True},
)  # fmt: skip
DTYPES = ("float64", "float32", "complex128", "complex64")
MESHES = ((1,), (2,), (3,), (4,), (2, 2))


def placed(rng, mesh):
    """Placements of both operands, the inner dimension sharded on one mesh dimension at least half of the time."""
    left, right = ([(S(0), S(1), R)[x] for x in rng.integers(0, 3, len(mesh))] for _ in range(2))
    if rng.integers(2):
        at = int(rng.integers(len(mesh)))
        left[at], right[at] = S(1), S(0)
    return left, right


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_bits_are_those_of_one_device(mesh, ranks, rng):
    names = rng.permutation(list(ALL)).tolist()[:12]
    chosen = []
    for name, dtype, keywords in zip(names, itertools.cycle(DTYPES), itertools.cycle(EXACT), strict=False):
        sizes = (*map(int, rng.integers((1, 1, 1), (16, 60, 16))),)
        chosen.append((name, sizes, int(rng.integers(1 << 30)), dtype, keywords, *placed(rng, mesh)))
    failed = [each for found in ranks.run(cases.bits, mesh, chosen) for each in found]
    assert not failed, failed


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)], ids=str)
def test_many_uncertified_entries_are_multiplied_again(mesh, ranks, rng):
    """Wherever they land, also in batches of one product and on ranks that have nothing to ask for."""
    names = ("phi4", "lattice_wide", "wide_rows_and_columns", "shadowed", "cancelling")
    chosen = []
    for name, dtype, keywords in zip(names, itertools.cycle(DTYPES), itertools.cycle(EXACT[:2]), strict=False):
        sizes = (*map(int, rng.integers((20, 30, 20), (40, 90, 40))),)
        left, right = [S(1)] * len(mesh), [S(0)] * len(mesh)
        chosen.append((name, sizes, int(rng.integers(1 << 30)), dtype, keywords, left, right))
    found = [each for each in ranks.run(cases.bits_again, mesh, chosen, int(rng.integers(1, 40000))) if each]
    failed = [each for some, _ in found for each in some]
    assert not failed, failed
    assert sum(count for _, count in found) > 500, found


@pytest.mark.slow
def test_bits_of_eight_ranks(rng):
    """Also where the inner dimension is sharded over two of three dimensions, and has no rows or columns to land in."""
    assert alone(cases.eight, int(rng.integers(1 << 30))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_bits_of_all_families(name, ranks, rng):
    for mesh in ((3,), (2, 2)):
        chosen = [
            (name, tuple(map(int, rng.integers((1, 1, 1), (16, 60, 16)))), int(rng.integers(1 << 30)), dtype, keywords,
             *placed(rng, mesh))
            for dtype in DTYPES for keywords in EXACT[:3]
        ]  # fmt: skip
        failed = [each for found in ranks.run(cases.bits, mesh, chosen) for each in found]
        assert not failed, failed


@pytest.mark.parametrize(
    ("mesh", "draws"),
    [((2, 2), 1), *(pytest.param(mesh, 4, marks=pytest.mark.slow) for mesh in ((4,), (2, 2)))],
    ids=str,
)
def test_native_products_have_torchs_placements_and_the_bound_of_all_terms(mesh, draws, ranks, rng):
    shapes = [((8, 12), (12, 16)), ((7, 13), (13, 5)), ((4, 8, 12), (12, 16)), ((4, 8, 12), (4, 12, 4))]
    chosen = []
    for left_shape, right_shape in shapes:
        left = [R, P, *map(S, range(len(left_shape)))] if len(mesh) == 1 else [R, *map(S, range(len(left_shape)))]
        right = [R, *map(S, range(len(right_shape)))]
        pairs = list(itertools.product(left, right))
        for _ in range(draws):
            drawn = [pairs[int(x)] for x in rng.integers(0, len(pairs), len(mesh))]
            chosen.append((left_shape, right_shape, [x for x, _ in drawn], [y for _, y in drawn]))
    failed = [each for found in ranks.run(cases.like_torch, mesh, chosen) for each in found]
    assert not failed, failed


def test_exact_sums_land_in_rows_or_columns(ranks):
    """Where torch has Partial: the longer of rows and columns that no other mesh dimension shards."""
    chosen = [((8, 12), (12, 4), [S(1)], [S(0)]), ((4, 12), (12, 8), [S(1)], [S(0)]), ((1, 4), (4, 1), [S(1)], [S(0)])]
    for each in ranks.run(cases.exact_placements, (4,), chosen):
        assert each == [((S(0),), (2, 4)), ((S(1),), (4, 2)), ((R,), (1, 1))]
    chosen = [
        ((8, 12), (12, 4), [S(0), S(1)], [R, S(0)]), ((8, 12), (12, 4), [S(1), S(1)], [S(0), S(0)]),
        ((4, 12), (12, 8), [S(1), R], [S(0), S(1)]),
    ]  # fmt: skip
    for each in ranks.run(cases.exact_placements, (2, 2), chosen):
        assert each == [((S(0), S(1)), (4, 2)), ((S(0), S(1)), (4, 2)), ((S(0), S(1)), (2, 4))]


@pytest.mark.slow
def test_batches_vectors_and_uneven_shards(ranks):
    line = [
        ((3, 5, 7), (7, 4), [S(2)], [S(0)]), ((3, 5, 7), (3, 7, 4), [S(2)], [S(1)]),
        ((6, 2, 3), (6, 3, 2), [S(0)], [S(0)]),
        ((2, 1, 5, 9), (3, 9, 4), [S(3)], [S(1)]), ((2, 3, 5, 4), (4, 6), [S(0)], [R]), ((9,), (9,), [S(0)], [S(0)]),
        ((9,), (9, 5), [S(0)], [S(0)]), ((5, 9), (9,), [S(1)], [S(0)]), ((5, 9), (9,), [S(0)], [R]),
        ((2, 9), (9, 2), [S(1)], [R]),
        ((3, 4, 9), (9,), [S(2)], [S(0)]), ((1, 2), (2, 3), [S(1)], [S(0)]), ((0, 4), (4, 3), [S(1)], [S(0)]),
        ((9,), (9, 5), [R], [S(1)]), ((3, 5, 7), (7, 4), [S(1)], [S(1)]), ((7, 9), (9, 3), [P], [S(0)]),
    ]  # fmt: skip
    ranks.run(cases.batches, (4,), line)
    grid = [
        ((4, 5, 7), (7, 4), [S(0), S(2)], [R, S(0)]), ((4, 6, 8), (4, 8, 6), [S(1), S(2)], [R, S(1)]),
        ((5, 9), (9, 6), [S(1), S(0)], [S(0), R]), ((3, 9), (9,), [S(1), S(1)], [S(0), S(0)]),
    ]  # fmt: skip
    ranks.run(cases.batches, (2, 2), grid)


def test_sums_with_an_addend(ranks, rng):
    names, factors = rng.permutation(list(ALL)).tolist(), [(1.5, -0.75), (1.0, 1.0), (-2.0, 0.0)]
    chosen = []
    for at, (name, dtype) in enumerate(zip(names[:8], itertools.cycle(DTYPES), strict=False)):
        flags = ("NN", "TN", "NC")[at % 3]
        left, right = S(0 if flags[0] != "N" else 1), S(1 if flags[1] != "N" else 0)
        third = (R, S(0), S(1), P)[at % 4]
        chosen.append((name, dtype, EXACT[at % 3], factors[at % 3], flags, [left], [right], [third]))
    chosen += [
        ("normal", "float64", {}, (2.0, 3.0), "NN", [S(1)], [S(0)], [R]),
        ("normal", "float64", {}, (2.0, 3.0), "NN", [S(0)], [R], [S(1)]),
        ("normal", "float64", EXACT[1], (2.0, 3.0), "NN", [S(0)], [R], [S(1)]),
    ]  # fmt: skip
    ranks.run(cases.sums, (3,), chosen)


@pytest.mark.parametrize("placements", [(S(1), S(0)), (S(0), R), (R, S(1)), (R, S(0))], ids=str)
def test_derivatives_are_those_of_the_whole(placements, ranks):
    left, right = placements
    ranks.run(cases.gradients, (3,), [left], [right], "reproducible")


def test_a_rank_sends_fifteen_bytes_of_an_entry(ranks):
    """Three quarters of its entries to others: with 15 moduli less than 24 bytes an entry."""
    for sent, entries in ranks.run(cases.bytes_sent, 40, 30, 20):
        assert sent == 15 * entries * 3 // 4 <= 24 * entries


def test_narrow_types_are_rounded_once_more(ranks):
    ranks.run(cases.narrow)


def test_inference_mode_and_counts(ranks):
    ranks.run(cases.modes)


@pytest.mark.slow
def test_a_graph_ends_before_a_product(ranks):
    ranks.run(cases.graph)


@pytest.mark.slow
def test_blocks_travel_while_others_are_multiplied(ranks):
    ranks.run(cases.small_blocks)


@pytest.mark.parametrize(
    "what, kind, text",
    [
        ("meshes", "ArgumentError", "distribute both over one mesh"), ("partial", "ArgumentError", "is no sum"),
        ("plain", "OperandError", "DTensor"), ("plain gemm", "OperandError", "distribute_tensor"),
        ("out", "OperandError", "leave it out"), ("integers", "ArgumentError", "shard rows or columns instead"),
        ("shape", "ShapeError", "inner dimensions"), ("scheme", "ArgumentError", "no exact partial products"),
        ("accuracy", "AccuracyError", "neither a name nor a number"), ("addend", "ShapeError", "must broadcast"),
        ("mesh of c", "ArgumentError", "distribute all over one mesh"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_on_every_rank(what, kind, text, ranks):
    for name, message in ranks.errors(cases.refused, what):
        assert name == kind and text in message, message


@pytest.mark.slow
def test_nothing_of_it_is_loaded_for_plain_tensors():
    import subprocess
    import sys

    code = (
        "import sys, torch, prismm; from prismm.programs import operators; x = torch.ones(2, 2, requires_grad=True);"
        "prismm.matmul(x, x); prismm.gemm(x.detach(), x.detach());"
        "assert not [m for m in sys.modules if m.startswith(('prismm.distributed', 'torch.distributed.tensor'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_rank_has_the_whole_of_one_device(ranks, rng):
    """A mesh of one rank needs no other."""
    a, b = ALL["normal"](3, 5, 4, int(rng.integers(100)))
    assert np.isfinite(a @ b).all()
    chosen = [("normal", (3, 5, 4), 1, "float64", {"reproducible": True}, [S(1)], [S(0)])]
    assert ranks.run(cases.bits, (1,), chosen)[0] == []


def test_addends_of_every_placement(ranks):
    ranks.run(cases.addends)


def test_sums_of_rounded_products(ranks):
    ranks.run(cases.rounded_sums, 3)


def test_schemes_of_the_callers_own(ranks):
    ranks.run(cases.own_schemes)
