"""Figures of speed and error, from the CSVs of the other benchmarks."""

from __future__ import annotations

import math
import statistics
from typing import Any

from _gpu_drawing import COLOURS, MARKS, Row, canvas, exponent, listed, times

TEXT = 9
CALLS = {"default": "default", "reproducible": "reproducible", "correctly-rounded": "correctly rounded"}
DTYPES = {"float64": "o", "float32": "s"}


def _plain(ax: Any, title: str, xlabel: str, ylabel: str = "") -> None:
    """Words around a panel, all of them large enough to be read at the width of a page."""
    ax.set_title(title, fontsize=TEXT + 1)
    ax.set_xlabel(xlabel, fontsize=TEXT)
    if ylabel:
        ax.set_ylabel(ylabel, fontsize=TEXT)
    ax.tick_params(labelsize=8)
    ax.grid(alpha=0.3)


# Speed against error.


def normal(rows: list[Row]) -> list[Row]:
    """Rows of normal data."""
    return [row for row in rows if row.get("data", "normal") == "normal"]


def largest(rows: list[Row], dtype: str, call: str) -> Row | None:
    """The row of the greatest n."""
    found = [row for row in normal(rows) if (row["dtype"], row["call"]) == (dtype, call)]
    return max(found, key=lambda row: row["n"], default=None)


def points(rows: list[Row], error: str, native: str) -> list[tuple[str, str, float, float]]:
    """Type, call, speed and error; that of the native product first."""
    found = []
    for dtype in DTYPES:
        for place, call in enumerate(CALLS):
            row = largest(rows, dtype, call)
            if row is None and call == "reproducible":  # that is what 15 moduli are in float64
                row = largest(rows, dtype, "15 moduli")
            if row is not None:
                found += [(dtype, "native", 1.0, row[native])] if not place else []
                found.append((dtype, call, row["ratio"], row[error]))
    return found


def speed_and_error(cpu: list[Row], gpu: list[Row]) -> Any:
    """Two panels: a CPU and a GPU."""
    figure, axes = canvas(2, width=3.9, height=3.7)
    panels = (
        (cpu, "max_relative", "numpy_max_relative", f"CPU ({_cpu(cpu)}), n = {_most(cpu)}", "worst error / |a||b|"),
        (gpu, "error", "native_error", f"GPU ({_gpu(gpu)}), n = {_most(gpu)}", "error / norm of the product"),
    )
    colours = {"native": "black", **dict(zip(CALLS, COLOURS, strict=False))}
    for ax, (rows, error, native, title, ylabel) in zip(axes, panels, strict=True):
        for dtype, call, speed, wrong in points(rows, error, native):
            hollow = {"markerfacecolor": "none", "markersize": 12} if call == "native" else {"markersize": 8}
            ax.plot(speed, wrong, DTYPES[dtype], color=colours[call], **hollow)
        ax.axvline(1.0, color="0.6", linewidth=0.8, linestyle="--")
        ax.set_yscale("log")
        ax.set_xlim(0.0, 1.3 if rows is cpu else 5.0)
        _plain(ax, title, "speed relative to native", ylabel)
    handles = [
        axes[0].plot([], [], DTYPES["float64"], color=colours[call], label=CALLS.get(call, "native"))[0]
        for call in colours
    ]
    handles += [axes[0].plot([], [], mark, color="0.5", label=dtype)[0] for dtype, mark in DTYPES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False, columnspacing=1.0)
    return figure


def _most(rows: list[Row]) -> int:
    return max(row["n"] for row in rows if row["dtype"] == "float64" and row["call"] == "default")


def _cpu(rows: list[Row]) -> str:
    return str(rows[0]["cpu"]).replace("(R)", "") + f", {rows[0]['threads']} threads"


def _gpu(rows: list[Row]) -> str:
    return str(rows[0]["gpu"]).removeprefix("NVIDIA ")


