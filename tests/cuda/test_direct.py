"""Products in one kernel on float64's matrix instructions: bounds, specials, layouts; how it compiles; its times."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import prismm  # noqa: E402
from prismm.core.bounds import ConventionalBound  # noqa: E402
from prismm.cuda import calls as cuda_calls  # noqa
from prismm.cuda import fast_path  # noqa: E402
from prismm.cuda.device import COUNTS, device_of  # noqa: E402
from prismm.cuda.native.tiles import (  # noqa: E402
    BY_GROUPS,
    TILES,
    Shape,
    Split,
    faster_split,
    seconds_of,
    tile_for,
    workspace_bytes,
)
from prismm.formats import FP32, FP64  # noqa: E402
from prismm.testing import HOSTILE, SPECIAL, exact_product  # noqa: E402
from tests.cuda.harness.cases import needs_rates  # noqa: E402
from tests.cuda.harness.processes import compiled, interpreted  # noqa: E402
from tests.cuda.harness.programs import direct_program  # noqa: E402
from tests.cuda.offline.compiled_direct import spilled  # noqa: E402

ROOT = Path(__file__).parents[2]
EXTENTS = [(1, 1, 1), (3, 1, 2), (37, 65, 29), (16, 128, 1), (1, 300, 70), (64, 64, 128), (129, 33, 131)]
"""Rows, inner dimension, columns."""
PAIRED = [(2, 2, 2), (64, 64, 64), (130, 34, 66), (1, 250, 40), (600, 66, 1130), (64, 32, 128)]
"""Such as TMA reads: of rows that begin at multiples of 16 bytes."""
NAMES = ["normal", "phi4", "wide_rows_and_columns", "lattice_wide", "cancelling", "ties", "subnormal_operands",
         "subnormal_results", "one_huge", "zeros_rows_cols"]  # fmt: skip


def test_tiles_fit():
    for tile in TILES:
        assert tile.rows % (16 * tile.up) == 0 and tile.columns % (8 * tile.along) == 0 and tile.depth % 16 == 0
        for size in (8, 4):
            assert tile.shared(size) <= 227 * 1024 and tile.together(size) >= 2
    for n in (64, 200, 700, 3000):  # on GPUs that hold 99 KiB, of compute capability 8.6, 8.9 and 12.0
        assert tile_for(Shape(n, 40, n, 1, 8), 132, 99 << 10).shared(8) <= 99 << 10
    tall = Shape(65535 * 64 + 1, 16, 16, 1, 8)
    assert not tall.served and tall._replace(m=65535 * 64).served
    assert not tall._replace(m=16, n=1 << 31).served and not tall._replace(m=16, k=1 << 31).served
    for size in (8, 4):
        assert tile_for(tall._replace(m=65535 * 64, size=size), 132).rows >= 64


def test_more_work_takes_longer():
    for size in (8, 4):
        for n in (64, 300, 1000, 5000):
            some = Shape(n, n, n, 1, size)
            seconds = [seconds_of(x, 132, 1.0, 4e12) for x in (some, some._replace(k=4 * n), some._replace(m=4 * n))]
            assert seconds[0] <= min(seconds[1:]) and seconds[0] < max(seconds[1:])
            assert seconds_of(some, 132, 3.0, 4e12) >= seconds[0]
            assert 2.0 * n**3 / seconds[0] < 67e12


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_matrix_instructions_wide_copies_and_no_spills(architecture, dtype, layout):
    vector, *found = compiled("direct", architecture, dtype, layout)
    assert vector["kernel"] == "multiply_by_a_vector" and vector["wide"] >= 4 and vector["stack"] <= 8, vector
    added = [entry for entry in found if entry["kernel"] == "add_parts"]
    parted = [entry for entry in found if entry.get("parted") and entry["kernel"] != "add_parts"]
    grouped = [entry for entry in found if entry["kernel"] == "multiply_by_groups"]
    found = [entry for entry in found if entry["kernel"] == "multiply_directly" and not entry["parted"]]
    assert len(added) == len(parted) == 1 + len(grouped) // 2 and len(grouped) == 4 * (architecture == "sm_90")
    assert all(entry["stack"] == 0 for entry in added) and all(entry["mma"] > 0 for entry in parted)
    assert len(found) == sum(tile.times(8 if dtype == "float64" else 4) is not None for tile in TILES)
    for entry in found:
        assert entry["kernel"] == "multiply_directly" and entry["mma"] > 0 and entry["stack"] <= 512, entry
        # The code that repairs uncertified entries keeps numbers on the stack. The main loop keeps few.
        assert entry["spilled"] <= 24, entry
        assert entry["copies"] == entry["wide"] > 0 and entry["steps"], entry
    for entry in grouped:
        # The feeder, and the code that repairs uncertified entries, keep numbers on the stack. A main loop keeps one at
        # most. A float32 loop keeps some, as its operands take twice the registers once they are converted.
        again = 0 if entry["parted"] or dtype == "float32" else 4
        assert entry["mma"] == 32 + again and entry["stack"] <= 640 and entry["boxes"] > 0, entry
        loops = [loop for loop in entry["inner"] if loop.count("DMMA") > 4]
        assert len(loops) == 2
        for loop in loops:
            words = loop.split()
            assert loop.count("DMMA") == 15
            if dtype == "float64":
                assert loop.count("LDS.64") >= 56 and (entry["parted"] or entry["wide"] == 32), loop
            else:  # of which some are read before the first instruction that is looked at
                assert loop.count("F2F.F64.F32") >= 48 and words.count("LDS") + 4 * loop.count("LDSM") >= 24, loop
            assert spilled(loop) <= (1 if dtype == "float64" else 24), loop


def test_the_kernel_of_groups_is_taken_for_large_matrices_that_tma_reads():
    for size, own in zip((8, 4), BY_GROUPS[:2], strict=True):
        large = Shape(2048, 2048, 2048, 1, size)
        assert tile_for(large, 132, sm90=True) is own and not tile_for(large, 132).groups
        low = tile_for(large._replace(m=64, n=65536), 132, sm90=True)
        assert low.groups and (low.rows, low.columns) == (64, 128)
        for other in (large._replace(n=2047), large._replace(k=2047), Shape(64, 64, 64, 1, size)):
            assert not tile_for(other, 132, sm90=True).groups
        assert not tile_for(large, 132, 99 << 10, sm90=True).groups


@pytest.mark.parametrize("size", [8, 4])
def test_long_inner_dimensions_are_cut(size):
    for m, n, k in ((64, 64, 32768), (256, 256, 32768), (64, 64, 131072), (37, 21, 5000)):
        shape = Shape(m, n, k, 1, size)
        split = faster_split(shape, 132, sm90=True)
        assert split is not None and split.parts >= 2 and split.length % split.tile.depth == 0
        assert (split.parts - 1) * split.length < k <= split.parts * split.length
        sums = split.parts * m * n * 8
        assert sums <= workspace_bytes(shape, 132, sm90=True) <= 1.5 * sums
        assert seconds_of(shape, 132, 1.0, 4e12, sm90=True) < 1e-6 * 67e6  # far from what one tile would take
    for n in (64, 1024, 4096):  # short, or many tiles
        assert faster_split(Shape(n, n, 256, 1, size), 132, sm90=True) is None
    assert workspace_bytes(Shape(4096, 4096, 512, 1, size), 132, sm90=True) == 0


def test_measured_times_are_predicted():
    with (ROOT / "benchmarks/results/gpu_direct.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tile"] == "chosen"]
    assert len(rows) > 60
    ratios = []
    for row in rows:
        m, columns, k, batch = (int(row[x]) for x in ("m", "n", "k", "batch"))
        shape = Shape(m, columns, k, batch, 8 if row["dtype"] == "float64" else 4)
        ratios.append(1e3 * seconds_of(shape, 132, 1.0, 4e12, sm90=True) / float(row["ms"]))
    assert sum(0.75 < ratio < 1.25 for ratio in ratios) >= 0.9 * len(ratios)


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_extents_of_any_kind_compile(architecture):
    """Rows that begin anywhere are copied by the element, with more addresses than all tiles have registers for."""
    found = compiled("direct", architecture, "float64", "odd")
    assert len(found) == 4 * len(TILES) and all(entry["mma"] > 0 and entry["stack"] <= 512 for entry in found), found


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_interpreted_kernels_keep_their_word(part):
    found = interpreted("direct", f"{part}/4")
    assert len(found) == len(range(part, 239, 4))
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
def test_interpreted_products_in_parts_keep_their_word():
    found = interpreted("parts")
    assert len(found) == 109
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
def test_interpreted_products_with_vectors_keep_their_word():
    found = interpreted("vector")
    assert len(found) == 60
    assert not [entry for entry in found if entry["wrong"]]


def on_gpu(x, layout):
    """(1, ·, ·), by rows, by columns, or by rows of a wider matrix that begin anywhere."""
    x = torch.from_numpy(x).cuda()
    if layout == "rows":
        return x[None]
    if layout == "columns":
        return x.mT.contiguous().mT[None]
    wider = torch.zeros(x.shape[0], x.shape[1] + 3, dtype=x.dtype, device="cuda")
    wider[:, 1:-2] = x
    return wider[:, 1:-2][None]


def multiply(a, b, tile):
    """The product by a tile, or in parts, and counts."""
    out = torch.full((a.shape[0], a.shape[1], b.shape[2]), math.nan, dtype=a.dtype, device="cuda")
    split = tile if isinstance(tile, Split) else None
    program, counts = direct_program(a, b, out, None if split else tile, device_of(0), split)
    workspace = torch.empty(program.workspace, dtype=torch.uint8, device="cuda")
    bases = a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()
    program.run(bases, torch.cuda.current_stream().cuda_stream)
    return out, workspace[counts.offset :].view(torch.int64)[:COUNTS].tolist()


EVERY = [
    (tile, dtype) for dtype in ("float64", "float32") for tile in TILES if tile.times(8 if dtype == "float64" else 4)
]


def name_of(x):
    return x if isinstance(x, str) else f"{x.rows}x{x.columns}x{x.depth}" + "groups" * x.groups


@pytest.mark.gpu
@pytest.mark.parametrize("layouts", [("rows", "rows"), ("columns", "columns"), ("rows", "columns"), ("apart", "apart")])
@pytest.mark.parametrize(("tile", "dtype"), EVERY, ids=name_of)
def test_every_entry_is_within_its_bound(tile, dtype, layouts, seed):
    for index, (m, k, n) in enumerate(EXTENTS):
        name = NAMES[(index + seed) % len(NAMES)]
        a, b = HOSTILE[name](m, k, n, seed=seed + index, dtype=np.dtype(dtype))
        c, counts = multiply(on_gpu(a, layouts[0]), on_gpu(b, layouts[1]), tile)
        c = c[0].cpu().numpy()
        form = FP64 if dtype == "float64" else FP32
        exact = exact_product(a.astype(np.float64), b.astype(np.float64))
        finite = np.isfinite(c)
        bounds = ConventionalBound(form, a, b, k, 2.0**-53).at(c, slice(None), slice(None))
        assert finite.all() and counts[0] == 0 and (sum(counts) == 0 or name != "normal"), (name, m, k, n)
        assert exact.within(c, bounds).all(), (name, m, k, n)


sm90 = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
BY_GROUPS_TOO = [pytest.param(tile, "float64" if tile.double else "float32", marks=sm90) for tile in BY_GROUPS]
SPLITS = [
    pytest.param(Split(TILES[5], 3, 32), "float64", id="parts-float64"),
    pytest.param(Split(TILES[7], 3, 32), "float32", id="parts-float32"),
    pytest.param(Split(BY_GROUPS[0], 3, 32), "float64", marks=sm90, id="parts-groups-float64"),
    pytest.param(Split(BY_GROUPS[1], 3, 32), "float32", marks=sm90, id="parts-groups-float32"),
    pytest.param(Split(BY_GROUPS[2], 3, 32), "float64", marks=sm90, id="parts-low-groups-float64"),
    pytest.param(Split(BY_GROUPS[3], 3, 32), "float32", marks=sm90, id="parts-low-groups-float32"),
]
"""Of an inner dimension of 65 to 96."""


@sm90
@pytest.mark.gpu
@pytest.mark.parametrize(
    "layouts", [("rows", "rows"), ("columns", "columns"), ("rows", "columns"), ("columns", "rows")]
)
@pytest.mark.parametrize(("tile", "dtype"), BY_GROUPS_TOO, ids=name_of)
def test_every_entry_by_groups_is_within_its_bound(tile, dtype, layouts, seed):
    form = FP64 if tile.double else FP32
    for index, extents in enumerate(PAIRED):
        m, k, n = extents if tile.double else (-(-x // 4) * 4 for x in extents)
        for name in NAMES:
            a, b = HOSTILE[name](m, k, n, seed=seed + index, dtype=np.dtype(dtype))
            m_even = a if layouts[0] == "rows" else np.concatenate([a, a[: m % 2]])  # whose columns have to be even
            c, counts = multiply(on_gpu(m_even, layouts[0]), on_gpu(b, layouts[1]), tile)
            c = c[0, :m].cpu().numpy()
            bounds = ConventionalBound(form, a, b, k, 2.0**-53).at(c, slice(None), slice(None))
            assert np.isfinite(c).all() and counts[0] == 0 and (sum(counts) == 0 or name != "normal"), (name, m, k, n)
            exact = exact_product(a.astype(np.float64), b.astype(np.float64))
            assert exact.within(c, bounds).all(), (name, m, k, n)


@pytest.mark.gpu
@pytest.mark.parametrize(("split", "dtype"), SPLITS)
def test_every_entry_of_parts_is_within_its_bound(split, dtype, seed):
    form = FP64 if dtype == "float64" else FP32
    for index, (m, k, n) in enumerate([(64, 96, 64), (132, 68, 260), (4, 84, 8), (256, 92, 20)]):
        for name in NAMES:
            a, b = HOSTILE[name](m, k, n, seed=seed + index, dtype=np.dtype(dtype))
            for layouts in (("rows", "rows"), ("columns", "columns")):
                c, counts = multiply(on_gpu(a, layouts[0]), on_gpu(b, layouts[1]), split)
                c = c[0].cpu().numpy()
                bounds = ConventionalBound(form, a, b, k, 2.0**-53).at(c, slice(None), slice(None))
                assert np.isfinite(c).all() and counts[0] == 0 and (sum(counts) == 0 or name != "normal"), name
                assert exact_product(a.astype(np.float64), b.astype(np.float64)).within(c, bounds).all(), (name, m, k)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_long_inner_dimensions_by_default(dtype, rng):
    """Through the front door, in a graph, on a stream, over and over, batched: the same bits each time."""
    a, b = (torch.from_numpy(rng.standard_normal(shape).astype(dtype)).cuda() for shape in ((64, 40000), (40000, 48)))
    form = {"scheme": prismm.Native("float64" if dtype == "float32" else None), "engine": "cuda:fp64"}
    c, report = prismm.matmul(a, b, full_output=True, accuracy="native", **form)
    exact = exact_product(a.cpu().double().numpy(), b.cpu().double().numpy())
    assert exact.within(c.cpu().numpy(), report.bounds).all() and report.paths["a priori"] == c.numel()
    assert report.plan.workspace_bytes >= 2 * c.numel() * 8
    out = torch.empty_like(c)
    for _ in range(5):
        assert prismm.matmul(a, b, accuracy="native", out=out, **form).equal(c)
        assert prismm.matmul(a, b, accuracy="native", **form).equal(c)
    graph = torch.cuda.CUDAGraph()
    out.zero_()
    with torch.cuda.graph(graph):
        prismm.matmul(a, b, accuracy="native", out=out, **form)
    graph.replay()
    assert out.equal(c)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = prismm.matmul(a, b, accuracy="native", **form)
    side.synchronize()
    assert found.equal(c)
    both = prismm.matmul(torch.stack([a, -a]), torch.stack([b, b]), accuracy="native", **form)
    assert both[0].equal(-both[1])
    a[5, 30000] = math.inf
    assert bool(prismm.matmul(a, b, accuracy="native", **form)[5].isinf().all())


@sm90
@pytest.mark.gpu
@pytest.mark.parametrize(("tile", "dtype"), BY_GROUPS_TOO, ids=name_of)
@pytest.mark.parametrize("one", [None, 0, 1])
def test_batches_by_groups(one, tile, dtype, rng):
    """Persistent programs that make several tiles each, of matrices whose ends are zeros to each other; integers, so
    that the product is exact.
    """
    kind = getattr(torch, dtype)
    x, y = (torch.from_numpy(rng.integers(-99, 100, shape)).to(kind).cuda() for shape in ((7, 392, 72), (7, 72, 452)))
    x, y = (x[:1] if one == 0 else x), (y[:1] if one == 1 else y)
    x[:, -1, -1] = math.inf
    for a, b in ((x, y), (x.mT.contiguous().mT, y.mT.contiguous().mT)):
        out = torch.full((7, 392, 452), math.nan, dtype=a.dtype, device="cuda")
        program, _ = direct_program(a, b, out, tile, device_of(0))
        workspace = torch.empty(program.workspace, dtype=torch.uint8, device="cuda")
        for _ in range(3):
            program.run(
                (a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()),
                torch.cuda.current_stream().cuda_stream,
            )
        expected = (a[:, :-1].cpu().double() @ b.cpu().double()).to(kind)
        assert torch.equal(out[:, :-1].cpu(), expected.expand(7, -1, -1))
        last = b[:, -1].expand(7, -1)
        assert torch.equal(out[:, -1][last != 0], (last * math.inf)[last != 0])
        assert bool(out[:, -1][last == 0].isnan().all())


@pytest.mark.gpu
@pytest.mark.parametrize(("tile", "dtype"), [*EVERY, *BY_GROUPS_TOO, *SPLITS], ids=name_of)
def test_specials_are_ieees(tile, dtype, seed):
    paired = isinstance(tile, Split) or tile.groups
    for name in SPECIAL:
        a, b = SPECIAL[name](*((24, 72, 48) if paired else (21, 70, 45)), seed=seed, dtype=np.dtype(dtype))
        expected = prismm.matmul(a, b, accuracy="correctly-rounded")
        c, counts = multiply(on_gpu(a, "rows"), on_gpu(b, "columns"), tile)
        c = c[0].cpu().numpy()
        assert np.array_equal(np.isnan(c), np.isnan(expected)), name
        assert np.array_equal(np.isinf(c), np.isinf(expected)), name
        assert np.array_equal(c[np.isinf(c)], expected[np.isinf(c)])
        assert counts[0] >= (~np.isfinite(expected)).sum() - counts[1] and counts[2:] == [0, 0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tile",
    [
        *(tile for tile in TILES if tile.single),
        *(pytest.param(tile, marks=sm90) for tile in BY_GROUPS if tile.double),
    ],
    ids=name_of,
)
def test_what_overflows_on_the_way_is_multiplied_again(tile):
    a = np.array([[1e308, 1e308, -1e308, 3.0]]).repeat(40, 0)
    b = np.array([[1.0, 9.0], [1.0, 9.0], [1.0, 9.0], [1.0, 1.0]]).repeat(20, 1)
    c, counts = multiply(on_gpu(a, "rows"), on_gpu(b, "rows"), tile)
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    c = c[0].cpu().numpy()
    assert np.allclose(c, expected, rtol=1e-15) and np.array_equal(np.isinf(c), np.isinf(expected))
    # None is made one by one.
    assert counts == [0, 0, 0, 0] and np.isinf(c[:, 20:]).all()
    if tile.single is None:
        return
    # In float32 nothing overflows on the way.
    a, b = np.float32([[3e38, 3e38, -3e38, 3.0]]), np.float32([[1.0], [1.0], [1.0], [1.0]])
    c, counts = multiply(on_gpu(a, "rows"), on_gpu(b, "rows"), tile)
    assert c.item() == np.float32(3e38) and counts == [0, 0, 0, 0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tile",
    [
        *(tile for tile in TILES if tile.single),
        *(pytest.param(tile, marks=sm90) for tile in BY_GROUPS if tile.single),
        pytest.param(Split(TILES[7], 2, 16), id="parts"),
        pytest.param(Split(BY_GROUPS[1], 2, 32), marks=sm90, id="parts-groups"),
    ],
    ids=name_of,
)
def test_what_float64_loses_of_an_overflow_is_made_exactly(tile):
    """2^140 between two products of 2^254 that cancel: a sum in float64 may be 0, the exact one is infinite. They are
    parts' own, where there are some.
    """
    k = 64 if isinstance(tile, Split) else 4
    for middle, expected in ((2.0**40, np.inf), (2.0**-40, 2.0**60), (-(2.0**40), -np.inf)):
        a, b = np.zeros((33, k), np.float32), np.zeros((k, 20), np.float32)
        a[:, [0, 1, -1]] = np.float32([2.0**127, 2.0**100, -(2.0**127)])
        b[[0, 1, -1]] = np.float32([[2.0**127], [middle], [2.0**127]])
        a[5], b[:, 7] = 0.0, 0.0
        c, counts = multiply(on_gpu(a, "rows"), on_gpu(b, "columns"), tile)
        c = c[0].cpu().numpy()
        assert counts == [0, 32 * 19, 0, 0]
        assert (c[5] == 0.0).all() and (c[:, 7] == 0.0).all()
        assert (np.delete(np.delete(c, 5, 0), 7, 1) == expected).all()


@pytest.mark.gpu
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_products_with_vectors(dtype, left, seed):
    """By the kernel that is theirs, in their bounds, specials as the defining sum has them."""
    form = {"scheme": prismm.Native("float64" if dtype == "float32" else None), "engine": "cuda:fp64"}

    def product(a, x):
        a, x = torch.from_numpy(a).cuda(), torch.from_numpy(x).cuda()
        c, report = (
            prismm.matmul(x.mT, a.mT, accuracy="native", full_output=True, **form)
            if left
            else prismm.matmul(a, x, accuracy="native", full_output=True, **form)
        )
        return (c.mT if left else c).cpu().numpy(), report

    result = FP64 if dtype == "float64" else FP32
    for index, (m, k) in enumerate(((1, 512), (3, 1000), (700, 2048), (65, 4100), (5000, 533))):
        for name in NAMES:
            a, x = HOSTILE[name](m, k, 1, seed=seed + index, dtype=np.dtype(dtype))
            c, report = product(a, x)
            bounds = ConventionalBound(result, a, x, k, 2.0**-53).at(c, slice(None), slice(None))
            assert exact_product(a.astype(np.float64), x.astype(np.float64)).within(c, bounds).all(), (name, m, k)
            assert report.engine == "cuda:fp64" and not report.paths.get("special")
    for name in SPECIAL:
        a, x = SPECIAL[name](211, 700, 1, seed=seed, dtype=np.dtype(dtype))
        expected = prismm.matmul(a, x, accuracy="correctly-rounded")
        c, _ = product(a, x)
        same = (c == expected) | (np.isnan(c) & np.isnan(expected)) | np.isfinite(c) & np.isfinite(expected)
        assert same.all(), name


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("m", "k"), [(4100, 4104), (4100, 4099), (600, 24001), (13000, 1000), (30000, 500)])
def test_vectors_and_matrices_beyond_the_cache(m, k, dtype, seed):
    """Rows here and there, the first and last ones too, of every way in which such matrices are read."""
    form = {"scheme": prismm.Native("float64" if dtype == "float32" else None), "engine": "cuda:fp64"}
    some = np.unique(np.r_[0:9, np.random.default_rng(seed).integers(0, m, 40), m - 9 : m])
    for name in ("normal", "phi4", "cancelling", "subnormal_results"):
        a, x = HOSTILE[name](m, k, 1, seed=seed, dtype=np.dtype(dtype))
        c = prismm.matmul(torch.from_numpy(a).cuda(), torch.from_numpy(x).cuda(), accuracy="native", **form)
        c, a = c.cpu().numpy()[some], a[some]
        bounds = ConventionalBound(FP64 if dtype == "float64" else FP32, a, x, k, 2.0**-53)
        exact = exact_product(a.astype(np.float64), x.astype(np.float64))
        assert exact.within(c, bounds.at(c, slice(None), slice(None))).all(), name


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_batches_broadcasts_and_reports(dtype, rng):
    shapes = [
        ((5, 30, 40), (5, 40, 20)),
        ((5, 30, 40), (1, 40, 20)),
        ((30, 40), (40, 20)),
        ((4, 1, 30, 40), (5, 40, 7)),
    ]
    scheme = prismm.Native("float64") if dtype == "float32" else prismm.Native()
    for left, right in shapes:
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in (left, right))
        x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        c, report = prismm.matmul(x, y, scheme=scheme, accuracy="native", engine="cuda:fp64", full_output=True)
        assert report.engine == "cuda:fp64" and report.paths["a priori"] == c.numel()
        wide = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
        error = np.abs(c.cpu().numpy() - wide)
        assert (error <= np.reshape(report.bounds, error.shape)).all()
        out = torch.empty_like(c)
        for _ in range(4):
            assert prismm.matmul(x, y, scheme=scheme, accuracy="native", engine="cuda:fp64", out=out).equal(c)


@pytest.mark.gpu
def test_graphs_streams_and_small_calls_by_default(rng):
    needs_rates()
    x, y = (torch.from_numpy(rng.standard_normal((96, 96))).cuda() for _ in range(2))
    cuda_calls.forget()
    assert prismm.explain(x, y).engine == "cuda:fp64"
    expected = prismm.matmul(x, y)
    for _ in range(4):
        assert prismm.matmul(x, y).equal(expected)
    assert fast_path.known() == 1
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(expected)
    with torch.cuda.graph(graph):
        prismm.matmul(x, y, out=out)
    x.mul_(2.0)
    graph.replay()
    assert out.equal(2.0 * expected)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        found = prismm.matmul(x, y)
    side.synchronize()
    assert found.equal(2.0 * expected)
    assert prismm.matmul(torch._neg_view(x), y).equal(-2.0 * expected)
    x[3, 5] = math.inf
    assert bool(torch.isfinite(prismm.matmul(x, y)).logical_not()[3].all())


def test_splits_are_chosen_and_predicted_as_measured():
    """Of the ways that are on record for a shape, in graphs: the one that is taken is within a fifth of the fastest,
    and takes what is predicted within a third.
    """
    with (ROOT / "benchmarks/results/gpu_parts.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == "NVIDIA H200"]
    times: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        times.setdefault(tuple(row[x] for x in ("dtype", "m", "n", "k")), {})[row["way"]] = 1e3 * float(row["ms"])
    seen, near = 0, []
    for (dtype, m, n, k), found in times.items():
        shape = Shape(int(m), int(n), int(k), 1, 8 if dtype == "float64" else 4)
        split = faster_split(shape, 132, sm90=True)
        if split is None or int(n) == 1:
            continue
        tile = split.tile
        own = (
            "groups" if tile.groups else f"{tile.rows}x{tile.columns}x{tile.depth} {tile.up}x{tile.along} {tile.stages}"
        )
        if f"{split.parts} parts {own}" in found:
            seen += 1
            taken, best = found[f"{split.parts} parts {own}"], min(t for way, t in found.items() if way != "cuBLAS")
            near.append(1e6 * seconds_of(shape, 132, 1.0, 4e12, sm90=True) / taken)
            assert taken <= 1.2 * best, (dtype, m, n, k, taken, best)
    assert seen >= 12 and all(0.67 < ratio < 1.34 for ratio in near), near
