"""Checks of the floating-point environment: what spoils exactness is noticed, and nothing is written."""

import ctypes
import ctypes.util
import subprocess
import sys

import pytest

from prismm.core import environment
from prismm.errors import EngineError

_ROUNDINGS = {"down": 0x400, "up": 0x800, "towards zero": 0xC00}


def test_the_default_environment_passes():
    assert environment.check_arithmetic() is None


def test_flushed_subnormals_are_noticed():
    import torch

    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush")
    try:
        with pytest.raises(EngineError, match="set_flush_denormal"):
            environment.check_arithmetic()
    finally:
        torch.set_flush_denormal(False)
    environment.check_arithmetic()


@pytest.mark.parametrize("way", _ROUNDINGS)
def test_another_rounding_is_noticed(way):
    import platform

    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        pytest.skip("the codes of fesetround are those of x86")
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    assert libm.fesetround(_ROUNDINGS[way]) == 0
    try:
        with pytest.raises(EngineError, match="round to nearest"):
            environment.check_arithmetic()
    finally:
        libm.fesetround(0)
    environment.check_arithmetic()


def test_reduced_float32_modes_are_noticed(monkeypatch):
    import torch

    monkeypatch.delenv("ONEDNN_DEFAULT_FPMATH_MODE", raising=False)
    assert environment.reduced_float32() is None
    for mode, harmless in (("STRICT", True), ("strict", True), ("BF16", False), ("ANY", False), ("tf32", False)):
        monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", mode)
        reason = environment.reduced_float32()
        assert (reason is None) == harmless and (harmless or mode.upper() in reason)
    monkeypatch.delenv("ONEDNN_DEFAULT_FPMATH_MODE")
    before = torch.get_float32_matmul_precision()
    try:
        for old, new in (("high", "tf32"), ("medium", "bf16")):
            torch.set_float32_matmul_precision(old)
            assert f"fp32_precision is {new!r}" in environment.reduced_float32()
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_check_does_not_load_torch():
    code = (
        "import sys; from prismm.core import environment as e; e.check_arithmetic(); e.reduced_float32(); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
