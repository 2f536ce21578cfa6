"""The CSV of an experiment, which is its journal too: whole after every point, and kept for the next run.

Every row carries the run that made it. A file of another run (another version, size, seed or source of prismm) is
refused, never mixed with.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path

from prismm.errors import FileError
from prismm.files.target import explained, replace_text
from prismm.reproduce.framework import Experiment, Row, Rows, Size

COLUMNS = ("experiment", "run", "point", "figure", "series", "variable", "x", "measure", "value", "seconds")
_SOURCES = ("schemes", "engines", "kernels", "reproduce", "metrics.py", "formats.py", "_matmul.py", "repair.py")


def run_key(experiment: Experiment, size: Size, seed: int) -> str:
    """What makes two runs the same: experiment's version, size, seed, and everything that computes."""
    import numpy as np

    import prismm

    root = Path(prismm.__file__).parent
    digest = hashlib.sha256()
    for name in _SOURCES:
        folder = root / name
        for source in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
            digest.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes())
    return (
        f"v{experiment.version} {size} seed={seed} prismm={prismm.__version__} "
        f"numpy={np.__version__} source={digest.hexdigest()[:12]}"
    )


@dataclass
class Store:
    """Finished points of one run, in the order in which they were finished."""

    path: Path
    experiment: str
    run: str
    points: dict[str, tuple[float, list[Row]]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, experiment: str, run: str, fresh: bool = False) -> Store:
        """The store at `path` with what an earlier, equal run left there; empty if there is nothing, or `fresh`.

        Raises:
            FileError: where the file is of another run, or no file of this kind.
        """
        store = cls(path, experiment, run)
        if fresh or not path.exists():
            return store
        with explained(path):
            text = path.read_text(encoding="utf-8")
        reader = csv.DictReader(io.StringIO(text))
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise FileError(f"{path}: not a result of prismm reproduce; pass --fresh to replace it, or another --out")
        for line in reader:
            if line["experiment"] != experiment or line["run"] != run:
                raise FileError(
                    f"{path}: holds points of another run ({line['run']!r}, this one is {run!r}); pass --fresh to "
                    "replace it, or another --out"
                )
            try:
                row = Row(
                    line["figure"],
                    line["series"],
                    line["measure"],
                    float(line["value"]),
                    line["variable"],
                    float(line["x"]),
                )
                seconds = float(line["seconds"])
            except (TypeError, ValueError) as error:
                raise FileError(f"{path}: line {reader.line_num} makes no sense; pass --fresh to replace it") from error
            store.points.setdefault(line["point"], (seconds, []))[1].append(row)
        return store

    def add(self, point: str, seconds: float, rows: list[Row]) -> None:
        """Keep a finished point: on the disk before this returns."""
        self.points[point] = (seconds, rows)
        self.save()

    def save(self, order: list[str] | None = None) -> None:
        """Write the file whole, in the order given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for point in order if order is not None else self.points:
            seconds, rows = self.points[point]
            for row in rows:
                x, value = repr(float(row.x)), repr(float(row.value))
                writer.writerow(
                    [
                        *(self.experiment, self.run, point, row.figure, row.series),
                        *(row.variable, x, row.measure, value, f"{seconds:.3f}"),
                    ]
                )
        replace_text(self.path, text.getvalue())

    @property
    def rows(self) -> Rows:
        """All rows."""
        return Rows(row for _, rows in self.points.values() for row in rows)
