"""`prismm reproduce`: its list, its tables, its files, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prismm.core.extras import install
from prismm.reproduce import PAPERS, load
from prismm.reproduce.store import COLUMNS
from tests.cli.pages import parsed

VERDICTS = {"holds", "differs", "too small", "no data", "not here", "ours alone"}


def test_list(prismm_main: Callable[..., object]) -> None:
    for arguments in ((), ("--list",), ("h2sgemm", "--list")):
        code, out, err = prismm_main("reproduce", *arguments)
        assert (code, err) == (0, "")
        for name, paper in PAPERS.items():
            assert name in out and paper.title in out and paper.citation in out
    listed = prismm_main("reproduce", "--list", "--json").json()
    assert [paper["name"] for paper in listed["experiments"]] == list(PAPERS)


@pytest.mark.slow
def test_a_run_leaves_a_table_a_csv_and_a_plot(prismm_main: Callable[..., object], folder: Path) -> None:
    code, out, err = prismm_main("reproduce", "tensor-core-numerics", "--quick")
    assert code == 0
    assert "Numerical Behavior of NVIDIA Tensor Cores" in out
    head = next(line for line in out.splitlines() if line.startswith("verdict"))
    assert head.split() == ["verdict", "where", "what", "published", "ours", "rule"]
    assert re.fullmatch(r"\d+ holds, \d+ differs, 1 not here, \d+ ours alone", out.splitlines()[3])
    assert "DIFFERS" in out and "holds" in out and "needs an engine with an accumulator input" in out
    assert "rows in tensor-core-numerics-quick.csv, plot in tensor-core-numerics-quick.png" in err
    rows = list(csv.DictReader(Path("tensor-core-numerics-quick.csv").read_text(encoding="utf-8").splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert {row["experiment"] for row in rows} == {"tensor-core-numerics"}
    assert {row["point"] for row in rows} == {p.key for p in load("tensor-core-numerics").points_of("quick")}
    assert (folder / "tensor-core-numerics-quick.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_and_a_folder_of_its_own(prismm_main: Callable[..., object], folder: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--out", "new/folder", "--html", "page.html")
    assert ran.code == 0 and (folder / "new" / "folder" / "tensor-core-numerics-quick.csv").is_file()
    page = parsed(folder / "page.html")
    text = " ".join(page.text)
    assert ran.out.splitlines()[3] in text and "{3.23}" in text and "DIFFERS" in text
    assert page.count["img"] == 1 and page.count["table"] == 1


def test_json_is_data_alone_and_a_second_run_keeps_what_is_there(prismm_main: Callable[..., object]) -> None:
    first = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--json")
    content = first.json()
    assert {found["verdict"] for found in content["comparisons"]} <= VERDICTS
    assert content["csv"] == "tensor-core-numerics-quick.csv" and "seed=0" in content["run"]
    assert content["rows"] and set(content["rows"][0]) == {"figure", "series", "measure", "value", "variable", "x"}
    again = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--json")
    assert "5 of 5 points kept" in again.err and "kept" not in first.err
    assert again.json()["rows"] == content["rows"]


def test_refusals(prismm_main: Callable[..., object], folder: Path) -> None:
    assert "pass one of tf32-tf64, mixpert" in prismm_main("reproduce", "ozaki").refused()
    assert "exclude each other" in prismm_main("reproduce", "mixpert", "--quick", "--full").refused()
    assert "--quick needs the NAME of an experiment" in prismm_main("reproduce", "--quick").refused()
    (folder / "file").write_text("")
    assert "cannot be written" in prismm_main("reproduce", "tensor-core-numerics", "--quick", "--out", "file").refused()
    assert "exists already" in prismm_main("reproduce", "tensor-core-numerics", "--html", "file").refused()
    prismm_main("reproduce", "tensor-core-numerics", "--quick")
    refused = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--seed", 1).refused()
    assert "another run" in refused and "--fresh" in refused
    assert prismm_main("reproduce", "tensor-core-numerics", "--quick", "--seed", 1, "--fresh")[0] == 0


def test_without_matplotlib_the_rows_are_written_all_the_same(
    prismm_main: Callable[..., object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--json")
    assert code == 0 and json.loads(out)["plot"] is None
    assert f"no plot: plots need matplotlib; install it with: {install('plot')}" in err
    assert (folder / "tensor-core-numerics-quick.csv").exists()
    assert not (folder / "tensor-core-numerics-quick.png").exists()


def test_an_interruption_exits_with_130_and_says_how_to_go_on(
    prismm_main: Callable[..., object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prismm.reproduce import tensor_core_numerics as experiment

    whole = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--json").json()
    (folder / "tensor-core-numerics-quick.csv").unlink()
    bits = experiment._extra_bits

    def stop(engine: str) -> float:
        if engine == "simulated:ampere":
            raise KeyboardInterrupt
        return bits(engine)

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "_extra_bits", stop)
        code, out, err = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--json")
    assert (code, out) == (130, "")
    assert "interrupted: 3 points are kept in .; the same command without --fresh continues" in err
    again = prismm_main("reproduce", "tensor-core-numerics", "--quick", "--json")
    assert "3 of 5 points kept" in again.err
    assert again.json()["rows"] == whole["rows"]
