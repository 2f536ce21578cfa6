"""`Slices` on a CPU: cut, multiply exactly, add in double-double with errors in the bound."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prismm.core.composite import Joined, Scaled, Setting
from prismm.core.workspace import Workspace
from prismm.cpu.composite import CompositeImplementation
from prismm.cpu.scaling import bound_of, scale
from prismm.cpu.slices.count import estimate, magnitude_weights
from prismm.cpu.slices.engines import SliceEngine, engine_for_unit, expected_for_unit, prove
from prismm.cpu.slices.products import exact_sum, multiply_slices, product_pairs
from prismm.cpu.slices.split import Sliced, cut, cut_to_the_end, held_by
from prismm.schemes.slice_layout import UNITS, expected_slices
from prismm.schemes.slices import PRECISION, Slices

_UP = 1.0 + 2.0**-40

# What high and low together may lose of a value: two bits less than twice float64's precision.
_JOIN_ERROR = 2.0**-104


def bound_terms(
    left: Sliced, right: Sliced, used: tuple[int, int], drop_above: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two outer products: (Σ_p w_p·‖A^(p)_i‖₁)·(max_p R_Q(p)(j)/w_p) and max|δA_i|·‖B_j‖₁, rounded up.

    R_Q(j) = max|B_j - first Q slices|. The weights w_p = 2^(βp) even out the terms of fast mode, where R_Q(p) rises as
    the slices fall; without it all R are the same and w_p = 1.
    """
    import numpy as np

    m, n = left.exponent.shape[1], right.exponent.shape[1]
    first = np.zeros(m)
    largest = np.zeros(n)
    for p in range(used[0]):
        multiplied = used[1] if drop_above is None else max(0, min(used[1], drop_above - p))
        weight = 0 if drop_above is None else min(left.layout.bits * p, 900)
        # Exponents below -1000 are raised to that, so that nothing underflows: the bound only grows.
        size = np.ldexp(left.magnitude[p], np.maximum(left.exponent[p], -1000 - weight).astype(np.int32) + weight)
        first += np.where(left.magnitude[p] > 0, size, 0.0)
        rest = right.remainder[multiplied]
        largest = np.maximum(largest, np.where(rest > 0, np.maximum(np.ldexp(rest, -weight), 2.0**-1070), 0.0))
    rows = np.stack([first * _UP, left.remainder[used[0]]])
    columns = np.stack([largest * _UP, right.norm * _UP])
    return rows, columns


