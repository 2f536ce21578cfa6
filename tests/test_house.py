"""The order of the house: rooms, lengths of files, words, and that no scheme is told apart by its class."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prismm"
FILES = sorted(SOURCE.rglob("*.py"))
SCHEMES = ("Residues", "Native", "Words", "ScaledHalf", "TileInt8", "Slices", "QuanTensor", "Auto")

ROOMS = ("residues", "native", "multiword", "scaled_half", "tile_int8", "slices", "baselines")

WORDS = {
    r"\broad\b": "path", r"\bceremony\b": "overhead", r"\bopen entr": "uncertified entries",
    r"\bin place of\b": "instead of", r"\bthe look\b": "sample, check or second pass",
    r"\bhost_pace\b": "host_speed", r"\bNeed\b": "Problem", r"\bcuda_modules\b": "implementation",
    r"\border (?:of )?\d{3,}": "n = …",
}  # fmt: skip
"""Words with a second meaning, or private ones, and what stands for them."""


def test_few_modules_stand_at_the_top():
    top = {path.stem for path in SOURCE.glob("*.py")}
    assert len(top) <= 7, sorted(top)


def test_files_are_one_idea():
    long = {str(path.relative_to(SOURCE)): n for path in FILES if (n := len(path.read_text().splitlines())) > 500}
    assert not long, long
    assert len((SOURCE / "_api.py").read_text().splitlines()) <= 250


def test_words_have_one_meaning():
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {word.strip()} -> {better}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for pattern, better in WORDS.items()
        for word in re.findall(pattern, line)
    ]
    assert not found, "\n".join(found[:40])


def test_no_scheme_is_told_apart_by_its_class():
    """But in its own rooms: elsewhere its implementation answers."""
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                asked |= {n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)}
                own = path.is_relative_to(SOURCE / "schemes") or path.parent.name in ROOMS
                if asked & set(SCHEMES) and not own:
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not found, found


@pytest.mark.slow
def test_a_source_distribution_holds_no_tests_without_what_they_need(tmp_path):
    build = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = [name.partition("/")[2] for name in file.getnames()]
    assert not [name for name in names if name.startswith("tests/")]
    assert "src/prismm/cuda/costs/nvidia-h200.json" in names and "src/prismm/py.typed" in names
