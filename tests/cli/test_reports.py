"""``prismm explain``, ``env`` and ``demo``: what they tell, to people and to machines."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.cli import demo as demo_module
from prismm.core.extras import install

Run = Callable[..., Any]

# --- explain --------------------------------------------------------------------------------------


def test_explain_of_files_is_the_plan_of_their_matrices(prismm_main: Run, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((40, 50)), rng.standard_normal((50, 30))
    np.save("a.npy", a)
    np.save("b.npy", b)
    for arguments, keywords in [
        ((), {}),
        (("--reproducible",), {"reproducible": True}),
        (("--accuracy", "correctly-rounded"), {"accuracy": "correctly-rounded"}),
        (("--scheme", "residues:9"), {"scheme": prismm.Residues(moduli=9)}),
    ]:
        plan = prismm.explain(a, b, **keywords)
        assert prismm_main("explain", "a.npy", "b.npy", *arguments) == (0, f"{plan}\n", "")
        shown = prismm_main("explain", "a.npy", "b.npy", *arguments, "--json").json()
        assert shown == json.loads(json.dumps(plan.to_dict()))


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_explain_of_shapes_takes_no_memory(prismm_main: Run, dtype: str) -> None:
    big = "100000x100000"
    assert prismm_main("explain", big, big, "--dtype", dtype, "--reproducible").code == 0
    assert prismm_main("explain", big, big, "--dtype", dtype, "--json").json()


def test_explain_refuses(prismm_main: Run) -> None:
    np.save("long.npy", np.ones((3, 3), np.longdouble))
    for arguments, what in [
        (("4x5", "4x5"), "4"),
        (("4x5", "b.txt"), "'b.txt' is neither a matrix file nor a shape such as 4096x4096"),
        (("4x5", "b.npy"), "b.npy: No such file"),
        (("4x5", "5x4", "--dtype", "int3"), "dtype 'int3'"),
        (("4x5", "5x4", "--accuracy", "best"), "accuracy 'best'"),
        (("99999999999999999999x3", "3x4"), "shape '99999999999999999999x3' is too large; pass at most 268435456"),
        (("3x" + "9" * 5000, "3x4"), "9…' is too large"),
        (("long.npy", "3x4"), f"long.npy: holds elements of type {np.dtype('g')}; prismm multiplies"),
    ]:
        assert what in prismm_main("explain", *arguments).refused()


def test_explain_of_bools(prismm_main: Run) -> None:
    np.save("bool.npy", np.ones((3, 3), bool))
    ran = prismm_main("explain", "3x3", "bool.npy")
    assert ran.code == 0 and "(3 x 3) @ (3 x 3)" in ran.out


# --- env ------------------------------------------------------------------------------------------


def test_env_names_versions_engines_and_settings(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISMM_THREADS", "1")
    found = prismm_main("env", "--json").json()
    assert found["versions"]["prismm"] == prismm.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert set(found["engines"]) == {"cpu:blas", *prismm.engines.available(), "cuda", "simulated"}
    assert "simulated:volta" in found["engines"]["simulated"]
    assert found["settings"]["threads"] == 1
    assert found["variables"]["PRISMM_THREADS"] == "1"
    code, out, err = prismm_main("env")
    assert (code, err) == (0, "")
    for topic, rows in found.items():
        assert f"{topic}\n" in out
        assert all(name in out for name in rows)


# --- demo -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_demo_shows_exact_agreement_and_draws_it(prismm_main: Run, folder: Path) -> None:
    done = prismm_main("demo", "--size", 48, "--json")
    cases = done.json()["cases"]
    assert len(cases) == 2
    for rows in cases.values():
        found = {row["method"]: row for row in rows}
        exact = found["exact, then rounded"]
        assert exact["wrong_percent"] == 0 and exact["max_ulps"] <= 0.5
        correct = found["prismm correctly-rounded"]
        assert correct["sha256"] == exact["sha256"] and correct["max_ulps"] <= 0.5
        assert found["native (NumPy)"]["wrong_percent"] > 50
        for name, row in found.items():
            if name.startswith("prismm"):
                assert row["bound_held"]
            if name in ("prismm correctly-rounded", "prismm reproducible"):
                usable = {engine for engine, (works, _) in prismm.engines.available().items() if works}
                assert row["same_bits"].keys() == usable | {"1 threads", "2 threads"}
                assert all(row["same_bits"].values())
    width, height = _png_size(folder / "demo.png")
    assert width > 1500 and height > 600
    text = prismm_main("demo", "--size", 8, "-o", "other.png")
    assert text.code == 0
    assert "yes: 1 and 2 threads" in text.out and "correctly-rounded" in text.out
    assert "plot in other.png" in text.err


def _png_size(path: Path) -> tuple[int, int]:
    """Width and height, after checking that every chunk is whole."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, kinds = 8, []
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        body = data[place + 4 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(body)
        kinds.append(body[:4])
        place += 12 + length
    assert kinds[0] == b"IHDR" and kinds[-1] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_demo_names_the_extra_that_is_missing(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, package in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")):
        with monkeypatch.context() as patch:
            patch.setattr(demo_module, "is_installed", lambda name, absent=module: name != absent)
            line = prismm_main("demo").refused()
        assert f"demo needs {package}; install it with: {install('demo')}" in line


def test_demo_refuses(prismm_main: Run) -> None:
    assert "pass a name that ends in .png" in prismm_main("demo", "-o", "demo.pdf").refused()
    assert "there is no directory no" in prismm_main("demo", "-o", "no/demo.png").refused()
    Path("folder.png").mkdir()
    assert "folder.png: is a directory" in prismm_main("demo", "-o", "folder.png").refused()
    assert prismm_main("demo", "--size", "1").code == 2


def test_agreement_names_what_differs() -> None:
    assert demo_module._agreement({"1 threads": True, "cpu:int8": False}) == "no: cpu:int8"
    assert demo_module._agreement({}) == "-"
