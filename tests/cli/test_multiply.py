"""``prismm multiply``: the bits of the product in memory, from files, by tiles, whatever happens."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import scipy.io

import prismm
from prismm.cli import main, product
from prismm.cli.journal import Journal, journal_of
from prismm.files import target
from prismm.files.target import part_of

Run = Callable[..., Any]

CORRECT = ("--accuracy", "correctly-rounded")
TILED = ("--memory", "300KiB")  # makes a few dozen tiles of the products below
BOOLS_TILED = "--memory", "30KiB"


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def same_bits(x: Any, y: Any) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@pytest.fixture
def pair(folder: Path, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Operands in a.npy and b.npy, whose product has tiles of unequal sizes."""
    a = rng.standard_normal((170, 30)) * np.exp(rng.standard_normal((170, 30)))
    b = rng.standard_normal((30, 150))
    np.save("a.npy", a)
    np.save("b.npy", b)
    return a, b


# --- what the scheme counted ------------------------------------------------------------------------


def test_the_certificate_adds_up_what_the_scheme_counted(prismm_main: Run, rng: np.random.Generator) -> None:
    """Fallback tiles, of all tiles of the file."""
    a, b = rng.uniform(0.5, 1.0, (32, 64)), rng.uniform(0.5, 1.0, (64, 16))
    a[:, 5] *= 2.0**-60
    np.save("a.npy", a)
    np.save("b.npy", b)
    done = prismm_main("multiply", "a.npy", "b.npy", "-o", "c.npy", "--scheme", "tile-int8")
    assert [line.split() for line in done.out.splitlines() if "fallback" in line] == [["fallback", "tiles", "4"]]
    assert prismm_main("multiply", "a.npy", "b.npy", "-o", "d.npy", "--scheme", "tile-int8", "--json").json()[
        "notes"
    ] == {"fallback tiles": 4}
    assert "fallback" not in prismm_main("multiply", "a.npy", "b.npy", "-o", "e.npy").out


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (CORRECT, {"accuracy": "correctly-rounded"}),
        (("--reproducible",), {"reproducible": True}),
        (("--accuracy", "1e-10", "--reproducible"), {"accuracy": 1e-10, "reproducible": True}),
        (("--scheme", "residues:15"), {"scheme": prismm.Residues(moduli=15)}),
        ((*CORRECT, "--out-dtype", "float32"), {"accuracy": "correctly-rounded", "out_dtype": "float32"}),
    ],
)
@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("f4", "f4"), ("c16", "c16"), ("f4", "f8"), ("i2", "f8")])
def test_tiles_have_the_bits_of_the_product_in_memory(
    prismm_main: Run,
    rng: np.random.Generator,
    arguments: tuple[str, ...],
    keywords: dict[str, Any],
    dtypes: tuple[str, str],
) -> None:
    if dtypes[0] == "c16" and "out_dtype" in keywords:
        arguments, keywords = (*CORRECT, "--out-dtype", "complex64"), keywords | {"out_dtype": "complex64"}
    a, b = 50 * rng.standard_normal((70, 30)), rng.standard_normal((30, 90))
    if dtypes[0] == "c16":
        a, b = a * (1 + 2j), b + 1j * b[::-1]
    a, b = a.astype(dtypes[0]), np.asfortranarray(b.astype(dtypes[1]))
    np.save("a.npy", a)
    np.save("b.npy", b)
    expected = prismm.matmul(a, b, **keywords)
    certificate = prismm_main(
        "multiply", "a.npy", "b.npy", "-o", "c.npy", *arguments, "--memory", "120KiB", "--json"
    ).json()
    assert certificate["tiles"] > 1
    assert same_bits(np.load("c.npy"), expected)
    assert certificate["sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()
    assert certificate["dtype"] == expected.dtype.name


def test_one_tile_and_many_agree_for_every_kind_of_file(
    prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    a, b = pair
    np.save("big.npy", a.astype(">f8"))
    np.save("fortran.npy", np.asfortranarray(b))
    scipy.io.mmwrite("a.mtx", a, precision=17)
    scipy.io.mmwrite("b.mtx", b, precision=17)
    subprocess.run(["gzip", "b.mtx"], check=True)
    inputs = names(folder)
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    for left in ("a.npy", "big.npy", "a.mtx"):
        for right in ("b.npy", "fortran.npy", "b.mtx.gz"):
            for extra in ((), TILED):
                done = prismm_main("multiply", left, right, "-o", "c.npy", "--force", *CORRECT, *extra, "--json")
                assert (done.json()["tiles"] > 1) == bool(extra)
                assert same_bits(np.load("c.npy"), expected)
                assert names(folder) == inputs | {"c.npy"}


def test_archives_and_csv(prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    inputs = names(folder)
    np.savez_compressed("a.npz", a)
    np.savetxt("b.csv", b, delimiter=",", fmt="%.17g", header="a name for each column", comments="")
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    for extra in ((), TILED):
        done = prismm_main("multiply", "a.npz", "b.csv", "-o", "c.npy", "--force", *CORRECT, *extra, "--json")
        assert (done.json()["tiles"] > 1) == bool(extra)
        assert same_bits(np.load("c.npy"), expected)
    assert names(folder) == inputs | {"a.npz", "b.csv", "c.npy"}


def test_bools_give_the_logical_or_or_the_other_type(
    prismm_main: Run, pair: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> None:
    """As `prismm.matmul` takes them: bools alone, or as 0 and 1 beside numbers, in tiles as in one piece."""
    a, b = pair
    p, q = (rng.random(x.shape) < 0.2 for x in (a, b))
    np.save("p.npy", p)
    np.savez("q.npz", q)
    for extra in ((), BOOLS_TILED, ("--accuracy", "1e-3", *BOOLS_TILED), ("--reproducible", *BOOLS_TILED)):
        done = prismm_main("multiply", "p.npy", "q.npz", "-o", "c.npy", "--force", *extra, "--json").json()
        found = np.load("c.npy")
        assert found.dtype == bool and np.array_equal(found, p @ q)
        assert (done["tiles"] > 1) == bool(extra)
        assert (done["dtype"], done["worst_absolute_bound"]) == ("bool", 0.0) and "logical or" in done["guarantee"]
    prismm_main("multiply", "p.npy", "q.npz", "-o", "c.mtx")
    assert np.array_equal(scipy.io.mmread("c.mtx"), p @ q)
    counts = ("--out-dtype", "float64", *CORRECT, *TILED)
    prismm_main("multiply", "p.npy", "q.npz", "-o", "c.npy", "--force", *counts)
    assert np.array_equal(np.load("c.npy"), p.astype(int) @ q.astype(int))
    for left, right, expected in (("p.npy", "b.npy", prismm.matmul(p, b, accuracy="correctly-rounded")),
                                  ("a.npy", "q.npz", prismm.matmul(a, q, accuracy="correctly-rounded"))):  # fmt: skip
        prismm_main("multiply", left, right, "-o", "c.npy", "--force", *CORRECT, *TILED)
        assert same_bits(np.load("c.npy"), expected)


def test_result_as_mtx(prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]) -> None:
    expected = prismm.matmul(*pair, accuracy="correctly-rounded")
    done = prismm_main("multiply", "a.npy", "b.npy", "-o", "c.mtx", *CORRECT, *TILED, "--json")
    assert done.json()["sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()
    assert np.array_equal(scipy.io.mmread("c.mtx"), expected)
    assert names(folder) == {"a.npy", "b.npy", "c.mtx"}


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (1, 1, 1)])
def test_empty_and_tiny_products(prismm_main: Run, m: int, k: int, n: int) -> None:
    np.save("a.npy", np.ones((m, k)))
    np.save("b.npy", np.ones((k, n)))
    assert prismm_main("multiply", "a.npy", "b.npy", "-o", "c.npy").code == 0
    assert same_bits(np.load("c.npy"), np.full((m, n), float(k)))


def test_specials_pass_through_tiles(prismm_main: Run, pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    a[3, 4], b[7, 8], a[100, 0] = np.inf, np.nan, -np.inf
    np.save("a.npy", a)
    np.save("b.npy", b)
    done = prismm_main("multiply", "a.npy", "b.npy", "-o", "c.npy", *CORRECT, *TILED, "--json").json()
    assert np.array_equal(np.load("c.npy"), prismm.matmul(a, b, accuracy="correctly-rounded"), equal_nan=True)
    assert done["worst_absolute_bound"] is not None


# --- words ----------------------------------------------------------------------------------------


def test_certificate_for_people(prismm_main: Run, pair: tuple[np.ndarray, np.ndarray]) -> None:
    done = prismm_main("multiply", "a.npy", "b.npy", "-o", "c.npy", *CORRECT)
    assert done.code == 0
    lines = dict(line.split("  ", 1) for line in done.out.splitlines())
    assert lines["product"].strip() == "170x30 by 30x150 float64"
    assert lines["sha256"].strip() == hashlib.sha256(np.load("c.npy").tobytes()).hexdigest()
    assert "1/2 ulp" in lines["guarantee"]
    assert str(170 * 150) in done.out
    quiet = prismm_main("multiply", "a.npy", "b.npy", "-o", "d.npy", *CORRECT, "--quiet")
    assert (quiet.code, quiet.out) == (0, "")


def test_certificate_adds_up_and_bounds_hold(prismm_main: Run, pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    exact = prismm.testing.exact_product(a, b)
    for arguments in (CORRECT, ("--reproducible",), ("--scheme", "residues:12"), ()):
        command = ("multiply", "a.npy", "b.npy", "-o", "c.npy", "--force", *arguments, "--json")
        for extra in ((), TILED):
            done = prismm_main(*command, *extra).json()
            error = exact.error(np.load("c.npy"))
            assert error.max() <= done["worst_absolute_bound"]
            assert sum(done["paths"].values()) == a.shape[0] * b.shape[1]


@pytest.mark.slow
def test_as_a_process(prismm_process: Run, pair: tuple[np.ndarray, np.ndarray]) -> None:
    done = prismm_process("multiply", "a.npy", "b.npy", "-o", "c.npy", "--reproducible", "--threads", 1)
    assert done.code == 0, done.err
    assert done.out.startswith("product")
    assert "%" not in done.err  # no bar where nobody watches
    assert same_bits(np.load("c.npy"), prismm.matmul(*pair, reproducible=True))


# --- refusals, before any work --------------------------------------------------------------------


def test_refusals(prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]) -> None:
    np.save("c.npy", np.eye(2))
    np.save("objects.npy", np.array([[object()]], dtype=object), allow_pickle=True)
    np.save("text.npy", np.array([["x"]]))
    Path("cut.npy").write_bytes(Path("a.npy").read_bytes()[:-8])
    Path("junk.mtx").write_text("%%MatrixMarket matrix array real general\n30 1\n" + "1\n" * 7 + "?\n")
    Path("folder.npy").mkdir()
    np.save("long.npy", np.ones((3, 30), np.longdouble))
    before = {name: _content(name) for name in names(folder)}
    for arguments, what in [
        (("a.npy", "b.npy", "-o", "c.npy"), "c.npy: exists already; pass --force to replace it"),
        (("a.npy", "a.npy", "-o", "d.npy"), "a.npy is 170x30, a.npy is 170x30: A must have as many"),
        (("a.npy", "b.npy", "-o", "d.txt"), "d.txt: unknown kind of file"),
        (("a.npy", "b.npy", "-o", "d.csv"), "d.csv: results are written as .npy or .mtx"),
        (("a.npy", "b.npy", "-o", "d.mtx.gz"), "written as .npy or .mtx"),
        (("a.npy", "b.npy", "-o", "no/d.npy"), "there is no directory no"),
        (("a.npy", "b.npy", "-o", "folder.npy", "--force"), "folder.npy: is a directory"),
        (("a.npy", "none.npy", "-o", "d.npy"), "none.npy: No such file"),
        (("a.npy", "folder.npy", "-o", "d.npy"), "folder.npy: is a directory; pass the name of a file"),
        (("a.npy", "objects.npy", "-o", "d.npy"), "objects.npy: holds Python objects, which are never"),
        (("a.npy", "text.npy", "-o", "d.npy"), "text.npy: holds elements of type <U1"),
        (("cut.npy", "b.npy", "-o", "d.npy"), "cut.npy: truncated"),
        (("a.npy", "junk.mtx", "-o", "d.npy"), "junk.mtx, line 10: '?' is not a number"),
        (("a.npy", "b.npy", "-o", "d.npy", "--accuracy", "best"), "accuracy 'best'; pass fast"),
        (("a.npy", "b.npy", "-o", "d.npy", "--accuracy", "-1"), "accuracy '-1'"),
        (("a.npy", "b.npy", "-o", "d.npy", "--scheme", "magic"), "scheme 'magic'"),
        (("a.npy", "b.npy", "-o", "d.npy", "--scheme", "residues:999"), "999"),
        (("a.npy", "b.npy", "-o", "d.npy", "--engine", "abacus"), "abacus"),
        (("a.npy", "b.npy", "-o", "d.npy", "--out-dtype", "int8"), "dtype 'int8'"),
        (("a.npy", "b.npy", "-o", "d.npy", "--memory", "lots"), "memory 'lots' is no size"),
        (("a.npy", "b.npy", "-o", "d.npy", "--memory", "1k"), "pass --memory 1952 or more"),
        (("a.npy", "b.npy", "-o", "d.npy", "--memory", "1" + "0" * 400), "0…' is no size"),
        (("a.npy", "b.npy", "-o", "d.npy", "--resume"), "nothing to resume"),
        (("a.npy", "b.npy", "-o", "."), ".: unknown kind of file; pass a name that ends in .npy"),
        (("a.npy", "b.npy", "-o", "d" * 300 + ".npy"), "name of 304 bytes is too long here; pass a shorter one"),
        (("a.npy", "b.npy", "-o", "d" * 235 + ".npy"), ".json.new: a name of 261 bytes is too long here; pass a sh"),
        (("long.npy", "b.npy", "-o", "d.npy"), f"long.npy: holds elements of type {np.dtype('g')}; prismm multiplies"),
    ]:
        assert what in prismm_main("multiply", *arguments).refused()
        assert {name: _content(name) for name in names(folder)} == before


def _content(name: str) -> bytes | None:
    return None if Path(name).is_dir() else Path(name).read_bytes()


def test_a_directory_that_may_not_be_searched(
    prismm_main: Run, monkeypatch: pytest.MonkeyPatch, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    """Root may search every directory, so the system's answer is given here."""
    real = os.stat

    def stat(path: Any, *arguments: Any, **keywords: Any) -> os.stat_result:
        if str(path).startswith("closed/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **keywords)

    Path("closed").mkdir()
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "lstat", stat)
    refusal = prismm_main("multiply", "a.npy", "b.npy", "-o", "closed/c.npy").refused()
    assert "closed/c.npy: Permission denied; pass a name in another directory" in refusal


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_no_link_pipe_or_device_is_a_target(
    prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray], force: tuple[str, ...]
) -> None:
    """It would be replaced, and what it leads to would stay as it was."""
    np.save("old.npy", np.eye(2))
    Path("to-old.npy").symlink_to("old.npy")
    Path("dangling.npy").symlink_to("nothing.npy")
    Path("loop.npy").symlink_to("loop.npy")
    Path("null.npy").symlink_to("/dev/null")
    os.mkfifo("pipe.npy")
    Path("folder").mkdir()
    Path("there.npy").symlink_to("folder")
    before = names(folder)
    for name, what in [
        ("to-old.npy", "to-old.npy: is a link to old.npy; pass that name, or remove the link"),
        ("dangling.npy", "dangling.npy: is a link to nothing.npy; pass that name"),
        ("loop.npy", "loop.npy: is a link to loop.npy; pass that name"),
        ("null.npy", "null.npy: is a link to /dev/null; pass that name"),
        ("pipe.npy", "pipe.npy: is no regular file, but a pipe or a device; pass the name of a file"),
        ("there.npy", "there.npy: is a directory; pass the name of a file"),
    ]:
        for command in (("multiply",), ("simulate", "amx.bf16.fp32")):
            assert what in prismm_main(*command, "a.npy", "b.npy", "-o", name, *force).refused()
            assert names(folder) == before and Path("to-old.npy").is_symlink()
    assert np.array_equal(np.load("old.npy"), np.eye(2))


def test_no_operand_is_a_target(prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]) -> None:
    """By whatever name, nor what stands for the target meanwhile."""
    scipy.io.mmwrite("m.mtx", pair[1], precision=17)
    os.link("a.npy", "hard.npy")
    Path("soft.npy").symlink_to("b.npy")
    Path("sub").symlink_to(".")
    part, journal = part_of(Path("p.npy")), journal_of(Path("j.npy"))
    for temporary, name in ((part, "part.npy"), (journal, "journal.npy"), (target.text_of(Path("t.mtx")), "text.npy")):
        np.save("x.npy", pair[0])
        Path("x.npy").rename(temporary)
        Path(name).symlink_to(temporary)
    # A name of the process's own for a file that is open.
    with open("a.npy", "rb") as opened:
        Path("fd.npy").symlink_to(f"/dev/fd/{opened.fileno()}")
        before = {name: _content(name) for name in names(folder) if name != "sub"}
        for a, b, output, what in [
            ("a.npy", "b.npy", "a.npy", "a.npy: is the operand a.npy, which would be lost; pass another name"),
            ("a.npy", "b.npy", "./b.npy", "b.npy: is the operand b.npy"),
            ("a.npy", "b.npy", "sub/a.npy", "sub/a.npy: is the operand a.npy"),
            ("a.npy", "b.npy", "hard.npy", "hard.npy: is the operand a.npy"),
            ("hard.npy", "b.npy", "a.npy", "a.npy: is the operand hard.npy"),
            ("a.npy", "soft.npy", "b.npy", "b.npy: is the operand soft.npy"),
            ("fd.npy", "b.npy", "a.npy", "a.npy: is the operand fd.npy"),
            ("a.npy", "m.mtx", "m.mtx", "m.mtx: is the operand m.mtx"),
            ("part.npy", "b.npy", "p.npy", ".p.npy.part-prismm: is the operand part.npy"),
            ("journal.npy", "b.npy", "j.npy", ".j.npy.part-prismm.json: is the operand journal.npy"),
            ("text.npy", "b.npy", "t.mtx", ".t.mtx.text-prismm: is the operand text.npy"),
        ]:
            for command in (("multiply",), ("simulate", "amx.bf16.fp32", "--round")):
                assert what in prismm_main(*command, a, b, "-o", output, "--force").refused()
            if b != "m.mtx" and output not in ("p.npy", "t.mtx"):
                assert what in prismm_main("multiply", a, b, "-o", output, "--force", "--resume").refused()
            assert {name: _content(name) for name in names(folder) if name != "sub"} == before
        expected = prismm.matmul(*pair, reproducible=True)
        assert prismm_main("multiply", "fd.npy", "soft.npy", "-o", "c.npy", "--reproducible").code == 0
    assert same_bits(np.load("c.npy"), expected)


@pytest.mark.parametrize(
    "name", ["p.npy", *(pytest.param(name, marks=pytest.mark.slow) for name in ("p.mtx", "p.mtx.gz"))]
)
def test_a_pipe_is_no_operand(prismm_process: Run, pair: tuple[np.ndarray, np.ndarray], name: str) -> None:
    """Opening one without a writer would wait for ever."""
    os.mkfifo(name)
    done = prismm_process("multiply", name, "b.npy", "-o", "c.npy")
    assert done.code == 2 and f"{name}: is a pipe, and a matrix is read more than once" in done.err


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("a.npy", path)])
@pytest.mark.parametrize("place", [part_of, journal_of, target.text_of, lambda path: f"{journal_of(path)}.new"])
def test_what_stands_where_the_temporaries_go(
    prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray], make: Any, place: Any
) -> None:
    make(place(Path("c.npy")))
    before = {name: _content(name) for name in ("a.npy", "b.npy")}
    for more in ((), ("--force",), ("--resume",)):
        refusal = prismm_main("multiply", "a.npy", "b.npy", "-o", "c.npy", *more).refused()
        assert f"{place(Path('c.npy'))}: is no regular file, where the unfinished product goes; remove it" in refusal
        assert {name: _content(name) for name in ("a.npy", "b.npy")} == before


