"""The papers' performance figures, redrawn for the GPU of gpu_figures.csv, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from _gpu_drawing import (
    COLOURS,
    ORDER,
    Page,
    Row,
    Tables,
    canvas,
    exponent,
    finish,
    levels,
    lines,
    listed,
    stacked,
)

# MixPert.


def mixpert_2(tables: Tables) -> Any:
    """Speed over cuBLAS and error against n."""
    speeds, rates = tables.curves("mixpert-2", "times cuBLAS"), tables.curves("mixpert-2")
    if not speeds:
        return None
    figure, axes = canvas(2, width=6.2)
    lines(axes[0], speeds)
    levels(axes[0], [(1.98, "published: CUTLASS, 3 x TF32, on an A100")])
    finish(axes[0], "speed", ORDER, "times cuBLAS's SGEMM", 3)
    lines(axes[1], rates, "error", logy=True)
    finish(axes[1], "error", ORDER, "relative error", 3)
    return figure


def _largest(curves: Mapping[str, Mapping[Any, Row]]) -> Any:
    return max((x for of in curves.values() for x in of), default=None)


def _at(curves: Mapping[str, Mapping[Any, Row]], x: Any, measure: str = "value") -> list[str]:
    """Series with their value at x, largest first."""
    found = [(of[x][measure], series) for series, of in curves.items() if x in of]
    return [f"{series} {value:.2f}" for value, series in sorted(found, reverse=True)]


def mixpert_2_text(tables: Tables) -> str:
    """Speeds at the largest order."""
    speeds = tables.curves("mixpert-2", "times cuBLAS")
    n = _largest(speeds)
    errors = {s: of[n]["error"] for s, of in tables.curves("mixpert-2").items() if n in of}
    worst = listed(f"{s} {exponent(e)}" for s, e in sorted(errors.items(), key=lambda one: one[1]))
    text = (
        f"Times cuBLAS's SGEMM at n = {n}: {listed(_at(speeds, n))}. Errors there: {worst}. The paper's Figure 2 has,"
        " on an A100, 1.98 times cuBLAS for CUTLASS's three TF32 products and 1.90 for APE's six BF16 ones"
    )
    if "Words BF16 x 6" in errors:
        text += (
            ", and an error of 9.85e-5 for the latter, which does not come back: with sums in FP32, chunk by chunk, it"
            f" is {exponent(errors['Words BF16 x 6'])} here"
        )
    return text + "."


SHADES = (*COLOURS[:9], "#7fb3d5", "#f0a3a3", "#9ad0a8", "#c9b8e0")
PROGRAMS = ("hpl-mxp", "cholesky", "ccc", "knn", "kmeans", "bert", "mlp", "mlp-training")


def mixpert_8(tables: Tables) -> Any:
    """Speeds of whole programs, and of one GEMM."""
    bars = _programs(tables)
    if not bars:
        return None
    labels = sorted(
        {label for of in bars.values() for label in of}, key=lambda label: (label.startswith("GEMM"), label)
    )
    figure, (ax,) = canvas(1, width=14.0, height=4.6)
    ways = list(bars)
    width = 0.85 / max(sum(label in of for of in bars.values()) for label in labels)
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for place, label in enumerate(labels):
        here = [way for way in ways if label in bars[way]]
        for turn, way in enumerate(here):
            found[way].append((place + (turn - len(here) / 2 + 0.5) * width, bars[way][label]))
    for place, (way, points) in enumerate(found.items()):
        ax.bar(*zip(*points, strict=True), width, label=way, color=SHADES[place % len(SHADES)])
    ax.axhline(1.0, color="black", linewidth=0.8)
    levels(ax, [(1.72, "published mean of MixPert on an A100")])
    ax.set_xticks(range(len(labels)), labels, fontsize=7)
    ax.grid(axis="y", alpha=0.3)
    finish(ax, "whole programs in float32", "", "times native", len(bars))
    return figure


def _programs(tables: Tables) -> dict[str, dict[str, float]]:
    """Speed over native by way and program."""
    found: dict[str, dict[str, float]] = {}
    for row in tables.rows["apps"]:
        known = row["device"] == "cuda" and row["dtype"] == "float32" and row["app"] in PROGRAMS
        if known and row["way"] != "native" and isinstance(row["speed"], (int, float)):
            found.setdefault(row["way"], {})[f"{row['app']}\n{row['size']}"] = row["speed"]
    for series, of in tables.curves("mixpert-2", "times cuBLAS").items() if found else ():
        way = {"prismm's default": "default", "cuBLAS, 1 x TF32": "tf32"}.get(series, series)
        for n in of.keys() & {16384, 24576}:
            found.setdefault(way, {})[f"GEMM\n{n}"] = of[n]["value"]
    return found


def mixpert_8_text(tables: Tables) -> str:
    """Means of the programs."""
    bars = _programs(tables)
    means = {
        way: math.exp(sum(math.log(x) for x in found) / len(found))
        for way, of in bars.items()
        if (found := [x for label, x in of.items() if not label.startswith("GEMM")])
    }
    told = listed(f"{way} {mean:.2f}" for way, mean in sorted(means.items(), key=lambda one: -one[1]))
    text = (
        f"Geometric means over the programs, times native: {told}. `tf32` and `bf16` are torch's reduced products"
        " without any guarantee; `default` meets a native product's bound everywhere. The paper's means (1.72 for"
        " MixPert, 1.45 for CUTLASS, 1.41 for APE) are of GPU kernels on an A100, with other sizes; these are of whole"
        " programs, as `prismm bench apps` times them."
    )
    slow = [" ".join(label.split()) for label, x in bars.get("default", {}).items() if x < 1.0]
    return text + (f" Slower than native by default: {listed(slow)}." if slow else "")


def _split_label(series: str) -> tuple[str, str]:
    name, _, label = series.rpartition(", ")
    return (name, label) if name else (label, "")


def mixpert_11(tables: Tables) -> Any:
    """Where the time of each scheme goes."""
    parts = tables.parts("mixpert-11")
    if not parts:
        return None
    labels = sorted({_split_label(series)[1] for series in parts}, key=len)
    figure, axes = canvas(len(labels), width=8.0, height=4.8)
    for ax, label in zip(axes, labels, strict=True):
        bars = {
            f"{_split_label(series)[0]}, {n}": found
            for series, of in parts.items() if _split_label(series)[1] == label
            for n, found in of.items()
        }  # fmt: skip
        stacked(ax, bars)
        for tick in ax.get_xticklabels():
            tick.set(rotation=60, fontsize=6)
        finish(ax, label or "n x n x n", "", columns=5, inside=True)
    return figure


def mixpert_11_text(tables: Tables) -> str:
    """Overheads at the largest order."""
    said = []
    for series, of in tables.parts("mixpert-11").items():
        name, label = _split_label(series)
        n = max(of)
        overhead = 100 * (1 - of[n].get("multiply", 0.0) / sum(of[n].values()))
        if label in ("k = n", ""):
            said.append(f"{name} {overhead:.0f} % (n = {n})")
    return (
        f"Share of the kernels' time outside the product is: {listed(said)}. The paper has 11.1 % for MixPert on"
        " average and 4.2 % at its largest, 4.3 % for APE and 30.5 % for CUTLASS; there the conversion of INT32 sums is"
        " counted as overhead, here it happens in the product's registers and is part of the product."
    )


def mixpert_12(tables: Tables) -> Any:
    """Processes that share the GPU."""
    rates, speeds = tables.curves("mixpert-12"), tables.curves("mixpert-12", "times cuBLAS")
    if not rates:
        return None
    figure, axes = canvas(2)
    for ax, curves, label in zip(
        axes, (speeds, rates), ("times cuBLAS's in as many processes", "TFLOP/s"), strict=True
    ):
        lines(ax, curves, logx=False)
        finish(ax, "m = n = 2048, k = 16384", "processes", label)
        ax.set_ylim(bottom=0)
    return figure


def mixpert_12_text(tables: Tables) -> str:
    """What becomes of the speeds."""
    rates, speeds = tables.curves("mixpert-12"), tables.curves("mixpert-12", "times cuBLAS")
    most = _largest(rates)
    ends = {series: (of[1]["value"], of[most]["value"]) for series, of in rates.items() if {1, most} <= {*of}}
    total = listed(f"{series} {one:.0f} and {many:.0f}" for series, (one, many) in ends.items())
    said = [f"{s} {of[1]['value']:.2f} and {of[most]['value']:.2f}" for s, of in speeds.items() if {1, most} <= {*of}]
    return (
        f"In all, 1 and {most} processes reach, in TFLOP/s: {total}. Times cuBLAS in as many processes: {listed(said)}."
        " Nothing merges the processes' contexts here: they take turns on the GPU. The paper saw its speed over cuBLAS"
        " decrease with the number of MPI processes on one A100, and stay ahead of CUTLASS and APE by 24 and 34 % with"
        " five or fewer. Figure 12a is of another GPU, an RTX 3090, and has no counterpart."
    )


# DGEMM-TC.


def _by_range(tables: Tables, name: str) -> Any:
    """Throughput against n, a style for each range of entries."""
    curves = tables.curves(name)
    if not curves:
        return None
    figure, axes = canvas(2, width=6.4, height=5.2)
    schemes = list(dict.fromkeys(_split_phi(series)[0] for series in curves))

    def look(series: str) -> dict[str, Any]:
        scheme, phi = _split_phi(series)
        line = {"0.1": "-", "1": "--", "2": ":"}.get(phi, "-")
        own = {"color": "black"} if scheme == "cuBLAS" else {"color": COLOURS[schemes.index(scheme) % len(COLOURS)]}
        return {**own, "linestyle": line}

    lines(axes[0], curves, styles=look)
    finish(axes[0], "throughput", ORDER, "TFLOP/s, as a plain product")
    lines(axes[1], curves, "error", logy=True, styles=look)
    finish(axes[1], "error", ORDER, "relative error")
    return figure


def _split_phi(series: str) -> tuple[str, str]:
    name, _, phi = series.partition(", φ = ")
    return name, phi


def _phi_text(tables: Tables, name: str) -> str:
    speeds = tables.curves(name, "times cuBLAS")
    n = _largest(speeds)
    return f"{_ranges({s: of[n]['value'] for s, of in speeds.items() if n in of}, '.2f')} times cuBLAS at n = {n}"


def _ranges(values: Mapping[str, float], form: str) -> str:
    """Values by scheme, from the least to the largest of all ranges of entries."""
    found: dict[str, list[float]] = {}
    for series, value in values.items():
        found.setdefault(_split_phi(series)[0], []).append(value)
    told = []
    for scheme, some in found.items():
        low, high = (format(x, form) for x in (min(some), max(some)))
        told.append(f"{scheme} {low}" + (f" to {high}" if high != low else ""))
    return listed(told)


def _how(tables: Tables, name: str, counts: str) -> Any:
    """Breakdown, numbers of products, and throughput on the matrix unit."""
    parts, found, rates = tables.parts(counts), tables.curves(counts, "products"), tables.curves(name)
    if not parts and not found:
        return None
    figure, axes = canvas(3, height=5.2)
    n = max((x for of in parts.values() for x in of), default=None)
    short = {series: of[n] for series, of in parts.items() if n in of}
    if not short:
        axes[0].set_axis_off()
    stacked(axes[0], {series.replace(", φ", "\nφ"): of for series, of in short.items()})
    for tick in axes[0].get_xticklabels():
        tick.set(rotation=60, fontsize=6)
    finish(axes[0], f"kernels, n = {n}" if n else "kernels", "", columns=4, inside=True)
    lines(axes[1], found)
    finish(axes[1], "products of slices", ORDER, "products")
    unit = {
        series: {x: {"value": row["value"] * rates[series][x]["value"]} for x, row in of.items() if x in rates[series]}
        for series, of in found.items() if series in rates
    }  # fmt: skip
    lines(axes[2], unit)
    finish(axes[2], "all products of a call over its time", ORDER, "TFLOP/s or TOP/s")
    return figure


def _counts_text(tables: Tables, counts: str) -> str:
    found = tables.curves(counts, "products")
    n = _largest(found)
    return f"{_ranges({s: of[n]['value'] for s, of in found.items() if n in of}, '.0f')} at n = {n}"


def _share_text(tables: Tables, counts: str) -> str:
    parts = tables.parts(counts)
    n = max((x for of in parts.values() for x in of), default=None)
    shares = {s: 100 * of[n].get("multiply", 0.0) / sum(of[n].values()) for s, of in parts.items() if n in of}
    return f" The product's share of the kernels' time, in %: {_ranges(shares, '.0f')} at n = {n}." if shares else ""


ENTRIES = (
    " Entries are (rand − 0.5)·exp(φ·randn). `Slices` estimate their number from the data first, which the times"
    " include; the paper's FP16 slices, written in torch's operations on cuBLAS, stand beside them where they were"
    " measured."
)


def dgemm_tc_4_text(tables: Tables) -> str:
    """DP mode."""
    native = tables.curves("dgemm-tc-4").get("cuBLAS", {})
    own = f"cuBLAS's DGEMM reaches {native[max(native)]['value']:.0f} TFLOP/s here" if native else "that is not so here"
    return (
        f"Accuracy of a float64 product: {_phi_text(tables, 'dgemm-tc-4')}. On the paper's Titan RTX cublasDgemm"
        f" reached 0.54 TFLOP/s and slices 0.98; {own}, so slices have more to make up for." + ENTRIES
    )


def dgemm_tc_5_text(tables: Tables) -> str:
    """Products and shares of DP mode."""
    return (
        f"Products of slices: {_counts_text(tables, 'dgemm-tc-5')}; the paper has 66 of FP16 at n = 7168, φ = 0.1."
        f"{_share_text(tables, 'dgemm-tc-5')} In the paper about 70 % of the time was cuBLAS's at that size."
    )


def dgemm_tc_6_text(tables: Tables) -> str:
    """CR mode."""
    return (
        f"Correctly rounded: {_phi_text(tables, 'dgemm-tc-6')}. The paper splits until nothing is left, multiplies all"
        " pairs of slices and adds them by NearSum; on a GPU `Slices` take a fixed number, certify every entry, and"
        " recompute uncertified entries."
    )


def dgemm_tc_7_text(tables: Tables) -> str:
    """Products and shares of CR mode."""
    return f"Products: {_counts_text(tables, 'dgemm-tc-7')}.{_share_text(tables, 'dgemm-tc-7')}"


def dgemm_tc_9_text(tables: Tables) -> str:
    """SP mode."""
    return (
        f"Accuracy of a float32 product: {_phi_text(tables, 'dgemm-tc-9')}. In the paper SGEMM-TC did not reach"
        " cublasSgemm on a Titan RTX, whose FP32 units are fast. Two FP16 words, which is what prismm takes by itself,"
        " need three products."
    )


def dgemm_tc_table(tables: Tables) -> Any:
    """Bars of Table 1."""
    rows = _table_rows(tables)
    if not rows:
        return None
    figure, (ax,) = canvas(1, width=9.0, height=0.8 + 0.28 * len(rows))
    names = [name for name, _ in rows][::-1]
    values = [row["value"] for _, row in rows][::-1]
    bars = ax.barh(range(len(names)), values, 0.7, color=COLOURS[0])
    ax.bar_label(bars, [f"{value:.3g}" for value in values], fontsize=7, padding=2)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.grid(axis="x", alpha=0.3)
    finish(ax, f"m = n = k = {rows[0][1]['x']}", "TFLOP/s, as a plain product")
    return figure


def _table_rows(tables: Tables) -> list[tuple[str, Row]]:
    """Everything in float64 at the largest order that both modes have."""
    modes = [tables.curves(name) for name in ("dgemm-tc-4", "dgemm-tc-6")]
    sizes = [{x for of in curves.values() for x in of} for curves in modes]
    if not all(sizes) or not sizes[0] & sizes[1]:
        return []
    n = max(sizes[0] & sizes[1])
    found = {series: of[n] for curves in modes for series, of in curves.items() if n in of}
    return list(found.items())


def dgemm_tc_table_text(tables: Tables) -> str:
    """Against the published table."""
    n = _table_rows(tables)[0][1]["x"]
    said = [f"{_phi_text(tables, name)} ({mode})" for name, mode in (("dgemm-tc-4", "DP"), ("dgemm-tc-6", "CR"))]
    return (
        f"Both modes at n = {n} with cuBLAS: {'; '.join(said)}. The paper's table has a Titan RTX, where slices on"
        " tensor cores beat cublasDgemm, and a Tesla V100 with full FP64 units, where they did not: an H200 is of the"
        " second kind."
    )


# H2SGEMM.

TILES = ("plain kernel", "feeding warp", "groups of tiles")


def h2sgemm_10(tables: Tables) -> Any:
    """Launch constants of the product of two FP16 words."""
    curves = tables.curves("h2sgemm-10")
    if not curves:
        return None
    figure, axes = canvas(3)
    plain = {s: of for s, of in curves.items() if s.startswith(TILES[0])}
    shapes = list(dict.fromkeys(x for of in plain.values() for x in of))
    for place, (series, of) in enumerate(plain.items()):
        x = [shapes.index(shape) for shape in of]
        rates = [row["value"] for row in of.values()]
        axes[0].plot(x, rates, marker="o", markersize=4, lw=1.4, label=series, color=COLOURS[place])
    axes[0].set_xticks(range(len(shapes)), shapes, fontsize=7)
    axes[0].grid(alpha=0.3)
    finish(axes[0], "plain kernel: one stage is a single buffer", "tile", "TFLOP/s of the product alone")
    lines(axes[1], {s: of for s, of in curves.items() if s.startswith(TILES[1])}, logx=False)
    finish(axes[1], "kernel with a feeding warp: 128 x 128", "stages")
    groups = {s: dict(of) for s, of in curves.items() if s.startswith(TILES[2])}
    usual = curves.get("feeding warp, chunk 256, 64 deep", {}).get(3)
    if groups and usual is not None:
        groups[next(iter(groups))][8] = usual
    lines(axes[2], groups)
    finish(axes[2], "order of tiles", "rows of tiles in a group")
    return figure


def h2sgemm_10_text(tables: Tables) -> str:
    """What buffers and tiles are worth."""
    curves = tables.curves("h2sgemm-10")
    n_best = {s: max(of.values(), key=lambda row: row["value"]) for s, of in curves.items()}
    said = []
    plain = {s: row["value"] for s, row in n_best.items() if s.startswith(TILES[0])}
    single, double = (plain.get(f"plain kernel, {x}") for x in ("1 stage", "2 stages"))
    if single and double:
        said.append(
            f"In the plain kernel the best tile reaches {single:.0f} TFLOP/s with a single buffer and {double:.0f} with"
            f" two, {100 * (double / single - 1):+.0f} %; the paper has 41.7 and 65.3, +57 %."
        )
    short = curves.get("feeding warp, chunk 64, 64 deep", {})
    if {1, 2} <= {*short}:
        one, two = short[1]["value"], short[2]["value"]
        said.append(
            f"In the kernel that prismm launches, with chunks of 64, {one:.0f} and {two:.0f} TFLOP/s"
            f" ({100 * (two / one - 1):+.0f} %); {_more(short)}."
        )
    if n_best:
        best, row = max(n_best.items(), key=lambda one: one[1]["value"])
        said.append(f"The fastest of all is {best} at {row['x']}: {row['value']:.0f} TFLOP/s.")
    said.append(
        "Times are of the product's kernel alone at n = 8192; the Ascend 910A converts operands inside of its pipeline,"
        " and keeps blocks in an L1 that software manages, so its block sizes do not correspond to tiles here."
    )
    return " ".join(said)


def _more(short: Mapping[Any, Row]) -> str:
    most = max(short)
    return f"{most} stages reach {short[most]['value']:.0f}"


PANELS = (
    ("h2sgemm-11a", "m = n, k = 2816", ORDER),
    ("h2sgemm-11b", "m = n = 4096", "k"),
    ("h2sgemm-11c", "all", ORDER),
)


def h2sgemm_11(tables: Tables) -> Any:
    """Throughput against m = n, k and all, with a third of the FP16 rate."""
    if not any(tables.curves(name) for name, _, _ in PANELS):
        return None
    figure, axes = canvas(3)
    for ax, (name, title, xlabel) in zip(axes, PANELS, strict=True):
        lines(ax, _thirds(tables.curves(name)))
        finish(ax, title, xlabel, "TFLOP/s")
    return figure


def _thirds(curves: dict[str, dict[Any, Row]]) -> dict[str, dict[Any, Row]]:
    """With cuBLAS's rate on FP16 operands over three."""
    found = {}
    for series, of in curves.items():
        if series.startswith("cuBLAS, FP16"):
            found["a third of cuBLAS's on FP16"] = {
                x: {key: row[key] / 3 for key in ("value", "low", "high")} for x, row in of.items()
            }
        else:
            found[series] = of
    return found


