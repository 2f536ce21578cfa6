"""All applications, and the tuner against exhaustive search: speed over native, error, each program's criterion.

Run: python -m prismm.applications [--device cuda] [--seconds 170] [--out DIR]; writes apps.csv and tuning.csv to DIR, a
table to stdout, and with --plot a figure like MixPert's Figures 8 to 10. Every way is timed in turn with torch's own
IEEE products; speeds are medians of ratios on the wall's clock. Exits with 1 where a way with a guarantee misses a
program's criterion.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from prismm.applications import NAMES, tuning
from prismm.applications.application import Application, Unavailable, context, measure, shown
from prismm.applications.plot import draw
from prismm.applications.tables import write

WAYS = {
    "cpu": ("bf16", "default", "correctly-rounded"),
    "cuda": ("tf32", "bf16", "default", "reproducible", "residues:6", "residues:5", "correctly-rounded"),
}
WIDE_WAYS = ("default", "correctly-rounded")
WIDE_SIZES = {"cpu": 1024, "cuda": 16384}
"""Order of the systems that are solved in float64."""

FIXED = ("digits", "small")
"""Endings of the names of programs that have one size, and do not count in the means."""

FIELDS = (
    "app", "device", "dtype", "size", "seed", "way", "guaranteed", "speed", "speed_low", "speed_high", "seconds",
    "native_seconds", "error", "native_error", "passed", "note", "repeats",
)  # fmt: skip


def apps() -> list[Application]:
    """Every application."""
    modules = [importlib.import_module(f"prismm.applications.{name}") for name in NAMES]
    return [app for module in modules for app in vars(module).values() if isinstance(app, Application)]


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of all applications, float32 first."""
    start, begun = time.perf_counter(), False
    ways = options.ways.split(",") if options.ways else WAYS[options.device]
    for dtype in ("float32", "float64"):
        for app in apps():
            if dtype not in app.dtypes or (options.apps and app.name not in options.apps.split(",")):
                continue
            if begun and time.perf_counter() - start > options.seconds:
                _say(f"out of time before {app.name} in {dtype}")
                continue
            begun = True
            size = app.sizes["quick" if options.quick else options.device]
            if dtype == "float64" and not options.quick:
                size = min(size, WIDE_SIZES[options.device])
            if not options.quick and not app.name.endswith(FIXED):
                size = max(app.sizes["quick"], size // options.shrink)
            chosen = ways if dtype == "float32" else [way for way in WIDE_WAYS if way in ways]
            try:
                yield from measure(app, options.device, size, options.seed, dtype, chosen, options.repeats)
            except Unavailable as error:
                yield {"app": app.name, "device": options.device, "dtype": dtype, "size": size, "note": str(error)}
            if options.device == "cuda":
                torch.cuda.empty_cache()


def table(found: list[dict[str, Any]]) -> str:
    """Applications against ways: speed over native, and below it error over native's."""
    names = list(dict.fromkeys(row["way"] for row in found if row.get("way") and row["way"] != "native"))
    lines = [f"{'':<24}" + "".join(f"{name:>20}" for name in names)]
    for app, dtype in dict.fromkeys((row["app"], row["dtype"]) for row in found):
        cells = []
        for name in names:
            row = next((r for r in found if (r["app"], r["dtype"], r.get("way")) == (app, dtype, name)), None)
            if row is None or not isinstance(row.get("speed"), float):
                cells.append(f"{'-':>20}")
                continue
            share = row["error"] / row["native_error"] if row["native_error"] else float(row["error"] > 0)
            cell = f"{row['speed']:.2f} ({share:.2g}){'' if row['passed'] else '!'}"
            cells.append(f"{cell:>20}")
        lines.append(f"{app:<15}{dtype:<9}" + "".join(cells))
    speeds, errors = [], []
    for name in names:
        mine = [row for row in found if row.get("way") == name and counted(row)]
        speeds.append(f"{statistics.fmean(row['speed'] for row in mine):.2f}" if mine else "-")
        both = [statistics.fmean(row[key] for row in mine) if mine else 0.0 for key in ("error", "native_error")]
        errors.append(f"{both[0]:.2g} ({both[1]:.2g})" if mine else "-")
    lines.append(f"{'mean speed, float32':<24}" + "".join(f"{mean:>20}" for mean in speeds))
    lines.append(f"{'mean error (native)':<24}" + "".join(f"{mean:>20}" for mean in errors))
    lines.append("Speed over torch's IEEE products, in brackets error over theirs; ! misses the program's criterion;")
    lines.append("means are over the large float32 programs, without those on scikit-learn's digits and the small one.")
    return "\n".join(lines)


def counted(row: dict[str, Any]) -> bool:
    """Whether a row counts in the mean."""
    return row["dtype"] == "float32" and not row["app"].endswith(FIXED) and isinstance(row.get("speed"), float)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--apps", default="", help="names, separated by commas; default all")
    parser.add_argument("--ways", default="", help="default by device; any scheme's name too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--shrink", type=int, default=1, help="divide the sizes by this, for smaller machines")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further application after so many")
    parser.add_argument("--tuning", action=argparse.BooleanOptionalAction, default=True, help="run the tuner as well")
    parser.add_argument("--out", type=Path, help="folder of the CSV files; default: none are written")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, not a table")
    parser.add_argument("--plot", type=Path, help="a PNG file; needs matplotlib")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, write, print."""
    options = parse(arguments)
    start = time.perf_counter()
    found: list[dict[str, Any]] = []
    fixed = context(options.device)
    for row in rows(options):
        found.append({key: row.get(key, "") for key in FIELDS})
        _say(shown(row))
        if options.out is not None:
            keys = ("app", "device", "dtype", "size", "way", "gpu")
            write(options.out / "apps.csv", [{**x, **fixed} for x in found], keys)
    tuned: list[dict[str, Any]] = []
    if options.tuning:
        for case in tuning.cases(options.device, options.quick):
            if time.perf_counter() - start > options.seconds:
                _say(f"out of time before tuning {case.name}")
                break
            some = {"search": 4, "new": 4} if options.quick or options.device == "cuda" else {}
            tolerances = tuning.TOLERANCES[1:2] if options.quick else tuning.TOLERANCES
            tuned += tuning.compare(case, options.device, tolerances, _say, **some)
            if options.out is not None:
                keys = ("program", "device", "size", "tolerance", "search", "gpu")
                write(options.out / "tuning.csv", [{**x, **fixed} for x in tuned], keys)
    if options.json:
        print(json.dumps({"machine": fixed, "apps": found, "tuning": tuned}, indent=1))
    else:
        print("\n".join([*([table(found)] if found else []), *(tuning.shown(row) for row in tuned)]))
    if options.plot is not None:
        draw(found, tuned, options.plot)
    missed = [row for row in found if row["guaranteed"] is True and row["passed"] is False]
    for row in missed:
        _say(f"FAILED: {shown(row)}")
    return 1 if missed else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
