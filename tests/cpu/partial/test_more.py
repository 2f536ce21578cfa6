"""Entries of pieces that are multiplied again by more moduli have the bits of exact sums, whatever is chosen."""

from dataclasses import replace

import numpy as np
import pytest

import prismm
from prismm.core.arrays import result_dtype
from prismm.core.many_moduli import many_moduli
from prismm.core.outcome import Epilogue
from prismm.core.request import check_request
from prismm.cpu.engines.integer import AMX, INT8, Float64Engine
from prismm.cpu.entries import Entries
from prismm.cpu.partial import more, product, scales, setting
from prismm.cpu.partial.setting import setting_of
from prismm.testing import HOSTILE, SPECIAL
from prismm.testing.exact import exact_product
from tests.cpu import units
from tests.judge import assert_each, assert_same_bits

ALL = {**HOSTILE, **SPECIAL}
CORRECT, REPRODUCIBLE = {"accuracy": "correctly-rounded"}, {"reproducible": True}
DTYPES = ("float64", "float32", "complex128", "complex64")


def set_for(a, b, keywords):
    request = check_request(
        keywords.get("accuracy"), None, keywords.get("reproducible", False), None, None, None, None, None
    )  # fmt: skip
    return setting_of(len(a), a.shape[1], b.shape[1], (a.dtype, b.dtype), result_dtype([a, b], None), request[0])


def halves(a, b):
    """Two pieces, and an empty one."""
    cut = a.shape[1] // 3
    return [(a[:, :cut], b[:cut]), (a[:, cut:cut], b[cut:cut]), (a[:, cut:], b[cut:])]


def wide(rng, shape, spread, dtype="float64"):
    """Elements whose exponents are uniform."""
    return np.ldexp(rng.standard_normal(shape), rng.integers(-spread, spread + 1, shape)).astype(dtype)


@pytest.fixture
def forced(monkeypatch):
    """Exact sums are taken to be dear, so that few entries are left to them; a few rows are joined at a time."""
    monkeypatch.setattr(more, "EXACT_SECONDS", 1.0)
    monkeypatch.setattr(more, "PANEL_BYTES", 1 << 14)


