"""What is published of a GPU, and what its driver says: `cards.json`, and the driver's attributes.

Rates of matrix units are dense ones: without the sparsity for which data sheets give twice as many. FP16 and FP8 are
those with sums in FP32.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prismm.core import strict_json

__all__ = ["Facts", "cards", "facts_of", "from_attributes"]

_FORMAT, _VERSION = "prismm cards", 1

_CLOCK, _PROCESSORS, _MEMORY_CLOCK, _BUS, _MAJOR, _MINOR, _FP64_SHARE = 13, 16, 36, 37, 75, 76, 87
"""The driver's numbers of its attributes; clocks are in kHz, the bus is in bits, the last is FP32's rate by FP64's."""

_NEWER = "10.3"
"""The architecture whose rates stand for those that are not listed: it has the least INT8 of all."""


@dataclass(frozen=True)
class Facts:
    """What a GPU should reach: operations a second, two for a product and its sum, and bytes a second.

    Args:
        name: as its driver says it.
        capability: compute capability.
        processors, clock: multiprocessors, and cycles a second.
        memory: of its memory's bus.
        int8, fp16: of its matrix units.
        int8_plain: of the instructions that Triton's `tl.dot` of INT8 is compiled to. On compute capability 10.0 it
            is `mma.sync`, which is taken to be no faster for a multiprocessor than on 8.0.
        fp64, fp64_matrix: of its FP64 units, and of the faster one of these and its matrix units.
        fp32: of its FP32 units.
        watts: its power limit, or None where that is not known.
        listed: whether the matrix rates of this architecture are known.
        fp8: of its FP8 (e4m3) units; None where it has none.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    clock: float
    memory: float
    int8: float
    int8_plain: float
    fp16: float
    fp64: float
    fp64_matrix: float
    fp32: float
    watts: float | None = None
    listed: bool = True
    fp8: float | None = None

    @property
    def sm90(self) -> bool:
        """Whether it runs the kernels for compute capability 9.0."""
        return self.capability[0] == 9


@functools.cache
def cards() -> dict[str, Facts]:
    """The GPUs of `cards.json`, by name.

    >>> cards()["NVIDIA GeForce RTX 4090"].processors
    128
    """
    return {card["name"]: _of_card(card) for card in _content()["cards"]}


@functools.cache
def _content() -> Any:
    content = strict_json.loads((Path(__file__).parent / "cards.json").read_text("utf-8"))
    assert content["format"] == _FORMAT and strict_json.is_version(content["version"], _VERSION)
    return content


def _of_card(card: dict[str, Any]) -> Facts:
    major, minor = card["capability"].split(".")
    rates, int8 = _content()["architectures"][card["capability"]], 1e12 * card["int8_tops"]
    return Facts(
        card["name"], (int(major), int(minor)), card["processors"], 1e6 * card["clock_mhz"], 1e9 * card["memory_gb_s"],
        int8, int8 * rates["int8_plain"] / rates["int8"], 1e12 * card["fp16_tflops"], 1e12 * card["fp64_tflops"],
        1e12 * card["fp64_matrix_tflops"], 1e12 * card["fp32_tflops"], card["watts"],
        fp8=1e12 * card["fp8_tflops"] if rates["fp8"] else None,
    )  # fmt: skip


def facts_of(name: str, index: int) -> Facts:
    """Of the GPU of this name and number: what is published, else what its driver says.

    Raises:
        OSError: without a driver. ValueError: where it does not say all that is needed.
    """
    published = cards().get(name)
    if published is not None:
        return published
    wanted = (_CLOCK, _PROCESSORS, _MEMORY_CLOCK, _BUS, _MAJOR, _MINOR, _FP64_SHARE)
    return from_attributes(name, {number: _attribute(number, index) for number in wanted})


def from_attributes(name: str, attributes: dict[int, int]) -> Facts:
    """By the driver's attributes, and the rates of a multiprocessor of its compute capability.

    Raises:
        ValueError: where one is missing.
    """
    if min(attributes.values()) < 0 or not all(attributes[x] for x in attributes if x != _MINOR):
        raise ValueError(f"{name}: its driver does not say what it has")
    capability = f"{attributes[_MAJOR]}.{attributes[_MINOR]}"
    known = _content()["architectures"]
    rates = known.get(capability, known[_NEWER])
    processors, clock = attributes[_PROCESSORS], 1e3 * attributes[_CLOCK]
    cycles = processors * clock
    fp32 = cycles * rates["fp32"]
    fp64 = fp32 / attributes[_FP64_SHARE]
    return Facts(
        name, (attributes[_MAJOR], attributes[_MINOR]), processors, clock,
        2.0 * 1e3 * attributes[_MEMORY_CLOCK] * attributes[_BUS] / 8, cycles * rates["int8"],
        cycles * rates["int8_plain"], cycles * rates["fp16"], fp64, fp64 * rates["fp64_matrix_times"], fp32, None,
        capability in known, cycles * rates["fp8"] if rates["fp8"] else None,
    )  # fmt: skip


def _attribute(number: int, index: int) -> int:
    """Of a GPU, by torch's number of it; -1 where the driver does not say it."""
    import torch

    from prismm.cuda.launch.driver import driver

    handle, value = ctypes.c_int(), ctypes.c_int(-1)
    with torch.cuda.device(index):
        if driver().cuCtxGetDevice(ctypes.byref(handle)):
            return -1
    return value.value if not driver().cuDeviceGetAttribute(ctypes.byref(value), number, handle) else -1
