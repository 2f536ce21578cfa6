"""Bad input: refused before any work by a few exception types that name argument, value and remedy."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm import errors
from prismm.cpu.native import product as native
from prismm.cpu.residues import blocking as tiles
from prismm.cpu.residues import multiply as residues
from prismm.cpu.residues import product
from prismm.errors import (
    AccuracyError,
    ArgumentError,
    DTypeError,
    EngineError,
    FileError,
    NotCertified,
    OperandError,
    PrismmError,
    ShapeError,
)

A, B = np.ones((2, 3)), np.ones((3, 2))


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any multiplication fails the test."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("work began before the arguments were checked")

    monkeypatch.setattr(native, "product", refuse)
    for name in ("native", "residues"):  # which hold the functions by name
        monkeypatch.setattr(importlib.import_module(f"prismm.cpu.{name}.implementation"), "multiply", refuse)
    monkeypatch.setattr(residues, "multiply", refuse)
    monkeypatch.setattr(product, "split_operand", refuse)
    monkeypatch.setattr(tiles, "split_operand", refuse)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ShapeError, ValueError),
        (DTypeError, TypeError),
        (AccuracyError, ValueError),
        (ArgumentError, ValueError),
        (OperandError, TypeError),
        (EngineError, RuntimeError),
        (NotCertified, ArithmeticError),
        (FileError, OSError),
    ],
)
def test_errors_refine_the_builtin_ones(error, builtin):
    assert issubclass(error, PrismmError) and issubclass(error, builtin)
    public = {x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, Exception)}
    assert len(public) == 9


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"accuracy": "exact"}, AccuracyError, ["unknown accuracy 'exact'", "'correctly-rounded'", "float > 0"]),
        ({"accuracy": 0.0}, AccuracyError, ["accuracy=0.0", "finite and positive", "1e-12"]),
        ({"accuracy": -1e-3}, AccuracyError, ["accuracy=-0.001", "positive"]),
        ({"accuracy": float("nan")}, AccuracyError, ["accuracy=nan", "finite"]),
        ({"accuracy": float("inf")}, AccuracyError, ["accuracy=inf", "finite"]),
        ({"accuracy": True}, AccuracyError, ["accuracy=True", "'native'"]),
        ({"accuracy": [1e-9]}, AccuracyError, ["accuracy=[1e-09]", "'native'"]),
        ({"accuracy": 1 + 0j}, AccuracyError, ["accuracy=(1+0j)", "float > 0"]),
        ({"accuracy": np.array([1e-9])}, AccuracyError, ["accuracy=array([1.e-09])", "'native'"]),
        ({"accuracy": 10**400}, AccuracyError, ["accuracy is beyond the largest float", "1e-12"]),
        ({"accuracy": 10**5000}, AccuracyError, ["accuracy is beyond the largest float", "1e-12"]),
        ({"engine": "cpu:blas", "scheme": prismm.Residues(15)}, ArgumentError, ["engine='cpu:blas'", "15", "leave"]),
        ({"engine": "cpu:blas", "reproducible": True}, ArgumentError, ["engine='cpu:blas'", "Residues", "leave"]),
        ({"scheme": "residue"}, ArgumentError, ["scheme 'residue'", "did you mean 'residues'", "residues:N"]),
        ({"scheme": prismm.Residues}, ArgumentError, ["scheme=<class", "prismm.Residues(...)"]),
        ({"scheme": 15}, ArgumentError, ["scheme=15", "no scheme"]),
        (
            {"scheme": prismm.Native(), "reproducible": True},
            ArgumentError,
            ["Native", "not reproducible", "prismm.Residues"],
        ),
        ({"reproducible": 1}, ArgumentError, ["reproducible=1", "True or False"]),
        ({"reproducible": "yes"}, ArgumentError, ["reproducible='yes'"]),
        ({"engine": "gpu"}, ArgumentError, ["unknown engine 'gpu'", "'cpu'", "'cpu:int8'", "'cpu:float64'"]),
        ({"engine": 8}, ArgumentError, ["engine=8", "'cpu'"]),
        ({"threads": 0}, ArgumentError, ["threads=0", "1 or more"]),
        ({"threads": -2}, ArgumentError, ["threads=-2"]),
        ({"threads": 1.5}, ArgumentError, ["threads=1.5", "integer"]),
        ({"threads": "2"}, ArgumentError, ["threads='2'"]),
        ({"threads": True}, ArgumentError, ["threads=True"]),
        ({"out_dtype": "float16"}, DTypeError, ["out_dtype='float16'", "float32, float64"]),
        ({"out": [0.0]}, OperandError, ["out is a list"]),
        ({"out": np.empty((3, 3))}, ShapeError, ["out has shape (3, 3)", "(2, 2)"]),
    ],
)
def test_keywords(keywords, error, words, no_work):
    for call in (prismm.matmul, prismm.gemm) if "out" in keywords else (prismm.matmul, prismm.gemm, prismm.explain):
        with pytest.raises(error) as caught:
            call(A, B, **keywords)
        for word in words:
            assert word in str(caught.value), call
        assert type(caught.value).__module__ == "prismm.errors"


def test_unknown_keywords_are_pythons_own_error():
    with pytest.raises(TypeError, match="acuracy"):
        prismm.matmul(A, B, acuracy="native")
    with pytest.raises(TypeError):
        prismm.matmul(A, B, "native")


@pytest.mark.parametrize(
    ("name", "value"), [("PRISMM_ENGINE", "gpu"), ("PRISMM_THREADS", "many"), ("PRISMM_THREADS", "0")]
)
def test_environment_variables(name, value, monkeypatch, no_work):
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError) as caught:
        prismm.matmul(np.ones((100, 100)), np.ones((100, 100)), reproducible=True)
    assert repr(value) in str(caught.value) and name in str(caught.value)
    assert "pass" in str(caught.value) or "set it" in str(caught.value)


def test_an_engine_that_is_not_exact_here_is_refused(monkeypatch, no_work):
    """What a CPU without INT8 dot instructions gives: the engine asked for, or the next best by itself."""
    from prismm.cpu.engines import integer as cpu
    from prismm.cpu.engines.base import Proof

    proof = cpu._proof
    monkeypatch.setattr(
        cpu,
        "_proof",
        lambda name: (
            Proof(False, "inexact on extreme operands")
            if any(unit in name for unit in ("int8", "vnni", "avx2", "amx"))
            else proof(name)
        ),
    )
    cpu._best.cache_clear()
    try:
        with pytest.raises(EngineError, match=r"engine 'cpu:int8' cannot be used here: inexact.*engine='cpu'"):
            prismm.matmul(A, B, engine="cpu:int8", reproducible=True)
        assert cpu.choose("cpu").name == "cpu:float64"
        plan = prismm.explain(np.ones((60, 60)), np.ones((60, 60)), reproducible=True)
        assert plan.engine == "cpu:float64"
        assert any("INT8" in reason for reason in plan.reasons)
    finally:
        cpu._best.cache_clear()


def test_the_proof_catches_products_that_saturate(monkeypatch):
    """Sums of pairs clipped to 16 bits, as older units have them, and products lost beyond 2^24."""
    from prismm.cpu.engines.integer import FLOAT64, INT8, _prove

    def saturating(left: Any, right: Any, out: Any) -> None:
        x, y = left.numpy().astype(np.int64), right.numpy().astype(np.int64)
        total = np.zeros((x.shape[0], y.shape[1]), np.int64)
        for h in range(0, x.shape[1], 2):
            total += np.clip(x[:, h : h + 2] @ y[h : h + 2], -(2**15), 2**15 - 1)
        out.copy_(torch.from_numpy(total.astype(np.int32)))

    def in_float32(x: Any, y: Any, out: Any = None) -> Any:
        product = (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float64)
        if out is None:
            return product
        out[...] = product
        return out

    _prove.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "_int_mm", saturating)
            assert not _prove(INT8.name).usable
            assert "inexact" in _prove(INT8.name).reason
        _prove.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(np, "matmul", in_float32)
            assert not _prove(FLOAT64.name).usable
    finally:
        _prove.cache_clear()


def test_flushed_subnormals_are_detected():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        calls = [
            lambda: prismm.matmul(A, B),
            lambda: prismm.matmul(A, B, accuracy="correctly-rounded"),
            lambda: prismm.matmul(torch.ones(2, 2), torch.ones(2, 2)),
            lambda: prismm.gemm(A, B, reproducible=True),
            lambda: prismm.prepare(A),
            lambda: prismm.explain(A, B),
        ]
        for call in calls:
            with pytest.raises(EngineError, match=r"flushes subnormal.*torch.set_flush_denormal\(False\)"):
                call()
    finally:
        torch.set_flush_denormal(False)
    assert prismm.matmul(A, B)[0, 0] == 3.0


def test_another_rounding_direction_is_detected():
    """fesetround(FE_UPWARD) in the calling thread."""
    program = """
