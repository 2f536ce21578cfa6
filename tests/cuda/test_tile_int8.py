"""`TileInt8` on a GPU: the CPU's bits, bounds, certificates, what is refused; compiled, interpreted, on a GPU."""

import dataclasses
import math

import numpy as np
import pytest

import prismm
from prismm.core.accuracy import Target, parse_target
from prismm.core.problem import Problem
from prismm.core.request import Request
from prismm.core.specials import real_operands
from prismm.cuda import plan as cuda_plan
from prismm.cuda.costs.table import usual_rates
from prismm.cuda.device import Device, device_of
from prismm.cuda.implementation import implementation_of
from prismm.cuda.tile_int8 import implementation as tile_implementation
from prismm.cuda.tile_int8 import launches as tile_launches
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64
from prismm.schemes.tile_int8 import TileInt8
from prismm.testing import HOSTILE, SPECIAL, exact_product, ieee_specials
from tests.cuda.harness.processes import compiled, interpreted

U, ETA = 2.0**-24, 2.0**-149
H200 = Device("NVIDIA H200", True, True, 132)
SCHEMES = [
    TileInt8(), TileInt8(1), TileInt8(2, (8, 64, 16)), TileInt8(3, (1, 32, 128)), TileInt8(5, (16, 128, 8)),
    TileInt8(scaling="none"), TileInt8(exponent="pair"), TileInt8(2, (8, 64, 16), "pair"),
    TileInt8(5, (4, 32, 2), "pair", scaling="none"),
]  # fmt: skip


def problem(n=4096, k=None, *, result=FP32, accuracy="native", **other):
    given = {"reproducible": False, "one_type": True, "batch": (), **other}
    return Problem(m=n, n=n, k=n if k is None else k, result=result, target=parse_target(accuracy), **given)


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "layout", "specs"),
    [
        ("sm_90", "rows", ["4,32", "4,64", "4,128"]), ("sm_90", "columns", ["1,32", "5,128", "2,64"]),
        ("sm_80", "columns", ["4,32", "4,64,pair"]), ("gfx942", "rows", ["4,64", "4,32,pair"]),
        ("sm_90", "rows", ["4,32,pair", "4,64,pair", "5,128,pair"]),
    ],
)  # fmt: skip
def test_kernels_compile_to_matrix_instructions(architecture, layout, specs):
    pytest.importorskip("triton")
    found = compiled("tiles", architecture, layout, *specs)
    names = [
        "survey_tiles", "scale_tiles", "split_tiles", "product", "sum_tiles", "sum_tiles", "certify_tiles",
        "repair_words",
    ]  # fmt: skip
    products = ["tile_pair_product" if "pair" in spec else "tile_product" for spec in specs]
    assert [entry["kernel"] for entry in found] == [x if x != "product" else y for y in products for x in names]
    for entry in found:
        if entry["kernel"] == "tile_pair_product":
            kind = {"sm_90": "wgmma", "sm_80": "mma", "gfx942": "mfma"}[architecture]
            assert entry[kind] > 0, entry
            assert entry.get("issued", 0) == entry["wgmma"], entry
            # Elements as integers, sums and entries take all registers where steps are long: of a step of 128 some 130
            # words a thread are spilled, beside 20 operations on each of its 96 elements.
            assert entry.get("stack", 0) <= 544, entry
        elif entry["kernel"] == "tile_product":
            kind = {"sm_90": "wgmma", "sm_80": "mma", "gfx942": "mfma"}[architecture]
            assert entry[kind] > 0, entry
            # The assembler has dropped sums whose registers it took for others'.
            assert entry.get("issued", 0) == entry["wgmma"], entry
            # What is spilled are some entries, between two steps; on sm_80 nothing.
            assert entry.get("stack", 0) <= (192 if architecture == "sm_90" else 0), entry
        else:
            assert entry.get("stack", 0) == 0, entry


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(("share", "cases"), [("0/2", 21), ("1/2", 19)])
@pytest.mark.parametrize("device", ["nvidia", "hopper"])
def test_interpreted_kernels_give_the_bits_of_a_cpu_and_keep_their_word(device, share, cases):
    pytest.importorskip("triton")
    found = interpreted("tiles", share, device)
    assert len(found) == cases
    assert not [entry for entry in found if entry["different"] or entry["wrong"]]


