"""Products of residues from seven products of quarters: the digits, and the bits, of the ordinary ones."""

import dataclasses
import itertools

import numpy as np
import pytest

import prismm
from prismm.cuda import calls as cuda_calls
from prismm.cuda.costs.predict import gpu_seconds
from prismm.cuda.costs.table import committed
from prismm.cuda.device import device_of
from prismm.cuda.residues import implementation as residues_implementation
from prismm.cuda.residues import strassen as cuda_strassen
from prismm.cuda.residues.implementation import certificate_test
from prismm.cuda.residues.seconds import by_strassen
from prismm.cuda.residues.tables import tables
from prismm.formats import FP32, FP64
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE
from tests.cuda.harness.processes import interpreted
from tests.cuda.test_plan import H200, chosen, problem_of

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from prismm.cuda.residues.kernels import strassen as strassen  # noqa: E402
from tests.cuda.harness.planes import digits_of, exact_digits, planes_program  # noqa: E402
from tests.cuda.harness.programs import residue_program  # noqa: E402
from tests.cuda.offline.interpreted_quarters import KINDS, SHAPES, residues  # noqa: E402


def run_steps(steps, inputs):
    """The numbers that a table of steps names, in integers."""
    found = {f"q{x}": value for x, value in enumerate(inputs)}
    for target, first, sign, second, _ in steps:
        found[target] = found[first] + found[second] if sign == "+" else found[first] - found[second]
    return found


def test_the_seven_products_are_those_of_the_identity(rng):
    """By integers: what the kernel takes from where, by its four masks, and what is made of it."""
    # a[row half, inner half], b[column half, inner half], each to be multiplied by the other's .T
    a, b = rng.integers(-99, 99, (2, 2, 2, 3, 3))
    left = run_steps(strassen.LEFT_STEPS, [a[x, y] for x, y in itertools.product(range(2), repeat=2)])
    right = run_steps(strassen.RIGHT_STEPS, [b[x, y] for x, y in itertools.product(range(2), repeat=2)])
    products = []
    for x in range(strassen.PRODUCTS):
        place = strassen.SECOND_VECTORS >> x & 1, strassen.SECOND_TERMS >> x & 1
        own = f"s{1 + 2 * place[0] + place[1]}"
        first = left[own] if strassen.LEFT_SUMS >> x & 1 else a[place]
        second = right[own] if strassen.RIGHT_SUMS >> x & 1 else b[place]
        products.append(first @ second.T)
    made = run_steps(strassen.ENTRY_STEPS, products)
    for index, (row, column) in enumerate(itertools.product(range(2), repeat=2)):
        assert np.array_equal(made[f"s{index + 1}"], sum(a[row, h] @ b[column, h].T for h in range(2)))


