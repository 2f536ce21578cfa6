"""Native products on a CPU: BLAS, the a-priori certificate, and what it leaves to be recomputed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import environment, threads
from prismm.core.bounds import ConventionalBound, RoundedBound
from prismm.core.outcome import Job, Outcome, finite_abs, real_parts, unlocked
from prismm.core.specials import patch, patch_addend
from prismm.cpu import blas_threads
from prismm.cpu.entries import Entries
from prismm.cpu.native import single
from prismm.cpu.native.library import lower_syrk
from prismm.cpu.native.ordinary import SOME, are_small, are_transposes, energy, is_long, ordinary, seem_huge
from prismm.cpu.repair import repair
from prismm.formats import FP64, format_of
from prismm.schemes.native import Native, fits_single, gemm_dtype, native_meets

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOWER_PANELS, LOWER_PANEL = 4, 128
"""Number of column panels of a product that leaves out entries above the diagonal, and the least width of one."""

SYRK_PANELS, SYRK_PANEL = 2, 1024
"""The same where BLAS makes the blocks on the diagonal by halves."""

GOLDEN = (5.0**0.5 - 1.0) / 2.0
"""No period of a matrix's rows or columns meets all multiples of this ratio."""


def product(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None = None, *, as_torch: bool = False
) -> NDArray[Any]:
    """a @ b by BLAS: torch's for tensors, NumPy's for arrays, where torch's flags allow fewer bits or its threads flush
    subnormals, and in forked children (whose copy of torch's thread pool is dead).
    """
    with np.errstate(all="ignore"):
        if (
            as_torch
            and not threads.FORKED
            and (a.dtype not in (np.float32, np.complex64) or environment.reduced_float32() is None)
            and blas_threads.torch_is_right()
        ):
            import torch

            # torch cannot view arrays with negative strides or foreign byte order, and warns of read-only ones.
            left, right = (
                torch.from_numpy(unlocked(np.ascontiguousarray(x) if min(x.strides, default=0) < 0 else x))
                for x in (a, b)
            )
            with environment.outside_autocast():
                result: NDArray[Any] = torch.matmul(left, right).numpy()
            if out is not None:
                out[...] = result
                return out
            return result
        if out is not None and out.dtype == np.result_type(a, b):
            return np.matmul(a, b, out=out)
        result = np.matmul(a, b)
        if out is not None:
            out[...] = result
            return out
        return result


