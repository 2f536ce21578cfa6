"""Names of engines in every place that takes one: what each verb says of a name that there is not, or not here."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

import prismm
from prismm import errors
from prismm.core import engine_names as names
from prismm.cpu.engines.floats import BLAS
from prismm.cpu.engines.integer import ENGINES
from prismm.cuda import device as cuda_device
from prismm.cuda.device import INT8
from prismm.cuda.launch import cublas
from prismm.cuda.multiword import launches as multiword_launches
from prismm.errors import ArgumentError

A = np.arange(12.0).reshape(3, 4)
PRODUCT = A @ A.T  # small integers: exact

SCHEMES = [
    None, prismm.Residues(), prismm.Native(), prismm.Words.tf32(), prismm.ScaledHalf(), prismm.TileInt8(),
    prismm.Slices("int8"), prismm.Slices("fp16"),
]  # fmt: skip
VERBS = [prismm.matmul, prismm.gemm, prismm.explain, lambda a, b, **how: prismm.prepare(b, side="right", **how)]


def test_docstrings():
    assert doctest.testmod(names).failed == doctest.testmod(errors).failed == 0


def test_the_lists_are_the_engines():
    assert (*ENGINES, BLAS.name) == names.CPU
    words = {
        x.name
        for x in (
            multiword_launches.HALVES,
            multiword_launches.TF32_PAIRS,
            multiword_launches.BF16_PAIRS,
            multiword_launches.BF16_TRIPLES,
        )
    }
    assert set(names.CUDA) == {INT8, cuda_device.FP8, cuda_device.BLAS, cuda_device.FP16, cuda_device.FP64, *words}
    assert cublas is not None


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_verb_and_scheme_says_the_same(scheme, monkeypatch):
    single = A.astype(np.float32)
    for verb in VERBS:
        for name, message in [
            ("cpu:int9", r"^unknown engine 'cpu:int9' .did you mean 'cpu:int8'.*'cpu:blas'.*'simulated:NAME'"),
            ("CPU:VNNI", r"^unknown engine 'CPU:VNNI' .did you mean 'cpu:vnni'"),
            ("", "^unknown engine ''"),
            ("cuda:int8", r"^engine 'cuda:int8' multiplies tensors on a GPU.*pass CUDA tensors, or engine='cpu'"),
            ("cuda", "^engine 'cuda' multiplies tensors on a GPU"),
            ("simulated:a10", r"'simulated:a10'.*(did you mean 'simulated:a100'|pass scheme=)"),
        ]:
            with pytest.raises(ArgumentError, match=message):
                verb(single, single.T, scheme=scheme, engine=name)
            if name and scheme is not None:  # small native products ask nobody
                with monkeypatch.context() as patch:
                    patch.setenv("PRISMM_ENGINE", name)
                    if not name.startswith("simulated:"):
                        with pytest.raises(ArgumentError, match=f"^PRISMM_ENGINE='{name}': {message[1:]}"):
                            verb(single, single.T, scheme=scheme)
        verb(single, single.T, scheme=scheme, engine="cpu")  # the advice
    assert np.array_equal(prismm.matmul(single, single.T, engine="cpu"), PRODUCT)


def test_a_policy_knows_engines_before_a_program_runs():
    for make in (lambda name: prismm.Rule(engine=name), lambda name: prismm.Policy.of("native", engine=name)):
        with pytest.raises(ArgumentError, match=r"unknown engine 'cpu:int9' .did you mean 'cpu:int8'"):
            make("cpu:int9")
        with pytest.raises(ArgumentError, match=r"unknown simulated engine 'simulated:a10' .did you mean"):
            make("simulated:a10")
        for name in ("cpu", "cpu:blas", "cuda", "cuda:int8", "simulated:a100", "simulated:a100.tf32.fp32"):
            make(name)


def test_other_names_have_their_likes():
    from prismm.numerics.hardware.instructions import instruction_named
    from prismm.reproduce import load

    with pytest.raises(ArgumentError, match=r"unknown instruction 'mma.fp16.fp33' .did you mean 'mma.fp16.fp32'"):
        instruction_named("mma.fp16.fp33")
    with pytest.raises(
        ArgumentError, match=r"there is no experiment 'mixprt' .did you mean 'mixpert'\?\); pass one of"
    ):
        load("mixprt")