def test_bytes_are_added_modulo_every_modulus():
    """The assembly against integers, of all pairs of the outermost residues: sums below 0 and above 2p, no carries."""
    from tests.cuda.harness import ptx

    p = np.array([256, 255, 163], np.int64)[:, None, None, None, None]
    edge = np.array([0, 1, 127, 128, 129, -2, -1], np.int64)
    grid = np.stack(np.meshgrid(*[np.arange(len(edge))] * 4, indexing="ij"))
    values = [np.where(edge[x] < 0, p + edge[x], edge[x]) for x in grid]  # in [0, p), four inputs
    for code, steps, signed in (
        (strassen._OF_LEFT, strassen.LEFT_STEPS, True), (strassen._OF_RIGHT, strassen.RIGHT_STEPS, True),
        (strassen._OF_ENTRIES, strassen.ENTRY_STEPS, False),
    ):  # fmt: skip
        inputs = values if signed else [*values, *values[:3]]
        words = []
        for x, value in enumerate(inputs):
            # Other residues beside it, in the same word.
            others = [(value + 77 * y * (x + 1)) % p for y in range(4)]
            words.append(sum(other.astype(np.uint32) << np.uint32(8 * y) for y, other in enumerate(others)))
        inside = [word ^ np.uint32(0x80808080) if signed else word for word in words]
        both = [((x % 2**16) * 0x10001).astype(np.uint32) for x in (p, 2**16 - p)]
        shape = np.broadcast_shapes(*(x.shape for x in inside))
        arguments = [np.broadcast_to(x, shape).view(np.int32) for x in (*inside, *both)]
        constraints = ",".join(["=r"] * 4 + ["r"] * len(arguments))
        made = ptx.elementwise(code.value, constraints, arguments, [np.dtype(np.int32)] * 4)
        for y in range(4):
            own = [(word.astype(np.int64) >> 8 * y & 255) - 128 * signed for word in words]
            want = run_steps(steps, own)
            for x in range(4):
                byte = (made[x].view(np.uint32) ^ np.uint32(0x80808080 if signed else 0)) >> np.uint32(8 * y) & 255
                assert np.array_equal(byte.astype(np.int64), (want[f"s{x + 1}"] + 128 * signed) % p)


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_interpreted_kernels_give_the_digits_of_exact_integers(part):
    found = interpreted("quarters", f"{part}/2")
    assert len(found) > 5
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_interpreted_products_have_the_bits_of_a_cpu(part):
    """From the split to the join, of operands as they are and of one that was prepared."""
    (entry,) = interpreted("large", f"{part}/2")
    assert entry["wrong"] == 0


@pytest.mark.parametrize("sizes", [(16384, 16384, 16384), (20000, 18000, 24000)])
@pytest.mark.parametrize(("result", "moduli"), [(FP64, 14), (FP32, 8), (FP64, 20)])
@pytest.mark.parametrize("is_complex", [False, True])
def test_large_products_are_made_so_where_there_is_memory(sizes, result, moduli, is_complex, monkeypatch):
    m, n, k = sizes
    problem = dataclasses.replace(problem_of(m, k, result, is_complex=is_complex), n=n)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    much, whole = (chosen(problem, dataclasses.replace(H200, sm90=x), scheme=Residues(moduli)) for x in (True, False))
    assert any("quarters" in reason for reason in much.reasons)
    much, whole = much.blocks, whole.blocks
    assert much.strassen and not whole.strassen and much.workspace > whole.workspace
    assert much[:2] == whole[:2] == (m, n)
    # Not enough for both, not enough for either.
    for free in (4 * much.workspace - (1 << 30), 3 * whole.workspace):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 1 << 40))
        little = chosen(problem, scheme=Residues(moduli))
        assert not any("quarters" in reason for reason in little.reasons)
        little = little.blocks
        assert little.workspace <= free // 4 and not little.strassen
        assert little.rows == m or free == 3 * whole.workspace


def test_smaller_products_are_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (139 << 30, 140 << 30))
    rates = committed()["NVIDIA H200"]
    for m, n, k in ((8192, 8192, 8192), (4096, 4096, 4096), (16384, 16384, 1024), (65536, 128, 65536), (1, 1 << 20, 9)):
        problem = dataclasses.replace(problem_of(m, k, FP64), n=n)
        assert not chosen(problem, scheme=Residues(14)).blocks.strassen
        assert not by_strassen(problem, 14, rates)
    problem = problem_of(16384, 16384, FP64)
    whole, faster = (gpu_seconds(Residues(14), problem, rates, strassen=x) for x in (False, True))
    assert 0.9 < faster / whole < 0.98
    assert gpu_seconds(Residues(14), problem, rates) == faster


