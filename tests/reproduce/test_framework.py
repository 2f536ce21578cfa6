"""Runs, restarts and verdicts of `prismm reproduce`, on an experiment small enough to check by looking."""

from __future__ import annotations

import csv
import doctest
import importlib
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prismm.core.extras import install
from prismm.errors import ArgumentError, FileError
from prismm.reproduce import PAPERS, claims, framework, load, plot, reference
from prismm.reproduce.claims import Claim, Rule, at_least, at_most, between, equals, falls, rises, within
from prismm.reproduce.framework import Row, Rows
from prismm.reproduce.run import run
from prismm.reproduce.store import COLUMNS, Store

from .toy import Toy


def test_docstrings() -> None:
    for module in (importlib.import_module("prismm.reproduce"), claims, framework, reference):
        found = doctest.testmod(module)
        assert found.failed == 0 and found.attempted > 0


def test_names_are_known_without_anything_heavy() -> None:
    program = """
import sys, prismm.reproduce
print([name for name in ("numpy", "torch", "numba", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(ArgumentError, match=r"no experiment 'tf32'; pass one of tf32-tf64, mixpert"):
        load("tf32")


@pytest.mark.parametrize("name", PAPERS)
def test_every_name_is_an_experiment_of_distinct_points(name: str) -> None:
    experiment = load(name)
    assert experiment.name == name
    for size in ("quick", "default", "full"):
        assert len(experiment.points_of(size)) >= 2
    assert {claim.where for claim in experiment.claims}
    for claim in experiment.claims:
        assert claim.judge(Rows([])).verdict in ("no data", "not here"), claim.what  # nothing holds vacuously


RULES: list[tuple[Rule, list[float], list[float]]] = [
    (within(2, 4.0), [2.0, 8.0], [8.1]),
    (within(1.1, 1e-7), [1e-7], [1.2e-7, 1e-7]),
    (between(1.0, 2.0), [1.0, 2.0], [2.5, 1.5]),
    (at_most(1.0), [-5.0, 1.0], [1.0, 1.0 + 2**-52]),
    (at_least(1.0), [1.0, math.inf], [0.999]),
    (equals(66.0), [66.0], [66.0, 65.0]),
    (falls(), [3.0, 4.0, 1.0], [3.0, 4.0, 3.0]),
    (falls(2.0), [3.0, 1.0], [3.0, 1.5]),
    (rises(), [1.0, 1.0, 2.0], [1.0, 2.0, 1.5, 3.0]),
    (rises(strictly=True), [1.0, 2.0], [1.0, 1.0, 2.0]),
]


@pytest.mark.parametrize(("rule", "good", "bad"), RULES, ids=[rule.text for rule, _, _ in RULES])
def test_rules_hold_and_fail(rule: Rule, good: list[float], bad: list[float]) -> None:
    assert rule.holds(good)
    assert not rule.holds(bad)
    assert not rule.holds([])
    assert not rule.holds([*good, math.nan])


@pytest.mark.parametrize("rule", [falls(), rises(), rises(strictly=True)])
def test_one_number_has_no_trend(rule: Rule) -> None:
    assert not rule.holds([1.0])


def test_a_claim_cannot_have_both_a_rule_and_a_missing_device() -> None:
    with pytest.raises(ValueError, match="only one of them"):
        Claim("", "speed", "2x", equals(2.0), device="a GPU")


def test_verdicts(tmp_path: Path) -> None:
    found = run(Toy().experiment(), tmp_path, "quick").comparisons
    assert [c.verdict for c in found] == ["holds", "differs", "no data", "not here", "ours alone"]
    assert [c.rule for c in found] == ["<= 1", "= 2", "= 1", "needs a GPU", "open question"]
    assert (found[1].ours, found[2].ours, found[4].ours) == ("nan (4)", "-", "8")


def test_ratios_and_curves() -> None:
    rows = Rows(
        [Row("1", s, "e", v, "n", n) for s, v, n in (("a", 6.0, 8), ("a", 1.0, 2), ("b", 3.0, 8), ("b", 0.0, 4))]
    )
    assert rows.curve("1", "a", "e") == {2: 1.0, 8: 6.0}
    assert rows.ratios("1", "a", "b", "e") == [2.0]
    assert rows.ratios("1", "a", "b", "e", least=9) == []
    assert rows.ratios("1", "b", "b", "e") == [1.0, 1.0]


def text_without_seconds(path: Path) -> list[list[str]]:
    return [line[:-1] for line in csv.reader(path.read_text(encoding="utf-8").splitlines())]


def test_an_interrupted_run_continues_to_the_same_rows(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir()
    halves.mkdir()
    once = run(Toy().experiment(), whole, "quick", seed=3)
    toy = Toy(stop_at="n=3")
    with pytest.raises(KeyboardInterrupt):
        run(toy.experiment(), halves, "quick", seed=3)
    assert toy.ran == ["n=1", "n=2"]
    kept = text_without_seconds(halves / "toy-quick.csv")
    assert [line[2] for line in kept[1:]] == ["n=1", "n=1", "n=2", "n=2"]
    toy.stop_at = ""
    seen: list[tuple[str, int, int]] = []
    again = run(toy.experiment(), halves, "quick", seed=3, started=lambda *at: seen.append(at))
    assert toy.ran == ["n=1", "n=2", "n=3", "n=4"]  # what was finished did not run again
    assert (again.kept, again.points) == (2, 4)
    assert seen[-1] == ("", 4, 4) and [at for _, at, _ in seen] == [0, 1, 2, 3, 4]
    assert text_without_seconds(once.csv) == text_without_seconds(again.csv)
    assert text_without_seconds(again.csv)[:3] == kept[:3]


def test_a_finished_run_is_kept_and_fresh_measures_anew(tmp_path: Path) -> None:
    run(Toy().experiment(), tmp_path, "quick")
    toy = Toy()
    assert run(toy.experiment(), tmp_path, "quick").kept == 4
    assert toy.ran == []
    assert run(toy.experiment(), tmp_path, "quick", fresh=True).kept == 0
    assert len(toy.ran) == 4
    assert run(Toy().experiment(), tmp_path).csv.name == "toy.csv"  # another size has a file of its own


@pytest.mark.parametrize("what", ["seed", "version", "source"])
def test_runs_are_never_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    run(Toy().experiment(), tmp_path, "quick")
    if what == "source":
        monkeypatch.setattr("prismm.reproduce.store._SOURCES", ("schemes",))
    with pytest.raises(FileError, match="another run"):
        run(Toy().experiment(version=2 if what == "version" else 1), tmp_path, "quick", seed=int(what == "seed"))


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy-quick.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(FileError, match=r"toy-quick\.csv: not a result of prismm reproduce; pass --fresh"):
        run(Toy().experiment(), tmp_path, "quick")
    run(Toy().experiment(), tmp_path, "quick", fresh=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text(
        "\n".join([*lines[:-1], lines[-1].replace("-0.333", "x0.333").replace("nan", "x")]), encoding="utf-8"
    )
    with pytest.raises(FileError, match="line 9 makes no sense"):
        run(Toy().experiment(), tmp_path, "quick")
    path.write_text("\n".join(line.replace("n=4", "n=5") for line in lines), encoding="utf-8")
    with pytest.raises(FileError, match="holds points that this experiment lacks"):
        run(Toy().experiment(), tmp_path, "quick")
    with pytest.raises(FileError, match=r"toy-quick\.csv: cannot be written: File exists"):
        run(Toy().experiment(), path, "quick")
    assert run(Toy().experiment(), tmp_path / "a" / "b", "quick").csv.is_file()
    with pytest.raises(ArgumentError, match="two points of the same key"):
        run(Toy().experiment(), tmp_path, "full")


def test_seeds(tmp_path: Path) -> None:
    """Values depend on the seed and the point's key, not on which points ran before."""
    point = Toy().experiment().points("quick")[1]
    assert point.measure(5) == point.measure(5)
    assert point.measure(5)[0] != point.measure(6)[0]
    result = run(Toy().experiment(), tmp_path, "quick", seed=5)
    assert result.rows.curve("1", "line", "value")[2] == point.measure(5)[0].value
    assert len(set(result.rows.curve("1", "line", "value").values())) == 4


