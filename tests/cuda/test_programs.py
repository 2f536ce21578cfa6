"""Programs of launches as a plan asks for them: scratch memory as planned, grids that CUDA has; no GPU is needed."""

import math

import pytest
import torch

from prismm import Slices
from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.core.request import Request
from prismm.cuda import blocks as cuda_blocks
from prismm.cuda import operands as cuda_operands
from prismm.cuda import plan as cuda_plan
from prismm.cuda.backend import GpuCall
from prismm.cuda.device import Device
from prismm.cuda.execute import _queued, queued_with_row
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.kernels import layout
from prismm.cuda.launch import cublas
from prismm.cuda.launch.arguments import ADDEND, A, BufferView
from prismm.cuda.launch.program import LONGEST_GRID, Program
from prismm.cuda.launch.steps import Launch
from prismm.cuda.residues.recompute import MOST_MAGNITUDES
from prismm.cuda.workspace import UNREAD_BYTES
from prismm.errors import EngineError
from prismm.formats import FP32, FP64
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from prismm.schemes.tile_int8 import TileInt8

H200 = Device("NVIDIA H200", True, True, 132)
KINDS = {torch.float64: FP64, torch.float32: FP32, torch.complex128: FP64, torch.complex64: FP32}


@pytest.fixture(autouse=True)
def nobody_asks_how_much_memory_is_free(monkeypatch):
    monkeypatch.setattr(cuda_blocks, "LARGE", 1 << 50)


def program(batch, m, k, n, scheme, target, dtype=torch.float64, sum_=False, large=None, turned=False):
    """The program of a call and its choice, for operands that are nowhere."""
    chosen = parse_target(target) if target else None
    options = Request(chosen, scheme, False, None, None, 1, None)
    problem = Problem(m, n, k, (batch,) if batch > 1 else (), KINDS[dtype], chosen, False, True, dtype.is_complex, sum_)
    choice = cuda_plan.choose(problem, options, H200)
    call = GpuCall((), (), (batch, m, n), dtype, ("", ""), choice, problem, H200, 0, options, None)
    a, b, out = (torch.empty(batch, *shape, dtype=dtype, device="meta") for shape in ((m, k), (k, n), (m, n)))
    if turned:
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    third = torch.empty(batch, m, n, dtype=dtype, device="meta") if sum_ else None
    return _queued(call, a, b, out, False, third).program, choice