@pytest.mark.parametrize("chosen", [AMX, units.PACKED, INT8, Float64Engine(largest_modulus=256)], ids=lambda e: e.name)
def test_bits_are_those_of_exact_sums(chosen, forced, monkeypatch, rng):
    """All families, on each engine that multiplies bytes."""
    if chosen.prove().usable:
        monkeypatch.setattr(setting, "byte_engine", lambda: chosen)
    taken = []

    def check(case):
        name, dtype, keywords = case
        shape = rng.integers((1, 1, 1), (14, 50, 40)).tolist()
        a, b = ALL[name](*shape, int(rng.integers(1 << 30)), np.dtype(dtype))
        known = set_for(a, b, keywords)
        if keywords is CORRECT:
            # With fewer moduli at first much is left.
            known = replace(known, moduli=9 if known.result.precision == 53 else 6)
        joined = product.multiply(halves(a, b), known, workers=2)
        assert_same_bits(joined.out, prismm.matmul(a, b, **keywords))
        assert sum(joined.outcome.paths.values()) == joined.out.size * joined.setting.parts
        taken.append(joined.outcome.paths.get("more moduli", 0))

    names = rng.permutation(list(ALL)).tolist()
    cases = [(name, DTYPES[x % 4], (CORRECT, REPRODUCIBLE)[x // 4 % 2]) for x, name in enumerate(names)]
    with np.errstate(all="ignore"):
        assert_each(check, cases)
    assert sum(map(bool, taken)) > len(names) // 4, taken


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("moduli", [*more.SYSTEMS[::3], 49])
def test_each_system_decides_what_it_proves(moduli, dtype, forced, monkeypatch, rng):
    """Correctly rounded by exact arithmetic, ties and results below the normal range among them; the rest is left."""
    monkeypatch.setattr(more, "SYSTEMS", (moduli,))
    spread = 12 if dtype == "float32" else 60
    a, b = wide(rng, (40, 70), spread, dtype), wide(rng, (70, 33), spread, dtype)
    a[3:9] *= np.array(2.0**-80 if dtype == "float32" else 2.0**-500, dtype)
    b[:, 5:9] *= np.array(2.0**-60 if dtype == "float32" else 2.0**-560, dtype)
    a[20:22, 1:], b[2:, 20:22] = 0.0, 0.0
    a[20, 0], b[0, 20] = 1.0 + np.finfo(dtype).eps, 1.0 + np.finfo(dtype).eps
    known = set_for(a, b, CORRECT)
    again = product.multiply(halves(a, b), replace(known, moduli=8), workers=2)
    assert_same_bits(again.out, exact_product(a, b).rounded(np.dtype(dtype)).astype(dtype))
    assert moduli < 22 or again.outcome.paths["more moduli"] > 200, again.outcome.paths


def test_few_entries_are_summed_alone_and_many_are_not(rng):
    """By their number, and by how many moduli would decide them."""
    normal = rng.standard_normal((150, 150)), rng.standard_normal((150, 150))
    assert set(product.multiply(halves(*normal), set_for(*normal, CORRECT)).outcome.paths) <= {"certified", "exact"}
    for spread in (100, 200, 500):
        a, b = wide(rng, (300, 300), spread), wide(rng, (300, 300), spread)
        paths = product.multiply(halves(a, b), set_for(a, b, CORRECT), workers=2).outcome.paths
        assert paths["more moduli"] > 0 and paths.get("exact", 0) < 0.25 * a.size, (spread, paths)


def test_the_choice_is_made_of_data_alone(monkeypatch, rng):
    """Whichever engine the machine has: answers of all pieces belong together."""
    a, b = wide(rng, (200, 200), 100), wide(rng, (200, 200), 100)
    asked = []
    original = more.choose

    def choose(*given):
        found = original(*given)
        asked.append((found.moduli, found.bits, [x.tolist() for x in (found.rows, found.columns, *found.shifts)]))
        return found

    monkeypatch.setattr(more, "choose", choose)
    for engine in (units.PACKED, Float64Engine(largest_modulus=256)):
        monkeypatch.setattr(setting, "byte_engine", lambda engine=engine: engine)
        product.multiply(halves(a, b), set_for(a, b, CORRECT))
    assert len(asked) == 2 and asked[0] == asked[1]


def test_answers_of_rows_are_those_of_all(forced, rng):
    """Answers do not depend on how rows are divided into ranges, nor on the order in which digits are added."""
    a, b = wide(rng, (37, 64), 90), wide(rng, (64, 21), 90)
    known = set_for(a, b, CORRECT)
    entries = Entries(0, np.repeat(np.arange(37), 21), np.tile(np.arange(21), 37))
    extents = scales.extents(a, "left"), scales.extents(b, "right")
    both = []
    for x, side, extent in ((a, "left", extents[0]), (b, "right", extents[1])):
        exponent = scales.exponents(extent)
        norm = scales.norms(x, side, exponent, known)
        both.append(scales.scales(exponent, norm, np.zeros((2, len(exponent)), np.int64), known))
    asked = more.choose(entries, a @ b, tuple(both), extents, known)
    ((everything, whole),) = more.answers(a, b, asked, known)
    assert everything == slice(0, 37)
    pieces = list(more.answers(a, b, asked, known, most=5 * 21 * asked.moduli))
    assert [here.stop - here.start for here, _ in pieces] == [5] * 7 + [2]
    assert_same_bits(np.concatenate([x.digits for _, x in pieces], axis=1), whole.digits)
    assert_same_bits(np.concatenate([x.lost[0] for _, x in pieces], axis=1), whole.lost[0])
    assert all(np.array_equal(x.lost[1], whole.lost[1]) for _, x in pieces)
    # Digits of pieces are those of the whole modulo each modulus.
    parts = [next(more.answers(x, y, asked, known))[1] for x, y in halves(a, b)]
    total = more.total([parts[2], *parts[:2]], asked)
    modulus = np.array(many_moduli(asked.moduli).moduli)[:, None, None]
    assert not ((total.digits.astype(np.int64) - whole.digits) % modulus).any()
    assert not ((sum(x.digits.astype(np.int64) for x in parts) - whole.digits) % modulus).any()


def test_entries_that_were_certified_keep_their_value(forced, monkeypatch, rng):
    """A reproducible entry of a certificate need not be the exact one, rounded."""
    a, b = wide(rng, (60, 80), 40), wide(rng, (80, 60), 40)
    # Some rows are ordinary.
    a[::3] = rng.standard_normal((20, 80))
    before = []
    original = product.join

    def join(*given, **more_given):
        joined = original(*given, **more_given)
        (entries,) = joined.uncertified
        before.extend([joined.out.copy(), entries.i, entries.j])
        return joined

    monkeypatch.setattr(product, "join", join)
    joined = product.multiply(halves(a, b), set_for(a, b, REPRODUCIBLE))
    out, i, j = before
    certified, exact = np.ones(out.shape, np.bool_), exact_product(a, b).rounded()
    certified[i, j] = False
    assert np.array_equal(joined.out[certified], out[certified]) and (out != exact)[certified].any()
    assert np.array_equal(joined.out[i, j], exact[i, j]) or "magnitude" in joined.outcome.paths
    assert joined.outcome.paths["more moduli"] > 100


@pytest.mark.parametrize("factors", [(1.0, 1.0), (-2.0, 0.5), (2.0**-1000, -1.0), (0.25, 0.0), (1.5, 1.0), (1.0, 0.3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(factors, dtype, forced, rng):
    """gemm, with C that cancels most of AB, is far from it or holds specials."""
    (alpha, beta), taken = factors, []

    def check(case):
        name, keywords, kind = case
        shape = rng.integers((1, 1, 1), (14, 50, 40)).tolist()
        a, b = ALL[name](*shape, int(rng.integers(1 << 30)), np.dtype(dtype))
        c = (a.astype(np.result_type(a, np.float64)) @ b * (-alpha / (beta or 1.0))).astype(dtype)
        if kind:
            c = (c * wide(rng, c.shape, 90)).astype(dtype)
        if kind == 2:
            c.flat[:: max(1, c.size // 3)] = np.array([np.inf, np.nan, 0.0])[rng.integers(3)]
        known = replace(set_for(a, b, keywords), summed=True)
        if keywords is CORRECT:
            known = replace(known, moduli=9 if known.result.precision == 53 else 6)
        joined = product.multiply(halves(a, b), known, epilogue=Epilogue(alpha, beta, c if beta else None), workers=2)
        expected = prismm.gemm(a, b, c if beta else None, alpha=alpha, beta=beta, **keywords)
        assert_same_bits(joined.out, expected)
        taken.append(joined.outcome.paths.get("more moduli", 0))

    names = rng.permutation(list(ALL)).tolist()[:12]
    cases = [(name, (CORRECT, REPRODUCIBLE)[x % 2], x % 3) for x, name in enumerate(names)]
    with np.errstate(all="ignore"):
        assert_each(check, cases)
    assert sum(map(bool, taken)) > 1, taken


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_addend_where_all_terms_cancel(dtype, forced, rng):
    """AB is 0, and the addend is far below a unit of it: the result is the addend."""
    x, y = (np.ldexp(rng.standard_normal((20, 30)), rng.integers(30, 61, (20, 30))).astype(dtype) for _ in range(2))
    a, b, c = np.concatenate([x, -x], 1), np.concatenate([y.T, y.T]), rng.standard_normal((20, 20)).astype(dtype)
    for alpha in (2.0**1000, -(2.0**500), 2.0**1023, 2.0**-1000):
        for scale in (1.0, 2.0**-120, 2.0**100):
            known = replace(set_for(a, b, CORRECT), summed=True)
            addend = (c * scale).astype(dtype)
            joined = product.multiply(halves(a, b), known, epilogue=Epilogue(alpha, 1.0, addend), workers=1)
            assert_same_bits(joined.out, addend)


def test_systems_that_lose_nothing_need_not_have_the_norms_bits(forced, rng):
    """Rows of ones and columns of many bits."""
    a, b = rng.choice([-1.0, 0.0, 1.0], (90, 60)), wide(rng, (60, 90), 30)
    joined = product.multiply(halves(a, b), replace(set_for(a, b, CORRECT), moduli=6), workers=1)
    assert_same_bits(joined.out, exact_product(a, b).rounded())
    assert joined.outcome.paths["more moduli"] > 1000


def test_no_uncertified_entry_asks_for_nothing(rng):
    a, b = rng.standard_normal((20, 30)), rng.standard_normal((30, 20))
    known = set_for(a, b, CORRECT)
    joined = product.multiply([(a, b)], known)
    assert joined.to_multiply_again((np.zeros((2, 20), np.int64), np.zeros((2, 20), np.int64))) == []
    # The scheme's own value is no exact one.
    own = setting.Setting(9, 30, False, known.result, None)
    assert not more.pays(1 << 40, own) and more.pays(1 << 40, known) and not more.pays(10, known)
