"""The catalogue: models of real matrix engines, by name, each with its source and how sure it is.

A name is "device.input.output", or "device-instruction.input.output" where a device's instructions differ:
"a100.fp16.fp32", "h100-wgmma.e4m3.fp32". What a source does not say is not guessed: such engines are listed by
`unknown`. Inputs of TF32 and XF32 engines are values of TF32; the instruction that is given FP32 words truncates them.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError, EngineError
from prismm.numerics.catalogue.undocumented import UNKNOWN, Unknown, unknown_named

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel

__all__ = ["Unknown", "describe", "devices", "engine", "engines", "models_of", "unknown"]


@cache
def _catalogue() -> dict[str, EngineModel]:
    from prismm.numerics.catalogue import amd, nvidia, processors

    found: dict[str, EngineModel] = {}
    for module in (nvidia, amd, processors):
        for model in module.models():
            assert model.name not in found, model.name
            found[model.name] = model
    return found


def engine(name: str) -> EngineModel:
    """The model of this name.

    Args:
        name: "device[-instruction].input.output", in any case.

    Raises:
        ArgumentError: for a name that is not in the catalogue, with those like it; or that lacks its instruction.
        EngineError: for an engine that has no model, with what is known of it.

    >>> from prismm.numerics.catalogue import engine
    >>> a100 = engine("a100.fp16.fp32")
    >>> a100.block, a100.fraction_bits, a100.rounding
    (8, 24, 'zero')
    >>> a100.dot([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1, 1, 1], 2.0**23).item()
    -0.5
    """
    if not isinstance(name, str):
        raise ArgumentError(f"engine {name!r}; pass a name such as 'a100.fp16.fp32'")
    wanted = name.strip().lower()
    found = _catalogue().get(wanted)
    if found is not None:
        return found
    without = unknown_named(wanted)
    if without is not None:
        raise EngineError(f"{name!r} has no model: {without}; pass an EngineModel of your own, or a name of engines()")
    raise ArgumentError(_advice(name, wanted))


def _advice(name: str, wanted: str) -> str:
    """Why there is no such name, and what to pass instead."""
    device, _, formats = wanted.partition(".")
    instructions = [prefix for prefix in devices() if prefix.startswith(f"{device}-")]
    if instructions and device not in devices():
        fitting = [f"{prefix}.{formats}" for prefix in instructions if f"{prefix}.{formats}" in _catalogue()]
        return f"{name!r} names no instruction; {device} has several: pass {', '.join(fitting or instructions)}"
    if device in devices():
        return f"{device} has no {formats or 'entry without formats'!r}; pass {', '.join(_names_of(device))}"
    near = get_close_matches(wanted, engines(), n=4, cutoff=0.5) if formats else []
    near = near or get_close_matches(device, devices(), n=4, cutoff=0.5)
    known = f"{', '.join(near)} are like it" if near else f"devices are {', '.join(devices())}"
    return f"unknown engine {name!r}; {known}; pass device.input.output, such as 'a100.fp16.fp32'"


def engines() -> list[str]:
    """All names, in the order of vendors and generations.

    >>> from prismm.numerics.catalogue import engines
    >>> engines()[:3]
    ['v100.fp16.fp32', 'v100.fp16.fp16', 't4.fp16.fp32']
    """
    return list(_catalogue())


def devices() -> list[str]:
    """Everything that stands before the first dot of a name: devices, with their instruction where it matters.

    >>> from prismm.numerics.catalogue import devices
    >>> [name for name in devices() if name.startswith("b200")][:2]
    ['b200-mma', 'b200-mma-satfinite']
    """
    return list(dict.fromkeys(name.partition(".")[0] for name in _catalogue()))


def _names_of(device: str) -> list[str]:
    return [name for name in _catalogue() if name.partition(".")[0] == device]


def models_of(device: str) -> list[EngineModel]:
    """The models of a device, or of one of its instructions.

    Args:
        device: one of `devices`; or a device of several instructions, which gives those of all.

    Raises:
        ArgumentError: for a device that is not in the catalogue.
        EngineError: for one that has no model.

    >>> from prismm.numerics.catalogue import models_of
    >>> [model.name for model in models_of("v100")]
    ['v100.fp16.fp32', 'v100.fp16.fp16']
    """
    if not isinstance(device, str):
        raise ArgumentError(f"device {device!r}; pass one of {', '.join(devices())}")
    wanted = device.strip().lower()
    beginning = f"{wanted}." if wanted in devices() else f"{wanted}-"
    found = [model for name, model in _catalogue().items() if name.startswith(beginning)]
    return found or [engine(device)]  # which raises


def unknown() -> tuple[Unknown, ...]:
    """Engines without a model, most of them because their arithmetic is not published; and what is known of them.

    >>> from prismm.numerics.catalogue import unknown
    >>> unknown()[0].name, unknown()[0].source
    ('tpu', 'Google Cloud documentation')
    """
    return UNKNOWN


def describe(device: str | None = None) -> str:
    """A table of the models: entries that are alike share a row.

    Args:
        device: as `models_of` takes it; None for all.
    """
    from prismm.numerics.catalogue.table import table

    return table(list(_catalogue().values()) if device is None else models_of(device))
