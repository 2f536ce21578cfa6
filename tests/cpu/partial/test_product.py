"""Products whose inner dimension lies in pieces: the bits of one device, whatever the cut, order and engine."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest

import prismm
from prismm.core.arrays import result_dtype
from prismm.core.outcome import Epilogue
from prismm.core.request import check_request
from prismm.cpu.engines.integer import AMX, FLOAT64, INT8, Float64Engine
from prismm.cpu.entries import Entries
from prismm.cpu.kernels import exact_pieces
from prismm.cpu.partial import product, recompute, residues, scales, setting
from prismm.cpu.partial.setting import setting_of
from prismm.errors import ArgumentError
from prismm.testing import HOSTILE, SPECIAL
from prismm.testing.exact import exact_product
from tests.cpu import units
from tests.judge import assert_each, assert_same_bits

ALL = {**HOSTILE, **SPECIAL}
TARGETS = (
    {"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": prismm.Residues(9)},
    {"scheme": prismm.Residues(12), "accuracy": 1e-9}, {"accuracy": "fast", "reproducible": True},
)  # fmt: skip
DTYPES = ("float64", "float32", "complex128", "complex64")


def request(accuracy=None, scheme=None, reproducible=False):
    return check_request(accuracy, scheme, reproducible, None, None, None, None, None)[0]


def set_for(a, b, keywords, summed=False):
    types = a.dtype, b.dtype
    return setting_of(
        a.shape[0], a.shape[1], b.shape[1], types, result_dtype([a, b], None), request(**keywords), summed=summed
    )


def cut(a, b, rng, pieces):
    """Pieces of the inner dimension, empty ones among them, in any order."""
    places = [0, *sorted(rng.integers(0, a.shape[1] + 1, pieces - 1).tolist()), a.shape[1]]
    found = [(a[:, h:g], b[h:g]) for h, g in itertools.pairwise(places)]
    rng.shuffle(found)
    return found


@pytest.fixture
def engine(monkeypatch):
    def use(chosen):
        if chosen.prove().usable:
            monkeypatch.setattr(setting, "byte_engine", lambda: chosen)

    return use


@pytest.mark.parametrize("name", ALL)
def test_bits_are_those_of_one_device(name, rng):
    def check(case):
        (dtype, keywords), shape, seed, pieces = case
        a, b = ALL[name](*shape, seed, np.dtype(dtype))
        joined = product.multiply(cut(a, b, rng, pieces), set_for(a, b, keywords), workers=1)
        assert_same_bits(joined.out, prismm.matmul(a, b, **keywords))
        assert sum(joined.outcome.paths.values()) == joined.out.size * joined.setting.parts

    cases = [*zip(DTYPES, rng.permutation(np.array(TARGETS)[:4]), strict=True), ("float64", TARGETS[1])]
    assert_each(
        check,
        [(x, rng.integers((1, 1, 1), (14, 50, 14)).tolist(), int(rng.integers(1 << 30)), y % 4 + 1)
         for y, x in enumerate(cases)],
    )  # fmt: skip


@pytest.mark.parametrize("chosen", [AMX, units.PACKED, INT8, Float64Engine(largest_modulus=256)], ids=lambda e: e.name)
def test_sums_of_products_and_addends(chosen, engine, rng):
    """gemm, on each engine that multiplies bytes: with factors, and C that cancels or holds specials."""
    engine(chosen)

    def check(case):
        name, dtype, keywords, (alpha, beta) = case
        a, b = ALL[name](*rng.integers((1, 1, 1), (40, 90, 40)).tolist(), int(rng.integers(1 << 30)), np.dtype(dtype))
        with np.errstate(all="ignore"):
            c = (-alpha * (a.astype(complex) @ b)).astype(a.dtype) if a.dtype.kind == "c" else (-alpha * (a @ b))
            c = c.astype(a.dtype)
        if np.dtype(dtype).kind == "c":
            alpha = alpha * (1 - 0.5j)
        joined = product.multiply(
            cut(a, b, rng, 3), set_for(a, b, keywords, summed=True), epilogue=Epilogue(alpha, beta, c), workers=2
        )
        expected = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords)
        assert_same_bits(joined.out, expected)

    names = rng.permutation(list(ALL))[:6]
    factors = [(1.5, -0.75), (1.0, 1.0), (2.0**-1000, 1.0)]
    cases = zip(names, [*DTYPES, *DTYPES], itertools.cycle(TARGETS[:3]), itertools.cycle(factors), strict=False)
    with np.errstate(all="ignore"):
        assert_each(check, list(cases))


@pytest.mark.parametrize("complex_", [False, True])
def test_digits_of_all_engines_are_alike_and_add_up(complex_, engine, rng):
    """Whatever multiplies, pieces send the same bytes, the residues of the exact integer product."""
    a, b = rng.standard_normal((2, 137, 100)), rng.standard_normal((2, 100, 75))
    a, b = (a[0] + 1j * a[1], b[0] + 1j * b[1]) if complex_ else (a[0], b[0])
    found = []
    for chosen in (units.PACKED, AMX, INT8, Float64Engine(largest_modulus=256)):
        engine(chosen)
        here = set_for(a, b, {"reproducible": True})
        total = None
        shift = []
        for x, side in ((a, "left"), (b, "right")):
            exponent = scales.exponents(scales.extents(x, side))
            shift.append(scales.shifts(exponent, scales.norms(x, side, exponent, here), here))
        for h in (slice(0, 3), slice(3, 64), slice(64, 64), slice(64, 100)):
            left = residues.split(a[:, h], "left", shift[0], here)
            right = residues.split(b[h], "right", shift[1], here)
            digits = residues.multiply(left, right, here)
            assert digits.nbytes == digits.shape[2] * digits.shape[3] * here.entry_bytes
            total = digits if total is None else (residues.add(total, digits, here), total)[1]
        found.append(total)
    assert all((found[0] == each).all() for each in found[1:])
    assert here.entry_bytes == 15 * (1 + complex_) <= 24 * (1 + complex_)
    if not complex_:
        scaled = [np.rint(np.ldexp(x, s)) for x, s in ((a, shift[0][:, None]), (b, shift[1][None, :]))]
        whole = np.vectorize(int, otypes=[object])(scaled[0]) @ np.vectorize(int, otypes=[object])(scaled[1])
        for q, inverse, digit in zip(here.modulus.tolist(), inverses(here.modulus.tolist()), found[0][0], strict=True):
            assert not ((whole * inverse - digit.astype(object)) % q).any()


def inverses(moduli):
    whole = int(np.prod(np.array(moduli, dtype=object)))
    return [pow(whole // q, -1, q) for q in moduli]


def test_cancellation_between_pieces_is_exact(rng):
    """Pieces whose sums cancel to nothing, or to the last bit of the least of them."""
    x = np.ldexp(rng.standard_normal((6, 40)), rng.integers(-300, 300, (6, 40)))
    y = np.ldexp(rng.standard_normal((40, 5)), rng.integers(-300, 300, (40, 5)))
    a = np.concatenate([x, -x, rng.standard_normal((6, 1)) * 2.0**-500], axis=1)
    b = np.concatenate([y, y, rng.standard_normal((1, 5)) * 2.0**-500], axis=0)
    pieces = [(a[:, :40], b[:40]), (a[:, 40:80], b[40:80]), (a[:, 80:], b[80:])]
    joined = product.multiply(pieces, set_for(a, b, TARGETS[1]))
    assert_same_bits(joined.out, exact_product(a, b).rounded("float64"))
    assert joined.outcome.paths["exact"] == joined.out.size
    reproducible = product.multiply(pieces, set_for(a, b, TARGETS[0]))
    assert_same_bits(reproducible.out, prismm.matmul(a, b, reproducible=True))


def test_requests_in_parts_give_the_same(monkeypatch, rng):
    from prismm.cpu.partial import join

    a, b = HOSTILE["wide_rows"](9, 30, 8, int(rng.integers(1 << 30)))
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    monkeypatch.setattr(join, "ROUND_BYTES", 4000)
    monkeypatch.setattr(join, "PANEL_BYTES", 1000)
    joined = product.multiply(cut(a, b, rng, 3), set_for(a, b, TARGETS[1]), workers=2)
    assert_same_bits(joined.out, expected)


@pytest.mark.parametrize("alpha", [1.0, 2.0**1023, -0.3])
def test_limbs_of_entries_far_apart_end_within_the_digits(alpha, rng):
    """All entries of a request have as many limbs as the widest, wherever they begin."""
    k = 20
    a, b = (np.ldexp(rng.standard_normal((8, k)), rng.integers(-1000, 0, (8, k))) for _ in range(2))
    for x in (a, b):
        x[4:] = np.ldexp(rng.standard_normal((4, k)), rng.integers(900, 980, (4, k)))
    a[4:, 10:], b[4:, 10:] = -a[4:, :10], b[4:, :10]
    b, seen = b.T, []
    known = set_for(a, b, {"accuracy": "correctly-rounded"}, summed=alpha != 1.0)
    asked = recompute.request(
        [Entries(0, *(x.reshape(-1) for x in np.mgrid[:8, :8]))],
        scales.extents(a, "left"), scales.extents(b, "right"), known,
    )  # fmt: skip
    assert (asked.first >= 0).all() and (asked.first + 2 * asked.limbs <= exact_pieces.LAST).all()
    assert asked.limbs > 60 and asked.first.max() > 100
    epilogue = None if alpha == 1.0 else Epilogue(alpha, 0.0, None)
    for _ in range(3):
        seen.append(product.multiply([(a[:, :5], b[:5]), (a[:, 5:], b[5:])], known, epilogue=epilogue))
        expected = prismm.gemm(a, b, alpha=alpha, accuracy="correctly-rounded")
        assert_same_bits(seen[-1].out, expected)
    assert seen[0].outcome.paths["exact"] > 20


def test_narrow_types_and_integers_are_taken_exactly(rng):
    for kind in ("float16", "int8", "int32", "uint16", "bool"):
        a, b = (rng.integers(0, 2 if kind == "bool" else 100, (5, 7)).astype(kind) for _ in range(2))
        here = set_for(a, b.T, {"reproducible": True})
        joined = product.multiply(cut(a, b.T, rng, 2), here)
        dtype = joined.out.dtype
        assert_same_bits(joined.out, (a.astype(float) @ b.T.astype(float)).astype(dtype))


def test_settings_travel_and_compare():
    here = set_for(np.ones((3, 4)), np.ones((4, 2)), {"reproducible": True})
    assert (here.moduli, here.k, here.entry_bytes) == (15, 4, 15)
    there = pickle.loads(pickle.dumps(here))
    assert there == here and hash(there) == hash(here) and replace(here, k=5) != here


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rare_repairs_take_more_moduli(dtype, rng):
    """As many as leave no entry of normal data uncertified; a scheme that is named keeps its own."""
    n, k, types = 8192, 8192, (np.dtype(dtype),) * 2

    def chosen(keywords, repairs):
        return setting_of(n, k, n, types, types[0], request(**keywords), repairs=repairs)

    correct = {"accuracy": "correctly-rounded"}
    plain, rare = (chosen(correct, repairs) for repairs in (None, 0.5))
    assert plain.moduli < rare.moduli == {"float64": 22, "float32": 14}[dtype]
    assert chosen(correct | {"scheme": prismm.Residues(plain.moduli)}, 0.5) == plain
    assert chosen({"reproducible": True}, 0.5) == chosen({"reproducible": True}, None)
    a, b = (rng.standard_normal(size).astype(dtype) for size in ((256, k), (k, 256)))
    plain_paths, rare_paths = (product.multiply([(a, b)], x, workers=2).outcome.paths for x in (plain, rare))
    assert rare_paths["certified"] == 256 * 256 > plain_paths["certified"], (rare_paths, plain_paths)


def test_what_has_no_exact_pieces_is_refused():
    a = np.ones((3, 3))
    with pytest.raises(ArgumentError, match="no exact partial products"):
        set_for(a, a, {"scheme": prismm.Slices()})
    with pytest.raises(ArgumentError, match="no exact partial products"):
        set_for(a, a, {})
    with pytest.raises(ArgumentError, match="several float64"):
        set_for(a.astype(np.int64), a, {"reproducible": True})


def test_a_processor_without_bytes_uses_float64(monkeypatch):
    monkeypatch.setattr(setting, "choose", lambda name: FLOAT64)
    assert setting.byte_engine() == Float64Engine(largest_modulus=256)
