"""Schemes of low-precision words in calls on a GPU: which of them run there, their predicted time, and their bound.

What `ScaledHalf` and `Words` compute on a GPU is theirs but for the scaling: each chunk of a row or column has a power
of two of its own, and so loses less than a whole row would (`cuda.multiword.launches`, with the proof of the bound).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.bounds import _alive, half_ulp, rows_and_columns
from prismm.cuda.blocks import BATCH_BYTES, Blocks, Cut
from prismm.cuda.costs.table import rates_of, usual_rates, waves
from prismm.cuda.implementation import Composite, Job, within_memory
from prismm.cuda.launch.arguments import A, B
from prismm.cuda.multiword import launches as multiword_launches
from prismm.cuda.multiword.launches import WordFormat
from prismm.cuda.multiword.shares import most_shares
from prismm.cuda.operands import vectors_of
from prismm.cuda.symmetric import leaves_tiles_out
from prismm.errors import ArgumentError, EngineError
from prismm.formats import BF16, FP16, FP32, TF32, Format
from prismm.schemes.multiword import Words
from prismm.schemes.scaled_half import ScaledHalf

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray

    from prismm.core.accuracy import Target
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.costs.tuning import Tuning
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.views import Result

_UP = 1.0 + 2.0**-40

_STEP = 64
"""Terms of a step: words are padded to whole ones."""

LEAST_TERMS = 256
"""From this inner dimension on, in reals, Auto takes words: below, their errors are larger than cuBLAS's."""


def word_format(scheme: Any) -> WordFormat | None:
    """The words of a scheme as a GPU has them, or None for a scheme that runs on a CPU."""
    if isinstance(scheme, ScaledHalf):
        plain = scheme.order == "term" and scheme.rounding == "nearest" and scheme.scale
        # A piece is below 2^15, so what w_1 leaves is at most 8: times 2^13 it might be 2^16, which FP16 does not have.
        if plain and 0 <= scheme.sb <= 12 and scheme.chunk in multiword_launches.CHUNKS:
            return WordFormat("cuda:fp16", FP16, 2, scheme.sb)
    elif isinstance(scheme, Words):
        plain = scheme.rounding == "nearest" and scheme.accumulate_format == FP32
        if plain and scheme.chunk in (None, *multiword_launches.CHUNKS):
            known = {
                (TF32, 2, 3): multiword_launches.TF32_PAIRS, (BF16, 2, 3): multiword_launches.BF16_PAIRS,
                (BF16, 3, 6): multiword_launches.BF16_TRIPLES, (FP16, 2, 3): WordFormat("cuda:fp16", FP16, 2),
            }  # fmt: skip
            return known.get((scheme.format, scheme.words, scheme.products or 0))
    return None


def chunk_of(scheme: ScaledHalf | Words) -> int:
    """The inner dimension of what the matrix unit adds by itself; 256 where the scheme leaves it open."""
    return scheme.chunk or 256


def unit_of(device: Device) -> str:
    """The matrix unit in `numerics`' catalogue; of newer GPUs than Hopper the A100's, whose errors are larger."""
    return "h200-wgmma" if device.sm90 else "a100"


def check_length(problem: Problem) -> None:
    """ArgumentError for an inner dimension whose bounds were not proved."""
    if problem.terms >= 1 << 23:
        most = ((1 << 23) - 1) // problem.parts
        raise ArgumentError(f"an inner dimension of {problem.k} is too long; multiply in blocks of at most {most}")


def of_native_grade(problem: Problem) -> ScaledHalf | None:
    """The words that `Auto` may take for a float32 product, or None where none will do."""
    if not problem.one_type or problem.result.precision != 24 or not LEAST_TERMS <= problem.terms < 1 << 23:
        return None
    return ScaledHalf(chunk=multiword_launches.chunk_for(problem.terms))


