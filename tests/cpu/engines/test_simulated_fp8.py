"""Simulated FP8 engines: the bits of every other engine, which models serve, and proofs that fail where they should."""

from dataclasses import replace

import numpy as np
import pytest

import prismm
from prismm import Residues
from prismm.core.fp8_moduli import FAMILIES
from prismm.cpu.engines import simulated_fp8
from prismm.errors import ArgumentError, EngineError
from prismm.formats import Format
from prismm.numerics import EngineModel
from prismm.numerics import engine as model_named
from prismm.numerics.catalogue import engines
from prismm.testing import HOSTILE, exact_product
from tests.cpu.engines.laws import assert_bits_of_any_engine
from tests.judge import assert_same_bits

B200, HOPPER = "simulated:b200-tcgen05.e4m3.fp32", "simulated:h100-wgmma.fp8"


def every_fp8_model():
    return [model_named(name) for name in engines() if ".e4m3" in name or ".e5m2" in name]


@pytest.mark.covering
@pytest.mark.parametrize("name", [B200, HOPPER, "simulated:rtx5090.fp8", "simulated:l40s.fp8"])
@pytest.mark.parametrize("kind", ["phi4", "cancelling", "carries"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_the_bits_are_those_of_any_engine(name, kind, dtype, seed):
    a, b = HOSTILE[kind](12, 37, 10, seed, np.dtype(dtype))
    assert_bits_of_any_engine(a, b, name)


@pytest.mark.parametrize("name", [B200, HOPPER])
@pytest.mark.parametrize("moduli", [2, 4, 11, 18, 20, 22])
def test_any_number_of_moduli(name, moduli, rng):
    """Integers that fit: the exact product. Others: the bits of INT8 residues."""
    # Rounded to 22 moduli, these are exact, and so is the sum.
    a, b = rng.integers(-40, 41, (5, 9)).astype(float), rng.integers(-40, 41, (9, 4)).astype(float)
    assert_same_bits(
        prismm.matmul(a, b, scheme=Residues(moduli), engine=name), prismm.matmul(a, b, scheme=Residues(moduli))
    )
    if moduli >= 11:
        a, b = HOSTILE["cancelling"](6, 33, 5, int(rng.integers(1 << 30)))
        found = prismm.matmul(a, b, scheme=Residues(moduli), engine=name, accuracy="correctly-rounded")
        assert_same_bits(found, exact_product(a, b).rounded("float64"))


@pytest.mark.parametrize("name", [B200, HOPPER])
def test_blocks_of_the_inner_dimension(name):
    """Residues whose digits are as large as they are, of one sign, over several blocks."""
    engine = simulated_fp8.residue_engine(name)
    for q in (engine.family.triples[0][0], engine.family.singles[0][0]):
        block, table = engine.block(q), engine.table(q)
        residue = int(np.argmax(np.abs(table.digits[0])))
        for k in (block, block + 1, 2 * block + 3):
            left, right, out = (
                np.full((1, 2, k), residue, float),
                np.full((1, k, 2), residue, float),
                np.empty((1, 2, 2)),
            )
            right[0, :, 1] = -left[0, 1] + (np.arange(k) % 5)
            engine.multiply(left, right, out, (q,))
            exact = left[0].astype(np.int64) @ right[0].astype(np.int64)
            assert not ((out[0].astype(np.int64) - exact) % q).any() and np.abs(out).max() <= q / 2


def test_which_models_serve():
    """Every FP8 model of the catalogue is accepted, or refused with a reason that names what it lacks."""
    accepted, reasons = set(), {}
    for model in every_fp8_model():
        reason = simulated_fp8.refusal(model)
        if reason is None:
            accepted.add(model.name)
        else:
            reasons[model.name] = reason
    devices = ["ada", "b200-mma", "b200-tcgen05", "h100-mma", "h100-wgmma", "h200-mma", "h200-wgmma", "l40s"]
    devices += ["rtx1000ada", "rtx5090", "rtxpro6000"]
    assert accepted == {f"{x}.e4m3.fp32" for x in devices} | {"mi300.e4m3fnuz.fp32"}
    for name, reason in reasons.items():
        expected = "block scales" if "mxf8" in name else "has no 9" if "e5m2" in name else "exact up to 2048 only"
        assert expected in reason, (name, reason)


@pytest.mark.slow
def test_the_bits_of_every_model_that_serves(seed):
    """Those that no fast test runs as well: sums in groups, joined late or after the products."""
    a, b = HOSTILE["cancelling"](9, 41, 7, seed)
    expected = prismm.matmul(a, b, scheme=Residues(15))
    names = [model.name for model in every_fp8_model() if simulated_fp8.refusal(model) is None]
    assert len(names) == 12
    for name in names:
        assert_same_bits(prismm.matmul(a, b, scheme=Residues(15), engine=f"simulated:{name}"), expected)


def test_exact_sums_are_exact_and_no_more():
    """The bound is sharp: a sum that is larger by one more product loses an odd one."""
    for name in ("b200-tcgen05.e4m3.fp32", "h100-wgmma.e4m3.fp32"):
        model = model_named(name)
        capacity = simulated_fp8.exact_sums(model)
        digit = 128.0 if capacity > 2**20 else 16.0
        k = capacity // int(digit) ** 2
        x, y = np.full(k + 32, digit), np.full(k + 32, digit)
        x[k - 1 :], y[k - 1 :] = 0.0, 0.0
        x[k - 1] = y[k - 1] = 1.0
        within = (k - 1) * digit**2 + 1
        assert float(model.dot(x, y)) == within
        x[k - 1 : k + 1], y[k - 1 : k + 1] = digit, digit
        x[k + 31] = y[k + 31] = 1.0
        assert float(model.dot(x, y)) == (k + 1) * digit**2  # the one is lost


def test_the_proof_fails_where_sums_are_cut():
    """A unit that keeps a bit less than its model says, and one that loses odd sums."""
    model = model_named("b200-tcgen05.e4m3.fp32")
    assert simulated_fp8.SimulatedFp8Engine("simulated:right", model).prove().usable

    class Shorter(simulated_fp8.SimulatedFp8Engine):
        def product(self, left, right, workers):
            found = super().product(left, right, workers)
            large = np.abs(found) >= 2.0**23
            return np.where(large, np.trunc(found / 2) * 2, found)

    proof = Shorter("simulated:shorter", model).prove()
    assert not proof.usable and "inexact on extreme digits modulo" in proof.reason
    narrow = replace(model, fraction_bits=21)
    assert simulated_fp8.exact_sums(narrow) == 2**22
    served = simulated_fp8.SimulatedFp8Engine("simulated:narrow", narrow)
    assert served.family is FAMILIES[1] and served.prove().usable


def test_a_model_from_a_file(tmp_path, rng):
    path = tmp_path / "mine.json"
    path.write_text(model_named("rtx5090.e4m3.fp32").to_json())
    a, b = rng.standard_normal((9, 8)), rng.standard_normal((8, 7))
    found, report = prismm.matmul(a, b, scheme=Residues(15), engine=f"simulated:{path}", full_output=True)
    assert report.products == 27
    assert_same_bits(found, prismm.matmul(a, b, scheme=Residues(15)))


def test_plans_say_what_is_multiplied():
    a, b = np.zeros((4, 5000)), np.zeros((5000, 3))
    plan = prismm.explain(a, b, scheme=Residues(14), engine="simulated:b200-tcgen05.fp8")
    assert plan.products == 25
    assert "16 moduli of one product, 3 of three; sums of up to 512 terms are exact, and k = 5000 is cut" in str(plan)
    for card in ("NVIDIA B200", "NVIDIA B300 SXM6 AC"):
        assert f"prediction for an {card}, not measured: " in str(plan)
    plan = prismm.explain(a, b, scheme=Residues(14), engine="simulated:h100-wgmma.fp8")
    assert "prediction" not in str(plan)
    assert plan.products == 30 and "sums of up to 32 terms" in str(plan)
    # A device with INT8 products multiplies by them, unless FP8 is asked for.
    plan = prismm.explain(a, b, scheme=Residues(14), engine="simulated:h100-wgmma")
    assert plan.products == 14


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("simulated:b200-tcgen05.e5m2.fp32", EngineError, r"e5m2, which has no 9"),
        ("simulated:b200-tcgen05.e4m3.fp16", EngineError, r"exact up to 2048 only"),
        ("simulated:b200-tcgen05-mxf8f6f4.e4m3.fp32", EngineError, r"block scales"),
        ("simulated:a100.fp8", EngineError, r"has no FP8 products; pass one that does"),
        ("simulated:a1000.fp8", ArgumentError, r"unknown simulated engine"),
        ("simulated:volta.fp8", ArgumentError, r"is no device of the catalogue"),
    ],
)
def test_refusals(name, error, words):
    with pytest.raises(error, match=words):
        prismm.matmul(np.eye(2), np.eye(2), scheme=Residues(15), engine=name)


def test_formats_of_eight_bits_are_checked_before_their_sums():
    model = EngineModel("own", Format(4, 3, specials="fn"), model_named("a100.fp16.fp32").output, overflow="saturate")
    assert "saturate" in simulated_fp8.refusal(model)
