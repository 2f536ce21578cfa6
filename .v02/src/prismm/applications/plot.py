"""The figure of all applications, from the rows of run.py: speeds, errors, the tuner (MixPert's Figures 8 to 10).

Run: python -m prismm.applications.plot apps.png --folder benchmarks/results [--device cuda]; reads the CSV files there.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

COLOURS = ("#444444", "#8a5a00", "#c1272d", "#0b6e99", "#1b7f3b", "#6a3d9a", "#d95f8d", "#2aa198", "#b58900")


def draw(rows: list[dict[str, Any]], tuned: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: speed over native and error by application and way, and the tuner beside exhaustive search."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if isinstance(row["speed"], float)]
    figure = Figure(figsize=(15, 4.8 * (2 + bool(tuned))), layout="constrained")
    axes = figure.subplots(2 + bool(tuned), 1)
    labels = list(dict.fromkeys(f"{row['app']}\n{row['dtype']}" for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    width = 0.85 / max(1, len(ways))
    for axis, measure, text in zip(axes, ("speed", "error"), ("speed over native", "relative error"), strict=False):
        for place, way in enumerate(ways):
            mine = [row for row in rows if row["way"] == way]
            x = [labels.index(f"{row['app']}\n{row['dtype']}") + (place - len(ways) / 2 + 0.5) * width for row in mine]
            axis.bar(x, [row[measure] for row in mine], width, label=way, color=COLOURS[place % len(COLOURS)])
        axis.set_xticks(range(len(labels)), labels)
        axis.set_ylabel(text)
        axis.grid(axis="y", alpha=0.3)
    axes[0].axhline(1.0, color="black", linewidth=0.8)
    axes[0].legend(ncols=len(ways), fontsize=8)
    axes[1].set_yscale("log")
    if tuned:
        _tuner(axes[2], tuned)
    figure.savefig(path, dpi=90, format="png")


def _tuner(axis: Any, tuned: list[dict[str, Any]]) -> None:
    labels = list(dict.fromkeys(f"{row['program']}\n{row['tolerance']:g}" for row in tuned))
    searches = list(dict.fromkeys(row["search"] for row in tuned))
    width = 0.8 / len(searches)
    for place, name in enumerate(searches):
        mine = [row for row in tuned if row["search"] == name]
        x = [labels.index(f"{r['program']}\n{r['tolerance']:g}") + (place - 1) * width for r in mine]
        bars = axis.bar(x, [row["speed"] for row in mine], width, label=name, color=COLOURS[3 + place])
        axis.bar_label(bars, [f"{row['new_error']:.1g}" for row in mine], fontsize=7)
    axis.set_xticks(range(len(labels)), labels)
    axis.set_ylabel(f"speed of the products over native\n({tuned[0]['times']})", fontsize=8)
    axis.set_title("tuner and exhaustive search, by tolerance; the error on new inputs above the bars", fontsize=9)
    axis.legend(fontsize=8)
    axis.grid(axis="y", alpha=0.3)


def read(path: Path, device: str) -> list[dict[str, Any]]:
    """The rows of a device in a CSV file, numbers as numbers."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            {key: _value(text) for key, text in row.items()}
            for row in csv.DictReader(stream)
            if row["device"] == device
        ]


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def main() -> None:
    """Draw from the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("png", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--folder", type=Path, required=True, help="where apps.csv and tuning.csv are")
    options = parser.parse_args()
    rows, tuned = (read(options.folder / f"{name}.csv", options.device) for name in ("apps", "tuning"))
    draw(rows, tuned, options.png)


if __name__ == "__main__":
    main()
