"""`Slices` with exponents of their own on a GPU: the bits of a CPU, the bound; where there is no GPU, interpreted."""

import math

import numpy as np
import pytest
import torch

import prismm
from prismm import Slices
from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.core.request import Request
from prismm.cuda import plan as cuda_plan
from prismm.cuda.device import Device
from prismm.cuda.implementation import implementation_of
from prismm.cuda.slices.config import cut_for
from prismm.cuda.slices.kernels import product as slice_product
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP64
from prismm.schemes.slice_layout import UNITS
from prismm.testing import HOSTILE, SPECIAL, exact_gemm, exact_product
from tests.cuda.harness.processes import compiled, interpreted

H200 = Device("NVIDIA H200", True, True, 132)


def adaptive(unit, slices=None, **other):
    return Slices(unit, slices=slices, exponents="adaptive", **other)


FAST = adaptive("int8", 7, fast=True)
SCHEMES = [
    FAST, adaptive("int8", 8), adaptive("int8", 12, bits=7, fast=True), adaptive("fp16", 7, fast=True),
    adaptive("bf16", 7), adaptive("fp16-fp16", 9, fast=True), adaptive("fp64", 3), adaptive("fp32-fp64", 4, fast=True),
    adaptive("int8", 7, rounding="toward-zero"), adaptive("fp16", 8, fast=True, rounding="toward-zero"),
    adaptive("fp64", 3, rounding="toward-zero"), adaptive("int8", mode="CR"), adaptive("fp64", mode="CR"),
    adaptive("fp16", 12, bits=1), adaptive("int8", 40),
]  # fmt: skip


def problem(n=4096, k=None, *, result=FP64, accuracy=None, **other):
    given = {"reproducible": False, "one_type": True, "batch": (), **other}
    target = parse_target(accuracy) if accuracy else None
    return Problem(m=n, n=n, k=n if k is None else k, result=result, target=target, **given)


def chosen(some, scheme):
    return cuda_plan.choose(some, Request(some.target, scheme, some.reproducible, None, None, 1, None), H200)


def test_they_run_on_the_unit_of_their_own():
    for scheme in (*SCHEMES, adaptive("int8"), adaptive("fp16", mode="SP", fast=True)):
        for accuracy in (None, "fast", "native", 1e-9, "correctly-rounded"):
            for k in (1, 20, 512, 20000):
                some = problem(64, k, accuracy=accuracy)
                assert chosen(some, scheme).engine.removeprefix("cuda:") in scheme.unit.replace("bf16", "fp16")
                config = implementation_of(scheme).launch_config(some, H200)
                # Where entries are correctly rounded by definition, they are certified on a grid.
                assert config.digits.adaptive == (scheme.mode != "CR" and accuracy != "correctly-rounded")
    with pytest.raises(EngineError, match="reproducible"):
        chosen(problem(accuracy="native", reproducible=True), FAST)
    with pytest.raises(ArgumentError, match="too long"):
        chosen(problem(4, 1 << 23), FAST)
    with pytest.raises(EngineError, match="bits=10 or less"):
        chosen(problem(64), adaptive("fp16", 5, bits=12))


def test_accumulators_hold_what_a_block_of_a_pair_adds():
    for unit in UNITS:
        for k in (1, 3, 100, 4096, 1 << 20, (1 << 23) - 1):
            for rounding in ("nearest", "toward-zero"):
                scheme = adaptive(unit, 5, rounding=rounding)
                config = implementation_of(scheme).launch_config(problem(64, k), H200)
                largest = slice_product.largest_digit(config.digits.bits, config.digits.truncated)
                cut = cut_for(config.widest, 50, k, 132)
                assert min(k, cut.width) * largest**2 < 1 << (8 * config.digits.top.itemsize - 1)
                assert config.entry_bytes == 25 * config.digits.top.itemsize


@pytest.mark.parametrize("name", ["normal", "wide_rows", "subnormal_results", "cancelling", "zeros_rows_cols"])
@pytest.mark.parametrize("scheme", [FAST, adaptive("fp16", 3), adaptive("int8", 3, rounding="toward-zero", fast=True)])
def test_reported_bounds_hold(name, scheme, seed):
    a, b = HOSTILE[name](6, 70, 5, seed=seed)
    c = prismm.matmul(a, b, scheme=scheme)
    bounds = implementation_of(scheme).bound(problem(6, 70), "", H200, a, b, None, 1.0).at(c, slice(None), slice(None))
    assert exact_product(a, b).within(c, bounds).all()
    one = implementation_of(scheme).bound(problem(6, 70), "", H200, a, b, None, 1.0).at(c, 3, 2)
    assert math.isclose(float(one), bounds[3, 2], rel_tol=1e-12)