def _is_fused(scheme: ScaledHalf | Words, problem: Problem, device: Device) -> bool:
    """Whether the kernel that cuts and multiplies is predicted to be faster than split and product."""
    rates = rates_of(device.name) or usual_rates()
    return device.sm90 and _fused_seconds(scheme, problem, rates) < _unfused_seconds(scheme, problem, rates)


def queue_blocks(
    program: Program, a: torch.Tensor, b: torch.Tensor, target: Result, config: multiword_launches.LaunchConfig,
    block: tuple[int, int], counts: BufferView, device: Device, *, lower: bool = False, one_matrix: bool = False,
    addend: BufferView | None = None,
) -> None:  # fmt: skip
    """Queue target = a @ b, batches of three dimensions, in blocks of rows and columns, and of a batch; counts (4,)
    int64 are set. lower: where one block is the whole, tiles above the diagonal are left out; one_matrix: of a matrix
    and its transpose, which is split once then. addend: as of `multiword_launches.queue`.
    """
    rows, columns = block
    x, y, z = matrices_of(a, A), matrices_of(b, B), matrices_of_result(target)
    parts = 2 if z.is_complex else 1
    m, n = min(rows, z.shape[1]), min(columns, z.shape[2])
    each = multiword_launches.workspace(config.words, m, n * parts, x.shape[2] * parts, config.shares)
    lower_on = a.device if lower and (m, n) == z.shape[1:] else None
    for number, some in enumerate(blocks_of(x, y, z, rows, columns, each)):
        with program.scope():
            multiword_launches.queue(
                *some, config, counts, device, program, number == 0, lower_on=lower_on,
                one_matrix=one_matrix and lower_on is not None, addend=addend,
            )  # fmt: skip


