"""Implementation of `Native` on a CPU."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.accuracy import Target
from prismm.core.outcome import Job, Outcome, real_parts
from prismm.core.plan import readable_seconds
from prismm.core.problem import Problem
from prismm.cpu.costs import native_rates, native_seconds
from prismm.cpu.engines.named import BLAS, forced, refuse_simulated
from prismm.cpu.entries import Entries
from prismm.cpu.forecast import LEAST_WORK, Sample, expected_repairs, some_of
from prismm.cpu.implementation import Blocks, Freedom, Pass
from prismm.cpu.native.ordinary import are_small, is_long
from prismm.cpu.native.product import Whole, multiply, nonfinite, suspicious
from prismm.cpu.native.single import sampled
from prismm.errors import ArgumentError
from prismm.schemes.native import Native, gemm_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side


def _suspicious(
    scheme: Native, problem: Problem, a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], workers: int
) -> Sample:
    """Some rows and columns multiplied as the whole is: entries of the first real part, of finite ones, that may hide
    an overflow; and the seconds of a product in float64, where float32's numbers ask for that.
    """
    kind = gemm_dtype(a, b, np.empty(0, dtype), scheme.compute)
    x, y = some_of(problem, a, b)
    rows, columns = ~nonfinite(x, axis=1), ~nonfinite(y, axis=0)
    left, right = x[rows].astype(kind), y[:, columns].astype(kind)
    single = kind.type(0).real.dtype == np.float32
    # The norms of the whole decide; those of the sample stand for them.
    wide = single and is_long(a.shape[1], kind) and not are_small(left, right)
    kind = np.result_type(kind, np.float64) if wide else kind
    left, right = left.astype(kind, copy=False), right.astype(kind, copy=False)
    value = real_parts((left @ right).astype(dtype, copy=False))[0]
    i, j = (index.astype(np.int64) for index in np.nonzero(suspicious(value)))
    share = i.size / max(value.size, 1)
    # Where all entries are set anyway, it is not made.
    multiply_adds = problem.multiply_adds * (4 if problem.is_complex else 1) if wide and share < 1.0 else 0
    seconds = multiply_adds / native_rates().float64 / workers
    return Sample(x[rows], y[:, columns], Entries(0, i, j), share, share, seconds)


class Implementation:
    """`Native` on a CPU; see `cpu.implementation.Implementation`."""

    rounds_every_term = True
    keeps_precision = True

    def __init__(self, scheme: Native) -> None:
        self.scheme = scheme

    def engine(self, problem: Problem, name: str | None, *, may_read_data: bool) -> tuple[str, tuple[str, ...]]:
        """BLAS, whatever engine of integers is asked for."""
        refuse_simulated(name, self.scheme)
        forced(name)
        return BLAS, ()

    def check_target(self, problem: Problem, target: Target | None) -> None:
        """Integers beyond 2^53 and long doubles are several terms each, in a sum that is rounded."""
        if problem.big_integers and target is not None and target.kind == "native":
            raise ArgumentError(
                f"{self.scheme} does not reach accuracy 'native' for integers beyond 2^53 or long doubles; leave "
                "scheme out, or pass prismm.Residues(...)"
            )

    def products(self, problem: Problem, engine: str) -> int:
        """One."""
        return 1

    def seconds(self, problem: Problem, engine: str, workers: int) -> float:
        """Of BLAS, and of the pass over the result."""
        return native_seconds(self.scheme, problem, workers)

    def expected_repairs(
        self, problem: Problem, a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], engine: str, workers: int
    ) -> tuple[float, str] | None:
        """By a sample, if the product is large enough: of correctly rounded float32 data, and of entries that may hide
        an overflow. None elsewhere: the bound holds a priori.
        """
        if problem.multiply_adds < LEAST_WORK:
            return None
        with np.errstate(all="ignore"):
            if problem.goal != "correctly-rounded":
                sample = _suspicious(self.scheme, problem, a, b, dtype, workers)
                if sample.failed:
                    return expected_repairs(problem, sample, workers)
                how = f"sums of large numbers are made in float64, in about {readable_seconds(sample.seconds)}"
                return (sample.seconds, how) if sample.seconds else None
            if self.scheme.compute != "float64" or dtype != np.float32:
                return None
            return expected_repairs(problem, sampled(problem, a, b, workers), workers)

    def blocks(self, problem: Problem, engine: str, job: Job) -> Blocks:
        """The whole; copies in float64 where that is the precision asked for."""
        m, n, k = problem.m, problem.n, problem.k
        # The right operand in float64, and panels of 1024 rows of the left one and the result.
        workspace = 8 * (k * n + min(m, 1024) * (n + k)) if self.scheme.compute == "float64" else 0
        return Blocks(m, n, workspace)

    def prepare(self, x: NDArray[Any], side: Side, job: Job, engine: str) -> None:
        """Nothing: BLAS takes the operand as it is."""

    def in_one_pass(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, problem: Problem, engine: str,
        freedom: Freedom,
    ) -> Pass | None:  # fmt: skip
        """A batch by one call of BLAS; not done are products for which more is asked than the a-priori bound, or that
        hold an entry that is not ordinary.
        """
        batch = out.shape[:-2]
        # A single product is `run`'s, which also repairs.
        if not batch:
            return None
        start = time.perf_counter()
        whole = Whole(self.scheme, a, b, out, job)
        done = whole.multiply(as_torch=freedom.as_torch)
        count = int(np.count_nonzero(done))
        outcome = Outcome(products=count)
        outcome.count("a priori", count * out.shape[-2] * out.shape[-1] * (2 if out.dtype.kind == "c" else 1))
        outcome.time("multiply", time.perf_counter() - start)
        # A matrix that is broadcast gets a place in the batch, so that bounds find it by index.
        x, y = (np.broadcast_to(z, (*batch, *z.shape[-2:])) for z in (a, b))

        def part(p: int) -> Outcome:
            at = tuple(map(int, np.unravel_index(p, batch)))
            return Outcome(bound=whole.bound(x[at], y[at], at))

        return Pass(outcome, done, part)

    def run(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, engine: str, left: Any = None,
        right: Any = None, *, as_torch: bool = False,
    ) -> Outcome:  # fmt: skip
        """See `cpu.native.product`."""
        return multiply(self.scheme, a, b, out, job, as_torch=as_torch)
