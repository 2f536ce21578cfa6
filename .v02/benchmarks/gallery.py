"""Every figure of docs/gallery.md, and the page itself, from the CSVs in results/; `make gallery` runs it.

Run: python benchmarks/gallery.py [--results FOLDER] [--docs FOLDER]; writes docs/figures/gallery/*.png and
docs/gallery.md. Each figure stands with what it shows, in numbers from the same rows, and the command that measured
them.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _gallery_concepts as concepts
import _gallery_linalg as linalg
import _gallery_speed as speed
from _gpu_drawing import Row, read

ROOT = Path(__file__).parents[1]
Tables = dict[str, list[Row]]

INTRODUCTION = """# Gallery

`make gallery` redraws these figures, [those of the GPU](gpu_figures.md) and this page, numbers included, from the files
in `benchmarks/results`. The command below a figure measures its rows anew. [The papers' figures](reproduce/README.md)
come from `prismm reproduce`.
"""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: of its file.
        title: its heading.
        tables: the CSVs that it is drawn from.
        draw: makes the figure from their rows.
        claim: what it shows, with numbers from the same rows.
        command: what measured the rows.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    draw: Callable[..., Any]
    claim: Callable[..., str]
    command: str


FIGURES = (
    Figure("speed_and_error", "Speed against error", ("cpu_gemm", "gpu_gemm"), speed.speed_and_error,
           speed.speed_and_error_claim, "python benchmarks/cpu_gemm.py; python benchmarks/gpu_gemm.py"),
    Figure("cpu_speed", "Speed on a CPU", ("cpu_gemm",), speed.cpu_speed, speed.cpu_speed_claim,
           "python benchmarks/cpu_gemm.py"),
    Figure("sweep", "Regular shapes on a GPU", ("gpu_sweep", "gpu_sweep_h100"), speed.sweep, speed.sweep_claim,
           "python benchmarks/gpu_sweep.py"),
    Figure("predictions", "Predicted and measured times", ("gpu_sweep", "gpu_sweep_h100"), speed.predictions,
           speed.predictions_claim, "python benchmarks/gpu_sweep.py"),
    Figure("wide_data", "Data that span many binades", ("wide_data_cpu", "wide_data_cuda", "wide_data_cuda_before"),
           speed.wide_data, speed.wide_data_claim, "python benchmarks/wide_data.py [--device cuda]"),
    Figure("symmetric", "Symmetric products and proved solutions", ("linalg",), linalg.symmetric,
           linalg.symmetric_claim, "python benchmarks/linalg.py [--device cuda]"),
    Figure("applications", "Whole applications", ("apps",), speed.applications, speed.applications_claim,
           "python benchmarks/apps/run.py"),
    Figure("tuning", "The tuner", ("tuning",), speed.tuning, speed.tuning_claim, "python benchmarks/apps/run.py"),
    Figure("probe", "The probe", ("probe_models",), speed.probe, speed.probe_claim,
           "python benchmarks/probe_models.py"),
    Figure("split", "Four ways to split a row", ("concepts",), concepts.split, concepts.split_claim,
           "python benchmarks/concepts.py"),
    Figure("drift", "Sums that truncate drift", ("concepts",), concepts.drift, concepts.drift_claim,
           "python benchmarks/concepts.py"),
    Figure("certificate", "Certificates", ("concepts",), concepts.certificate, concepts.certificate_claim,
           "python benchmarks/concepts.py"),
)  # fmt: skip


def save(figure: Any, path: Path) -> None:
    """As PNG, the same bytes for the same rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, format="png", metadata={"Software": None})


def page(results: Path) -> str:
    """Markdown, without drawing."""
    sections = [INTRODUCTION]
    for figure in FIGURES:
        claim = textwrap.fill(
            figure.claim(*tables_of(figure, results)), 118, break_long_words=False, break_on_hyphens=False
        )
        files = ", ".join(f"`{name}.csv`" for name in figure.tables)
        image = f"![{figure.title}](figures/gallery/{figure.name}.png)"
        sections.append(
            f"## {figure.title}\n\n{image}\n\n{claim}\n\nDrawn from {files}; measured by `{figure.command}`.\n"
        )
    return "\n".join(sections)


def tables_of(figure: Figure, results: Path) -> list[list[Row]]:
    """The rows that a figure is drawn from."""
    return [read(results / f"{name}.csv") for name in figure.tables]


def write_all(results: Path, docs: Path) -> None:
    """Every figure, and the page."""
    for figure in FIGURES:
        save(figure.draw(*tables_of(figure, results)), docs / "figures" / "gallery" / f"{figure.name}.png")
    (docs / "gallery.md").write_text(page(results), encoding="utf-8")


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    write_all(options.results, options.docs)


if __name__ == "__main__":
    main()