def on_cpu(a, b, scheme):
    return np.asarray(prismm.matmul(a, b, scheme=dataclasses.replace(scheme, fallback=False)))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_reported_bounds_hold(scheme, seed):
    for name in ("normal", "wide_rows", "wide_rows_and_columns", "subnormal_results", "cancelling", "carries"):
        a, b = HOSTILE[name](6, 150, 5, seed=seed, dtype=np.dtype(np.float32))
        c = on_cpu(a, b, scheme)
        bound = implementation_of(scheme).bound(problem(5, 150), "", H200, a, b, None, 1.0)
        bounds = bound.at(c, slice(None), slice(None))
        assert exact_product(a, b).within(c, bounds).all(), name
        assert np.isclose(float(bound.at(c, 3, 2)), bounds[3, 2], rtol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_reported_bounds_hold_for_both_parts_of_complex_numbers(scheme, seed):
    for name in ("normal", "wide_rows", "cancelling", "carries"):
        a, b = HOSTILE[name](6, 75, 5, seed=seed, dtype=np.dtype(np.complex64))
        c = on_cpu(a, b, scheme)
        bound = implementation_of(scheme).bound(problem(5, 75, is_complex=True), "", H200, a, b, None, 1.0)
        bounds = bound.at(c, slice(None), slice(None))
        for part, own in enumerate((c.real.copy(), c.imag.copy())):
            assert exact_product(*real_operands(a, b, part)).within(own, bounds).all(), name
        assert np.isclose(float(bound.at(c, 3, 2)), bounds[3, 2], rtol=1e-12)


def both_lost(a, b, scheme, some, lost, more, lost_too):
    """What both vectors of an entry lose."""
    bound = implementation_of(scheme).bound(problem(), "", H200, a, b, None, 1.0)
    return bound._lost(lost[:, None], lost_too, more - some[:, None])


def facts(x, scheme, columns):
    """Of vectors, exactly: (τ, Σ min(|x|, τ) - kτ/2, D, N), in their own units; and those units."""
    tile, width = scheme.tile[2 if columns else 0], scheme.tile[1]
    segments = scheme.segments[columns]
    shift, y, lost = tile_implementation._vectors(
        x, slice(None), x.shape[columns], tile, width, segments, scheme.scaling == "none", bool(columns)
    )  # fmt: skip
    cap = 0.75 * np.abs(y).mean(1)
    return (
        shift,
        cap,
        np.minimum(np.abs(y), cap[:, None]).sum(1) - y.shape[1] * cap / 2,
        lost,
        np.linalg.norm(y, axis=1),
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_certified_entries_are_of_their_grade(scheme, seed):
    """The certificate's inequality in float64, at the worst entry of hostile operands."""
    certified = 0
    for name, generator in HOSTILE.items():
        for k in (40, 300):
            a, b = generator(5, k, 4, seed=seed, dtype=np.dtype(np.float32))
            config = tile_launches.config_for(scheme, k, None)
            c = on_cpu(a, b, scheme)
            left, right = facts(a, scheme, 0), facts(b, scheme, 1)
            (s, cap, over, lost, norm), (t, cap_too, over_too, lost_too, norm_too) = left, right
            mine, its = both_lost(a, b, scheme, s, lost, t, lost_too)
            error = mine * norm_too + norm[:, None] * its + config.last * mine * its
            least = cap[:, None] * over_too + over[:, None] * cap_too
            exact = exact_product(a, b)
            magnitude = exact.magnitude("down")
            units = s[:, None] + t
            with np.errstate(over="ignore", invalid="ignore"):
                seen = np.maximum(least, np.ldexp(np.abs(c.astype(np.float64)), -units) - error)
                sure = np.isfinite(c) & (error <= config.room * seen) & (np.ldexp(error, units) >= 2.0**-120)
            assert (np.ldexp(np.where(error > 0, least, 0.0), units) <= magnitude * (1 + 1e-9) + ETA).all(), name
            grade = tile_launches.grade_of(scheme) * k * U
            allowed = np.where(sure, grade * exact.magnitude("up") + k * ETA, np.inf)
            assert exact.within(np.where(sure, c, 0.0), allowed).all(), (name, k)
            certified += int(sure.sum())
    assert certified > 40


def test_normal_products_are_certified_as_a_whole(rng):
    schemes = [(TileInt8(), 1024), (TileInt8(tile=(16, 128, 8)), 4096), (TileInt8(1), 1024), (TileInt8(5), 256)]
    for scheme, k in [*schemes, (TileInt8(exponent="pair"), 1024)]:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, k), (k, 16)))
        config = tile_launches.config_for(scheme, k, None)
        (s, cap, over, lost, norm), (t, cap_too, over_too, lost_too, norm_too) = (
            facts(x, scheme, side) for side, x in enumerate((a, b))
        )
        mine, its = both_lost(a, b, scheme, s, lost, t, lost_too)
        error = mine * norm_too + norm[:, None] * its + config.last * mine * its
        assert (error <= config.room * (cap[:, None] * over_too + over[:, None] * cap_too)).all(), scheme


