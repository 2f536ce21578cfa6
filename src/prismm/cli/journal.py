"""The journal of an unfinished product: what is multiplied, how, and which tiles are done.

It lies beside the temporary file as JSON. A tile is listed only after its data has been flushed, so
that whatever stops the run, every listed tile is good.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prismm.errors import ArgumentError, FileError
from prismm.files.target import part_of, replace_text

_FORMAT = "prismm-multiply"
_VERSION = 1


def journal_of(target: Path) -> Path:
    """The journal's name beside ``target``."""
    part = part_of(target)
    return part.with_name(part.name + ".json")


@dataclass
class Journal:
    """One product: ``identity`` (JSON-able) says what it is, ``tiles`` which tiles are finished.

    The key of a tile is (row panel, column panel); its value is what the certificate needs of it.
    """

    path: Path
    identity: dict[str, Any]
    tiles: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def save(self) -> None:
        """Write the journal so that it is whole on the disk, whatever happens meanwhile."""
        tiles = [{"tile": list(key), **record} for key, record in self.tiles.items()]
        content = {"format": _FORMAT, "version": _VERSION, **self.identity, "tiles": tiles}
        replace_text(self.path, json.dumps(content) + "\n")

    def remove(self) -> None:
        """Delete it: the product is finished or given up."""
        self.path.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read a journal; FileError where there is none or it makes no sense."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise FileError(f"nothing to resume: there is no {path}; leave out --resume") from error
        except (OSError, ValueError) as error:
            raise FileError(f"{path}: cannot be read: {error}; start over with --force") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise FileError(f"{path}: no journal of prismm; start over with --force")
        if content.get("version") != _VERSION:
            raise FileError(
                f"{path}: journal version {content.get('version')}, this prismm knows {_VERSION}; "
                "start over with --force"
            )
        try:
            tiles = {(int(t["tile"][0]), int(t["tile"][1])): _record(t) for t in content["tiles"]}
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise FileError(f"{path}: damaged: {error!r}; start over with --force") from error
        rest = ("format", "version", "tiles")
        return cls(path, {k: v for k, v in content.items() if k not in rest}, tiles)

    def check(self, identity: dict[str, Any]) -> None:
        """ArgumentError, naming every difference, unless ``identity`` is this journal's."""
        then, now = _flat(self.identity), _flat(json.loads(json.dumps(identity)))
        differences = [
            f"{key} was {_shown(then, key)}, is now {_shown(now, key)}"
            for key in sorted(then.keys() | now.keys())
            if _shown(then, key) != _shown(now, key)
        ]
        if differences:
            raise ArgumentError(
                f"this is not the product that was interrupted: {'; '.join(differences)}. "
                "Pass what was passed then, or start over with --force"
            )


def _record(tile: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tile.items() if key != "tile"}


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} to {"a b": 1}, so that a difference has a name."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key} "))
        else:
            flat[prefix + key] = value
    return flat


def _shown(flat: dict[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "absent"
