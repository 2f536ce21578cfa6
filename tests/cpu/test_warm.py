"""Kernels compiled ahead: all that calls may need, and a later process finds them on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prismm.cpu import warm
from prismm.cpu.kernels import amx
from prismm.errors import EngineError
from tests.all_kernels import all_kernels

ALL = ("float32", "float64", "complex64", "complex128")

WARM = """
from prismm.cli import main
from prismm.cpu import warm
import sys
if __name__ == "__main__":
    warm.modules = lambda engine=None: ["long", "single"]
    sys.argv = ["prismm", "warm", "--engine", "cpu", "--dtype", {dtype!r}]
    main()
"""

LATER = """
from prismm.cpu import warm
for module in ("long", "single"):
    for name, kernel in warm.kernels_of(module).items():
        kernel.compile()
        print(name, sum(kernel._compiled.stats.cache_hits.values()))
"""


def test_they_are_all_kernels_of_products() -> None:
    found = {f"{module}.{name}" for module in warm.modules() for name in warm.kernels_of(module)}
    assert found == {name for name, kernel in all_kernels() if kernel.function.__module__.startswith("prismm.cpu.")}


def test_other_engines_kernels_are_left_out() -> None:
    direct, blas = set(warm.modules("cpu:direct")), set(warm.modules("cpu:blas"))
    assert direct - blas == {"blocks", "direct"} and not direct & {*warm.NEED_BYTES, *warm.NEED_AMX}
    assert {"join", "split", "single", "exact"} <= blas < set(warm.modules("cpu")) == set(warm.modules())


def test_an_engine_that_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "supported", lambda: False)
    assert "amx" not in warm.modules()
    with pytest.raises(EngineError, match=r"cpu:amx.*lacks"):
        warm.modules("cpu:amx")


@pytest.mark.parametrize("dtype", ALL)
def test_types_leave_out_what_serves_others_alone(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm.jit.Kernel, "is_on_disk", lambda kernel: False)
    monkeypatch.setattr(warm, "modules", lambda engine=None: ["packed", "single", "join"])
    some, every = warm.missing([dtype]), warm.missing(ALL)
    assert every == {module: list(warm.kernels_of(module)) for module in ("packed", "single", "join")}
    assert some["join"] == every["join"]
    assert ("single" in some) == (dtype in ("float32", "complex64"))
    assert ("pack_complex_left" in some["packed"]) == dtype.startswith("complex")
    assert ("pack_right_single" in some["packed"]) == (dtype in ("float32", "complex64"))


def test_what_is_on_disk_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "modules", lambda engine=None: ["long"])
    monkeypatch.setattr(warm.jit.Kernel, "is_on_disk", lambda kernel: kernel.function.__name__ != "long_round")
    told: list[tuple[str, int]] = []
    assert warm.missing(ALL) == {"long": ["long_round"]} and warm.missing([]) == {}
    compiled: list[object] = []
    monkeypatch.setattr(warm.jit.Kernel, "compile", lambda kernel: compiled.append(kernel))
    warm.compile_all(warm.missing(ALL), lambda *done: told.append(done))
    assert told == [("long", 1)] and compiled == [warm.kernels_of("long")["long_round"]]


def _run(code: str, cache: Path, folder: Path) -> tuple[str, str]:
    (folder / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, cwd=folder,
        env=os.environ | {"PRISMM_CACHE_DIR": str(cache), "PRISMM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
def test_a_later_process_compiles_nothing(tmp_path: Path) -> None:
    """The command fills a cache of its own, by two processes, and fills in what is missing when it runs again."""
    cache = tmp_path / "cache"
    out, err = _run(WARM.format(dtype="float64"), cache, tmp_path)
    assert out == "" and err.splitlines() == ["prismm: this CPU: compiling 4 kernels", "prismm: this CPU: done"]
    _, err = _run(WARM.format(dtype="float32"), cache, tmp_path)
    assert "compiling 4 kernels" in err  # those of `single`
    out, err = _run(LATER, cache, tmp_path)
    assert err == "" and out.split()[1::2] == ["1"] * 8
    _, err = _run(WARM.format(dtype="float32"), cache, tmp_path)
    assert err == "prismm: this CPU: all kernels are on disk\n"
