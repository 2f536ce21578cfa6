"""The plan of a product: which scheme, on which engine, why, and what it is expected to cost.

`Auto` is itself a scheme that can be asked. Its table, for a CPU:

| asked for | chosen |
| --- | --- |
| "native", "fast" | Native: certified a priori, and nothing is faster |
| a tolerance of at least (K+2)·u | Native |
| a smaller tolerance | Residues, moduli by what the tolerance needs |
| "correctly-rounded", float32 data and result, real | Native(compute="float64"), or Residues if predicted faster |
| "correctly-rounded", otherwise | Residues, moduli by a sample of the data: their number cannot change the result |
| reproducible=True | Residues, moduli from result type, K and target alone |

Integers beyond 2^53 never take the native road below "fast". `prismm.planning.alternatives` weighs the schemes of
rounded
products against this table: one of them is taken where its bound meets the target on units that the machine has, and
fewer seconds are predicted for it. No CPU has come to that.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prismm.core.accuracy import Target
from prismm.core.moduli import MAX_MODULI, operand_bits
from prismm.formats import FP64, Format, format_of
from prismm.schemes.native import Native, _fits_single, cannot_underflow, gemm_dtype, native_meets
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIRECT_WORK = 40_000
"""Products of at most this many multiply-adds go to the direct engine: no pipeline pays for itself there."""

TINY_WORK = 300_000
"""Up to so many multiply-adds one compiled call in double-double is faster still, where it settles every entry; so many
may each product of a batch have for the direct engine.
"""

THIN = 4096
"""A tall or wide product whose smaller operand has at most so many elements goes to the direct engine as well."""

TINY_MODULI = {53: 17, 24: 11}
"""Moduli for correct rounding by the direct engine, by the precision of the result: operands of three limbs, or two."""

GRADE = {53: 15, 24: 7}
"""Moduli whose typical error is that of a native GEMM or smaller, by the precision of the result."""


@dataclass(frozen=True)
class Auto:
    """The scheme that chooses a scheme; see the table in this module's docstring.

    Value, bound, reproducibility: those of what it selects.
    """

    @property
    def reproducible(self) -> bool:
        """What it selects may be either."""
        return False

    def select(self, need: Need) -> tuple[Any, str]:
        """The scheme for this need, and the reason."""
        from prismm.planning.alternatives import weigh

        return weigh(need, *self._on_this_machine(need))

    def _on_this_machine(self, need: Need) -> tuple[Any, str]:
        """The table above."""
        target = need.target
        precision = need.result.precision
        if need.reproducible and target.kind != "correctly-rounded":
            return _reproducible_moduli(need)
        if target.kind == "fast" or (target.kind == "native" and not need.big_integers):
            if target.kind == "native" and need.terms == 1 and need.compute_narrower:
                return Residues(grade(need.result, need.terms)), "a single product in a wider type would round twice"
            return Native(), "its a-priori bound meets the target, and nothing is faster on a CPU"
        if (
            target.kind == "tolerance"
            and not need.big_integers
            and not need.epilogue
            and need.a is not None
            and need.b is not None
        ):
            assert target.tolerance is not None
            unit = need.compute_unit
            if native_meets(target.tolerance, need.terms, unit, need.result.unit_roundoff) and cannot_underflow(
                need.a, need.b, need.compute
            ):
                return Native(), f"(K+2)·u = {(need.terms + 2) * unit:.1e} is within the tolerance"
        if target.kind == "correctly-rounded" and need.tiny:
            return Residues(TINY_MODULI[precision]), "leaves few roundings open in a tiny product"
        if target.kind == "correctly-rounded" and need.single and not need.epilogue and not _residues_are_faster(need):
            return Native("float64"), "float32 products are exact in float64; one rounding test per entry"
        if target.kind == "correctly-rounded" and need.thin:
            return Residues(TINY_MODULI[precision]), "leaves few roundings open in short sums"
        if target.kind == "correctly-rounded":
            return _moduli_by_sample(need)
        if target.kind == "native":
            return Residues(grade(need.result, need.terms)), "integers beyond 2^53 need exact operands"
        return _moduli_for_tolerance(need)


@dataclass(frozen=True)
class Need:
    """What is asked of `Auto`: shapes, types, target, and the data where the choice may look at it."""

    m: int
    n: int
    k: int
    terms: int
    result: Format
    target: Target
    reproducible: bool
    is_complex: bool
    single: bool
    big_integers: bool
    epilogue: bool
    compute: Any
    a: Any = field(default=None, repr=False)
    b: Any = field(default=None, repr=False)
    batched: bool = False

    @property
    def tiny(self) -> bool:
        """Whether the direct engine is the natural choice: for a product so small, or one of a batch."""
        work = self.m * self.n * max(self.k, 1)
        return work <= DIRECT_WORK or (self.batched and work * (4 if self.is_complex else 1) <= TINY_WORK)

    @property
    def thin(self) -> bool:
        """Whether it is because a tall or wide product has so small an operand."""
        least, most = sorted((self.m, self.n))
        return least * max(self.k, 1) <= THIN and most >= 16 * least

    @property
    def compute_unit(self) -> float:
        """Unit roundoff of the native GEMM."""
        return format_of(self.compute).unit_roundoff

    @property
    def compute_narrower(self) -> bool:
        """Whether the result is narrower than the GEMM's type, so that a native value is rounded twice."""
        return self.compute_unit < self.result.unit_roundoff


