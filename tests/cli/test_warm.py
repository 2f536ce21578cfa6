"""``prismm warm``: what it refuses, and what it says while it compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from prismm.cli import warm as command
from prismm.core import cache_files
from prismm.cpu import warm as kernels
from prismm.errors import EngineError

Run = Callable[..., Any]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[str]]]:
    """What was to be compiled, by call: 3 kernels that nobody compiles. There is no GPU."""
    calls: list[dict[str, list[str]]] = []

    def compile_all(wanted: dict[str, list[str]], done: Callable[[str, int], None]) -> None:
        calls.append(wanted)
        for module, names in wanted.items():
            done(module, len(names))

    monkeypatch.setattr(kernels, "missing", lambda dtypes, engine: {"long": ["a", "b"], "single": ["c"]})
    monkeypatch.setattr(kernels, "compile_all", compile_all)
    monkeypatch.setattr(command, "_gpu_is_here", lambda: False)
    return calls


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--dtype", "int8"), "pass one of float32, float64"),
        (("--engine", "cpu:int9"), "did you mean 'cpu:int8'"),
        (("--engine", "simulated:volta"), "nothing to compile ahead"),
        pytest.param(
            ("--engine", "cuda:int8"), "there is no NVIDIA GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)  # fmt: skip
def test_what_is_refused(prismm_main: Run, compiled: list[Any], arguments: tuple[str, ...], why: str) -> None:
    assert why in prismm_main("warm", *arguments).refused() and compiled == []


def test_lines_without_a_terminal_and_none_when_quiet(prismm_main: Run, compiled: list[Any]) -> None:
    done = prismm_main("warm")
    assert (done.code, done.out) == (0, "") and len(compiled) == 1
    assert done.err == "prismm: this CPU: compiling 3 kernels\nprismm: this CPU: done\n"
    assert prismm_main("warm", "-q", "--dtype", "float64", "--dtype", "float32") == (0, "", "")
    assert len(compiled) == 2


def test_where_nothing_is_missing(prismm_main: Run, compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "missing", lambda dtypes, engine: {})
    assert prismm_main("warm") == (0, "", "prismm: this CPU: all kernels are on disk\n")
    assert compiled == []


def test_products_on_a_gpu(prismm_main: Run, compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type, order and target once; engines that serve some of them leave out the others."""
    calls: list[tuple[Any, ...]] = []

    def multiply(dtype: str, n: int, target: dict[str, Any], engine: str | None) -> list[EngineError]:
        calls.append((dtype, n, *target, engine))
        cache_files.announce("compiling kernels for this GPU (once): finish", always=True)
        return [EngineError("not by this engine")] if "float64" in dtype or engine == "cuda:bf16" else []

    monkeypatch.setattr(command, "_multiply", multiply)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU of tomorrow")
    done = prismm_main("warm", "--engine", "cuda", "--dtype", "float64", "--dtype", "float32")
    assert (done.code, done.out, compiled) == (0, "", [])
    assert done.err == ("prismm: GPU of tomorrow: compiling kernels of 24 products\nprismm: GPU of tomorrow: done\n")
    assert len(set(calls)) == 24 and {call[1] for call in calls} == set(command.ORDERS)
    refused = prismm_main("warm", "--engine", "cuda:bf16", "--dtype", "float32", "-q")
    assert "not by this engine" in refused.refused()


@pytest.mark.gpu
def test_a_gpu(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ORDERS", (64,))
    assert prismm_main("warm", "--engine", "cuda", "--dtype", "float32", "-q") == (0, "", "")