def blocks_of(
    x: multiword_launches.Matrices,
    y: multiword_launches.Matrices,
    z: multiword_launches.Matrices,
    rows: int,
    columns: int,
    each: int,
) -> Iterator[tuple[multiword_launches.Matrices, multiword_launches.Matrices, multiword_launches.Matrices]]:
    """The parts of z = x @ y that are made at once: so many rows and columns, and as many matrices of a batch as
    workspace has room for; each: bytes of workspace for one.
    """
    # Matrices of a batch are a grid's second extent, which ends at 65535.
    step = min(max(1, BATCH_BYTES // each), 65535)
    for t in range(0, z.shape[0], step):
        for j in range(0, z.shape[2], columns):
            for i in range(0, z.shape[1], rows):
                left, right = _part(x, t, step, i, rows, 0, x.shape[2]), _part(y, t, step, 0, y.shape[1], j, columns)
                yield left, right, _part(z, t, step, i, rows, j, columns)


def matrices_of(x: torch.Tensor, base: int) -> multiword_launches.Matrices:
    """Of a call's operand (batch, rows, columns)."""
    parts = 2 if x.is_complex() else 1
    place = vectors_of(x, base, columns=False).buffer.reals()
    strides = tuple(parts * s for s in x.stride())
    return multiword_launches.Matrices(place, tuple(x.shape), strides, parts == 2)  # type: ignore[arg-type]


def matrices_of_result(target: Result) -> multiword_launches.Matrices:
    """Of where a product goes."""
    is_complex = target.buffer.dtype.is_complex
    batch, row, column = ((2 if is_complex else 1) * step for step in target.strides)
    return multiword_launches.Matrices(target.buffer.reals(), target.extents, (batch, row, column), is_complex)


def _part(
    x: multiword_launches.Matrices, t: int, batches: int, i: int, rows: int, j: int, columns: int
) -> multiword_launches.Matrices:  # fmt: skip
    """Some matrices of a batch, or the one that serves all, and some of their rows and columns."""
    t = t if x.shape[0] > 1 else 0
    shape = min(batches, x.shape[0] - t), min(rows, x.shape[1] - i), min(columns, x.shape[2] - j)
    place = x.data.at(t * x.strides[0] + i * x.strides[1] + j * x.strides[2], (), ())
    return multiword_launches.Matrices(place, shape, x.strides, x.is_complex)


@dataclass(frozen=True)
class WordsBound:
    """gamma·(|a||b|) + K·floor·largest, half an ulp and K·η for each entry; holds for repaired ones as well.

    a, b: the operands, which must not have changed since.
    """

    result: Format
    a: Any
    b: Any
    constants: multiword_launches.Bound
    target: Target | None

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices."""
        rows, columns = (np.abs(x).astype(np.float64) for x in rows_and_columns(self.a, self.b, i, j))
        value = c[i, j]
        with np.errstate(over="ignore", invalid="ignore"):
            # K + 4 roundings at most: the product stays an upper bound.
            size = np.reshape((rows @ columns) * (1.0 + (self.constants.terms + 4) * 2.0**-52), np.shape(value))
            s, t = _scale(rows.max(1, initial=0.0)), _scale(columns.max(0, initial=0.0))
            largest = np.reshape(s[:, None] * t[None, :], np.shape(value))
            bound = self.constants.gamma * size + self.constants.terms * (
                self.constants.floor * largest + self.result.smallest_subnormal
            )
            bound = (bound + half_ulp(value, self.result)) * _UP
            return np.where(_alive(value), bound, 0.0)


def _scale(largest: NDArray[np.float64]) -> NDArray[np.float64]:
    """2^(e - 15), largest < 2^e, of a vector whose pieces are scaled at most so much; 0 for 0."""
    # Smaller pieces are scaled as if they reached 2^-100 (`kernels.split.scale_of`).
    e = np.maximum(np.frexp(largest)[1], -100)
    # The largest part of a complex number is at most its modulus.
    return np.where(largest > 0.0, np.ldexp(1.0, e - 15), 0.0)


def seconds_in(shares: int | None, scheme: Any, problem: Problem, rates: Rates) -> float:
    """Predicted seconds of split, product and repair, or of both of the first in one kernel if that is faster; shares:
    of a tile's chunks, None for as many as take the fewest seconds.
    """
    apart, directly = _unfused_seconds(scheme, problem, rates, shares), _fused_seconds(scheme, problem, rates)
    return min(apart, directly) + rates.tuning.multiword_launches


def _unfused_seconds(scheme: Any, problem: Problem, rates: Rates, shares: int | None = None) -> float:
    """Of split and product."""
    counts = _numbers_of_shares(scheme, problem) if shares is None else (shares,)
    seconds = min(_product_seconds(scheme, problem, rates, x) for x in counts)
    return rates.multiword_split.seconds(*split_work(scheme, problem)) + seconds


def _product_seconds(scheme: Any, problem: Problem, rates: Rates, shares: int) -> float:
    """Of the product whose tiles' chunks are shared in so many, and of adding these."""
    product = rates.at_length(operations(scheme, problem, rates.processors, rates.tuning, shares) / rates.multiword)
    words, (m, n, k) = word_format(scheme), _real_shape(problem)
    assert words is not None
    # Of narrow results words take longer on their way from memory.
    size = math.prod(problem.batch) * (words.count * words.bytes * (m + n) * k) + shares * problem.result_bytes
    if shares == 1:
        return max(product, size / rates.memory)
    added = rates.tuning.multiword_join + rates.one_pass_seconds((shares + 1) * problem.result_bytes)
    return max(product, size / rates.memory) + added + shares * rates.tuning.multiword_share


def _numbers_of_shares(scheme: Any, problem: Problem) -> range:
    """How many a tile's chunks may be shared in."""
    words, (m, n, k) = word_format(scheme), _real_shape(problem)
    assert words is not None
    if leaves_tiles_out(problem):
        return range(1, 2)
    return range(1, most_shares(words, m, n, k, chunk_of(scheme)) + 1)


def shares_for(scheme: Any, problem: Problem, rates: Rates) -> int:
    """In how many the chunks of a tile are predicted to be shared best.

    >>> from prismm.cuda.costs.table import rates_of
    >>> from prismm.core.problem import Problem
    >>> problems = [Problem(n, n, 8192, (), FP32, None, False, True) for n in (768, 4096)]
    >>> [shares_for(ScaledHalf(), x, rates_of("NVIDIA H200")) for x in problems]
    [3, 1]
    """
    found = _numbers_of_shares(scheme, problem)
    return min(found, key=lambda x: (_product_seconds(scheme, problem, rates, x), x))


def _fused_seconds(scheme: Any, problem: Problem, rates: Rates) -> float:
    """Of the kernel that splits and multiplies, which serves operands whose rows or columns begin at multiples of 16
    bytes; infinite where it does not.
    """
    words = word_format(scheme)
    assert words is not None
    served = multiword_launches.serves_directly(words, chunk_of(scheme), problem.is_complex)
    if not served or not rates.multiword_fused or problem.k % 4 or problem.m % 4 or problem.n % 4:
        return math.inf
    busy = rates.at_length(operations_directly(problem, rates.processors, rates.tuning) / rates.multiword_fused)
    return max(busy, (problem.operand_bytes + problem.result_bytes) / rates.memory)


def operations_directly(problem: Problem, processors: int, tuning: Tuning) -> float:
    """Operations of products of words that are cut where they are multiplied, as `operations` counts them: that a
    chunk ends is in each term's share there.
    """
    count = math.prod(problem.batch)
    tiles = -(-problem.m // 128) * -(-problem.n // 128) * count
    # Three products of words, of two operations a term.
    return 6.0 * tiles * 128 * 128 * (max(1, problem.k) + tuning.multiword_ends) / waves(tiles, processors)


def operations(scheme: Any, problem: Problem, processors: int, tuning: Tuning, shares: int = 1) -> float:
    """Operations of products of words of 16 bits, as many as the unit could do in the time that they take. This counts
    processors that wait for the last tiles, and the ends of chunks. shares: the number that a tile's chunks are cut
    into.
    """
    words = word_format(scheme)
    assert words is not None
    count, (m, n, k) = math.prod(problem.batch), _real_shape(problem)
    tiles = -(-m // 128) * -(-n // 128) * count * shares
    terms = -(-k // _STEP) * _STEP
    if shares > 1:  # of the longest one
        terms = min(terms, -(-k // (shares * chunk_of(scheme))) * chunk_of(scheme))
    # The beginning and end of a tile, and the end of a chunk, take about as long as some more terms.
    inner = terms * (1.0 + tuning.multiword_chunk_end / chunk_of(scheme)) + tuning.multiword_ends
    # Others leave by TMA, which takes rows that are multiples of 16 bytes.
    inner += tuning.multiword_scattered if n % 4 and shares == 1 else 0
    return 2.0 * tiles * 128 * 128 * inner * words.products * words.bytes / 2 / waves(tiles, processors)


def split_work(scheme: Any, problem: Problem) -> tuple[float, float]:
    """Elements of the operands, and words of 16 bits for each."""
    words = word_format(scheme)
    assert words is not None
    m, n, k = _real_shape(problem)
    return float((m + n) * k * math.prod(problem.batch)), words.count * words.bytes / 2


def _real_shape(problem: Problem) -> tuple[int, int, int]:
    """m, n, k of the real product that is made."""
    parts = problem.parts
    return problem.m, problem.n * parts, max(1, problem.k) * parts


class Implementation(Composite):
    """`Words` and `ScaledHalf` on a GPU; see `cuda.implementation.Implementation`."""

    third_path = "float64"
    serves_symmetric = True
    error = "multiword"

    def check(self, problem: Problem, engine: str | None, device: Device) -> str:
        """The engine that multiplies words; see `cuda.implementation.Implementation.check`."""
        scheme, words = self.scheme, word_format(self.scheme)
        if words is None:
            raise EngineError(
                f"{scheme} runs on a CPU so far; pass CPU tensors, or one that a GPU has: ScaledHalf(sb=0 to 12, "
                "chunk=64, 128, 256 or 512), Words.tf32(), Words.bf16(3) or (6), Words.fp16(), with other parameters "
                "as they are"
            )
        if not problem.one_type or problem.result.precision != 24:
            raise EngineError(
                f"{scheme} runs on a CPU so far where operands and result are not all float32, or all complex64; "
                "convert them, pass CPU tensors, or scheme=prismm.Residues(...)"
            )
        if problem.rounded:
            raise EngineError(
                f"{scheme} certifies no correct rounding on a GPU; leave scheme out, or pass Residues(12)"
            )
        if engine not in (None, "cuda", words.name):
            raise ArgumentError(f"engine={engine!r} does not multiply words of {scheme}; it takes {words.name!r}")
        check_length(problem)
        return words.name

    def blocks(self, problem: Problem, engine: str, device: Device, cut: Cut) -> Blocks:
        """As large as memory allows, the shares of tiles' chunks included."""
        words, k = word_format(self.scheme), max(1, problem.k) * problem.parts
        assert words is not None
        shares = self._shares(problem, device)

        def workspace(rows: int, columns: int) -> int:
            return multiword_launches.workspace(words, rows, columns * problem.parts, k, shares)

        return within_memory(problem, workspace)

    def _shares(self, problem: Problem, device: Device) -> int:
        return shares_for(self.scheme, problem, rates_of(device.name) or usual_rates())

    def launch_config(self, problem: Problem, device: Device) -> multiword_launches.LaunchConfig:
        """Words, chunks and tests."""
        words = word_format(self.scheme)
        assert words is not None
        # That kernel cuts operands for each tile, and makes all of them.
        direct = not leaves_tiles_out(problem) and _is_fused(self.scheme, problem, device)
        shares = self._shares(problem, device)
        return multiword_launches.config_for(
            words, chunk_of(self.scheme), problem.terms, problem.target, unit_of(device), direct, problem.summed, shares
        )

    def queue(self, job: Job) -> None:
        """Split, multiply, certify and repair, in blocks."""
        block = job.blocks.rows, job.blocks.columns
        queue_blocks(
            job.program, job.a, job.b, job.target, job.config, block, job.counts, job.device,
            lower=leaves_tiles_out(job.problem), one_matrix=job.one_matrix,
            addend=job.addend.buffer.reals() if job.addend is not None else None,
        )  # fmt: skip

    def adds_rows(self, problem: Problem, config: multiword_launches.LaunchConfig, blocks: Blocks) -> bool:
        """Of two words, where every entry is certified or repaired, and the columns are not cut."""
        certified = not config.raw and not leaves_tiles_out(problem)
        return certified and config.words.count == 2 and blocks.columns >= problem.n

    def products(self, problem: Problem) -> int:
        """Pairs of words, four times as many if complex."""
        words = word_format(self.scheme)
        assert words is not None
        return (4 if problem.is_complex else 1) * words.products

    def gpu_seconds(
        self, problem: Problem, rates: Rates, engine: str | None = None, strassen: bool | None = None
    ) -> float:
        """Of split and product, or of both in one kernel, and of the check for entries to repair."""
        return seconds_in(None, self.scheme, problem, rates)

    def bound(
        self, problem: Problem, engine: str, device: Device, a: Any, b: Any, statistics: Any, weight: float
    ) -> WordsBound:
        """From the operands."""
        words = word_format(self.scheme)
        assert words is not None
        direct = _is_fused(self.scheme, problem, device)
        constants = multiword_launches.bound(words, problem.terms, chunk_of(self.scheme), unit_of(device), direct)
        return WordsBound(FP32, a, b, constants, problem.target)
