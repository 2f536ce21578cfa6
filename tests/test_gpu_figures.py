"""benchmarks/gpu_figures.py and gpu_plots.py without a GPU: what is measured, how rows become figures and a page."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from prismm.reproduce.algorithm3 import sum_of_slices
from prismm.schemes import Residues, Slices
from prismm.testing import exact_product

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))
figures, plots, drawing, paper, races, ozaki, pipeline, processes, common = (
    importlib.import_module(name)
    for name in (
        "gpu_figures", "gpu_plots", "_gpu_drawing", "_gpu_paper_plots", "_gpu_races", "_gpu_ozaki", "_gpu_pipeline",
        "_gpu_processes", "_common",
    )
)  # fmt: skip

SERIES = {
    "pareto-float64": figures.WIDE, "pareto-float32": figures.NARROW, "mixpert-2": (*figures.MIXPERT, races.TF32),
}  # fmt: skip


@pytest.mark.parametrize("module", [plots, drawing, races, ozaki], ids=lambda module: module.__name__)
def test_examples(module):
    assert doctest.testmod(module).failed == 0


def session(folder, **more):
    return races.Session("cpu", seconds=0.0, least=2, folder=folder, **more)


def rows_of(folder):
    return drawing.read(folder / "gpu_figures.csv")


def small(*ways, **more):
    return races.square("some", "float64", 48, (races.NATIVE, *ways), **more)


def test_a_group_gives_throughput_ratio_and_error(tmp_path):
    ways = races.Way("Residues", {"scheme": Residues(12)}, x=12), races.Way("none", {"scheme": "none"})
    races.run(small(*ways, counts="counted"), session(tmp_path))
    found = rows_of(tmp_path)
    assert [(row["series"], row["x"], row["unit"]) for row in found] == [
        ("cuBLAS", 48, "TFLOP/s"), ("Residues", 12, "TFLOP/s"), ("Residues", 12, "times cuBLAS"),
    ]  # fmt: skip
    assert all(row["low"] <= row["value"] <= row["high"] and row["repeats"] == 2 for row in found)
    a, b = races.operands("float64", 48, 48, 48, None, "cpu")
    exact = exact_product(a[:8].numpy(), b.numpy())
    own = np.linalg.norm(exact.error((a @ b)[:8].numpy())) / np.linalg.norm(exact.rounded(np.float64))
    # The wider type errs by 2^-64 where the product errs by 2^-53, 48 times at most.
    assert found[0]["error"] == pytest.approx(own, rel=48 * 2.0**-11)
    assert found[1]["error"] > found[0]["error"] and found[1]["scheme"] == "Residues(moduli=12)"


def test_a_session_that_is_late_begins_nothing(tmp_path):
    races.run(small(), session(tmp_path, deadline=0.0))
    assert not rows_of(tmp_path)


def test_rows_are_written_again_only_where_they_differ(tmp_path):
    one = session(tmp_path)
    one.add("f", "s", 1, [1.0, 2.0, 3.0], "TFLOP/s", 1e-3)
    another = session(tmp_path)
    another.add("f", "s", 1, [5.0], "TFLOP/s")
    another.add("f", "s", 1, [7.0], "ms", part="split_rows")
    found = rows_of(tmp_path)
    assert [(row["value"], row["unit"], row["part"]) for row in found] == [(5, "TFLOP/s", ""), (7, "ms", "split_rows")]


def test_calls_take_turns_and_slow_ones_fewer(tmp_path):
    log: list[str] = []

    def timer(call):
        call()
        return 0.6 if log[-1] == "slow" else 1e-3

    calls = {name: lambda name=name: log.append(name) for name in ("slow", "fast")}
    times = races.race(calls, timer, races.Session("cpu", seconds=9.0, folder=tmp_path))
    assert log == ["slow", "fast"] * 9 and times == {"slow": [0.6] * 9, "fast": [1e-3] * 9}
    log.clear()
    races.race({"slow": calls["slow"], "again": calls["slow"]}, timer, races.Session("cpu", folder=tmp_path))
    assert log == ["slow"] * 4


def test_slices_that_an_engine_does_not_estimate_are_estimated():
    a, b = races.operands("float64", 96, 96, 96, 0.1, "cpu")
    way = races.Way("Slices", {"scheme": Slices("int8", "DP", fast=True)})
    asked, given = [form["scheme"] for form in races.forms(way, a, b)]
    assert asked.slices is None and given.slices is not None
    assert abs(given.slices - asked.expected(96)) <= 1
    assert len(list(races.forms(races.Way("CR", {"scheme": Slices("int8", "CR")}), a, b))) == 1


@pytest.mark.parametrize(("dtype", "roundoff"), [("float64", 2.0**-53), ("float32", 2.0**-24)])
def test_published_slices_are_the_listings(dtype, roundoff):
    """Bit for bit those of NumPy's twin, when it takes as many slices: sums are made in the same order."""
    a, b = races.operands(dtype, 64, 40, 64, 1.0, "cpu")
    out = torch.empty(64, 40, dtype=a.dtype)
    slices, fast, bits = ozaki.slices_for(a, b)
    ozaki.multiply(a, b, out, slices, fast, bits)
    expected = sum_of_slices(a.double().numpy(), b.double().numpy(), bits, roundoff)
    assert np.array_equal(out.numpy(), expected.astype(out.numpy().dtype))


