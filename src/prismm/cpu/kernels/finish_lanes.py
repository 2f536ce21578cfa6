"""The loops of `finish` over a block of entries, eight at a time in registers: expansions, rounding, tests.

C' = h + m + t as in `expansion.expand`. Of two limbs h + m is all of C', in units of a third limb. Of three, x0·2^80,
x1·2^40 and x2, with |x1|, |x2| <= 2^39, are multiples of 2^80, 2^40 and 1, so the first sum is exact as in `expand`,
and its error b a multiple of 2^40. If a is 0, so is b. Otherwise |a| >= 2^40 exceeds b + x2, so the last sum is exact
too; what it leaves, m, is 0 or a multiple of ulp(b + x2), which is at least twice t.

Where a float32 rounding is tested, the ends of the interval are scaled by adding to their exponents, so by exactly
2^(unit - shift). A lane whose ends leave float64's range so differs in sign from the other end, or is no number, and
fails the test; what fails is decided by exact arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device
from prismm.cpu.kernels.lanes import (
    INTS,
    Lanes,
    everywhere,
    fast_two_sum,
    float_at,
    fma,
    load,
    loop,
    number,
    power_of_two,
    two_sum,
)

_BYTES = 64
"""Bytes of eight lanes."""


def expanded(limbs: list[Lanes], product: list[Lanes], quotient: list[Lanes], radix: Any) -> list[Lanes]:
    """h, m, t from two to five limbs."""
    b = limbs[0].b
    up, down = power_of_two(b, radix), power_of_two(b, b.sub(number(0), radix))
    q = -fma(limbs[0], quotient[0], limbs[1] * quotient[1]).rint()
    x = [fma(q, p, s) for p, s in zip(product, limbs, strict=True)]
    for place in range(len(x) - 1, 0, -1):
        carry = (x[place] * down).rint()
        x[place] = fma(-carry, up, x[place])
        x[place - 1] = x[place - 1] + carry
    high, low = fast_two_sum(x[0] * (up * up), x[1] * up)
    if len(x) == 2:
        return [high, low, Lanes(b, low._like(0.0))]
    low, rest = two_sum(low, x[2])
    if len(x) == 3:
        return [*fast_two_sum(high, low), rest]
    rest, last = two_sum(rest, x[3] * down)
    last = last + x[4] * (down * down) if len(x) == 5 else last
    high, low = fast_two_sum(high, low)
    low, rest = fast_two_sum(low, rest)
    rest, last = fast_two_sum(rest, last)
    high, low = fast_two_sum(high, low)
    low, rest = fast_two_sum(low, rest)
    high, low = fast_two_sum(high, low)
    return [high, low, rest + last]


def _expansion(limbs: int) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        sums, width, radix, product, quotient, work, row, eights = args
        p = [float_at(b, product, 8 * x) for x in range(limbs)]
        i = [float_at(b, quotient, 8 * x) for x in range(2)]

        def body(index: Any, total: Any) -> Any:
            place = b.mul(index, number(_BYTES))
            s = [load(b, b.add(sums, b.add(b.mul(width, number(x)), place))) for x in range(limbs)]
            for x, value in enumerate(expanded(s, p, i, radix)):
                value.store(b.add(work, b.add(b.mul(row, number(x)), place)))
            return total

        loop(b, eights, body)
        return context.get_dummy_value()

    @intrinsic
    def emit(
        typingctx: Any, sums: Any, width: Any, radix: Any, product: Any, quotient: Any, work: Any, row: Any, eights: Any
    ) -> Any:
        address, count = types.uintp, types.intp
        return types.void(address, count, count, address, address, address, count, count), codegen

    return emit


_expand2, _expand3, _expand4, _expand5 = (_expansion(limbs) for limbs in (2, 3, 4, 5))


@device
def expand_strip(sums, limbs, radix, product, quotient, work, w):
    """h, m and t (rows 0, 1, 2 of `work`) of a strip of w entries from their limbs; whole eights are read and
    written.
    """
    s, width = np.uint64(sums.ctypes.data), sums.strides[0]
    p, i = np.uint64(product.ctypes.data), np.uint64(quotient.ctypes.data)
    given = s, width, radix, p, i, np.uint64(work.ctypes.data), work.strides[0], (w + 7) // 8
    # The number of limbs is a constant of each intrinsic, so that all of them stay in registers.
    if limbs == 2:
        _expand2(*given)
    elif limbs == 3:
        _expand3(*given)
    elif limbs == 4:
        _expand4(*given)
    else:
        _expand5(*given)


class _Strip:
    """Eight entries h + m + t in registers, what is known of their row and columns, and how they are rounded."""

    def __init__(self, b: Any, h: Lanes, m: Lanes, t: Lanes, move: Lanes) -> None:
        self.b, self.h, self.m, self.t, self.move = b, h, m, t, move
        self.moved = ((h.bits() >> 52) & 0x7FF) + move
        self.nonzero = h.differs(0.0)

    def rounded(self, precision: int) -> tuple[Lanes, Lanes]:
        """h·2^move and a mask `hard`: as `finish.store_plain`, or for float32 `store_odd`."""
        h, m, t = self.h, self.m, self.t
        bits = h.bits()
        if precision == 53:
            tie = t.differs(0.0) & (h + m * (1.0 + 2.0**-50)).differs(h)
            hard = ((self.moved < 1) | (self.moved > 2044) | tie) & self.nonzero
            value = bits + (self.move << 52)
        else:
            rest = m.differs(0.0).where(m, t)
            outward = (rest > 0.0).equals(h > 0.0)
            one = bits - bits + 1
            step = outward.where(one, bits - bits - 1)
            step = (rest.differs(0.0) & (bits & 1).equals(0)).where(step, bits - bits)
            hard = ((self.moved < 2) | (self.moved > 1148)) & self.nonzero
            value = bits + step + (self.move << 52)
        # Zero has no exponent field to add to.
        return self.nonzero.where(value, bits - bits).floats(), hard

    def rounding_fails(self, e: Lanes, precision: int) -> Lanes:
        """Where some number within e of h + m + t may round elsewhere: `finish.test_rounding`, `test_rounding32`."""
        h, m, t = self.h, self.m, self.t
        err = fma(e, 1.0 + 2.0**-45, fma(t.magnitude(), 2.0, m.magnitude() * 2.0**-50))
        if precision == 53:
            # Without error or rest h is right even on a tie: a margin would have those fail.
            err = (e.equals(0.0) & t.equals(0.0)).where(0.0, err)
            return ~((h + (m + err)).equals(h) & (h + (m - err)).equals(h))
        low, high = h + (m - err), h + (m + err)
        low, high = low - low.magnitude() * 2.0**-51, high + high.magnitude() * 2.0**-51
        ends = [(end.bits() + (self.move << 52)).floats().singles() for end in (low, high)]
        same = ends[0].equals(ends[1]) & (low > 0.0).equals(high > 0.0)
        return ~same & e.differs(0.0)

    def magnitude_fails(self, e: Lanes, kappa: Lanes) -> Lanes:
        """Unless |h| >= kappa·e or e is 0: one product, so the same decision on every engine."""
        # A bound of 0 passes whatever kappa is: times an infinite one it is no number.
        scaled = e * kappa
        return (self.h.magnitude() < scaled) | (scaled.differs(scaled) & e.differs(0.0))

    def reaches(self, e: Lanes, bound: Lanes, top: int) -> Lanes:
        """Where some number within `bound` may overflow: |h| + e in the top two binades or beyond."""
        reach = (self.h.magnitude() + e).bits()
        return ((((reach >> 52) & 0x7FF) + self.move) > top) & bound.differs(0.0)


def _test(mode: int, precision: int) -> Any:
    """Rows of entries, `pitch` apart: see `test_block`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        (work, line, unit, row_shifts, row_terms, row_line, rows, shifts, columns, column_line, terms, kappa, flags,
         flag_line, eights, pitch, out, out_line) = args  # fmt: skip
        terms, kappa = everywhere(b, terms), everywhere(b, kappa)
        unit_bound = power_of_two(b, b.sub(number(0), unit))

        def row(r: Any, found: Any) -> Any:
            here = b.mul(r, number(8))
            n1a, da, n2a, fa = (
                float_at(b, b.add(row_terms, b.add(here, b.mul(row_line, number(x)))), 0) for x in range(4)
            )  # fmt: skip
            row_shift = b.load(b.inttoptr(b.add(row_shifts, here), INTS.element.as_pointer()))
            far = everywhere(b, b.sub(unit, row_shift))
            first = b.mul(r, pitch)

            def body(index: Any, total: Any) -> Any:
                of_columns = b.mul(index, number(_BYTES))
                place = b.add(b.mul(first, number(8)), of_columns)

                def at(x: int) -> Any:
                    return b.add(work, b.add(b.mul(line, number(x)), place))

                h, m, t = (load(b, at(x)) for x in range(3))
                strip = _Strip(b, h, m, t, far - load(b, b.add(shifts, of_columns), INTS))
                value, hard = strip.rounded(precision)
                fail, bound = hard & ~hard, Lanes(b, h._like(0.0))
                if mode:
                    n1b, db, n2b, fb = (
                        load(b, b.add(columns, b.add(b.mul(column_line, number(x)), of_columns))) for x in range(4)
                    )  # fmt: skip
                    e1 = fma(fa, n1b, fb * n1a) + fa * fb * terms
                    e2 = fma(da, n2b, (n2a + da) * db) * (1.0 + 2.0**-40)
                    bound = (e2 < e1).where(e2, e1)
                    # Bounds are in units of C', the expansion in those of the third limb.
                    e = bound * unit_bound
                    if mode == 1:
                        fail = strip.rounding_fails(e, precision)
                    else:
                        fail = strip.magnitude_fails(e, kappa)
                        hard = hard | strip.reaches(e, bound, 2044 if precision == 53 else 1148)
                bound.store(at(3))
                value.store(at(4))
                size = 8 if precision == 53 else 4
                stored = b.add(b.add(out, b.mul(r, out_line)), b.mul(index, number(8 * size)))
                (value if precision == 53 else value.singles()).store(stored, size)
                flag = b.add(b.add(flags, first), b.mul(index, number(8)))
                hard.store(flag, 1)
                fail.store(b.add(flag, flag_line), 1)
                # One number tells the caller whether any flag is worth reading.
                return b.or_(total, (hard | fail).any())

            return b.or_(found, loop(b, eights, body))

        return loop(b, rows, row)

    @intrinsic
    def emit(
        typingctx: Any, work: Any, line: Any, unit: Any, row_shifts: Any, row_terms: Any, row_line: Any, rows: Any,
        shifts: Any, columns: Any, column_line: Any, terms: Any, kappa: Any, flags: Any, flag_line: Any, eights: Any,
        pitch: Any, out: Any, out_line: Any,
    ) -> Any:  # fmt: skip
        address, count, real = types.uintp, types.intp, types.float64
        kinds = (address, count, count, address, address, count, count, address, address, count, real, real)
        return types.int64(*kinds, address, count, count, count, address, count), codegen

    return emit