def speed_and_error_claim(cpu: list[Row], gpu: list[Row]) -> str:
    """Speeds and errors of correct rounding and of the default."""
    on_cpu = {
        (dtype, call): (speed, wrong) for dtype, call, speed, wrong in points(cpu, "max_relative", "numpy_max_relative")
    }
    on_gpu = {(dtype, call): (speed, wrong) for dtype, call, speed, wrong in points(gpu, "error", "native_error")}
    rounded, native = on_cpu["float64", "correctly-rounded"], on_cpu["float64", "native"]
    return (
        f"Right is faster, down is more accurate. On the CPU correct rounding in float64 runs at {rounded[0]:.2f} of"
        f" NumPy's speed, with a worst error of {exponent(rounded[1])} instead of {exponent(native[1])}. On the GPU"
        f" the default is {times(on_gpu['float64', 'default'][0])} as fast as cuBLAS in float64 and"
        f" {times(on_gpu['float32', 'default'][0])} in float32, with errors of"
        f" {exponent(on_gpu['float64', 'default'][1])} and {exponent(on_gpu['float32', 'default'][1])} where cuBLAS"
        f" has {exponent(on_gpu['float64', 'native'][1])} and {exponent(on_gpu['float32', 'native'][1])}. Random"
        " normal data, certificates and repair included."
    )


# Speed on a CPU.

TYPES = ("float64", "float32", "complex128")


def cpu_speed(rows: list[Row]) -> Any:
    """A panel for each type."""
    figure, axes = canvas(3, width=2.6, height=3.0)
    for ax, dtype in zip(axes, TYPES, strict=True):
        for place, (call, name) in enumerate(CALLS.items()):
            found = sorted(
                (row["n"], row["ratio"]) for row in normal(rows) if (row["dtype"], row["call"]) == (dtype, call)
            )
            ax.plot(*zip(*found, strict=True), MARKS[place] + "-", color=COLOURS[place], label=name, markersize=4)
        ax.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
        ax.set_xscale("log", base=2)
        ax.set_xticks([32, 256, 1024, 4096], ["32", "256", "1024", "4096"])
        ax.set_ylim(0.0, 1.12)
        _plain(ax, dtype, "n", "speed relative to NumPy" if dtype == "float64" else "")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def cpu_speed_claim(rows: list[Row]) -> str:
    """What certainty costs at the greatest n."""
    said = []
    for dtype in TYPES[:2]:
        found = {call: largest(rows, dtype, call) for call in CALLS}
        n = found["default"]["n"]  # type: ignore[index]
        speeds = ", ".join(f"{CALLS[call]} {row['ratio']:.2f}" for call, row in found.items() if row)
        said.append(f"{dtype} at n = {n}: {speeds}")
    return (
        f"{'; '.join(said)} of NumPy's speed ({_cpu(rows)}). Small products pay for splits and joins, which grow with"
        " n² where the product grows with n³."
    )


# GPUs.


def sweep(h200: list[Row], h100: list[Row]) -> Any:
    """Ratios in order."""
    figure, (ax,) = canvas(1, width=7.0, height=3.2)
    for place, (rows, gpu) in enumerate(((h200, "H200"), (h100, "H100"))):
        ratios = sorted(row["ratio"] for row in rows)
        shares = [100 * (i + 0.5) / len(ratios) for i in range(len(ratios))]
        ax.plot(shares, ratios, color=COLOURS[place], label=f"{gpu}: {len(ratios)} shapes", linewidth=1.8)
    ax.axhline(1.0, color="0.4", linewidth=0.8, linestyle="--")
    ax.set_yscale("log", base=2)
    ax.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    _plain(ax, "", "shapes in the order of their speed, %", "speed relative to cuBLAS")
    ax.legend(fontsize=8)
    return figure


def sweep_claim(h200: list[Row], h100: list[Row]) -> str:
    """Median and slowest."""
    said = []
    for rows, gpu in ((h200, "an H200"), (h100, "an H100")):
        ratios = [row["ratio"] for row in rows]
        slower = sum(ratio < 0.98 for ratio in ratios)
        said.append(
            f"on {gpu} the median of {len(ratios)} shapes is {statistics.median(ratios):.2f}, the slowest"
            f" {min(ratios):.2f}, and {slower or 'none'} of them {'is' if slower < 2 else 'are'} more than 2 % slower"
            " than cuBLAS"
        )
    return f"Default accuracy, square, flat, long and batched shapes, repeated calls: {'; '.join(said)}."


