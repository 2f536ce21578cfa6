"""What the figures of docs/gpu_figures.md need besides gpu_gemm.csv: errors beside throughput of every scheme, and the
performance figures of the papers on this GPU.

Run: python benchmarks/gpu_figures.py [--figures pareto-float64,mixpert-2] [--seconds 200] [--quick]; writes
results/gpu_figures.csv after every row. Ways to multiply take turns on the same operands, each call measured by CUDA
events; value is the median, low and high hold the middle 60 %. Errors are those of a sample in the Frobenius norm,
against products in a wider type. "times cuBLAS" is the ratio to cuBLAS's product of the same type, round by round;
"ms" rows are kernels (`part`) one by one. A way that the GPU does not take is left out, with a message. Before anything
is timed, processes run every call once, so that their kernels are compiled side by side. python benchmarks/gpu_plots.py
draws.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _gpu_pipeline as pipeline
from _common import RESULTS
from _gpu_processes import share, side_by_side
from _gpu_races import FP16, NATIVE, PUBLISHED, TF32, Broken, Group, Session, Way, checked, run, say, square

from prismm.schemes import Residues, ScaledHalf, Slices, TileInt8, Words

PHIS = (0.1, 1.0, 2.0)
"""Ranges of the entries in Mukunoki et al."""

COMPILED = 4096
"""Orders up to which processes run calls to compile their kernels; larger ones take the same."""

CORRECT = Way("correctly rounded", {"accuracy": "correctly-rounded"})


def _residues(*counts: int) -> list[Way]:
    return [Way("Residues", {"scheme": Residues(n)}, x=n) for n in counts]


def _slices(unit: str, *counts: int) -> list[Way]:
    name = f"Slices {unit.upper()}"
    return [Way(name, {"scheme": Slices(unit, slices=d, fast=True)}, x=d) for d in counts]


def _words(name: str, scheme: Words, *chunks: int) -> list[Way]:
    return [Way(name, {"scheme": dataclasses.replace(scheme, chunk=chunk)}, x=chunk) for chunk in chunks]


WIDE = (
    NATIVE, *_residues(9, 11, 12, 13, 14, 15, 16, 18), *_slices("int8", 3, 4, 5, 6, 7, 8), *_slices("fp16", 7, 9, 11),
    CORRECT,
)  # fmt: skip
NARROW = (
    NATIVE, TF32, *_residues(4, 5, 6, 7, 8, 10),
    *(Way("ScaledHalf", {"scheme": ScaledHalf(chunk=chunk)}, x=chunk) for chunk in (64, 128, 256, 512)),
    *_words("Words TF32 x 3", Words.tf32(), 64, 256, 512), *_words("Words FP16 x 3", Words.fp16(), 64, 512),
    *_words("Words BF16 x 3", Words.bf16(3), 256), *_words("Words BF16 x 6", Words.bf16(6), 64, 256, 512),
    *(Way("TileInt8", {"scheme": TileInt8(level)}, x=level) for level in (1, 2, 4, 5)),
    *_slices("int8", 2, 3, 4), *_slices("fp16", 3, 5), CORRECT,
)  # fmt: skip
MIXPERT = (
    NATIVE,
    Way("TileInt8 IV", {"scheme": TileInt8(4)}),
    Way("TileInt8 I", {"scheme": TileInt8(1)}),
    Way("Words TF32 x 3", {"scheme": Words.tf32()}),
    Way("Words BF16 x 6", {"scheme": Words.bf16(6)}),
    Way("prismm's default", {}),
)
"""MixPert's scheme, CUTLASS's and APE's, and what is taken when nothing is asked for."""


def sizes(quick: bool, *orders: int) -> tuple[int, ...]:
    """The orders, or small ones to see that everything runs."""
    return (256,) if quick else orders


def pareto_wide(quick: bool) -> Iterator[Group]:
    """Errors and throughput in float64."""
    for n in sizes(quick, 8192):
        yield square("pareto-float64", "float64", n, WIDE)


def pareto_narrow(quick: bool) -> Iterator[Group]:
    """Errors and throughput in float32."""
    for n in sizes(quick, 8192):
        yield square("pareto-float32", "float32", n, NARROW)


