"""Tables of rates: text and back, which of several counts, damaged ones."""

from __future__ import annotations

import dataclasses
import doctest
import json
import tempfile
from pathlib import Path

import pytest

import prismm.cuda.costs.table
from prismm.core import cache_files, strict_json
from prismm.cuda.costs.cublas import Cublas, Errors
from prismm.cuda.costs.table import Rates, committed, rates_of, read, user_file
from prismm.cuda.costs.tuning import Tuning
from prismm.errors import ArgumentError, FileError

H200 = "NVIDIA H200"

pytestmark = pytest.mark.usefixtures("no_user_table")


def test_text_and_back():
    for table in committed().values():
        assert Rates.from_json(table.to_json()) == table


def test_the_committed_table_is_the_last_resort(tmp_path, monkeypatch):
    ours = committed()[H200]
    assert rates_of(H200) == ours
    assert rates_of("NVIDIA of tomorrow") is None
    assert user_file(H200) is None and not (tmp_path / "cache").exists()
    path = user_file(H200, make=True)
    assert path is not None and path.name == "nvidia-h200.json" and path.parent.parent == tmp_path / "cache"
    mine = dataclasses.replace(ours, int8=1.0)
    path.write_text(mine.to_json())
    assert rates_of(H200) == ours  # once a process
    rates_of.cache_clear()
    assert rates_of(H200) == mine
    named = tmp_path / "named.json"
    named.write_text(dataclasses.replace(ours, int8=2.0).to_json())
    monkeypatch.setenv("PRISMM_RATES", str(named))
    rates_of.cache_clear()
    found = rates_of(H200)
    assert found is not None and found.int8 == 2.0
    with pytest.raises(ArgumentError, match=r"has the rates of NVIDIA H200, this is NVIDIA A100"):
        rates_of("NVIDIA A100")


@pytest.mark.parametrize("part", ["file", "folder"])
def test_a_table_that_another_user_may_have_written_does_not_count(part, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache_files.tell.cache_clear()
    path = user_file(H200, make=True)
    assert path is not None
    cache_files.write(path, dataclasses.replace(committed()[H200], int8=1.0).to_json().encode())
    open_to_others = path if part == "file" else path.parent
    open_to_others.chmod(0o777)
    assert rates_of(H200) == committed()[H200]
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and f"other users can write to {open_to_others}" in err
    open_to_others.chmod(0o755)
    rates_of.cache_clear()
    found = rates_of(H200)
    assert found is not None and found.int8 == 1.0


def damaged(**changes):
    content = json.loads(committed()[H200].to_json())
    content.update(changes)
    return json.dumps({key: value for key, value in content.items() if value != "left out"})


OPTIONAL = ("tuning", "cublas", "errors")


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(Rates) if field.name not in OPTIONAL])
def test_every_rate_is_required(key):
    with pytest.raises(FileError, match=rf"the table: {key} is None"):
        Rates.from_json(damaged(**{key: "left out"}))


def test_figures_of_a_card_are_usual_where_a_table_lacks_them():
    for name, usual in (("tuning", Tuning()), ("cublas", Cublas()), ("errors", Errors())):
        assert getattr(Rates.from_json(damaged(**{name: "left out"})), name) == usual
    some = Rates.from_json(damaged(tuning={"residue_ends": 2, "provenance": "a guess"})).tuning
    assert some == Tuning(residue_ends=2, provenance="a guess")
    for wrong, what in (
        ([], "tuning is"), ({"other": 1.0}, "unknown keys other"), ({"exact_join": -1.0}, "tuning.exact_join is -1.0"),
        ({"residue_ends": 1.5}, "tuning.residue_ends is 1.5, not an integer"), ({"provenance": ""}, "not a name"),
    ):  # fmt: skip
        with pytest.raises(FileError, match=what):
            Rates.from_json(damaged(tuning=wrong))
    assert Rates.from_json(damaged(errors={"kernel": 0.0})).errors == Errors(kernel=0.0)


def test_what_a_table_says_of_cublas_is_whole():
    times = dataclasses.asdict(Cublas().float64)
    assert Rates.from_json(damaged(cublas={"float32": times})).cublas == Cublas(float32=Cublas().float64)
    for change, what in (
        ({"odd": "left out"}, "cublas.float32 is"), ({"odd": -1.0}, "cublas.float32.odd is -1.0"),
        ({"share": 0.0}, "no share of the rate"), ({x: 0.0 for x in times if x.startswith("tile_")}, "or no tiles"),
    ):  # fmt: skip
        wrong = {key: value for key, value in {**times, **change}.items() if value != "left out"}
        with pytest.raises(FileError, match=what):
            Rates.from_json(damaged(cublas={"float32": wrong}))
    with pytest.raises(FileError, match=r"cublas\.float32 is 3\.0"):
        Rates.from_json(damaged(cublas={"float32": 3.0}))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ("[]", "not a table of rates"),
        (damaged(format="other"), "not a table of rates"),
        (damaged(version=2), "version 2, this prismm reads 6"),
        (damaged(int8="left out"), "int8 is None"),
        (damaged(int8=0), "int8 is 0"),
        (damaged(multiword_fused=-1.0), "multiword_fused is -1.0"),
        (damaged(memory=-1.0), "memory is -1.0"),
        (damaged(memory=True), "memory is True"),
        (damaged(memory=float("nan")), "not JSON: NaN is no JSON"),
        (damaged(left=3.0), "left is 3.0"),
        (damaged(left={"launch": 1.0}), "not launch, element and modulus"),
        (damaged(join={"launch": 1.0, "element": -1.0, "modulus": 0.0}), "join.element is -1.0"),
        (damaged(call=2e-5), "call is 2e-05, not before and least"),
        (damaged(torch={"before": 1e-6}), "not before and least"),
        (damaged(torch={"before": 0.0, "least": 1e-6}), "torch.before is 0.0"),
        (damaged(name=5), "name is 5"),
        (damaged(processors=132.5), "processors is 132.5, not an integer"),
        (damaged(float64=10**400), "not a number above 0"),
        (damaged(version=True), "version True, this prismm reads 6"),
        (damaged(version=6.0), "version 6.0, this prismm reads 6"),
        (damaged(speed=1.0), "unknown keys speed"),
        (damaged().replace('"memory":', '"memory": 1.0, "memory":'), "a key is there twice: memory"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_damaged_tables_are_refused(text, what, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        read(path)
    assert what in str(caught.value) and str(caught.value).count(str(path)) == 1


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="No such file"):
        read(tmp_path / "nowhere.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="not a table of rates"):
        read(tmp_path / "bytes.json")


def test_every_table_is_named_after_its_gpu():
    folder = Path(prismm.cuda.costs.table.__file__).parent
    for path in folder.glob("nvidia-*.json"):
        place = user_file(read(path).name, make=True)
        assert place is not None and place.name == path.name


def test_examples():
    assert doctest.testmod(prismm.cuda.costs.table).failed == 0
    assert doctest.testmod(strict_json).failed == 0
