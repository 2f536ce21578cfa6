"""What `Auto` takes on a GPU, and what is refused, by shapes, types and targets alone: no GPU is needed to ask."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import prismm
from prismm import Slices, TileInt8, Words
from prismm.core.accuracy import Target, parse_target
from prismm.core.problem import Problem
from prismm.core.request import check_request
from prismm.cuda import blocks as cuda_blocks
from prismm.cuda import choice as cuda_choice
from prismm.cuda import plan as cuda_plan
from prismm.cuda.backend import _is_strided_vector
from prismm.cuda.costs.predict import predict
from prismm.cuda.costs.table import committed, rates_of
from prismm.cuda.device import Device, reduced_float32
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.multiword.implementation import of_native_grade
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64
from prismm.planning.auto import Auto
from prismm.schemes.baselines import QuanTensor
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from tests.cuda.harness.pretended import GPUS, pretended
from tests.judge import assert_each

H200 = Device("NVIDIA H200", True, True, 132)
UNKNOWN = Device("NVIDIA of tomorrow", False, True, 100)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """No table of this machine's user counts, nor its settings."""
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path))
    for name in ("PRISMM_RATES", "PRISMM_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    rates_of.cache_clear()
    yield
    rates_of.cache_clear()


def problem_of(n, k, result, target="native", **changes):
    fields = {
        "m": n, "n": n, "k": k, "batch": (), "result": result, "target": parse_target(target), "reproducible": False,
        "one_type": True, **changes,
    }  # fmt: skip
    return Problem(**fields)


def chosen(problem, device=H200, scheme=None, engine=None):
    asked = None if scheme is not None and problem.target is None else "native"
    options = check_request(asked, scheme, False, None, engine, None, None, None)[0]
    return cuda_plan.choose(problem, options, device)


@pytest.mark.parametrize(
    ("problem", "scheme"),
    [
        (problem_of(64, 64, FP64), Native()), (problem_of(64, 64, FP32), Native("float64")),
        (problem_of(4096, 4096, FP64), Residues(14)), (problem_of(2048, 2048, FP32), ScaledHalf(chunk=128)),
        (problem_of(4096, 4096, FP32), ScaledHalf(chunk=128)),
        (problem_of(256, 256, FP32), Native("float64")), (problem_of(4096, 4096, FP64, reproducible=True),
        Residues(15)), (problem_of(2048, 2048, FP32, reproducible=True), Residues(7)),
        (problem_of(4096, 4096, FP32, one_type=False), Residues(7)), (problem_of(512, 512, FP64, 1e-9), Residues(10)),
    ],
)  # fmt: skip
def test_what_auto_takes(problem, scheme):
    choice = chosen(problem)
    assert choice.scheme == scheme and choice.reasons
    assert predict(choice.scheme, problem, committed()["NVIDIA H200"]) > 0.0


def test_every_problem_has_a_plan(rng):
    """Any shape, type, target and batch, on a GPU with a table and on one without, within the planes that it says."""

    def check(_case):
        if small := rng.random() < 0.4:  # as batches have them
            m, n, k = (int(x) for x in rng.integers(1, 33, 3))
        else:  # within the memory of any GPU
            m, n, k = (int(2 ** rng.uniform(0, 12)) for _ in range(3))
        batch = [(), (int(rng.integers(1, 3000 if small else 5)),), (3, 2)][rng.integers(3)]
        fields = {
            "is_complex": bool(rng.integers(2)), "reproducible": bool(rng.integers(2)), "batch": batch, "m": m,
            "one_type": bool(rng.integers(2)), "summed": bool(rng.integers(4) == 0),
        }  # fmt: skip
        target = ["native", "fast", "correctly-rounded", 1e-9][rng.integers(4)]
        problem = problem_of(n, k, [FP64, FP32][rng.integers(2)], target, **fields)
        for device in (H200, UNKNOWN):
            plan = chosen(problem, device)
            assert 0 < plan.blocks.rows <= m and 0 < plan.blocks.columns <= n and plan.blocks.workspace >= 0, problem

    assert_each(check, range(300))


@pytest.mark.parametrize("result", [FP64, FP32], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(64, 64, 64, ()), (4096, 16, 64, ()), (16, 65536, 64, ()), (32, 32, 32, (512,))]
)
def test_small_products_are_one_kernel(m, n, k, batch, result):
    choice = chosen(dataclasses.replace(problem_of(m, k, result, batch=batch), n=n))
    assert choice.scheme == Native(None if result == FP64 else "float64") and choice.engine == "cuda:fp64"


