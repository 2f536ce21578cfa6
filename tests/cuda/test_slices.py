"""`Slices` on a GPU: what runs there, the bits of a CPU, the bound; where there is no GPU, interpreted."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import prismm
from prismm import Slices
from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.core.request import Request
from prismm.core.specials import real_operands
from prismm.cuda import plan as cuda_plan
from prismm.cuda.costs.predict import predict
from prismm.cuda.costs.table import usual_rates
from prismm.cuda.device import Device
from prismm.cuda.implementation import implementation_of
from prismm.cuda.slices.config import MOST_BITS, cut_for
from prismm.cuda.slices.kernels import join as slice_join
from prismm.cuda.slices.kernels import product as slice_product
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64
from prismm.schemes.slice_layout import UNITS
from prismm.testing import HOSTILE, SPECIAL, exact_gemm, exact_product
from tests.cuda.harness.processes import compiled, interpreted

H200 = Device("NVIDIA H200", True, True, 132)
FAST = Slices("int8", slices=7, fast=True)


def problem(n=4096, k=None, *, result=FP64, accuracy=None, **other):
    given = {"reproducible": False, "one_type": True, "batch": (), **other}
    target = parse_target(accuracy) if accuracy else None
    return Problem(m=n, n=n, k=n if k is None else k, result=result, target=target, **given)


def chosen(some, scheme=FAST, engine=None):
    options = Request(some.target, scheme, some.reproducible, None, engine, 1, None)
    return cuda_plan.choose(some, options, H200)


def test_slices_run_on_the_unit_of_their_own():
    choice = chosen(problem())
    assert (choice.scheme, choice.engine) == (FAST, "cuda:int8")
    assert chosen(problem(accuracy="correctly-rounded", reproducible=True)).engine == "cuda:int8"
    assert chosen(problem(64, is_complex=True)).engine == "cuda:int8"
    for unit, engine in (
        ("int8", "int8"), ("fp16", "fp16"), ("fp16-fp16", "fp16"), ("bf16", "fp16"), ("fp64", "fp64"),
        ("fp32-fp64", "fp64"),
    ):  # fmt: skip
        for scheme in (
            Slices(unit), Slices(unit, mode="CR"), Slices(unit, mode="SP", fast=True),
            Slices(unit, fast=True, rounding="toward-zero"), Slices(unit, mode="CR", rounding="toward-zero"),
        ):  # fmt: skip
            for k in (1, 3, 20, 100, 512, 4096, 20000):
                assert chosen(problem(64, k), scheme, f"cuda:{engine}").engine == f"cuda:{engine}"


@pytest.mark.parametrize(
    ("some", "scheme", "message"),
    [
        (problem(), Slices("int8", slices=11), "10 slices"),
        (problem(), Slices("fp16", slices=17), "slices=16 or fewer"),
        (problem(), Slices("fp16", slices=16), "fast=True"),
        (problem(), Slices("fp16", slices=5, bits=12), "bits=10 or less"),
        (problem(), Slices("fp16", slices=5, bits=11, rounding="toward-zero"), "bits=9 or less"),
        (problem(), Slices("fp64", slices=7, rounding="toward-zero"), "slices=6 or fewer"),
        (problem(accuracy="native", reproducible=True), FAST, "reproducible"),
    ],
)
def test_what_a_gpu_does_not_serve(some, scheme, message):
    with pytest.raises(EngineError, match=message):
        chosen(some, scheme)


def test_other_engines_and_lengths_are_refused():
    with pytest.raises(ArgumentError, match="'cuda:int8'"):
        chosen(problem(), engine="cuda:fp16")
    with pytest.raises(ArgumentError, match="too long"):
        chosen(problem(4, 1 << 23))
    with pytest.raises(ArgumentError, match="at most 4194303"):
        chosen(problem(4, 1 << 22, is_complex=True))


def problems():
    """Of every unit, at inner dimensions that give it other bits."""
    for unit in UNITS:
        for k in (1, 3, 5, 20, 100, 512, 4096, 20000, 1 << 20, (1 << 23) - 1):
            own = Slices(unit, slices=2), Slices(unit, slices=7), Slices(unit, mode="CR"), Slices(unit)
            for scheme in (*own, *(dataclasses.replace(x, rounding="toward-zero") for x in own)):
                yield k, implementation_of(scheme).launch_config(problem(64, k), H200)


def test_accumulators_hold_what_a_block_adds():
    for k, config in problems():
        bits, size = config.digits.bits, config.digits.size
        largest, top = (1 << bits) - 1 if config.digits.truncated else 1 << (bits - 1), 63 if size == 8 else 31
        for tiles in (1, 50, 4096):
            cut = cut_for(config.widest, tiles, k, 132)
            assert cut.blocks * cut.width <= 128 * 65535 or cut.width % 256 == 0
            assert cut.blocks * cut.width >= k > (cut.blocks - 1) * cut.width
            assert cut.width % 128 == 0 and cut.width <= config.widest
            # All digits -D, in all pairs of the longest group, and what the group before it may hand on.
            assert config.slices * min(k, cut.width) * largest**2 + (1 << (top - bits)) < 1 << top
            longest, depth = config.digits.longest_sum, slice_product.TILES[size][2]
            terms = min(max(longest // depth, 1) * depth, k)  # what is padded adds nothing
            assert terms * largest**2 <= {1: (1 << 31) - 1, 2: 1 << 24, 8: 1 << 53}[size]


def test_limbs_hold_all_digits():
    for k, config in problems():
        bits, size, truncated = config.digits.bits, config.digits.size, config.digits.truncated
        found = slice_join.limbs(config.groups, bits, size, truncated)
        assert sum(found) == config.groups - 1
        first, *others = found[1:] if size == 8 else found
        assert first * bits + 32 <= 48
        if size != 8:  # |A'| <= 2^(β·d - 1), or below 2^(β·d)
            assert k << (2 * bits - (0 if truncated else 2) + bits * first) < 1 << 53
        assert all(count * bits <= 52 for count in others)


@pytest.mark.evidence
@pytest.mark.slow
def test_expansions_are_exact():
    """Sums over blocks, with digits that carry and cancel, in the interpreter."""
    pytest.importorskip("triton")
    found = interpreted("sums", "20261126")
    assert len(found) == 23 and not [entry for entry in found if entry["wrong"]]


def test_pairs_are_those_of_the_scheme():
    for slices in range(1, 9):
        for fast in (False, True):
            scheme = Slices("int8", slices=slices, fast=fast)
            config = implementation_of(scheme).launch_config(problem(), H200)
            assert config.pairs == scheme.products_for(4096, FP64) == implementation_of(scheme).products(problem())


def test_predictions_follow_what_was_measured():
    for n, scheme, result, accuracy, seconds in (
        (4096, FAST, FP64, "native", 2.78e-3), (8192, FAST, FP64, "native", 23.2e-3),
        (4096, Slices("int8", slices=7), FP64, "native", 4.46e-3),
        (4096, Slices("int8", slices=3, fast=True), FP32, None, 0.79e-3),
        (4096, Slices("int8", slices=4, fast=True), FP32, "native", 1.19e-3),
    ):  # fmt: skip
        predicted = predict(scheme, problem(n, result=result, accuracy=accuracy), usual_rates())
        assert 0.75 < predicted / seconds < 1.25, (n, scheme, predicted)


@pytest.mark.parametrize("name", ["normal", "wide_rows", "subnormal_results", "cancelling", "zeros_rows_cols"])
@pytest.mark.parametrize(
    "scheme",
    [
        FAST, Slices("int8", slices=4), Slices("int8", slices=2, fast=True),
        Slices("int8", slices=3, fast=True, rounding="toward-zero"),
    ],
)  # fmt: skip
def test_reported_bounds_hold(name, scheme, seed):
    a, b = HOSTILE[name](6, 70, 5, seed=seed)
    c = prismm.matmul(a, b, scheme=scheme)
    bounds = implementation_of(scheme).bound(problem(6, 70), "", H200, a, b, None, 1.0).at(c, slice(None), slice(None))
    assert exact_product(a, b).within(c, bounds).all()
    one = implementation_of(scheme).bound(problem(6, 70), "", H200, a, b, None, 1.0).at(c, 3, 2)
    assert math.isclose(float(one), bounds[3, 2], rel_tol=1e-12)


def of_a_cpu(scheme, a, b):
    """Slices, and whether a side ended, as Algorithm 3 estimates them on a CPU."""
    from prismm.core.composite import Setting
    from prismm.cpu.scaling import scale

    sides = scale(a, "left", 1)[0], scale(b, "right", 1)[0]
    setting = Setting(FP64, 1, 1 << 30, scheme.implementation("cpu").engine_for("cpu"))
    _, _, slices, ended = scheme.implementation("cpu")._estimated(
        *(scheme.implementation("cpu").split(x, setting) for x in sides), setting
    )
    return slices, ended


@pytest.mark.covering("name")
@pytest.mark.parametrize("name", [*HOSTILE, *SPECIAL])
@pytest.mark.parametrize(
    "scheme",
    [
        Slices(unit, mode=mode, rounding=rounding, fast=True)
        for unit, mode, rounding in (
            ("fp16", "DP", "nearest"), ("int8", "DP", "nearest"), ("fp64", "SP", "nearest"),
            ("fp16-fp16", "DP", "nearest"), ("int8", "DP", "toward-zero"), ("fp64", "SP", "toward-zero"),
        )
    ],
    ids=str,
)  # fmt: skip
def test_slices_are_counted_as_on_a_cpu(name, scheme, seed):
    from prismm.cuda.slices.count import fix_slice_count

    pairs = [{**HOSTILE, **SPECIAL}[name](20, 60, 17, seed=seed + x) for x in (0, 1)]
    expected = [of_a_cpu(scheme, a, b) for a, b in pairs]
    for (a, b), (slices, ended) in zip(pairs, expected, strict=True):
        found = fix_slice_count(scheme, torch.from_numpy(a), torch.from_numpy(b))
        if slices * scheme.layout(60).bits > MOST_BITS:  # more than a GPU multiplies, so not told apart
            assert found.slices * scheme.layout(60).bits > MOST_BITS
            return
        assert (found.slices, found.fast) == (slices, not ended)
    # Of a batch the most of any; of complex numbers as of real ones of twice the inner dimension.
    a, b = (torch.from_numpy(np.stack(x)) for x in zip(*pairs, strict=True))
    assert fix_slice_count(scheme, a, b).slices == max(x for x, _ in expected)
    assert fix_slice_count(scheme, a[0], b).slices >= expected[0][0]
    a, b = {**HOSTILE, **SPECIAL}[name](9, 30, 8, seed=seed, dtype=np.dtype("complex128"))
    parts = [of_a_cpu(scheme, *real_operands(a, b, part)) for part in (0, 1)]
    slices, found = max(x for x, _ in parts), fix_slice_count(scheme, torch.from_numpy(a), torch.from_numpy(b))
    beyond = slices * scheme.layout(60).bits > MOST_BITS
    assert found.slices * scheme.layout(60).bits > MOST_BITS if beyond else found.slices == slices


def test_counting_ends():
    from prismm.cuda.slices.count import fix_slice_count

    a = torch.zeros(140, 2, dtype=torch.float64)
    a[:, 0], a[:, 1] = 1.0, 2.0 ** (-7.7 * torch.arange(140, dtype=torch.float64)).round()
    b = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for unit, bits in (("fp64", 25), ("fp16", 8), ("int8", 8)):
        found = fix_slice_count(Slices(unit, bits=bits), a, b)
        with pytest.raises(EngineError, match=r"slices=\d+ or fewer|10 slices"):
            chosen(problem(4, 2), found)


def test_vectors_and_empty_operands_are_counted():
    from prismm.cuda.slices.count import fix_slice_count

    a, b = torch.randn(60, dtype=torch.float64), torch.randn(60, 5, dtype=torch.float64)
    assert fix_slice_count(Slices(), a, b).slices == fix_slice_count(Slices(), a[None], b).slices
    assert fix_slice_count(Slices(), b[:, 0], a).slices == fix_slice_count(Slices(), b[:, :1].T, a[:, None]).slices
    assert fix_slice_count(Slices(), b[:0].T, b[:0]).slices == 1


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "dtype", "layout", "name", "targets"),
    [
        ("sm_90", "float64", "rows", "7f", ["none", "native"]),
        ("sm_90", "float64", "columns", "CR", ["none"]),
        ("sm_90", "float32", "columns", "3f", ["native"]),
        ("sm_80", "float64", "rows", "7", ["native"]),
        ("gfx942", "float32", "columns", "4", ["correctly-rounded"]),
        ("sm_90", "float64", "rows", "fp16:7f", ["native"]),
        ("sm_90", "complex64", "columns", "fp16:3f", ["none"]),
        ("sm_90", "float64", "columns", "fp64:3", ["none"]),
        ("sm_80", "float64", "rows", "fp64:CR", ["none"]),
        ("sm_80", "float32", "columns", "fp16:4", ["native"]),
        ("gfx942", "float32", "rows", "fp16:3f", ["none"]),
        ("sm_90", "float64", "columns", "8fz", ["native"]),
        ("sm_80", "float64", "rows", "fp16:8z", ["none"]),
        ("sm_90", "float64", "rows", "fp64:CRz", ["none"]),
        ("gfx942", "float64", "columns", "4z", ["native"]),
        ("sm_90", "float64", "rows", "7f", ["sum:native", "sum:correctly-rounded"]),
        ("sm_80", "complex64", "columns", "fp16:4", ["sum:native"]),
        ("gfx942", "float64", "rows", "CR", ["sum:correctly-rounded"]),
        ("sm_90", "float64", "rows", "7", ["sum:none"]),
        ("sm_80", "complex64", "columns", "fp16:4", ["sum:none"]),
    ],
)
def test_kernels_compile_to_matrix_instructions(architecture, dtype, layout, name, targets):
    pytest.importorskip("triton")
    found = compiled("slices", architecture, dtype, layout, name, *targets)
    kinds = {entry["kernel"] for entry in found}
    across = {"largest_columns", "sum_columns", "slice_columns"} if layout == "columns" else {"slice_rows"}
    laid_out = {"lay_out"} if dtype.startswith("complex") else set()
    ends = {"combine_slices", "recompute_exact"} if targets[0].startswith("sum:") else {"join_slices", "repair_slices"}
    if targets == ["sum:none"]:
        ends = {"combine_slices", "recompute_slices"}
    assert kinds == {*across, *laid_out, "slice_product", *ends}
    for entry in found:
        if entry["kernel"] == "slice_product":
            unit = {"sm_90": "mma" if "fp64" in name else "wgmma", "sm_80": "mma", "gfx942": "mfma"}[architecture]
            assert entry[unit] > 0
            assert entry.get("stack", 0) == 0, entry
        elif entry["kernel"] not in ("repair_slices", "recompute_exact", "recompute_slices"):
            # More than eight slices of INT8, other digits, sums in more limbs, and AMD's conversions ask for them.
            if (
                architecture != "gfx942"
                and name in ("7f", "3f", "7", "4")
                and entry["kernel"] not in ("join_slices", "combine_slices")
            ):
                assert entry["fused"] == 0, entry
            assert entry.get("stack", 0) <= 64, entry


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "device", "least"),
    [
        *((f"{part}/16", "any", 22) for part in range(16)),
        ("batches", "any", 3),
        ("1/16", "hopper", 22),
        ("9/16", "hopper", 22),
        ("batches", "hopper", 3),
    ],
)
def test_interpreted_kernels_give_the_bits_of_a_cpu(share, device, least):
    pytest.importorskip("triton")
    found = interpreted("slices", share, device)
    assert len(found) >= least
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(("share", "device"), [*((f"{part}/4", "any") for part in range(4)), ("0/4", "hopper")])
def test_interpreted_sums_are_rounded_once(share, device):
    pytest.importorskip("triton")
    found = interpreted("slice_sums", share, device)
    assert len(found) >= 13
    assert not [entry for entry in found if entry["wrong"]]


def test_sums_are_made_whatever_is_asked_of_them():
    summed = {"summed": True, "sum_of_values": False}
    for accuracy in (None, "fast", "native", 1e-9, "correctly-rounded"):
        for scheme in (FAST, dataclasses.replace(FAST, exponents="adaptive"), Slices(mode="CR")):
            assert chosen(problem(64, accuracy=accuracy, **summed), scheme).scheme == scheme
            assert chosen(problem(64, accuracy=accuracy, is_complex=True, **summed), scheme).scheme == scheme
    with pytest.raises(EngineError, match="reproducible"):
        chosen(problem(64, accuracy="native", reproducible=True, **summed))


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "device"), [*((f"{part}/10", "any") for part in range(10)), ("1/10", "hopper"), ("6/10", "hopper")]
)
def test_interpreted_sums_of_their_own_values_have_the_bits_of_a_cpu(share, device):
    pytest.importorskip("triton")
    found = interpreted("own_sums", share, device)
    assert len(found) >= 6
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_sums_of_their_own_values_have_the_bits_of_a_cpu(dtype):
    from tests.cuda.offline.interpreted_adaptive import EVERYTHING
    from tests.cuda.offline.interpreted_own_sums import NAMES, SCHEMES

    factors = [(1.0, 1.0), (-0.7, 1.3), (2.0**40, 0.0)] if dtype.startswith("float") else [(1.0, 1.0), (1 + 2j, -0.5j)]
    for name in NAMES:
        a, b = EVERYTHING[name](66, 70, 130, seed=5, dtype=np.dtype(dtype))
        x, y = torch.from_numpy(a.copy()).cuda(), torch.from_numpy(b.copy()).cuda()
        for scheme in SCHEMES:
            c = -prismm.matmul(a, b, scheme=scheme)
            c[::2] = -prismm.matmul(a[::2], b)
            for alpha, beta in factors:
                keywords = {"alpha": alpha, "beta": beta, "scheme": scheme}
                expected = torch.from_numpy(prismm.gemm(a, b, c, **keywords))
                got, report = prismm.gemm(x, y, torch.from_numpy(c.copy()).cuda(), full_output=True, **keywords)
                parts = [torch.view_as_real(v) if v.is_complex() else v for v in (got.cpu(), expected)]
                word = torch.int64 if parts[0].dtype == torch.float64 else torch.int32
                same = (parts[0].view(word) == parts[1].view(word)) | (parts[0].isnan() & parts[1].isnan())
                assert same.all(), (name, scheme, alpha, beta)
                assert report.bounds.shape == c.shape


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize(
    "name", ["normal", "cancelling", "near_overflow", "subnormal_operands", "wide_rows", "infinities"]
)
def test_sums_have_the_bits_of_a_cpu(name, dtype):
    make = {**HOSTILE, **SPECIAL}[name]
    a, b = make(66, 70, 130, seed=5, dtype=np.dtype(dtype))
    c = make(66, 130, 2, seed=6, dtype=np.dtype(dtype))[0]
    x, y, z = (torch.from_numpy(np.ascontiguousarray(v)).cuda() for v in (a, b, c))
    factors = [(1.0, -1.0), (-0.7, 1.3), (2.0**40, 0.0), (0.0, 0.3), (5e-324, 1.0)]
    if np.iscomplexobj(a):
        factors += [(1 + 2j, 0.5 - 1j), (-1j, 2.0)]
    for scheme in (
        Slices("int8", slices=7, fast=True), Slices("int8", mode="CR"), Slices("fp64", slices=3, rounding="toward-zero")
    ):  # fmt: skip
        for alpha, beta in factors:
            keywords = {"alpha": alpha, "beta": beta, "scheme": scheme, "accuracy": "correctly-rounded"}
            expected = torch.from_numpy(prismm.gemm(a, b, c, **keywords))
            got = prismm.gemm(x, y, z, **keywords).cpu()
            parts = [torch.view_as_real(v) if v.is_complex() else v for v in (got, expected)]
            word = torch.int64 if parts[0].dtype == torch.float64 else torch.int32
            same = (parts[0].view(word) == parts[1].view(word)) | (parts[0].isnan() & parts[1].isnan())
            assert same.all(), (scheme, alpha, beta)


@pytest.mark.gpu
def test_sums_meet_their_target_in_batches_and_graphs(rng):
    a, b = rng.standard_normal((3, 60, 90)), rng.standard_normal((3, 90, 66))
    c = rng.standard_normal((3, 60, 66))
    x, y, z = (torch.from_numpy(v).cuda() for v in (a, b, c))
    keywords = {"alpha": -0.7, "beta": 1.3, "scheme": FAST, "accuracy": "native"}
    got, report = prismm.gemm(x, y, z, full_output=True, **keywords)
    for index in range(3):
        exact = exact_gemm(-0.7, a[index], b[index], 1.3, c[index])
        size = 0.7 * (np.abs(a[index]) @ np.abs(b[index])) + 1.3 * np.abs(c[index])
        error = exact.error(got[index].cpu().numpy())
        assert (error <= 93 * 2.0**-53 * size * (1 + 1e-9)).all()
        assert (error <= report.bounds[index]).all()
    assert sum(report.paths.values()) == got.numel()
    out = z.clone()
    assert prismm.gemm(x, y, out, out=out, **keywords) is out
    assert (out == got).all()
    graph, out = torch.cuda.CUDAGraph(), torch.zeros_like(got)
    with torch.cuda.graph(graph):
        prismm.gemm(x, y, z, out=out, **keywords)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == got).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*HOSTILE, *SPECIAL])
def test_bits_are_those_of_a_cpu(name, dtype):
    a, b = {**HOSTILE, **SPECIAL}[name](33, 70, 65, seed=5, dtype=np.dtype(dtype))
    word = torch.int64 if dtype == "float64" else torch.int32
    for scheme in (FAST, Slices("int8", slices=8), Slices("int8", slices=3, fast=True), Slices("int8", mode="CR")):
        expected = torch.from_numpy(prismm.matmul(a, b, scheme=scheme))
        for turned in (False, True):
            x, y = (torch.from_numpy(np.asfortranarray(z) if turned else z.copy()).cuda() for z in (a, b))
            got = prismm.matmul(x, y, scheme=scheme).cpu()
            same = (got.view(word) == expected.view(word)) | (got.isnan() & expected.isnan())
            assert same.all(), (scheme, turned)


UNITS_ASKED = [
    Slices("fp16", slices=7, fast=True), Slices("bf16", slices=7), Slices("fp16-fp16", slices=9, fast=True),
    Slices("int8", slices=8, bits=7), Slices("int8", slices=10), Slices("fp64", slices=3), Slices("fp64", slices=4),
    Slices("fp64", mode="CR"), Slices("fp16", mode="CR"), Slices("int8", slices=8, fast=True, rounding="toward-zero"),
    Slices("fp16", slices=8, rounding="toward-zero"), Slices("fp64", slices=3, fast=True, rounding="toward-zero"),
    Slices("int8", mode="CR", rounding="toward-zero"),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("scheme", UNITS_ASKED)
def test_bits_of_other_units_are_those_of_a_cpu(scheme, dtype):
    for name in (*HOSTILE, *SPECIAL):
        a, b = {**HOSTILE, **SPECIAL}[name](33, 70, 65, seed=5, dtype=np.dtype(dtype))
        expected = torch.from_numpy(prismm.matmul(a, b, scheme=scheme))
        for turned in (False, True):
            x, y = (torch.from_numpy(np.asfortranarray(z) if turned else z.copy()).cuda() for z in (a, b))
            got = prismm.matmul(x, y, scheme=scheme).cpu()
            parts = [torch.view_as_real(z) if z.is_complex() else z for z in (got, expected)]
            word = torch.int64 if parts[0].dtype == torch.float64 else torch.int32
            same = (parts[0].view(word) == parts[1].view(word)) | (parts[0].isnan() & parts[1].isnan())
            assert same.all(), (name, turned)


@pytest.mark.gpu
@pytest.mark.parametrize("unit", ["int8", "fp16", "fp64"])
def test_slices_are_estimated_from_the_data(unit):
    for name in ("normal", "wide_rows", "phi1"):
        a, b = HOSTILE[name](60, 300, 50, seed=3)
        x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        scheme = Slices(unit, fast=True)
        got, report = prismm.matmul(x, y, scheme=scheme, full_output=True)
        expected = prismm.matmul(a, b, scheme=report.plan.scheme)
        assert report.plan.scheme.slices >= 3 and (got.cpu().numpy() == expected).all()
        assert exact_product(a, b).within(got.cpu().numpy(), report.bounds).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = x + x
        with pytest.raises(ArgumentError, match="slices="):
            prismm.matmul(z, y, scheme=scheme)
    with pytest.raises(EngineError, match="slices="):
        prismm.prepare(x, scheme=scheme)


@pytest.mark.gpu
@pytest.mark.parametrize(("unit", "k"), [("fp16", 1500), ("fp16", 9000), ("fp64", 9000), ("int8", 256 * 132)])
def test_sums_of_many_blocks_are_exact(unit, k, rng):
    # Sums of one sign fill the accumulators, and few tiles have many blocks of the inner dimension.
    a, b = rng.uniform(0.5, 1, (5, k)), rng.uniform(0.5, 1, (k, 6))
    for scheme in (
        Slices(unit, slices=3, fast=True), Slices(unit, slices=4),
        Slices(unit, slices=4, rounding="toward-zero"), Slices(unit, slices=3, fast=True, rounding="toward-zero"),
    ):  # fmt: skip
        got = prismm.matmul(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), scheme=scheme).cpu().numpy()
        assert (got == prismm.matmul(a, b, scheme=scheme)).all()


@pytest.mark.gpu
def test_longer_than_a_tile_and_in_batches():
    a, b = HOSTILE["normal"](300, 700, 530, seed=1)
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    assert (prismm.matmul(x, y, scheme=FAST).cpu().numpy() == prismm.matmul(a, b, scheme=FAST)).all()
    exact = prismm.matmul(x, y, accuracy="correctly-rounded")
    rounded = Slices("int8", mode="CR")
    assert (prismm.matmul(x, y, scheme=rounded) == exact).all()
    many = torch.stack([x, 2 * x, -x])
    assert (prismm.matmul(many, y.expand(3, *y.shape), scheme=rounded) == torch.stack([exact, 2 * exact, -exact])).all()
    a, b = HOSTILE["normal"](40, 20000, 50, seed=1)  # two blocks of the inner dimension
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    assert (prismm.matmul(x, y, scheme=FAST).cpu().numpy() == prismm.matmul(a, b, scheme=FAST)).all()


def meet_target(dtype, scheme, accuracy):
    """All entries are within their target and their bounds, on hostile data too."""
    u, eta = (2.0**-53, 5e-324) if dtype == "float64" else (2.0**-24, 2.0**-149)
    for name in ("normal", "wide_rows", "cancelling", "triangular", "subnormal_results"):
        a, b = HOSTILE[name](60, 90, 66, seed=2, dtype=np.dtype(dtype))
        x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        c, report = prismm.matmul(x, y, scheme=scheme, accuracy=accuracy, full_output=True)
        exact = exact_product(a, b)
        slack = 90 * u if accuracy == "native" else accuracy
        allowed = slack * exact.magnitude("up") + u * np.abs(exact.rounded()) * (accuracy != "native") + 90 * eta
        assert exact.within(c.cpu().numpy(), allowed).all(), name
        assert exact.within(c.cpu().numpy(), report.bounds).all(), name
        assert sum(report.paths.values()) == c.numel()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "slices", "accuracy", "rounding"),
    [
        ("float64", 7, "native", "nearest"), ("float32", 3, "native", "nearest"), ("float64", 4, 1e-9, "nearest"),
        ("float64", 8, "native", "toward-zero"), ("float32", 4, 1e-6, "toward-zero"),
    ],
)  # fmt: skip
def test_certified_entries_meet_their_target(dtype, slices, accuracy, rounding):
    meet_target(dtype, Slices("int8", slices=slices, fast=True, rounding=rounding), accuracy)


@pytest.mark.gpu
def test_calls_are_captured():
    x, y = (torch.randn(*shape, dtype=torch.float64, device="cuda") for shape in ((130, 200), (200, 140)))
    expected = prismm.matmul(x, y, scheme=FAST)
    out = torch.zeros_like(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prismm.matmul(x, y, scheme=FAST, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == expected).all()