def test_csv_keeps_every_bit(tmp_path: Path) -> None:
    rows = [
        Row("1", 'a, "b"', "e", value, "n", x) for value, x in ((1 / 3, 5e-324), (-0.0, 2.0**-149), (math.inf, 1e308))
    ]
    store = Store(tmp_path / "x.csv", "toy", "run")
    store.add("p", 1.25, rows)
    again = Store.open(store.path, "toy", "run")
    assert again.points == {"p": (1.25, rows)}
    assert math.copysign(1, again.points["p"][1][1].value) == -1
    assert tuple(text_without_seconds(store.path)[0]) == COLUMNS[:-1]
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.slow
def test_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    result = run(Toy().experiment(), tmp_path, "quick")
    path = tmp_path / "toy.png"
    plot.draw(Toy().experiment().panels, result.rows, path, "toy")
    assert path.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(plot.PlotError, match=re.escape(install("plot"))):
        plot.draw(Toy().experiment().panels, result.rows, path, "toy")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x == "tensor-core-numerics" else [pytest.mark.slow]) for x in PAPERS]
)
def test_figures_can_be_read(name: str) -> None:
    """At a page's width: text of 8 points or more, whole titles, and no colour and mark twice in a panel."""
    rows = committed_rows(name)
    figure = plot.figure_of(load(name).panels, rows, PAPERS[name].citation)
    width = figure.get_size_inches()[0]
    assert width <= 7.0
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    FigureCanvasAgg(figure).draw()
    assert not [text for text in figure.findobj(Text) if text.get_text() and text.get_fontsize() < 8.0]
    for ax in figure.axes:
        lines = [(line.get_color(), line.get_marker()) for line in ax.get_lines() if line.get_marker() != "None"]
        assert len(set(lines)) == len(lines), ax.get_title()
        box = ax.title.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= width * figure.dpi, ax.get_title()
        legend = ax.get_legend()
        if legend is not None:
            assert legend.get_window_extent().y1 <= ax.xaxis.label.get_window_extent().y0 + 1, ax.get_title()
    published = [panel for panel in load(name).panels if panel.published or panel.levels or panel.band]
    assert published or any("Eq." in row.series for row in rows)


def committed_rows(name: str) -> Rows:
    """The rows of the results that the documentation shows."""
    path = Path(__file__).parents[2] / "docs" / "reproduce" / f"{name}.csv"
    with path.open(encoding="utf-8") as stream:
        return Rows(
            Row(x["figure"], x["series"], x["measure"], float(x["value"]), x["variable"], float(x["x"]))
            for x in csv.DictReader(stream)
        )


def test_a_rule_for_larger_sizes() -> None:
    """Breaking it at a small size says nothing; keeping it holds."""
    rows = Rows([Row("1", "a", "e", 2.0)])
    for limit, size, verdict in (
        (1.0, "quick", "too small"), (1.0, "default", "differs"), (1.0, "full", "differs"), (2.0, "quick", "holds"),
    ):  # fmt: skip
        claim = Claim("", "", "", at_most(limit), lambda rows: [row.value for row in rows], least="default")
        assert claim.judge(rows, size).verdict == verdict  # type: ignore[arg-type]
