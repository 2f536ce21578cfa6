"""What the first call of a kind compiles, how it is told, and in which order kernels' sources are read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch

import prismm
from prismm.core import cache_files
from prismm.cuda.launch import compile as compiling
from prismm.cuda.launch import later
from prismm.cuda.launch.program import Program
from tests.cuda.harness.pretended import GPUS, load_all, pretended

pytest.importorskip("triton")
from triton.runtime.driver import driver as triton_driver

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
    # A patch of its own, which is undone first: the GPU that is pretended has Program.run patched already.
    with pretended(GPUS["H100"], tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "run", lambda program, *_: programs.append(program))
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


def test_sources_are_read_first_of_kernels_that_are_compiled_longest(tmp_path, monkeypatch):
    """Of complex products the joins take longest, of real ones the repair; each launch keeps its own kernel."""
    for dtype, first in ((torch.complex128, ["rejoin_tiles", "finish"]), (torch.float64, ["repair_strips", "finish"])):
        programs, asked = [], []
        with pretended(GPUS["H100"], tmp_path), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Program, "run", lambda program, *_, programs=programs: programs.append(program))
            x = torch.ones(512, 512, dtype=dtype)
            prismm.matmul(x, x, accuracy="correctly-rounded")

        def compile_one(program, launch, asked=asked):
            asked.append(launch.kernel.fn.__name__)
            return launch

        monkeypatch.setattr(Program, "_compile", compile_one)
        found = programs[0]._compile_all(programs[0]._kernels())
        assert asked[:2] == first
        assert [launch for launch, _ in found] == list(programs[0]._kernels()) and all(x is y for x, y in found)


def test_kernels_that_are_compiled_long_are_there():
    load_all()
    named = {name for module in list(sys.modules.values()) if module.__name__.startswith("prismm.cuda") for name, x in
             vars(module).items() if hasattr(x, "fn") and hasattr(x, "cache_key")}  # fmt: skip
    assert set(compiling._TAILS) <= named


@pytest.fixture
def program(monkeypatch):
    """A program of three launches, the last two of them put off; what was compiled for which device; and what lets the
    compilation of those go on.
    """
    found, may_end = Program(), threading.Event()
    compiled: list[tuple[str, int]] = []
    plain, slow, rare = (SimpleNamespace(fn=SimpleNamespace(__name__=name)) for name in ("plain", "slow", "rare"))

    def compile_one(program, launch):
        if threading.current_thread().name == "prismm-compile-later":
            with later.front_end():
                may_end.wait(60)
        compiled.append((launch.kernel.fn.__name__, launch.constants["WAYS"]))
        return launch.constants["WAYS"]

    monkeypatch.setenv("PRISMM_COMPILE", "")
    monkeypatch.setattr(Program, "_compile", compile_one)
    monkeypatch.setattr("prismm.cuda.launch.program.load", lambda ways, grid, arguments: ready(ways))
    monkeypatch.setattr("prismm.cuda.launch.program.compiled_queue", lambda: None)
    gpu = SimpleNamespace(get_current_device=lambda: 3, set_current_device=lambda x: compiled.append(("gpu", x)))
    monkeypatch.setattr(triton_driver, "_active", gpu)
    found.launch(plain, (1,), WAYS=1)
    found.launch_compiled_later({"WAYS": 2}, slow, (1,), WAYS=5)
    found.launch_compiled_later(None, rare, (1,), WAYS=7)
    yield found, compiled, may_end
    may_end.set()
    later.finish()


def ready(ways):
    return SimpleNamespace(slots=[], maps=[], ways=ways)


def launched(program):
    return [None if launch.now is None else launch.now.ways for launch in program.launches]


def test_first_calls_launch_what_is_compiled_soon(program, monkeypatch, capfd):
    found, compiled, may_end = program
    made = []
    monkeypatch.setattr("prismm.cuda.launch.program.is_capturing", lambda stream: False)
    monkeypatch.setattr(Program, "_make_graph", lambda program, key, bases: made.append(bases))
    found._fill((0,))
    assert launched(found) == [1, 2, None] and not found._is_complete
    assert sorted(compiled) == [("gpu", 3), ("gpu", 3), ("plain", 1), ("slow", 2)]
    assert "once, beside further calls): rare, slow\n" in capfd.readouterr().err
    # No graph keeps what is launched meanwhile.
    found._called = True
    assert not found.launch_at_once((0, 0, 0, 0), 0) and not made
    found._fill((0,))
    assert launched(found) == [1, 2, None] and capfd.readouterr().err == ""
    may_end.set()
    later.finish()
    found._fill((0,))
    assert launched(found) == [1, 5, 7] and found._is_complete
    assert sorted(ways for name, ways in compiled if name in ("slow", "rare")) == [2, 5, 7]


def test_what_is_put_off_is_taken_all_at_once(program):
    """One of these kernels may need what another one does."""
    found, _, may_end = program
    found._fill((0,))
    first, second = found.launches[1:]
    first.promise = Future()
    first.promise.set_result(5)
    found._fill((0,))
    assert launched(found) == [1, 2, None] and not second.is_compiled
    may_end.set()


def test_a_capture_waits_for_all_kernels(program, monkeypatch):
    found, _, may_end = program
    monkeypatch.setattr(Program, "_queue", lambda program, bases, stream, captured: None)
    found.run((0, 0, 0, 0), 0, False)
    assert launched(found) == [1, 2, None]
    threading.Timer(0.2, may_end.set).start()
    found.run((0, 0, 0, 0), 0, True)
    assert launched(found) == [1, 5, 7]


def test_calls_go_on_without_what_cannot_be_compiled(program, monkeypatch, capfd):
    """Whoever has to have it tries again, and is told."""
    found, _, may_end = program
    may_end.set()
    compile_one, wrong = Program._compile, [OSError("no room"), OSError("no room")]

    def refuse(program, launch):
        if launch.constants["WAYS"] > 2 and wrong:
            raise wrong.pop()
        return compile_one(program, launch)

    monkeypatch.setattr(Program, "_compile", refuse)
    for _ in range(3):
        found._fill((0,))
        later.finish()
        assert launched(found) == [1, 2, None] and not found._is_complete
    assert capfd.readouterr().err.count("a kernel was not compiled, and calls go on without it") == 1
    wrong += [OSError("no room either")]
    with pytest.raises(prismm.errors.EngineError, match="no room either"):
        found._fill((0,), complete=True)
    found._fill((0,), complete=True)
    assert launched(found) == [1, 5, 7]


def test_calls_wait_where_the_environment_says_so(program, monkeypatch, capfd):
    found, compiled, may_end = program
    monkeypatch.setenv("PRISMM_COMPILE", "first")
    threading.Timer(0.2, may_end.set).start()
    found._fill((0,))
    assert launched(found) == [1, 5, 7] and ("slow", 2) not in compiled
    assert "beside" not in capfd.readouterr().err


def test_the_environment_has_to_be_understood(monkeypatch):
    monkeypatch.setenv("PRISMM_COMPILE", "later")
    with pytest.raises(prismm.errors.ArgumentError, match="PRISMM_COMPILE='later' is not known; set it to first"):
        later.goes_on()


def test_sources_that_calls_wait_for_are_read_first():
    order = []

    def compile_one():
        with later.front_end():
            order.append("later")
        return 7

    with later.awaited():
        promise = later.begin("one", compile_one)  # returns, though nothing is read yet
        with later.front_end():
            order.append("first")
        time.sleep(0.05)
        assert not promise.done()
    assert promise.result(60) == 7 and order == ["first", "later"]


def test_a_call_waits_for_one_reading_at_most():
    """Kernels that are compiled beside calls queue for their turn behind any call."""
    order, reading, may_end = [], threading.Event(), threading.Event()

    def compile_one():
        with later.front_end():
            order.append("later")
            reading.set()
            may_end.wait(60)

    with later.awaited():
        promises = [later.begin(number, compile_one) for number in range(5)]
    reading.wait(60)
    with later.awaited():
        threading.Timer(0.05, may_end.set).start()
        with later.front_end():
            order.append("call")
    for promise in promises:
        promise.result(60)
    assert order == ["later", "call", *["later"] * 4]


def test_a_kernel_of_many_programs_is_compiled_once_at_a_time():
    """The second finds what the first has compiled."""
    compiled, inside, most = [], [], []

    def compile_one():
        if compiled:
            return compiled[0]
        with later.front_end():
            pass
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        compiled.append(5)
        return 5

    with later.awaited():
        promises = [later.begin("one", compile_one) for _ in range(5)]
    assert [promise.result(60) for promise in promises] == [5] * 5 and len(compiled) == 1 and most == [1]


def test_a_kernel_on_disk_is_there_at_once_and_errors_are_kept():
    with later.awaited():
        assert later.begin("one", lambda: 5).result(0) == 5

        def refused():
            raise OSError("no room")

        promise = later.begin("one", refused)
    with pytest.raises(OSError, match="no room"):
        promise.result(0)
    later.finish()
    assert not later._RUNNING


def test_many_kernels_are_put_off_while_a_call_waits():
    """Each has a thread of its own: in a pool they would wait for the call, and the call for the last of them."""

    def compile_one():
        with later.front_end():
            return 1

    with later.awaited():
        promises = [later.begin(number, compile_one) for number in range(40)]
        assert not any(promise.done() for promise in promises)
    assert sum(promise.result(60) for promise in promises) == 40


FIRST_CALLS = """
import numpy as np, torch, prismm
from prismm.cuda.launch import later
from prismm.testing import HOSTILE
a, b = (torch.from_numpy(x).cuda() for x in HOSTILE["phi4"](300, 300, 300, seed=1))
found = [prismm.matmul(a, b, accuracy="correctly-rounded")]
assert later._RUNNING, "all kernels were there"
found.append(prismm.gemm(a, b, a, alpha=0.5, beta=0.3, accuracy="correctly-rounded"))
if CAPTURES:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found.append(prismm.matmul(a, b, accuracy="correctly-rounded"))
    graph.replay()
later.finish()
for _ in range(3):
    found.append(prismm.matmul(a, b, accuracy="correctly-rounded"))
    found.append(prismm.gemm(a, b, a, alpha=0.5, beta=0.3, accuracy="correctly-rounded"))
x, y = a.cpu().numpy(), b.cpu().numpy()
products = prismm.matmul(x, y, accuracy="correctly-rounded"), prismm.gemm(
    x, y, x, alpha=0.5, beta=0.3, accuracy="correctly-rounded"
)
kinds = [0, 1, *([0] if CAPTURES else []), *[0, 1] * 3]
print([np.array_equal(one.cpu().numpy(), products[kind]) for one, kind in zip(found, kinds, strict=True)])
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("captures", [False, True])
def test_calls_and_captures_have_their_bits_while_kernels_are_compiled(captures, tmp_path):
    """In a process that finds no kernel on disk."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PRISMM_COMPILE": ""}
    script = f"CAPTURES = {captures}" + FIRST_CALLS
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([True] * (9 if captures else 8))


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
