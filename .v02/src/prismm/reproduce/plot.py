"""Plots of an experiment, drawn from its rows alone. matplotlib is imported only when something is drawn.

A page is 7 inches wide and holds two panels side by side; its text has 8 points or more. Published numbers are black;
our series are coloured, each with a colour and a mark that no other of the panel has.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prismm.core.extras import install
from prismm.errors import EngineError
from prismm.reproduce.framework import Rows

_COLOURS = (
    "#0b6e99", "#c1272d", "#1b7f3b", "#b06c00", "#6a3d9a", "#5f6b76", "#d95f8d", "#2aa198", "#8a8f00", "#7f4f24",
    "#4f9de0", "#e07b39", "#74b816",
)  # fmt: skip
_MARKS = ("o", "s", "^", "D", "v", "X", "P", "*", "<", ">", "p", "h", "d")

_WIDTH, _HEIGHT = 3.5, 2.6
"""Inches of a panel, without its legend."""

_POINTS = 8.0
"""Size of the smallest text."""

_LINE = 0.155
"""Inches of a line of a legend."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the series of a figure's measure against its variable.

    series: which, in order; None for all. levels: published values as horizontal lines, with their labels. published:
    numbers of the paper at some x, with a label. band: a published range of values, shaded. by_series: the series
    stand along x, one value each.
    """

    title: str
    figure: str
    measure: str
    xlabel: str
    ylabel: str
    logx: bool = True
    logy: bool = True
    series: tuple[str, ...] | None = None
    levels: tuple[tuple[float, str], ...] = ()
    published: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()
    band: tuple[float, float, str] | None = None
    by_series: bool = False


class PlotError(EngineError):
    """matplotlib is missing."""


def draw(panels: tuple[Panel, ...], rows: Rows, path: Path, title: str) -> None:
    """Write a PNG of the panels that have data.

    Raises:
        PlotError: without matplotlib, with what to install.
        FileError: where the file cannot be written.
    """
    from prismm.files.target import explained

    figure = figure_of(panels, rows, title)
    with explained(path):
        figure.savefig(path, dpi=110, format="png", metadata={"Software": None})


def figure_of(panels: tuple[Panel, ...], rows: Rows, title: str) -> Any:
    """matplotlib's figure of the panels that have data.

    Raises:
        PlotError: without matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError(f"plots need matplotlib; install it with: {install('plot')}") from error
    shown = [panel for panel in panels if len(rows.pick(panel.figure, measure=panel.measure))]
    across = min(2, max(1, len(shown)))
    lines = [shown[i : i + across] for i in range(0, len(shown), across)]
    heights = [
        _HEIGHT + _LINE * max(_legend_lines(panel, rows) + _title(panel).count("\n") for panel in line)
        for line in lines
    ]
    with rc_context({"font.size": _POINTS, "axes.titlesize": 9.0, "xtick.labelsize": _POINTS,
                     "ytick.labelsize": _POINTS, "legend.fontsize": _POINTS, "figure.titlesize": 9.5}):  # fmt: skip
        figure = Figure(figsize=(_WIDTH * across, sum(heights) + 0.5), layout="constrained")
        axes = figure.subplots(len(lines), across, squeeze=False, gridspec_kw={"height_ratios": heights})
        for line, places in zip(lines, axes, strict=True):
            for place, axis in enumerate(places):
                if place < len(line):
                    _panel(axis, line[place], rows)
                else:
                    axis.set_axis_off()
        figure.suptitle("\n".join(textwrap.wrap(title, 48 * across)))
    return figure


def _title(panel: Panel) -> str:
    return "\n".join(textwrap.wrap(panel.title, 44))


def _names(panel: Panel, rows: Rows) -> tuple[str, ...]:
    part = rows.pick(panel.figure, measure=panel.measure)
    return panel.series or tuple(dict.fromkeys(row.series for row in part))


def _legend_lines(panel: Panel, rows: Rows) -> int:
    names = () if panel.by_series else _names(panel, rows)
    labels = [*names, *(label for label, _ in panel.published), *([panel.band[2]] if panel.band else [])]
    return -(-len(labels) // _columns(labels))


def _columns(labels: list[str]) -> int:
    """Of a legend: as many as the panel's width has room for."""
    return 1 if max(map(len, labels), default=0) > 24 else 2


def _panel(ax: Any, panel: Panel, rows: Rows) -> None:
    part = rows.pick(panel.figure, measure=panel.measure)
    names = _names(panel, rows)
    if panel.by_series:
        values = [next(iter(part.curve(panel.figure, name, panel.measure).values())) for name in names]
        ax.plot(range(len(names)), values, marker="o", linestyle="none", markersize=6, color=_COLOURS[0], label="ours")
        ax.set_xticks(range(len(names)), names)
    else:
        for place, name in enumerate(names):
            curve = part.curve(panel.figure, name, panel.measure)
            points = [(x, y) for x, y in curve.items() if y > 0 or not panel.logy]
            if points:
                ax.plot(
                    *zip(*points, strict=True), label=name, color=_COLOURS[place % len(_COLOURS)],
                    marker=_MARKS[(place + place // len(_COLOURS)) % len(_MARKS)], linewidth=1.2, markersize=4,
                )  # fmt: skip
    if panel.band is not None:
        low, high, label = panel.band
        ax.axhspan(low, high, color="black", alpha=0.12, linewidth=0, label=label)
    for label, published in panel.published:
        ax.plot(
            *zip(*published, strict=True), label=label, color="black",
            linestyle="none" if panel.by_series else "--", linewidth=1.2, marker="+",
            markersize=11, markeredgewidth=1.6, zorder=5,
        )  # fmt: skip
    for value, label in panel.levels:
        ax.axhline(value, color="black", linestyle="--", linewidth=1)
        ax.annotate(label, (0.01, value), xycoords=("axes fraction", "data"), fontsize=_POINTS, va="bottom")
    if panel.logx and not panel.by_series:
        ax.set_xscale("log", base=2)
    if panel.logy:
        ax.set_yscale("log")
    ax.set(title=_title(panel), xlabel=panel.xlabel, ylabel=panel.ylabel)
    ax.grid(alpha=0.3)
    ax.margins(y=0.1)
    labels = ax.get_legend_handles_labels()[1]
    if labels:
        from matplotlib.transforms import offset_copy

        below = offset_copy(ax.transAxes, fig=ax.figure, y=-0.44, units="inches")
        ax.legend(
            loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below,
            ncols=_columns(labels), frameon=False, borderaxespad=0.0,
            labelspacing=0.15, columnspacing=1.0, handletextpad=0.4, handlelength=1.6,
        )  # fmt: skip
