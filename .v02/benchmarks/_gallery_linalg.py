"""Figure of linear algebra with proved errors: symmetric products beside whole ones, in numbers solutions as well."""

from __future__ import annotations

from typing import Any

from _gpu_drawing import COLOURS, MARKS, Row, canvas

ACCURACIES = ("default", "reproducible", "correctly rounded")
LARGE = 4096


def _devices(rows: list[Row]) -> list[str]:
    """The CPU first."""
    return sorted({row["device"] for row in rows}, key=lambda device: device != "cpu")


def _named(device: str) -> str:
    return "a CPU" if device == "cpu" else f"an {device.split()[1]}"


def _gram(rows: list[Row], device: str) -> list[Row]:
    """Gram matrices beside whole products."""
    return [
        row for row in rows
        if row["device"] == device and row["call"].startswith("gram") and row["other"] == "whole product"
    ]  # fmt: skip


def _solves(rows: list[Row], device: str, call: str) -> Row | None:
    """The largest system."""
    found = [row for row in rows if (row["device"], row["call"]) == (device, call)]
    return max(found, key=lambda row: row["n"], default=None)


def symmetric(rows: list[Row]) -> Any:
    """How many times as fast a Gram matrix is as the whole product by the same scheme."""
    devices = _devices(rows)
    figure, axes = canvas(len(devices), width=3.9, height=3.5)
    for ax, device in zip(axes, devices, strict=True):
        for place, accuracy in enumerate(ACCURACIES):
            for dtype, line in (("float64", "-"), ("float32", ":")):
                found = sorted(
                    (row["n"], row["ratio"]) for row in _gram(rows, device)
                    if row["call"] == f"gram, {accuracy}" and row["dtype"] == dtype
                )  # fmt: skip
                if found:
                    ax.plot(*zip(*found, strict=True), MARKS[place] + line, color=COLOURS[place],
                            label=f"{accuracy}, {dtype}", markersize=5, linewidth=1)  # fmt: skip
        ax.axhline(1.6, color="0.6", linewidth=0.8, linestyle="--")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:.0f}")
        ax.set_ylim(bottom=0.0)
        ax.set_title("CPU, two cores" if device == "cpu" else device.split()[1], fontsize=10)
        ax.set_xlabel("n", fontsize=9)
        ax.tick_params(labelsize=8)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("speed relative to the whole product", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def symmetric_claim(rows: list[Row]) -> str:
    """The range from n = 4096 on, and what proofs of solutions take."""
    said = []
    for device in _devices(rows):
        found = [row["ratio"] for row in _gram(rows, device) if row["n"] >= LARGE]
        said.append(f"On {_named(device)} they are {min(found):.2f} to {max(found):.2f} times as fast.")
    found = [
        f"On {_named(device)} a system of n = {proved['n']} with a proved error takes"
        f" {1 / proved['ratio']:.1f} times as long as `{proved['other']}`, and {1 / plain['ratio']:.1f} times without"
        f" proof. {100 * proved['correctly_rounded']:.1f} % of its components are proved to be correctly rounded;"
        f" the other's worst one is off by {proved['other_ulps']:.2g} ulps."
        for device in _devices(rows)
        if (proved := _solves(rows, device, "solve")) and (plain := _solves(rows, device, "solve, fast"))
    ]
    return (
        "`gram` makes about half of the entries of a symmetric product, and `gemm` by the same scheme all of them. From"
        f" n = {LARGE} on: {' '.join(said)} Dashed: 1.6 times. {' '.join(found)} [Linear algebra](linalg.md) has the"
        " proofs."
    )
