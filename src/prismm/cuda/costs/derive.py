"""Rates of a GPU that nobody calibrated: the H100's measured table, each figure scaled by what bounds its kernel.

A figure of the table belongs to one resource: a matrix unit, FP64 or FP32 units, memory, launches. What a GPU reaches
of a resource is what the H100 reaches of it, times the ratio of both GPUs' published figures (`costs.facts`), or of
what both were measured to reach (`costs.measurement`). So an H100 is given its own table. What is assumed besides:

- *Streaming* kernels (splits, joins) go with memory and with instructions issued: see `_OF_MEMORY`.
- Splits and joins have FP64 instructions, which other kernels hide on an H100: `_FP64_INSTRUCTIONS`. A GPU with slower
  FP64 units takes the difference longer.
- Without compute capability 9.0 the plain Triton kernels run: see `PORTABLE`.
- FP8 products have plain Triton kernels alone. They are counted where sums in the unit are long enough for blocks.
- Launches, and the host's share, take what they take beside an H100, unless they were measured.
- Predictions err by more than those of a measured table: `_ESTIMATE_ERROR`.
- Products that last are limited by power: by no more than on an H100, in proportion to the watts of an operation.

All of it is an estimate. `prismm calibrate` measures.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

from prismm.cuda.costs.cublas import Cublas, Errors
from prismm.cuda.costs.facts import Facts, cards
from prismm.cuda.costs.table import Host, Line, Rates, committed
from prismm.cuda.costs.tuning import Tuning
from prismm.cuda.device import LONG_SUMS, fp8_sum_bits_of

__all__ = ["PORTABLE", "REFERENCE", "Measured", "derived", "speeds_of"]

REFERENCE = "NVIDIA H100 80GB HBM3"
"""The GPU whose table is scaled."""

PORTABLE = {"int8": 0.40, "fp16": 0.25, "fp8": 0.40}
"""Shares of the published rate of a matrix unit that plain Triton products reach: 803 TOP/s of residues and 244 TFLOP/s
of words on an H100 at n = 4096. That they reach as much of other matrix units is an assumption; another plain Triton
product of INT8 reaches 0.40 of an A100's at n = 2048 (github.com/triton-lang/triton/issues/4876). That products of FP8
digits reach as much as those of residues is one, too.
"""

_PORTABLE_TIMES = {"left": 1.16, "multiword_split": 1.6}
"""How many times as long the plain Triton kernels take on an H100 at n = 4096 as those for it; others take as long."""

_RESOURCES = {
    "float64": "fp64_matrix", "float32": "fp32", "memory": "memory", "int8": "int8", "sustained": "sustained",
    "multiword": "fp16", "multiword_fused": "fp16", "launch": "launch", "check": "launch", "product": "launch",
    "repair": "fp64", "fp64_kernel": "fp64_matrix_each", "left": "streaming", "right": "streaming",
    "join": "streaming", "rounded": "streaming", "finish": "streaming", "multiword_split": "streaming",
    "kernel_start": "launch", "exact_join": "fp64", "magnitude_planes": "streaming", "magnitude_products": "int8",
    "exact_by_rows": "fp64", "first_repair": "launch", "split_vector": "instructions", "multiword_launches": "launch",
    "multiword_join": "launch", "multiword_share": "launch", "cut_seconds": "launch", "fp8": "fp8",
}  # fmt: skip
"""What bounds the figures of `Rates`, `Tuning` and `CublasTimes`; those that are not named have no unit, or are the
host's. Shares, and terms that ends of tiles take the time of, stay: what is relative to a rate goes with it.
"""

_RATES = {"float64", "float32", "memory", "int8", "sustained", "multiword", "multiword_fused", "fp8"}
"""Those that are something a second, or as many as are done in some time; the others are seconds, or times as long."""

_OF_MEMORY, _MEMORY_ALONE = 0.35, 0.85
"""How much of a streaming kernel's time goes with memory, the rest with instructions: the H200's measured table against
the H100's. And how much of it their bytes take alone on an H100: 22 an element of 14 residues, in 7.3 of 8.4 ps.
"""

_FP64_INSTRUCTIONS = {
    "left": (12.0, 0.0), "right": (12.0, 0.0), "join": (13.0, 1.5), "rounded": (13.0, 1.5),
}  # fmt: skip
"""Of splits an element, and of joins an entry; and times the moduli (`residues.kernels.split`, `join_fast`)."""


_ESTIMATE_ERROR, _PORTABLE_ERROR = 0.02, 0.2
"""How much lower than by a measured table a scheme's seconds beside cuBLAS's may be besides. An H200's estimated table
has them at most 1.3 % lower in 19 of 20 shapes of `benchmarks/results/gpu_candidates.csv`. Of plain Triton kernels
nothing is measured on other GPUs than an H100: a fifth is an assumption.
"""


@dataclass(frozen=True)
class Measured:
    """What a GPU was measured to reach (`costs.measurement.measure`).

    Args:
        float64, float32: operations a second of cuBLAS's products.
        memory: bytes a second of a copy, read and written.
        launch: seconds of a tiny product among many.
        int8: operations a second of the plain Triton product of residues, or None where it was not timed.
        int8_library: operations a second of ``torch._int_mm``; likewise.
        fp8: operations a second of the product of FP8 digits; likewise.
    """

    float64: float
    float32: float
    memory: float
    launch: float
    int8: float | None = None
    int8_library: float | None = None
    fp8: float | None = None


REFERENCE_MEASURED = Measured(
    float64=5.82e13, float32=5.01e13, memory=3.01e12, launch=4.05e-6, int8=5.51e14, int8_library=8.40e14
)
"""What an H100 was measured to reach in that way, by 19 measurements of which none is 4 % off."""

_LEAST, _MOST = 0.4, 1.3
"""How far a measurement is from what is published at least and at most: beyond, something else used the GPU."""


def derived(facts: Facts, measured: Measured | None = None) -> Rates:
    """The estimated table of a GPU.

    >>> from prismm.cuda.costs.facts import cards
    >>> table = derived(cards()["NVIDIA GeForce RTX 4090"])
    >>> round(table.float64 / 1e12, 2), table.sm90
    (1.19, False)
    """
    base, speeds = committed()[REFERENCE], speeds_of(facts, measured)
    changes = {name: _scaled(name, getattr(base, name), facts, speeds) for name in _figures(base)}
    if not facts.sm90 and "multiword_fused" in changes:
        changes["multiword_fused"] = 0.0  # that kernel is for compute capability 9.0
    changes["tuning"] = dataclasses.replace(changes["tuning"], fp8=_fp8(facts, measured))
    return dataclasses.replace(
        base, **{**changes, "name": facts.name, "processors": facts.processors, "sm90": facts.sm90}
    )


def _fp8(facts: Facts, measured: Measured | None) -> float:
    """Operations a second of FP8 products; 0 where sums in the unit are too short for blocks, as on an H100."""
    if facts.fp8 is None or fp8_sum_bits_of(*facts.capability) < LONG_SUMS:
        return 0.0
    expected = PORTABLE["fp8"] * facts.fp8
    if measured is None or measured.fp8 is None or REFERENCE_MEASURED.int8 is None:
        return expected
    # What a larger product reaches beyond a measured one is taken to be what one of residues does on an H100.
    found = measured.fp8 * PORTABLE["int8"] * cards()[REFERENCE].int8 / REFERENCE_MEASURED.int8
    return min(facts.fp8 if facts.listed else math.inf, max(_LEAST * expected, found))


def speeds_of(facts: Facts, measured: Measured | None = None) -> dict[str, float]:
    """How many times as fast as the H100 of the table a GPU is, by resource."""
    reference = cards()[REFERENCE]
    int8, fp16 = facts.int8 / reference.int8, facts.fp16 / reference.fp16
    if not facts.sm90:
        int8 = facts.int8_plain * PORTABLE["int8"] / (reference.int8 * _reached("int8"))
        fp16 *= PORTABLE["fp16"] / _reached("fp16")
    speeds = {
        "int8": int8, "fp16": fp16,
        "fp64": facts.fp64 / reference.fp64, "fp64_matrix": facts.fp64_matrix / reference.fp64_matrix,
        "fp32": facts.fp32 / reference.fp32, "memory": facts.memory / reference.memory, "launch": 1.0,
        "instructions": facts.processors * facts.clock / (reference.processors * reference.clock),
    }  # fmt: skip
    if measured is not None:
        _measure(speeds, facts, measured)
    both = _OF_MEMORY / speeds["memory"] + (1.0 - _OF_MEMORY) / speeds["instructions"]
    speeds["streaming"] = 1.0 / max(both, _MEMORY_ALONE / speeds["memory"])
    speeds["fp64_matrix_each"] = speeds["fp64_matrix"] * reference.processors / facts.processors
    power = 1.0
    if facts.watts is not None and reference.watts is not None:
        power = min(1.0, facts.watts / facts.int8 * reference.int8 / reference.watts)
    speeds["sustained"] = speeds["int8"] * power
    return speeds


def _measure(speeds: dict[str, float], facts: Facts, measured: Measured) -> None:
    """With what was measured instead of what is published, as far as that can be."""
    known = REFERENCE_MEASURED
    for name, ratio in (
        ("fp64_matrix", measured.float64 / known.float64), ("fp32", measured.float32 / known.float32),
        ("memory", measured.memory / known.memory), ("launch", known.launch / measured.launch),
    ):  # fmt: skip
        speeds[name] *= min(_MOST, max(_LEAST, ratio / speeds[name]))
    found, unit = (measured.int8_library, known.int8_library) if facts.sm90 else (measured.int8, known.int8)
    if found is not None and unit is not None:
        ratio = found / unit * (1.0 if facts.sm90 else PORTABLE["int8"] / _reached("int8"))
        # No more than all of a matrix unit's rate; of an architecture that is not listed that is not known.
        whole = facts.int8 / (cards()[REFERENCE].int8 * _reached("int8"))
        most = whole if facts.listed else math.inf
        expected, speeds["int8"] = speeds["int8"], min(most, max(_LEAST * speeds["int8"], ratio))
        if facts.sm90:
            # One unit multiplies both, at one clock.
            speeds["fp16"] *= speeds["int8"] / expected


@functools.cache
def _reached(unit: str) -> float:
    """The share of its published rate that the H100's matrix unit reaches in products of residues, or of words."""
    table, facts = committed()[REFERENCE], cards()[REFERENCE]
    return table.int8 / facts.int8 if unit == "int8" else table.multiword / facts.fp16