def test_every_figure_has_groups_and_their_calls_are_compiled_once():
    for quick in (True, False):
        tasks = figures.tasks(list(figures.GROUPS), quick)
        assert len({repr(task) for task in tasks}) == len(tasks)
        for name, (group, place) in tasks:
            assert name == "compile" and not group.ways[place].own
            assert max(group.m, group.n) <= figures.COMPILED
    assert {group.figure for make in figures.GROUPS.values() for group in make(False)} >= set(figures.GROUPS) - {
        "h2sgemm-11"
    }


def test_variants_fit_and_do_not_wait_for_themselves():
    found = pipeline.variants()
    assert all(variant.runs for variant in found) and len(set(found)) == len(found)
    assert len({(variant.series, variant.x) for variant in found}) == len(found)
    assert pipeline.Variant(True, 64, depth=64, stages=1) in found
    assert not pipeline.Variant(True, 256, depth=64, stages=1).runs
    assert not pipeline.Variant(True, 256, depth=64, stages=4).runs
    assert {variant.stages for variant in found if not variant.hopper} == {1, 2, 3, 4}


@pytest.mark.parametrize("variant", [pipeline.Variant(True, 64, depth=32, stages=5, group=4),
                                     pipeline.Variant(False, rows=64, columns=32, depth=32, stages=2)])  # fmt: skip
def test_a_variant_changes_the_product_alone(variant):
    pytest.importorskip("triton")
    device = pipeline.Device("none", True, True, 132)
    a, b = races.operands("float32", 300, 200, 256, None, "cpu")
    out = torch.empty(300, 200)
    program = pipeline.program_of(a, b, out, variant, device)
    usual = pipeline.program_of(a, b, out, pipeline.Variant(variant.hopper, variant.chunk), device)
    changed = []
    for launch, other in zip(program.launches, usual.launches, strict=True):
        if launch.constants != other.constants:
            changed.append(launch.kernel.fn.__name__)
    assert changed == ["words_product"]
    (launch,) = (launch for launch in program.launches if launch.kernel.fn.__name__ == "words_product")
    assert launch.constants["DEPTH"] == variant.depth and launch.constants["GROUP"] == variant.group
    if variant.hopper:
        assert launch.arguments[0].box == (128, 32) and launch.constants["CHUNK"] == 2
    else:
        assert launch.grid == (5 * 7, 1, 1) and launch.constants["num_stages"] == 2


@pytest.mark.slow
def test_processes_share_the_work(tmp_path):
    group = races.Group("shared", "float32", 32, 32, 64, 32, (races.NATIVE, races.Way("default")))
    processes.share(group, (1, 2), session(tmp_path), rounds=1, seconds=0.05)
    found = rows_of(tmp_path)
    assert {(row["series"], row["x"]) for row in found} == {(s, n) for s in ("cuBLAS", "default") for n in (1, 2)}
    with processes.Pool(1, "cpu") as pool:
        tasks = [("compile", (group, 1)), ("compile", (group, 7)), ("compile", (group, 0))]
        assert pool.spread(tasks, 60.0) == 3


