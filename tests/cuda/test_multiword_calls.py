"""Which products of words a GPU makes, and what a report says of them; where there is no GPU."""

import math

import numpy as np
import pytest

from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.core.request import Request
from prismm.cuda import plan as cuda_plan
from prismm.cuda.costs.predict import predict
from prismm.cuda.costs.table import usual_rates
from prismm.cuda.device import Device
from prismm.cuda.implementation import implementation_of
from prismm.cuda.multiword import implementation as multiword_implementation
from prismm.cuda.multiword import launches as multiword_launches
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64, TF32
from prismm.schemes import Native, Residues, ScaledHalf, Words
from prismm.testing import HOSTILE, exact_product
from tests.cuda.harness import words_twin as twin

H200 = Device("NVIDIA H200", True, True, 132)
A100 = Device("NVIDIA A100", False, True, 108)


def problem(n=4096, k=None, *, result=FP32, accuracy="native", **other):
    given = {"reproducible": False, "one_type": True, "batch": (), **other}
    return Problem(m=n, n=n, k=n if k is None else k, result=result, target=parse_target(accuracy), **given)


def chosen(some, scheme=None, engine=None, device=H200):
    options = Request(some.target, scheme, some.reproducible, None, engine, 1, None)
    return cuda_plan.choose(some, options, device)


def test_auto_takes_words_for_large_products_in_float32():
    choice = chosen(problem())
    assert (choice.scheme, choice.engine) == (ScaledHalf(chunk=128), "cuda:fp16")
    assert "as fast as cuBLAS" in choice.reasons[0]
    assert chosen(problem(4096, 1000)).scheme == ScaledHalf(chunk=64)
    assert chosen(problem(is_complex=True, accuracy="fast")).scheme == ScaledHalf(chunk=256)
    assert chosen(problem(512, batch=(64,))).scheme == ScaledHalf(chunk=64)


def test_batches_of_small_products_are_cut_where_they_are_multiplied():
    def one_kernel(some, chunk=64, device=H200):
        return implementation_of(ScaledHalf(chunk=chunk)).launch_config(some, device).direct

    assert one_kernel(problem(512, batch=(64,))) and one_kernel(problem(256, batch=(256,)))
    # Of larger matrices, or few, elements are cut too often, or by too few.
    for some in (problem(1024, batch=(16,)), problem(1024), problem(512), problem(2048, 512)):
        assert not one_kernel(some)
    batch = {"batch": (64,)}
    assert not one_kernel(problem(512, **batch), chunk=128) and not one_kernel(problem(512, **batch), device=A100)
    for some in (problem(510, **batch), problem(512, 510, **batch), problem(512, is_complex=True, **batch)):
        assert not one_kernel(some)


@pytest.mark.parametrize(
    ("some", "scheme"),
    [
        (problem(64), Native("float64")),
        (problem(result=FP64), Residues(14)),
        (problem(reproducible=True), Residues(7)),
        (problem(one_type=False), Residues(7)),
        (problem(accuracy=1e-3), None),
        (problem(accuracy="correctly-rounded"), None),
    ],
)
def test_auto_takes_no_words_elsewhere(some, scheme):
    found = chosen(some).scheme
    assert not isinstance(found, (ScaledHalf, Words))
    assert scheme is None or found == scheme


def test_a_product_no_certificate_would_cover_is_not_taken():
    assert multiword_implementation.of_native_grade(problem(4096, 255)) is None
    for k in (256, 1000, 5000, 1 << 20):
        scheme = multiword_implementation.of_native_grade(problem(64, k))
        assert implementation_of(scheme).launch_config(problem(64, k), H200).least < math.inf


def test_an_engine_asked_for_names_its_words():
    assert chosen(problem(), engine="cuda:fp16").scheme == ScaledHalf(chunk=128)
    assert chosen(problem(), engine="cuda:tf32").scheme == Words.tf32()
    assert chosen(problem(), engine="cuda:bf16").scheme == Words.bf16()
    assert chosen(problem(), engine="cuda:blas").scheme == Native()
    assert chosen(problem(), engine="cuda:int8").scheme == Residues(7)
    with pytest.raises(EngineError, match="float32"):
        chosen(problem(result=FP64), engine="cuda:fp16")


def test_words_run_on_gpus_without_known_rates_when_asked_for():
    assert chosen(problem(), device=A100).scheme == Native()
    choice = chosen(problem(), ScaledHalf(), device=A100)
    assert (choice.scheme, choice.engine) == (ScaledHalf(), "cuda:fp16")
    # The A100's matrix unit errs more.
    ours, other = (implementation_of(ScaledHalf()).launch_config(problem(), device).least for device in (H200, A100))
    assert ours < other < math.inf


def test_what_a_gpu_has_not():
    for scheme in (ScaledHalf(sb=13), ScaledHalf(sb=-1), ScaledHalf(scale=False), ScaledHalf(rounding="zero")):
        assert multiword_implementation.word_format(scheme) is None
    for scheme in (
        Words(TF32, 2, chunk=8),
        Words.tf32(4),
        Words.bf16(9),
        Words.tf64(),
        Words.tf32(rounding="toward-zero"),
    ):
        with pytest.raises(EngineError, match="runs on a CPU so far; pass CPU tensors, or one that a GPU has"):
            chosen(problem(), scheme)
    with pytest.raises(EngineError, match="certifies no correct rounding"):
        chosen(problem(accuracy="correctly-rounded"), ScaledHalf())
    with pytest.raises(ArgumentError, match="'cuda:fp16'"):
        chosen(problem(), ScaledHalf(), "cuda:int8")
    with pytest.raises(ArgumentError, match="too long"):
        chosen(problem(4, 1 << 23), ScaledHalf())
    assert multiword_implementation.word_format(ScaledHalf(sb=0)).amplified == 0


def test_predictions_follow_what_was_measured():
    for n, seconds in ((4096, 0.70e-3), (8192, 4.9e-3), (16384, 37.5e-3)):
        predicted = predict(ScaledHalf(chunk=512), problem(n), usual_rates())
        assert 0.75 < predicted / seconds < 1.25
    tf32 = predict(Words.tf32(), problem(8192), usual_rates())
    assert 0.75 < tf32 / 9.2e-3 < 1.25


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", twin.formats())
def test_reported_bounds_hold(name, dtype, seed):
    words, chunk = twin.formats()[name], 64
    for generator in ("normal", "wide_rows", "subnormal_results", "cancelling"):
        a, b = HOSTILE[generator](6, 150, 5, seed=seed, dtype=np.dtype(dtype))
        terms = 150 * (2 if dtype == "complex64" else 1)
        own = multiword_launches.bound(words, terms, chunk, "h200-wgmma")
        real, _ = twin.product(a, b, words, chunk, "h200-wgmma")
        c = real.view(dtype)
        bounds = multiword_implementation.WordsBound(FP32, a, b, own, None).at(c, slice(None), slice(None))
        exact = exact_product(twin.real_vectors(a, "left"), twin.real_vectors(b, "right").T)
        assert exact.within(real, np.repeat(bounds, real.shape[1] // c.shape[1], axis=1)).all(), generator
        one = multiword_implementation.WordsBound(FP32, a, b, own, None).at(c, 3, 2)
        assert np.isclose(float(one), bounds[3, 2], rtol=1e-12)