PROBLEMS = [
    problem_of(n, n, result, target, is_complex=is_complex)
    for n in (64, 1024, 4096)
    for result in (FP64, FP32)
    for target in ("native", "fast", "correctly-rounded", 1e-5)
    for is_complex in (False, True)
]


def test_auto_may_be_asked_of_a_gpu_that_is_not_here(monkeypatch):
    monkeypatch.setattr(cuda_blocks, "LARGE", 1 << 50)
    for problem in (*PROBLEMS, *(dataclasses.replace(x, reproducible=True) for x in PROBLEMS)):
        options = check_request(problem.target, None, problem.reproducible, None, None, None, None, None)[0]
        for name, device in (("NVIDIA H200", H200), ("NVIDIA of tomorrow", UNKNOWN)):
            found, choice = Auto().select(problem, name), cuda_plan.choose(problem, options, device)
            assert found.scheme == choice.scheme and found.reasons == choice.reasons[: len(found.reasons)], problem
            assert found.engine in (None, choice.engine)


def test_auto_asks_no_torch_of_a_gpu_that_is_not_here():
    program = (
        "import sys; sys.modules.update(torch=None, triton=None, numba=None)\n"
        "from prismm.core.accuracy import parse_target; from prismm.core.problem import Problem\n"
        "from prismm.formats import FP64; from prismm.planning.auto import Auto\n"
        "problem = Problem(4096, 4096, 4096, (), FP64, parse_target('native'), reproducible=False, one_type=True)\n"
        "print(Auto().select(problem, 'NVIDIA H200').scheme)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "Residues(moduli=14)\n", done.stderr


def test_alternatives_say_why_they_were_not_taken(monkeypatch):
    monkeypatch.setattr(cuda_blocks, "LARGE", 1 << 50)
    for problem in PROBLEMS:
        options = check_request(problem.target, None, False, None, None, None, None, None)[0]
        choice = cuda_plan.choose(problem, options, H200)
        found = cuda_plan.make_plan(problem, choice, options, H200, "", "").alternatives
        assert (str(choice.scheme), choice.engine) not in [(x.scheme, x.engine) for x in found]
        seconds = [x.predicted_seconds for x in found]
        assert seconds == sorted(seconds) and seconds[0] > 0.0
        native = [x.reason for x in found if x.engine == "cuda:blas"]
        if problem.goal in ("correctly-rounded", "tolerance"):
            assert native == ["certifies accuracy 'native' and 'fast' alone"]
        # Nothing is left that the table would have taken.
        assert all(x.reason != "another scheme was asked for" or not _weighed(x.scheme, problem) for x in found), found
    choice = chosen(PROBLEMS[0], UNKNOWN)
    plan = cuda_plan.make_plan(PROBLEMS[0], choice, options, UNKNOWN, "", "")
    assert any("no rates of NVIDIA of tomorrow" in x.reason for x in plan.alternatives)


def _weighed(scheme, problem):
    """Whether the table weighs a scheme for a problem."""
    grade = of_native_grade(problem)
    return scheme.startswith(("Native", "Residues")) or (grade is not None and scheme == str(grade))


def test_schemes_without_kernels_are_refused():
    with pytest.raises(EngineError, match="runs on a CPU so far"):
        chosen(problem_of(64, 64, FP32), scheme=QuanTensor())


def test_engines_of_native_products():
    for result, scheme, engine, found in (
        (FP64, Native(), None, "cuda:blas"), (FP32, Native(), None, "cuda:blas"),
        (FP32, Native("float64"), None, "cuda:fp64"), (FP64, Native("float64"), None, "cuda:blas"),
        (FP64, Native(), "cuda:fp64", "cuda:fp64"), (FP64, None, "cuda:fp64", "cuda:fp64"),
        (FP32, None, "cuda:fp64", "cuda:fp64"), (FP64, None, "cuda:blas", "cuda:blas"),
    ):  # fmt: skip
        assert chosen(problem_of(64, 64, result), scheme=scheme, engine=engine).engine == found
    with pytest.raises(ArgumentError, match="float32 in float64"):
        chosen(problem_of(64, 64, FP32), scheme=Native(), engine="cuda:fp64")
    with pytest.raises(ArgumentError, match="float32 in float32"):
        chosen(problem_of(64, 64, FP32), scheme=Native("float64"), engine="cuda:blas")
    for nothing in (
        problem_of(64, 0, FP64),
        problem_of(0, 64, FP64),
        problem_of(64, 64, FP64, summed=True, reads_operands=False),
    ):
        assert chosen(nothing, engine="cuda:fp64").engine == "cuda:fp64"
    for refused in (problem_of(64, 64, FP64, is_complex=True), problem_of(1 << 23, 64, FP64)):
        with pytest.raises(EngineError, match="real matrices"):
            chosen(refused, engine="cuda:fp64")


def test_settings_of_cublas_do_not_concern_one_kernel(monkeypatch):
    monkeypatch.setattr(cuda_choice, "spoiled_by", lambda problem: "TF32 is on")
    small, large = problem_of(64, 64, FP32), problem_of(4096, 4096, FP32)
    assert chosen(small).engine == "cuda:fp64" and "TF32 is on" in chosen(small).reasons[0]
    assert isinstance(chosen(large).scheme, ScaledHalf)


def test_an_unknown_gpu_multiplies_by_cublas():
    choice = chosen(problem_of(4096, 4096, FP64), UNKNOWN)
    assert choice.scheme == Native() and "no rates" in choice.reasons[0]


@pytest.mark.parametrize("n", [64, 1024, 4096])
@pytest.mark.parametrize("result", [FP64, FP32], ids=str)
def test_a_sum_takes_what_a_product_does_or_residues(n, result):
    """Where alpha allows it gemm is made as its product is, a little later; else from residues."""
    product, plain = problem_of(n, n, result), problem_of(n, n, result, summed=True)
    hard = problem_of(n, n, result, summed=True, sum_of_values=False)
    rates = committed()["NVIDIA H200"]
    assert chosen(plain).scheme == chosen(product).scheme
    scheme, engine = chosen(product).scheme, chosen(product).engine
    assert chosen(plain).engine == engine
    more = predict(scheme, plain, rates, engine) / predict(scheme, product, rates, engine)
    assert 1.0 < more < 2.0
    assert isinstance(chosen(hard).scheme, Residues)


@pytest.mark.parametrize(
    ("alpha", "is_complex", "k", "expected"),
    [
        (1.0, False, 9, True), (-16.0, False, 9, True), (17.0, False, 9, False), (2j, True, 9, False),
        (2.0, True, 9, True), (1.0, False, 1 << 24, False), (1.0, False, 1 << 23, True), (2.0, False, 1 << 23, False),
        (16.0, False, 1 << 19, True), (16.0, False, 1 << 20, False),
    ],
)  # fmt: skip
def test_which_sums_may_be_made_from_values(alpha, is_complex, k, expected):
    problem = problem_of(64, k, FP32, is_complex=is_complex)
    assert cuda_gemm.Sum(complex(alpha), 1.0, None).of_values(problem) is expected


@pytest.mark.parametrize("alpha", [1.0, 16.0, 12 + 10j, 30.0, 50.0, 2.0**30, 2.0**51])
def test_calls_with_one_key_are_bounded_alike(alpha):
    """Sums of as many terms whose keys agree are bounded or not together: they share a program."""
    for k in (1, 1 << 10, 1 << 17, (1 << 17) + 1, 1 << 19, 1 << 22):
        keys = {}
        for factor in (alpha, -1.0, 16.0, 48.0):
            sum_ = cuda_gemm.Sum(complex(factor), 0.0, None)
            found = tuple(sum_.bounded(parts * k, form) for parts in (1, 2) for form in (FP32, FP64))
            assert keys.setdefault(sum_.key(k), found) == found, (factor, k)


@pytest.mark.parametrize(
    ("problem", "scheme", "message"),
    [
        (problem_of(64, 64, FP32, summed=True, sum_of_values=False), Native(), "certifies no gemm"),
        (problem_of(64, 512, FP32, summed=True, sum_of_values=False), ScaledHalf(), "certifies no gemm"),
        (problem_of(64, 64, FP32, summed=True, sum_bounded=False), Native(), "decides no overflow"),
        (problem_of(64, 64, FP64, "correctly-rounded", summed=True), Native(), "before it adds C"),
        (problem_of(64, 64, FP64), Words.tf32(), "not all float32"), (problem_of(64, 64, FP64), TileInt8(), "float32"),
        (problem_of(64, 64, FP32, 1e-5), TileInt8(), "certifies accuracy"),
        (problem_of(64, 64, FP32), TileInt8(tile=(16, 48, 8)), "a tile that a GPU takes"),
        (problem_of(64, 64, FP64), Native("float32"), "loses bits"),
        (problem_of(64, 64, FP64), ScaledHalf(order="element"), "runs on a CPU"),
    ],
)  # fmt: skip
def test_what_a_gpu_does_not_serve_is_refused(problem, scheme, message):
    with pytest.raises(EngineError, match=message):
        chosen(problem, scheme=scheme)


def test_other_engines_are_refused():
    with pytest.raises(ArgumentError, match="for operands on a GPU"):
        chosen(problem_of(64, 64, FP64), engine="cpu:vnni")
    with pytest.raises(ArgumentError, match="does not multiply segments"):
        chosen(problem_of(64, 64, FP32), scheme=TileInt8(), engine="cuda:blas")
    with pytest.raises(ArgumentError, match="does not multiply slices"):
        chosen(problem_of(64, 64, FP64), scheme=Slices("int8", slices=7), engine="cuda:fp16")


def test_targets_are_those_of_a_call():
    assert problem_of(3, 4, FP64, "fast").target == Target("fast")


@pytest.mark.parametrize("value, spoilt", [("1", True), ("0", False), ("", False)])
def test_settings_that_spoil_cublass_float32_are_seen(value, spoilt, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
    large = problem_of(4096, 4096, FP32, "fast", one_type=True)
    assert (reduced_float32() is not None) == spoilt
    assert ("NVIDIA_TF32_OVERRIDE" in chosen(large).reasons[0]) == spoilt


def test_errors_name_the_variable_that_chose_the_engine(monkeypatch):
    monkeypatch.setenv("PRISMM_ENGINE", "cuda:fp64")
    rounded = problem_of(500, 500, FP64, "correctly-rounded")
    with pytest.raises(ArgumentError, match=r"^PRISMM_ENGINE='cuda:fp64': .*Residues"):
        chosen(rounded)
    with pytest.raises(ArgumentError, match=r"^engine='cuda:fp64'"):
        chosen(rounded, engine="cuda:fp64")
    # What goes wrong whatever the engine is none of its faults.
    long = problem_of(5, 1 << 23, FP64, "correctly-rounded")
    with pytest.raises(ArgumentError, match=r"^Residues\(.*holds too few bits"):
        chosen(long)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_vectors_have_their_kernel_where_terms_are_neighbours(dtype):
    """Else cuBLAS reads what is large, and a tile what is small."""
    result = FP64 if dtype == "float64" else FP32
    options = check_request("native", None, False, None, None, None, np.ones((1, 1)), np.ones((1, 1)))[0]
    h200 = Device("NVIDIA H200", True, True, 132)
    for m, n, k in ((2048, 1, 4096), (1, 2048, 4096), (8192, 1, 8192), (1024, 1, 1024)):
        problem = Problem(m, n, k, (), result, options.target, False, True)
        assert cuda_plan.choose(problem, options, h200).engine == "cuda:fp64"
        assert cuda_plan.choose(dataclasses.replace(problem, strided_vector=True), options, h200).engine == "cuda:blas"
    problem = Problem(64, 1, 64, (), result, options.target, False, True, strided_vector=True)
    assert cuda_plan.choose(problem, options, h200).engine == "cuda:fp64"
    torch = pytest.importorskip("torch")
    rows, vector = torch.zeros(5, 7), torch.zeros(7, 1)
    assert not _is_strided_vector(rows, vector, 5, 1) and not _is_strided_vector(vector.mT, rows.mT, 1, 5)
    assert _is_strided_vector(torch.zeros(7, 5).mT, vector, 5, 1) and _is_strided_vector(
        vector.mT, torch.zeros(7, 5), 1, 5
    )
    assert not _is_strided_vector(rows, torch.zeros(7, 2), 5, 2)


@pytest.mark.parametrize("scheme", [None, Native(), Residues(7), ScaledHalf(), Words.bf16()], ids=str)
def test_products_without_entries_are_explained(scheme, tmp_path):
    torch = pytest.importorskip("torch")
    for m, k, n, batch in ((0, 5, 3, ()), (3, 0, 4, ()), (3, 5, 0, ()), (3, 5, 4, (0,)), (0, 0, 0, (2,))):
        for accuracy in ("native", "correctly-rounded"):
            with pretended(GPUS["H100"], tmp_path):
                a, b = torch.zeros(*batch, m, k), torch.zeros(*batch, k, n)
                try:
                    plan = prismm.explain(a, b, scheme=scheme, accuracy=accuracy)
                except EngineError:  # of a scheme that certifies no such target
                    continue
            assert (plan.m, plan.k, plan.n) == (m, k, n) and plan.predicted_seconds >= 0.0
