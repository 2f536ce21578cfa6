"""Every figure of docs/gpu_figures.md, and the page itself, from the CSVs in results/; needs no GPU.

Run: python benchmarks/gpu_plots.py [--results FOLDER] [--docs FOLDER]; writes docs/figures/gpu/*.png and
docs/gpu_figures.md. Figures without rows are named at the end of the page. Numbers in the page's sentences are taken
from the rows as well.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from _gpu_drawing import (
    COLOURS,
    MARKS,
    ORDER,
    Page,
    Row,
    Tables,
    canvas,
    finish,
    lines,
    listed,
    save,
    stacked,
    stages,
    times,
)
from _gpu_paper_plots import PAPERS

ROOT = Path(__file__).parents[1]

INTRODUCTION = """# Figures of the GPU engine

Drawn by `benchmarks/gpu_plots.py`, numbers included, from `gpu_gemm.csv`, `gpu_figures.csv`, `gpu_peers.csv` and
`apps.csv` in `benchmarks/results` ([what runs on a GPU](gpu.md)). The rows name their GPU; each section names its
paper's hardware. Times are those of eager calls, certificate and repair included, unless the section says otherwise;
shades hold the middle 60 % of the rounds. Errors are relative, in the Frobenius norm.
"""


# Throughput and breakdown.

CALLS = {
    "float64": {"default": "default", "14 moduli": "14 moduli", "15 moduli": "15 moduli",
                "correctly-rounded": "correctly rounded"},
    "float32": {"default": "default", "reproducible": "reproducible", "correctly-rounded": "correctly rounded"},
}  # fmt: skip


def throughput(tables: Tables) -> Any:
    """TFLOP/s against n: cuBLAS, prismm eagerly and in graphs, and others' figures."""
    if not tables.rows["gpu_gemm"]:
        return None
    figure, axes = canvas(2, width=7.0, height=5.6)
    for ax, (dtype, calls) in zip(axes, CALLS.items(), strict=True):
        curves: dict[str, dict[int, Row]] = {}
        looks: dict[str, dict[str, Any]] = {}
        native = {n: _rate(n, row["native_ms"]) for n, row in tables.gemm(dtype, "default").items()}
        curves["cuBLAS"], looks["cuBLAS"] = native, {"color": "black", "linewidth": 2.0}
        for place, (call, name) in enumerate(calls.items()):
            rows = tables.gemm(dtype, call)
            for kind, ms, line in ((", eager", "ms", "-"), (", graph", "graph_ms", ":")):
                curves[f"prismm, {name}{kind}"] = {n: _rate(n, row[ms]) for n, row in rows.items()}
                looks[f"prismm, {name}{kind}"] = {"color": COLOURS[place], "linestyle": line}
        for place, (call, of) in enumerate(_peers(tables, dtype).items()):
            curves[call] = of
            looks[call] = {"color": "0.45", "linestyle": "--", "linewidth": 1.0, "marker": "sD^v"[place % 4]}
        lines(ax, curves, styles=lambda name, looks=looks: looks[name])
        finish(ax, dtype, ORDER, "TFLOP/s")
    return figure


def _rate(n: int, ms: float) -> Row:
    return {"value": 2.0 * n**3 / ms / 1e9}


def _peers(tables: Tables, dtype: str) -> dict[str, dict[int, Row]]:
    found: dict[str, dict[int, Row]] = {}
    for row in tables.rows["gpu_peers"]:
        if row["dtype"] == dtype:
            found.setdefault(row["call"], {})[row["n"]] = {"value": row["tflops"], "error": row["error"]}
    return found


def throughput_text(tables: Tables) -> str:
    """What the largest order shows."""
    said = []
    for dtype in CALLS:
        rows = tables.gemm(dtype, "default")
        if not rows:
            continue
        n = max(rows)
        faster = [m for m, row in rows.items() if row["ratio"] > 1.0]
        begin = f", and is the faster one from n = {min(faster)} on" if faster else ""
        said.append(
            f"{dtype}'s default reaches {rows[n]['tflops']:.0f} TFLOP/s at n = {n}, {times(rows[n]['ratio'])} cuBLAS's"
            f"{begin}"
        )
    rounded = tables.gemm("float64", "correctly-rounded")
    text = "; ".join(said) + "."
    if rounded:
        text += f" Correct rounding in float64 costs {times(1 / rounded[max(rounded)]['ratio'])} cuBLAS's time there."
    return text + (
        " Dotted lines are replays of captured graphs, where a call's launches cost the host nothing. Dashed ones were"
        " measured on the same kind of GPU on another day (`gpu_peers.csv` names the version), and those products are"
        " not certified."
    )


BROKEN = (
    ("float64", "14 moduli"),
    ("float64", "correctly-rounded"),
    ("float32", "default"),
    ("float32", "reproducible"),
)


def breakdown(tables: Tables) -> Any:
    """Shares of the stages, from the phases of gpu_gemm.csv."""
    if not tables.rows["gpu_gemm"]:
        return None
    figure, axes = canvas(2, 2, height=3.8)
    for ax, (dtype, call) in zip(axes, BROKEN, strict=True):
        rows = tables.gemm(dtype, call)
        stacked(ax, {str(n): stages(_phases(row)) for n, row in rows.items()})
        finish(ax, f"{dtype}, {call}", ORDER, columns=4)
    return figure


def _phases(row: Row) -> dict[str, float]:
    return {name: float(ms) for name, ms in (x.split("=") for x in str(row["phases_ms"]).split())}


