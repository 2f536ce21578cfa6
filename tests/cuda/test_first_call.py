"""What the first call of a kind compiles, how it is told, and in which order kernels' sources are read."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch

import prismm
from prismm.core import cache_files
from prismm.cuda.launch import compile as compiling
from prismm.cuda.launch.program import Program
from tests.cuda.harness.pretended import GPUS, pretended

pytest.importorskip("triton")

ONE = {"multiply_directly", "multiply_by_groups"}
REPAIR = {"magnitude_planes", "repair_strips"}


@pytest.mark.parametrize(
    ("dtype", "keywords", "absent", "present"),
    [
        (torch.float64, {}, set(), ONE),
        (
            torch.float64,
            {"accuracy": "correctly-rounded"},
            {"magnitude_planes"},
            {"rejoin_tiles", "finish", "repair_strips"},
        ),
        (torch.float32, {"reproducible": True}, {"rejoin_tiles"}, REPAIR),
        (
            torch.float32,
            {"accuracy": "correctly-rounded"},
            {"rejoin_tiles", "magnitude_planes"},
            {"finish", "repair_strips"},
        ),
    ],
)
def test_a_call_compiles_what_it_launches_and_nothing_else(tmp_path, monkeypatch, dtype, keywords, absent, present):
    programs, asked = [], []
    with pretended(GPUS["H100"], tmp_path):
        monkeypatch.setattr(Program, "run", lambda program, *_: programs.append(program))
        x = torch.ones(512, 512, dtype=dtype)
        prismm.matmul(x, x, **keywords)
    (program,) = programs
    monkeypatch.setattr(Program, "_compile", lambda program, launch: asked.append(launch))
    program._compile_all(program._kernels())
    names = {launch.kernel.fn.__name__ for launch in asked}
    assert names == {launch.kernel.fn.__name__ for launch in program.launches if hasattr(launch, "kernel")}
    assert len(asked) == len({id(launch) for launch in asked}) and not names & absent
    assert names & present if present is ONE else present <= names
    assert present is not ONE or len(names) == 1


def promise(done: bool) -> SimpleNamespace:
    future: Future[None] = Future()
    if done:
        future.set_result(None)
    return SimpleNamespace(future=future)


def test_kernels_that_are_compiled_are_named_once(monkeypatch, capfd):
    monkeypatch.setattr(compiling, "_LOADED", 0.01)
    slow = promise(False)
    found = [("split", promise(True)), ("join", slow), ("finish", promise(False)), ("join", slow), ("old", object())]
    for _ in range(2):  # another program's, later: told again
        compiling.announce(found)
        assert capfd.readouterr().err == "prismm: compiling kernels for this GPU (once): join, finish\n"
    heard: list[str] = []
    with cache_files.announced_to(heard.append):
        compiling.announce(found)
    assert heard == ["compiling kernels for this GPU (once): join, finish"] and capfd.readouterr().err == ""


def test_what_is_loaded_from_disk_is_not_told(monkeypatch, capfd):
    compiling.announce([("split", promise(True)), ("join", object())])
    compiling.announce([])
    assert capfd.readouterr() == ("", "")


def test_sources_are_read_one_at_a_time():
    inside, most = [], []

    class Source:
        def make_ir(self, number):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)
            return number

    source = compiling._in_turn(Source)()
    assert isinstance(source, Source) and source.make_ir(5) == 5
    threads = [threading.Thread(target=source.make_ir, args=(i,)) for i in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert most == [1] * 9


def test_a_source_that_cannot_be_read_lets_the_next_one_in():
    class Source:
        def make_ir(self, number):
            return 1 // number

    source = compiling._in_turn(Source)()
    with pytest.raises(ZeroDivisionError):
        source.make_ir(0)
    assert source.make_ir(1) == 1
