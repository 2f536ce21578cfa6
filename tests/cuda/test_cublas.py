"""cuBLAS called directly: what it is told, by its own definition of a product; and on a GPU, torch's bits."""

import itertools
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from prismm.cuda.backend import in_place  # noqa: E402
from prismm.cuda.launch import cublas  # noqa: E402
from prismm.cuda.launch.arguments import OUT, A, B, BufferView  # noqa
from prismm.cuda.launch.program import Program  # noqa: E402
from prismm.cuda.native.cublas import multiply_natively  # noqa
from prismm.cuda.operands import vectors_of  # noqa: E402
from prismm.cuda.views import Result  # noqa: E402
from prismm.errors import EngineError  # noqa: E402

DTYPES = ("float64", "float32", "complex128", "complex64")
LAYOUTS = ("rows", "columns", "rows apart", "columns apart")
SHAPES = ((4, 5, 6), (1, 5, 6), (4, 1, 6), (4, 5, 1), (1, 1, 7), (1, 1, 1), (7, 1, 1), (1, 7, 1))
BATCHES = ((1, 1, 1), (3, 3, 3), (3, 1, 3), (3, 3, 1))
"""Of the product, and of both operands."""


def matrices(rng, batch, rows, columns, kind, layout):
    """Integers (batch, rows, columns) with gaps of 99 between them."""
    x = torch.from_numpy(rng.integers(-5, 6, (2, batch, rows, columns)).astype(float))
    x = (torch.complex(*x) if kind.is_complex else x[0]).to(kind)
    turned = "columns" in layout
    x = x.mT if turned else x
    more = 3 if "apart" in layout else 0
    memory = torch.full((batch, x.shape[1] + more, x.shape[2] + more), 99.0, dtype=kind)
    view = memory[:, : x.shape[1], : x.shape[2]]
    view.copy_(x)
    return view.mT if turned else view


def gemm_of(a, b, out):
    """The step that multiplies these tensors."""
    program = Program()
    left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
    target = Result(BufferView(OUT, 0, out.dtype), *out.shape, out.stride())
    multiply_natively(program, left, right, target)
    (gemm,) = program.launches
    assert program.workspace >= cublas.WORKSPACE and gemm.workspace.offset % 256 == 0
    return gemm


