"""Residues against the exact integers A' = RN(2^s·a)."""

import math
from fractions import Fraction

import numpy as np
import pytest

from prismm.core.moduli import norm_limit, residue_system
from prismm.cpu.kernels import split
from tests.cpu.kernels.harness import LARGEST, call, exact_power

sides = pytest.mark.parametrize("side", ["rows", "columns"])


def residues(x, scale, system, kind, side):
    """Residues (moduli, vectors, k) of the vectors in the rows of x, Σδ² and flags, by either kernel."""
    dtype = np.float64 if kind == "float64" else np.int8
    m, k = x.shape
    residual2, tiny = np.zeros(m), np.zeros(m, np.uint8)
    scale = np.zeros(m, np.int64) + scale
    first = 3 if side == "columns" else 0
    out = np.full((len(system.moduli), m, k) if side == "rows" else (len(system.moduli), k, m + 5), 77, dtype)
    kernel = getattr(split, f"split_{side}_{np.dtype(dtype).name}")
    table = system.left if side == "rows" else system.right
    source = np.ascontiguousarray(x if side == "rows" else x.T)
    call(
        kernel, a=source, b=source, scale=scale, part_bits=system.part_bits, c=table, q=system.modulus,
        r=system.reciprocal, bias=system.bias, start=0, first=first, out=out, residual2=residual2, tiny=tiny,
    )  # fmt: skip
    if side == "columns":
        assert (out[:, :, :first] == 77).all() and (out[:, :, first + m :] == 77).all(), "wrote beyond its columns"
        out = out[:, :, first : first + m].transpose(0, 2, 1)
    return out, residual2, tiny


def round_half_even(x):
    """RN of a Fraction to an integer."""
    low = math.floor(x)
    rest = x - low
    return low + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1))


