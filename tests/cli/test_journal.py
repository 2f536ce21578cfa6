"""The journal comes back as it was saved, and says what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismm.cli.journal import Journal, journal_of
from prismm.errors import ArgumentError, FileError

IDENTITY: dict[str, Any] = {
    "prismm": "0.1.0",
    "a": {"shape": [3, 4], "sha256": "aa"},
    "options": {"accuracy": 1e-12, "reproducible": False, "engine": None},
    "grid": {"rows": 2, "columns": 3},
}
RECORD: dict[str, Any] = {
    "scheme": "Native()",
    "engine": "cpu",
    "paths": {"rounded": 6},
    "repaired": 0,
    "notes": {},
    "worst": 0.1,
    "unbounded": 0,
    "sha256": "0f" * 32,
}


def journal(tmp_path: Path) -> Journal:
    made = Journal(journal_of(tmp_path / "c.npy"), IDENTITY, {(1, 0): RECORD})
    made.save()
    return made


def test_round_trip(tmp_path: Path) -> None:
    made = journal(tmp_path)
    assert made.path.name == ".c.npy.part-prismm.json"
    assert Journal.load(made.path) == made
    made.check(IDENTITY)
    made.remove()
    made.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"a": {"shape": [3, 5], "sha256": "aa"}}, r"a shape was \[3, 4\], is now \[3, 5\]"),
        ({"a": {"shape": [3, 4], "sha256": "ab"}}, 'a sha256 was "aa", is now "ab"'),
        ({"prismm": "0.2.0"}, 'prismm was "0.1.0", is now "0.2.0"'),
        (
            {"options": {"accuracy": "native", "reproducible": True, "engine": None}},
            'options accuracy was 1e-12, is now "native"; options reproducible was false, is now',
        ),
        ({"options": {"accuracy": 1e-12, "engine": None}}, "reproducible was false, is now absent"),
        ({"grid": {"rows": 2, "columns": 4}}, "grid columns was 3, is now 4"),
    ],
)
def test_differences_are_named(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(ArgumentError, match=what):
        journal(tmp_path).check(IDENTITY | change)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "nothing to resume: there is no .*leave out --resume"),
        ("{", "cannot be read"),
        ("[]", "no journal of prismm"),
        ('{"format": "other"}', "no journal of prismm"),
        ('{"format": "prismm-multiply", "version": 99}', "version 99, this prismm knows 2"),
        ('{"format": "prismm-multiply", "version": 1, "tiles": []}', "version 1, this prismm knows 2; start over"),
        ('{"format": "prismm-multiply", "version": true, "tiles": []}', "version unknown, this prismm knows 2"),
        ("[" * 100_000, "cannot be read"),
        ('{"format": "prismm-multiply", "version": [[]]}', "version unknown, this prismm knows 2"),
        ('{"format": "prismm-multiply", "version": 2}', "damaged"),
        ('{"format": "prismm-multiply", "version": 2, "tiles": {}}', "damaged"),
        ('{"format": "prismm-multiply", "version": 2, "tiles": [3]}', "damaged"),
        ('{"format": "prismm-multiply", "version": 2, "tiles": [], "a": {"b": {}}}', "damaged: its entry 'a'"),
        ('{"format": "prismm-multiply", "version": 2, "tiles": [], "a": [[]]}', "damaged: its entry 'a'"),
        ('{"format": "prismm-multiply", "version": 2, "tiles": [{"tile": [0]}]}', "damaged"),
        ('{"format": "prismm-multiply", "version": 2, "tiles": []}', "damaged: it does not have its own checksum"),
    ],
)
def test_what_is_no_journal(tmp_path: Path, content: str | None, what: str) -> None:
    path = tmp_path / "j.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FileError, match=what):
        Journal.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"tile": ["1", 0]},
        {"tile": [1, -1]},
        {"tile": [1, 0, 0]},
        {"worst": "x"},
        {"worst": float("nan")},
        {"worst": float("inf")},
        {"worst": -1.0},
        {"repaired": "0"},
        {"repaired": True},
        {"unbounded": -1},
        {"unbounded": 1.5},
        {"scheme": None},
        {"scheme": "\ud800"},
        {"engine": 3},
        {"paths": [1]},
        {"paths": {"rounded": "6"}},
        {"notes": {"flushed": None}},
        {"sha256": None},
        {"sha256": "0f"},
        {"sha256": "xy" * 32},
    ],
)
def test_a_tile_that_makes_no_sense_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    path = journal(tmp_path).path
    content = json.loads(path.read_text())
    content["tiles"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="damaged: entry 0 of its tiles; start over with --force"):
        Journal.load(path)


def test_no_byte_of_a_journal_can_change_unseen(tmp_path: Path, rng: np.random.Generator) -> None:
    """A bit flipped, a byte lost or doubled, at a third of all places: refused, or the journal that was saved."""
    made = journal(tmp_path)
    whole = made.path.read_bytes()
    for place in range(int(rng.integers(3)), len(whole), 3):
        flipped = bytes([whole[place] ^ 1 << int(rng.integers(8))])
        middle = rng.choice([flipped, flipped, b"", whole[place : place + 1] * 2])
        made.path.write_bytes(whole[:place] + bytes(middle) + whole[place + 1 :])
        try:
            found = Journal.load(made.path)
        except FileError as error:
            assert "start over with --force, without --resume" in str(error)
        else:
            assert found == made


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["tiles"].append({**content["tiles"][0], "tile": [0, 0]}),
        lambda content: content["tiles"].pop(),
        lambda content: content["tiles"][0].update(worst=0.05),
        lambda content: content["tiles"][0].update(sha256="1f" * 32),
        lambda content: content["a"].update(sha256="ab"),
        lambda content: content.pop("journal_sha256"),
        lambda content: content.update(journal_sha256=None),
        lambda content: content.update(more=1),
    ],
)
def test_a_journal_that_was_edited_is_refused(tmp_path: Path, change: Any) -> None:
    path = journal(tmp_path).path
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="damaged: it does not have its own checksum; start over with --force"):
        Journal.load(path)


@pytest.mark.parametrize(
    "grid",
    [
        None,
        [1],
        {},
        *({"rows": rows, "columns": 3} for rows in (0, "a", -1, 2.0, True, None, 10, 10**400)),
        {"rows": 2, "columns": 0},
        {"rows": 3, "columns": 3},  # then there is no second row of tiles, but one is listed
    ],
)
def test_a_grid_that_makes_no_sense_is_damage(tmp_path: Path, grid: Any) -> None:
    made = journal(tmp_path)
    assert made.grid(3, 4) == (2, 3)
    made.identity = IDENTITY | {"grid": grid}
    with pytest.raises(FileError, match=r"damaged: it.*; start over with --force"):
        made.grid(3, 4)


def test_floats_survive_exactly(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.tiles[0, 0] = RECORD | {"worst": 5e-324, "other": float("inf")}
    made.save()
    assert Journal.load(made.path).tiles == made.tiles
    assert json.loads(made.path.read_text())["version"] == 2
