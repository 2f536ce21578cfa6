"""The applications from a wheel: built, installed into a folder, and run from somewhere else."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def pip(*arguments: object, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel that was made of a copy of the sources."""
    pytest.importorskip("pip")
    base = tmp_path_factory.mktemp("wheel")
    (base / "clone").mkdir()
    for name in SOURCES:
        source, target = ROOT / name, base / "clone" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", base / "made", ".", folder=base / "clone")
    (wheel,) = (base / "made").glob("*.whl")
    pip("install", "--no-deps", "--no-index", "--target", base / "installed", wheel, folder=base)
    shutil.rmtree(base / "clone")
    return base / "installed"


@pytest.mark.slow
def test_applications_run_from_a_wheel(installed: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    (tmp_path / "torch.py").write_text("raise SystemExit('a file of the current directory was imported')")
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import prismm.applications.run as x; print(x.__file__)"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert where.stdout.startswith(str(installed)), where
    command = [sys.executable, "-P", "-m", "prismm", "bench", "apps", "--quick", "--rounds", "1"]
    command += ["--only", "hpl-mxp,cholesky,kmeans-digits,bert", "--seconds", "20", "--csv", "tables"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("prismm: timing programs with native products and with prismm's: hpl-mxp,cholesky,")
    with (tmp_path / "tables" / "apps.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["app"] == "hpl-mxp" and "x off by" in rows[0]["note"]
    assert all(row["passed"] == "True" for row in rows if row["guaranteed"] == "True" and row["speed"])


@pytest.mark.slow
def test_one_program_runs_from_a_wheel(installed: Path, tmp_path: Path) -> None:
    """As a module, and by ``prismm run``, whose table has the program's lines."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-m", "prismm.applications.cholesky", "--size", "300", "--ways", "default"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout.count("passed") == 2, done
    script = installed / "prismm" / "applications" / "cholesky.py"
    command = [sys.executable, "-P", "-m", "prismm", "run", str(script), "--size", "1100", "--repeats", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "cholesky.py:" in done.stdout, done