def test_force_replaces(prismm_main: Run, pair: tuple[np.ndarray, np.ndarray]) -> None:
    Path("c.npy").write_text("old")
    assert prismm_main("multiply", "a.npy", "b.npy", "-o", "c.npy", "--force").code == 0
    assert np.load("c.npy").shape == (170, 150)


# --- a full disk ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_full_disk_harms_nothing(prismm_process: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]) -> None:
    Path("c.npy").write_text("old")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = prismm_process("multiply", "a.npy", "b.npy", "-o", "c.npy", "--force", preexec_fn=limit)
    assert done.code == 2
    assert "prismm: error: " in done.err and "no space left for .c.npy.part-prismm" in done.err
    assert "Traceback" not in done.err
    assert names(folder) == {"a.npy", "b.npy", "c.npy"}
    assert Path("c.npy").read_text() == "old"


class Filling:
    """A file on a disk that is full after some writes."""

    def __init__(self, stream: IO[bytes], writes: int) -> None:
        self._stream, self._writes = stream, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: bytes) -> int:
        self._writes -= 1
        if self._writes < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._stream.write(data)


@pytest.mark.parametrize("name", ["c.npy", "c.mtx"])
def test_disk_that_fills_up_on_the_way(
    prismm_main: Run,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[np.ndarray, np.ndarray],
    name: str,
) -> None:
    Path(name).write_text("old")
    if name == "c.npy":
        real = target.Target.__init__

        def init(self: Any, *arguments: Any) -> None:
            real(self, *arguments)
            self._stream = Filling(self._stream, 20)

        monkeypatch.setattr(target.Target, "__init__", init)
    else:
        write = target.mtx.write
        monkeypatch.setattr(target.mtx, "write", lambda s, array: write(Filling(s, 1), array))
    done = prismm_main("multiply", "a.npy", "b.npy", "-o", name, "--force", *TILED)
    assert "no space left for ." + name in done.refused()
    assert names(folder) == {"a.npy", "b.npy", name}
    assert Path(name).read_text() == "old"