def test_what_a_gpu_takes():
    for scheme in SCHEMES:
        assert implementation_of(scheme).check(problem(), None, H200) == "cuda:int8"
    assert implementation_of(TileInt8()).check(problem(accuracy="fast"), "cuda", H200) == "cuda:int8"
    assert implementation_of(TileInt8(exponent="pair")).workspace(problem(), 64, 64) > 4 * 128 * 4096
    rates = usual_rates()
    by_pairs, by_tiles = (
        implementation_of(TileInt8(exponent=x)).gpu_seconds(problem(), rates) for x in ("pair", "tile")
    )
    assert by_pairs > by_tiles
    with pytest.raises(EngineError, match="rows and columns a power of two up to 128, inner dimension 32, 64, 128"):
        implementation_of(TileInt8(tile=(16, 48, 8))).check(problem(), None, H200)
    assert implementation_of(TileInt8()).check(problem(is_complex=True), None, H200) == "cuda:int8"
    for other in (problem(result=FP64), problem(one_type=False)):
        with pytest.raises(EngineError, match="float32"):
            implementation_of(TileInt8()).check(other, None, H200)
    for accuracy in ("correctly-rounded", 1e-3):
        with pytest.raises(EngineError, match="certifies accuracy 'native' and 'fast'"):
            implementation_of(TileInt8()).check(problem(accuracy=accuracy), None, H200)
    with pytest.raises(ArgumentError, match="'cuda:int8'"):
        implementation_of(TileInt8()).check(problem(), "cuda:fp16", H200)
    with pytest.raises(ArgumentError, match="too long"):
        implementation_of(TileInt8()).check(problem(4, 1 << 23), None, H200)
    with pytest.raises(ArgumentError, match="at most 4194303"):
        implementation_of(TileInt8()).check(problem(4, 1 << 22, is_complex=True), None, H200)


def test_a_call_takes_them():
    some = problem(64)
    choice = cuda_plan.choose(some, Request(some.target, TileInt8(), False, None, None, 1, None), H200)
    assert (choice.scheme, choice.engine, choice.blocks.rows, choice.blocks.columns) == (
        TileInt8(),
        "cuda:int8",
        64,
        64,
    )
    plan = cuda_plan.make_plan(some, choice, Request(some.target, TileInt8(), False, None, None, 1, None), H200, "", "")
    assert plan.products == 8 and plan.predicted_seconds > 0.0
    assert type(implementation_of(TileInt8())) is tile_implementation.Implementation


def test_what_is_asked_of_an_entry():
    room = {level: tile_launches.config_for(TileInt8(level), 4096, None).room for level in range(1, 6)}
    assert room[1] == pytest.approx(128 * 4096 * U, rel=0.01) and room[4] == pytest.approx(4096 * U - 130 * U, rel=0.01)
    assert tile_launches.config_for(TileInt8(1), 4096, Target("native")).room < room[1]
    assert tile_launches.config_for(TileInt8(5, (16, 32, 8)), 4, Target("native")).room == 0.0
    raw = [
        tile_launches.config_for(TileInt8(fallback=x), 64, y).raw
        for x in (True, False)
        for y in (None, Target("native"))
    ]
    assert raw == [False, False, True, False]
    assert implementation_of(TileInt8()).workspace(problem(), 4096, 4096) > 6 * 4096**2


def test_predictions_follow_what_was_measured():
    rates = usual_rates()
    for n, inner, seconds in ((8192, 32, 14.5e-3), (8192, 64, 10.6e-3), (8192, 128, 7.3e-3), (16384, 128, 55.9e-3)):
        assert 0.85 < implementation_of(TileInt8(tile=(16, inner, 8))).gpu_seconds(problem(n), rates) / seconds < 1.15