def predictions(h200: list[Row], h100: list[Row]) -> Any:
    """Predicted against measured."""
    figure, axes = canvas(2, width=3.6, height=3.4)
    for place, (ax, rows, gpu) in enumerate(zip(axes, (h200, h100), ("H200", "H100"), strict=True)):
        ax.plot(
            [row["ms"] for row in rows], [row["predicted_ms"] for row in rows], ".", color=COLOURS[place], markersize=5
        )
        ends = min(row["ms"] for row in rows), max(row["ms"] for row in rows)
        ax.plot(ends, ends, color="0.4", linewidth=0.8)
        ax.set(xscale="log", yscale="log")
        _plain(ax, gpu, "measured, ms", "predicted, ms" if not place else "")
    return figure


def predictions_claim(h200: list[Row], h100: list[Row]) -> str:
    """Where the middle nine tenths lie."""
    said = []
    for rows, gpu in ((h200, "H200"), (h100, "H100")):
        ratios = sorted(row["predicted_ms"] / row["ms"] for row in rows)
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        said.append(f"{low:.2f} and {high:.2f} on an {gpu}")
    return f"`explain` predicts the time of a call: nine of ten are between {listed(said)} times the measured one."


# Data, programs, the probe.


def wide_data(cpu: list[Row], cuda: list[Row], before: list[Row], shown: int = 14) -> Any:
    """The slowest families on both devices; grey: of operands that are not balanced."""
    figure, axes = canvas(2, width=4.6, height=4.0)
    for ax, rows, earlier, title in zip(axes, (cpu, cuda), ([], before), ("CPU, one thread", "H100"), strict=True):
        found, places = _families(rows)[-shown:], range(shown)
        was = dict(_families(earlier))
        ax.barh(places, [was.get(name, 0.0) for name, _ in found], color="0.85")
        ax.barh(places, [value for _, value in found], color=COLOURS[0])
        ax.set_yticks(places, [name.replace("_", " ") for name, _ in found], fontsize=7)
        ax.axvline(8.0, color="0.6", linewidth=0.8, linestyle="--")
        ax.set_xscale("log", base=2)
        ax.set_xlim(1.0, 1.2 * max(*was.values(), *(value for _, value in found)))
        ax.xaxis.set_major_formatter("{x:.0f}")
        _plain(ax, title, "time relative to normal data")
    return figure


def _families(rows: list[Row]) -> list[tuple[str, float]]:
    """Slowness of correctly rounded float64 products of each family, at the size where it is greater; on GPUs on an
    H100.
    """
    found: dict[str, float] = {}
    for row in rows:
        if row["call"] == "correctly-rounded" and "H100" in row.get("gpu", "H100"):
            found[row["family"]] = max(found.get(row["family"], 0.0), row["times_normal"])
    return sorted(found.items(), key=lambda pair: pair[1])


def wide_data_claim(cpu: list[Row], cuda: list[Row], before: list[Row]) -> str:
    """The slowest, and how many are near 1."""
    said = []
    for rows, device in ((cpu, "a CPU"), (cuda, "an H100")):
        found = _families(rows)
        near = sum(value <= 1.5 for _, value in found)
        worst, most = found[-1]
        said.append(
            f"On {device} {near} of {len(found)} families take at most 1.5 times as long as normal data; the slowest,"
            f" {worst.replace('_', ' ')}, takes {most:.1f} times as long."
        )
    most = _families(before)[-1][1]
    return (
        f"Correctly rounded float64 products, n = 512 to 2048, each family at its slowest. {' '.join(said)} Grey:"
        f" times on a GPU without balanced operands, up to {most:.0f} times."
    )


WAYS = {"default": 0, "reproducible": 1, "correctly-rounded": 2, "tf32": 3}


