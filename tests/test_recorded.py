"""Facts on record: made again where what they follow from changes, and refused where somebody changed them."""

import shutil
import sys

import pytest

from tests import recorded as module
from tests.cuda.harness.evidence import EvidenceError
from tests.cuda.harness.processes import FRESH
from tests.recorded import followed, recorded


@pytest.fixture
def made(monkeypatch, tmp_path):
    """A case of these sources, and how often it is made."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv(FRESH, raising=False)

    def found(*follows, right=True):
        count = []
        facts = recorded("facts", "a case", list(follows), lambda: count.append(1) or {"right": right}, tmp_path)
        return facts, len(count)

    found.path = tmp_path / "facts.json"
    return found


def test_a_fact_is_made_once_for_all_that_it_follows_from(made):
    assert made("a", "b") == ({"right": True}, 1)
    assert made("a", "b", right=False) == ({"right": True}, 0)
    assert made("ab", right=False) == ({"right": False}, 1)
    assert made("ab") == ({"right": False}, 0)


def test_all_are_made_and_compared_where_that_is_asked_for(made, monkeypatch):
    made("a")
    monkeypatch.setenv(FRESH, "1")
    assert made("a") == ({"right": True}, 1)
    with pytest.raises(AssertionError, match="the record says"):
        made("a", right=False)


def test_on_ci_what_is_not_on_record_or_was_changed_there_fails(made, monkeypatch):
    made("a")
    monkeypatch.setenv("CI", "true")
    assert made("a") == ({"right": True}, 0)
    with pytest.raises(AssertionError, match="make evidence"):
        made("b")
    made.path.write_text(made.path.read_text().replace("true", "false"))
    with pytest.raises(EvidenceError, match="digest"):
        made("a")


def test_sources_are_those_of_all_imports_without_comments(monkeypatch, tmp_path):
    """In a copy of the package: of a kernel, of a helper that it imports, and of a module that it does not."""
    sources = followed("prismm.cpu.kernels.vnni", packages=("numba",))
    names = [source.partition("\n")[0] for source in sources]
    assert {"prismm.cpu.kernels.vnni", "prismm.cpu.kernels.byte_unit", "prismm.core.jit"} < set(names)
    assert "prismm.cpu.kernels.packed" not in names and names[-1].startswith("numba ")
    originals = {name: module._path_of(name) for name in ("prismm.cpu.kernels.byte_unit", "prismm.cpu.kernels.packed")}
    path_of = module._path_of
    for name, path in originals.items():
        copy = shutil.copy(path, tmp_path)
        monkeypatch.setattr(module, "_path_of", lambda x, n=name, c=tmp_path / path.name: c if x == n else path_of(x))
        copy = tmp_path / path.name
        text = copy.read_text()
        copy.write_text(text + "# a comment\n")
        module._parsed.cache_clear()
        assert followed("prismm.cpu.kernels.vnni", packages=("numba",)) == sources
        copy.write_text(text + "x = 1\n")
        module._parsed.cache_clear()
        changed = followed("prismm.cpu.kernels.vnni", packages=("numba",)) != sources
        assert changed == (name in names)
    assert sys.modules["prismm.cpu.kernels.vnni"]