class Implementation(CompositeImplementation):
    """`Slices` on a CPU."""

    scheme: Slices

    def engine_for(self, name: str | None) -> SliceEngine:
        """See `slice_engines.engine_for_unit`."""
        return engine_for_unit(UNITS[self.scheme.unit], name)

    def expected_engine(self) -> str:
        """See `CompositeImplementation.expected_engine`."""
        return expected_for_unit(UNITS[self.scheme.unit])

    def split(self, x: Scaled, setting: Setting) -> Sliced:
        """See `Composite.split`."""
        engine: SliceEngine = setting.engine
        layout = held_by(self.scheme.layout(x.k), engine.dtype, engine.sum_limit if self.scheme.group else None)
        empty = setting.workspace.empty if setting.workspace is not None else None
        if self.scheme.mode == "CR":
            return cut_to_the_end(x, layout, setting.workers, empty=empty)
        if self.scheme.slices is not None:
            return cut(x, layout, self.scheme.slices, setting.workers, empty=empty)
        # One slice more than even data need, by which the estimate can mostly tell.
        slices = expected_slices(layout.bits, x.k, PRECISION[self.scheme.mode]) + 1
        return cut(x, layout, slices, setting.workers, empty=empty, keep=True)

    def multiply(self, left: Sliced, right: Sliced, setting: Setting) -> Joined:
        """See `Composite.multiply`."""
        import numpy as np

        engine: SliceEngine = setting.engine
        layout = left.layout
        m, n = left.exponent.shape[1], right.exponent.shape[1]
        if not (m and n and layout.k):
            nothing = np.zeros((1, m)), np.zeros((1, n))
            return Joined(np.zeros((m, n)), None, 0.0, *nothing, 0.0, 0)
        fast = self.scheme.fast
        if self.scheme.slices is None and self.scheme.mode != "CR":
            left, right, d, ended = self._estimated(left, right, setting)
            fast = fast and not ended
            used = min(d, left.used), min(d, right.used)
        else:
            used = left.used, right.used
            d = self.scheme.slices or max(used)
        if engine.float_engine is not None:
            # A run of grouped pairs is one sum, along as many blocks as it has pairs, so that length is proved as well.
            for together in {layout.block, layout.block * layout.together}:
                prove(engine, UNITS[self.scheme.unit], layout.bits, together, self.scheme.rounding)
        pairs = product_pairs(*used, d if fast else None)
        # Slices take of the workspace first; products get a quarter of it at least, since tiny pieces would be slow.
        workspace_bytes = max(
            setting.workspace_bytes - left.nbytes - right.nbytes, setting.workspace_bytes // 4, 1 << 20
        )
        with Workspace() as workspace:
            empty = setting.workspace.empty if setting.workspace is not None else workspace.empty
            found = multiply_slices(
                left, right, pairs, engine, group=self.scheme.group, workers=setting.workers,
                workspace_bytes=workspace_bytes, empty=empty, further=setting.further,
            )  # fmt: skip
        rows, columns = bound_terms(left, right, used, d if fast else None)
        no_remainder = not columns[0].any() and not rows[1].any()
        # In CR mode every value is RN(exact) whatever the bound says, so it may depend on what was seen; elsewhere
        # it must not depend on neighbours.
        gamma = 0.0 if self.scheme.mode == "CR" and found.exact else _JOIN_ERROR
        floor = 0.0 if no_remainder and not found.underflow else 2.0**-1070
        blocks = self.scheme.layout(layout.k).blocks
        found.notes["most slices"] = max(used)
        if blocks > 1:
            found.notes["most blocks of the inner dimension"] = blocks
        if setting.workspace is not None and setting.workspace.beyond:
            found.notes["most bytes beyond the workspace"] = setting.workspace.beyond
        return Joined(
            found.high, found.low, gamma, rows, columns, floor, found.products * blocks, found.notes,
            rounds=True, rest=found.rest,
            whole=None if found.complete else partial(exact_sum, left, right, pairs), lost=found.lost,
        )  # fmt: skip

    def _estimated(self, left: Sliced, right: Sliced, setting: Setting) -> tuple[Sliced, Sliced, int, bool]:
        """Algorithm 3 on both sides; slices are added where they do not suffice to tell."""
        roundoff = math.ldexp(1.0, -PRECISION[self.scheme.mode])
        weights = magnitude_weights(left), magnitude_weights(right)
        sides = [left, right]
        found = []
        for index in (0, 1):
            estimated = estimate(sides[index], weights[1 - index], roundoff, setting.workers)
            while estimated.slices is None:
                source = sides[index].source
                assert source is not None
                more = 2 * sides[index].slices
                # All slices are made anew: what the last one left, from which one more could begin, is not kept.
                sides[index] = cut(source, sides[index].layout, more, setting.workers, keep=True)
                estimated = estimate(sides[index], weights[1 - index], roundoff, setting.workers)
            found.append(estimated)
        d = max(estimated.slices or 1 for estimated in found)
        for index in (0, 1):
            if sides[index].slices < d and not sides[index].ended:
                # The other side asked for more slices, and both sides take d.
                source = sides[index].source
                assert source is not None
                sides[index] = cut(source, sides[index].layout, d, setting.workers, keep=True)
        return sides[0], sides[1], d, found[0].ended or found[1].ended

    def bound(self, a: NDArray[Any], b: NDArray[Any], slices: int) -> NDArray[np.float64]:
        """The scheme's bound for so many slices of real rows a (m, k) and columns b (k, n), before a rounding."""
        x, e = scale(a, "left", 1)
        y, f = scale(b, "right", 1)
        layout = self.scheme.layout(x.k)
        left, right = (cut(z, layout, slices, 1) for z in (x, y))
        terms = bound_terms(left, right, (left.used, right.used), slices if self.scheme.fast else None)
        units = bound_of(0.0, *terms, 2.0**-1070, None, (e, f), x.k)
        with np.errstate(over="ignore"):
            bound = np.ldexp(units, (e.exponent[:, None] + f.exponent[None, :]).astype(np.int64))
            return np.where(units > 0.0, bound * _UP + 2.0**-1074, bound)
