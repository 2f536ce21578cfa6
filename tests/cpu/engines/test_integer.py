"""CPU engines: exact products at every length, and proofs that refuse what is not exact."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from prismm.core.moduli import residue_system
from prismm.cpu.engines import integer as cpu
from prismm.cpu.engines import torch_int8
from prismm.cpu.engines.base import Engine
from prismm.cpu.kernels.vnni import CHUNK, DEEP
from prismm.errors import ArgumentError, EngineError
from tests.cpu import units

RESIDUE_ENGINES = [cpu.VNNI, cpu.AVX2, cpu.INT8, cpu.INT8_7BIT, cpu.FLOAT64]
engines = pytest.mark.parametrize("engine", RESIDUE_ENGINES, ids=lambda e: e.name)


def problem(engine):
    works, reason = cpu.available()[engine.name]
    anywhere = not engine.name.startswith(("cpu:amx", "cpu:vnni", "cpu:avx2", "cpu:int8"))
    assert works or not anywhere, f"any machine has {engine.name}: {reason}"
    if not works:
        pytest.skip(reason)


def product(engine, left, right, moduli):
    out = np.full((len(moduli), left.shape[1], right.shape[2]), 55, engine.sum_dtype)
    engine.multiply(left.astype(engine.dtype), right.astype(engine.dtype), out, moduli)
    return out.astype(np.int64)


def block_of(engine):
    """Inner dimensions up to this are one exact sum; longer ones are reduced on the way."""
    return {"cpu:vnni": CHUNK, "cpu:avx2": CHUNK, "cpu:float64": cpu.FLOAT64_BLOCK}.get(engine.name, cpu.INT8_BLOCK)


def exact(left, right):
    return np.stack([x.astype(np.int64) @ y.astype(np.int64) for x, y in zip(left, right, strict=True)])


@engines
def test_it_is_an_engine(engine):
    assert isinstance(engine, Engine)
    assert cpu.ENGINES[engine.name] is engine


@engines
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (33, 130, 17), (1, 2048, 2), (2, 700, 1)])
def test_products_are_exact_integers(engine, shape, rng):
    problem(engine)
    m, k, n = shape
    moduli = residue_system(8, engine.largest_modulus).moduli
    half = np.array([q // 2 for q in moduli])[:, None, None]
    left = rng.integers(-half, half, (len(moduli), m, k))
    right = rng.integers(-half, half, (len(moduli), k, n))
    left[:, :, ::3] = -half
    right[:, ::3] = -half
    got, wanted = product(engine, left, right, moduli), exact(left, right)
    if k <= block_of(engine):
        assert np.array_equal(got, wanted)
    else:
        assert not ((got - wanted) % np.array(moduli)[:, None, None]).any()


@engines
@pytest.mark.parametrize("signs", [(-1, -1), (-1, 1), (1, 1)])
def test_long_inner_dimensions_never_overflow(engine, signs, rng):
    """Just within the engine's block, just beyond it, and three blocks, with the largest residues of one sign."""
    problem(engine)
    block = block_of(engine)
    for k in (block, block + 1, 131072 + 5 if engine.dtype == "int8" else 4100):
        moduli = residue_system(2, engine.largest_modulus).moduli[:2]
        left = np.empty((len(moduli), 2, k), np.int64)
        right = np.empty((len(moduli), k, 3), np.int64)
        for index, q in enumerate(moduli):
            low, high = -(q // 2), (q - 1) // 2
            left[index] = low if signs[0] < 0 else high
            right[index] = low if signs[1] < 0 else high
        left[:, 1, ::5] = rng.integers(-9, 9, left[:, 1, ::5].shape)
        got, wanted = product(engine, left, right, moduli), exact(left, right)
        assert not ((got - wanted) % np.array(moduli)[:, None, None]).any(), k
        if k <= block:
            assert np.array_equal(got, wanted)
        else:
            # The kernel for bytes reduces before a chunk, the others after it too.
            assert engine in (cpu.VNNI, cpu.AVX2) or np.abs(got).max() <= max(moduli)


def broken(monkeypatch, spoil):
    """torch's INT8 product, spoilt."""
    import torch

    true = torch._int_mm

    def wrong(x, y, *, out):
        true(x, y, out=out)
        spoil(x, y, out)
        return out

    monkeypatch.setattr(torch, "_int_mm", wrong)


def saturating(x, y, out):
    """Pairs of products clipped to 16 bits, as units without VNNI do."""
    left, right = x.numpy().astype(np.int64) + 128, y.numpy().astype(np.int64)
    k = left.shape[1]
    total = np.zeros(out.shape, np.int64)
    for h in range(0, k, 2):
        total += np.clip(left[:, h : h + 2] @ right[h : h + 2], -32768, 32767)
    out.copy_(__import__("torch").from_numpy((total - 128 * right.sum(0)).astype(np.int32)))


def one_off(x, y, out):
    """One entry off by one, in larger products alone."""
    if out.shape[0] * out.shape[1] > 100:
        out[-1, -1] += 1


@pytest.mark.parametrize(
    ("spoil", "refused"),
    [(saturating, ["cpu:int8"]), (one_off, ["cpu:int8", "cpu:int8-7bit"])],
    ids=["saturating", "one off"],
)
def test_the_proof_refuses_a_broken_product(spoil, refused, monkeypatch):
    for name in ("cpu:int8", "cpu:int8-7bit"):
        problem(cpu.ENGINES[name])
    broken(monkeypatch, spoil)
    for name in ("cpu:int8", "cpu:int8-7bit"):
        proof = cpu._prove.__wrapped__(name)
        assert proof.usable == (name not in refused), (name, proof)
        assert proof.usable or "inexact" in proof.reason


def eleventh_row(x, k, out):
    """The last row of the larger micro-kernel."""
    out[11::12] += 1


def last_rows(x, k, out):
    """What the smaller micro-kernel computes after the larger."""
    if x.shape[1] > 12 and x.shape[1] % 12 == 4:
        out[-4:] += 1


def second_half(x, k, out):
    """The second half of the second panel alone, in long products."""
    if k > 4 * DEEP:
        out[:12, :, 32:] += 1


def last_byte(x, k, out):
    """What a dword's last bytes add, where k is no multiple of 4."""
    if k % 4 == 3:
        out[0, 0, 0] -= 1


@pytest.mark.parametrize("spoil", [eleventh_row, last_rows, second_half, last_byte])
def test_the_proof_refuses_a_broken_micro_kernel(spoil, monkeypatch):
    problem(units.PACKED)
    from prismm.cpu.kernels import vnni

    true = vnni.packed_product

    def wrong(x, y, k, modulus, out):
        true(x, y, k, modulus, out)
        spoil(x, k, out)

    assert cpu._prove.__wrapped__(units.PACKED.name).usable
    monkeypatch.setattr(vnni, "packed_product", wrong)
    proof = cpu._prove.__wrapped__(units.PACKED.name)
    assert not proof.usable and "inexact" in proof.reason


def test_the_proof_refuses_a_broken_blas(monkeypatch):
    matmul = np.matmul
    monkeypatch.setattr(np, "matmul", lambda x, y, out=None: matmul(x, y, out=out).__iadd__(1.0))
    assert not cpu._prove.__wrapped__("cpu:float64").usable


def test_a_product_that_raises_is_a_reason(monkeypatch):
    import torch

    def fails(*_, **__):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(torch, "_int_mm", fails)
    proof = cpu._prove.__wrapped__("cpu:int8")
    assert not proof.usable and "no such instruction" in proof.reason
    monkeypatch.delattr(torch, "_int_mm")
    proof = cpu._prove.__wrapped__("cpu:int8")
    assert not proof.usable and "no _int_mm" in proof.reason


def test_choose_names_its_alternatives(monkeypatch):
    with pytest.raises(ArgumentError, match="cpu:float64"):
        cpu.choose("gpu")
    assert cpu.choose("cpu:float64") is cpu.FLOAT64
    monkeypatch.setenv("PRISMM_ENGINE", "cpu:direct")
    assert cpu.choose() is cpu.DIRECT
    assert cpu.choose("cpu") is not cpu.DIRECT, "an argument goes before the environment"


SCRIPT = """
import json, numpy as np, prismm
from prismm.cpu.engines import integer as cpu
from prismm.testing import exact_product
expected = {name: cpu.is_expected(name) for name in cpu.ENGINES}
best, loaded = cpu.expected(), "torch" in __import__("sys").modules
a = np.random.default_rng(5).standard_normal((70, 90)); b = np.random.default_rng(6).standard_normal((90, 80))
c, report = prismm.matmul(a, b, scheme=prismm.Residues(15), full_output=True)
right, exact = prismm.matmul(a, b, accuracy="correctly-rounded", scheme=prismm.Residues(18)), exact_product(a, b)
try:
    cpu.choose("cpu:int8"); refused = None
except prismm.errors.EngineError as error:
    refused = str(error)
print(json.dumps({"expected": expected, "best": best, "loaded": loaded,
                  "available": prismm.engines.available(), "engine": report.engine, "refused": refused,
                  "value": c.tobytes().hex(), "right": bool(np.array_equal(right, exact.rounded())),
                  "bounded": bool(exact.within(c, report.bounds).all())}))
"""


def run_with(**environment):
    clean = {k: v for k, v in os.environ.items() if k not in ("PRISMM_ENGINE", "ONEDNN_MAX_CPU_ISA")}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def assert_foreseen(ran):
    """What was expected of engines before anything had loaded torch is what they proved."""
    assert not ran["loaded"]
    assert ran["expected"] == {name: usable for name, (usable, _) in ran["available"].items()}
    assert ran["best"] == ran["engine"]


@pytest.mark.slow
def test_a_cpu_without_vnni_gets_another_engine_and_the_same_bits():
    """oneDNN and Numba held to AVX2, whose INT8 product saturates there: refused where it is wrong; no bit changes."""
    problem(cpu.VNNI)
    problem(cpu.INT8)
    best = run_with()
    assert best["engine"] in ("cpu:amx", "cpu:vnni") and best["refused"] is None and best["right"]
    assert_foreseen(best)
    old = run_with(ONEDNN_MAX_CPU_ISA="AVX2", NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+avx2,+fma")
    works, reason = old["available"]["cpu:vnni"]
    assert not works and "VNNI" in reason
    works, reason = old["available"]["cpu:amx"]
    assert not works and "AMX" in reason
    works, reason = old["available"]["cpu:int8"]
    assert not works and "inexact" in reason, "does this oneDNN ignore ONEDNN_MAX_CPU_ISA?"
    assert old["available"]["cpu:int8-7bit"][0] and old["engine"] == "cpu:avx2"
    assert reason in old["refused"]
    assert_foreseen(old)
    assert old["value"] == best["value"] and old["right"] and old["bounded"]


@pytest.mark.slow
def test_a_cpu_without_avx2_gets_another_engine_and_the_same_bits():
    """What no kernel of bytes serves takes torch's INT8 product where that is fast, FP64 products otherwise."""
    problem(units.PACKED)
    best, old = run_with(), run_with(NUMBA_CPU_NAME="ivybridge", NUMBA_CPU_FEATURES="+avx,+sse4.2")
    assert not old["available"]["cpu:avx2"][0] and "AVX2" in old["available"]["cpu:avx2"][1]
    assert old["engine"] in ("cpu:int8", "cpu:int8-7bit", "cpu:float64")
    assert old["value"] == best["value"] and old["right"] and old["bounded"]


def test_torch_loops_are_not_taken(monkeypatch):
    """An INT8 product that is exact, and takes longer than one in FP64, serves those who name it."""
    import time

    problem(cpu.INT8)
    for seconds, fast in ((0.0, True), (0.02, False)):
        monkeypatch.setattr(torch_int8, "product", lambda *_, seconds=seconds: time.sleep(seconds))
        assert torch_int8.is_fast.__wrapped__() == fast
    monkeypatch.setattr(torch_int8, "is_fast", lambda: False)
    assert not cpu.is_taken("cpu:int8") and cpu.choose("cpu:int8") is cpu.INT8


def test_the_best_engine_is_expected(monkeypatch):
    """Also where torch is not installed, whose engines nobody expects then."""
    assert cpu.expected() == cpu.choose("cpu").name
    pytest.importorskip("torch")
    monkeypatch.setattr(cpu, "_proof", lambda name: cpu.Proof(name in ("cpu:float64", "cpu:int8"), "said the test"))
    for fast, taken in ((True, "cpu:int8"), (False, "cpu:float64")):
        monkeypatch.setattr(torch_int8, "is_fast", lambda fast=fast: fast)
        assert cpu.expected() == taken == cpu._best.__wrapped__().name
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cpu.expected() == "cpu:float64" and not cpu.is_expected("cpu:int8-7bit")
    monkeypatch.setattr(cpu, "_proof", lambda name: cpu.Proof(False, "said the test"))
    cpu._best.cache_clear()
    with pytest.raises(EngineError, match="no CPU engine is exact"):
        cpu.expected()


def test_the_engine_that_is_refused_raises(monkeypatch):
    monkeypatch.setattr(cpu, "_proof", lambda name: cpu.Proof(False, "said the test"))
    with pytest.raises(EngineError, match="said the test"):
        cpu.choose("cpu:int8")
    with pytest.raises(EngineError, match="no CPU engine is exact"):
        cpu._best.__wrapped__()


@pytest.mark.parametrize("shape", itertools.product((1, 2, 9), repeat=3), ids=str)
def test_strides_along_a_length_of_one_say_nothing(shape, rng):
    """Of such a matrix NumPy may leave any stride, which a library must not take for a leading dimension."""
    problem(cpu.INT8)
    m, k, n = shape
    x, y = (rng.integers(-128, 128, size).astype(np.int8) for size in ((m, k), (k, n)))

    def laid_out(z):
        rows, columns = z.shape
        for down, across in {(columns, 1), (1, rows)}:
            for stride in (1, 7, 1000) if 1 in z.shape else (0,):
                strides = stride if rows == 1 else down, stride if columns == 1 and rows > 1 else across
                found = np.lib.stride_tricks.as_strided(np.zeros(5000, np.int8), z.shape, strides)
                found[...] = z
                yield found

    expected = x.astype(np.int32) @ y.astype(np.int32)
    for left, right in itertools.product(laid_out(x), laid_out(y)):
        out = np.full((m, n), 12345, np.int32)
        torch_int8.product(left, right, out)
        assert np.array_equal(out, expected), (left.strides, right.strides)