import ctypes, ctypes.util, platform, sys
libm = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
import numpy as np, prismm
upward = {"x86_64": 0x800, "AMD64": 0x800, "aarch64": 0x400000, "arm64": 0x400000}[platform.machine()]
prismm.explain
assert libm.fesetround(upward) == 0
try:
    prismm.matmul(np.ones((2, 2)), np.ones((2, 2)))
except prismm.errors.EngineError as error:
    message = str(error)
else:
    message = "nothing was raised"
libm.fesetround(0)
print(message)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    if "KeyError" in ran.stderr or "OSError" in ran.stderr:
        pytest.skip("no way to change the rounding direction here")
    assert "does not round to nearest" in ran.stdout and "restore the default" in ran.stdout, ran


def test_torchs_flags_are_read_and_never_written():
    """float32 tensors are multiplied in full float32 although TF32-like products are allowed; the flag stays."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((30, 400)).astype(np.float32), rng.standard_normal((400, 30)).astype(np.float32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        c, report = prismm.matmul(torch.from_numpy(a), torch.from_numpy(b), full_output=True)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    from prismm.testing import exact_product

    assert exact_product(a, b).within(c.numpy(), report.bounds).all()
    assert (report.bounds <= 400 * 2.0**-24 * exact_product(a, b).magnitude("up") * 1.01).all()


def test_object_arrays_are_refused_without_looking_inside():
    class Trap:
        def __mul__(self, other: Any) -> Any:
            raise AssertionError("an element was used")

        __rmul__ = __add__ = __float__ = __mul__

    trap = np.array([[Trap()]], dtype=object)
    with pytest.raises(DTypeError, match="a has dtype object"):
        prismm.matmul(trap, np.ones((1, 1)))
    with pytest.raises(DTypeError, match="b has dtype object"):
        prismm.matmul(np.ones((1, 1)), trap)


def test_assertions_are_not_what_refuses():
    """python -O drops assertions; every refusal must survive it."""
    program = (
        "import numpy as np, prismm\n"
        "for keywords in ({'accuracy': -1}, {'engine': 'x'}, {'threads': 0}, {'out_dtype': 'int8'}, {'scheme': 3}):\n"
        "    try:\n        prismm.matmul(np.ones((2, 2)), np.ones((2, 2)), **keywords)\n"
        "    except prismm.errors.PrismmError as error:\n        print(type(error).__name__)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=120, check=True, env=os.environ
    )
    assert ran.stdout.split() == ["AccuracyError", "ArgumentError", "ArgumentError", "DTypeError", "ArgumentError"]


def test_lent_memory_lies_apart_from_everything_else():
    """Its contents are lost: no operand, addend or result may lie there, of whatever kind."""
    memory = np.zeros(1 << 16, np.uint8)
    inside = memory[4096 : 4096 + 72].view(np.float64).reshape(3, 3)
    x = np.ones((3, 3))
    keywords = {"scheme": prismm.Slices("int8", "DP"), "workspace": memory}
    y, torch_inside = torch.ones(3, 3, dtype=torch.float64), torch.from_numpy(inside)
    for name, call in (
        ("a", lambda: prismm.matmul(inside, x, **keywords)),
        ("b", lambda: prismm.matmul(y, torch_inside, **keywords)),
        ("c", lambda: prismm.gemm(x, x, inside, beta=1.0, **keywords)),
        ("out", lambda: prismm.matmul(x, x, out=inside, **keywords)),
        ("out", lambda: prismm.matmul(y, y, out=torch_inside, **keywords)),
    ):
        with pytest.raises(ArgumentError, match=f"the workspace overlaps {name}; pass memory of its own"):
            call()
    assert not memory.any()
    assert (prismm.matmul(x, x, out=np.empty((3, 3)), **keywords) == 3.0).all()


def test_a_factor_beyond_the_largest_float():
    with pytest.raises(ArgumentError, match="alpha is beyond the largest float"):
        prismm.gemm(A, B, alpha=10**5000)


def test_a_composite_scheme_names_the_variable_that_chose_its_engine(monkeypatch):
    monkeypatch.setenv("PRISMM_ENGINE", "abacus")
    with pytest.raises(ArgumentError, match="PRISMM_ENGINE='abacus'"):
        prismm.matmul(A, B, scheme=prismm.Words.tf32())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused():
    torch = pytest.importorskip("torch")
    nested = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(2, 2)])
    for keywords in ({}, {"reproducible": True}):
        with pytest.raises(PrismmError):
            prismm.matmul(nested, nested, **keywords)