def mixpert_2(quick: bool) -> Iterator[Group]:
    """MixPert's Figure 2: square matrices in float32; Figure 8's GEMM goes up to 24576."""
    for n in sizes(quick, 1024, 2048, 4096, 8192, 16384, 24576):
        yield square("mixpert-2", "float32", n, (*MIXPERT, TF32))


def mixpert_11(quick: bool) -> Iterator[Group]:
    """MixPert's Figure 11: where the time goes, n x n x n and n x n x 2n."""
    for n in sizes(quick, 2048, 4096, 8192, 16384):
        ways = MIXPERT if n < 16384 else tuple(way for way in MIXPERT if way.name != "TileInt8 I")
        for times in (1, 2) if n < 16384 else (1,):
            label = "k = n" if times == 1 else "k = 2n"
            yield Group("mixpert-11", "float32", n, n, times * n, n, ways, label=label, parts="mixpert-11")


def mixpert_12(quick: bool) -> Iterator[Group]:
    """MixPert's Figure 12b: Sparkler's shape, a long inner dimension, in several processes at once."""
    m, k = (128, 512) if quick else (2048, 16384)
    yield Group("mixpert-12", "float32", m, m, k, m, tuple(way for way in MIXPERT if way.name != "TileInt8 I"))


def dgemm_tc(quick: bool, figure: str, dtype: str, units: tuple[str, ...], mode: Any, parts: str) -> Iterator[Group]:
    """Figures 4, 6 and 9 of Mukunoki et al.: throughput against n for three ranges of entries. parts: the figure that
    takes times and counts.
    """
    fast = mode != "CR"
    ours = {
        "DP": Way("Residues 14", {"scheme": Residues(14), "accuracy": "native"}),
        "SP": Way("prismm's default", {}),
        "CR": Way("Residues, correctly rounded", {"accuracy": "correctly-rounded"}),
    }[mode]
    for n in sizes(quick, 1024, 2048, 4096, 7168, 10240):
        for phi in PHIS[:1] if quick else PHIS:
            ways = [Way(f"Slices {unit.upper()} {mode}", {"scheme": Slices(unit, mode, fast=fast)}) for unit in units]
            # Every kernel runs 16 times for its part.
            apart = parts if n in (256, 7168 if fast else 4096) else ""
            ways = [*([PUBLISHED] if fast else []), *ways, ours]
            yield square(figure, dtype, n, (NATIVE, *ways), phi=phi, label=f"φ = {phi:g}", parts=apart, counts=parts)


def dgemm_tc_4(quick: bool) -> Iterator[Group]:
    """Figures 4 and 5 of Mukunoki et al.: DP mode."""
    yield from dgemm_tc(quick, "dgemm-tc-4", "float64", ("fp16", "int8"), "DP", "dgemm-tc-5")


def dgemm_tc_6(quick: bool) -> Iterator[Group]:
    """Figures 6 and 7, and Table 1: CR mode, on FP64 units too."""
    yield from dgemm_tc(quick, "dgemm-tc-6", "float64", ("fp16", "int8", "fp64"), "CR", "dgemm-tc-7")


def dgemm_tc_9(quick: bool) -> Iterator[Group]:
    """Figure 9: SP mode."""
    yield from dgemm_tc(quick, "dgemm-tc-9", "float32", ("fp16", "int8"), "SP", "dgemm-tc-9")


def h2sgemm_11(quick: bool) -> Iterator[Group]:
    """Figure 11 of Xue et al.: throughput against m = n, against k, and against all."""
    ways = (NATIVE, Way("ScaledHalf", {"scheme": ScaledHalf(chunk=512)}), Way("prismm's default", {}), FP16)
    deep, wide = (128, 128) if quick else (64 * 44, 4096)
    for n in sizes(quick, 512, 1024, 2048, 4096, 8192, 16384):
        yield Group("h2sgemm-11a", "float32", n, n, deep, n, ways)
    for k in sizes(quick, 256, 1024, 4096, 16384, 32768):
        yield Group("h2sgemm-11b", "float32", wide, wide, k, k, ways)
    for n in sizes(quick, 512, 1024, 2048, 4096, 8192, 16384):
        yield square("h2sgemm-11c", "float32", n, ways)