def test_a_crash_leaves_nothing(
    prismm_main: Run,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    monkeypatch.setattr(product, "tile_record", lambda report: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prismm_main("multiply", "a.npy", "b.npy", "-o", "c.npy", *TILED)
    assert names(folder) == {"a.npy", "b.npy"}


# --- interruption ---------------------------------------------------------------------------------

MULTIPLY = ("multiply", "a.npy", "b.npy", "-o", "c.npy", *CORRECT, *TILED)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts as at a terminal: what a shell starts in the background ignores them, as do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def slow_product(words: int, arguments: tuple[str, ...]) -> None:
    """In a forked child: ``prismm ARGUMENTS`` with a pause before every tile, its stderr into a pipe."""
    matmul = prismm.matmul

    def slow(a: Any, b: Any, **keywords: Any) -> Any:
        time.sleep(0.3 * (len(a) > 0))
        return matmul(a, b, **keywords)

    product._CHECKPOINT, prismm.matmul = 0.0, slow
    sys.argv, sys.stderr = ["prismm", *arguments], os.fdopen(words, "w")
    main()


def interrupted(number: int, *arguments: str, finished: int = 3) -> tuple[int, str]:
    """Start a slow product, send it a signal after some tiles, return its exit code and words."""
    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=slow_product, args=(writing, arguments))
    process.start()
    os.close(writing)
    journal = journal_of(Path("c.npy"))
    give_up = time.monotonic() + 200
    while not (journal.exists() and len(json.loads(journal.read_text())["tiles"]) >= finished):
        assert process.is_alive()
        assert time.monotonic() < give_up
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(100)
    with open(reading) as words:
        return process.exitcode, words.read()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_product_is_resumed_where_it_stopped(
    prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray], number: int, code: int
) -> None:
    Path("c.npy").write_text("old")
    returned, words = interrupted(number, *MULTIPLY, "--force")
    assert returned == code
    journal, part = journal_of(Path("c.npy")), part_of(Path("c.npy"))
    kept = len(json.loads(journal.read_text())["tiles"])
    assert Path("c.npy").read_text() == "old"
    journal.with_name(journal.name + ".new").unlink(missing_ok=True)  # killed while it was written
    assert names(folder) == {"a.npy", "b.npy", "c.npy", part.name, journal.name}
    if number != signal.SIGKILL:
        assert f"interrupted; {kept} of " in words and "--resume continues" in words

    again = "c.npy: an unfinished product of that name is here; --resume continues it, --force starts"
    Path("c.npy").rename("old.npy")
    assert again in prismm_main(*MULTIPLY).refused()

    expected = prismm.matmul(*pair, accuracy="correctly-rounded")

    Path("old.npy").rename("c.npy")
    assert "exists already" in prismm_main(*MULTIPLY, "--resume").refused()
    done = prismm_main(*MULTIPLY, "--resume", "--force", "--json").json()
    assert done["tiles_resumed"] == kept < done["tiles"]
    assert sum(done["paths"].values()) == expected.size
    assert same_bits(np.load("c.npy"), expected)
    assert names(folder) == {"a.npy", "b.npy", "c.npy"}


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_library_swallows_still_stops(
    prismm_main: Run, monkeypatch: pytest.MonkeyPatch, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    """An exception raised in a callback of compiled code, or in a finaliser, is printed and lost."""
    matmul, swallowed = prismm.matmul, []

    def swallowing(a: Any, b: Any, **keywords: Any) -> Any:
        if len(a) > 0 and not swallowed:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1.0)
            except KeyboardInterrupt as interrupt:
                swallowed.append(interrupt)
        return matmul(a, b, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(prismm, "matmul", swallowing)
        done = prismm_main(*MULTIPLY)
    assert swallowed
    assert done.code == 130, done.err
    assert "--resume continues" in done.err
    assert not Path("c.npy").exists()


@pytest.fixture
def unfinished(folder: Path, monkeypatch: pytest.MonkeyPatch, prismm_main: Run, pair: Any) -> Iterator[None]:
    """A product stopped after four tiles, in this process."""
    real, calls = product.tile_record, []

    def record(report: Any) -> dict[str, Any]:
        calls.append(report)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(report)

    with monkeypatch.context() as patch:
        patch.setattr(product, "tile_record", record)
        done = prismm_main(*MULTIPLY)
    assert done.code == 130
    assert "4 of " in done.err
    yield


def test_resume_refuses_anything_that_differs(
    unfinished: None, prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    a, b = pair
    np.save("other.npy", -a)
    np.save("single.npy", a.astype("f4"))
    before = names(folder)
    files = ("multiply", "a.npy", "b.npy", "-o", "c.npy")
    for arguments, what in [
        (("multiply", "other.npy", *MULTIPLY[2:]), "a sha256 was "),
        (("multiply", "single.npy", *MULTIPLY[2:]), 'a dtype was "<f8", is now "<f4"'),
        ((*files, *TILED), 'options accuracy was "correctly-rounded", is now null'),
        ((*files, "--accuracy", "1e-9", *TILED), "is now 1e-09"),
        ((*MULTIPLY, "--reproducible"), "options reproducible was false, is now true"),
        ((*MULTIPLY, "--scheme", "residues:18"), "options scheme was null, is now"),
        ((*MULTIPLY, "--threads", "1"), "options threads was null, is now 1"),
        ((*MULTIPLY, "--engine", "cpu:float64"), "options engine was null, is now"),
        ((*MULTIPLY, "--out-dtype", "float32"), "result dtype was"),
        ((*files, *CORRECT, "--memory", "200KiB"), "grid columns was "),
    ]:
        refusal = prismm_main(*arguments, "--resume").refused()
        assert "not the product that was interrupted" in refusal and what in refusal
        assert names(folder) == before
    # Without --memory the tiles are those of then, and the same content may lie elsewhere.
    Path("a.npy").rename("moved.npy")
    done = prismm_main("multiply", "moved.npy", *files[2:], *CORRECT, "--resume", "--json").json()
    assert done["tiles_resumed"] == 4
    assert same_bits(np.load("c.npy"), prismm.matmul(a, b, accuracy="correctly-rounded"))


def test_force_starts_over(
    unfinished: None, prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    done = prismm_main(*MULTIPLY, "--force", "--json").json()
    assert done["tiles_resumed"] == 0
    assert same_bits(np.load("c.npy"), prismm.matmul(*pair, accuracy="correctly-rounded"))
    assert names(folder) == {"a.npy", "b.npy", "c.npy"}


def test_resume_without_its_temporary(unfinished: None, prismm_main: Run) -> None:
    part_of(Path("c.npy")).unlink()
    assert "nothing to resume: there is no .c.npy.part-prismm" in prismm_main(*MULTIPLY, "--resume").refused()


@pytest.mark.parametrize("memory", [(), TILED])
@pytest.mark.parametrize(
    "damage",
    [
        *({"grid": {"rows": rows, "columns": 64}} for rows in (0, "a", -1, 10**400)),
        {"grid": [1]},
        {"nested": "deep"},
        {"worst": "x"},
        {"tile": [99, 0]},
    ],
)
def test_a_damaged_journal_deletes_nothing(
    unfinished: None, prismm_main: Run, folder: Path, damage: dict[str, Any], memory: tuple[str, ...]
) -> None:
    path = journal_of(Path("c.npy"))
    content = json.loads(path.read_text())
    if "grid" in damage:
        content |= damage
    else:
        content["tiles"][0] |= damage
    text = json.dumps(content)
    path.write_text(text if "nested" not in damage else text.replace('"deep"', "[" * 50_000 + "]" * 50_000))
    before = {name: _content(name) for name in names(folder)}
    refusal = prismm_main(*MULTIPLY[:-2], *memory, "--resume").refused()
    assert "with --force" in refusal and len(refusal) < 1000
    assert {name: _content(name) for name in names(folder)} == before
    assert prismm_main(*MULTIPLY, "--force").code == 0


def _written(name: Path, place: int, data: bytes) -> None:
    with open(name, "r+b") as stream:
        stream.seek(place)
        stream.write(data)


@pytest.mark.parametrize(
    ("place", "damaged"),
    [
        ((0, 0), 1),
        ((169, 0), 1),  # the last row of the first column panel, in its last tile
        ((0, 149), 0),  # a tile that is not made yet
    ],
)
@pytest.mark.parametrize("data", [b"\x00" * 8, b"\xff", np.float64(12345.0).tobytes()])
def test_damaged_tiles_are_made_again(
    unfinished: None,
    prismm_main: Run,
    folder: Path,
    pair: tuple[np.ndarray, np.ndarray],
    place: tuple[int, int],
    damaged: int,
    data: bytes,
) -> None:
    expected = prismm.matmul(*pair, accuracy="correctly-rounded")
    grid = Journal.load(journal_of(Path("c.npy"))).identity["grid"]
    listed = Journal.load(journal_of(Path("c.npy"))).tiles
    damaged = int((place[0] // grid["rows"], place[1] // grid["columns"]) in listed)
    _written(part_of(Path("c.npy")), 128 + 8 * (150 * place[0] + place[1]), data)
    done = prismm_main(*MULTIPLY, "--resume", "--json")
    assert ("1 of the kept tiles were damaged since, and are made again" in done.err) == damaged
    assert done.json()["tiles_resumed"] == 4 - damaged
    assert done.json()["sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()
    assert sum(done.json()["paths"].values()) == expected.size
    assert same_bits(np.load("c.npy"), expected)
    assert names(folder) == {"a.npy", "b.npy", "c.npy"}


def test_damage_of_anything_is_mended_or_refused(
    unfinished: None, prismm_main: Run, rng: np.random.Generator, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    """The partial file, its header, the journal, and both at once, at random places."""
    expected = prismm.matmul(*pair, accuracy="correctly-rounded")
    part, journal = part_of(Path("c.npy")), journal_of(Path("c.npy"))
    kept = part.read_bytes(), journal.read_bytes()
    ended = set()
    for trial in range(24):
        part.write_bytes(kept[0])
        journal.write_bytes(kept[1])
        Path("c.npy").unlink(missing_ok=True)
        for path, whole in zip((part, journal), kept, strict=True):
            if trial % 3 == 2 or trial % 3 == (path == journal):
                for _ in range(rng.integers(1, 4)):
                    at = int(rng.integers(128 if trial % 2 else 0, len(whole)))
                    _written(path, at, bytes([whole[at] ^ 1 << int(rng.integers(8))]))
        done = prismm_main(*MULTIPLY, "--resume", "--quiet")
        ended.add(done.code)
        if done.code == 0:
            assert same_bits(np.load("c.npy"), expected)
        else:
            assert "start over with --force" in done.refused()
            assert not Path("c.npy").exists()
    assert ended == {0, 2}
    assert prismm_main(*MULTIPLY, "--force").code == 0
    assert same_bits(np.load("c.npy"), expected)


def test_a_journal_that_lists_every_tile_is_refused(
    unfinished: None, prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    """And one whose checksum was made to fit has tiles that the file does not: they are made."""
    path = journal_of(Path("c.npy"))
    journal = Journal.load(path)
    rows, columns = journal.grid(170, 150)
    record = next(iter(journal.tiles.values()))
    content = json.loads(path.read_text())
    every = [(i, j) for j in range(-(-150 // columns)) for i in range(-(-170 // rows))]
    content["tiles"] = [record | {"tile": list(tile)} for tile in every]
    path.write_text(json.dumps(content))
    before = {name: _content(name) for name in names(folder)}
    assert "damaged: it does not have its own checksum" in prismm_main(*MULTIPLY, "--resume").refused()
    assert {name: _content(name) for name in names(folder)} == before
    journal.tiles = dict.fromkeys(every, record)
    journal.save()
    done = prismm_main(*MULTIPLY, "--resume", "--json").json()
    assert done["tiles_resumed"] == 1  # the one that the record is of
    assert same_bits(np.load("c.npy"), prismm.matmul(*pair, accuracy="correctly-rounded"))


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_tiles_that_change_while_others_are_made_are_found(
    unfinished: None,
    prismm_main: Run,
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[np.ndarray, np.ndarray],
    resume: tuple[str, ...],
) -> None:
    part, real, calls = part_of(Path("c.npy")), product.tile_record, []
    rows, columns = Journal.load(journal_of(Path("c.npy"))).grid(170, 150)
    number = 4 if resume else 0  # of the first tile that this run makes
    panel, row = divmod(number, -(-170 // rows))

    def record(report: Any) -> dict[str, Any]:
        calls.append(report)
        if len(calls) == 3:
            _written(part, 128 + 8 * (150 * row * rows + panel * columns), b"\x01\x02")
        return real(report)

    with monkeypatch.context() as patch:
        patch.setattr(product, "tile_record", record)
        refusal = prismm_main(*MULTIPLY, *(resume or ("--force",))).refused()
    assert "1 of its tiles changed after they were written; see that no other program writes there" in refusal
    assert not Path("c.npy").exists() and part.exists() == bool(resume)
    # What was kept is still good for another run.
    done = prismm_main(*MULTIPLY, *resume, "--json").json()
    assert done["tiles_resumed"] == (done["tiles"] - 1 if resume else 0)
    assert same_bits(np.load("c.npy"), prismm.matmul(*pair, accuracy="correctly-rounded"))


@pytest.mark.parametrize(
    "change",
    [
        lambda: _written(Path("a.npy"), 200, b"\x01"),
        lambda: _written(Path("b.npy"), 200, b"\x01"),
        lambda: np.save("a.npy", np.zeros((170, 30))),
        lambda: Path("b.npy").unlink(),
        lambda: (np.save("new.npy", np.ones((170, 30))), os.replace("new.npy", "a.npy")),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_operands_that_change_while_they_are_multiplied(
    prismm_main: Run,
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[np.ndarray, np.ndarray],
    change: Callable[[], object],
    last: bool,
) -> None:
    real, calls = product.tile_record, []

    def record(report: Any) -> dict[str, Any]:
        calls.append(report)
        if len(calls) == 3:
            time.sleep(0.01)  # a time stamp may be no finer
            change()
        return real(report)

    with monkeypatch.context() as patch:
        patch.setattr(product, "tile_record", record)
        patch.setattr(product, "_CHECKPOINT", 1e9 if last else 0.0)
        refusal = prismm_main(*MULTIPLY).refused()
    assert ".npy: changed while it was multiplied; multiply again once it stays as it is" in refusal
    assert not Path("c.npy").exists() and not part_of(Path("c.npy")).exists()
    assert (len(calls) == 3) == (not last)


def test_a_resumed_product_that_fails_keeps_its_tiles(
    unfinished: None,
    prismm_main: Run,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    before = {name: _content(name) for name in names(folder)}
    with monkeypatch.context() as patch:
        patch.setattr(product, "tile_record", lambda report: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prismm_main(*MULTIPLY, "--resume")
    journal = journal_of(Path("c.npy")).name
    assert names(folder) == before.keys() and _content(journal) == before[journal]
    assert prismm_main(*MULTIPLY, "--resume", "--json").json()["tiles_resumed"] == 4
    assert same_bits(np.load("c.npy"), prismm.matmul(*pair, accuracy="correctly-rounded"))


def test_a_temporary_without_its_journal(unfinished: None, prismm_main: Run, folder: Path) -> None:
    journal_of(Path("c.npy")).unlink()
    before = names(folder)
    for more in ((), ("--resume",), ("--resume", "--force")):
        refusal = prismm_main(*MULTIPLY, *more).refused()
        assert "is here without its journal" in refusal
        assert "pass --force, without --resume, to start over" in refusal
        assert names(folder) == before
    assert prismm_main(*MULTIPLY, "--force").code == 0


@pytest.mark.parametrize("place", [part_of, journal_of])
def test_directories_where_the_temporaries_go(
    prismm_main: Run, folder: Path, pair: tuple[np.ndarray, np.ndarray], place: Callable[[Path], Path]
) -> None:
    path = place(Path("c.npy"))
    path.mkdir()
    before = names(folder)
    for more in ((), ("--force",), ("--resume",)):
        assert f"{path}: is a directory, where" in prismm_main(*MULTIPLY, *more).refused()
        assert names(folder) == before


def test_resume_with_a_damaged_temporary(unfinished: None, prismm_main: Run) -> None:
    os.truncate(part_of(Path("c.npy")), 1000)
    assert "start over with --force" in prismm_main(*MULTIPLY, "--resume").refused()


def test_interruption_before_the_first_tile_keeps_nothing(
    prismm_main: Run,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    def stop(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    for place in ("tile_record", "_fingerprint"):
        with monkeypatch.context() as patch:
            patch.setattr(product, place, stop)
            done = prismm_main(*MULTIPLY)
        assert done.code == 143
        assert done.err.startswith("prismm: interrupted before") and done.out == ""
        assert names(folder) == {"a.npy", "b.npy"}


def test_a_product_being_written_is_left_alone(prismm_main: Run, pair: tuple[np.ndarray, np.ndarray]) -> None:
    writing = target.Target(Path("c.npy"), (170, 150), np.dtype(float), False)
    assert "another prismm is writing" in prismm_main(*MULTIPLY, "--force").refused()
    writing.discard()


def test_interruption_after_the_last_tile_keeps_all(
    prismm_main: Run, monkeypatch: pytest.MonkeyPatch, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    def stop(self: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target.Target, "complete", stop)
        assert prismm_main(*MULTIPLY).code == 130
    done = prismm_main(*MULTIPLY, "--resume", "--json").json()
    assert done["tiles_resumed"] == done["tiles"] > 1
    assert same_bits(np.load("c.npy"), prismm.matmul(*pair, accuracy="correctly-rounded"))


def test_ignored_signals_stay_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with product._stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
