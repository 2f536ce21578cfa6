"""Results as the papers print them: tests in rows, engines in columns, and what follows in a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.errors import ArgumentError
from prismm.numerics.catalogue.table import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prismm.numerics.suite.framework import Result, Results

    Column = dict[tuple[str, str], Result]

__all__ = ["summary", "tables"]

TITLES = {
    "fasi": "Fasi, Higham, Mikaitis and Pranesh 2021",
    "fasi-v100": "Fasi, Higham, Mikaitis and Pranesh 2021, inputs for the V100 where they are others",
    "fttn": "FTTN, Li et al. 2024",
    "khattak": "Khattak and Mikaitis 2025",
    "probes": "Probes of MMA-Sim and FPRev",
    "example": "Xie et al., Table 8",
}


def tables(results: Sequence[Results], wanted: Sequence[str]) -> str:
    """A table for every suite wanted, and the summary; see `prismm.numerics.suite.tables`."""
    if not results:
        raise ArgumentError("no results; pass those that prismm.numerics.suite.run returned")
    columns = _columns(results)
    keys = dict.fromkeys(key for column in columns.values() for key in column if key[0] in wanted)
    parts, notes = [], [""]
    for name in wanted:
        rows = []
        for key in (key for key in keys if key[0] == name):
            found = [column.get(key) for column in columns.values()]
            marks = [_mark(result, notes) for result in found]
            if set(marks) == {"-"}:
                continue
            test = next(r.test for r in found if r is not None)
            section = test.source.partition(", ")[2] if name == "fasi" else ""
            rows.append([section, test.id, test.title, *marks])
        if rows:
            head = ["", "test", "shows", *columns]
            if name != "fasi":
                head, rows = head[1:], [row[1:] for row in rows]
            parts.append(f"{TITLES[name]}\n\n{aligned([head, *rows])}")
    if len(notes) > 1:
        parts.append("\n".join(f"({i}) {note}" for i, note in enumerate(notes) if i))
    parts.append(f"Summary\n\n{summary(results)}")
    return "\n\n\n".join(parts)


def _columns(results: Sequence[Results]) -> dict[str, Column]:
    """Results by engine: of a test that was run with several formats, the first that applied."""
    columns: dict[str, Column] = {}
    for run in results:
        name = run.engine or f"{run.setting.input.name} → {run.setting.output.name}"
        column = columns.setdefault(name, {})
        for result in run:
            key = result.test.suite, result.test.id
            if key not in column or column[key].status == "not applicable":
                column[key] = result
    return columns


WIDEST = 16


def _mark(result: Result | None, notes: list[str]) -> str:
    """A cell; what is too long for one stands below the tables."""
    if result is None:
        return "-"
    if len(result.mark) <= WIDEST:
        return result.mark
    if result.mark not in notes:
        notes.append(result.mark)
    return f"({notes.index(result.mark)})"


def summary(results: Sequence[Results]) -> str:
    """The properties of engines that follow from the tests they were run on."""
    columns = _columns(results)
    rows = [[what, *(read(column) or "-" for column in columns.values())] for what, read in PROPERTIES.items()]
    return aligned([["property", *columns], *(row for row in rows if set(row[1:]) != {"-"})])


def _first(column: Column, *keys: tuple[str, str]) -> Result | None:
    """The first of these results that says something."""
    found = (column.get(key) for key in keys)
    return next((r for r in found if r is not None and r.status in ("passed", "failed")), None)


def _passed(*keys: tuple[str, str]) -> Callable[[Column], str]:
    def read(column: Column) -> str:
        found = _first(column, *keys)
        return "" if found is None else "yes" if found.status == "passed" else "no"

    return read


def _reading(*keys: tuple[str, str]) -> Callable[[Column], str]:
    def read(column: Column) -> str:
        found = (_first(column, key) for key in keys)
        return next((r.reading for r in found if r is not None and r.reading), "")

    return read


def _rounding(column: Column) -> str:
    """FTTN reads it from c plus a product; else from positive and negative sums of products."""
    direct = _reading(("fttn", "T_rnd_dir"))(column)
    if direct:
        return direct
    up, down = (column.get(("fasi", id)) for id in ("C1", "C2"))
    if up is None or down is None or "not applicable" in (up.status, down.status):
        return ""
    if not up.reading:  # the program for FP64 expects rounding to nearest
        return "RN" if up.status == down.status == "passed" else "not RN"
    common = set(up.reading.split(" or ")) & set(down.reading.split(" or "))
    return " or ".join(sorted(common))


def _subnormal_results(column: Column) -> str:
    found = column.get(("fasi", "A4"))
    if found is not None and found.test.decides != "subnormal outputs":
        column = {key: result for key, result in column.items() if key != ("fasi", "A4")}
    return _passed(("fasi", "A4"), ("fttn", "T_no_so"))(column)


def _extra_bits(column: Column) -> str:
    """FTTN's tests, whose inputs are normal values, before those with subnormal ones."""
    more, one = column.get(("fttn", "T_3_bits_fin_rnd")), column.get(("fttn", "T_1_bit"))
    if more is not None and more.number is not None:
        return more.reading
    if one is not None and one.status == "failed":
        return "0"
    return _reading(("khattak", "1"), ("fasi", "D1"))(column)


def _monotonic(column: Column) -> str:
    """Refuted by one test; no number of tests proves it."""
    found = [
        column.get(key) for key in (("fasi", "D5"), ("fasi-v100", "D5"), ("fttn", "T_monotone"), ("probes", "monotone"))
    ]
    readings = [r.reading for r in found if r is not None and r.status in ("passed", "failed")]
    if not readings:
        return ""
    return "no" if {"violated", "not monotonic"} & set(readings) else "not refuted"


def _normalisation(column: Column) -> str:
    found = _reading(("fasi", "D2"), ("fttn", "T_norm"))(column)
    pattern = _reading(("khattak", "4"))(column)
    return found or {"late": "once"}.get(pattern, pattern)


PROPERTIES: dict[str, Callable[[Column], str]] = {
    "subnormal inputs": _passed(("fasi", "A2"), ("fasi", "A1"), ("fttn", "T_si_no")),
    "subnormal accumulators": _passed(("fasi", "A3"), ("fttn", "T_sa")),
    "subnormal results": _subnormal_results,
    "exact products": _passed(("fasi", "B1"), ("fasi", "B2")),
    "rounding of sums": _rounding,
    "rounding to FP16": _reading(("fttn", "T_rnd_half"), ("khattak", "6"), ("fasi", "C3")),
    "extra bits": _extra_bits,
    "fraction bits": _reading(("probes", "bits")),
    "cut off": _reading(("probes", "cut")),
    "fraction bits of c": _reading(("probes", "bits of c")),
    "c cut off": _reading(("probes", "cut of c")),
    "carry bits": _reading(("khattak", "2")),
    "block": _reading(("fttn", "T_blk_fma_width"), ("khattak", "3")),
    "normalised": _normalisation,
    "monotonic": _monotonic,
}
