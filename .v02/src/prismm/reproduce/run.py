"""Run an experiment: its unfinished points one after the other, each kept on the disk as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prismm.errors import FileError
from prismm.files.target import explained
from prismm.reproduce.claims import Comparison
from prismm.reproduce.framework import Experiment, Rows, Size
from prismm.reproduce.store import Store, run_key


@dataclass(frozen=True)
class Result:
    """What a run gave. kept: points that an earlier run had finished."""

    rows: Rows
    comparisons: list[Comparison]
    csv: Path
    run: str
    points: int
    kept: int
    seconds: float


def csv_path(experiment: Experiment, size: Size, folder: Path) -> Path:
    """FOLDER/NAME.csv, or FOLDER/NAME-SIZE.csv for sizes other than the default."""
    return folder / (experiment.name + ("" if size == "default" else f"-{size}") + ".csv")


def run(
    experiment: Experiment,
    folder: Path,
    size: Size = "default",
    seed: int = 0,
    fresh: bool = False,
    started: Callable[[str, int, int], None] = lambda key, done, total: None,
) -> Result:
    """Measure what is not yet in the CSV in `folder`, and judge the claims.

    Args:
        experiment: from `load`.
        folder: where the CSV is; made if there is none.
        size: how large.
        seed: of every random matrix, together with the point's key.
        fresh: measure everything anew.
        started: called with a point's key, the number of finished points and of all points, before each point and
            once at the end with the key "".

    Raises:
        FileError: if the folder cannot be made, or its CSV is of another run.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    points = experiment.points_of(size)
    store = Store.open(csv_path(experiment, size, folder), experiment.name, run_key(experiment, size, seed), fresh)
    kept = sum(point.key in store.points for point in points)
    if set(store.points) - {point.key for point in points}:
        raise FileError(f"{store.path}: holds points that this experiment lacks; pass --fresh to replace it")
    if fresh:
        store.save()  # what was there is gone from the first moment on, not only when a point is done
    for place, point in enumerate(points):
        started(point.key, place, len(points))
        if point.key not in store.points:
            start = time.perf_counter()
            rows = point.measure(seed)
            store.add(point.key, time.perf_counter() - start, rows)
    started("", len(points), len(points))
    store.save([point.key for point in points])
    return Result(
        rows=store.rows,
        comparisons=[claim.judge(store.rows, size) for claim in experiment.claims],
        csv=store.path,
        run=store.run,
        points=len(points),
        kept=kept,
        seconds=sum(seconds for seconds, _ in store.points.values()),
    )