@pytest.mark.parametrize("target", ["native", "correctly-rounded"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
@pytest.mark.parametrize("sizes", [(600, 700, 800), (700, 1400, 520)])
def test_the_memory_is_what_a_plan_says(sizes, dtype, target):
    m, n, k = sizes
    a, b = torch.zeros(1, m, k, dtype=dtype), torch.zeros(1, k, n, dtype=dtype)
    out = torch.zeros(1, m, n, dtype=dtype)
    program = residue_program(a, b, out, 9, target, H200, strassen=True)
    names = [name for name, _ in program.single_launches()]
    assert names.count("strassen_sums") == 2 and "strassen_products" in names
    double = dtype == torch.float64
    problem = problem_of(m, k, FP64 if double else FP32, target, is_complex=not double)
    problem = dataclasses.replace(problem, n=n)
    test, parts = certificate_test(problem), 1 if double else 2
    said = cuda_strassen.workspace_bytes(m, n, k, 9, parts, test, H200)
    assert abs(program.workspace - said) < 0.002 * said


@pytest.fixture
def always(monkeypatch):
    """Products are made from quarters wherever there are some."""
    monkeypatch.setattr(
        residues_implementation,
        "by_strassen",
        lambda problem, moduli, rates: cuda_strassen.serves(problem.m, problem.n, problem.k),
    )
    cuda_calls.forget()
    yield
    cuda_calls.forget()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (1000, 2000, 3000), (257, 513, 70000)])
def test_digits_are_those_of_exact_integers(shape):
    rows, columns, k = shape
    device = device_of(0)
    if not device.sm90:
        pytest.skip("kernels for Hopper GPUs")
    torch.manual_seed(k)
    print("seed", k)
    for kind in KINDS:
        left, right = (residues(6, x, k, kind).cuda() for x in (rows, columns))
        program, digits, fill = planes_program(left, right, device, strassen=True)
        workspace = torch.zeros(program.workspace, dtype=torch.uint8, device="cuda")
        fill(workspace)
        program.run((0, 0, 0, workspace.data_ptr()), torch.cuda.current_stream().cuda_stream)
        found = digits_of(workspace, digits, columns)
        want = exact_digits(left, right, tables(6, left.device))
        assert torch.equal(found, want), (kind, int((found != want).sum()))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["normal", "wide_rows", "carries"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_results_have_the_bits_of_a_cpu(dtype, name, always):
    """Operands as they are, prepared, and in gemm; rounded correctly, and of native grade."""
    if not device_of(0).sm90:
        pytest.skip("kernels for Hopper GPUs")
    a, b = HOSTILE[name](300, 530, 520, seed=3, dtype=np.dtype(dtype))
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    for keywords in ({"reproducible": True}, {"accuracy": "correctly-rounded"}):
        assert any("quarters" in reason for reason in prismm.explain(x, y, **keywords).reasons)
        want = prismm.matmul(a, b, **keywords)
        kept = prismm.prepare(y, side="right", **keywords)
        sum_ = prismm.gemm(x, y, torch.from_numpy(want).cuda(), alpha=1.5, beta=-0.5, **keywords)
        for found, expected in (
            (prismm.matmul(x, y, **keywords), want), (prismm.matmul(x, kept, **keywords), want),
            (sum_, prismm.gemm(a, b, want, alpha=1.5, beta=-0.5, **keywords)),
        ):  # fmt: skip
            assert np.array_equal(found.cpu().numpy().view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


@pytest.mark.gpu
def test_a_large_product_is_the_same_with_and_without(monkeypatch):
    """As it is made at order 16384."""
    if not device_of(0).sm90 or torch.cuda.mem_get_info()[0] < 100 << 30:
        pytest.skip("a Hopper GPU with much memory")
    torch.manual_seed(16384)
    print("seed", 16384)
    a, b = (torch.randn(16384, 16384, device="cuda") for _ in range(2))
    keywords = {"accuracy": "native", "scheme": Residues(7)}
    plan = prismm.explain(a, b, **keywords)
    assert any("quarters" in reason for reason in plan.reasons), plan.reasons
    found = prismm.matmul(a, b, **keywords)
    monkeypatch.setattr(residues_implementation, "by_strassen", lambda problem, moduli, rates: False)
    cuda_calls.forget()
    assert torch.equal(found, prismm.matmul(a, b, **keywords))
    cuda_calls.forget()
