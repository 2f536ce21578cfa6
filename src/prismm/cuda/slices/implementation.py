"""The scheme `Slices` in calls on a GPU: which of its parameters run there, predicted time, and bound."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import accuracy
from prismm.core.accuracy import MAGNITUDE
from prismm.core.bounds import half_ulp, rows_and_columns
from prismm.core.specials import real_operands
from prismm.cuda.blocks import BATCH_BYTES
from prismm.cuda.costs.table import waves
from prismm.cuda.device import Device
from prismm.cuda.implementation import Composite, Job
from prismm.cuda.layout import real_vectors
from prismm.cuda.multiword.implementation import check_length
from prismm.cuda.residues.tables import CertificateTest
from prismm.cuda.slices import config as slices_config
from prismm.cuda.slices import launches as slice_launches
from prismm.cuda.slices import pairs as slice_pairs
from prismm.cuda.slices.config import Cut, Digits, LaunchConfig, digits_for, refuse, tile_of
from prismm.errors import ArgumentError, EngineError
from prismm.formats import Format
from prismm.schemes.slices import Slices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.views import Vectors

_UP = 1.0 + 2.0**-40

_ROUNDED = {53: (72, 80), 24: (40, 56)}
"""Bits of the slices of "CR", and of the groups p + q that are kept, by the result's precision: 9 and 10 of 8 bits in
float64, 5 and 7 in float32. Of normal data at n = 4096 about one entry in 4000 should stay open in float64 (8 slices
left 1.4 %, as measured), and one in 27000 does in float32.
"""

_MOST_BATCHES = 32767


def digits_of(scheme: Slices, problem: Problem) -> Digits:
    """How the slices are held; ArgumentError where the unit holds none of so many bits.

    Correctly rounded entries are what they are whatever the slices, and are certified on a grid.
    """
    adaptive = scheme.exponents == "adaptive" and not _rounds(scheme, problem)
    bits = scheme.layout(problem.terms).bits
    return digits_for(scheme.unit, bits, scheme.rounding == "toward-zero", adaptive)


def _rounds(scheme: Slices, problem: Problem) -> bool:
    """Whether every entry is to be rounded correctly."""
    return scheme.mode == "CR" or (problem.target is not None and problem.target.kind == "correctly-rounded")


def _slices_and_groups(scheme: Slices, problem: Problem) -> tuple[int, int]:
    """d, and how many p + q are kept; of numbers of slices that are estimated from the data what even data need."""
    bits = digits_of(scheme, problem).bits
    total, bits_of_result = _ROUNDED[problem.result.precision]
    enough = max(-(-total // bits), 2)
    # Of adaptive slices that are to certify on a grid no more than that takes.
    if scheme.mode == "CR" or (
        scheme.exponents == "adaptive" and _rounds(scheme, problem) and scheme.expected(problem.terms) > enough
    ):
        return enough, min(max(-(-bits_of_result // bits), enough), 2 * enough - 1)
    slices = scheme.expected(problem.terms)
    return slices, slices if scheme.fast else 2 * slices - 1


_ANY = Device("any", True, True, 132)
"""What plans go by: as many programs as an H200 has, for which the inner dimension is cut where tiles are few."""


def _batches(each: int) -> int:
    """Matrices of a batch at a time, of so many bytes of workspace each."""
    return min(max(1, BATCH_BYTES // max(1, each)), _MOST_BATCHES)


def _maker_of(config: LaunchConfig) -> Any:
    """The module that makes and multiplies the slices."""
    return slice_pairs if config.digits.adaptive else slice_launches


@dataclass(frozen=True)
class SlicesBound:
    """The bound of `Slices`, and half an ulp, for each entry, of complex ones for each part; holds for repaired ones as
    well.

    a, b: the operands, which must not have changed since: rows and columns that are asked for are sliced again.
    """

    scheme: Slices
    slices: int
    result: Format
    a: Any
    b: Any

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices."""
        value = c[i, j]
        rows, columns = (np.asarray(x) for x in rows_and_columns(self.a, self.b, i, j))
        parts = [value.real, value.imag] if np.iscomplexobj(value) else [value]
        if len(parts) == 2:
            rows, columns = (x.astype(np.complex128, copy=False) for x in (rows, columns))
        found = [self._of_part(*real_operands(rows, columns, part), x) for part, x in enumerate(parts)]
        return np.maximum(found[0], found[-1])

    def _of_part(self, a: NDArray[Any], b: NDArray[Any], value: NDArray[Any]) -> NDArray[np.float64]:
        """Of real rows a and columns b, and their product."""
        bound = self.scheme.implementation("cpu").bound(a, b, self.slices)
        bound = np.reshape(bound, np.shape(value)) + half_ulp(value, self.result) * _UP
        # Entries that are not finite have no error: they are IEEE's, or what the exact value rounds to.
        return np.where(np.isfinite(value), bound, 0.0)


