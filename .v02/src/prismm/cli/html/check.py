"""The page of ``prismm check``: the measures, and a map of the errors over the matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prismm.cli.check import block_maxima
from prismm.cli.html.markup import Markup, joined, tag
from prismm.cli.html.page import document, facts, grid
from prismm.core.check import share_text, up_text

if TYPE_CHECKING:
    from prismm.core.check import Check

_BLOCKS, _SIDE = 48, 480  # of the map: blocks a side at most, pixels


def check_page(found: Check, names: tuple[str, str, str]) -> str:
    """The page of a check of the product in the third file."""
    title = f"How wrong is {names[2]}?"
    verdict = f"{share_text(found)} of {found.entries} entries are correctly rounded"
    if found.wrong_special:
        verdict += f"; {found.wrong_special} are wrongly Inf or NaN, or wrongly finite"
    rows = [
        [name, up_text(x.worst), "" if x.where is None else ", ".join(map(str, x.where)), up_text(x.median),
         up_text(x.rms)]
        for name, x in found.measures.items()
    ]  # fmt: skip
    size = "x".join(map(str, found.shape))
    parts = [
        tag("h1", title),
        tag("p", f"The product of {names[0]} and {names[1]}. All errors are guaranteed upper bounds.", class_="lead"),
        tag("p", verdict, ".", class_="verdict" if found.correctly_rounded == 1.0 else "verdict bad"),
        grid(["error, at most", "worst", "row, column", "median", "rms"], rows, ("worst", "median", "rms")),
        facts([
            ("product", f"{size} {found.dtype}"), ("operands", " and ".join(found.operands)), ("k", str(found.k)),
            ("certified by", f"{found.scheme} on {found.engine}"), ("recomputed", f"{found.recomputed} entries"),
            ("time", f"{found.seconds:.2f} s"),
        ]),
        tag("h2", "Errors over the matrix"),
        _map(found),
    ]  # fmt: skip
    return document(title, *parts)


def _map(found: Check) -> Markup:
    """Blocks of the matrix, darker where the worst error in ulps is larger, on a logarithmic scale."""
    values = block_maxima(found.ulps.values, _BLOCKS)
    finite = [float(x) for x in values.flat if 0.0 < x < math.inf]
    if values.size == 0 or (not finite and not (values > 0.0).any()):
        return tag("p", "Every entry is exact.")
    low, high = (min(finite), max(finite)) if finite else (1.0, 1.0)
    span = math.log(high / low) if 0.0 < low < high and high / low < math.inf else 1.0
    tall, wide = values.shape
    side = _SIDE / max(tall, wide)
    cells: list[Markup] = [tag("title", "Worst error of each block, in ulps")]
    for i in range(tall):
        for j in range(wide):
            value = float(values[i, j])
            if value == 0.0:
                continue
            depth = 1.0 if math.isinf(value) else 0.12 + 0.88 * min(1.0, math.log(value / low) / span)
            kind = "lost" if math.isinf(value) else "kept"
            cells.append(tag(
                "rect", x=f"{j * side:.1f}", y=f"{i * side:.1f}",
                width=f"{side:.1f}", height=f"{side:.1f}", class_=kind, fill_opacity=f"{depth:.2f}",
            ))  # fmt: skip
    width, height = math.ceil(wide * side), math.ceil(tall * side)
    box = f"0 0 {width} {height}"
    svg = tag("svg", joined(*cells), width=width, height=height, viewBox=box, role="img", class_="map")
    legend = (
        f"darkest {up_text(high)} ulp, lightest {up_text(low)} ulp; empty blocks are exact, red ones infinitely wrong"
    )
    return joined(tag("div", svg, class_="scroll", tabindex="0"), tag("p", legend, ".", class_="lead"))