def expected_residues(integers, system, side):
    """The symmetric representatives: [-q/2, q/2) for even q where the kernel promises that, else |r| <= q/2."""
    q_product = math.prod(system.moduli)
    for index, q in enumerate(system.moduli):
        fold = pow(q_product // q, -1, q) if side == "rows" else 1
        yield index, q, [(v * fold) % q for v in integers]


def check(x, scale, moduli, kind, side):
    system = residue_system(moduli, LARGEST[kind])
    out, residual2, tiny = residues(x, scale, system, kind, side)
    scales = np.zeros(len(x), np.int64) + scale
    for i, row in enumerate(x):
        exact = [Fraction(float(a)) * exact_power(int(scales[i])) for a in row]
        integers = [round_half_even(a) for a in exact]
        for index, q, wanted in expected_residues(integers, system, side):
            got = [int(r) for r in out[index, i]]
            assert [r % q for r in got] == wanted, (moduli, kind, side, q)
            if kind == "float64" or q % 2:
                assert max(map(abs, got), default=0) <= q // 2
            else:
                assert all(-(q // 2) <= r <= q // 2 - 1 for r in got), (q, min(got), max(got))
        square = sum(((a - v) ** 2 for a, v in zip(exact, integers, strict=True)), Fraction(0))
        flagged = any(a != 0 and abs(a) < exact_power(-300) for a in exact)
        assert bool(tiny[i]) == flagged
        measured = Fraction(float(residual2[i]))
        if not flagged:
            assert abs(measured - square) <= square * exact_power(-40)
        else:
            assert abs(measured - square) <= square * exact_power(-40) + len(row) * exact_power(-600)


@pytest.mark.covering("kind")
@sides
@pytest.mark.parametrize("kind", LARGEST)
def test_every_system_takes_the_extremes(kind, side, rng):
    """Operands at their largest, half-integers, powers of two, borders of all moduli, and random ones; every N."""
    for moduli in range(2, 23):
        top = math.isqrt(norm_limit(moduli) // 2)
        largest = float(top)
        largest = largest if int(largest) <= top else math.nextafter(largest, 0.0)
        bits = top.bit_length()
        borders = [
            m * q + d
            for q in (255, 256, 128, 127, 2**22)
            for m in (0, 1, -1, 3)
            for d in (q // 2, q // 2 + 1, -(q // 2))
        ]
        row = [0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -1.5, 2.0**-40, largest, -largest]
        row += [math.nextafter(largest, 0.0), -math.nextafter(largest, 0.0)]
        row += [sign * math.ldexp(1.0, e) for e in range(bits - 1) for sign in (1, -1)]
        row += [math.ldexp(1.0, e) - 0.5 for e in range(1, min(bits - 1, 52))]
        row += [float(b) for b in borders if abs(b) <= top]
        row += [float(x) for x in rng.uniform(-1.0, 1.0, 40) * largest]
        row += [float(x) for x in np.round(rng.uniform(-1.0, 1.0, 20) * min(largest, 2.0**51)) + 0.5 if abs(x) <= top]
        check(np.array([row, row[::-1]]), 0, moduli, kind, side)


@sides
@pytest.mark.parametrize("kind", LARGEST)
def test_a_tie_of_the_symmetric_range_takes_the_lower_end(kind, side):
    """For even q the residue q/2 is not an int8: it must come out as -q/2."""
    system = residue_system(15, LARGEST[kind])
    q = system.moduli[0]
    assert q % 2 == 0
    inverse = pow(math.prod(system.moduli) // q, -1, q)
    unfold = pow(inverse, -1, q) if side == "rows" else 1
    values = [(q // 2) * unfold % q + q * z for z in range(-40, 40)]
    out, _, _ = residues(np.array([values], np.float64), 0, system, kind, side)
    if kind == "float64":
        assert set(np.abs(out[0, 0]).tolist()) == {q // 2}
    else:
        assert set(out[0, 0].tolist()) == {-(q // 2)}


@sides
@pytest.mark.parametrize("kind", LARGEST)
def test_scales_of_any_size(kind, side, rng):
    """Subnormals scaled up by 2^1150, 2^1020 scaled down, and elements that vanish beside large ones."""
    x = rng.standard_normal((6, 40))
    rows = [
        x[0] * 2.0**-1060, x[1] * 2.0**1000, np.ldexp(x[2], rng.integers(-1070, 900, 40)), x[3] * 2.0**-1074,
        np.ldexp(x[4], rng.integers(-340, 0, 40)), x[5],
    ]  # fmt: skip
    check(np.array(rows), np.array([1100, -960, -860, 1120, 50, 53]), 15, kind, side)


@sides
@pytest.mark.parametrize("kind", LARGEST)
def test_nonfinite_rows_become_zero_and_leave_their_neighbours_alone(kind, side, rng):
    system = residue_system(15, LARGEST[kind])
    x = rng.standard_normal((5, 30))
    clean, square, _ = residues(x, 50, system, kind, side)
    dirty = x.copy()
    dirty[1, 3], dirty[3, 4] = np.inf, np.nan
    scale = np.array([50, -(1 << 20), 50, -(1 << 20), 50])
    out, residual2, _ = residues(dirty, scale, system, kind, side)
    for i in (0, 2, 4):
        assert np.array_equal(out[:, i], clean[:, i]) and residual2[i] == square[i]
    assert not out[:, [1, 3]].any()
    assert not residual2[[1, 3]].any()


def test_residuals_are_added_to_what_is_there(rng):
    """Complex data: the imaginary part's kernel call must not forget the real part's residual."""
    system = residue_system(8, 256)
    x = np.ascontiguousarray(rng.standard_normal((4, 20)))
    for side in ("rows", "columns"):
        _, once, _ = residues(x, 3, system, "int8", side)
        source = x if side == "rows" else np.ascontiguousarray(x.T)
        residual2, tiny = once.copy(), np.ones(4, np.uint8)
        out = np.empty((8, 4, 20) if side == "rows" else (8, 20, 4), np.int8)
        call(
            getattr(split, f"split_{side}_int8"), a=source, b=source, scale=np.full(4, 3), part_bits=system.part_bits,
            c=system.right, q=system.modulus, r=system.reciprocal, bias=system.bias, start=0, first=0, out=out,
            residual2=residual2, tiny=tiny,
        )  # fmt: skip
        assert np.allclose(residual2, 2 * once, rtol=1e-13) and (once > 0).all() and (tiny == 1).all()
