"""The page of GPUs: what prismm knows of each card, from the cost tables that ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COSTS = Path(__file__).resolve().parents[2] / "src" / "prismm" / "cuda" / "costs"

INTRODUCTION = """# Table of cards

prismm knows the published figures of these GPUs. A card with a measured cost table is planned for by measured times.
Times of every other card are estimated from its figures and a measurement of less than 3 seconds, at the first call;
`prismm calibrate` measures a whole table. Guarantees hold on every card. [How Auto chooses](gpu.md#how-auto-chooses).

Rates are of dense products, in TOP/s or TFLOP/s. FP64 is the rate of FP64 matrix instructions, where a card has them.
"""

COLUMNS = {
    "card": "name", "compute capability": "capability", "INT8": "int8_tops", "FP16": "fp16_tflops",
    "FP64": "fp64_matrix_tflops", "FP32": "fp32_tflops", "GB/s": "memory_gb_s",
}  # fmt: skip


def page() -> str:
    """Markdown."""
    known = json.loads((COSTS / "cards.json").read_text(encoding="utf-8"))
    measured = {path.stem for path in COSTS.glob("nvidia-*.json")}
    head = [*COLUMNS, "costs", "source"]
    lines = [row(head), row(["---"] * len(head))]
    for card in known["cards"]:
        costs = "measured" if slug(card["name"]) in measured else "estimated"
        lines.append(row([*(card[key] for key in COLUMNS.values()), costs, ", ".join(card["sources"])]))
    sources = [f"- **{name}**: {text}" for name, text in known["sources"].items()]
    return "\n".join([INTRODUCTION, *lines, "", "## Sources", "", *sources, ""])


def slug(name: str) -> str:
    """The name of a card's file.

    >>> slug("NVIDIA H100 80GB HBM3")
    'nvidia-h100-80gb-hbm3'
    """
    return name.lower().replace(" ", "-")


def row(cells: list[Any]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"
