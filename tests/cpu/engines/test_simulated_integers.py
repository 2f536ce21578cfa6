"""Simulated INT8 engines: the bits of every other integer engine, for Residues and Slices, and refusals."""

import numpy as np
import pytest

import prismm
from prismm import Residues, Slices
from prismm.cpu.engines import integer as cpu
from prismm.cpu.engines import simulated_integers
from prismm.errors import ArgumentError, EngineError
from prismm.numerics import EngineModel
from prismm.numerics import engine as model_named
from prismm.testing import HOSTILE
from tests.cpu.engines.laws import assert_bits_of_any_engine
from tests.judge import assert_same_bits

NAMES = ["simulated:a100", "simulated:h200-wgmma", "simulated:h100-mma-satfinite.int8.int32", "simulated:amx"]


@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["phi4", "cancelling", "carries"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_the_bits_are_those_of_any_engine(name, kind, dtype, seed):
    a, b = HOSTILE[kind](20, 37, 18, seed, np.dtype(dtype))
    assert_bits_of_any_engine(a, b, name)
    if dtype == "float64":
        digits = Slices(unit="int8")
        assert_same_bits(prismm.matmul(a, b, scheme=digits, engine=name), prismm.matmul(a, b, scheme=digits))


def test_sums_beyond_one_block(rng):
    """Clamped sums would show: residues are added every 131,071 products."""
    k = 131071 + 5
    left, right = np.full((1, 2, k), -128, np.int8), np.full((1, k, 2), -128, np.int8)
    right[0, :, 1] = rng.integers(-128, 128, k)
    out = np.empty((1, 2, 2), np.int32)
    simulated_integers.engine("simulated:a100-satfinite.int8.int32").multiply(left, right, out, (256,))
    exact = left[0].astype(np.int64) @ right[0].astype(np.int64)
    assert (out[0] % 256 == exact % 256).all()


@pytest.mark.slow
def test_a_model_from_a_file(tmp_path, rng):
    path = tmp_path / "mine.json"
    path.write_text(model_named("t4.int8.int32").to_json())
    a, b = rng.standard_normal((9, 8)), rng.standard_normal((8, 7))
    assert_same_bits(
        prismm.matmul(a, b, scheme=Residues(15), engine=f"simulated:{path}"), prismm.matmul(a, b, scheme=Residues(15))
    )


def test_an_engine_that_is_not_exact_is_refused(tmp_path):
    """Sums of 8 products at a time that wrap around at 16 bits."""
    from prismm.formats import INT8, INT32, Integer

    with pytest.raises(EngineError, match=r"int8 -> int16: pass one that does"):
        path = tmp_path / "narrow.json"
        path.write_text(EngineModel("narrow", INT8, Integer(bits=16, name="int16"), overflow="wrap").to_json())
        prismm.matmul(np.eye(2), np.eye(2), scheme=Residues(15), engine=f"simulated:{path}")

    class Wrong(simulated_integers.SimulatedInt8Engine):
        def product(self, left, right, out, workers):
            super().product(left, right, out, workers)
            out &= ~1

    engine = Wrong("simulated:wrong", EngineModel("wrong", INT8, INT32, overflow="wrap"))
    assert "inexact" in cpu.proof_of(engine).reason and not engine.prove().usable


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"scheme": Residues(15), "engine": "simulated:v100"}, EngineError, "multiplies no INT8 with sums in INT32"),
        ({"scheme": Slices(unit="int8"), "engine": "simulated:v100"}, EngineError, "multiplies no INT8"),
        ({"scheme": Residues(15), "engine": "simulated:nope"}, ArgumentError, "unknown simulated engine"),
        ({"scheme": Residues(15), "engine": "simulated:no.json"}, ArgumentError, "pass a file that"),
        ({"engine": "simulated:a100"}, ArgumentError, r"prismm\.Auto\(\) may take none; pass scheme="),
        ({"scheme": prismm.Native(), "engine": "simulated:a100"}, ArgumentError, "may take none"),
    ],
)
def test_refusals(keywords, error, words):
    with pytest.raises(error, match=words):
        prismm.matmul(np.eye(2), np.eye(2), **keywords)
