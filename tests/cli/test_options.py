"""Options that a command would ignore are refused, before any work; names of engines, and what is said of others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.core.extras import install

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (("bench", *given), f"{given[0]} is for whole programs; leave it out, or pass apps: prismm bench apps")
            for given in [("--quick",), ("--only", "mlp"), ("--plot", "p.png"), ("--device", "cpu")]
        ),
        *(
            (("bench", "apps", *given), f"{given[0]} is for random matrices; leave it out, or leave out apps")
            for given in [
                ("--sizes", "64"), ("--dtype", "float64"), ("--accuracy", "fast"), ("--scheme", "auto"),
                ("--engine", "cpu"), ("--threads", "1"),
            ]
        ),
        *(
            (("simulate", "--list", *given), f"{given[0]} is of no use to --list")
            for given in [("--a", "1"), ("--random", "3"), ("--html", "p.html"), ("--output", "c.npy"), ("--round",)]
        ),
        (("simulate", "a100.fp16.fp32", "a.npy", "a.npy", "--seed", "1"), "--seed is for single dot products"),
        (("simulate", "a100.fp16.fp32", "a.npy", "a.npy", "--steps"), "--steps is for single dot products"),
        (("simulate", "a100.fp16.fp32", "--a", "1", "--b", "1", "--seed", "1"), "--seed is for random terms"),
        (("probe", "--suite", "--seed", "1"), "--seed is for finding a model; leave it out, or --suite"),
        (("probe", "--suite", "--refutations", "1"), "--refutations is for finding a model"),
        (("reproduce", "--out", "."), "--out needs the NAME of an experiment; leave it out to list"),
        (("reproduce", "--list", "--seed", "1"), "--seed needs the NAME of an experiment"),
        (("simulate", "a100.fp16.fp32", "--seed", "1"), "--seed is for random terms; leave it out, or pass --random"),
        (("explain", "a.npy", "a.npy", "--dtype", "float32"), "--dtype is the type of shapes"),
        *(
            ((given[0], "--force", *given[1:]), f"--force replaces what {names} names; pass that, or leave --force out")
            for given, names in [
                (("check", "a.npy", "a.npy", "a.npy"), "--html or --plot"), (("run", "s.py"), "--html"),
                (("tune", "s.py", "--tolerance", "1"), "--output"), (("simulate", "a100.fp16.fp32"), "--html"),
                (("probe", "a100.fp16.fp32"), "--output-model or --html"),
                (("reproduce", "tf32-tf64"), "--html"),
            ]
        ),
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(prismm_main: Run, arguments: tuple[str, ...], message: str) -> None:
    np.save("a.npy", np.eye(3))
    assert message in prismm_main(*arguments).refused()


def test_defaults_are_no_options(prismm_main: Run) -> None:
    assert prismm_main("simulate", "--list", "a100").code == 0
    assert prismm_main("explain", "a.npy", "3x3", "--dtype", "float32").refused().startswith("prismm: error: a.npy")
    assert (
        len(prismm_main("bench", "--sizes", "8", "--accuracy", "native", "--rounds", "2", "--json").json()["rows"]) == 1
    )


VERBS = [
    ("explain", "3x3", "3x3"),
    ("multiply", "a.npy", "a.npy", "-o", "c.npy"),
    ("bench", "--sizes", "8", "--accuracy", "native", "--rounds", "2"),
    ("run", "s.py"),
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_engines_of_a_command(prismm_main: Run, verb: tuple[str, ...]) -> None:
    np.save("a.npy", np.eye(3))
    told = (
        prismm_main(*verb, "--engine", "cpu:int9").refused() if verb[0] != "run" else _of_run(prismm_main, "cpu:int9")
    )
    assert "unknown engine 'cpu:int9' (did you mean 'cpu:int8'?)" in told
    for name in ("'cpu:vnni'", "'cpu:blas'", "'cuda:int8'", "'simulated:NAME'"):
        assert name in told
    if verb[0] != "run":  # a script may have tensors on a GPU
        told = prismm_main(*verb, "--engine", "cuda:int8").refused()
        assert "engine 'cuda:int8' multiplies tensors on a GPU, and these operands are in main memory" in told
        assert prismm_main(*verb, "--engine", "cpu", *(["--force"] if verb[0] == "multiply" else [])).code == 0


def _of_run(prismm_main: Run, engine: str) -> str:
    with open("s.py", "w") as script:
        script.write("raise SystemExit('the script ran')\n")
    told: str = prismm_main("run", "--engine", engine, "s.py").refused()
    return told


def test_every_engine_that_env_lists_is_an_engine(prismm_main: Run) -> None:
    found = prismm_main("env", "--json").json()["engines"]
    assert found["cuda"] and "cpu:blas" in found
    for name in (*found["simulated"].split(", "), *(x for x in found if x not in ("cuda", "simulated"))):
        prismm.Policy.of("native", engine=name)


WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):  # as in an environment without the package
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ("torch", "triton") else super().find_spec(name, path, target)
sys.meta_path[:] = [Finder if x is PathFinder else x for x in sys.meta_path if "editable" not in repr(x)]
import numpy as np, prismm
from prismm.core.extras import install
from prismm.errors import EngineError
rng = np.random.default_rng(0)
a, b = rng.standard_normal((40, 70)).astype(np.float32), rng.standard_normal((70, 50)).astype(np.float32)
for level in (1, 2, 3, 4):
    c, report = prismm.matmul(a, b, scheme=prismm.TileInt8(level=level), full_output=True)
    print(c.tobytes().hex())
    assert prismm.testing.exact_product(a, b).within(c, report.bounds).all()
class OnGpu:  # what CuPy's arrays say of themselves
    def __dlpack__(self, **_): raise AssertionError("it was read")
    def __dlpack_device__(self): return 2, 0
try:
    prismm.matmul(OnGpu(), OnGpu())
except EngineError as error:
    assert str(error).startswith("a product of arrays on a GPU needs torch, which is not installed; install"), error
else:
    raise AssertionError("multiplied")
for name in ("emulate", "compile"):
    try:
        getattr(prismm, name)
    except EngineError as error:
        missing = f"needs torch, which is not installed; install it with: {install('torch')}"
        assert str(error) == f"prismm.{name} {missing}"
    else:
        raise AssertionError(name)
from prismm.cli import command
for arguments in (["env"], ["run", "s.py"], ["tune", "s.py", "--tolerance", "1"], ["calibrate"], ["bench", "apps"]):
    sys.argv = ["prismm", *arguments]
    try:
        command()
    except SystemExit as end:
        print(*arguments, end.code, file=sys.stderr)
"""


@pytest.mark.slow
def test_without_torch(folder: Any) -> None:
    """Products of arrays have the bits that they have beside torch; what is about torch says that it is missing."""
    (folder / "s.py").write_text("fn = abs\ninputs = [1]\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 70)).astype(np.float32), rng.standard_normal((70, 50)).astype(np.float32)
    lines = done.stdout.splitlines()
    for level in (1, 2, 3, 4):
        assert lines[level - 1] == prismm.matmul(a, b, scheme=prismm.TileInt8(level=level)).tobytes().hex()
    assert done.stdout.count("not usable: torch is not installed") == 3  # cpu:int8, cpu:int8-7bit, cuda
    missing = f"needs torch, which is not installed; install it with: {install('torch')}"
    words = [line for line in done.stderr.splitlines() if "compiling" not in line]
    assert words == [
        "env 0",
        f"prismm: error: prismm.emulate {missing}", "run s.py 2",
        f"prismm: error: prismm.tune {missing}", "tune s.py --tolerance 1 2",
        f"prismm: error: prismm calibrate {missing}", "calibrate 2",
        f"prismm: error: prismm bench apps {missing}", "bench apps 2",
    ]  # fmt: skip