def breakdown_text(tables: Tables) -> str:
    """How much the product is."""
    said = []
    for dtype, call in BROKEN:
        rows = {n: stages(_phases(row)) for n, row in tables.gemm(dtype, call).items()}
        if rows:
            low, high = min(rows), max(rows)
            some, more = (100 * rows[n].get("multiply", 0.0) / sum(rows[n].values()) for n in (low, high))
            said.append(f"{some:.0f} % at n = {low} and {more:.0f} % at {high} ({dtype}, {call})")
    return (
        f"The product on the matrix unit is {listed(said)} of what the kernels take one by one; the rest is bound by"
        " memory and instructions and grows with n². The join certifies entries, too; later kernels"
        " certify or repair those that it leaves uncertified."
    )


# Error against throughput.

PARETO = ("pareto-float64", "pareto-float32")


def pareto(tables: Tables) -> Any:
    """Errors against TFLOP/s of every scheme; a line along the best ones."""
    if not any(tables.figure(name) for name in PARETO):
        return None
    figure, axes = canvas(2, width=7.4, height=6.0)
    for ax, name in zip(axes, PARETO, strict=True):
        curves = tables.curves(name)
        for place, (series, of) in enumerate(curves.items()):
            rows = list(of.values())
            mark = MARKS[(place + place // len(COLOURS)) % len(MARKS)]
            look = {"color": COLOURS[place % len(COLOURS)], "label": series, "marker": mark, "markersize": 4, "lw": 0.8}
            ax.plot([r["value"] for r in rows], [r["error"] for r in rows], **look)
            for row in rows if len(rows) > 1 else ():
                where = (row["value"], row["error"])
                ax.annotate(str(row["x"]), where, xytext=(3, 3), textcoords="offset points", fontsize=6, color="0.3")
        best = sorted(frontier(tables.figure(name)), key=lambda row: row["value"])
        ax.plot(
            [r["value"] for r in best], [r["error"] for r in best], color="0.7", linewidth=5, alpha=0.4, zorder=0,
            label="nothing is both faster and more accurate",
        )  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        ax.set_yscale("log")
        ax.grid(alpha=0.3)
        finish(ax, f"{name.removeprefix('pareto-')}, {_order(tables.figure(name))}", "TFLOP/s", "relative error", 3)
    return figure


def _order(rows: list[Row]) -> str:
    found = [row["x"] for row in rows if row["series"] == "cuBLAS"]
    return f"n = {found[0]}" if found else "square matrices"


def frontier(rows: list[Row]) -> list[Row]:
    """Rows that no other one beats in both throughput and error."""
    rows = [row for row in rows if isinstance(row["error"], (int, float))]
    return [
        row for row in rows
        if not any(
            other["value"] >= row["value"] and other["error"] <= row["error"]
            and (other["value"], other["error"]) != (row["value"], row["error"])
            for other in rows
        )
    ]  # fmt: skip


def pareto_text(tables: Tables) -> str:
    """Who is on the line, and where cuBLAS is."""
    said = []
    for name in PARETO:
        rows = tables.figure(name)
        if rows:
            best = sorted(frontier(rows), key=lambda row: row["value"])
            series = list(dict.fromkeys(row["series"] for row in best))
            dtype = name.removeprefix("pareto-")
            own = next((row for row in rows if row["series"] == "cuBLAS"), None)
            where = "" if own is None else "; cuBLAS is on it too" if own in best else _beaten(own, best)
            said.append(f"In {dtype} the fastest ways at each error are {listed(series)}{where}.")
    return " ".join(said) + (
        " Small numbers are moduli (Residues), slices (Slices), elements of a chunk (ScaledHalf, Words) or levels"
        " (TileInt8). These are the schemes' own values of random normal matrices; other data move the errors, of"
        " TileInt8 and Slices in particular."
    )


def _beaten(own: Row, best: list[Row]) -> str:
    better = max((row for row in best if row["error"] <= own["error"]), key=lambda row: row["value"], default=None)
    if better is None or better["value"] <= own["value"]:
        return ""
    ratio = times(better["value"] / own["value"])
    return f"; {_name(better)} is no less accurate than cuBLAS at {ratio} its speed"


def _name(row: Row) -> str:
    return row["series"] if row["series"][0].islower() else f"{row['series']} ({row['x']})"


PAGES = (
    Page("throughput", "Throughput", throughput, throughput_text),
    Page("breakdown", "Where the time goes", breakdown, breakdown_text),
    Page("pareto", "Error against throughput", pareto, pareto_text),
    *PAPERS,
)


def wrapped(text: str, width: int = 118) -> str:
    """A paragraph in lines."""
    import textwrap

    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def write_all(tables: Tables, docs: Path) -> list[str]:
    """Every figure that has rows, and the page; the names of the figures."""
    drawn, missing, sections = [], [], [INTRODUCTION]
    for page in PAGES:
        figure = page.draw(tables)
        if figure is None:
            missing.append(page.title)
            continue
        figure.suptitle(page.title, fontsize=11)
        save(figure, docs / "figures" / "gpu" / f"{page.name}.png")
        drawn.append(page.name)
        image = f"![{page.title}](figures/gpu/{page.name}.png)"
        sections.append(f"## {page.title}\n\n{image}\n\n{wrapped(page.text(tables))}\n")
    if missing:
        sections.append(
            "## Not measured\n\n"
            + wrapped(f"`benchmarks/gpu_figures.py` measures these too: {'; '.join(missing)}.")
            + "\n"
        )
    (docs / "gpu_figures.md").write_text("\n".join(sections), encoding="utf-8")
    return drawn


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    for name in write_all(Tables.of(options.results), options.docs):
        print(name)


if __name__ == "__main__":
    main()