GROUPS: dict[str, Callable[[bool], Iterator[Group]]] = {
    "pareto-float64": pareto_wide,
    "pareto-float32": pareto_narrow,
    "mixpert-2": mixpert_2,
    "mixpert-11": mixpert_11,
    "mixpert-12": mixpert_12,
    "dgemm-tc-4": dgemm_tc_4,
    "dgemm-tc-9": dgemm_tc_9,
    "dgemm-tc-6": dgemm_tc_6,
    "h2sgemm-11": h2sgemm_11,
}
FIGURES = (*GROUPS, "h2sgemm-10")
"""In the order in which they are measured."""

PROCESSES = (1, 2, 4, 8)


def tasks(figures: list[str], quick: bool) -> list[tuple[str, tuple[Any, ...]]]:
    """What processes run to compile the kernels of these figures: each scheme once, those whose slices depend on the
    data once for each size and range.
    """
    found: dict[tuple[Any, ...], tuple[str, tuple[Any, ...]]] = {}
    for figure in figures:
        for group in GROUPS[figure](quick) if figure in GROUPS else ():
            for place, way in enumerate(group.ways):
                scheme = way.form.get("scheme")
                sliced = isinstance(scheme, Slices) and scheme.slices is None
                fits = max(group.m, group.n) <= COMPILED
                if way.own or not (fits or not sliced):
                    continue
                key = (group.dtype, repr(way.form), *((group.k, group.phi) if sliced else ()))
                # The default depends on the size; of other ways the smallest group will do.
                key = (*key, group.n) if not way.form and fits else key
                small = group if fits else dataclasses.replace(group, m=COMPILED, n=COMPILED, k=COMPILED)
                found.setdefault(key, ("compile", (small, place)))
    if "h2sgemm-10" in figures:
        for variant in chosen_variants():
            found[variant,] = "variant", (variant, 512)
    return list(found.values())


def chosen_variants() -> list[pipeline.Variant]:
    """Of the product of words, on this GPU."""
    import torch

    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    return [variant for variant in pipeline.variants() if hopper or not variant.hopper]


def measure(figure: str, session: Session, quick: bool) -> None:
    """All rows of a figure; a group that fails leaves the others."""
    if figure == "h2sgemm-10":
        for variant in chosen_variants() if session.device == "cuda" else ():
            if session.late():
                say(f"  out of time before {variant}")
                return
            _guarded(lambda: pipeline.measure(variant, 512 if quick else 8192, "h2sgemm-10", session), session)  # noqa: B023
        return
    for group in GROUPS[figure](quick):
        if figure == "mixpert-12":
            counts = PROCESSES[:2] if quick else PROCESSES
            _guarded(lambda: share(group, counts, session), session)  # noqa: B023
        else:
            _guarded(lambda: run(group, session), session)  # noqa: B023


def _guarded(work: Callable[[], None], session: Session) -> None:
    try:
        work()
    except Broken:
        raise
    except Exception as error:
        say(f"  failed: {checked(error, session.device)}")


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", default=",".join(FIGURES), help=f"some of {', '.join(FIGURES)}")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further row after so many")
    parser.add_argument("--compile", type=float, default=75.0, help="seconds to compile side by side; 0: do not")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to see that the script runs")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    options = parser.parse_args()
    figures = options.figures.split(",")
    if unknown := set(figures) - set(FIGURES):
        parser.error(f"no figures {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    start = time.monotonic()
    session = Session(options.device, folder=options.folder, deadline=start + options.seconds)
    if options.quick:
        session.seconds, session.least = 0.02, 2
    if options.compile > 0:
        side_by_side(tasks(figures, options.quick), options.device, min(options.compile, options.seconds))
    if options.device == "cuda":
        from gpu_sweep import warm_up

        warm_up(1.0)
    for place, figure in enumerate(figures):
        say(f"{time.monotonic() - start:.0f} s: {figure}")
        try:
            measure(figure, session, options.quick)
        except Broken as error:
            say(f"  the device is lost: {error}")
            rest = [figure for figure in figures[place + 1 :] if not session.late()]
            if not rest:
                return 1
            left = max(1.0, session.deadline - time.monotonic())
            again = ["--figures", ",".join(rest), "--seconds", f"{left:.0f}", "--compile", "0"]
            again += ["--folder", str(options.folder), "--device", options.device, *["--quick"] * options.quick]
            return subprocess.call([sys.executable, __file__, *again])
    say(f"{time.monotonic() - start:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
