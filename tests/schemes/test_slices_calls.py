"""`Slices` under the public face: targets, complex and batched operands, gemm, prepare, explain, lent memory."""

import numpy as np
import pytest

import prismm
from prismm import Slices
from prismm.core.workspace import Arena
from prismm.errors import ArgumentError
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded, exact_gemm, exact_product
from tests.judge import assert_bounds_hold, assert_meets, assert_same_bits, entry_terms, magnitudes

CR = [
    Slices("int8", "CR"),
    Slices("fp16", "CR", exponents="adaptive"),
    Slices("fp64", "CR", rounding="toward-zero"),
    Slices("fp32-fp64", "CR", exponents="adaptive", rounding="toward-zero"),
]
GRADED = [
    Slices("int8", slices=7, fast=True),
    Slices("fp16", fast=True),
    Slices("bf16", "SP", exponents="adaptive"),
    Slices("fp16-fp16", slices=3, fast=True),
]
DTYPES = [np.float64, np.float32, np.complex128]


@pytest.mark.covering(("dtype", "scheme"))
@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", CR, ids=str)
def test_cr_mode_is_the_correctly_rounded_product(name, dtype, scheme, seed):
    a, b = HOSTILE[name](5, 19, 6, seed, dtype)
    c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
    assert_same_bits(c, correctly_rounded(a, b))
    if name not in ("wide_rows_and_columns", "subnormal_operands", "wide_rows", "shadowed"):
        # Nothing needs a repair: the slices' own sum rounds.
        assert set(report.paths) <= {"certified"}, report.paths
    assert_bounds_hold(exact_product(a, b), c, report)


def test_entries_far_below_their_rows_and_columns_are_right():
    """Row and column meet in their smallest elements alone: 2^-1800 in scaled units, an ordinary number in the end."""
    a = np.array([[1.5 * 2.0**500, 0.0, 1.1 * 2.0**-400], [1.0, 1.0, 1.0]])
    b = np.array([[0.0, 1.0], [1.5 * 2.0**500, 1.0], [1.3 * 2.0**-400, 1.0]])
    expected = correctly_rounded(a, b)
    assert expected[0, 0] == 1.1 * 2.0**-400 * (1.3 * 2.0**-400)
    for scheme in CR:
        assert_same_bits(prismm.matmul(a, b, scheme=scheme), expected, str(scheme))
    for scheme in GRADED:
        c, report = prismm.matmul(a, b, scheme=scheme, accuracy="native", full_output=True)
        assert_meets("native", exact_product(a, b), magnitudes(a, b), c, 3, str(scheme))
        assert_bounds_hold(exact_product(a, b), c, report, str(scheme))


@pytest.mark.parametrize("name", sorted(SPECIAL))
@pytest.mark.parametrize("dtype", DTYPES)
def test_specials_are_the_defining_sums(name, dtype, seed):
    a, b = SPECIAL[name](9, 31, 8, seed, dtype)
    for scheme in (CR[0], GRADED[0]):
        assert_same_bits(
            prismm.matmul(a, b, scheme=scheme, accuracy="correctly-rounded"), correctly_rounded(a, b), str(scheme)
        )


@pytest.mark.covering("name", ("dtype", "target"))
@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", ["native", 1e-9, "correctly-rounded"])
def test_every_target_is_met(name, dtype, target, seed):
    a, b = HOSTILE[name](7, 40, 6, seed, dtype)
    exact, magnitude = exact_product(a, b), magnitudes(a, b)
    for scheme in GRADED:
        c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
        assert_meets(target, exact, magnitude, c, entry_terms(a, c), str(scheme))
        assert_bounds_hold(exact, c, report, str(scheme))


@pytest.mark.parametrize("name", ["normal", "phi4", "one_huge", "wide_rows", "subnormal_results", "near_overflow"])
def test_bounds_of_the_raw_value_hold(name, seed):
    for dtype in DTYPES:
        a, b = HOSTILE[name](7, 40, 6, seed, dtype)
        exact = exact_product(a, b)
        for scheme in GRADED:
            c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
            assert_bounds_hold(exact, c, report, str(scheme))


@pytest.mark.parametrize("scheme", [CR[0], CR[1], GRADED[0]], ids=str)
def test_powers_of_two_pass_straight_through(scheme, rng):
    a, b = HOSTILE["phi1"](9, 50, 8, 4)
    rows, columns = rng.integers(-200, 200, 9), rng.integers(-200, 200, 8)
    c = prismm.matmul(a, b, scheme=scheme)
    scaled = prismm.matmul(np.ldexp(a, rows[:, None]), np.ldexp(b, columns), scheme=scheme)
    assert_same_bits(scaled, np.ldexp(c, rows[:, None] + columns))


