"""The order of the house: rooms, lengths of files, words, and that no scheme is told apart by its class."""

from __future__ import annotations

import ast
import functools
import gc
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
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
    r"\border (?:of )?\d{3,}": "n = …", r"\bsettl(?!e\(self\)|e is now)": "certify, recompute, repair or synchronize",
    r"\blook(?:s|ed)? (?:again|twice)\b": "second pass", r"\bleft[_ ]open\b": "uncertified",
    r"\bthe pace\b": "host speed", r"\bown_sums\b": "exact_sums",
}  # fmt: skip
"""Words with a second meaning, or private ones, and what stands for them."""

NAMES = {
    r"marks?|marked|mark_\w+|\w+_marks": "flags", r"open_|opened|\w+_open|_?OPEN|looked": "uncertified",
    r"own|made|Made|told": "what it is", r"\w*hopper\w*": "sm90", r"interop": "arrays", r"_moduli": "_abs",
    r"pace|slower": "host speed, host_factor", r"own_or_\w+|\w+_own": "what it is",
}  # fmt: skip
"""The same of identifiers in the rooms of products and programs."""

NAMED = ("core", "cpu", "cuda", "planning", "schemes", "files", "programs")


def test_few_modules_stand_at_the_top():
    top = {path.stem for path in SOURCE.glob("*.py")}
    assert len(top) <= 7, sorted(top)


def test_files_are_one_idea():
    long = {str(path.relative_to(SOURCE)): n for path in FILES if (n := len(path.read_text().splitlines())) > 500}
    assert not long, long
    assert len((SOURCE / "_api.py").read_text().splitlines()) <= 250


def test_words_have_one_meaning():
    banned = re.compile("|".join(WORDS))
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {word.strip()} -> {better}"
        for path in FILES
        if banned.search(text := path.read_text())
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, better in WORDS.items()
        for word in re.findall(pattern, line)
    ]
    assert not found, "\n".join(found[:40])


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """The syntax of every module, without looks for garbage: there is none, and they take twice the parser's time."""
    gc.disable()
    try:
        return {path: ast.parse(path.read_text()) for path in FILES}
    finally:
        gc.enable()


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that a module gives and uses, with their lines; of functions that are former names only what is inside."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not (ast.get_docstring(node) or "").startswith("The former name of"):
                yield line, node.name
        elif isinstance(node, ast.Name):
            yield line, node.id
        elif isinstance(node, ast.Attribute):
            yield line, node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield line, node.arg
        elif isinstance(node, ast.alias):
            yield line, (node.asname or node.name).rpartition(".")[2]


def test_identifiers_have_one_meaning(trees):
    banned = functools.cache(re.compile("|".join(f"(?:{pattern})" for pattern in NAMES)).fullmatch)
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {name} -> "
        + next(better for pattern, better in NAMES.items() if re.fullmatch(pattern, name))
        for path, tree in trees.items()
        if path.relative_to(SOURCE).parts[0] in NAMED
        for line, name in identifiers(tree)
        if banned(name)
    ]
    assert not found, "\n".join(found[:40])


def test_former_names_are_seen():
    """The walk sees every kind of name, and a former name only where it stands."""
    tree = ast.parse("import a.marks\nfrom b import c as open_\n@d\ndef told(own, *, looked): x.made = f(pace=1)\n")
    names = {name for _, name in identifiers(tree)}
    assert names >= {"marks", "open_", "told", "own", "looked", "made", "pace"}
    alias = ast.parse('class A:\n    def made(self):\n        """The former name of `method`."""\n')
    assert {name for _, name in identifiers(alias)} == {"A", "self"}


def test_no_scheme_is_told_apart_by_its_class(trees):
    """But in its own rooms: elsewhere its implementation answers."""
    found = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                asked |= {n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)}
                own = path.is_relative_to(SOURCE / "schemes") or path.parent.name in ROOMS
                if asked & set(SCHEMES) and not own:
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not found, found


def test_a_fixture_patches_nothing_beside_a_pretended_gpu():
    """A fixture's patch is undone after that of `pretended`, and would restore what that one had put there."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "with pretended(" in (text := path.read_text())
        for block in ast.walk(ast.parse(text))
        if isinstance(block, ast.With) and any("pretended(" in ast.unparse(item) for item in block.items)
        for call in ast.walk(block)
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("monkeypatch.")
    ]
    assert not found, found


@pytest.mark.slow
def test_a_source_distribution_holds_no_tests_without_what_they_need(tmp_path):
    build = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = [name.partition("/")[2] for name in file.getnames()]
        (information,) = (name for name in file.getnames() if name.count("/") == 1 and name.endswith("PKG-INFO"))
        described = file.extractfile(information).read().decode()
    assert not [name for name in names if name.startswith("tests/")]
    assert "src/prismm/cuda/costs/nvidia-h200.json" in names and "src/prismm/py.typed" in names
    # Where the description is read, there are no other files: its links lead to the web.
    links = re.findall(r"\]\(([^)]*)", described)
    assert links and all(link.startswith("https://") for link in links) and "accuracy=" in described