def by_definition(gemm, a, b, out):
    """cuBLAS's definition: out ← one·op(first)·op(second) + zero·out, by columns, of the numbers behind addresses."""
    name, arguments = gemm.call
    assert name.startswith("cublas" + {"float64": "D", "float32": "S", "complex128": "Z", "complex64": "C"}[
        str(out.dtype).removeprefix("torch.")] + "gemm")  # fmt: skip
    many = "Batched" in name
    first_turned, second_turned, m, n, k, one, first, *rest = arguments
    first_leading, rest = rest[0], rest[1:]
    first_step, rest = (rest[0], rest[1:]) if many else (0, rest)
    second, second_leading, *rest = rest
    second_step, rest = (rest[0], rest[1:]) if many else (0, rest)
    zero, third, third_leading, *rest = rest
    third_step, count = rest if many else (0, 1)
    assert (one, zero) == (1.0, 0.0)
    memory = {A: a, B: b, OUT: out}

    def numbers(place, step, leading, rows, columns, turned=False):
        """By columns."""
        stored = (columns, rows) if turned else (rows, columns)
        assert leading >= max(1, stored[0])
        x = memory[place.base]
        view = x.as_strided((count, *stored), (step, 1, leading), x.storage_offset() + place.offset // x.itemsize)
        return view.mT if turned else view

    made = numbers(first, first_step, first_leading, m, k, first_turned) @ numbers(
        second, second_step, second_leading, k, n, second_turned
    )
    numbers(third, third_step, third_leading, m, n).copy_(made)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batches", BATCHES)
def test_what_cublas_is_told_is_the_product(dtype, batches, rng):
    kind = getattr(torch, dtype)
    for (m, n, k), *layouts in itertools.product(SHAPES, LAYOUTS, LAYOUTS):
        a = matrices(rng, batches[1], m, k, kind, layouts[0])
        b = matrices(rng, batches[2], k, n, kind, layouts[1])
        out = torch.full((batches[0], m, n), torch.nan, dtype=kind)
        by_definition(gemm_of(a, b, out), a, b, out)
        assert torch.equal(out, a @ b), (m, n, k, layouts)


def test_large_numbers_take_the_64_bit_call():
    place = BufferView(A, 0, torch.float64)

    def name(batch, m, n, k, a_steps, b_steps):
        return cublas.Gemm(place, place, place, (batch, m, n, k), a_steps, b_steps, place).call[0]

    most = (1 << 31) - 1
    assert name(1, most, 2, 3, (0, 3, 1), (0, 2, 1)) == "cublasDgemm_v2"
    assert name(1, most + 1, 2, 3, (0, 3, 1), (0, 2, 1)) == "cublasDgemm_v2_64"
    assert name(1, 2, 2, 3, (0, most + 1, 1), (0, 2, 1)) == "cublasDgemm_v2_64"
    assert name(2, 2, 2, 3, (0, 3, 1), (6, 2, 1)) == "cublasDgemmStridedBatched"
    assert name(2, 2, 2, 3, (0, 3, 1), (1 << 40, 2, 1)) == "cublasDgemmStridedBatched"  # steps have 64 bits anyway
    assert name(2, 2, 2, 3, (0, 3, 1), (0, 1, most + 1)) == "cublasDgemmStridedBatched_64"


def test_rows_that_overlap_are_copied():
    windows = torch.arange(20.0).as_strided((5, 4), (1, 2))  # neither rows nor columns lie apart
    assert in_place(windows, False) and not in_place(windows, True)
    assert in_place(windows.contiguous(), True) and in_place(windows.contiguous().mT, True)
    with pytest.raises(EngineError, match="copied first"):
        gemm_of(windows[None], torch.ones(1, 4, 3), torch.empty(1, 5, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_torchs(dtype, rng):
    """Of every layout and batch, eager, replayed and captured; torch's setting of float32 does not reach them."""
    import prismm
    from prismm.cuda import calls as cuda_calls

    kind = getattr(torch, dtype)
    before = torch.backends.cuda.matmul.fp32_precision
    for shape, batches, *layouts in itertools.product(
        ((64, 96, 128), (1, 300, 500), (500, 1, 300), (129, 257, 1), (40, 40, 5000)), BATCHES[:2], LAYOUTS, LAYOUTS
    ):
        m, n, k = shape
        a = matrices(rng, batches[1], m, k, kind, layouts[0]).cuda()
        b = matrices(rng, batches[2], k, n, kind, layouts[1]).cuda()
        a, b = (torch.where(x != 99, x * torch.randn_like(x), x) for x in (a, b))
        a, b = (x[0] for x in (a, b)) if batches[0] == 1 else (a, b)
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        expected = torch.matmul(a, b)
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            form = {"scheme": prismm.Native(), "engine": "cuda:blas"}
            for _ in range(5):
                assert torch.equal(prismm.matmul(a, b, **form), expected), (shape, batches, layouts)
        finally:
            torch.backends.cuda.matmul.fp32_precision = before
        out = torch.empty_like(expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            prismm.matmul(a, b, out=out, **form)
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)
    cuda_calls.forget()


@pytest.mark.gpu
def test_calls_of_one_layout_are_one_graph():
    import prismm
    from prismm.cuda import calls as cuda_calls

    cuda_calls.forget()
    kept = []
    for _ in range(6):  # each at new addresses
        a, b = (torch.randn(700, 700, dtype=torch.float64, device="cuda") for _ in range(2))
        kept += [a, b, prismm.matmul(a, b, scheme=prismm.Native(), engine="cuda:blas")]
        assert torch.equal(kept[-1], a @ b)
    (call,) = cuda_calls.known()
    (queued,) = call.programs.values()
    assert [type(x).__name__ for x in queued.program.graphs] == ["Graph"]


@pytest.mark.gpu
def test_threads_on_streams_of_their_own():
    """Handles and scratch memory are nobody else's while they are used; products that are cut use the memory."""
    import prismm

    cases, wrong = [], []
    for seed in range(4):
        torch.manual_seed(seed)
        a, b = torch.randn(96, 20000, device="cuda"), torch.randn(20000, 64, device="cuda")
        cases.append((a, b, a @ b))
    torch.cuda.synchronize()

    def work(a, b, expected):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(prismm.matmul(a, b, scheme=prismm.Native(), engine="cuda:blas"), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work, args=case) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
