"""Tables and panels of gpu_plots.py: reading CSVs, lines, stacked bars, published levels."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prismm.reproduce.plot import _COLOURS as COLOURS
from prismm.reproduce.plot import _MARKS as MARKS

Row = dict[str, Any]

ORDER = "order n"

STAGES = ("split", "multiply", "join", "certify, repair")
"""Of a call, in order."""

_STAGES = {
    "join": ("join", "add_products"),
    "multiply": ("product", "multiply"),
    "certify, repair": (
        "finish",
        "look",
        "repair",
        "certif",
        "mark",
        "magnitude",
        "settle",
        "recompute",
        "rejoin",
        "sum_tiles",
    ),
    "split": (
        "split",
        "largest",
        "sum_columns",
        "scale",
        "survey",
        "slice_rows",
        "slice_columns",
        "add_quarters",
        "strassen_sums",
    ),
}
_SHADES = {
    "split": "#b58900",
    "multiply": "#0b6e99",
    "join": "#1b7f3b",
    "certify, repair": "#c1272d",
    "other": "#999999",
}


def stage_of(kernel: str) -> str:
    """The stage of a call that a kernel belongs to, by its name.

    >>> [stage_of(x) for x in ("sum_columns", "residue_product", "join_quickly", "repair_words", "tile_certify")]
    ['split', 'multiply', 'join', 'certify, repair', 'certify, repair']
    >>> [stage_of(x) for x in ("add_quarters", "residue_products_of_quarters", "add_products")]
    ['split', 'multiply', 'join']
    """
    for stage, words in _STAGES.items():
        if any(word in kernel for word in words):
            return stage
    return "other"


def stages(parts: Mapping[str, float]) -> dict[str, float]:
    """Times of kernels, added up by stage."""
    found: dict[str, float] = {}
    for kernel, time in parts.items():
        stage = stage_of(kernel)
        found[stage] = found.get(stage, 0.0) + time
    return {stage: found[stage] for stage in (*STAGES, "other") if stage in found}


def read(path: Path) -> list[Row]:
    """The rows of a CSV, numbers as numbers; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return [{key: number(text) for key, text in row.items()} for row in csv.DictReader(stream)]


def number(text: str) -> Any:
    """The number that a text is, whole ones as integers; else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Tables:
    """Results by the names of their files."""

    rows: dict[str, list[Row]]

    @classmethod
    def of(cls, folder: Path) -> Tables:
        """What a folder holds."""
        names = ("gpu_gemm", "gpu_peers", "gpu_figures", "apps")
        return cls({name: read(folder / f"{name}.csv") for name in names})

    def figure(self, name: str, unit: str = "TFLOP/s") -> list[Row]:
        """Rows of gpu_figures.csv."""
        return [row for row in self.rows["gpu_figures"] if row["figure"] == name and row["unit"] == unit]

    def curves(self, name: str, unit: str = "TFLOP/s") -> dict[str, dict[Any, Row]]:
        """The same by series and x, in the order in which they were measured."""
        found: dict[str, dict[Any, Row]] = {}
        for row in self.figure(name, unit):
            found.setdefault(row["series"], {})[row["x"]] = row
        return found

    def parts(self, name: str) -> dict[str, dict[Any, dict[str, float]]]:
        """Milliseconds of the stages, by series and x."""
        found: dict[str, dict[Any, dict[str, float]]] = {}
        for row in self.figure(name, "ms"):
            found.setdefault(row["series"], {}).setdefault(row["x"], {})[row["part"]] = row["value"]
        return {series: {x: stages(parts) for x, parts in of.items()} for series, of in found.items()}

    def gemm(self, dtype: str, call: str) -> dict[int, Row]:
        """Rows of gpu_gemm.csv by order."""
        rows = [row for row in self.rows["gpu_gemm"] if row["dtype"] == dtype and row["call"] == call]
        return {row["n"]: row for row in sorted(rows, key=lambda row: row["n"])}


def canvas(across: int, down: int = 1, width: float = 5.4, height: float = 4.6) -> tuple[Any, list[Any]]:
    """A figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    return figure, list(figure.subplots(down, across, squeeze=False).ravel())


