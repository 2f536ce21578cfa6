"""Evidence of kernels: that a change of what it follows from is seen, and a change of the record as well."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cuda.harness import evidence, processes
from tests.cuda.harness.evidence import EvidenceError, Recorder, code_of
from tests.cuda.harness.processes import Server, facts

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
CASES = json.dumps([("float64", 1, 508, None), ("float64", 1, 509, None)])
PROVED = [True, False]
"""Two cases of `interpreted_proofs`, at the last exponent at which a product cannot overflow and at the next."""


def test_records_are_whole():
    found = {path.stem: evidence.read(path.stem) for path in evidence.FOLDER.glob("*.json")}
    modules = {
        path.stem
        for kind in ("interpreted_*", "compiled*")
        for path in (Path(__file__).parent / "offline").glob(f"{kind}.py")
    }
    assert set(found) == modules
    for module, cases in found.items():
        for name, (key, told) in cases.items():
            assert len(key) == 24 and json.dumps(told["case"]) in name, (module, name)


def test_a_record_that_was_changed_is_refused(tmp_path):
    evidence.write("module", "0/1", {'0/1 ["case"]': ("0" * 24, {"case": ["case"], "wrong": 1})}, tmp_path)
    path = tmp_path / "module.json"
    whole = path.read_text()
    assert evidence.read("module", tmp_path)['0/1 ["case"]'] == ("0" * 24, {"case": ["case"], "wrong": 1})
    for old, new in (('"wrong": 1', '"wrong": 0'), ("0" * 24, "1" + "0" * 23), ("0/1", "0/2")):
        assert old in whole
        path.write_text(whole.replace(old, new))
        with pytest.raises(EvidenceError, match="digest"):
            evidence.read("module", tmp_path)
    path.write_text(whole[:-9])
    with pytest.raises(EvidenceError, match="no record"):
        evidence.read("module", tmp_path)


def test_cases_of_other_arguments_stay(tmp_path):
    first, second = ({f'{x} ["case"]': ("0" * 24, {"case": ["case"]})} for x in ("0/2", "1/2"))
    evidence.write("module", "0/2", first, tmp_path)
    evidence.write("module", "1/2", second, tmp_path)
    evidence.write("module", "0/2", {}, tmp_path)
    assert evidence.read("module", tmp_path) == second


def test_whoever_asks_after_a_case_that_took_too_long_gets_no_answer_of_it(monkeypatch):
    """A case that is interrupted leaves its answer in the pipe, for the next one to take as its own."""

    def late(signum, frame):
        raise TimeoutError

    monkeypatch.setattr(processes, "_SERVERS", {})
    server = processes._server("interpreter")
    before = signal.signal(signal.SIGALRM, late)
    timer = signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TimeoutError):
            server.ask("interpreted_proofs", [CASES], False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
    assert server.ended
    following = processes._server("interpreter")
    assert following is not server and not following.ended
    following.close()


def test_comments_and_docstrings_are_no_part_of_a_source():
    one = 'def f(x):\n    """Text."""\n    # A comment.\n\n    return x + 1  # another\n'
    same = 'def f(x):\n    """Other\n    text.\n    """\n    return x + 1\n'
    assert code_of(one) == code_of(same) == "def f(x):\n    return x + 1"
    assert code_of(one.replace("+ 1", "+ 2")) != code_of(one)
    assert code_of('x = "# no comment"\n') == 'x = "# no comment"'


@pytest.mark.slow
def test_a_case_follows_from_all_that_was_noted(tmp_path):
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")

    def key(*events, arguments=("0/1",)):
        recorder = Recorder("module", source, arguments)
        recorder.note(*events)
        recorder.tell(["case"], wrong=0)
        return recorder.told[0][1]

    assert key("a", "b") == key("a", "b")
    assert len({key("a", "b"), key("b", "a"), key("ab"), key(), key("a", "b", arguments=("1/2",))}) == 5
    before = key("a")
    source.write_text("x = 2\n")
    evidence._parsed.cache_clear()
    evidence.closure.cache_clear()
    assert key("a") != before
    with pytest.raises(AssertionError, match="address"):
        key("<object at 0x7f00>")


@pytest.mark.slow
def test_two_cases_of_one_module_run_again_only_where_they_are_not_known(tmp_path):
    source, ran = tmp_path / "module.py", []
    source.write_text("x = 1\n")

    def main():
        for case in ("one", "two"):
            evidence.note(case)
            if evidence.runs():
                ran.append(case)
            evidence.tell([case], right=evidence.runs())

    cases, names = evidence.cases_of("module", source, [], main, {}, False)
    assert ran == ["one", "two"] == [json.loads(x)[0] for x in names]
    assert [told for _, told in cases.values()] == [{"case": ["one"], "right": True}, {"case": ["two"], "right": True}]
    known = dict(list(cases.items())[1:])
    again, names = evidence.cases_of("module", source, [], main, known, False)
    assert ran == ["one", "two", "one"] and len(names) == 1 and again == cases
    assert evidence.cases_of("module", source, [], main, cases, False) == (cases, [])
    assert evidence.cases_of("module", source, [], main, cases, True)[0] == cases and ran[3:] == ["one", "two"]
    (name, (key, told)), *_ = cases.items()
    wrong = {**cases, name: (key, {**told, "right": False})}
    with pytest.raises(EvidenceError, match="the record says"):
        evidence.cases_of("module", source, [], main, wrong, True)


@pytest.mark.slow
def test_one_character_of_a_kernel_has_its_cases_run(tmp_path, monkeypatch):
    """In a copy of the package: of a kernel's code, of a comment in it, and of a kernel that the cases do not have."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    records, kernels = tmp_path / "records", tmp_path / "src/prismm/cuda"
    records.mkdir()

    @contextlib.contextmanager
    def server():
        """Of the sources as they are now: it reads them once, and the records each time."""
        found = Server("interpreter", records, PYTHONPATH=str(tmp_path / "src"))
        try:
            yield found
        finally:
            found.close()

    def asked(server):
        told = server.ask("interpreted_proofs", ["1", CASES], False)
        assert "error" not in told, told["error"]
        found = facts("interpreter", "interpreted_proofs", "1", CASES, server=server)
        return len(told["ran"]), [entry["proved"] for entry in found]

    monkeypatch.delenv("CI", raising=False)
    with server() as first:
        assert asked(first) == (2, PROVED)
        assert asked(first) == (0, PROVED)
    path = kernels / "kernels/overflow.py"
    code = path.read_text()
    path.write_text(code + "# a comment\n")
    other = kernels / "slices/kernels/join.py"
    other.write_text(other.read_text().replace("return", "return ", 1) + "x = 1\n")
    with server() as second:
        assert asked(second) == (0, PROVED)
    path.write_text(code.replace("left + right <= most", "left + right >= most"))
    with server() as third:
        monkeypatch.setenv("CI", "true")
        with pytest.raises(AssertionError, match="make evidence"):
            asked(third)
        monkeypatch.delenv("CI")
        assert asked(third) == (2, [False, True])
        (record,) = records.glob("*.json")
        record.write_text(record.read_text().replace('"proved": false', '"proved": true', 1))
        with pytest.raises(AssertionError, match="digest"):
            asked(third)
    assert os.listdir(records) == ["interpreted_proofs.json"]
