"""The join against Python integers: any C', rounded once, and certificates that never claim too much."""

from fractions import Fraction

import numpy as np
import pytest

from prismm.core.moduli import residue_system
from prismm.cpu.kernels import join as join_kernels
from prismm.formats import round_fraction
from tests.cpu.kernels import panels
from tests.cpu.kernels.harness import (
    CROSS,
    DIFFERENCE,
    FORMATS,
    KINDS,
    MAGNITUDE,
    PAIR,
    RAW,
    REAL,
    ROUNDING,
    call,
    differing,
    encode,
    exact_power,
    hostile_integers,
    join,
    largest_product,
    rn,
    same_bits,
)

precisions = pytest.mark.parametrize("precision", [53, 24])
kinds = pytest.mark.parametrize("kind", KINDS)


def expected(values, shifts, precision):
    return [round_fraction(FORMATS[precision], v, -int(s)) for v, s in zip(values, shifts, strict=True)]


def edges(values, precision, rng):
    """Shifts that put values among the subnormals, at the smallest normal, at the largest values and between."""
    fmt = FORMATS[precision]
    shifts = []
    for v in values:
        size = v.bit_length()
        where = int(rng.integers(0, 4))
        if where == 0:
            binade = fmt.subnormal_exponent + int(rng.integers(-3, precision + 3))
        elif where == 1:
            binade = fmt.maxexp - int(rng.integers(-1, 3))
        else:
            binade = int(rng.integers(fmt.minexp, fmt.maxexp))
        shifts.append(size - binade)
    return np.array(shifts)


@pytest.mark.covering
@precisions
@kinds
@pytest.mark.parametrize("part", [REAL, DIFFERENCE, CROSS])
def test_every_system_rounds_the_exact_integer_once(part, kind, precision, rng):
    checked = 0
    for moduli in range(2, 23):
        system = residue_system(moduli, KINDS[kind])
        values = hostile_integers(largest_product(moduli), rng, 120 if part == REAL else 60)
        shifts = edges(values, precision, rng)
        out, _, listed = join(system, values, shifts, rng, kind=kind, part=part, precision=precision)
        wanted = expected(values, shifts, precision)
        assert same_bits(out, wanted), (moduli, [(values[i], g, w) for i, g, w in differing(out, wanted)])
        assert not listed
        checked += len(values)
    assert checked > 1500


@precisions
@kinds
@pytest.mark.parametrize("moduli", [2, 9, 15, 20, 22])
def test_midpoints_and_their_neighbours(moduli, kind, precision, rng):
    """(2M+1)·2^s ± 1 for all s, M even and odd: the remainder is half an ulp, or differs by the last bit."""
    limit = largest_product(moduli)
    values = []
    for s in range(limit.bit_length() - precision):
        for m in ((1 << precision) - 1, 1 << (precision - 1), int(rng.integers(1 << (precision - 1), 1 << precision))):
            values += [sign * (((2 * m + 1) << s) + d) for d in (-1, 0, 1) for sign in (1, -1)]
    values = [v for v in values if abs(v) <= limit] or [1]
    out, _, _ = join(residue_system(moduli, KINDS[kind]), values, 0, rng, kind=kind, precision=precision)
    assert same_bits(out, expected(values, np.zeros(len(values)), precision))
    if limit.bit_length() > precision + 2:
        assert len(values) > 20


@kinds
def test_strips_and_rows_of_any_length(kind, rng):
    system = residue_system(15, KINDS[kind])
    for n in (1, 2, 255, 256, 257, 600):
        values = [int(rng.integers(-(2**62), 2**62)) * int(rng.integers(1, 2**40)) for _ in range(n)]
        out, _, _ = join(system, values, 7, rng, kind=kind)
        assert same_bits(out, expected(values, np.full(n, 7), 53))