def grade(result: Format, terms: int) -> int:
    """Moduli of native grade. The scheme's error grows like √K beside a native one that BLAS's blocking keeps flat: it
    catches up at K = 2^13 (float32) and 2^17 (float64); one modulus more is worth a factor of 14, so of 200 in K.
    """
    room = terms / (1 << 17 if result.precision == 53 else 1 << 13)
    return GRADE[result.precision] + (1 + int(math.log2(room) / 7.7) if room >= 1.0 else 0)


def _reproducible_moduli(need: Need) -> tuple[Any, str]:
    if need.target.kind == "tolerance":
        return _moduli_for_tolerance(need)
    moduli = grade(need.result, need.terms)
    return Residues(moduli), "reproducible, of native grade; the number of moduli follows from result type and K alone"


def _moduli_for_tolerance(need: Need) -> tuple[Any, str]:
    assert need.target.tolerance is not None
    moduli = moduli_for_tolerance(need.target.tolerance, need.terms, need.result)
    return Residues(moduli), f"the fewest moduli whose bound is likely within {need.target.tolerance:g}·|a||b|"


def moduli_for_tolerance(tolerance: float, terms: int, result: Format) -> int:
    """The fewest moduli whose bound is likely within tolerance·|a||b|."""
    wanted = -math.log2(tolerance) + 0.5 * math.log2(max(terms, 1)) + 2.0
    wanted = min(wanted, result.precision + 0.5 * math.log2(max(terms, 1)) + 14.0)
    moduli = 4 if result.precision == 24 else 8
    while operand_bits(moduli) < wanted and moduli < MAX_MODULI:
        moduli += 1
    return moduli


def default_moduli(result: Format, terms: int) -> int:
    """Moduli for correct rounding without a look at the data: enough for a few repairs on normal data."""
    wanted = 72.5 if result is FP64 else 42.0
    moduli = 7
    while operand_bits(moduli) < wanted:
        moduli += 1
    return moduli


def _residues_are_faster(need: Need) -> bool:
    """Whether fewer seconds are predicted for residues than for sums in float64: where INT8 products are as many times
    faster than those as it takes.
    """
    from prismm.cpu.costs import predict
    from prismm.cpu.engines.integer import choose

    moduli = default_moduli(need.result, need.terms)
    residues, _ = predict(Residues(moduli), choose("cpu").name, need, moduli, 1, 1)
    doubled, _ = predict(Native("float64"), "cpu:blas", need, 1, 1, 1)
    return residues < doubled


def _moduli_by_sample(need: Need) -> tuple[Any, str]:
    default = default_moduli(need.result, need.terms)
    few = need.m * need.n < 1 << 10  # a sample would be all of them
    if need.a is None or few or need.m * need.n * need.k < 1 << 28 or need.big_integers:
        return Residues(default), "leaves few roundings open on ordinary data"
    import numpy as np

    with np.errstate(all="ignore"):
        moduli, share = sampled_moduli(need)
    return Residues(
        moduli
    ), f"fewest seconds by a sample of the data, which expects {share:.2g} of the entries in repair"


def _sample_rows(x: NDArray[Any], count: int) -> NDArray[np.float64]:
    import numpy as np

    chosen = np.linspace(0, x.shape[0] - 1, min(count, x.shape[0])).astype(np.int64)
    rows = x[chosen]
    if np.iscomplexobj(rows):
        rows = np.concatenate([rows.real, rows.imag], axis=1)
    rows = rows.astype(np.float64)
    rows = np.where(np.isfinite(rows), rows, 0.0)
    # Powers of two of a row change nothing of what is asked, and its norm might overflow.
    exponents = np.frexp(np.max(np.abs(rows), axis=1, keepdims=True, initial=0.0))[1]
    scaled: NDArray[np.float64] = np.ldexp(rows, -exponents)
    return scaled