def save(figure: Any, path: Path) -> None:
    """As PNG, the same bytes for the same rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, format="png", metadata={"Software": None})


def lines(
    ax: Any, curves: Mapping[str, Mapping[Any, Row]], measure: str = "value", *, logx: bool = True, logy: bool = False,
    styles: Callable[[str], dict[str, Any]] = lambda name: {},
) -> None:  # fmt: skip
    """A curve a series, with its spread as a shade where rows have one; styles: what differs from the house's."""
    for place, (name, of) in enumerate(curves.items()):
        points = sorted((x, row) for x, row in of.items() if isinstance(x, (int, float)) and _is_number(row[measure]))
        points = [(x, row) for x, row in points if row[measure] > 0 or not logy]
        if not points:
            continue
        x = [p for p, _ in points]
        look = {
            "marker": MARKS[place % len(MARKS)], "color": COLOURS[place % len(COLOURS)], "linewidth": 1.4,
            "markersize": 4, "label": name, **styles(name),
        }  # fmt: skip
        ax.plot(x, [row[measure] for _, row in points], **look)
        if measure == "value" and all(_is_number(row.get("low")) for _, row in points):
            low, high = [row["low"] for _, row in points], [row["high"] for _, row in points]
            ax.fill_between(x, low, high, color=look["color"], alpha=0.12, linewidth=0)
    if logx:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if logy:
        ax.set_yscale("log")
    ax.grid(alpha=0.3)


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and x == x


def stacked(ax: Any, bars: Mapping[str, Mapping[str, float]], *, share: bool = True) -> None:
    """A bar for each name: its stages, as shares of the whole or in milliseconds; the whole is written on top."""
    names = list(bars)
    for stage in (*STAGES, "other"):
        bottoms, heights = [], []
        for name in names:
            whole = sum(bars[name].values()) or 1.0
            scale = 100.0 / whole if share else 1.0
            below = (*STAGES, "other")[: (*STAGES, "other").index(stage)]
            bottoms.append(scale * sum(bars[name].get(other, 0.0) for other in below))
            heights.append(scale * bars[name].get(stage, 0.0))
        if any(heights):
            ax.bar(range(len(names)), heights, 0.75, bottom=bottoms, label=stage, color=_SHADES[stage])
    for place, name in enumerate(names):
        whole = sum(bars[name].values())
        top = 100.0 if share else whole
        ax.annotate(f"{whole:.3g} ms", (place, top), ha="center", va="bottom", fontsize=6.5, color="0.3")
    ax.set_xticks(range(len(names)), names, fontsize=7, rotation=30 if max(map(len, names), default=0) > 9 else 0)
    for label in ax.get_xticklabels():
        label.set_horizontalalignment("right" if label.get_rotation() else "center")
    ax.set_ylabel("share of the time, %" if share else "ms")
    ax.grid(axis="y", alpha=0.3)
    ax.margins(y=0.08)


def levels(ax: Any, published: Iterable[tuple[float, str]]) -> None:
    """Published values as dotted lines."""
    for value, label in published:
        ax.axhline(value, color="0.55", linestyle=":", linewidth=1)
        where = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        where["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
        ax.annotate(label, (0.995, value), fontsize=7, color="0.35", **where)


def finish(
    ax: Any, title: str, xlabel: str, ylabel: str | None = None, columns: int = 2, *, inside: bool = False
) -> None:  # fmt: skip
    """Words around a panel. inside: the legend stands in it, where labels below are long."""
    ax.set(title=title, xlabel=xlabel)
    if ylabel is not None:
        ax.set_ylabel(ylabel)
    if ax.get_legend_handles_labels()[0]:
        place = {"loc": "lower center"} if inside else {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
        ax.legend(fontsize=6.5, ncols=columns, frameon=inside, **place)


@dataclass(frozen=True)
class Page:
    """A figure: its file's name, its heading, what draws it (None where there are no rows), and what is said of it."""

    name: str
    title: str
    draw: Callable[[Tables], Any]
    text: Callable[[Tables], str]


def times(x: float) -> str:
    """A ratio in words.

    >>> times(1.234), times(12.34), times(0.5)
    ('1.2 times', '12 times', '0.50 times')
    """
    return f"{x:.2f} times" if x < 1 else f"{x:.1f} times" if x < 10 else f"{x:.0f} times"


def listed(names: Iterable[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    names = list(names)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def exponent(x: float) -> str:
    """An error in few characters.

    >>> exponent(1.23e-7)
    '1.2e-7'
    """
    mantissa, _, power = f"{x:.1e}".partition("e")
    return f"{mantissa}e{int(power)}"
