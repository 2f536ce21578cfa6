"""`TileInt8` in calls on a GPU: what of it runs there, its predicted time, and its bound.

What it computes on a GPU is its own, but for the fallback: entries that are not certified are summed in float64, where
a CPU multiplies tile pairs in FP16 words (`cuda.tile_int8.launches`, with the proof of the bound).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.bounds import half_ulp
from prismm.core.specials import layout
from prismm.cuda.costs.table import waves
from prismm.cuda.implementation import Composite, Job
from prismm.cuda.launch.arguments import A, B
from prismm.cuda.layout import lay_out, put_part
from prismm.cuda.multiword import launches as multiword_launches
from prismm.cuda.multiword.implementation import blocks_of, check_length, matrices_of, matrices_of_result
from prismm.cuda.tile_int8 import launches as tile_launches
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, Format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.schemes.tile_int8 import TileInt8

_UP = 1.0 + 2.0**-40


def _queue_part(
    program: Program,
    a: multiword_launches.Matrices,
    b: multiword_launches.Matrices,
    out: multiword_launches.Matrices,
    part: int,
    config: tile_launches.LaunchConfig,
    counts: BufferView,
    device: Device,
    clear: bool,
) -> None:
    """The real or imaginary part of a complex product: of real operands of twice the inner dimension."""
    sides = []
    for x, left in ((a, True), (b, False)):
        batch, rows, columns = x.shape
        turned = (0, 1, 2) if left else (0, 2, 1)  # matrices, vectors, elements
        shape, steps = ((x.shape[axis] for axis in turned), (x.strides[axis] for axis in turned))
        place, new_strides = lay_out(program, x.data, tuple(shape), tuple(steps), part, left=left)  # type: ignore[arg-type]
        strides = tuple(new_strides[axis] for axis in turned)
        real = (batch, rows, 2 * columns) if left else (batch, 2 * rows, columns)
        sides.append(multiword_launches.Matrices(place, real, strides, False))  # type: ignore[arg-type]
    batch, m, n = out.shape
    real_product = program.allocate(out.data.dtype, batch, m, n)
    result = multiword_launches.Matrices(real_product, out.shape, (m * n, n, 1), False)
    tile_launches.queue(sides[0], sides[1], result, config, counts, device, program, clear)
    put_part(program, real_product, out.data.at(part, (), ()), (out.batch_stride, *out.strides[1:]), out.shape)


@dataclass(frozen=True)
class TilesBound:
    """gamma·(|a||b|) + (1 + gamma)·E, half an ulp and K·η for each entry; holds for repaired ones as well.

    a, b: the operands, which must not have changed since.
    """

    result: Format
    a: Any
    b: Any
    constants: tile_launches.Bound
    scheme: TileInt8

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices; of complex ones for each part."""
        value = c[i, j]
        if not np.iscomplexobj(value):
            return self._of_reals(value, i, j)
        found = []
        for part, real in enumerate((value.real, value.imag)):
            a, b = _Part(self.a, part, "left"), _Part(self.b, part, "right")
            found.append(dataclasses.replace(self, a=a, b=b)._of_reals(real, i, j))
        return np.maximum(*found)

    def _of_reals(self, value: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        count, many = self.a.shape[0], self.b.shape[1]
        tile_rows, width, tile_columns = self.scheme.tile
        left, right = self.scheme.segments
        some, x, lost = _vectors(self.a, i, count, tile_rows, width, left, self.scheme.scaling == "none", False)
        more, y, lost_too = _vectors(self.b, j, many, tile_columns, width, right, self.scheme.scaling == "none", True)
        with np.errstate(over="ignore", invalid="ignore"):
            size = (np.abs(x) @ np.abs(y).T) * (1.0 + (self.constants.terms + 4) * 2.0**-52)
            norm, norm_too = np.sqrt((x * x).sum(1)) * _UP, np.sqrt((y * y).sum(1)) * _UP
            mine, its = self._lost(lost[:, None], lost_too, more - some[:, None])
            error = mine * norm_too + norm[:, None] * its + self.constants.last * mine * its
            steps = -(-self.constants.terms // width)
            bound = self.constants.gamma * size + (1.0 + self.constants.gamma) * error
            bound = np.ldexp(bound, some[:, None] + more)
            # See `tile_launches`: a constant of the data's own units where those are not scaled.
            bound += np.where(size > 0.0, steps * (2.0**-127 if self.scheme.scaling == "none" else 0.0), 0.0)
            bound = np.reshape(bound, np.shape(value)) + self.constants.terms * self.result.smallest_subnormal
            bound = (bound + half_ulp(value, self.result)) * (1.0 + 2.0**-30)
            return np.where(np.isfinite(value), bound, 0.0)

    def _lost(self, left: NDArray[Any], right: NDArray[Any], ratio: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """What both vectors of an entry lose. left, right: by exponents of their own; ratio: of the units of those."""
        if self.scheme.exponent == "tile":
            return left, right
        of_left, of_right = (tile_launches.fraction(x) for x in self.scheme.segments)
        ratio = (ratio if self.scheme.scaling == "none" else 0 * ratio) + of_right - of_left
        there = (left > 0.0) & (right > 0.0)  # a vector of zeros loses nothing
        mine, its = np.hypot(left, np.ldexp(right, ratio)) * _UP, np.hypot(right, np.ldexp(left, -ratio)) * _UP
        return np.where(there, mine, 0.0), np.where(there, its, 0.0)


class _Part:
    """A complex operand as the real one of twice the inner dimension of a part of a product."""

    def __init__(self, source: Any, part: int, side: Side) -> None:
        self.source, self.part, self.side = source, part, side
        rows, columns = source.shape
        self.shape = (rows, 2 * columns) if side == "left" else (2 * rows, columns)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return layout(np.asarray(self.source[index]), self.part, self.side)


def _vectors(
    source: Any, index: Any, count: int, tile: int, width: int, segments: int, given: bool, columns: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """(s, x·2^-s, D) of the vectors of an index; the tiles they stand in are read as a whole."""
    # `range` turns a negative index and refuses one that is outside.
    chosen = np.arange(count)[index] if isinstance(index, slice) else np.array([range(count)[index]])
    if chosen.size == 0:
        return np.zeros(0, np.int64), np.zeros((0, 1)), np.zeros(0)
    first, last = int(chosen.min()) // tile * tile, min(count, (int(chosen.max()) // tile + 1) * tile)
    data = np.asarray(source[:, first:last].T if columns else source[first:last], np.float64)
    top = np.abs(data).max(1, initial=0.0)
    # As in the kernels, a vector that is not finite counts as zeros, and changes no tile's exponent.
    data = np.where(np.isfinite(top)[:, None], data, 0.0)
    top = np.where(np.isfinite(top), top, 0.0)
    shift = np.frexp(top)[1].astype(np.int64)
    x = np.ldexp(data, -shift[:, None])
    steps = -(-data.shape[1] // width)
    padded = np.zeros((-(-data.shape[0] // tile) * tile, steps * width))
    padded[: data.shape[0], : data.shape[1]] = data if given else x
    largest = np.abs(padded.reshape(-1, tile, steps, width)).max((1, 3))
    bits = tile_launches.fraction(segments)
    significand, e = np.frexp(largest)
    # g is e - 1, or e where RN of the largest element carries.
    unit = np.where(largest > 0.0, np.ldexp(1.0, e - bits - 2 + (significand >= 1.0 - 2.0 ** (-bits - 2))), 0.0)
    # D² adds the square of a tile's half unit for every element, width of them a step.
    lost = np.sqrt((unit * unit).sum(1) * width) * _UP
    lost = np.repeat(lost, tile)[: data.shape[0]]
    lost = (np.ldexp(lost, -shift) if given else lost) + 2.0**-90
    lost = np.where(top > 0.0, lost, 0.0)
    at = chosen - first
    return shift[at], x[at], lost[at]


class Implementation(Composite):
    """`TileInt8` on a GPU; see `cuda.implementation.Implementation`."""

    scheme: TileInt8

    def check(self, problem: Problem, engine: str | None, device: Device) -> str:
        """The engine that multiplies segments; see `cuda.implementation.Implementation.check`."""
        scheme = self.scheme
        if engine not in (None, "cuda", tile_launches.NAME):
            raise ArgumentError(
                f"engine={engine!r} does not multiply segments of {scheme}; it takes {tile_launches.NAME!r}"
            )
        if not tile_launches.takes(scheme.tile):
            raise EngineError(
                f"{scheme} runs on a CPU so far; pass a tile that a GPU takes ({tile_launches.tile_sizes()}), or CPU "
                "tensors"
            )
        if not problem.one_type or problem.result.precision != 24:
            raise EngineError(
                f"{scheme} runs on a CPU so far where operands and result are not all float32, or all complex64; "
                "convert them, pass CPU tensors, or scheme=prismm.Residues(...)"
            )
        if problem.target is not None and problem.target.kind not in ("native", "fast"):
            raise EngineError(
                f"{scheme} certifies accuracy 'native' and 'fast' on a GPU, not {problem.target}; leave scheme out, or "
                "pass Residues(...)"
            )
        check_length(problem)
        return tile_launches.NAME

    def workspace(self, problem: Problem, rows: int, columns: int) -> int:
        """Bytes for a block of the product; of a complex one with real operands and the part that is made."""
        laid_out = 4 * ((rows + columns) * problem.terms + rows * columns) if problem.is_complex else 0
        return laid_out + tile_launches.workspace(self.scheme, rows, columns, problem.terms)

    def launch_config(self, problem: Problem, device: Device) -> tile_launches.LaunchConfig:
        """Tiles and the test of a certificate."""
        return tile_launches.config_for(self.scheme, problem.terms, problem.target, problem.summed)

    def queue(self, job: Job) -> None:
        """Survey, split, multiply, certify and repair, in blocks that begin where tiles do."""
        block, granule = (job.blocks.rows, job.blocks.columns), self.scheme.granule
        rows, columns = (max(1, size // grain) * grain for size, grain in zip(block, granule, strict=True))
        x, y, z = matrices_of(job.a, A), matrices_of(job.b, B), matrices_of_result(job.target)
        m, n, parts = min(rows, z.shape[1]), min(columns, z.shape[2]), 2 if z.is_complex else 1
        each = tile_launches.workspace(self.scheme, m, n, parts * x.shape[2])
        # The first block's launches set the counts to 0; later blocks and parts add to them.
        clear, program = True, job.program
        for left, right, result in blocks_of(x, y, z, rows, columns, each):
            for part in range(parts):
                with program.scope():
                    if parts == 1:
                        tile_launches.queue(left, right, result, job.config, job.counts, job.device, program, clear)
                    else:
                        _queue_part(program, left, right, result, part, job.config, job.counts, job.device, clear)
                    clear = False

    def products(self, problem: Problem) -> int:
        """Products of segments, twice as many if complex."""
        return self.scheme.products * problem.parts

    def gpu_seconds(
        self, problem: Problem, rates: Rates, engine: str | None = None, strassen: bool | None = None
    ) -> float:
        """Of survey, split, product, certificate, and the check for entries to repair."""
        scheme, tuning = self.scheme, rates.tuning
        parts, (m, n, k) = problem.parts, (problem.m, problem.n, problem.terms)
        count = problem.count * parts
        pairs = scheme.exponent == "pair"
        left, right = (4, 4) if pairs else scheme.segments
        # Elements of 4 bytes are read twice: by the survey, and by the split.
        moved = (8 * parts * (m + n) * k + (left * m + right * n) * k) * count
        seconds = 4 * rates.check * parts + moved / (tuning.tile_split * rates.memory)
        seconds += problem.result_bytes / (tuning.tile_certify * rates.memory)
        tiles = -(-m // 128) * -(-n // 128) * count
        entries = 128.0 * 128.0 * tiles
        products = 2.0 * entries * k * scheme.products / (tuning.tile_products * rates.int8)
        folds = entries * -(-k // scheme.tile[1]) * scheme.weights / (tuning.tile_folds * rates.int8)
        multiplying = (products + folds) * (tuning.tile_pairs if pairs else 1.0)
        return seconds + multiplying / waves(tiles, rates.processors)

    def bound(
        self, problem: Problem, engine: str, device: Device, a: Any, b: Any, statistics: Any, weight: float
    ) -> TilesBound:
        """From the operands."""
        return TilesBound(FP32, a, b, tile_launches.bound(self.scheme, problem.terms), self.scheme)