def _figures(table: Any) -> list[str]:
    """Names of the fields of a table that may be scaled."""
    names = (part.name for part in dataclasses.fields(table))
    return [name for name in names if name in _RESOURCES or not isinstance(getattr(table, name), bool | str | int)]


def _scaled(name: str, value: Any, facts: Facts, speeds: dict[str, float]) -> Any:
    """A figure of the H100's table on this GPU, or several of one resource; what is no number stays."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_scaled(name, x, facts, speeds) for x in value)
    if isinstance(value, Line):
        return _scaled_line(name, value, facts, speeds)
    if isinstance(value, Errors):
        return _estimated_errors(value, facts)
    if dataclasses.is_dataclass(value) and not isinstance(value, Host):
        changes = {x: _scaled(x, getattr(value, x), facts, speeds) for x in _figures(value)}
        if isinstance(value, Tuning | Cublas):
            changes["provenance"] = f"estimated from the table of {REFERENCE}"
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    speed = _speed(name, facts, speeds)
    found = value * speed if name in _RATES else value / speed
    return max(1, round(found)) if isinstance(value, int) else found


def _estimated_errors(errors: Errors, facts: Facts) -> Errors:
    """How far predictions are off, with what an estimated table is off by besides, unless it is the H100's."""
    more = 0.0 if facts.name == REFERENCE else _ESTIMATE_ERROR if facts.sm90 else _PORTABLE_ERROR
    figures = {x: getattr(errors, x) + more for x in _figures(errors)}
    return Errors(f"estimated from those of {REFERENCE}", **figures)


def _scaled_line(name: str, line: Line, facts: Facts, speeds: dict[str, float]) -> Line:
    """Launches, and what goes with elements: with more seconds for FP64 instructions than they take on the H100."""
    more = max(0.0, 2.0 / facts.fp64 - 2.0 / cards()[REFERENCE].fp64)
    element, modulus = _FP64_INSTRUCTIONS.get(name, (0.0, 0.0))
    speed = _speed(name, facts, speeds)
    return Line(
        line.launch / speeds["launch"], line.element / speed + element * more, line.modulus / speed + modulus * more
    )


def _speed(name: str, facts: Facts, speeds: dict[str, float]) -> float:
    """How many times as fast as on the H100 what has this figure is."""
    return speeds.get(_RESOURCES.get(name, ""), 1.0) / (1.0 if facts.sm90 else _PORTABLE_TIMES.get(name, 1.0))
