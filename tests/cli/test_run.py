"""``prismm run``: scripts as Python would run them, the table in three forms, and refusals before anything runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from prismm import Policy, Rule, emulate
from prismm.cli.rewriting import compiled
from prismm.cli.run_table import NOT_SEEN, base, cells, summary
from tests.cli.pages import parsed

SCRIPT = """
import argparse, sys
from helper import WIDTH

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
arguments = parser.parse_args()
import torch

class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, WIDTH), torch.nn.Linear(WIDTH, 2)
    def forward(self, x):
        return self.second(self.first(x).relu())

if __name__ == "__main__":
    model, x = MLP(), torch.ones(4, 6)
    for _ in range(arguments.epochs):
        model(x).square().sum().backward()
    torch.cdist(torch.ones(30, 4), torch.ones(30, 4))
    print("done", sys.argv[1:])
    sys.exit(3)
"""


@pytest.fixture
def script(folder: Path) -> str:
    (folder / "code").mkdir()
    (folder / "code" / "helper.py").write_text("WIDTH = 8\n")
    (folder / "code" / "train.py").write_text(SCRIPT)
    return "code/train.py"


def test_a_table(script: str, prismm_main: Callable) -> None:
    ran = prismm_main("run", "--accuracy", "correctly-rounded", script, "--epochs", 2)
    assert ran.code == 3, ran
    lines = ran.out.splitlines()
    assert lines[0] == "done ['--epochs', '2']"
    assert lines[1].startswith("10 products in ")
    table = [line.split() for line in lines[5:10]]
    assert {(row[0], row[1], row[2].rstrip(",")) for row in table} == {
        ("train.py:15", "first", "addmm"),
        ("train.py:15", "second", "addmm"),
        ("train.py:15", "first", "mm"),
        ("train.py:15", "second", "mm"),
    }
    assert all("½ ulp" in line and "residues:11" in line for line in lines[5:10])
    assert "not covered: 1 x _euclidean_dist, train.py:21: cdist" in ran.out
    assert lines[-1] == NOT_SEEN


def test_json_and_a_page(script: str, folder: Path, prismm_main: Callable) -> None:
    policy = Policy([Rule(module="second", off=True), Rule(accuracy=1e-3), Rule(module="third", off=True)])
    policy.save(folder / "p.json")
    ran = prismm_main("run", "--policy", "p.json", "--html", "page.html", "--json", script, "--epochs", 1)
    assert ran.code == 3 and "done ['--epochs', '1']" in ran.err
    content = json.loads(ran.out)
    assert content["exit"] == 3 and content["arguments"] == ["--epochs", "1"]
    rows = {(row["module"], row["backward"]): row for row in content["gemms"]}
    assert rows["first", False]["accuracy"] == "0.001" and rows["second", True]["scheme"] == "torch"
    assert rows["first", False]["bound"] == pytest.approx(1e-3, rel=1e-4) and rows["second", False]["bound"] is None
    assert content["unused_rules"] == [{"module": "third", "off": True}]
    assert [one["operator"] for one in content["unseen"]] == ["_euclidean_dist"]
    page = parsed(folder / "page.html")
    text = " ".join(page.text)
    assert page.count["svg"] == len(content["gemms"]) and "train.py:15" in text and "a rule decided nothing" in text
    assert "exists already" in prismm_main("run", "--html", "page.html", script, "--epochs", 1).refused()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--json", "--no-json"])
def test_one_rank_of_many_prints(form: str, script: str, folder: Path, prismm_main: Callable, monkeypatch) -> None:
    """The script's own words come from every rank, the table and the page from rank 0."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    more = ["--json"] if form == "--json" else []
    monkeypatch.setenv("RANK", "1")
    ran = prismm_main("run", "--html", "page.html", *more, script, "--epochs", 1)
    assert ran.code == 3 and "done" in ran.out + ran.err and not (folder / "page.html").exists()
    assert ran.out == ("" if more else "done ['--epochs', '1']\n")
    monkeypatch.setenv("RANK", "0")
    ran = prismm_main("run", "--html", "page.html", *more, script, "--epochs", 1)
    assert ran.code == 3 and "train.py:15" in ran.out and (folder / "page.html").exists()


NUMPY = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np

assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
found = [(a @ b)[0, 0], (a @ b * 2)[0, 0], np.dot(a, b)[0, 0]]
threading.Thread(target=lambda: print("late", (a @ b)[0, 0])).start()
with ThreadPoolExecutor(1) as pool:
    found += pool.map(lambda x: (x @ b)[0, 0], [a])
