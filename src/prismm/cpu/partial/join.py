"""From the digits of all pieces to the result: joined and rounded once, certified as on one device; uncertified
entries are decided by the sums of `recompute`.

    joined = join(digits, rows, columns, setting, workers)
    joined.certify(Σ magnitudes of joined.to_certify())
    for asked in joined.to_multiply_again(extents): joined.take(asked, *joined.join_again(asked, Σ more.answers))
    for asked in joined.to_recompute(extents): joined.recompute(asked, Σ exact_sums of asked)
    for asked in joined.to_compare(extents): joined.compare(asked, Σ exact_sums of asked)

A `Joined` has no operand. It is the same wherever it is made, and may be sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.accuracy import MAGNITUDE, RAW, ROUNDING
from prismm.core.bounds import ResidueBound, RoundedBound
from prismm.core.outcome import Epilogue, Job, Outcome, real_parts
from prismm.core.scales import Scales
from prismm.core.special_values import Special, patch_values
from prismm.core.specials import patch_addend
from prismm.cpu.entries import Entries
from prismm.cpu.partial import more, recompute
from prismm.cpu.partial.more import Again, Answer
from prismm.cpu.partial.recompute import ExactRequest
from prismm.cpu.partial.setting import Setting
from prismm.cpu.repair import certified
from prismm.cpu.residues.multiply import entries_near_overflow, keep_finite, uncertified_entries
from prismm.cpu.residues.product import Product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Extents = tuple[NDArray[np.int64], NDArray[np.int64]]
    """Of the rows and columns of all pieces: `scales.extents`, combined."""

PANEL_BYTES = 8 << 20
"""Bytes of the digits of a panel of rows, in int32."""

ROUND_BYTES = 32 << 20
"""Bytes of exact sums that are asked for at a time."""


class _DigitsProduct(Product):
    """A product whose residues are there: it only joins."""

    def run_join(
        self, residues: Any, block: Any, products: list[NDArray[Any]], head: tuple[Any, ...],
        stores: list[tuple[NDArray[Any], ...]],
    ) -> list[int]:  # fmt: skip
        """Each real part has digits of its own."""
        from prismm.cpu.kernels import join

        system = self.splitter.system
        tables = (
            system.limbs, system.digit_split, system.modulus, system.reciprocal, system.weights, system.product,
            system.quotient,
        )  # fmt: skip
        counts = []
        for digits, store in zip(products, stores, strict=True):
            if system.limbs <= 4:
                counts.append(int(join.join_fused(digits, *tables, *head, *store)))
            else:
                counts.append(int(join.join_int32(digits, digits, digits, join.REAL, *tables, *head, *store)))
        return counts


@dataclass
class Joined:
    """A result and its entries that are still to be decided.

    Attributes:
        out: (m, n), the result.
        setting: of the product.
        rows, columns: their scales.
        uncertified: entries without a certificate.
        masks: of each real part, where gemm's C has Inf or NaN.
        outcome: entries by path.
        epilogue: of gemm, or None.
        workers: threads.
        tried: whether products were tried on the uncertified entries before, so that only their exact sums can help.
    """

    out: NDArray[Any]
    setting: Setting
    rows: Scales
    columns: Scales
    uncertified: list[Entries]
    masks: list[NDArray[np.bool_]]
    outcome: Outcome
    epilogue: Epilogue | None = None
    workers: int = 1
    tried: bool = False

    @property
    def job(self) -> Job:
        """The job of the join."""
        return self.setting.job(self.workers, self.epilogue)

    @property
    def _plain(self) -> bool:
        return self.epilogue is None or self.epilogue.trivial

    def to_certify(self) -> list[Entries]:
        """Entries whose magnitudes may certify them: of AB alone, for targets relative to |a||b|."""
        wanted = self.setting.levels and self._plain and not self.tried
        return [each for each in self.uncertified if each.i.size] if wanted else []

    def certify(self, sums: NDArray[np.int64]) -> None:
        """Certify by the sums of all pieces' `recompute.magnitudes` of `to_certify`; the rest stays uncertified."""
        start, left = 0, []
        for each in self.to_certify():
            total, hits = np.ascontiguousarray(sums[:, start : start + each.i.size])
            start += each.i.size
            target = real_parts(self.out)[each.part]
            hit = (hits > 0).astype(np.uint8)
            done = certified(each, total, hit, target, self.setting.terms, self.job, (self.rows, self.columns))
            self.outcome.count("magnitude", int(done.sum()))
            left.append(each.keep(~done))
        if start:
            self.uncertified = left

    def to_multiply_again(self, extents: Extents) -> list[Again]:
        """Rows and columns that are multiplied again by more moduli; of gemm where no factor mixes real parts."""
        parts, scales, found = real_parts(self.out), (self.rows, self.columns), list[Again]()
        for each in () if self.tried else self.uncertified:
            if not more.pays(each.i.size, self.setting):
                continue
            summed = self._summed(each.part)
            if summed is not None:
                asked = more.choose(each, parts[each.part], scales, extents, self.setting, summed.power)
                found += [] if asked is None else [asked]
        return found

    def _summed(self, part: int) -> more.Sum | None:
        if self._plain:
            return more.Sum()
        assert self.epilogue is not None
        return more.Sum.of(self.epilogue, part, self.setting.parts)

    def join_again(self, asked: Again, answer: Answer) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values of rows and columns from the answers of all pieces to a request of `to_multiply_again`, or to some of
        its rows; and which of them are not proved.
        """
        summed = self._summed(asked.part)
        assert summed is not None
        return more.join(answer, asked, (self.rows, self.columns), self.setting, summed, self.workers)

    def take(self, asked: Again, value: NDArray[Any], failed: NDArray[np.bool_]) -> None:
        """Set the entries of a whole request to `join_again`'s values. Entries that are not proved stay uncertified."""
        rows, columns = np.full(self.out.shape[0], -1), np.full(self.out.shape[1], -1)
        rows[asked.rows], columns[asked.columns] = np.arange(asked.rows.size), np.arange(asked.columns.size)
        for number, each in enumerate(self.uncertified):
            if each.part != asked.part:
                continue
            i, j = rows[each.i], columns[each.j]
            here = (i >= 0) & (j >= 0)
            proved = here.copy()
            proved[here] = ~failed[i[here], j[here]]
            real_parts(self.out)[each.part][each.keep(proved).place] = value[i[proved], j[proved]]
            self.outcome.count("more moduli", int(proved.sum()))
            self.uncertified[number] = each.keep(~proved)

    def to_recompute(self, extents: Extents) -> list[ExactRequest]:
        """Whose exact sums are wanted, in requests of bounded size; of the scheme's own value, those of rounded
        operands.
        """
        return self.requests(self.uncertified, extents, rounded=self.setting.target is None)

    def recompute(self, asked: ExactRequest, sums: NDArray[np.int64]) -> None:
        """Set the entries of a request, from the sums of all pieces' `recompute.exact_sums`."""
        self._set(asked, sums)
        path = "value" if asked.rounded else "exact"
        self.outcome.count(path, asked.first.size)

    def near_overflow(self) -> list[Entries]:
        """Of the scheme's own value, entries that may overflow; none where there is a target."""
        if self.setting.target is not None:
            return []
        with np.errstate(all="ignore"):
            return entries_near_overflow(self.out, self.job, self._scheme_bound(), self.masks)

    def to_compare(self, extents: Extents) -> list[ExactRequest]:
        """Of the scheme's own value, entries that may overflow: the exact value says where the result is infinite."""
        return self.requests(self.near_overflow(), extents, rounded=False)

    def compare(self, asked: ExactRequest, sums: NDArray[np.int64]) -> None:
        """Keep the scheme's values in a request of `to_compare`, but where only one of them and the exact is finite."""
        before = [real_parts(self.out)[each.part][each.place] for each in asked.entries]
        self._set(asked, sums)
        for each, of_scheme in zip(asked.entries, before, strict=True):
            keep_finite(real_parts(self.out)[each.part], of_scheme, each, self.outcome)

    def finish(self) -> Outcome:
        """The outcome, with the bound of every entry."""
        rounded = self.setting.target is not None and self.setting.target.kind == "correctly-rounded"
        self.outcome.bound = RoundedBound(self.setting.result) if rounded else self._scheme_bound()
        return self.outcome

    def _scheme_bound(self) -> ResidueBound:
        weight = 1.0
        if self.epilogue is not None:
            factors = self.epilogue.factors(0, self.setting.parts)
            with np.errstate(over="ignore"):
                weight = float(abs(factors[0])) + float(abs(factors[1]))
        return ResidueBound(self.setting.result, self.rows, self.columns, self.setting.splitter.terms, weight)

    def requests(self, entries: list[Entries], extents: Extents, *, rounded: bool) -> list[ExactRequest]:
        """See `requests`."""
        return requests(entries, extents, self.setting, plain=self._plain, rounded=rounded)

    def _set(self, asked: ExactRequest, sums: NDArray[np.int64]) -> None:
        start = 0
        for each in asked.entries:
            here = slice(start, start + each.i.size)
            start += each.i.size
            factors, addends = np.ones(1), np.empty((each.i.size, 0))
            if not self._plain:
                assert self.epilogue is not None
                parts = self.setting.parts
                whole = self.epilogue.factors(each.part, parts)
                factors, c = np.concatenate([whole[:parts], whole[2 : 2 + parts]]), self.epilogue.c
                if c is None or not factors[parts:].any():
                    factors = factors[:parts]
                else:
                    addends = np.stack([x[each.place].astype(np.float64) for x in real_parts(c)], axis=1)
                    factors = factors if addends.shape[1] == parts else factors[: parts + addends.shape[1]]
            one = ExactRequest((each,), asked.first[here], asked.limbs, asked.both, asked.rounded)
            value = recompute.round_sums(sums[here], one, factors, addends, self.job)
            real_parts(self.out)[each.part][each.place] = value


