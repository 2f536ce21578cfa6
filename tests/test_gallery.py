"""The gallery: its page says what the committed rows say, its figures are those of the page, and they can be drawn."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))
gallery, concepts = (importlib.import_module(name) for name in ("gallery", "concepts"))
FIGURES = ROOT / "docs" / "figures" / "gallery"


def test_the_page_is_that_of_the_rows() -> None:
    committed = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert gallery.page(BENCHMARKS / "results") == committed, "run make gallery"


def test_every_figure_is_committed_and_small() -> None:
    drawn = {path.stem: path.stat().st_size for path in FIGURES.glob("*.png")}
    assert set(drawn) == {figure.name for figure in gallery.FIGURES}
    assert max(drawn.values()) < 100_000 and sum(drawn.values()) < 600_000


def test_commands_exist() -> None:
    for figure in gallery.FIGURES:
        for name in re.findall(r"python ([\w/.]+)", figure.command):
            assert (ROOT / name).exists(), name


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gallery.write_all(BENCHMARKS / "results", tmp_path)
    for figure in gallery.FIGURES:
        image = (tmp_path / "figures" / "gallery" / f"{figure.name}.png").read_bytes()
        assert image.startswith(b"\x89PNG"), figure.name


def test_committed_parts_of_the_row_are_those_of_the_splits() -> None:
    """The first picture's rows are exact, so every machine makes the same ones."""
    rows = [row for row in gallery.read(BENCHMARKS / "results" / "concepts.csv") if row["figure"] == "split"]
    made = list(concepts.split())
    assert len(rows) == len(made) > 80
    for row, other in zip(rows, made, strict=True):
        assert {**row, "value": 0} == {**other, "value": 0}
        assert row["value"] == pytest.approx(other["value"], rel=1e-4)