@pytest.mark.slow
def test_the_script_runs_on_a_cpu(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu_figures.py"), "--device", "cpu", "--quick", "--compile", "0"]
    wanted = "mixpert-2,dgemm-tc-9,h2sgemm-10"
    done = subprocess.run([*command, "--folder", str(tmp_path), "--figures", wanted], capture_output=True, text=True)
    assert done.returncode == 0 and "failed" not in done.stderr, done.stderr[-3000:]
    assert {row["figure"] for row in rows_of(tmp_path)} == {"mixpert-2", "dgemm-tc-9"}


# Figures and the page.


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The committed CSVs of other benchmarks, and a gpu_figures.csv in which every figure has rows."""
    folder = tmp_path_factory.mktemp("results")
    for name in ("gpu_gemm", "gpu_peers", "apps"):
        (folder / f"{name}.csv").write_text((BENCHMARKS / "results" / f"{name}.csv").read_text())
    rows = []

    def add(figure, series, x, unit, value, part="", error=""):
        rows.append({
            "figure": figure, "series": series, "part": part, "x": x, "value": value, "low": 0.9 * value,
            "high": 1.1 * value, "unit": unit, "error": error, "scheme": "", "repeats": 3, "gpu": "some",
        })  # fmt: skip

    for name, make in figures.GROUPS.items():
        for group in make(False):
            for place, way in enumerate(group.ways):
                series, x = races.series_of(way, group), group.x if way.x is None else way.x
                for n in (1, 8) if name == "mixpert-12" else (x,):
                    add(group.figure, series, n, "TFLOP/s", 10.0 + place, error=10.0 ** -(5 + place % 9))
                    if not way.native:
                        add(group.figure, series, n, "times cuBLAS", 0.5 + place)
                if group.counts and ("slices" in series or "Slices" in series):
                    add(group.counts, series, group.x, "products", 28)
                if group.parts and not way.own:
                    for part in ("slice_rows", "slice_product", "join_slices", "repair_slices"):
                        add(group.parts, series, group.x, "ms", 1.0 + place, part=part)
    for place, variant in enumerate(pipeline.variants()):
        add("h2sgemm-10", variant.series, variant.x, "TFLOP/s", 50.0 + place, error=1e-7)
    common.write("gpu_figures", rows, races.KEY, folder)
    return folder


@pytest.mark.slow
def test_every_figure_is_drawn_and_stands_on_the_page(results, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = plots.write_all(drawing.Tables.of(results), tmp_path)
    assert drawn == [page.name for page in plots.PAGES]
    text = (tmp_path / "gpu_figures.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(figures/gpu/(\w+)\.png\)", text) == drawn
    for name in drawn:
        image = (tmp_path / "figures" / "gpu" / f"{name}.png").read_bytes()
        assert image.startswith(b"\x89PNG") and 5_000 < len(image) < 200_000, name
    assert "Not measured" not in text and "nan" not in text
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("!["))


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes(results, tmp_path):
    pytest.importorskip("matplotlib")
    tables = drawing.Tables.of(results)
    for folder in ("one", "two"):
        plots.save(plots.pareto(tables), tmp_path / folder / "pareto.png")
    assert (tmp_path / "one" / "pareto.png").read_bytes() == (tmp_path / "two" / "pareto.png").read_bytes()


@pytest.mark.slow
def test_committed_results_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = plots.write_all(drawing.Tables.of(BENCHMARKS / "results"), tmp_path)
    assert {"throughput", "breakdown", "mixpert_8"} <= set(drawn)
    committed = (ROOT / "docs" / "gpu_figures.md").read_text(encoding="utf-8")
    assert re.findall(r"figures/gpu/(\w+)\.png", committed) == drawn, "run benchmarks/gpu_plots.py"


def test_without_rows_there_is_a_page_without_figures(tmp_path):
    assert plots.write_all(drawing.Tables.of(tmp_path), tmp_path) == []
    assert "Not measured" in (tmp_path / "gpu_figures.md").read_text(encoding="utf-8")


def test_the_frontier_holds_what_nothing_beats(rng):
    rows = [{"value": float(x), "error": float(y)} for x, y in rng.integers(1, 9, (40, 2))]
    best = plots.frontier([*rows, {"value": 99.0, "error": ""}])
    for row in rows:
        beaten = any(
            (o["value"] > row["value"] and o["error"] <= row["error"])
            or (o["value"] >= row["value"] and o["error"] < row["error"])
            for o in rows
        )
        assert (row in best) != beaten


def test_kernels_belong_to_stages():
    kernels = {
        "split": "largest_columns sum_columns split_columns split_rows split_rows_at_once split_columns_at_once "
        "split_words slice_rows slice_columns survey_tiles scale_tiles split_tiles",
        "multiply": "residue_product words_product slice_product tile_product",
        "join": "join_quickly join_slices",
        "certify, repair": "look_again finish finish_native magnitude_planes settle_open "
        "repair_words repair_slices certify_tiles sum_tiles",
    }
    for stage, names in kernels.items():
        assert {drawing.stage_of(name) for name in names.split()} == {stage}
    parts = drawing.stages({"split_rows": 1.0, "split_columns": 2.0, "finish": 4.0, "unheard_of": 8.0})
    assert parts == {"split": 3.0, "certify, repair": 4.0, "other": 8.0}


def test_peers_name_their_source():
    rows = drawing.read(BENCHMARKS / "results" / "gpu_peers.csv")
    assert rows and all(row["source"] and row["tflops"] > 0 for row in rows)
    assert {row["dtype"] for row in rows} == {"float64", "float32"}