@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [
        (1, 4096, 4096, 4096), (1, 300, 70, 2000), (2000, 8, 8, 8), (40000, 8, 8, 8), (3000, 32, 32, 32),
        (1, 200000, 8, 1), (1, 1, 8, 200000), (1, 64, 300000, 64), (7, 100, 1000, 130),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["native", "correctly-rounded", None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_scratch_is_what_was_planned(batch, m, k, n, target, dtype):
    for sum_ in (False, True):
        made, choice = program(batch, m, k, n, Residues(15), target, dtype, sum_)
        assert 0.98 * choice.blocks.workspace - 65536 <= made.workspace <= 1.01 * choice.blocks.workspace + 65536, sum_


@pytest.mark.parametrize(
    "scheme",
    [
        ScaledHalf(), Words.tf32(), Words.bf16(3), TileInt8(), Slices("int8", slices=3), Slices("fp16", slices=3),
        Slices("fp64", slices=2),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_scratch_of_other_schemes_is_planned_within_a_tenth(scheme, dtype):
    for shape in (
        (1, 4096, 4096, 4096), (1, 300, 70, 2000), (300, 32, 32, 32), (1, 200000, 8, 1), (7, 100, 1000, 130),
        (1, 64, 100000, 64),
    ):  # fmt: skip
        made, choice = program(*shape, scheme, "native", dtype)
        assert 0.9 < choice.blocks.workspace / made.workspace < 1.1, shape


@pytest.mark.parametrize("scheme", [ScaledHalf(), Words.tf32(), TileInt8(), Slices("fp16", slices=3)], ids=str)
def test_a_sum_adds_c_where_it_is_made_and_nowhere_else(scheme):
    """The products that it is made from have kernels that can add a row of their own."""
    for shape in ((1, 300, 900, 200), (2, 1000, 70, 800), (1, 64, 8000, 64)):
        made, _ = program(*shape, scheme, "native", torch.float32, sum_=True)
        readers = [x for x in made.launches if isinstance(x, Launch)]
        readers = [x for x in readers if any(isinstance(y, BufferView) and y.base == ADDEND for y in x.arguments)]
        names = [x.kernel.fn.__name__ for x in readers]
        assert names == ["combine_values", "recompute_exact"] or "slices" in str(type(scheme)), names
        assert not {"words_product", "multiply_by_words", "add_shares", "repair_words"} & set(names)


@pytest.mark.parametrize(("scheme", "adds"), [(ScaledHalf(), True), (Words.bf16(6), False), (Residues(8), False)])
def test_a_row_is_read_by_the_kernels_that_write_and_repair(scheme, adds):
    """And the call keeps its own program beside that one."""
    for m, k, n in ((4096, 300, 4096), (64, 8000, 80)):
        target = parse_target("native")
        options = Request(target, scheme, False, None, None, 1, None)
        problem = Problem(m, n, k, (), FP32, target, False, True)
        choice = cuda_plan.choose(problem, options, H200)
        names = "float32", "float32"
        call = GpuCall((m, k), (k, n), (m, n), torch.float32, names, choice, problem, H200, 0, options, (1, 1))
        a, b, row = (torch.empty(shape, device="meta") for shape in ((m, k), (k, n), (n,)))
        found = queued_with_row(call, a, b, row)
        assert (found is not None) == adds and list(call.programs) == ["row"] * adds
        if found is not None:
            launches = [x for x in found.program.launches if isinstance(x, Launch)]
            views = {x.kernel.fn.__name__: [y.base for y in x.arguments if isinstance(y, BufferView)] for x in launches}
            written = {"add_shares"} if "add_shares" in views else set()
            assert {name for name, bases in views.items() if ADDEND in bases} == {
                "words_product",
                "repair_words",
            } | written
            assert queued_with_row(call, a, b, row) is found


def test_native_products_take_cublas_workspace_and_little_more():
    for batch in (1, 40, 5000):
        made, choice = program(batch, 70, 80, 90, Native(), "native")
        assert 0 <= made.workspace - choice.blocks.workspace <= 512 and choice.blocks.workspace == cublas.WORKSPACE


def test_products_in_one_kernel_share_what_nobody_reads():
    for batch in (1, 40, 5000):
        made, choice = program(batch, 70, 80, 90, Native("float64"), "native", torch.float32)
        assert choice.engine == "cuda:fp64" and 0 < made.workspace <= UNREAD_BYTES


def test_batches_share_scratch(monkeypatch):
    monkeypatch.setattr(cuda_blocks, "LARGE", 1 << 28)
    made, choice = program(32767, 8, 8, 8, Residues(15), "native")
    assert 1 < choice.blocks.batches < 32767 and made.workspace < 1.1 * (1 << 28)


@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [
        (1, 5_000_000, 16, 16), (1, 16, 16, 5_000_000), (1, 300_000, 64, 64), (1, 64, 5_000_000, 64),
        (1, 64, (1 << 23) - 1, 64), (1, 1, (1 << 23) - 300, 2), (70_000, 8, 8, 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", [Residues(15), Native(), Slices("int8", slices=7), Slices("fp16", slices=3)])
def test_grids_are_within_cuda_s(batch, m, k, n, scheme):
    for sum_ in (False, True) if not isinstance(scheme, Slices) else (False,):
        for turned in (False, True):
            made, _ = program(batch, m, k, n, scheme, "native", sum_=sum_, turned=turned)
            grids = [launch.grid for launch in made.launches if isinstance(launch, Launch)]
            assert grids and all(max(grid[1:]) <= LONGEST_GRID for grid in grids)


@pytest.mark.parametrize(
    ("scheme", "dtype"), [(Slices("fp64", slices=2), torch.complex128), (TileInt8(), torch.complex64)]
)
def test_complex_operands_that_are_laid_out_have_grids_too(scheme, dtype):
    for turned in (False, True):
        made, _ = program(1, 70_000, 70_000, 8, scheme, None, dtype, turned=turned)
        assert all(max(launch.grid[1:]) <= LONGEST_GRID for launch in made.launches if isinstance(launch, Launch))


def test_other_grids_are_refused():
    made = Program()
    with pytest.raises(EngineError, match="1 x 65536 x 1"):
        made.launch(layout.lay_out, (1, LONGEST_GRID + 1), BufferView(A, 0, torch.float64))
    assert not made.launches


def test_every_join_counts_what_it_opens(monkeypatch):
    monkeypatch.setattr(cuda_blocks, "LARGE", 1 << 24)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 26, 1 << 26))
    made, choice = program(1, 900, 300, 700, Residues(15), "native")
    assert choice.blocks.rows < 900
    uncertified = [
        [x for x in launch.arguments if isinstance(x, BufferView) and x.dtype == torch.int64 and x.shape == (1,)]
        for launch in made.launches
        if isinstance(launch, Launch) and launch.kernel.fn.__name__ == "finish"
    ]
    joins = math.ceil(900 / choice.blocks.rows) * math.ceil(700 / choice.blocks.columns)
    assert len(uncertified) == len({place.offset for (place,) in uncertified}) == joins
    assert all(place.offset % 16 == 0 for (place,) in uncertified)


def test_long_vectors_have_no_planes_of_magnitudes():
    assert 127**2 * MOST_MAGNITUDES < 1 << 31
    for k, kernels in ((MOST_MAGNITUDES, 1), (MOST_MAGNITUDES + 1, 0)):
        made, _ = program(1, 64, k, 64, Residues(15), "native")
        names = [launch.kernel.fn.__name__ for launch in made.launches if isinstance(launch, Launch)]
        assert names.count("magnitude_planes") == kernels and names.count("repair_strips") == 1


def test_overlaps_are_told_by_addresses():
    import numpy as np

    base = np.arange(48.0).reshape(6, 8)
    x, y, apart = (torch.from_dlpack(part) for part in (base[:4], base[2:], base[5:]))
    assert cuda_operands.overlap(y, x) and cuda_gemm.spoilt(x, y)
    assert not cuda_operands.overlap(apart, x) and not cuda_gemm.spoilt(x, apart)
    whole = torch.arange(48.0).reshape(6, 8)
    assert not cuda_operands.overlap(whole[4:], whole[:4]) and cuda_operands.overlap(whole[:, 1:], whole[:, :1])
    assert not cuda_operands.overlap(whole[:0], whole)
    assert not cuda_gemm.spoilt(whole, whole) and cuda_gemm.spoilt(whole.T, whole[:, :6])