_plain53, _plain24, _rounding53, _rounding24, _magnitude53, _magnitude24 = (
    _test(mode, precision) for mode in range(3) for precision in (53, 24)
)


@device
def _tested(
    mode, precision, work, line, unit, row_shifts, row_terms, row_line, rows, shifts, columns, column_line, terms,
    kappa, flags, flag_line, eights, pitch, out, out_line,
):  # fmt: skip
    """The intrinsic of a mode and a precision."""
    given = (
        work, line, unit, row_shifts, row_terms, row_line, rows, shifts, columns, column_line, terms, kappa, flags,
        flag_line, eights, pitch, out, out_line,
    )  # fmt: skip
    # Mode and precision are constants of each intrinsic: no branch is left in its loop.
    if mode == 0:
        return _plain53(*given) if precision == 53 else _plain24(*given)
    if mode == 1:
        return _rounding53(*given) if precision == 53 else _rounding24(*given)
    return _magnitude53(*given) if precision == 53 else _magnitude24(*given)


@device
def test_block(
    work, edge, unit, i, rows, j0, w, pitch, row_shift, column_shift, row_terms, column_terms, terms, mode, kappa,
    precision, flags, out, out_line,
):  # fmt: skip
    """Value, bound (rows 4 and 3 of `work`) and flags `hard`, `fail` of the entries from (i, j0) on, `rows` rows of w,
    from their h, m, t (rows 0 to 2), a row of entries `pitch` after the other: see `finish.finish_block`. Returns 0
    where no flag is set, of entries beyond w too. Values are also stored at `out`, in the precision of the result, a
    row `out_line` bytes after the other, whole eights of them.

    Columns are read in eights; the last few from copies in rows 5 to 8 of `work` and in `edge`.
    """
    place, line = np.int64(work.ctypes.data), work.strides[0]
    flag, flag_line = np.int64(flags.ctypes.data), flags.strides[0]
    of_rows = (
        np.uint64(row_shift.ctypes.data + 8 * i), np.uint64(row_terms.ctypes.data + 8 * i), row_terms.strides[0],
        np.int64(rows),
    )  # fmt: skip
    full = w // 8
    eight = 64 if precision == 53 else 32
    found = np.int64(0)
    if full > 0:
        shifts, columns = column_shift.ctypes.data + 8 * j0, column_terms.ctypes.data + 8 * j0
        found = _tested(
            mode, precision, np.uint64(place), line, unit, *of_rows, np.uint64(shifts), np.uint64(columns),
            column_terms.strides[0], terms, kappa, np.uint64(flag), flag_line, full, pitch, out, out_line,
        )  # fmt: skip
    if w > 8 * full:
        for j in range(8):
            inside = min(j0 + 8 * full + j, column_shift.size - 1)
            edge[0, j] = column_shift[inside]
            for x in range(4):
                work[5 + x, j] = column_terms[x, inside]
        rest = out + np.uint64(full * eight)
        found |= _tested(
            mode, precision, np.uint64(place + 64 * full), line, unit, *of_rows, np.uint64(edge.ctypes.data),
            np.uint64(place + 5 * line), line, terms, kappa, np.uint64(flag + 8 * full), flag_line, 1, pitch,
            rest, out_line,
        )  # fmt: skip
    return found