@kinds
@pytest.mark.parametrize("moduli", [2, 7, 15, 22])
def test_pairs_hold_the_integer_to_twice_the_precision(moduli, kind, rng):
    system = residue_system(moduli, KINDS[kind])
    values = hostile_integers(largest_product(moduli), rng, 400)
    high, low, _ = join(system, values, 0, rng, kind=kind, mode=PAIR)
    unit = exact_power(40 * (system.limbs - 3))
    for v, h, rest in zip(values, high, low, strict=True):
        pair = (Fraction(h) + Fraction(rest)) * unit
        assert abs(pair - v) <= abs(v) * exact_power(-105), (v, h, rest)
        assert abs(Fraction(rest)) <= abs(Fraction(h)) * exact_power(-52)


def interval(v, e, s):
    return Fraction(v) * exact_power(-s) - Fraction(e) * exact_power(-s), (Fraction(v) + Fraction(e)) * exact_power(-s)


@pytest.mark.covering
@precisions
@kinds
@pytest.mark.parametrize("moduli", [3, 8, 12, 15, 18, 20, 22])
def test_a_decided_rounding_is_decided(moduli, kind, precision, rng):
    """Not listed: both ends of the interval round alike. Listed: a slightly wider interval holds two roundings."""
    fmt = FORMATS[precision]
    system = residue_system(moduli, KINDS[kind])
    values = hostile_integers(largest_product(moduli), rng, 500)
    shifts = edges(values, precision, rng)
    relative = rng.choice([0.0, 2.0**-70, 2.0**-58, 2.0**-54, 2.0**-40, 2.0**-26, 2.0**-10, 2.0], len(values))
    bounds = np.array(
        [float(abs(v)) * r * x for v, r, x in zip(values, relative, rng.random(len(values)), strict=True)]
    )
    some = rng.random(len(values)) < 0.2
    bounds[some] = rng.integers(1, 9, some.sum()) / 4
    out, _, listed = join(system, values, shifts, rng, kind=kind, precision=precision, mode=ROUNDING, bounds=bounds)
    assert same_bits(out, expected(values, shifts, precision))
    decided = 0
    for j, (v, e, s) in enumerate(zip(values, bounds, shifts, strict=True)):
        low, high = interval(v, e, int(s))
        if j not in listed:
            assert same_bits(rn(low, fmt), rn(high, fmt)), (v, e, s)
            decided += e > 0
        else:
            slack = abs(Fraction(v)) * exact_power(-100 if precision == 53 else -48)
            low, high = interval(v, Fraction(e) * (1 + exact_power(-20)) + slack, int(s))
            assert not same_bits(rn(low, fmt), rn(high, fmt)) or low <= 0 <= high, (v, e, s)
    assert decided > len(values) // 20 and len(listed) > len(values) // 20


@precisions
@kinds
def test_bounds_that_just_reach_a_midpoint(kind, precision, rng):
    """C' next to a midpoint by d, with bounds of d and its neighbours: at most one float's difference decides."""
    moduli = 15
    fmt = FORMATS[precision]
    system = residue_system(moduli, KINDS[kind])
    values, bounds = [], []
    for _ in range(300):
        s = int(rng.integers(4, 47))
        middle = (2 * int(rng.integers(1 << (precision - 1), 1 << precision)) + 1) << s
        d = int(rng.integers(1, 1 << int(rng.integers(1, s))))
        for bound in (d, np.nextafter(d, 0.0), np.nextafter(d, np.inf), d * (1 - 2.0**-30), d * (1 + 2.0**-30)):
            values.append(int(rng.choice([-1, 1])) * (middle + int(rng.choice([-1, 1])) * d))
            bounds.append(float(bound))
    out, _, listed = join(system, values, 0, rng, kind=kind, precision=precision, mode=ROUNDING, bounds=bounds)
    assert same_bits(out, expected(values, np.zeros(len(values)), precision))
    for j, (v, e) in enumerate(zip(values, bounds, strict=True)):
        if j not in listed:
            low, high = interval(v, e, 0)
            assert rn(low, fmt) == rn(high, fmt), (v, e)
    if precision == 53:
        assert len(listed) < len(values), "bounds 2^-30 short of the midpoint leave nothing open"