@pytest.mark.covering("name")
@pytest.mark.parametrize("name", [*HOSTILE, *SPECIAL])
@pytest.mark.parametrize(
    "scheme",
    [
        adaptive(unit, mode=mode, rounding=rounding, fast=True)
        for unit, mode, rounding in (
            ("fp16", "DP", "nearest"), ("int8", "DP", "nearest"), ("fp64", "SP", "nearest"),
            ("int8", "SP", "toward-zero"), ("fp64", "DP", "toward-zero"),
        )
    ],
    ids=str,
)  # fmt: skip
def test_slices_are_counted_as_on_a_cpu(name, scheme, seed):
    from prismm.cuda.slices.count import fix_slice_count
    from tests.cuda.test_slices import of_a_cpu

    a, b = {**HOSTILE, **SPECIAL}[name](20, 60, 17, seed=seed)
    slices, ended = of_a_cpu(scheme, a, b)
    found = fix_slice_count(scheme, torch.from_numpy(a), torch.from_numpy(b))
    assert (found.slices, found.fast) == (slices, not ended)


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "dtype", "layout", "name", "targets"),
    [
        ("sm_90", "float64", "rows", "7fa", ["none", "native"]),
        ("sm_90", "complex64", "columns", "fp16:3a", ["native"]),
        ("sm_80", "float64", "columns", "fp64:3a", ["none", "sum:native"]),
        ("sm_80", "float32", "columns", "4za", ["native"]),
        ("gfx942", "float32", "rows", "fp16:4fza", ["none", "sum:native"]),
    ],
)
def test_kernels_compile_to_matrix_instructions(architecture, dtype, layout, name, targets):
    pytest.importorskip("triton")
    found = compiled("slices", architecture, dtype, layout, name, *targets)
    kinds = {entry["kernel"] for entry in found}
    copied = {"straighten"} if layout == "columns" else set()
    laid_out = {"lay_out"} if dtype.startswith("complex") else set()
    ends = set()
    for target in targets:
        ends |= {"combine_slices", "recompute_exact"} if target.startswith("sum:") else {"join_pairs", "repair_slices"}
    assert kinds == {*copied, *laid_out, "slice_adaptively", "slice_product", *ends}
    for entry in found:
        if entry["kernel"] == "slice_product":
            unit = {"sm_90": "mma" if "fp64" in name else "wgmma", "sm_80": "mma", "gfx942": "mfma"}[architecture]
            assert entry[unit] > 0
        if entry["kernel"] in ("slice_product", "slice_adaptively", "straighten", "join_pairs"):
            assert entry["fused"] == 0, entry
        if entry["kernel"] not in ("repair_slices", "recompute_exact"):
            # Of the tests of a target a number or two may wait in memory.
            assert entry.get("stack", 0) <= (16 if entry["kernel"] in ("join_pairs", "combine_slices") else 0), entry


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "device", "least"),
    [
        *((f"{part}/36", "any", 10) for part in range(36)),
        ("batches", "any", 6),
        *((f"{part}/36", "nvidia", 10) for part in (5, 17, 29)),
    ],
)
def test_interpreted_kernels_give_the_bits_of_a_cpu(share, device, least):
    pytest.importorskip("triton")
    found = interpreted("adaptive", share, device)
    assert len(found) >= least
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("device", ["any", "nvidia"])
def test_interpreted_digits_are_those_of_a_cpu(device):
    pytest.importorskip("triton")
    found = interpreted("adaptive_digits", "20261126", device)
    assert len(found) == 15
    assert not [entry for entry in found if entry["wrong"]]


