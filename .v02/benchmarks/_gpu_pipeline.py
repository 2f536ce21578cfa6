"""The product of words with other launch constants: tiles, steps of the inner dimension, stages of its pipeline."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from _gpu_races import Session, error_of, operands, reference

from prismm.core.accuracy import parse_target
from prismm.cuda.costs.calibrate import seconds_of
from prismm.cuda.device import Device, device_of
from prismm.cuda.launch.program import Program
from prismm.cuda.multiword import implementation as multiword_implementation
from prismm.cuda.multiword import launches as multiword_launches
from prismm.cuda.operands import result_of

SHARED = 227 * 1024
"""Bytes of shared memory that a program may take on Hopper."""


@dataclass(frozen=True)
class Variant:
    """Launch constants of the product of two FP16 words.

    hopper: of the kernel with its own feeding warp, whose tile is 128 x 128; else of the plain Triton kernel, whose
    stages Triton makes: one is a single buffer. depth: elements of the inner dimension in a stage. group: rows of tiles
    that share what they read.
    """

    hopper: bool
    chunk: int = 256
    rows: int = 128
    columns: int = 128
    depth: int = 64
    stages: int = 3
    group: int = 8

    @property
    def runs(self) -> bool:
        """Whether its stages fit into shared memory, and no consumer waits for itself: a stage is handed back when the
        next step's products are under way, so that a chunk of several steps takes two stages.
        """
        bytes_ = self.stages * 2 * 2 * (self.rows + self.columns) * self.depth
        alone = self.hopper and self.stages == 1 and self.chunk > self.depth
        return bytes_ <= SHARED - 4096 and not alone

    @property
    def series(self) -> str:
        """What is compared."""
        if self.hopper and self.group != 8:
            return "groups of tiles, chunk 256"
        if self.hopper:
            return f"feeding warp, chunk {self.chunk}, {self.depth} deep"
        return f"plain kernel, {self.stages} stage{'s' if self.stages > 1 else ''}"

    @property
    def x(self) -> Any:
        """Where along the axis."""
        if self.hopper and self.group != 8:
            return self.group
        return self.stages if self.hopper else f"{self.rows} x {self.columns}"


def variants() -> list[Variant]:
    """All that are measured; those of the plain kernel vary the tile and its stages, the others stages and depth."""
    found = [
        Variant(True, chunk, depth=depth, stages=stages)
        for chunk, depth in ((64, 64), (256, 64), (64, 32), (256, 32))
        for stages in range(1, 7)
    ]
    found += [Variant(True, group=group) for group in (1, 2, 4, 16, 32)]
    found += [
        Variant(False, rows=rows, columns=columns, depth=32, stages=stages)
        for stages in (1, 2, 3, 4)
        for rows, columns in ((64, 32), (64, 64), (128, 32), (128, 64), (128, 128), (256, 64))
    ]
    return [variant for variant in found if variant.runs]


def program_of(a: Any, b: Any, out: Any, variant: Variant, device: Device) -> Program:
    """out = a @ b of float32 matrices in FP16 words, as `ScaledHalf` would launch it but for the constants."""
    chosen = dataclasses.replace(device, sm90=variant.hopper)
    unit = multiword_implementation.unit_of(chosen)
    config = multiword_launches.config_for(
        multiword_launches.HALVES, variant.chunk, a.shape[1], parse_target("native"), unit
    )
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.allocate(torch.int64, 4)
    target = result_of(out[None])
    multiword_implementation.queue_blocks(program, a[None], b[None], target, config, tuple(out.shape), counts, chosen)
    for launch in program.launches:
        kernel = getattr(launch, "kernel", None)
        if kernel is not None and kernel.fn.__name__ == "words_product":
            _vary(launch, variant, out.shape[0], out.shape[1])
    return program


def _vary(launch: Any, variant: Variant, m: int, n: int) -> None:
    """Other constants for the launch of a product."""
    if not variant.hopper:
        launch.grid = (-(-m // variant.rows) * -(-n // variant.columns), 1, 1)
        launch.constants |= {
            "ROWS": variant.rows, "COLUMNS": variant.columns, "DEPTH": variant.depth, "GROUP": variant.group,
            "num_stages": variant.stages,
        }  # fmt: skip
        return
    from triton.experimental.gluon import language as gl

    described, *rest = launch.arguments
    box = (variant.rows, variant.depth)
    layout = gl.NVMMASharedLayout.get_default_for(list(box), gl.float16)
    launch.arguments = (dataclasses.replace(described, box=box, layout=layout), *rest)
    launch.constants |= {
        "DEPTH": variant.depth, "CHUNK": variant.chunk // variant.depth, "STAGES": variant.stages,
        "GROUP": variant.group,
    }  # fmt: skip


def started(variant: Variant, n: int) -> Iterator[Any]:
    """Run the whole product of order n once; yields its operands, its result, and the product's launch alone."""
    a, b = operands("float32", n, n, n, None, "cuda")
    out = torch.zeros(n, n, device="cuda")
    program = program_of(a, b, out, variant, device_of(torch.cuda.current_device()))
    workspace = torch.empty(program.workspace, dtype=torch.uint8, device="cuda")
    bases = a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()
    stream = torch.cuda.current_stream().cuda_stream
    program.run(bases, stream)
    torch.cuda.synchronize()
    product = dict(program.single_launches())["words_product"]
    yield a, b, out, lambda: product.run(bases, stream)
    del workspace


def measure(variant: Variant, n: int, figure: str, session: Session) -> None:
    """A row: the product's kernel alone."""
    for a, b, out, product in started(variant, n):
        error = error_of(out, reference(a, b))
        product()
        once = statistics.median(seconds_of(product) for _ in range(3))
        repeats = min(session.most, max(session.least, int(session.seconds / once)))
        rates = [2.0 * n**3 / seconds_of(product) / 1e12 for _ in range(repeats)]
        session.add(figure, variant.series, variant.x, rates, "TFLOP/s", error, scheme="ScaledHalf")
