"""The certificate of a product made tile by tile: what ran, and how wrong an entry can be."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from prismm.cli.console import at_most, table
from prismm.core.outcome import Outcome, real_parts

if TYPE_CHECKING:
    from prismm import Report


def tile_record(report: Report) -> dict[str, Any]:
    """What the certificate needs of one tile's report, JSON-able, so that a journal can keep it."""
    import numpy as np

    bounds = report.bounds
    finite = bounds[np.isfinite(bounds)]
    sizes = [np.abs(part) for piece in report.pieces for part in real_parts(np.asarray(piece.result[:, :]))]
    return {
        "scheme": str(report.scheme),
        "engine": str(report.engine),
        "paths": {str(path): int(count) for path, count in report.paths.items()},
        "repaired": int(report.repaired),
        "notes": {str(what): int(count) for what, count in report.notes.items()},
        "worst": float(finite.max(initial=0.0)),
        "unbounded": int(bounds.size - finite.size),
        "largest": max((float(x.max(initial=0.0, where=np.isfinite(x))) for x in sizes), default=0.0),
    }


def is_tile_record(record: dict[str, Any]) -> bool:
    """Whether a record from a journal is one that `tile_record` made."""
    # Records of earlier versions have no largest entry.
    worst, largest = record.get("worst"), record.get("largest", 0.0)
    return (
        all(_is_word(record.get(key)) for key in ("scheme", "engine"))
        and all(_is_count(record.get(key)) for key in ("repaired", "unbounded"))
        and all(_is_tally(counts) for counts in (_paths_of(record), record.get("notes", {})))
        and isinstance(worst, float)
        and 0 <= worst < math.inf
        and isinstance(largest, float)
        and 0 <= largest < math.inf
    )


def _paths_of(record: dict[str, Any]) -> Any:
    """Entries by the path that certified them; records written earlier call it "roads"."""
    return record.get("paths", record.get("roads"))


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_tally(value: object) -> bool:
    return isinstance(value, dict) and all(_is_word(key) and _is_count(count) for key, count in value.items())


@dataclass(frozen=True)
class Certificate:
    """A whole product: inputs, what ran where, the guarantee, and the hash of the result's bits."""

    product: str
    dtype: str
    accuracy: str
    guarantee: str
    reproducible: bool
    schemes: tuple[str, ...]
    engines: tuple[str, ...]
    paths: dict[str, int]
    repaired: int
    worst: float
    largest: float
    unbounded: int
    tiles: int
    resumed: int
    seconds: float
    sha256: str
    notes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, records: list[dict[str, Any]], **rest: Any) -> Certificate:
        """Add up the records of all tiles."""
        paths: Counter[str] = Counter()
        counted = Outcome()
        for record in records:
            paths.update(_paths_of(record))
            for what, count in record.get("notes", {}).items():
                counted.note(what, count)
        return cls(
            schemes=tuple(dict.fromkeys(record["scheme"] for record in records)),
            engines=tuple(dict.fromkeys(record["engine"] for record in records)),
            paths=dict(paths),
            notes=counted.notes,
            repaired=sum(record["repaired"] for record in records),
            worst=max((record["worst"] for record in records), default=0.0),
            largest=max((record.get("largest", 0.0) for record in records), default=0.0),
            unbounded=sum(record["unbounded"] for record in records),
            **rest,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-able."""
        return {
            "product": self.product,
            "dtype": self.dtype,
            "accuracy": self.accuracy,
            "guarantee": self.guarantee,
            "reproducible": self.reproducible,
            "schemes": list(self.schemes),
            "engines": list(self.engines),
            "paths": self.paths,
            "repaired": self.repaired,
            "notes": self.notes,
            "worst_absolute_bound": self.worst,
            "largest_entry": self.largest,
            "entries_without_bound": self.unbounded,
            "tiles": self.tiles,
            "tiles_resumed": self.resumed,
            "seconds": self.seconds,
            "sha256": self.sha256,
        }

    def __str__(self) -> str:
        paths = ", ".join(f"{count} {path}" for path, count in self.paths.items() if count)
        worst = f"at most {at_most(self.worst)}"
        if self.worst > 0.0 and self.largest > 0.0:
            # An absolute error says little without the size of what it is an error of.
            worst += f", {at_most(Decimal(self.worst) / Decimal(self.largest))} of the largest entry"
        if self.unbounded:
            worst += f" ({self.unbounded} entries are Inf, NaN or without a bound)"
        tiles = f"{self.tiles}" + (f", {self.resumed} of them from before" if self.resumed else "")
        return table(
            [
                ("product", f"{self.product} {self.dtype}"),
                ("accuracy", self.accuracy + (", reproducible" if self.reproducible else "")),
                ("guarantee", self.guarantee),
                ("worst error", worst),
                ("scheme", ", ".join(self.schemes) or "nothing to do"),
                ("engine", ", ".join(self.engines) or "nothing to do"),
                ("entries", paths or "none"),
                ("repaired", str(self.repaired)),
                *((what, str(count)) for what, count in self.notes.items() if count),
                ("tiles", tiles),
                ("time", f"{self.seconds:.2f} s"),
                ("sha256", self.sha256),
            ]
        )


def guarantee(accuracy: str | float | None, explicit_scheme: bool, k: int, dtype: Any) -> str:
    """What the target promises of every entry, in numbers.

    >>> import numpy as np
    >>> guarantee("correctly-rounded", False, 100, np.dtype(float))
    'every entry is the exact value rounded to nearest: error at most 1/2 ulp'
    >>> guarantee("native", False, 100, np.dtype(np.float32))
    '|error| <= 5.97e-06 |A||B| + 1.41e-43, every entry'
    """
    import numpy as np

    if dtype.kind == "b":
        return "every entry is the logical or, exactly"
    real = np.finfo(dtype)
    unit, tiny = float(real.eps) / 2, float(real.smallest_subnormal)
    parts = ", real and imaginary part each" if dtype.kind == "c" else ""
    if accuracy is None and explicit_scheme:
        return "the scheme's own value and bound, nothing repaired"
    if accuracy == "correctly-rounded":
        return f"every entry is the exact value rounded to nearest: error at most 1/2 ulp{parts}"
    if accuracy == "fast":
        return "normwise, as a native product on evenly scaled data; nothing per entry"
    if isinstance(accuracy, float):
        own = f"{accuracy!r} |A||B| + {at_most(unit)} |exact| + {at_most(Decimal(tiny) / 2)}"
        return f"|error| <= {own}, every entry{parts}"
    terms = k * (2 if dtype.kind == "c" else 1)
    return f"|error| <= {at_most(terms * unit)} |A||B| + {at_most(terms * tiny)}, every entry{parts}"
