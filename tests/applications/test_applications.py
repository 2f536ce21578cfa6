"""Whole programs: their criteria, and their references against plainly exact arithmetic."""

from __future__ import annotations

import csv
import importlib
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm.applications import NAMES, application
from prismm.core.extras import install


def load(name: str) -> ModuleType:
    return importlib.import_module(f"prismm.applications.{name}")


def apps() -> list[Any]:
    """Modules and the names of their programs."""
    return [
        (name, key)
        for name in NAMES
        for key, value in vars(load(name)).items()
        if isinstance(value, application.Application)
    ]


@pytest.mark.parametrize(
    ("name", "key", "way"),
    [
        pytest.param(name, key, "default", marks=[pytest.mark.slow] if name == "mlp" or key == "DIGITS" else [])
        for name, key in apps()
    ]
    + [(name, "APP", "correctly-rounded") for name in ("hpl_mxp", "cholesky", "knn", "kmeans", "mlp")],
)
def test_criteria_hold(name: str, key: str, way: str, seed: int) -> None:
    if name == "bert":
        pytest.importorskip("transformers")
    app = getattr(load(name), key)
    size = {"hpl-mxp": 200, "cholesky": 200, "knn": 512, "kmeans": 512}.get(app.name, app.sizes["quick"])
    for dtype in app.dtypes:
        rows = list(application.measure(app, "cpu", size, seed % 1000, dtype, [way], 1))
        assert [row["way"] for row in rows] == ["native", way]
        for row in rows:
            assert row["passed"], row
            assert row["speed"] > 0
        if way == "correctly-rounded" and app.name in ("hpl-mxp", "cholesky", "mlp"):
            assert rows[1]["error"] <= 1.5 * rows[0]["error"]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "key"), apps())
def test_criteria_hold_on_a_gpu(name: str, key: str, seed: int) -> None:
    if name == "bert":
        pytest.importorskip("transformers")
    app = getattr(load(name), key)
    for dtype in app.dtypes:
        for row in application.measure(
            app, "cuda", app.sizes["quick"], seed % 1000, dtype, ["tf32", "bf16", "default", "correctly-rounded"], 1
        ):
            assert row.get("passed") or not row["guaranteed"], row


@pytest.mark.gpu
def test_the_tuner_on_a_gpu() -> None:
    tuning = load("tuning")
    for case in tuning.cases("cuda", quick=True):
        for row in tuning.compare(case, "cuda", [2e-5], print, 4, 4):
            assert row["broken"] == 0
            assert row["times"] == "measured"


# --- HPL-MxP ----------------------------------------------------------------------------------------


def test_the_matrix_is_the_benchmark_s(seed: int) -> None:
    hpl = load("hpl_mxp")
    state, numbers = seed, []
    for _ in range(35):
        state = (state * 6364136223846793005 + 1) % 2**64
        numbers.append(state / 2**64 - 0.5)
    found = hpl.uniform(5, 7, seed, "cpu")
    # A state becomes a double, and half a turn goes: two roundings here, other two there.
    assert torch.allclose(found.flatten(), torch.tensor(numbers, dtype=torch.float64), rtol=0, atol=2.0**-53)
    a = hpl.make(50, 3, "cpu", torch.float32).a
    rest = a.abs().sum(1) - a.diagonal()
    assert torch.allclose(a.diagonal(), rest, rtol=1e-14)


@pytest.mark.covering("order")
@pytest.mark.parametrize("order", [37, 512, 513, 1025])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hpl_passes_at_every_order(order: int, dtype: torch.dtype, seed: int) -> None:

    hpl = load("hpl_mxp")
    system = hpl.make(order, seed, "cpu", dtype)
    with prismm.emulate("native"):
        verdict = hpl.judge(system, hpl.solve(system), hpl.refer(system))
    assert verdict.passed, verdict