def config_for(scheme: Slices, problem: Problem) -> LaunchConfig:
    """What is launched."""
    slices, groups = _slices_and_groups(scheme, problem)
    target = accuracy.Target("correctly-rounded") if scheme.mode == "CR" else problem.target
    if target is not None and target.kind == "fast":
        target = None  # asks for no more than the scheme's own value
    precision = problem.result.precision
    # gemm's target counts three terms more (`gemm.kernels.combine`).
    terms = problem.target_terms + (3 if problem.summed else 0)
    test = CertificateTest(*accuracy.join_test(target, terms, problem.result), problem.terms, precision)
    return LaunchConfig(slices, groups, test, digits_of(scheme, problem))


def operations(config: LaunchConfig, problem: Problem, processors: int) -> float:
    """Operations of products of slices in full tiles, with those of the processors that wait for the last ones."""
    rows, columns = (128, 256) if config.digits.balanced else tile_of(config.digits)
    tiles = -(-problem.m // rows) * -(-problem.n // columns) * problem.count
    cut = config.cut(tiles, problem.terms, processors)
    tiles *= cut.blocks
    each = 2.0 * rows * columns * cut.width * config.pairs
    return each * problem.parts * tiles / waves(tiles, processors)


class Implementation(Composite):
    """`Slices` on a GPU; see `cuda.implementation.Implementation`."""

    joins_sums = True
    scheme: Slices

    def check(self, problem: Problem, engine: str | None, device: Device) -> str:
        """The engine that multiplies slices; see `cuda.implementation.Implementation.check`."""
        scheme = self.scheme
        if problem.reproducible and problem.target is not None and problem.target.kind in ("native", "tolerance"):
            raise EngineError(
                f"{scheme} certifies by other bounds on a GPU than on a CPU, so that reproducible=True with accuracy "
                f"{problem.target} is not kept; leave accuracy out, or pass 'correctly-rounded'"
            )
        check_length(problem)
        digits = digits_of(scheme, problem)
        if engine not in (None, "cuda", digits.engine):
            raise ArgumentError(f"engine={engine!r} does not multiply slices of {scheme}; it takes {digits.engine!r}")
        reason = refuse(digits, *_slices_and_groups(scheme, problem), problem.terms)
        if reason is not None:
            raise EngineError(f"{scheme}: {reason}, or CPU tensors")
        return digits.engine

    def workspace(self, problem: Problem, rows: int, columns: int) -> int:
        """Bytes for a block of the product; of complex operands with the real ones that are laid out."""
        laid_out = (rows + columns) * problem.k * problem.number_bytes if problem.is_complex else 0
        config = config_for(self.scheme, problem)
        slices_bytes = slices_config.workspace(config, rows, columns, problem.terms, problem.count, _ANY.programs)
        # gemm's sum asks for both products of complex numbers at once.
        return (laid_out + slices_bytes) * (problem.parts if problem.summed else 1)

    def launch_config(self, problem: Problem, device: Device) -> LaunchConfig:
        """Digits, slices and the test of a certificate."""
        return config_for(self.scheme, problem)

    def queue(self, job: Job) -> None:
        """Slice, multiply, join, certify and repair, in blocks."""
        program, config, target, device = job.program, job.config, job.target, job.device
        program.zero(job.counts)
        rows, columns = job.blocks.rows, job.blocks.columns
        m, n = min(rows, target.m), min(columns, target.n)
        constants, maker = slice_launches.constants_of(config.test, job.a.device), _maker_of(config)
        terms = job.left.parts * job.left.terms
        step = _batches(slices_config.workspace(config, m, n, terms))
        # Parts go one after the other, so that the workspace holds the sums of one real product only.
        for part, t in itertools.product(range(job.left.parts), range(0, target.batch, step)):
            some_a, some_b = job.left.batch_slice(t, step), job.right.batch_slice(t, step)
            some = target.batch_slice(t, step).reals(part)
            cut = config.cut(-(-m // 128) * -(-n // 256) * some.batch, terms, device.programs)
            # Columns outside, rows inside: a block of columns is sliced once for all blocks of rows, whose slices are
            # made anew.
            for j in range(0, target.n, columns):
                with program.scope():
                    of_b = real_vectors(program, some_b.block(j, j + columns), part, left=False)
                    split_b = maker.slice_vectors(program, of_b, config, cut, device, left=False)
                    for i in range(0, target.m, rows):
                        with program.scope():
                            of_a = real_vectors(program, some_a.block(i, i + rows), part, left=True)
                            split_a = maker.slice_vectors(program, of_a, config, cut, device, left=True)
                            sums = maker.multiply_slices(program, split_a, split_b, config, cut, device)
                            slice_launches.join_sums(
                                program, sums, some.block(i, rows, j, columns), of_a, of_b, split_a, split_b, config,
                                constants, job.counts, device,
                            )  # fmt: skip

    def queue_sum(self, job: Job) -> None:
        """As `queue` does a product, with both products of complex operands at once."""
        program, config, target, device = job.program, job.config, job.target, job.device
        program.zero(job.counts)
        rows, columns = job.blocks.rows, job.blocks.columns
        m, n = min(rows, target.m), min(columns, target.n)
        constants, maker = slice_launches.constants_of(config.test, job.a.device), _maker_of(config)
        terms, parts = job.left.parts * job.left.terms, range(job.left.parts)
        step = _batches(slices_config.workspace(config, m, n, terms) * job.left.parts)
        for t in range(0, target.batch, step):
            some_a, some_b, some = (
                job.left.batch_slice(t, step),
                job.right.batch_slice(t, step),
                target.batch_slice(t, step),
            )
            c = job.addend.batch_slice(t, step) if job.addend is not None else None
            cut = config.cut(-(-m // 128) * -(-n // 256) * some.batch, terms, device.programs)

            # Both parts are sliced at once: an entry of gemm's sum combines the two real products.
            def slices_of(x: Vectors, cut: Cut = cut, *, left: bool) -> list[slice_launches.SlicedVectors]:
                reals = (real_vectors(program, x, part, left=left) for part in parts)
                return [maker.slice_vectors(program, real, config, cut, device, left=left) for real in reals]

            for j in range(0, target.n, columns):
                with program.scope():
                    of_b = some_b.block(j, j + columns)
                    split_b = slices_of(of_b, left=False)
                    for i in range(0, target.m, rows):
                        with program.scope():
                            of_a = some_a.block(i, i + rows)
                            products = [
                                (x, y, maker.multiply_slices(program, x, y, config, cut, device))
                                for x, y in zip(slices_of(of_a, left=True), split_b, strict=True)
                            ]
                            place = i, rows, j, columns
                            slice_launches.combine_sums(
                                program, products, some.block(*place), c.block(*place) if c is not None else None, of_a,
                                of_b, config, constants, job.counts, device,
                            )  # fmt: skip

    def products(self, problem: Problem) -> int:
        """Pairs of slices, twice as many if complex."""
        return config_for(self.scheme, problem).pairs * problem.parts

    def gpu_seconds(
        self, problem: Problem, rates: Rates, engine: str | None = None, strassen: bool | None = None
    ) -> float:
        """Of split, product, join, and the check for entries to repair."""
        config, parts, tuning = config_for(self.scheme, problem), problem.parts, rates.tuning
        count, m, n, k = problem.count * parts, problem.m, problem.n, problem.terms
        sizes = {1: rates.int8, 2: tuning.slices_fp16 * rates.multiword, 8: tuning.slices_fp64 * rates.float64}
        seconds = rates.product + operations(config, problem, rates.processors) / sizes[config.digits.size]
        words = config.slices * config.digits.size
        for line, elements in ((rates.left, m * k), (rates.right, k * n)):
            seconds += line.seconds(float(count * elements), words)
        join = rates.join if config.test.mode == MAGNITUDE else rates.rounded
        seconds += join.seconds(float(count * m * n), config.entry_bytes)
        return seconds + rates.one_pass_seconds(count * m * n // 8)

    def bound(
        self, problem: Problem, engine: str, device: Device, a: Any, b: Any, statistics: Any, weight: float
    ) -> SlicesBound:
        """From the operands, sliced again."""
        return SlicesBound(self.scheme, _slices_and_groups(self.scheme, problem)[0], problem.result, a, b)
