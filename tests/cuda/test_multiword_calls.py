"""Which products of words a GPU makes, and what a report says of them; where there is no GPU."""

import math

import numpy as np
import pytest

from prismm.core.accuracy import parse_target
from prismm.cpu.calls import Options
from prismm.cuda import plan as cuda_plan
from prismm.cuda.multiword import implementation as cuda_words_calls
from prismm.cuda.multiword import launches as cuda_words
from prismm.cuda.residues import launches as cuda
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64, TF32
from prismm.schemes import Native, Residues, ScaledHalf, Words
from prismm.testing import HOSTILE, exact_product
from tests.cuda.harness import words_twin as twin

H200 = cuda.Device("NVIDIA H200", True, True, 132)
A100 = cuda.Device("NVIDIA A100", False, True, 108)


def need(n=4096, k=None, *, result=FP32, accuracy="native", **other):
    given = {"reproducible": False, "native": True, "batch": (), **other}
    return cuda_plan.Need(m=n, n=n, k=n if k is None else k, result=result, target=parse_target(accuracy), **given)


def chosen(some, scheme=None, engine=None, device=H200):
    options = Options(some.target, scheme, some.reproducible, None, engine, 1, None)
    return cuda_plan.choose(some, options, device)


def test_auto_takes_words_for_large_products_in_float32():
    choice = chosen(need())
    assert (choice.scheme, choice.engine) == (ScaledHalf(chunk=128), "cuda:fp16")
    assert "as fast as cuBLAS" in choice.reasons[0]
    assert chosen(need(4096, 1000)).scheme == ScaledHalf(chunk=64)
    assert chosen(need(is_complex=True, accuracy="fast")).scheme == ScaledHalf(chunk=256)
    assert chosen(need(512, batch=(64,))).scheme == ScaledHalf(chunk=64)


def test_batches_of_small_products_are_cut_where_they_are_multiplied():
    def one_kernel(some, chunk=64, device=H200):
        return cuda_words_calls.problem_of(ScaledHalf(chunk=chunk), some, device).direct

    assert one_kernel(need(512, batch=(64,))) and one_kernel(need(256, batch=(256,)))
    # Of larger matrices, or few, elements are cut too often, or by too few.
    for some in (need(1024, batch=(16,)), need(1024), need(512), need(2048, 512)):
        assert not one_kernel(some)
    batch = {"batch": (64,)}
    assert not one_kernel(need(512, **batch), chunk=128) and not one_kernel(need(512, **batch), device=A100)
    for some in (need(510, **batch), need(512, 510, **batch), need(512, is_complex=True, **batch)):
        assert not one_kernel(some)


@pytest.mark.parametrize(
    ("some", "scheme"),
    [
        (need(64), Native("float64")),
        (need(result=FP64), Residues(14)),
        (need(reproducible=True), Residues(7)),
        (need(native=False), Residues(7)),
        (need(accuracy=1e-3), None),
        (need(accuracy="correctly-rounded"), None),
    ],
)
def test_auto_takes_no_words_elsewhere(some, scheme):
    found = chosen(some).scheme
    assert not isinstance(found, (ScaledHalf, Words))
    assert scheme is None or found == scheme


def test_a_product_no_certificate_would_cover_is_not_taken():
    assert cuda_words_calls.of_native_grade(need(4096, 255)) is None
    for k in (256, 1000, 5000, 1 << 20):
        scheme = cuda_words_calls.of_native_grade(need(64, k))
        assert cuda_words_calls.problem_of(scheme, need(64, k), H200).least < math.inf


def test_an_engine_asked_for_names_its_words():
    assert chosen(need(), engine="cuda:fp16").scheme == ScaledHalf(chunk=128)
    assert chosen(need(), engine="cuda:tf32").scheme == Words.tf32()
    assert chosen(need(), engine="cuda:bf16").scheme == Words.bf16()
    assert chosen(need(), engine="cuda:blas").scheme == Native()
    assert chosen(need(), engine="cuda:int8").scheme == Residues(7)
    with pytest.raises(EngineError, match="float32"):
        chosen(need(result=FP64), engine="cuda:fp16")


def test_words_run_on_gpus_without_known_rates_when_asked_for():
    assert chosen(need(), device=A100).scheme == Native()
    choice = chosen(need(), ScaledHalf(), device=A100)
    assert (choice.scheme, choice.engine) == (ScaledHalf(), "cuda:fp16")
    # The A100's matrix unit errs more.
    ours, other = (cuda_words_calls.problem_of(ScaledHalf(), need(), device).least for device in (H200, A100))
    assert ours < other < math.inf


def test_what_a_gpu_has_not():
    for scheme in (ScaledHalf(sb=13), ScaledHalf(sb=-1), ScaledHalf(scale=False), ScaledHalf(rounding="zero")):
        assert cuda_words_calls.word_format(scheme) is None
    for scheme in (
        Words(TF32, 2, chunk=8),
        Words.tf32(4),
        Words.bf16(9),
        Words.tf64(),
        Words.tf32(rounding="toward-zero"),
    ):
        with pytest.raises(EngineError, match="runs on a CPU so far; pass CPU tensors, or one that a GPU has"):
            chosen(need(), scheme)
    with pytest.raises(EngineError, match="certifies no correct rounding"):
        chosen(need(accuracy="correctly-rounded"), ScaledHalf())
    with pytest.raises(ArgumentError, match="'cuda:fp16'"):
        chosen(need(), ScaledHalf(), "cuda:int8")
    with pytest.raises(ArgumentError, match="too long"):
        chosen(need(4, 1 << 23), ScaledHalf())
    assert cuda_words_calls.word_format(ScaledHalf(sb=0)).amplified == 0


def test_predictions_follow_what_was_measured():
    for n, seconds in ((4096, 0.70e-3), (8192, 4.9e-3), (16384, 37.5e-3)):
        predicted = cuda_plan.predict(ScaledHalf(chunk=512), need(n), cuda_plan.usual_rates())
        assert 0.75 < predicted / seconds < 1.25
    tf32 = cuda_plan.predict(Words.tf32(), need(8192), cuda_plan.usual_rates())
    assert 0.75 < tf32 / 9.2e-3 < 1.25


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", twin.formats())
def test_reported_bounds_hold(name, dtype, seed):
    words, chunk = twin.formats()[name], 64
    for generator in ("normal", "wide_rows", "subnormal_results", "cancelling"):
        a, b = HOSTILE[generator](6, 150, 5, seed=seed, dtype=np.dtype(dtype))
        terms = 150 * (2 if dtype == "complex64" else 1)
        own = cuda_words.bound(words, terms, chunk, "h200-wgmma")
        real, _ = twin.product(a, b, words, chunk, "h200-wgmma")
        c = real.view(dtype)
        bounds = cuda_words_calls.WordsBound(FP32, a, b, own, None).at(c, slice(None), slice(None))
        exact = exact_product(twin.real_vectors(a, "left"), twin.real_vectors(b, "right").T)
        assert exact.within(real, np.repeat(bounds, real.shape[1] // c.shape[1], axis=1)).all(), generator
        one = cuda_words_calls.WordsBound(FP32, a, b, own, None).at(c, 3, 2)
        assert np.isclose(float(one), bounds[3, 2], rtol=1e-12)
