"""The scheme `Slices` in calls on a GPU: which of its parameters run there, predicted time, and bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm import accuracy
from prismm.accuracy import MAGNITUDE
from prismm.bounds import half_ulp
from prismm.cuda_operands import vectors_of
from prismm.cuda_rates import once_over, waves
from prismm.cuda_words_calls import BATCH_BYTES
from prismm.engines import cuda, cuda_slices
from prismm.engines.launch import OUT, A, B, Place
from prismm.errors import ArgumentError, EngineError
from prismm.formats import Format
from prismm.schemes.slices import Slices

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from prismm.cuda_plan import Need
    from prismm.cuda_rates import Rates
    from prismm.engines.cuda import Device
    from prismm.engines.launch import Program

_UP = 1.0 + 2.0**-40

_ROUNDED = {53: (9, 10), 24: (5, 7)}
"""Slices of "CR" by the result's precision, and groups p + q that are kept. Of normal data of order 4096 about one
entry in 4000 should stay open in float64 (8 slices left 1.4 %, as measured), and one in 27000 does in float32.
"""

_MOST_BATCHES = 32767


def check(scheme: Slices, need: Need, engine: str | None) -> str:
    """The engine of a scheme that a caller asked for.

    Raises:
        EngineError: for parameters, types or targets that a GPU does not serve. ArgumentError: for another engine.
    """
    if need.is_complex:
        raise EngineError(
            f"{scheme} multiplies complex numbers on a CPU so far; pass CPU tensors, or scheme=prismm.Residues(...)"
        )
    if engine not in (None, "cuda", cuda.INT8):
        raise ArgumentError(f"engine={engine!r} does not multiply slices; {scheme} takes {cuda.INT8!r}")
    if scheme.unit != "int8" or scheme.exponents != "grid" or scheme.rounding != "nearest":
        raise EngineError(
            f"{scheme} runs on a CPU so far; pass CPU tensors, or what a GPU has: Slices('int8', slices=1 to "
            f"{cuda_slices.MOST_SLICES}) with exponents='grid' and rounding='nearest', their defaults"
        )
    layout = scheme.layout(need.k)
    if layout.bits != 8:
        raise EngineError(
            f"{scheme} has slices of {layout.bits} bits at an inner dimension of {need.k}; a GPU has slices of 8: pass "
            "bits=8, or CPU tensors"
        )
    if scheme.mode != "CR" and scheme.slices is None:
        raise EngineError(
            f"{scheme} estimates its number of slices from the data, which would have to be read back from a GPU; pass "
            f"slices={min(scheme.expected(need.k), cuda_slices.MOST_SLICES)}, which is what evenly scaled data need, "
            f"or mode='CR'"
        )
    if scheme.slices is not None and scheme.slices > cuda_slices.MOST_SLICES:
        raise EngineError(
            f"{scheme}: a GPU has {cuda_slices.MOST_SLICES} slices at most; pass fewer, mode='CR', or CPU tensors"
        )
    if need.reproducible and need.target is not None and need.target.kind in ("native", "tolerance"):
        raise EngineError(
            f"{scheme} certifies by other bounds on a GPU than on a CPU, so that reproducible=True with accuracy "
            f"{need.target} is not kept; leave accuracy out, or pass 'correctly-rounded'"
        )
    if need.k >= 1 << 23:
        raise ArgumentError(
            f"an inner dimension of {need.k} is too long; multiply in blocks of at most {(1 << 23) - 1}"
        )
    return cuda.INT8


def problem_of(scheme: Slices, need: Need, device: Device) -> cuda_slices.Problem:
    """What is launched."""
    precision = need.result.precision
    if scheme.slices is None:
        slices, groups = _ROUNDED[precision]
    else:
        slices = scheme.slices
        groups = slices if scheme.fast else 2 * slices - 1
    target = accuracy.Target("correctly-rounded") if scheme.mode == "CR" else need.target
    if target is not None and target.kind == "fast":
        target = None  # asks for no more than the scheme's own value
    test = cuda.Test(*accuracy.join_test(target, need.terms, need.result), need.terms, precision)
    return cuda_slices.Problem(slices, groups, test)


def workspace(scheme: Slices, need: Need, rows: int, columns: int) -> int:
    """Bytes of scratch for a block of the product."""
    return cuda_slices.workspace(problem_of(scheme, need, _ANY), rows, columns, max(1, need.k))


_ANY = cuda.Device("any", True, True, 1)


def queue(
    program: Program, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, problem: cuda_slices.Problem,
    block: tuple[int, int], counts: Place, device: Device,
) -> None:  # fmt: skip
    """Queue out = a @ b, batches of three dimensions, in blocks of rows and columns, and of a batch; counts (4,) int64
    are set.
    """
    program.zero(counts)
    left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
    steps = out.stride(0), out.stride(1), out.stride(2)
    whole = cuda.Result(Place(OUT, 0, out.dtype), out.shape[0], out.shape[1], out.shape[2], steps)
    rows, columns = block
    m, n = min(rows, whole.m), min(columns, whole.n)
    constants = cuda_slices.constants_of(problem.test, a.device)
    each = cuda_slices.workspace(problem, m, n, left.terms)
    step = min(max(1, BATCH_BYTES // max(1, each)), _MOST_BATCHES)
    for t in range(0, whole.batch, step):
        some_a, some_b, some = left.some(t, step), right.some(t, step), whole.some(t, step)
        tiles = -(-m // 128) * -(-n // 256) * some.batch
        cut = cuda_slices.cut_for(problem.slices, tiles, left.terms, device.programs)
        for j in range(0, whole.n, columns):
            with program.lend():
                of_b = some_b.part(j, j + columns)
                split_b = cuda_slices.slice_vectors(program, of_b, problem, cut, device, left=False)
                for i in range(0, whole.m, rows):
                    with program.lend():
                        of_a = some_a.part(i, i + rows)
                        split_a = cuda_slices.slice_vectors(program, of_a, problem, cut, device, left=True)
                        sums = cuda_slices.multiply_slices(program, split_a, split_b, problem, cut, device)
                        cuda_slices.join_sums(
                            program, sums, some.part(i, rows, j, columns), of_a, of_b, split_a, split_b, problem,
                            constants, counts, device,
                        )  # fmt: skip


@dataclass(frozen=True)
class SlicesBound:
    """The bound of `Slices`, and half an ulp, for each entry; holds for repaired ones as well.

    a, b: the operands, which must not have changed since: rows and columns that are asked for are sliced again.
    """

    scheme: Slices
    result: Format
    a: Any
    b: Any

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices."""
        from prismm.schemes.scaling import bound_of, scale
        from prismm.schemes.sliced import cut
        from prismm.schemes.slices import bound_terms

        a, e = scale(np.asarray(self.a[i] if isinstance(i, slice) else self.a[[i]]), "left", 1)
        b, f = scale(np.asarray(self.b[:, j] if isinstance(j, slice) else self.b[:, [j]]), "right", 1)
        layout = self.scheme.layout(a.k)
        assert self.scheme.slices is not None
        left, right = (cut(x, layout, self.scheme.slices, 1) for x in (a, b))
        used = left.used, right.used
        rows, columns = bound_terms(left, right, used, self.scheme.slices if self.scheme.fast else None)
        units = bound_of(0.0, rows, columns, 2.0**-1070, None, (e, f), a.k)
        with np.errstate(over="ignore"):
            bound = np.ldexp(units, (e.exponent[:, None] + f.exponent[None, :]).astype(np.int64))
            bound = np.where(units > 0.0, bound * _UP + 2.0**-1074, bound)
        value = c[i, j]
        bound = np.reshape(bound, np.shape(value)) + half_ulp(value, self.result) * _UP
        return np.where(np.isfinite(value), bound, 0.0)


