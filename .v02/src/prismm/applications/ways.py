"""Ways to multiply: torch's own GEMM in full and in reduced precision, and prismm's targets and schemes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

import prismm
from prismm.programs import Policy, Rule


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """IEEE float32 products: no TF32, no sums in reduced precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """float32 products on TF32 units."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def bf16(device: str) -> Iterator[None]:
    """float32 products on BF16 units, as torch's autocast casts them."""
    with full_precision(), torch.autocast(device, dtype=torch.bfloat16):
        yield


@contextlib.contextmanager
def emulated(policy: object) -> Iterator[None]:
    """prismm instead of torch's products."""
    with full_precision(), prismm.emulate(policy):
        yield


@dataclass(frozen=True)
class Way:
    """A way to multiply.

    guaranteed: whether every product meets the "native" target (a conventional product's bound) or a better one, so
    that the application's criterion has to hold. missing: why this machine cannot go this way; empty where it can.
    """

    name: str
    context: Callable[[], AbstractContextManager[None]]
    guaranteed: bool
    missing: str = ""


def way(name: str, device: str) -> Way:
    """A way by its name, or a scheme's; marked where this machine cannot go it.

    Raises:
        ArgumentError: for a name that is neither.
    """
    capable = device == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    found = {
        "native": Way(name, full_precision, True),
        "tf32": Way(name, tf32, False, "" if capable else "no TF32 units here"),
        "bf16": Way(name, lambda: bf16(device), False, "" if capable or cpu_bf16(device) else "no BF16 units here"),
        "default": Way(name, lambda: emulated("native"), True),
        "reproducible": Way(name, lambda: emulated(Policy.of("native", reproducible=True)), True),
        "correctly-rounded": Way(name, lambda: emulated("correctly-rounded"), True),
    }
    if name in found:
        return found[name]
    # A scheme serves products of matrices; those with vectors (residuals in float64, say) stay as they are.
    policy = Policy((Rule(operator=("mv", "addmv", "dot"), off=True), Rule(scheme=name)))
    return Way(name, lambda: emulated(policy), False)


def cpu_bf16(device: str) -> bool:
    """Whether this is a CPU with BF16 dot products."""
    return device == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