def launched(a, b, scheme, target):
    """The pipeline on a GPU; (result, counts)."""
    import torch

    from tests.cuda.harness.programs import run
    from tests.cuda.harness.programs_of_tiles import tiles_program

    out = torch.full((max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]), math.nan, device="cuda")
    config = tile_launches.config_for(scheme, a.shape[2], target)
    program, counts = tiles_program(a, b, out, config, device_of(0))
    workspace = run(program, a, b, out)
    return out.cpu().numpy(), workspace[counts.offset : counts.offset + 32].view(torch.int64).tolist()


def on_gpu(x, turned):
    import torch

    return torch.from_numpy(np.asfortranarray(x) if turned else x).cuda()[None]


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_bits_are_those_of_a_cpu(scheme, seed):
    plain = dataclasses.replace(scheme, fallback=False)
    for name in ("normal", "wide_rows", "carries", "uniform"):
        for shape in ((130, 300, 140), (256, 512, 128), (5, 33, 3)):
            a, b = HOSTILE[name](*shape, seed=seed, dtype=np.dtype(np.float32))
            for turned in (False, True):
                c, _ = launched(on_gpu(a, turned), on_gpu(b, turned), plain, None)
                assert np.array_equal(c[0].view(np.int32), on_cpu(a, b, scheme).view(np.int32)), (name, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_targets_hold_on_hostile_operands(scheme, seed):
    for generator in HOSTILE.values():
        a, b = generator(70, 300, 65, seed=seed, dtype=np.dtype(np.float32))
        c, _ = launched(on_gpu(a, False), on_gpu(b, True), scheme, Target("native"))
        exact = exact_product(a, b)
        assert exact.within(c[0], 300 * U * exact.magnitude("up") + 300 * ETA).all()


@pytest.mark.gpu
def test_inf_and_nan_are_those_of_the_defining_sum():
    for scheme in (TileInt8(), TileInt8(fallback=False), TileInt8(scaling="none"), TileInt8(exponent="pair")):
        for generator in SPECIAL.values():
            a, b = generator(20, 140, 30, seed=3, dtype=np.dtype(np.float32))
            c, _ = launched(on_gpu(a, False), on_gpu(b, False), scheme, None)
            expected = ieee_specials(a, b).astype(np.float32)
            outside = ~np.isfinite(expected)
            assert np.array_equal(c[0][outside], expected[outside], equal_nan=True)
            assert np.isfinite(c[0][~outside]).all()


@pytest.mark.gpu
def test_batches_share_an_operand_and_normal_data_need_no_repair(rng):
    import torch

    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 150, 1024), (1, 1024, 140)))
    for scheme in (TileInt8(), TileInt8(exponent="pair")):
        c, counts = launched(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), scheme, Target("native"))
        assert counts == [0, 0, 0, 0]
        for x, y in zip(a, c, strict=True):
            assert np.array_equal(y.view(np.int32), on_cpu(x, b[0], scheme).view(np.int32))


@pytest.mark.gpu
def test_complex_numbers_are_two_real_products(seed):
    import torch

    for name in ("normal", "wide_rows", "near_overflow"):
        a, b = HOSTILE[name](130, 150, 70, seed=seed, dtype=np.dtype(np.complex64))
        for turned in (False, True):
            x, y = (torch.from_numpy(np.asfortranarray(z) if turned else z).cuda() for z in (a, b))
            c = prismm.matmul(x, y, scheme=TileInt8(fallback=False)).cpu().numpy()
            assert np.array_equal(c.view(np.int32), on_cpu(a, b, TileInt8()).view(np.int32)), name
    a, b = HOSTILE["wide_rows"](70, 90, 65, seed=seed, dtype=np.dtype(np.complex64))
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    c, report = prismm.matmul(x, y, scheme=TileInt8(), accuracy="native", full_output=True)
    for part, own in enumerate((c.real, c.imag)):
        exact = exact_product(*real_operands(a, b, part))
        assert exact.within(own.cpu().numpy().copy(), 180 * U * exact.magnitude("up") + 180 * ETA).all()
        assert exact.within(own.cpu().numpy().copy(), report.bounds).all()
    assert sum(report.paths.values()) == 2 * c.numel()
    d = prismm.gemm(x, y, c, alpha=0.5, beta=1.0, scheme=TileInt8(), accuracy="native")
    assert d.shape == c.shape and torch.isfinite(torch.view_as_real(d)).all()