def same_bits(got, expected):
    parts = [torch.view_as_real(z) if z.is_complex() else z for z in (got.cpu(), torch.from_numpy(expected))]
    word = torch.int64 if parts[0].dtype == torch.float64 else torch.int32
    return ((parts[0].view(word) == parts[1].view(word)) | (parts[0].isnan() & parts[1].isnan())).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bits_are_those_of_a_cpu(scheme, dtype):
    from tests.cuda.offline.interpreted_adaptive import EVERYTHING

    for name in EVERYTHING:
        a, b = EVERYTHING[name](33, 70, 65, seed=5, dtype=np.dtype(dtype))
        expected = prismm.matmul(a, b, scheme=scheme)
        for turned in (False, True):
            x, y = (torch.from_numpy(np.asfortranarray(z) if turned else z.copy()).cuda() for z in (a, b))
            assert same_bits(prismm.matmul(x, y, scheme=scheme), expected), (name, turned)


@pytest.mark.gpu
@pytest.mark.parametrize(("unit", "k"), [("fp16", 1500), ("fp16", 9000), ("fp64", 9000), ("int8", 256 * 132)])
def test_sums_of_many_blocks_are_exact(unit, k, rng):
    # Sums of one sign fill the accumulators, and few tiles have many blocks of the inner dimension.
    a, b = rng.uniform(0.5, 1, (5, k)), rng.uniform(0.5, 1, (k, 6))
    for scheme in (adaptive(unit, 3, fast=True), adaptive(unit, 4, rounding="toward-zero")):
        got = prismm.matmul(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), scheme=scheme)
        assert same_bits(got, prismm.matmul(a, b, scheme=scheme))


@pytest.mark.gpu
def test_longer_than_a_tile_in_batches_and_graphs(rng):
    a, b = rng.standard_normal((3, 300, 700)), rng.standard_normal((3, 700, 530))
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    for scheme in (FAST, adaptive("fp64", 2)):
        for p, q, r, s in ((x, y, a, b), (x, y[:1], a, b[:1]), (x[0], y, a[0], b), (x[0], y[0], a[0], b[0])):
            assert same_bits(prismm.matmul(p, q, scheme=scheme), prismm.matmul(r, s, scheme=scheme))
    wide = x[:, ::2, ::3], y.mT[:, ::5, ::3].mT
    assert same_bits(prismm.matmul(*wide, scheme=FAST), prismm.matmul(*(z.cpu().numpy() for z in wide), scheme=FAST))
    expected = prismm.matmul(x, y, scheme=FAST)
    graph, out = torch.cuda.CUDAGraph(), torch.zeros_like(expected)
    with torch.cuda.graph(graph):
        prismm.matmul(x, y, scheme=FAST, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == expected).all()


@pytest.mark.gpu
@pytest.mark.parametrize("unit", ["int8", "fp16", "fp64"])
def test_slices_are_estimated_from_the_data(unit):
    for name in ("normal", "wide_rows", "phi1"):
        a, b = HOSTILE[name](60, 300, 50, seed=3)
        x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        got, report = prismm.matmul(x, y, scheme=adaptive(unit, fast=True), full_output=True)
        assert same_bits(got, prismm.matmul(a, b, scheme=report.plan.scheme))
        assert exact_product(a, b).within(got.cpu().numpy(), report.bounds).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "scheme", "accuracy"),
    [
        ("float64", FAST, "native"), ("float32", adaptive("fp16", 4, fast=True), "native"),
        ("float64", adaptive("int8", 4), 1e-9), ("float64", adaptive("fp64", 2, rounding="toward-zero"), 1e-12),
    ],
)  # fmt: skip
def test_certified_entries_meet_their_target(dtype, scheme, accuracy):
    from tests.cuda.test_slices import meet_target

    meet_target(dtype, scheme, accuracy)


@pytest.mark.gpu
def test_sums_meet_their_target(rng):
    a, b, c = rng.standard_normal((60, 90)), rng.standard_normal((90, 66)), rng.standard_normal((60, 66))
    x, y, z = (torch.from_numpy(v).cuda() for v in (a, b, c))
    got, report = prismm.gemm(x, y, z, alpha=-0.7, beta=1.3, scheme=FAST, accuracy="native", full_output=True)
    size = 0.7 * (np.abs(a) @ np.abs(b)) + 1.3 * np.abs(c)
    error = exact_gemm(-0.7, a, b, 1.3, c).error(got.cpu().numpy())
    assert (error <= 93 * 2.0**-53 * size * (1 + 1e-9)).all() and (error <= report.bounds).all()
    keywords = {"alpha": -0.7, "beta": 1.3, "accuracy": "correctly-rounded"}
    assert same_bits(prismm.gemm(x, y, z, scheme=FAST, **keywords), prismm.gemm(a, b, c, scheme=FAST, **keywords))