def bound_of(scheme: Slices, need: Need, device: Device, a: Any, b: Any) -> SlicesBound:
    """For a report."""
    return SlicesBound(scheme, need.result, a, b)


def predict(scheme: Slices, need: Need, rates: Rates) -> float:
    """Seconds that a call with slices is expected to take: split, product, join, second look."""
    problem = problem_of(scheme, need, _ANY)
    count, m, n, k = math.prod(need.batch), need.m, need.n, max(1, need.k)
    seconds = rates.call + rates.product + operations(problem, need, rates.processors) / rates.int8
    for line, elements in ((rates.left, m * k), (rates.right, k * n)):
        seconds += line.seconds(float(count * elements), problem.slices)
    join = rates.join if problem.test.mode == MAGNITUDE else rates.rounded
    seconds += join.seconds(float(count * m * n), problem.groups + 3)
    return seconds + once_over(count * m * n // 8, rates.memory)


def operations(problem: cuda_slices.Problem, need: Need, processors: int) -> float:
    """Operations of products of slices in full tiles, with those of the processors that wait for the last ones."""
    tiles = -(-need.m // 128) * -(-need.n // 256) * math.prod(need.batch)
    cut = cuda_slices.cut_for(problem.slices, tiles, max(1, need.k), processors)
    tiles *= cut.blocks
    return 2.0 * tiles * 128 * 256 * cut.width * problem.pairs / waves(tiles, processors)


def products(scheme: Slices, need: Need) -> int:
    """Products on the matrix unit of one product of the call."""
    return problem_of(scheme, need, _ANY).pairs
