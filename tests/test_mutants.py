"""The faults of tools/mutants.py: they can be planted in this tree, and whether tests notice is told rightly."""

import ast
import csv
import importlib.util
import random
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = """
[noticed]
file = "cli/journal.py"
old = 'tiles[tile["tile"][0], tile["tile"][1]] ='
new = 'tiles[tile["tile"][1], tile["tile"][0]] ='
tests = ["tests/cli/test_journal.py"]
k = "round_trip"
why = "Rows are columns."

[not-noticed]
file = "cli/journal.py"
old = 'return isinstance(value, list) and len(value) == 2'
new = 'return isinstance(value, list) and 2 == len(value)'
tests = ["tests/cli/test_journal.py"]
k = "round_trip"
why = "It is none."

[not-run]
file = "cli/journal.py"
old = 'tiles[tile["tile"][0], tile["tile"][1]] ='
new = 'tiles[tile["tile"][1], tile["tile"][0]] ='
tests = ["tests/cli/test_journal.py"]
k = "no_such_test"
why = "No test is there to see it."
"""


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools/mutants.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", module)
    spec.loader.exec_module(module)
    return module


def test_every_fault_can_be_planted_and_its_tests_are_there(mutants):
    faults = mutants.faults()
    assert len({fault.name for fault in faults}) == len(faults) >= 34
    for fault in faults:
        text = (ROOT / fault.file).read_text()
        assert fault.planted(text) != text and fault.why.endswith("."), fault.name
        for path, _, name in (test.partition("::") for test in fault.tests.paths):
            assert not name or f"def {name}(" in (ROOT / path).read_text(), (fault.name, path, name)
            assert (ROOT / path).is_file(), (fault.name, path)


@pytest.mark.slow
def test_changes_are_drawn_from_all_files_of_a_group_and_can_be_planted(mutants):
    groups = tomllib.loads((ROOT / "tools/mutations.toml").read_text())
    for name, group in groups.items():
        every = mutants.drawn([name], 10**6, 0)
        assert {str(change.file) for change in every} == {f"src/prismm/{file}" for file in group["files"]}
        assert len({change.name for change in every}) == len(every)
        assert all((ROOT / path).is_file() for path in group["tests"]) and group["why"].endswith(".")
        for change in random.Random(7).sample(every, 20):
            text = (ROOT / change.file).read_text()
            changed = change.planted(text)
            compile(changed, change.file, "exec")
            assert changed != text and ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), change.name


def test_what_changes_and_what_stays(mutants):
    """Each kind once; messages, annotations, decorators, docstrings and comments are left alone."""
    source = textwrap.dedent(
        """
        @cached(3)
        def f(x: Literal[1] = 2) -> Literal[3]:
            "1 + 1"
            if x < 1 and not x == 4:  # 5 < 6
                raise ValueError("7" + str(8))
            y = -x << 1 | min(x, 0.5)
            y += math.ceil(x - (  # or
                y))
            return f"{y + 1}"
        """
    )
    found = [source[one.start : one.end] + " " + one.new for one in mutants.mutations.mutations(source)]
    assert found == [
        "2 3", "< <=", "1 2", "and or", "not ", "== !=", "4 5", "- ", "<< >>", "1 2", "| &", "min max", "0.5 0.25",
        "+= -=", "ceil floor", "- +",
    ]  # fmt: skip


@pytest.mark.slow
def test_only_what_a_test_names_is_caught(mutants, tmp_path, monkeypatch, capsys):
    table, result = tmp_path / "table.toml", tmp_path / "result.csv"
    table.write_text(TABLE)
    monkeypatch.setattr(mutants, "TABLE", table)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "-o", str(result)])
    assert mutants.main() == 1
    with result.open(newline="") as file:
        found = {row["name"]: (row["caught"], row["first failing test"]) for row in csv.DictReader(file)}
    assert found == {
        "noticed": ("yes", "tests/cli/test_journal.py::test_round_trip"),
        "not-noticed": ("no", "exit status 0"),
        "not-run": ("no", "fails unchanged: exit status 5"),
    }
    assert "1 of 3 faults are caught" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["mutants.py", "noticed"])
    assert mutants.main() == 0