def h2sgemm_11_text(tables: Tables) -> str:
    """Share of the FP16 rate."""
    said = []
    for name, title, xlabel in PANELS:
        curves = _thirds(tables.curves(name))
        ours, third = curves.get("ScaledHalf", {}), curves.get("a third of cuBLAS's on FP16", {})
        both = sorted(ours.keys() & third.keys())
        if both:
            x = both[-1]
            share = 100 * ours[x]["value"] / third[x]["value"]
            said.append(f"{share:.0f} % at {'k' if xlabel == 'k' else 'n'} = {x} ({title})")
    return (
        f"ScaledHalf reaches, of a third of cuBLAS's rate on FP16 operands, {listed(said)}; the paper reaches 77 % of a"
        " third of an Ascend 910A's peak with 60 TFLOP/s or more, beside SGEMM on the FP32 matrix units of a 910B3. An"
        " H200 has no such units: cuBLAS's SGEMM runs on its FP32 cores. Small products wait for the host."
    )


PAPERS = (
    Page("mixpert_2", "MixPert, Figure 2: speed and error of GEMM", mixpert_2, mixpert_2_text),
    Page("mixpert_8", "MixPert, Figure 8: whole programs", mixpert_8, mixpert_8_text),
    Page("mixpert_11", "MixPert, Figure 11: overheads", mixpert_11, mixpert_11_text),
    Page("mixpert_12", "MixPert, Figure 12b: processes that share the GPU", mixpert_12, mixpert_12_text),
    Page("dgemm_tc_4", "DGEMM-TC, Figure 4: DP mode", lambda t: _by_range(t, "dgemm-tc-4"), dgemm_tc_4_text),
    Page("dgemm_tc_5", "DGEMM-TC, Figure 5: DP mode in detail", lambda t: _how(t, "dgemm-tc-4", "dgemm-tc-5"),
         dgemm_tc_5_text),
    Page("dgemm_tc_6", "DGEMM-TC, Figure 6: CR mode", lambda t: _by_range(t, "dgemm-tc-6"), dgemm_tc_6_text),
    Page("dgemm_tc_7", "DGEMM-TC, Figure 7: CR mode in detail", lambda t: _how(t, "dgemm-tc-6", "dgemm-tc-7"),
         dgemm_tc_7_text),
    Page("dgemm_tc_table_1", "DGEMM-TC, Table 1", dgemm_tc_table, dgemm_tc_table_text),
    Page("dgemm_tc_9", "DGEMM-TC, Figure 9: SP mode", lambda t: _by_range(t, "dgemm-tc-9"), dgemm_tc_9_text),
    Page("h2sgemm_10", "H2SGEMM, Figure 10: blocks and buffers", h2sgemm_10, h2sgemm_10_text),
    Page("h2sgemm_11", "H2SGEMM, Figure 11: sizes", h2sgemm_11, h2sgemm_11_text),
)  # fmt: skip