@kinds
def test_an_interval_around_zero_is_open(kind, rng):
    """Not even where all of it rounds to zero: the sign of zero is then unknown."""
    system = residue_system(15, KINDS[kind])
    values = [0, 1, -1, 5, -5]
    for precision, shift in ((53, 1200), (24, 400)):
        _, _, listed = join(
            system,
            values,
            shift,
            rng,
            kind=kind,
            precision=precision,
            mode=ROUNDING,
            bounds=np.full(5, 6.0),
        )
        assert listed == set(range(5))
        _, _, listed = join(
            system,
            values,
            shift,
            rng,
            kind=kind,
            precision=precision,
            mode=ROUNDING,
            bounds=np.full(5, 0.5),
        )
        assert listed == {0}


@precisions
@kinds
def test_the_magnitude_test_is_one_product_of_floats(kind, precision, rng):
    system = residue_system(15, KINDS[kind])
    values = [int(rng.integers(-(2**62), 2**62)) << int(rng.integers(0, 30)) for _ in range(1000)]
    kappa = 1e6 / 3
    size = np.array([abs(float(v)) for v in values])
    bounds = size / kappa * (1.0 + rng.integers(-3, 4, len(values)) * 2.0**-52)
    bounds[::7] = size[::7] * 2.0**-53
    bounds[::11] = 0.0
    out, _, listed = join(
        system, values, 0, rng, kind=kind, precision=precision, mode=MAGNITUDE, bounds=bounds, kappa=kappa
    )
    assert same_bits(out, expected(values, np.zeros(len(values)), precision))
    assert listed == set(np.flatnonzero(size < bounds * kappa).tolist())
    assert 100 < len(listed) < 900


@precisions
def test_infinite_kappa_passes_exact_entries_only(precision, rng):
    system = residue_system(15, 256)
    _, _, listed = join(
        system,
        [5, 0, 5, 0],
        0,
        rng,
        kind="int8",
        precision=precision,
        mode=MAGNITUDE,
        bounds=[0, 0, 1e-30, 1e-30],
        kappa=np.inf,
    )
    assert listed == {2, 3}


@precisions
@kinds
def test_an_undecided_overflow_is_listed(kind, precision, rng):
    """In the top binade: listed exactly where one end of the interval overflows and the other does not."""
    fmt = FORMATS[precision]
    system = residue_system(20, KINDS[kind])
    threshold = (1 << (precision + 1)) - 1  # max + ulp/2, times a power of two
    values, bounds, shifts = [], [], []
    for _ in range(400):
        s = int(rng.integers(8, 60))
        d = int(rng.integers(-(1 << s), 1 << s))
        values.append(int(rng.choice([-1, 1])) * ((threshold << s) + d))
        bounds.append(float(abs(d)) * rng.choice([0.0, 0.5, 0.999, 1.001, 2.0]))
        shifts.append(values[-1].bit_length() - fmt.maxexp)
    shifts = np.array(shifts)
    for mode in (MAGNITUDE, ROUNDING):
        out, _, listed = join(
            system,
            values,
            shifts,
            rng,
            kind=kind,
            precision=precision,
            mode=mode,
            bounds=bounds,
            kappa=1.5,
        )
        assert same_bits(out, expected(values, shifts, precision))
        split = set()
        for j, (v, e, s) in enumerate(zip(values, bounds, shifts, strict=True)):
            ends = [np.isinf(rn(x, fmt)) for x in interval(v, e, int(s))]
            if ends[0] != ends[1]:
                split.add(j)
        assert split <= listed
        if mode == MAGNITUDE:
            assert listed == split
        assert 50 < len(split) < 350