def _lower_product(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], *, as_torch: bool) -> None:
    """out = a @ b on and below the diagonal, and in the rest of blocks on it. Each panel of columns starts there.

    A matrix times its own transpose is BLAS's syrk. Where that can be called through NumPy alone, few and large blocks
    on the diagonal serve best; NumPy copies their other triangles entry by entry, for which `_apart` has room.
    """
    syrk = not as_torch and out.dtype == a.dtype and are_transposes(a, b)
    if syrk and len(out) > LOWER_PANEL and lower_syrk(a, out):
        return
    panels = SYRK_PANELS if syrk else LOWER_PANELS
    step = max(SYRK_PANEL if syrk else LOWER_PANEL, -(-len(out) // panels))
    square = _apart(min(step, len(out)), out.dtype) if syrk and len(out) > LOWER_PANEL else None
    for start in range(0, len(out), step):
        here, below = slice(start, start + step), slice(start + step, None)
        block = out[here, here]
        if square is None:
            product(a[here], b[:, here], block, as_torch=as_torch)
        else:
            block[...] = product(a[here], b[:, here], square[: len(block), : len(block)])
        if start + step < len(out):
            product(a[below], b[:, here], out[below, here], as_torch=as_torch)


def _apart(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Room for an n by n matrix whose rows are an odd number of the cache's lines apart: entries of a column lie in
    different sets of the cache, also where a row is 2^k bytes long.
    """
    lines = -(-n * dtype.itemsize // 64) | 1
    return np.empty((n, lines * 64 // dtype.itemsize), dtype)[:, :n]


def _cannot_hide(a: NDArray[Any], out: NDArray[Any], job: Job, *, wide: bool) -> bool:
    """Whether |alpha| times K·2^(emax - p) is no quarter of the overflow threshold (`_hidden`)."""
    weight = 1.0 if job.epilogue is None else finite_abs(job.epilogue.alpha)
    precision = FP64.precision if wide else job.result.precision
    return not (wide and out.dtype.char in "fF") and weight * 2.0 * a.shape[-1] < 2.0 ** (precision - 2)


def _hidden(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, *, wide: bool) -> NDArray[np.bool_]:
    """Which entries, below half of the overflow threshold as computed, may stand for exact values that overflow: those
    where |alpha| times the error of AB may reach a quarter of it. wide: whether AB was summed in float64.

    A sum of K products that stays finite on the way is rounded 2K times, by at most half an ulp of the largest number,
    2^(emax - p - 1): it errs by at most K·2^(emax - p). Where |alpha| times that is too much, or where the sum's type
    is the wider one, the error is taken for K·u·|a||b| + K·η, and |a||b| for the product of two norms at most.
    """
    if _cannot_hide(a, out, job, wide=wide):
        return np.bool_(wide_and_long(a, b))  # type: ignore[return-value]
    weight = 1.0 if job.epilogue is None else finite_abs(job.epilogue.alpha)
    summed = FP64 if wide else job.result
    terms = 2.0 * a.shape[1]
    limit = 2.0 ** (job.result.maxexp - 2)
    with np.errstate(all="ignore"):
        rows, columns = (
            np.linalg.norm(x.astype(np.complex128 if np.iscomplexobj(x) else np.float64), axis=axis)
            for x, axis in ((a, 1), (b, 0))
        )
        size = summed.unit_roundoff * rows[:, None] * columns[None, :] + summed.smallest_subnormal
        found: NDArray[np.bool_] = ~(weight * terms * size < limit)
    return found


def suspicious(c: NDArray[Any]) -> NDArray[np.bool_]:
    """Real entries that are not finite, or so large that rounding errors may hide an overflow of the exact value
    (`is_long`).
    """
    limit = 2.0**1023 if c.dtype == np.float64 else 2.0**127
    with np.errstate(invalid="ignore"):
        # Negated, so that NaN is suspicious too.
        found: NDArray[np.bool_] = ~(np.abs(c) < limit)
    return found


def _seem_suspicious(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> bool:
    """Whether all of a few entries of a @ b, spread over out, are suspicious, though their operands are finite. A guess
    that all others are, too, and that BLAS would make them in vain.
    """
    if not seem_huge(a, b, out.dtype):
        return False
    places = np.arange(1, SOME + 1) * GOLDEN % 1.0
    rows, columns = ((places * size).astype(np.int64) for size in out.shape)
    left, right = a[rows], b[:, columns]
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return False
    with np.errstate(all="ignore"):
        some = np.matmul(left, right).astype(out.dtype)
    return all(bool(suspicious(part).all()) for part in real_parts(some))


def multiply(
    scheme: Native, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, *, as_torch: bool = False
) -> Outcome:
    """out = a @ b (two-dimensional, or the epilogue's sum) up to the job's target."""
    outcome = Outcome(products=1)
    start = time.perf_counter()
    kind = gemm_dtype(a, b, out, scheme.compute)
    target = job.target.kind if job.target is not None else None
    plain = job.epilogue is None or job.epilogue.trivial
    wide = np.dtype(kind).type(0).real.dtype == np.float64
    fits = wide and out.dtype == np.float32 and fits_single(a) and fits_single(b)
    if plain and fits and target == "correctly-rounded":
        single.multiply(a, b, out, job, outcome)
        outcome.bound = RoundedBound(job.result)
        return outcome
    x, y = a.astype(kind, copy=False), b.astype(kind, copy=False)
    known = False
    if not wide and is_long(a.shape[1], kind):
        with np.errstate(all="ignore"):
            known = are_small(x, y)
        if not known:
            # Rounding could hide an overflow in a long float32 sum of huge products: sum in float64, where nothing
            # overflows.
            kind, wide = np.result_type(kind, np.float64), True
            x, y = a.astype(kind), b.astype(kind)
    if plain and not job.lower and _seem_suspicious(x, y, out):
        # As if all had overflowed: each entry is set below.
        outcome.products = 0
        for part in real_parts(out):
            part[...] = np.inf
    elif plain and job.lower:
        _lower_product(x, y, out, as_torch=as_torch)
    elif plain:
        product(x, y, out, as_torch=as_torch)
    else:
        assert job.epilogue is not None
        _epilogue(product(x, y, as_torch=as_torch), out, job)
    outcome.time("multiply", time.perf_counter() - start)
    start = time.perf_counter()
    unit = 2.0**-53 if wide else 2.0**-24
    outcome.bound = ConventionalBound(job.result, a, b, job.terms, unit, None if plain else job.epilogue)
    if not _certain(job, unit, a, b, kind):
        i, j = (x.reshape(-1) for x in np.indices(out.shape, dtype=np.int64))
        _repair_uncertified(a, b, out, [Entries(part, i, j) for part in range(len(real_parts(out)))], job, outcome)
        outcome.bound = RoundedBound(job.result)
    else:
        outcome.count("a priori", out.size * len(real_parts(out)))
        # A sum has to be looked at in any case: C may carry it beyond the end, though AB is ordinary.
        # For a long sum that is `known` to be safe, `ordinary` would sum the same squares a second time.
        if not plain or not ((known and is_long(a.shape[1], out.dtype)) or ordinary(x, y, out)):
            _overflowed(a, b, out, job, outcome, wide)
    outcome.time("repair", time.perf_counter() - start)
    return outcome


@dataclass(frozen=True)
class Whole:
    """A batch (…, m, k) by (…, k, n) in one call."""

    scheme: Native
    a: NDArray[Any]
    b: NDArray[Any]
    out: NDArray[Any]
    job: Job

    @property
    def kind(self) -> np.dtype[Any]:
        """Element type of the GEMM."""
        return gemm_dtype(self.a, self.b, self.out, self.scheme.compute)

    @property
    def plain(self) -> bool:
        """Whether the product itself is asked for."""
        return self.job.epilogue is None or self.job.epilogue.trivial

    def multiply(self, *, as_torch: bool) -> NDArray[np.bool_]:
        """out = a @ b, or the epilogue's sum; for which products that is all that `multiply` would do."""
        batch, kind, job = self.out.shape[:-2], self.kind, self.job
        wide = np.dtype(kind).type(0).real.dtype == np.float64
        if not _certain(job, 2.0**-53 if wide else 2.0**-24, self.a, self.b, kind):
            return np.zeros(batch, np.bool_)
        x, y = self.a.astype(kind, copy=False), self.b.astype(kind, copy=False)
        if self.plain:
            product(x, y, self.out, as_torch=as_torch)
        else:
            _epilogue(product(x, y, as_torch=as_torch), self.out, job)
        # All at once first, as few batches hold anything odd; then matrix by matrix.
        if self._ordinary(x, y, self.out):
            return np.ones(batch, np.bool_)
        x, y = (np.broadcast_to(z, (*batch, *z.shape[-2:])) for z in (x, y))
        done = np.empty(batch, np.bool_)
        for at in np.ndindex(*batch):
            done[at] = self._ordinary(x[at], y[at], self.out[at])
        return done

    def _ordinary(self, x: NDArray[Any], y: NDArray[Any], c: NDArray[Any]) -> bool:
        """`ordinary`; of a sum, whose C may be larger than the product, all must be far from the largest float, too.
        Nor may alpha make an overflow of what cancellation lost.
        """
        found = ordinary(x, y, c)
        if not found or self.plain:
            return found
        wide = x.dtype.char in "dD"
        return energy(c) < math.inf and _cannot_hide(x, c, self.job, wide=wide) and not wide_and_long(x, y)

    def bound(self, a: NDArray[Any], b: NDArray[Any], at: tuple[int, ...]) -> ConventionalBound:
        """Of the product of a and b at that place."""
        unit = format_of(self.kind).unit_roundoff
        epilogue = self.job.epilogue.block(at) if self.job.epilogue is not None and not self.plain else None
        return ConventionalBound(self.job.result, a, b, self.job.terms, unit, epilogue)


def _certain(job: Job, unit: float, a: NDArray[Any], b: NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether the a-priori bound is all that the target asks for, of all matrices."""
    target = job.target.kind if job.target is not None else None
    if target == "native" and job.epilogue is not None and finite_abs(job.epilogue.alpha) > 1.0:
        # alpha enlarges what underflows in AB beyond the K·η that the target leaves.
        return cannot_underflow(a, b, kind)
    return target not in ("correctly-rounded", "tolerance") or _a_priori(job, unit, a, b, kind)


def _a_priori(job: Job, unit: float, a: NDArray[Any], b: NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether K·u·(|a||b|) alone meets the tolerance: then nothing needs a certificate."""
    assert job.target is not None
    if job.target.tolerance is None:
        return False
    meets = native_meets(job.target.tolerance, job.terms, unit, job.result.unit_roundoff)
    return meets and cannot_underflow(a, b, kind)


def cannot_underflow(a: NDArray[Any], b: NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether no product of nonzero elements is subnormal in the GEMM's precision; the K·η of the bound is then not
    needed.
    """
    lowest = smallest(a) * smallest(b)
    normal = 2.0**-1022 if np.dtype(kind).type(0).real.dtype == np.float64 else 2.0**-126
    return lowest >= normal


def smallest(x: NDArray[Any]) -> float:
    """The smallest nonzero magnitude of a real part, 1 at most; by rows, so that no copy of the operand is made."""
    # Repeated (zero-stride) axes hold one element each.
    x = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)]
    least = 1.0
    step = max(1, (1 << 20) // max(1, x.shape[-1]))
    for start in range(0, x.shape[0], step):
        for part in real_parts(x[start : start + step]):
            size = np.abs(part.astype(np.float64, copy=False))
            with np.errstate(invalid="ignore"):
                least = min(least, float(np.min(size, initial=1.0, where=size > 0.0)))
    return least


def exactly_scaled(factor: complex, dtype: np.dtype[Any]) -> bool:
    """Whether rounding a factor to a type errs by at most u of its modulus: not below the normal numbers, nor beyond
    the largest one.
    """
    info = np.finfo(dtype)
    return factor == 0 or float(info.smallest_normal) <= finite_abs(factor) <= float(info.max)


def _epilogue(ab: NDArray[Any], out: NDArray[Any], job: Job) -> None:
    """out = alpha·ab + beta·C in the precision of ab: three more roundings; in float64 where a factor or C is not of
    that precision's range.
    """
    assert job.epilogue is not None
    epilogue = job.epilogue
    scalar = complex if np.iscomplexobj(out) else (lambda z: complex(z).real)
    kind = ab.dtype if epilogue.c is None else np.result_type(ab.dtype, epilogue.c.dtype)
    if not all(exactly_scaled(factor, kind) for factor in (epilogue.alpha, epilogue.beta)):
        kind = np.result_type(kind, np.float64)
    with np.errstate(all="ignore"):
        ab = ab.astype(kind, copy=False)
        value = ab if epilogue.alpha == 1.0 else ab * kind.type(scalar(epilogue.alpha))
        if epilogue.c is not None:
            value = value + kind.type(scalar(epilogue.beta)) * epilogue.c.astype(kind, copy=False)
        out[...] = value


def _overflowed(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, outcome: Outcome, wide: bool
) -> None:  # fmt: skip
    """Law 4: entries that meet Inf or NaN get the defining sum's value, other suspicious ones the exact one, rounded.
    wide: whether the sums were made in float64.
    """
    rows, columns = nonfinite(a, axis=1), nonfinite(b, axis=0)
    outside = rows[:, None] | columns[None, :]
    masks, special = patch_addend(out, job.epilogue, outside)
    special += patch(a, b, out, rows, columns, job.epilogue)
    outcome.count("special", special)
    # All entries have been counted as a priori; those that are set here are taken off again.
    outcome.count("a priori", -special)
    hidden = _hidden(a, b, out, job, wide=wide)
    for part, values in enumerate(real_parts(out)):
        i, j = np.nonzero((suspicious(values) | hidden) & ~outside & ~masks[part])
        repair(a, b, out, Entries(part, i.astype(np.int64), j.astype(np.int64)), job, outcome)
        outcome.count("a priori", -int(i.size))


def wide_and_long(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether a float64 sum is so long, of numbers so large, that any entry may hide an overflow."""
    with np.errstate(all="ignore"):
        return a.shape[1] >= 1 << 24 and not are_small(a, b)


def nonfinite(x: NDArray[Any], axis: int) -> NDArray[np.bool_]:
    """Which rows (axis 1) or columns (axis 0) hold Inf or NaN."""
    if x.dtype.kind in "iu":
        return np.zeros(x.shape[1 - axis], np.bool_)
    found: NDArray[np.bool_] = ~np.isfinite(x).all(axis=axis)
    return found


def _repair_uncertified(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    entries: list[Entries],
    job: Job,
    outcome: Outcome,
) -> None:
    rows, columns = nonfinite(a, axis=1), nonfinite(b, axis=0)
    outside = rows[:, None] | columns[None, :]
    masks, special = patch_addend(out, job.epilogue, outside)
    special += patch(a, b, out, rows, columns, job.epilogue)
    outcome.count("special", special)
    for failed in entries:
        failed = failed.keep(~(outside | masks[failed.part])[failed.i, failed.j])
        repair(a, b, out, failed, job, outcome)
