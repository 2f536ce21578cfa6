"""The page of ``prismm reproduce``: the verdicts, what a paper published beside ours, and the figures."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from prismm.cli.html.markup import Markup, tag
from prismm.cli.html.page import document, facts, grid, mono
from prismm.cli.reproduce_table import HEAD, cells, verdicts

if TYPE_CHECKING:
    from prismm.reproduce.framework import Experiment
    from prismm.reproduce.run import Result


def experiment_page(experiment: Experiment, title: str, citation: str, result: Result, plot: Path | None) -> str:
    """The page of a run; plot: its figures as a PNG, if they were drawn."""
    differ = [found for found in result.comparisons if found.verdict == "differs"]
    parts = [
        tag("h1", title),
        tag("p", citation, class_="lead"),
        tag("p", tag("strong", verdicts(result)), ".", class_="verdict bad" if differ else "verdict"),
        tag("p", experiment.setup),
        facts([("run", mono(result.run)), ("points", result.points), ("seconds", f"{result.seconds:.0f}")]),
        tag("h2", "Published beside ours"),
        grid(HEAD, (_row(cells(found)) for found in result.comparisons), ("ours",)),
    ]
    notes = [found.claim for found in result.comparisons if found.claim.note]
    if notes:
        parts.append(tag("h2", "Notes"))
        parts.append(tag("ul", *(tag("li", f"{claim.where}, {claim.what}: {claim.note}") for claim in notes)))
    if plot is not None:
        parts += [tag("h2", "Figures"), _picture(plot, title)]
    return document(title, *parts)


def _row(found: list[str]) -> list[object]:
    verdict, where, what, published, ours, rule = found
    return [tag("strong", verdict) if verdict.isupper() else verdict, where, what, published, ours, mono(rule)]


def _picture(plot: Path, title: str) -> Markup:
    """The PNG within the page."""
    data = base64.b64encode(plot.read_bytes()).decode("ascii")
    return tag("figure", tag("img", src=f"data:image/png;base64,{data}", alt=f"Figures of {title}", class_="plot"))