def sampled_moduli(need: Need, count: int = 8) -> tuple[int, float]:
    """(moduli, expected share of open entries) that minimise products plus repair, from `count` rows and columns.

    At a scale 2^s an element is inexact if its last bit is below 2^-s; each inexact one adds 1/12 to ‖δ‖². An entry
    x stays open with probability about 2ε/ulp(x). No guarantee hangs on this: it only chooses the cheaper of two
    right ways.
    """
    import numpy as np

    from prismm.cpu.costs import rates_of
    from prismm.cpu.engines.integer import choose

    rate = rates_of(choose("cpu").name).residue
    samples = [_sample_rows(need.a, count), _sample_rows(need.b.T, count)]
    x = np.abs(samples[0] @ samples[1].T)
    norms, lasts = [], []
    for sample in samples:
        norms.append(np.sqrt(np.einsum("ij,ij->i", sample, sample)))
        fraction, exponent = np.frexp(sample)
        integer = np.abs(np.ldexp(fraction, 53)).astype(np.int64)
        lowest = np.frexp((integer & -integer).astype(np.float64))[1] - 1
        last = np.where(integer == 0, 1 << 20, exponent - 53 + lowest)
        lasts.append(np.sort(last, axis=1))
    best = (math.inf, 0, 0.0)
    entries = need.m * need.n
    repair_seconds = entries * (2 if need.is_complex else 1) * (need.k * (2 if need.is_complex else 1) * 3.4e-9 + 3e-7)
    for moduli in range(8 if need.result.precision == 53 else 6, MAX_MODULI + 1):
        product_seconds = entries * need.k * moduli * (3 if need.is_complex else 1) / rate
        if product_seconds > best[0]:
            break
        deltas, scaled = [], []
        for norm, last in zip(norms, lasts, strict=True):
            s = np.where(norm > 0.0, np.floor(operand_bits(moduli) - np.log2(np.where(norm > 0, norm, 1.0))), 0.0)
            inexact = np.array([np.searchsorted(row, -shift) for row, shift in zip(last, s, strict=True)])
            deltas.append(np.sqrt(inexact / 12.0))
            scaled.append((norm, s))
        # ε relative to the product, per pair: ‖δa‖·‖b̂‖ + ‖â‖·‖δb‖, in the operands' own units.
        da = np.ldexp(deltas[0], (-scaled[0][1]).astype(np.int64))
        db = np.ldexp(deltas[1], (-scaled[1][1]).astype(np.int64))
        bound = da[:, None] * norms[1][None, :] + norms[0][:, None] * db[None, :]
        distance = np.where(bound > 0.0, x / (2.0 * bound * 2.0**need.result.precision), np.inf)
        share = _open_share(np.nan_to_num(distance, nan=0.0, posinf=np.inf))
        seconds = product_seconds + share * repair_seconds
        if seconds < best[0]:
            best = (seconds, moduli, share)
    return best[1], best[2]


def _open_share(distance: NDArray[np.float64]) -> float:
    """The share of entries expected to stay open, from a sample of |x| in units of what stays open for certain.

    An entry at a distance r >= 1 stays open with probability 1/r. Few of a sample are as near to zero as what matters
    most, so the entries below its least are added, as dense there as below its median.
    """
    import numpy as np

    least, middle = max(float(distance.min()), 1.0), max(float(np.median(distance)), 1.0)
    share = float(np.minimum(1.0, 1.0 / np.maximum(distance, 1.0)).mean())
    return min(1.0, share + 0.5 * (1.0 + math.log(least)) / middle) if least < math.inf else share


