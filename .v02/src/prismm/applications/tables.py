"""Tables of measurements: where they were made, and CSV files that keep the rows of other runs."""

from __future__ import annotations

import csv
import os
import platform
from datetime import date
from pathlib import Path
from typing import Any


def cpu_name() -> str:
    """The processor's model, as Linux tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Columns that every row carries."""
    import numba
    import numpy
    import torch

    import prismm

    return {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "prismm": prismm.__version__,
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "numba": numba.__version__,
    }


def write(path: Path, rows: list[dict[str, Any]], key: tuple[str, ...]) -> None:
    """Write rows to a CSV file; rows there with other values of the key columns stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [{k: f"{v:.5g}" if isinstance(v, float) else str(v) for k, v in row.items()} for row in rows]
    new = {tuple(row[k] for k in key): row for row in texts}
    kept: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                kept.append(new.pop(tuple(row[k] for k in key), row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(texts[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *new.values()])