@pytest.mark.parametrize("scheme", [CR[0], CR[1], GRADED[0]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_batches_prepared_operands_and_views(scheme, dtype, rng):
    a, b = HOSTILE["normal"](6, 20, 5, 11, dtype)
    c = HOSTILE["normal"](6, 1, 5, 12, dtype)[0] * np.ones((6, 5), dtype)
    plain = prismm.matmul(a, b, scheme=scheme)
    for side in ("left", "right"):
        prepared = prismm.prepare(a if side == "left" else b, side=side, scheme=scheme)
        pair = (prepared, b) if side == "left" else (a, prepared)
        assert_same_bits(prismm.matmul(*pair, scheme=scheme), plain)
    stack = np.stack([a, 2 * a, a[::-1]])
    batch = prismm.matmul(stack, b, scheme=scheme)
    assert_same_bits(batch[0], plain)
    assert_same_bits(batch[2], plain[::-1])
    assert_same_bits(prismm.matmul(np.asfortranarray(a), b[:, ::-1], scheme=scheme), plain[:, ::-1])
    got = prismm.gemm(a, b, c, alpha=1.5, beta=-2.0, scheme=scheme, accuracy="correctly-rounded")
    assert_same_bits(got, exact_gemm(1.5, a, b, -2.0, c).rounded(dtype))


def test_gemm_in_cr_mode_cancels_exactly(rng):
    """A·B - RN(A·B): what is left has none of the leading bits that CR mode rounds."""
    a, b = rng.standard_normal((8, 40)), rng.standard_normal((40, 7))
    high = prismm.matmul(a, b, scheme=Slices("int8", "CR"))
    rest = prismm.gemm(a, b, high, alpha=1.0, beta=-1.0, scheme=Slices("int8", "CR"))
    assert_same_bits(rest, exact_gemm(1.0, a, b, -1.0, high).rounded(np.float64))
    assert rest.any()


def test_a_call_says_what_it_will_do_and_what_it_did(rng):
    a, b = rng.standard_normal((40, 128)), rng.standard_normal((128, 30))
    scheme = Slices("int8", slices=7, fast=True)
    plan = prismm.explain(a, b, scheme=scheme)
    _, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
    assert plan.products == report.products == 28
    assert plan.workspace_bytes >= scheme.workspace(40, 30, 128, None)
    assert str(scheme) in str(plan)
    assert plan.reproducible
    assert not prismm.explain(a, b, scheme=Slices("int8")).reproducible
    with pytest.raises(ArgumentError, match="not reproducible"):
        prismm.matmul(a, b, scheme=Slices("int8"), reproducible=True)


@pytest.mark.parametrize("scheme", [CR[0], CR[1], GRADED[0]], ids=str)
def test_lent_memory_is_used_and_changes_no_bit(scheme, rng):
    a, b = rng.standard_normal((90, 200)), rng.standard_normal((200, 110))
    expected = prismm.matmul(a, b, scheme=scheme)
    for size in (1 << 22, 1 << 24, 1 << 26):
        lent = np.zeros(size, np.uint8)
        c, report = prismm.matmul(a, b, scheme=scheme, workspace=lent, full_output=True)
        assert_same_bits(c, expected)
        assert lent.any()
        assert "most bytes beyond the workspace" not in report.notes or size < 1 << 24
    tiny, report = prismm.matmul(a, b, scheme=scheme, workspace=np.empty(100, np.uint8), full_output=True)
    assert_same_bits(tiny, expected)
    assert report.notes["most bytes beyond the workspace"] > 0
    got = prismm.gemm(a, b, alpha=2.0, scheme=scheme, workspace=np.empty(1 << 22, np.uint8))
    assert_same_bits(got, 2 * expected)


def test_unsuitable_memory_is_refused():
    a = np.ones((4, 4))
    scheme = Slices("int8", slices=2)
    frozen = np.empty(64, np.uint8)
    frozen.flags.writeable = False
    for workspace in (np.empty(64), bytearray(64), np.empty((8, 8), np.uint8), np.empty(64, np.uint8)[::2], frozen):
        with pytest.raises(ArgumentError, match=r"pass np\.empty\(nbytes, np\.uint8\)"):
            prismm.matmul(a, a, scheme=scheme, workspace=workspace)
    with pytest.raises(ArgumentError, match="overlaps a"):
        prismm.matmul(a, a, scheme=scheme, workspace=a.reshape(-1).view(np.uint8))
    for other in (None, prismm.Residues(), prismm.Words.tf32(3)):
        with pytest.raises(ArgumentError, match=r"only prismm\.Slices"):
            prismm.matmul(a, a, scheme=other, workspace=np.empty(64, np.uint8))


def test_arena_takes_pieces_back_when_their_last_view_dies(rng):
    arena = Arena(np.empty((1 << 16) + 64, np.uint8))
    whole = arena.free
    held = []
    for _ in range(300):
        x = arena.empty((int(rng.integers(0, 60)), 8), np.float64)
        x[...] = len(held)
        held.append(x[1:].T)
        del x
        for y in held:
            assert not y.size or (y == y.flat[0]).all()
        if len(held) > 8:
            held.pop(int(rng.integers(len(held))))
    y = None
    held.clear()
    assert arena.free == whole
    big = arena.empty((1 << 20,), np.uint8)
    assert arena.beyond == 1 << 20 and not np.may_share_memory(big, arena.memory)