@pytest.mark.parametrize("scheme", ["residues:4", "residues:3", "words:tf32x1"])
def test_refinement_makes_up_for_a_coarse_factorisation(scheme: str, seed: int) -> None:
    """Factors of three digits need a step or two more of GMRES than those of seven, no more."""
    hpl = load("hpl_mxp")
    system = hpl.make(640, seed, "cpu", torch.float32)
    with load("ways").way(scheme, "cpu").context():
        found = hpl.solve(system)
    verdict = hpl.judge(system, found, hpl.refer(system))
    assert verdict.passed, verdict
    assert verdict.error > 1e-6
    assert found.iterations <= 4


def test_hpl_s_residual_is_what_fractions_say(rng: np.random.Generator) -> None:
    hpl = load("hpl_mxp")
    system = hpl.make(12, 5, "cpu", torch.float32)
    x = torch.from_numpy(rng.standard_normal(12))
    a, b, exact = system.a.tolist(), system.b.tolist(), [Fraction(v) for v in x.tolist()]
    worst = max(
        abs(sum(Fraction(c) * v for c, v in zip(row, exact, strict=True)) - Fraction(right))
        for row, right in zip(a, b, strict=True)
    )
    weight = max(sum(map(abs, row)) for row in a) * max(map(abs, x.tolist())) + max(map(abs, b))
    assert hpl.scaled_residual(system, x) == pytest.approx(float(worst) / weight / (12 * 2.0**-53), rel=1e-12)


def test_a_wrong_solution_fails(seed: int) -> None:
    hpl = load("hpl_mxp")
    system = hpl.make(64, seed, "cpu", torch.float32)
    found = hpl.solve(system)
    wrong = hpl.Solution(found.x * (1 + 1e-9), found.factors, found.iterations)
    assert not hpl.judge(system, wrong, hpl.refer(system)).passed


# --- Cholesky ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 64, 65, 200, 384])
def test_the_factor_is_lapack_s(order: int) -> None:
    cholesky = load("cholesky")
    a = cholesky.make(order, 0, "cpu", torch.float64)
    assert torch.allclose(cholesky.solve(a, 64), torch.linalg.cholesky(a), rtol=0, atol=1e-12)
    wrong = cholesky.solve(a, 64) * (1 + 1e-11)
    assert not cholesky.judge(a, wrong, cholesky.refer(a)).passed


# --- CCC --------------------------------------------------------------------------------------------


def test_tables_count_alleles() -> None:
    ccc = load("ccc")
    second = ccc.make(6, 1, "cpu", torch.float32)
    alleles = np.concatenate([2 - second.numpy(), second.numpy()]).astype(int)
    tables = ccc.solve(second)
    assert (tables.counts.numpy() == alleles @ alleles.T).all()
    people = second.shape[1]
    for i, j in ((0, 7), (3, 3), (11, 2)):
        f, g = (Fraction(int(alleles[v].sum()), 2 * people) for v in (i, j))
        exact = Fraction(9, 2) * Fraction(int(alleles[i] @ alleles[j]), 4 * people)
        exact *= (1 - f * Fraction(2, 3)) * (1 - g * Fraction(2, 3))
        assert float(tables.correlation[i, j]) == pytest.approx(float(exact), rel=1e-6)
    tables.counts[0, 0] += 1
    assert not ccc.judge(second, tables, ccc.refer(second)).passed


# --- kNN and k-means --------------------------------------------------------------------------------


def integers(x: torch.Tensor) -> np.ndarray[Any, Any]:
    return x.numpy().astype(np.int64).astype(object)


