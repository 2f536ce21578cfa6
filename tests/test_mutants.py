"""The faults of tools/mutants.py: they can be planted in this tree, and whether tests notice is told rightly."""

import csv
import importlib.util
import sys
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