c = np.array([[2.0, 3.0]])
c @= np.eye(2)
print(found, c, [1] + [2])
"""


def test_products_of_numpy_and_of_threads(folder: Path, prismm_main: Callable) -> None:
    (folder / "numbers.py").write_text(NUMPY)
    ran = prismm_main("run", "--accuracy", "correctly-rounded", "--json", "numbers.py")
    assert ran.code == 0, ran
    one = "np.float64(1.0)"
    assert f"[{one}, np.float64(2.0), {one}, {one}] [[2. 3.]] [1, 2]" in ran.err and "late 1.0" in ran.err
    rows = {row["where"]: row["count"] for row in json.loads(ran.out)["gemms"]}
    assert rows == {"numbers.py:8": 3, "numbers.py:9": 1, "numbers.py:11": 1, "numbers.py:13": 1}
    assert not hasattr(np.matmul, "_original") and threading.Thread.start.__module__ == "threading"


END = """
import atexit, os, pathlib, sys, threading, types
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import numpy as np

a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))

def product():
    return (a @ b).item()

def fails():
    return a @ a

class Stop(BaseException):
    pass

if __name__ == "__main__":
    atexit.register(lambda: print("handler", product()))
    sys.excepthook = lambda kind, error, place: print("hook", error, place.tb_frame.f_code.co_name, place.tb_next)
    if not (child := os.fork()):
        sys.exit(4)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    threads, processes = ThreadPoolExecutor(2), ProcessPoolExecutor(1)
    print("threads", threads.submit(product).result(), "processes", processes.submit(abs, -3.0).result())
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    raise Stop("enough")
"""


@pytest.mark.slow
def test_the_end_is_pythons(folder: Path, prismm_process: Callable) -> None:
    """Executors are asked to finish, hooks and exit handlers are called, children list nothing, and then the table."""
    (folder / "end.py").write_text(END)
    ran = prismm_process("run", "--accuracy", "correctly-rounded", "end.py")
    assert ran.code == 1, ran
    lines = ran.out.splitlines()
    assert lines[:3] == ["handler 1.0", "child 4", "threads 1.0 processes 3.0"]
    assert lines[3:5] == ["hook enough <module> None", "handler 1.0"]
    assert lines[5].startswith("2 products in ") and ran.out.count(" products in ") == 1
    python = [line.strip() for line in ran.err.splitlines() if line.startswith("  File")]
    assert [line.rpartition(" ")[2] for line in python] == ["_bootstrap_inner", "run", "fails"]
    assert ran.err.count("Traceback") == 1 and "prismm" not in ran.err


def test_executors_that_nobody_shuts_down(folder: Path, prismm_main: Callable) -> None:
    """Of a run within another program, which goes on."""
    (folder / "pool.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(2)\n"
        "print(pool.submit(lambda: 3.0).result())\n"
    )
    ran = prismm_main("run", "pool.py")
    assert ran.code == 0 and ran.out.startswith("3.0\nno matrix products")
    assert threading.Thread.start.__module__ == "threading"


LANGUAGE = """
import os, pathlib, types
import numpy as np

a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
print(types.FunctionType((lambda a, b: a @ b).__code__, {})(a, b), eval((lambda: a @ b).__code__, {"a": a, "b": b}))
os.chdir("/")
print(pathlib.Path(__file__).exists(), __loader__.get_source("__main__")[:10] == "\\nimport os", __annotations__)
print(a @ [[1.0], [1.0], [1.0]], [[1e16, 1.0, -1e16]] @ b)
evaluated = []

def seen(x):
    evaluated.append(type(x).__name__)
    return x

class Layer:
    def __init__(self):
        self.__weight = np.ones((3, 3)) * [[1e16], [1.0], [-1e16]]
        before = self.__weight
        seen(self).__weight @= seen(np.eye(3))
        self.weight, self.same = self.__weight, before is self.__weight

layer = Layer()
rows = [a.repeat(3, 0), None]
first = rows[0]
seen(rows)[seen(0)] @= np.ones((3, 3))
name = first
name @= np.eye(3)
first[seen(slice(0, 2)), :] @= np.eye(3)
print(first.tolist(), name is first is rows[0], layer.same, evaluated)

import operator
print(a.dot(b).item(), operator.matmul(a, b).item(), (a.dot)(b, out=np.empty((1, 1))).item(), np.dot(a, b).item())
match operator.add:
    case operator.matmul:
        print("no")