def applications(rows: list[Row]) -> Any:
    """Speed of whole programs against their error."""
    figure, axes = canvas(2, width=3.9, height=3.7)
    for ax, device in zip(axes, ("cpu", "cuda"), strict=True):
        for way, place in WAYS.items():
            found = [row for row in rows if _is(row, device, way)]
            ax.plot([row["speed"] for row in found], [row["error"] / row["native_error"] for row in found],
                    MARKS[place], color=COLOURS[place], markersize=6, label=way)  # fmt: skip
        ax.axvline(1.0, color="0.6", linewidth=0.8, linestyle="--")
        ax.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
        ax.set(xscale="log", yscale="log")
        title = "CPU, two cores" if device == "cpu" else "H200"
        _plain(ax, title, "speed relative to native", "error relative to native's" if device == "cpu" else "")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _is(row: Row, device: str, way: str) -> bool:
    numbers = all(isinstance(row[key], int | float) for key in ("error", "native_error", "speed"))
    return bool(
        row["device"] == device and row["way"] == way and numbers and row["error"] > 0 and row["native_error"] > 0
    )


def applications_claim(rows: list[Row]) -> str:
    """Failures of each way."""
    said = []
    for way in WAYS:
        found = [row for row in rows if row["way"] == way]
        passed = sum(str(row["passed"]) == "True" for row in found)
        said.append(f"{way} in {passed} of {len(found)} runs")
    return (
        "Eight programs with torch's products: factorisations, nearest neighbours, clusters, networks. Right is"
        f" faster, down is more accurate. The program's own criterion holds with {listed(said)}. `tf32` is torch's"
        " reduced precision, which guarantees nothing. [Applications](applications.md) has the table."
    )


SEARCHES = {"tuner": "tuner", "exhaustive": "exhaustive search", "exhaustive, no margin": "without a margin"}


def tuning(rows: list[Row]) -> Any:
    """Speed against tolerance."""
    figure, axes = canvas(2, width=3.6, height=3.2)
    for ax, program in zip(axes, ("cholesky", "mlp"), strict=True):
        for place, (search, name) in enumerate(SEARCHES.items()):
            found = sorted(
                (row["tolerance"], row["speed"]) for row in rows
                if row["program"] == program and row["search"] == search and isinstance(row["speed"], int | float)
            )  # fmt: skip
            if found:
                size = {"markersize": 9 - 2 * place, "markerfacecolor": "none" if place else COLOURS[0]}
                ax.plot(
                    *zip(*found, strict=True), MARKS[place] + "-", color=COLOURS[place], label=name, linewidth=1, **size
                )
        ax.set_xscale("log")
        _plain(ax, program, "tolerance", "predicted speed relative to native" if program == "cholesky" else "")
    axes[0].legend(fontsize=8)
    return figure


def tuning_claim(rows: list[Row]) -> str:
    """Trials, and whether the tuner is as good."""
    tuner = [row for row in rows if row["search"] == "tuner"]
    worst = min(row["of_exhaustive"] for row in tuner)
    broken = sum(int(row["broken"]) for row in tuner)
    return (
        f"The tuner's choices reach {100 * worst:.0f} % of the speed that exhaustive search finds, or more, with"
        f" {min(row['trials'] for row in tuner)} to {max(row['trials'] for row in tuner)} runs of the program."
        f" {broken or 'No'} new inputs broke the tolerance. Speeds are predicted for an H200."
    )


def probe(rows: list[Row]) -> Any:
    """How long probes take."""
    figure, (ax,) = canvas(1, width=7.0, height=2.8)
    ax.hist([row["seconds"] for row in rows], bins=40, color=COLOURS[0])
    _plain(ax, "", "CPU seconds of a probe", "models")
    return figure


def probe_claim(rows: list[Row]) -> str:
    """Outcomes."""
    found = sum(row["outcome"] in ("exact", "equivalent") for row in rows)
    seconds = sorted(row["seconds"] for row in rows)
    return (
        f"Of {len(rows)} random hidden engines the probe recovers every observable property of {found}. Half of the"
        f" probes take less than {statistics.median(seconds):.0f} s, the longest {math.ceil(seconds[-1])} s. [Matrix"
        " engines](numerics/README.md#the-probe) has the details."
    )
