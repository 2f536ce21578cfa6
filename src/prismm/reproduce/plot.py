"""Plots of an experiment, drawn from its rows alone. matplotlib is imported only when something is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prismm.errors import EngineError
from prismm.reproduce.framework import Rows

_COLOURS = (
    "#0b6e99",
    "#c1272d",
    "#1b7f3b",
    "#8a5a00",
    "#6a3d9a",
    "#444444",
    "#d95f8d",
    "#2aa198",
    "#b58900",
    "#000000",
)
_MARKS = ("o", "s", "^", "D", "v", "x", "P", "*", "<", ">")


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the series of a figure's measure against its variable.

    series: which, in order; None for all. levels: published values as horizontal lines, with their labels. spread: a
    published range, shaded.
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


class PlotError(EngineError):
    """matplotlib is missing."""


def draw(panels: tuple[Panel, ...], rows: Rows, path: Path, title: str) -> None:
    """Write a PNG of the panels that have data.

    Raises:
        PlotError: without matplotlib, with what to install.
        FileError: where the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("plots need matplotlib; install it with: pip install 'prismm[plot]'") from error
    from prismm.files.target import explained

    shown = [panel for panel in panels if len(rows.pick(panel.figure, measure=panel.measure))]
    across = min(3, max(1, len(shown)))
    down = max(1, -(-len(shown) // across))
    figure = Figure(figsize=(5.4 * across, 5.0 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis, panel in zip(axes, shown, strict=False):
        _panel(axis, panel, rows)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    figure.suptitle(title)
    with explained(path):
        figure.savefig(path, dpi=80, format="png")


def _panel(ax: Any, panel: Panel, rows: Rows) -> None:
    part = rows.pick(panel.figure, measure=panel.measure)
    names = panel.series or tuple(dict.fromkeys(row.series for row in part))
    for place, name in enumerate(names):
        curve = part.curve(panel.figure, name, panel.measure)
        points = [(x, y) for x, y in curve.items() if y > 0 or not panel.logy]
        if points:
            ax.plot(
                *zip(*points, strict=True),
                marker=_MARKS[place % len(_MARKS)],
                color=_COLOURS[place % len(_COLOURS)],
                linewidth=1.4,
                markersize=4,
                label=name,
            )
    for value, label in panel.levels:
        ax.axhline(value, color="0.55", linestyle=":", linewidth=1)
        ax.annotate(label, (0.01, value), xycoords=("axes fraction", "data"), fontsize=7, color="0.35", va="bottom")
    if panel.logx:
        ax.set_xscale("log", base=2)
    if panel.logy:
        ax.set_yscale("log")
    ax.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