@dataclass(frozen=True)
class Alternative:
    """A scheme that was not taken: what it would need, and why not."""

    scheme: str
    engine: str
    predicted_seconds: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "scheme": self.scheme,
            "engine": self.engine,
            "predicted_seconds": self.predicted_seconds,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        return f"{self.scheme} on {self.engine}, {readable_seconds(self.predicted_seconds)}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """What would run for a product, why, and what it is expected to take; printed by `prismm.explain`.

    predicted_seconds and native_seconds are estimates for this kind of machine, not measurements. workspace_bytes is
    what the product takes beside operands and result. alternatives: schemes that were not taken, and why not.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    operands: tuple[str, str]
    result: str
    target: Target | None
    scheme: Any
    engine: str
    reproducible: bool
    threads: int
    products: int
    row_panel: int
    column_block: int
    workspace_bytes: int
    predicted_seconds: float
    native_seconds: float
    bound: str
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "batch": list(self.batch),
            "operands": list(self.operands),
            "result": self.result,
            "accuracy": str(self.target) if self.target is not None else None,
            "scheme": str(self.scheme),
            "engine": self.engine,
            "reproducible": self.reproducible,
            "threads": self.threads,
            "products": self.products,
            "row_panel": self.row_panel,
            "column_block": self.column_block,
            "workspace_bytes": self.workspace_bytes,
            "predicted_seconds": self.predicted_seconds,
            "native_seconds": self.native_seconds,
            "bound": self.bound,
            "reasons": list(self.reasons),
            "alternatives": [alternative.to_dict() for alternative in self.alternatives],
        }

    def __str__(self) -> str:
        shape = f"({self.m} x {self.k}) @ ({self.k} x {self.n})"
        if self.batch:
            shape = f"{'x'.join(map(str, self.batch))} of {shape}"
        target = str(self.target) if self.target is not None else "the scheme's own value"
        expected, native = readable_seconds(self.predicted_seconds), readable_seconds(self.native_seconds)
        lines = [
            f"{shape}, {self.operands[0]} and {self.operands[1]} -> {self.result}",
            f"  accuracy    {target}" + (", reproducible" if self.reproducible else ""),
            f"  scheme      {self.scheme} on {self.engine}, {self.threads} thread{'s' if self.threads != 1 else ''}",
            f"  products    {self.products}",
            f"  bound       {self.bound}",
            f"  predicted   {expected} (native {native})",
            f"  workspace   {self.workspace_bytes / 2**20:.1f} MiB, panels of {self.row_panel} rows, "
            f"blocks of {self.column_block} columns",
        ]
        lines += [f"  because     {reason}" for reason in self.reasons]
        return "\n".join([*lines, *(f"  instead     {alternative}" for alternative in self.alternatives)])


def readable_seconds(seconds: float) -> str:
    """Seconds in a unit that suits them."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def bound_text(scheme: Any, target: Target | None, result: Format, is_complex: bool) -> str:
    """The guarantee per entry, in one line."""
    u = f"2^-{result.precision}"
    terms = "2k" if is_complex else "k"
    if target is None:
        return "the scheme's own: Report.bound(i, j)"
    if target.kind == "correctly-rounded":
        return "half an ulp: c = RN(exact)" + (", real and imaginary part each" if is_complex else "")
    if target.kind == "tolerance":
        return f"|c - exact| <= {target.tolerance:g}·(|a||b|) + {u}·|exact| + η/2"
    if target.kind == "native":
        return f"|c - exact| <= {terms}·{u}·(|a||b|) + {terms}·η"
    return "none per entry; Report.bound(i, j) gives what the scheme guarantees"


@functools.cache
def physical_memory() -> int:
    """Bytes of memory of this machine, or 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 << 30


def workspace_limit(operands: int, result: int) -> int:
    """Bytes of scratch that a product may take: 1.4 times its data, at least 192 MiB, at most a quarter of the
    memory.
    """
    return min(max(192 << 20, int(1.4 * (operands + result))), max(64 << 20, physical_memory() // 4))


def need_of(
    a: NDArray[Any],
    b: NDArray[Any],
    out_dtype: np.dtype[Any],
    target: Target,
    reproducible: bool,
    epilogue: bool,
    big_integers: bool,
) -> Need:
    """The `Need` of a product of two matrices."""
    import numpy as np

    result = format_of(out_dtype)
    is_complex = out_dtype.kind == "c"
    k = a.shape[-1]
    single = result.precision == 24 and not is_complex and _fits_single(a) and _fits_single(b)
    empty = np.empty(0, out_dtype)
    return Need(
        m=a.shape[-2],
        n=b.shape[-1],
        k=k,
        terms=2 * k if is_complex else k,
        result=result,
        target=target,
        reproducible=reproducible,
        is_complex=is_complex,
        batched=b.ndim > 2,
        single=single,
        big_integers=big_integers,
        epilogue=epilogue,
        compute=gemm_dtype(a, b, empty, None),
        a=a if a.ndim == 2 else a.reshape(-1, a.shape[-1]) if a.size else None,
        b=b if b.ndim == 2 else b.reshape(-1, *b.shape[-2:])[0] if b.size else None,
    )
