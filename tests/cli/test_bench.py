"""``prismm bench``: random matrices in this process and on ranks, what it says, and rows of a run that is cut."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prismm
from prismm.core.extras import install

Run = Callable[..., Any]


def test_bench_gives_ratio_spread_and_error_in_one_table(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prismm.cli.bench_products._SECONDS", 0.0)
    arguments = ("bench", "--sizes", "16,40", "--rounds", 3, "--csv", "times.csv")
    done = prismm_main(*arguments, "--accuracy", "correctly-rounded", "--accuracy", "1e-9", "--json")
    rows = done.json()["rows"]
    assert [(row["n"], row["accuracy"]) for row in rows] == [
        (n, accuracy) for n in (16, 40) for accuracy in ("correctly-rounded", "1e-9")
    ]
    for row in rows:
        assert row["ratio_p20"] <= row["ratio"] <= row["ratio_p80"]
        assert row["prismm_seconds"] > 0 < row["native_seconds"]
    assert all(row["prismm_max_ulps"] <= 0.5 for row in rows if row["accuracy"] == "correctly-rounded")
    assert "device" in done.json()["machine"]
    with open("times.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["ratio"]) for row in table] == [row["ratio"] for row in rows]
    assert all(row["torch"] and row["device"] for row in table)
    for dtype in ("float32", "complex64"):
        done = prismm_main("bench", "--sizes", "20", "--rounds", 1, "--dtype", dtype)
        assert done.code == 0
        assert "correctly-rounded" in done.out and "native ulps" in done.out


def test_bench_says_what_it_times_and_ends_in_time(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its table holds what was timed until then."""
    monkeypatch.setattr("prismm.cli.bench_products._SECONDS", 0.0)
    arguments = ("bench", "--sizes", "16,40", "--rounds", 1, "--accuracy", "native", "--csv", "t.csv")
    said = prismm_main(*arguments).err.splitlines()
    assert said[0] == (
        "prismm: timing NumPy's product and prismm's (native) in turn: float64, n = 16, 40, 1 rounds each"
    )
    assert [line.partition(":")[2].partition(":")[0] for line in said[1:3]] == [" n = 16, native", " n = 40, native"]
    assert said[3:] == ["prismm: wrote t.csv"]
    said = prismm_main(*arguments, "--seconds", "0").err.splitlines()
    assert said[2:] == ["prismm: out of time before n = 40, native", "prismm: wrote t.csv"]
    with open("t.csv", newline="") as stream:
        assert [row["n"] for row in csv.DictReader(stream)] == ["16"]
    assert prismm_main(*arguments[:-2], "--json").err == ""


