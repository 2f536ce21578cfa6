"""Facts on record: made again where what they follow from changes, and refused where somebody changed them."""

import pytest

from tests import recorded as module
from tests.cuda.harness import evidence
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


def test_records_are_whole():
    found = {path.stem: evidence.read(path.stem, module.FOLDER) for path in module.FOLDER.glob("*.json")}
    assert {name: len(cases) for name, cases in found.items()} == {"assembly": 4, "probes": 40}


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
    path_of = module._path_of
    for name in ("prismm.cpu.kernels.byte_unit", "prismm.cpu.kernels.packed"):
        copy = tmp_path / f"{name}.py"
        monkeypatch.setattr(module, "_path_of", lambda x, name=name, copy=copy: copy if x == name else path_of(x))
        text = path_of(name).read_text()
        for addition, changed in (("# a comment\n", False), ("x = 1\n", name in names)):
            copy.write_text(text + addition)
            module._parsed.cache_clear()
            assert (followed("prismm.cpu.kernels.vnni", packages=("numba",)) != sources) == changed, (name, addition)