def test_pigeonhole_certificates_follow_the_counts(rng):
    """An entry that |C'| leaves open passes exactly where the counts of large elements prove |a||b| large enough."""
    system = residue_system(15, 256)
    levels, k, n = 8, 100, 400
    row_counts = np.sort(rng.integers(0, k + 1, (1, levels)), axis=1)
    column_counts = np.sort(rng.integers(0, k + 1, (n, levels)), axis=1)
    row_power, column_power = np.array([57]), rng.integers(20, 58, n)
    kappa = 1e3
    bounds = np.ldexp(rng.random(n), rng.integers(20, 120, n))
    bounds[:5] = 0.0
    _, _, listed = join(
        system, [0] * n, 0, rng, kind="int8", mode=MAGNITUDE, bounds=bounds, kappa=kappa, row_counts=row_counts,
        column_counts=column_counts, row_power=row_power, column_power=column_power, k=k,
    )  # fmt: skip
    wanted = set()
    for j in range(n):
        best = max(
            max(0, int(row_counts[0, p] + column_counts[j, r]) - k) * exact_power(57 + int(column_power[j]) - 2 - p - r)
            for p in range(levels)
            for r in range(levels)
        )
        if bounds[j] and Fraction(bounds[j] * kappa) > best:
            wanted.add(j)
    assert listed == wanted
    assert 20 < len(wanted) < n - 20


@pytest.mark.covering
@precisions
@pytest.mark.parametrize("mode", [RAW, ROUNDING, MAGNITUDE, PAIR])
@pytest.mark.parametrize("moduli", [5, 9, 15, 19, 22])
@pytest.mark.parametrize("shape", [(1, 1), (9, 31), (50, 70), (97, 33)])
def test_rows_of_panels_are_joined_as_rows(shape, moduli, mode, precision, rng):
    """Blocks of rows by 32 columns, cut short at either end, each row and column with its own scale and bound."""
    m, n = shape
    system = residue_system(moduli, 256)
    values = rng.choice(np.array(hostile_integers(largest_product(moduli), rng, 300), object), m * n)
    products = np.concatenate(
        [encode(system, list(row), REAL, rng, False)[0] for row in values.reshape(m, n)], axis=1
    )  # fmt: skip
    size = largest_product(moduli).bit_length()
    spread = FORMATS[precision].maxexp // 2 + 40
    rows, columns = rng.random((4, m)) * 2.0 ** rng.integers(-90, 10, m), rng.random((4, n))
    rows[2:, rng.random(m) < 0.3] = 0.0
    rows[:2, rng.random(m) < 0.3] = 0.0
    given = {
        "c": products, "limbs": system.limbs, "split": system.digit_split, "modulus": system.modulus, "part": REAL,
        "reciprocal": system.reciprocal, "weights": system.weights, "product": system.product,
        "quotient": system.quotient, "row_shift": size // 2 + rng.integers(-spread, spread, m),
        "column_shift": size // 2 + rng.integers(-spread, spread, n), "row_terms": rows, "column_terms": columns,
        "terms": 3.0, "row_power": np.full(m, 60), "column_power": np.full(n, 60),
        "row_counts": rng.integers(0, 20, (m, 5)), "column_counts": rng.integers(0, 20, (n, 5)), "k": 20, "mode": mode,
        "kappa": 2.0**20, "magnitude_kappa": 2.0**30, "precision": precision,
        "c0": products, "c1": products, "c2": products,
    }  # fmt: skip
    given["digits"] = np.stack([panels.digits_of(products, system.moduli, rng)] * 3)
    slowly = join_kernels.join_fused if system.limbs <= 4 else join_kernels.join_int32
    found = []
    for kernel in (slowly, panels.join_panels):
        out, out32, low = np.zeros((m, n)), np.zeros((m, n), np.float32), np.zeros((m, n))
        failed = np.empty(m * n, np.int32)
        count = call(kernel, **given, out=out, out32=out32, low=low, failed=failed)
        found.append((out, out32, low, np.sort(failed[:count])))
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()
    if mode in (ROUNDING, MAGNITUDE) and m * n > 1000:
        assert 0 < found[0][3].size < m * n, "some are certified, some are not"