def requests(
    entries: list[Entries], extents: Extents, setting: Setting, *, plain: bool, rounded: bool
) -> list[ExactRequest]:
    """Requests to the pieces for some entries, of bounded size. plain: whether no factors or C of gemm enter."""
    if not any(each.i.size for each in entries):
        return []
    asked = recompute.request(entries, *extents, setting, both=not plain and setting.is_complex, rounded=rounded)
    return asked.cut(ROUND_BYTES)


def join(
    digits: NDArray[np.int8], rows: Scales, columns: Scales, setting: Setting, *, specials: list[Special] | None = None,
    epilogue: Epilogue | None = None, workers: int = 1,
) -> Joined:  # fmt: skip
    """The result from the combined digits (parts, moduli, m, n) of all pieces.

    Args:
        digits: of all pieces, by `residues.add`.
        rows, columns: `scales.scales` of all pieces.
        setting: of the product.
        specials: `specials.values`, where rows or columns hold Inf or NaN.
        epilogue: alpha, beta and C of gemm; C of the result's shape.
        workers: threads.
    """
    m, n = digits.shape[2:]
    out, outcome = np.empty((m, n), setting.dtype), Outcome()
    job = setting.job(workers, epilogue)
    work = _DigitsProduct(setting.splitter, job, outcome)
    step = max(1, PANEL_BYTES // max(1, 4 * setting.entry_bytes * n))
    nothing = np.empty((0, 0), np.int8)

    def panel(i0: int) -> None:
        i1 = min(m, i0 + step)
        products = [np.ascontiguousarray(part[:, i0:i1], np.int32) for part in digits]
        operands = (nothing, nothing, rows.block(i0, i1), columns)
        work.join_tile(operands, products, real_parts(out[i0:i1]), (i0, i1, 0, n), 0)

    if out.size:
        threads.spread(panel, list(range(0, m, step)), workers)
    outside = np.empty((0, 0), np.bool_)
    if epilogue is not None:
        outside = rows.nonfinite[:, None] | columns.nonfinite[None, :]
    masks, special = patch_addend(out, epilogue, outside)
    special += patch_values(out, specials or [], epilogue)
    outcome.count("special", special)
    entries = uncertified_entries(work, rows, columns, masks)
    uncertified = sum(each.i.size for each in entries)
    outcome.count("value" if work.mode == RAW else "certified", out.size * setting.parts - special - uncertified)
    assert work.mode in (RAW, ROUNDING, MAGNITUDE)
    return Joined(out, setting, rows, columns, entries, masks, outcome, epilogue, workers)
