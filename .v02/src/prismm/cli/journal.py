"""The journal of an unfinished product: what is multiplied, how, and which tiles are done.

It lies beside the temporary file as JSON. A tile is listed, with the SHA-256 of its data, only after the data has
been flushed, so that whatever stops the run, every listed tile is good; and what damages it later is found. The
journal's own SHA-256 is its last entry.
"""

from __future__ import annotations

import hashlib
import json
import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prismm.cli.certificate import is_tile_record
from prismm.errors import ArgumentError, FileError
from prismm.files.target import part_of, replace_text

_FORMAT = "prismm-multiply"
_VERSION = 2
_DIGEST = "journal_sha256"
_AGAIN = "start over with --force, without --resume"


def journal_of(target: Path) -> Path:
    """The journal's name beside ``target``."""
    part = part_of(target)
    return part.with_name(part.name + ".json")


@dataclass
class Journal:
    """One product: ``identity`` (JSON-able) says what it is, ``tiles`` which tiles are finished.

    The key of a tile is (row panel, column panel); its value is what the certificate needs of it, and its "sha256".
    """

    path: Path
    identity: dict[str, Any]
    tiles: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def save(self) -> None:
        """Write the journal so that it is whole on the disk, whatever happens meanwhile."""
        tiles = [{"tile": list(key), **record} for key, record in self.tiles.items()]
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **self.identity, "tiles": tiles})
        replace_text(self.path, f'{text[:-1]}, "{_DIGEST}": "{_sha256(text)}"}}\n')

    def remove(self) -> None:
        """Delete it: the product is finished or given up."""
        self.path.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read a journal; FileError where there is none or it makes no sense, in whatever way it was damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise FileError(f"nothing to resume: there is no {path}; leave out --resume") from error
        except (OSError, ValueError, RecursionError) as error:  # the last where it is nested too deeply
            raise FileError(f"{path}: cannot be read: {error}; {_AGAIN}") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise FileError(f"{path}: no journal of prismm; {_AGAIN}")
        version = content.get("version")
        if version != _VERSION:
            shown = version if type(version) is int and abs(version) < 1 << 63 else "unknown"
            raise FileError(f"{path}: journal version {shown}, this prismm knows {_VERSION}; {_AGAIN}")
        listed = content.get("tiles")
        if not isinstance(listed, list):
            raise _damaged(path, "it has no list of tiles")
        tiles = {}
        for number, tile in enumerate(listed):
            whole = isinstance(tile, dict) and _is_place(tile.get("tile")) and _is_sha256(tile.get("sha256"))
            if not whole or not is_tile_record(_record(tile)):
                raise _damaged(path, f"entry {number} of its tiles")
            tiles[tile["tile"][0], tile["tile"][1]] = _record(tile)
        digest = content.pop(_DIGEST, None)
        identity = {key: value for key, value in content.items() if key not in ("format", "version", "tiles")}
        for key, value in identity.items():
            if not _is_plain(value) and not (isinstance(value, dict) and all(map(_is_plain, value.values()))):
                raise _damaged(path, f"its entry {key[:40]!r}")
        if digest != _sha256(json.dumps(content)):
            raise _damaged(path, "it does not have its own checksum")
        return cls(path, identity, tiles)

    def grid(self, m: int, n: int) -> tuple[int, int]:
        """Rows and columns of a tile of the (m, n) product; FileError unless every tile listed is one of it."""
        kept = self.identity.get("grid")
        if not isinstance(kept, dict) or not _is_place([kept.get("rows"), kept.get("columns")]):
            raise _damaged(self.path, "its grid has no rows and columns")
        rows, columns = kept["rows"], kept["columns"]
        if not (1 <= rows <= max(m, 1) and 1 <= columns <= max(n, 1)):
            raise _damaged(self.path, f"its grid has tiles of {rows}x{columns} for a product of {m}x{n}")
        for i, j in self.tiles:
            if i * rows >= m or j * columns >= n:
                raise _damaged(self.path, f"it lists tile ({i}, {j}), which the product does not have")
        return rows, columns

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


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set(string.hexdigits)


def _damaged(path: Path, what: str) -> FileError:
    return FileError(f"{path}: damaged: {what}; {_AGAIN}")


def _is_place(value: object) -> bool:
    """Whether this is a list of two counts."""
    return isinstance(value, list) and len(value) == 2 and all(type(x) is int and 0 <= x < 1 << 63 for x in value)


def _is_plain(value: object) -> bool:
    """Whether this is a word or a number, or a list of them: all that `_flat` and `_shown` are made for."""
    items = value if isinstance(value, list) else [value]
    return all(item is None or isinstance(item, (bool, int, float, str)) for item in items)


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