class Other:
    dot = 5

    def __imatmul__(self, b):
        return "in place"

    def __matmul__(self, b):
        return "new"

other = Other()
print(other @ 2, other.dot, end=" ")
other @= 2
print(other)
for x, y in ((np.eye(2, dtype=int), np.eye(2)), (np.eye(2), np.ones(2)), (np.ones((2, 3)), np.ones((3, 2)))):
    try:
        x @= y
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_what_replaces_the_operators_is_python(folder: Path, prismm_main: Callable) -> None:
    (folder / "language.py").write_text(LANGUAGE)
    ran = prismm_main("run", "--accuracy", "correctly-rounded", "language.py")
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert lines[:3] == ["[[1.]] [[1.]]", "True True {}", "[[1.]] [[1.]]"]
    once = ["Layer", "ndarray", "list", "int", "slice"]
    assert lines[3] == f"{[[1.0, 1.0, 1.0]] * 3} True True {once}"
    assert lines[4:6] == ["1.0 1.0 1.0 1.0", "new 5 in place"]
    expected = []
    for x, y in ((np.eye(2, dtype=int), np.eye(2)), (np.eye(2), np.ones(2)), (np.ones((2, 3)), np.ones((3, 2)))):
        with pytest.raises((ValueError, TypeError)) as error:
            x @= y
        expected.append(f"{type(error.value).__name__} {error.value}")
    assert lines[6:9] == expected


@pytest.mark.parametrize("more", ["", "\nimport numpy as np\ny = np.eye(2) @ np.eye(2)"])
def test_long_expressions(more: str, folder: Path, prismm_main: Callable) -> None:
    (folder / "long.py").write_text(f"x = 1\ns = {' + '.join(['x'] * 900)}{more}\nprint(s)\n")
    ran = prismm_main("run", "long.py")
    assert ran.code == 0 and ran.out.startswith("900\n"), ran


def test_functions_that_are_compiled_are_as_they_were() -> None:
    source = b"@numba.njit(parallel=True)\ndef f(a, b):\n    return a @ b\ndef g(a, b):\n    return a @ b\n"
    functions = [one for one in compiled(source, "s.py").co_consts if hasattr(one, "co_names")]
    assert [one.co_names for one in functions] == [(), ("__prismm_product__",)]


def test_a_script_that_is_no_python(folder: Path, prismm_main: Callable) -> None:
    (folder / "bad.py").write_text("x = 1\nif x\n")
    ran = prismm_main("run", "bad.py")
    assert ran.code == 1 and "SyntaxError: expected ':'" in ran.err and "bad.py" in ran.err
    assert "script.py" not in ran.err


def test_failures_are_the_scripts(folder: Path, prismm_main: Callable) -> None:
    (folder / "fails.py").write_text("import torch\ntorch.ones(2, 2) @ torch.ones(2, 2)\nraise KeyError('lost')\n")
    ran = prismm_main("run", "--off", "fails.py")
    assert ran.code == 1 and "1 products in" in ran.out
    assert ran.err.startswith("Traceback") and "KeyError: 'lost'" in ran.err and "runpy" not in ran.err
    (folder / "leaves.py").write_text("import sys\nsys.exit('enough')\n")
    ran = prismm_main("run", "leaves.py")
    assert ran.code == 1 and ran.err == "enough\n" and ran.out.startswith("no matrix products")


def test_refusals(script: str, folder: Path, prismm_main: Callable) -> None:
    (folder / "bad.json").write_text('{"kind": "prismm.Policy", "version": 9, "rules": []}')
    for arguments, words in (
        (["nothing.py"], "no such script"),
        (["--policy", "bad.json", script], "bad.json: a policy of version 9"),
        (["--policy", "none.json", script], "No such file"),
        (["--policy", "bad.json", "--accuracy", "fast", script], "pass one of them"),
        (["--off", "--scheme", "native", script], "pass one of them"),
        (["--accuracy", "exact", script], "accuracy 'exact'"),
        (["--scheme", "fp8", script], "scheme 'fp8'"),
        (["--scheme", "words:tf32x3", "--reproducible", script], "not reproducible"),
    ):
        assert words in prismm_main("run", *arguments).refused()


def test_seconds_of_many_threads_have_no_share() -> None:
    with emulate("native") as record:
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert summary(record).count(" s of ") == 1 and cells(record.rows[0], base(record))[-1].endswith("%")
    record.wall_seconds = record.seconds / 2
    assert "thread-seconds, of a run of" in summary(record) and cells(record.rows[0], base(record))[-1] == ""
