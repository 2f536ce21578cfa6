"""``prismm check``: how wrong a product in a file is, as a table, JSON, a page and a plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.cli.check import block_maxima
from tests.cli.pages import parsed

Run = Callable[..., Any]


@pytest.fixture
def saved(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and a correctly rounded C with one wrong bit, in files."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((70, 12)), rng.standard_normal((12, 60))
    c = prismm.matmul(a, b, accuracy="correctly-rounded")
    c[11, 7] = np.nextafter(c[11, 7], np.inf)
    for name, x in (("a", a), ("b", b), ("c", c)):
        np.save(folder / name, x)
    return a, b, c


def test_the_table_finds_the_wrong_bit(saved, prismm_main: Run) -> None:
    ran = prismm_main("check", "a.npy", "b.npy", "c.npy")
    assert ran.code == 0 and ran.err == ""
    (row,) = [line for line in ran.out.splitlines() if "in ulps" in line]
    assert "11, 7" in row
    assert "relative to |exact|" in ran.out and "99.98 % of 4200 entries" in ran.out
    assert "70x60 float64 of float64 and float64, k = 12" in ran.out


def test_json_is_the_check(saved, prismm_main: Run) -> None:
    found = prismm_main("check", "a.npy", "b.npy", "c.npy", "--json").json()
    told, timed = prismm.check(*saved).to_dict(), ("seconds",)
    assert {k: v for k, v in found.items() if k not in timed} == {k: v for k, v in told.items() if k not in timed}


@pytest.mark.slow
def test_a_page_and_a_plot(saved, prismm_main: Run, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = "check", "a.npy", "b.npy", "c.npy", "--html", "page.html", "--plot", "plot.png"
    assert prismm_main(*arguments).code == 0
    page = parsed(folder / "page.html")
    assert "How wrong is c.npy?" in page.text and "11, 7" in page.text
    assert page.count["rect"] == 35 * 30  # blocks of two rows and two columns, none of which is exact
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "exists already" in prismm_main(*arguments).refused()
    assert prismm_main(*arguments, "--force").code == 0


def test_what_is_wrong_is_said_with_names(saved, prismm_main: Run, folder: Path) -> None:
    np.save(folder / "small", np.eye(3))
    np.save(folder / "flags", np.eye(3) > 0)
    for c, words in (("small.npy", "has shape (3, 3)"), ("flags.npy", "bool"), ("none.npy", "none.npy")):
        said = prismm_main("check", "a.npy", "b.npy", c).refused()
        assert words in said and c in said
    assert "ends in .png" in prismm_main("check", "a.npy", "b.npy", "c.npy", "--plot", "x.pdf").refused()
    assert "ends in .html" in prismm_main("check", "a.npy", "b.npy", "c.npy", "--html", "x.txt").refused()


def test_block_maxima(rng) -> None:
    values = rng.random((101, 37))
    found = block_maxima(values, 10)
    assert found.shape == (10, 10)  # blocks of 11 rows and 4 columns
    assert found[0, 0] == values[:11, :4].max() and found[-1, -1] == values[99:, 36:].max()
    assert found.max() == values.max()