def test_neighbours_are_those_of_integer_arithmetic(seed: int) -> None:
    """With many ties: coordinates of 0 to 2."""
    knn = load("knn")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 3, (160, 5), generator=generator).float()
    problem = knn.split(x, torch.randint(0, 4, (160,), generator=generator), 20)
    answer, (labels, near, _) = knn.solve(problem), knn.refer(problem)
    queries, points = integers(problem.queries), integers(problem.points)
    for i, query in enumerate(queries):
        distances = ((points - query) ** 2).sum(1)
        order = sorted(range(len(points)), key=lambda j, d=distances: (d[j], j))[:10]
        assert answer.neighbours[i].tolist() == order == near[i].tolist()
        votes = np.bincount(problem.labels[order].numpy(), minlength=4)
        assert int(answer.labels[i]) == int(labels[i]) == int(votes.argmax())


def test_labels_are_those_of_fractions(seed: int) -> None:
    """Lloyd's iteration in fractions, with points that are equally near to two centres."""
    kmeans = load("kmeans")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 4, (60, 3), generator=generator).float()
    problem = kmeans.begin(x, 6, seed)
    found, exact = kmeans.solve(problem), kmeans.refer(problem)[0]
    points = [[Fraction(v) for v in row] for row in integers(x).tolist()]
    centres = [points[i] for i in problem.start.tolist()]
    labels: list[int] = []
    for _ in range(kmeans.ITERATIONS):
        labels = []
        for point in points:
            distances = [sum((p - c) ** 2 for p, c in zip(point, centre, strict=True)) for centre in centres]
            labels.append(distances.index(min(distances)))
        for j in range(len(centres)):
            mine = [point for point, label in zip(points, labels, strict=True) if label == j]
            if mine:
                centres[j] = [sum(column, Fraction(0)) / len(mine) for column in zip(*mine, strict=True)]
    assert found.labels.tolist() == exact.labels.tolist() == labels
    for j, centre in enumerate(centres):
        assert [Fraction(s) / Fraction(float(found.counts[j])) for s in found.sums[j].tolist()] == centre


def test_too_few_bits_are_noticed() -> None:
    """Products of a few bits change labels, and the verdict says so."""

    kmeans = load("kmeans")
    problem = kmeans.make(512, 3, "cpu", torch.float32)
    with prismm.emulate(scheme=prismm.Residues(2)):
        clusters = kmeans.solve(problem)
    assert not kmeans.judge(problem, clusters, kmeans.refer(problem)).passed


# --- the whole run ----------------------------------------------------------------------------------


def test_names_are_those_of_the_modules() -> None:
    """They stand apart from the modules, which load torch."""
    assert {name: tuple(getattr(load(name), key).name for one, key in apps() if one == name) for name in NAMES} == NAMES


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row says so, and the others are measured."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    run = load("run")
    options = run.parse(["--quick", "--repeats", "1", "--apps", "knn-digits,ccc", "--ways", "default"])
    first, *rest = run.rows(options)
    assert [row["app"] for row in (first, *rest)] == ["ccc", "ccc", "knn-digits"] and rest[0]["passed"]
    assert rest[1]["note"] == f"the digits come from scikit-learn; install it with: {install('demo')}"
    assert "not here: the digits" in application.shown(rest[1])


def test_missing_transformers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bert = load("bert")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(application.Unavailable, match="pip install transformers"):
        bert.make(64, 0, "cpu", torch.float32)


@pytest.mark.slow
def test_bench_apps_writes_tables_and_a_plot(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "prismm.cli",
        "bench",
        "apps",
        "--quick",
        "--rounds",
        "1",
        "--only",
        "cholesky,mlp",
    ]
    command += ["--csv", str(tmp_path / "csv"), "--plot", str(tmp_path / "plot.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "mean speed, float32" in done.stdout
    assert "of exhaustive" in done.stdout
    with (tmp_path / "csv" / "apps.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["app"] for row in rows} == {"cholesky", "mlp"}
    assert all(row["passed"] == "True" for row in rows if row["guaranteed"] == "True")
    with (tmp_path / "csv" / "tuning.csv").open(newline="") as stream:
        tuned = list(csv.DictReader(stream))
    for row in tuned:
        assert int(row["broken"]) == 0
        assert float(row["of_exhaustive"]) >= 0.95
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