def test_bench_of_a_scheme(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own value, or a target with it; on a simulated engine too."""
    monkeypatch.setattr("prismm.cli.bench_products._SECONDS", 0.0)
    common = ("bench", "--sizes", "16", "--rounds", 1, "--dtype", "float32", "--json")
    (row,) = prismm_main(*common, "--scheme", "words:fp16x3", "--engine", "simulated:volta").json()["rows"]
    assert (row["accuracy"], row["scheme"], row["engine"]) == ("own value", str(prismm.Words.fp16()), "simulated:volta")
    (row,) = prismm_main(*common, "--scheme", "scaled-half", "--accuracy", "correctly-rounded").json()["rows"]
    assert (row["scheme"], row["prismm_max_ulps"] <= 0.5) == (str(prismm.ScaledHalf()), True)


def test_bench_refuses(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prismm.cli.bench_products._operands", lambda *arguments: pytest.fail("it was timed first"))
    for arguments, what in [
        (("--sizes", "0"), "sizes '0'"),
        (("--sizes", "big"), "sizes 'big'"),
        (("--dtype", "float16"), "dtype 'float16'"),
        (("--accuracy", "best"), "accuracy 'best'"),
        (("--csv", "no/x.csv"), "there is no directory no"),
        (("--csv", "."), ".: is a directory; pass the name of a file"),
        (("--csv", "x" * 300), "a name of 300 bytes is too long here"),
        (("--scheme", "words:tf32x5"), "products=5"),
    ]:
        assert what in prismm_main("bench", *arguments).refused()
    monkeypatch.undo()
    arguments = ("--engine", "abacus", "--sizes", "8", "--accuracy", "native")
    assert "abacus" in prismm_main("bench", *arguments).refused()


def test_bench_of_programs_refuses(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("subprocess.run", lambda *arguments, **rest: pytest.fail("it was run first"))
    said = prismm_main("bench", "apps", "--only", "cholesky,knn-digit").refused()
    assert "no program 'knn-digit' (did you mean 'knn-digits'?); pass some of hpl-mxp,cholesky," in said
    monkeypatch.setattr("prismm.cli.bench_apps.is_installed", lambda name: name != "matplotlib")
    said = prismm_main("bench", "apps", "--plot", "apps.png").refused()
    assert said == f"prismm: error: --plot needs matplotlib; install it with: {install('plot')}\n"
    monkeypatch.setattr("prismm.cli.bench_apps.is_installed", lambda name: False)
    assert "prismm bench apps needs torch" in prismm_main("bench", "apps").refused()


def test_bench_of_ranks(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun starts it, with one rank; without torchrun it says how."""
    assert "torchrun --nproc-per-node 2" in prismm_main("bench", "distributed").refused()
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, str(value))
    arguments = ("bench", "distributed", "--sizes", "20,30", "--rounds", 1, "--csv", "ranks.csv")
    done = prismm_main(*arguments)
    assert done.code == 0 and "sent" in done.out
    said = done.err.splitlines()
    assert said[0].startswith(
        "prismm: timing torch's product and prismm's (native, reproducible, correctly-rounded) on 1"
    )
    assert len(said) == 1 + 2 * 2 * 3 + 1 and said[-1] == "prismm: wrote ranks.csv"
    assert said[1].startswith("prismm: rows, strong scaling, 1 rank, n = 20, native: torch ")
    with open("ranks.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert {(row["sharding"], row["n"]) for row in table} == {
        ("rows", "20"),
        ("rows", "30"),
        ("inner", "20"),
        ("inner", "30"),
    }
    assert all(float(row["prismm_seconds"]) > 0 and float(row["prismm_scaling"]) == 1.0 for row in table)
    assert "--only is for whole programs" in prismm_main("bench", "distributed", "--only", "mlp").refused()
    with monkeypatch.context() as patch:
        patch.setattr("prismm.cli.bench_distributed.is_installed", lambda name: name != "matplotlib")
        assert "--plot needs matplotlib" in prismm_main(*arguments, "--plot", "ranks.png").refused()
    assert prismm_main(*arguments[:-2], "--json").err == ""
    said = prismm_main(*arguments, "--seconds", "0").err.splitlines()
    assert said[2:] == [
        "prismm: out of time before rows, strong scaling, 1 rank, n = 20, reproducible", "prismm: wrote ranks.csv"
    ]  # fmt: skip
    assert len(Path("ranks.csv").read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_bench_of_ranks_that_is_killed_leaves_its_rows(folder: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "prismm"]
    command += ["bench", "distributed", "--sizes", "40,6000", "--rounds", "1", "--csv", "ranks.csv"]
    environment = os.environ | {"PRISMM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        said = [next(line for line in process.stderr if line.startswith("prismm: ")) for _ in range(4)]
    finally:
        process.terminate()  # which torchrun hands on
        process.communicate(timeout=100)
    assert "on 2 ranks and fewer" in said[0] and ": torch " in said[3]
    with open("ranks.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 and all(float(row["prismm_seconds"]) > 0 for row in rows)
    assert [row["accuracy"] for row in rows] == ["native", "reproducible", "correctly-rounded"]


@pytest.mark.slow
def test_two_ranks_end_in_time_together(folder: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "prismm"]
    command += ["bench", "distributed", "--sizes", "40", "--rounds", "1", "--accuracy", "native", "--csv", "ranks.csv"]
    for limit, ended in (([], False), (["--seconds", "0"], True)):
        done = subprocess.run([*command, *limit], cwd=folder, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert ("out of time before inner, strong scaling, 1 rank, n = 40, native" in done.stderr) == ended
        with open("ranks.csv", newline="") as stream:
            rows = list(csv.DictReader(stream))
        expected = [("rows", "strong", "1"), ("inner", "strong", "1")]
        expected += [(name, scaling, "2") for name in ("rows", "inner") for scaling in ("strong", "weak")]
        expected = expected[:1] if ended else expected
        assert [(row["sharding"], row["scaling"], row["ranks"]) for row in rows] == expected
