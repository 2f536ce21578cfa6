"""Uncertified entries that are made again by more moduli, of operands as given or balanced: tables, panels, and the
bits on a GPU, by whatever way.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch

import prismm
from prismm.core.many_moduli import MOST_MODULI, room
from prismm.core.moduli import coprime_moduli
from prismm.cuda import calls
from prismm.cuda.residues import recompute
from prismm.cuda.residues.recompute import SYSTEMS, Panels, many_tables, panels_of, panels_within, rungs, space_of
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE, SPECIAL

CPU = torch.device("cpu")


def powers_of(table):
    """(systems, moduli, powers): a word of the table holds a byte each of four moduli."""
    words = table.powers.numpy()[:, :, None, :] >> (8 * np.arange(4)[:, None])
    return (words & 255).astype(np.uint8).view(np.int8).reshape(len(words), -1, words.shape[-1]).astype(int)


@pytest.mark.parametrize("precision", [53, 24])
def test_tables_are_powers_weights_and_products_of_integers(precision):
    """Σ y·(P/q) of the digits y = c·(P/q)^-1 is c modulo P, limb by limb."""
    table, chosen = many_tables(precision, CPU), coprime_moduli(256, MOST_MODULI)
    powers = powers_of(table)
    for r, moduli in enumerate(SYSTEMS[precision]):
        whole = math.prod(chosen[:moduli])
        for t in (0, 1, moduli // 2, moduli - 1):
            p = chosen[t]
            for x in (0, 1, 13, 52, 120, 175, 286, 287):
                assert (int(powers[r, t, x]) * (whole // p) - (1 << x)) % p == 0
                assert (int(powers[len(SYSTEMS[precision]), t, x]) - (1 << x)) % p == 0
        row = table.systems[r].tolist()
        limbs = -(-whole.bit_length() // 40)

        def integer(parts, limbs=limbs):
            return sum(int(x) << (40 * (limbs - 1 - y)) for y, x in enumerate(parts[:limbs]))

        assert integer(row[2:11]) == whole and not any(row[2 + limbs : 11])
        assert integer(row[11:20]) == 128 * sum(whole // p for p in chosen[:moduli]) % whole
        assert not any(row[11 + limbs : 20])
        for t in (0, moduli - 1):
            assert integer(row[20 + 9 * t : 29 + 9 * t]) == whole // chosen[t]
        assert abs(whole * row[0] - 2.0 ** (40 * (limbs - 1))) < 1e-9 * 2.0 ** (40 * (limbs - 1))
    base, patterns = table.base.numpy().astype(float), table.base.numpy()[:, 5:].copy().view(np.int32)
    for t, p in enumerate(chosen):
        assert base[t, 0] == p and all((int(base[t, 1 + x]) - (1 << 14 * x)) % p == 0 for x in (1, 2, 3))
        assert np.abs(base[t, 2:5]).max() <= 128
        of_bytes = patterns[t, :2].copy().view(np.int8).astype(int)
        assert all((int(of_bytes[x]) - (1 << 8 * x)) % p == 0 for x in range(7)) and of_bytes[7] == 0
        assert np.abs(of_bytes).max() <= 127 and patterns[t, 2] == -128 * of_bytes.sum()


def test_residues_of_bytes_fit_in_a_byte():
    """What `many_split` does on NVIDIA's GPUs, wherever its quotient is next to a half: no residue is too large."""
    table = many_tables(53, CPU)
    base, patterns = table.base.numpy(), table.base.numpy()[:, 5:].copy().view(np.int32)
    powers = np.abs(powers_of(table))
    for t, p in enumerate(coprime_moduli(256, MOST_MODULI)):
        of_bytes = np.abs(patterns[t, :2].copy().view(np.int8).astype(int))
        most = int(128 * of_bytes[:6].sum() + 33 * of_bytes[6]) * int(powers[:, t].max())
        assert most < 1 << 24
        near_halves = np.arange(-most // p - 1, most // p + 2)[:, None] * p + p // 2 + np.arange(-1, 3)
        w = near_halves[np.abs(near_halves) <= most]
        # Exact but for one rounding, as `fma` has it: both factors have 24 bits.
        product = w.astype(np.longdouble) * np.longdouble(base[t, 1]) + np.longdouble(1.5 * 2**23)
        near = product.astype(np.float32).view(np.int32).astype(np.int64)
        residue = w - (near - np.float32(1.5 * 2**23).view(np.int32)) * p
        assert p == 256 or np.abs(residue).max() <= 127
        # The last byte is all that is kept.
        kept = ((w - near * p) & 255).astype(np.uint8).view(np.int8)
        assert not ((kept - w) % p).any()


def test_launches_and_kernels_count_alike():
    from prismm.core import many_moduli
    from prismm.cuda.residues import forecast, sampled_choice
    from prismm.cuda.residues.kernels import (
        balance,
        many,
        many_choice,
        many_join,
        many_split,
        many_tile,
        strips,
    )

    for vectors, k, parts in ((1, 1, 1), (300, 70, 2), (20_000, 131_072, 1)):
        beside = balance.BALANCES.value * balance.CHOICE.value + balance.SAMPLES.value * balance.RECORD.value
        expected = balance.TOPS_AT.value * vectors + balance.CHOICES_AT.value * parts * k + beside
        assert recompute.measured(vectors, k, parts) == parts * expected
    assert many_choice.NORMS.value + 2 == recompute.COUNTERS
    assert len(recompute.SECONDS) == many_choice.MEASURED.value + 1
    assert all(len(some) == many_choice.SYSTEMS.value for some in SYSTEMS.values())
    assert (many_split.POWERS.value, many_join.LIMBS.value) == (recompute._POWERS, recompute._LIMBS)
    assert (strips.AT_ONCE.value, strips.SINGLES.value) == (forecast.AT_ONCE, forecast.SINGLES)
    of_rows = recompute.UNCERTIFIED_ROWS * 128
    assert strips.BY_THEMSELVES.value * recompute.MANY_UNCERTIFIED / of_rows == forecast.MANY_OF_ROWS
    expected = many_choice.SPARE.value, recompute.UNCERTIFIED_LANES, many_choice.WELL_ROUNDED.value
    assert expected == (sampled_choice.SPARE, sampled_choice.LANES, sampled_choice.WELL_ROUNDED)
    assert (balance.SAMPLES.value, many_choice.FEW.value) == (sampled_choice.SAMPLES, sampled_choice.FEW)
    assert (balance.APART.value, balance.BALANCES.value) == (sampled_choice.APART, sampled_choice.BALANCES)
    assert (many_tile.SHARE.value, many_join.EXPANDED.value) == (recompute.LISTED, recompute.EXPANDED)
    assert many_split.FACTORS.value == many_tables(53, CPU).base.shape[1]
    assert many_join.CENTRE.value == recompute._CENTRE and many_join.CONSTANTS.value == 2 + 2 * recompute._LIMBS
    assert many_split.GROUP.value == recompute._GROUP and many.WORDS.value == -(-many.MODULI.value // recompute._GROUP)
    assert balance.MOST_BITS.value == many_moduli.MOST_BITS < many_split.POWERS.value


@pytest.mark.parametrize("terms", [1, 9, 1000, 4096, 131072])
@pytest.mark.parametrize("precision", [53, 24])
def test_sums_stay_within_the_room_of_their_moduli(terms, precision):
    some = panels_of(300, 200, terms, 1, 1 << 24, precision)
    for (moduli, left, right, below, *_), panel in zip(rungs(terms, some, CPU).tolist(), some, strict=True):
        assert moduli == panel.moduli and terms << (left + right) <= 1 << room(moduli) and 0 <= right - left <= 1
        assert left <= 286 and below == 40 * (9 - -(-math.prod(coprime_moduli(256, moduli)).bit_length() // 40))


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "batches"),
    [(4096, 4096, 4096, 1), (1, 1, 1, 1), (100, 100000, 64, 1), (64, 64, 64, 500), (300, 200, 131072, 2)],
)
@pytest.mark.parametrize("taken", [0, 1 << 20, 1 << 29, 1 << 34])
def test_panels_fit_where_something_was(rows, columns, terms, batches, taken):
    limit = max(taken, min(recompute.ROOM, 4 * taken // batches))
    for moduli in (16, MOST_MODULI):
        found = panels_within(rows, columns, terms, batches, taken, moduli)
        least = Panels(128, 128, 1, moduli)
        assert sum(found.spaces(terms)) <= max(limit, sum(least.spaces(terms)))
        assert found.height % 128 == found.width % 128 == 0 and 1 <= found.group <= batches
        assert found.height < rows + 128 and found.width < columns + 128
    assert space_of(panels_of(rows, columns, terms, batches, taken, 53), terms) >= sum(found.spaces(terms))


def test_predictions_of_wide_data_end_where_more_moduli_are_faster():
    from prismm.core.problem import Problem
    from prismm.formats import FP32, FP64

    for form in (FP64, FP32):
        small, large = (Problem(n, n, n, (), form, None, False, True) for n in (1024, 4096))
        assert 10 < recompute.seconds_again(large) / recompute.seconds_again(small) < 64
        parts = dataclasses.replace(small, is_complex=True)
        assert recompute.seconds_again(parts) > 2 * recompute.seconds_again(small)


@pytest.fixture
def forced(monkeypatch):
    """Every uncertified entry is made again, at no price."""
    calls.forget()
    monkeypatch.setattr(recompute, "MANY_OF_ALL", 1 << 20)
    monkeypatch.setattr(recompute, "FEW_OF_STRIP", 0)
    monkeypatch.setattr(recompute, "SECONDS", (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, math.inf))
    yield
    calls.forget()


MEASURED = (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""Seconds of a device that is paid for measuring operands anew."""

WAYS = {
    "again": {}, "alone": {"MANY_OF_ALL": 1}, "in panels": {"ROOM": 1}, "balanced": {"SECONDS": MEASURED},
    "balanced, in panels": {"SECONDS": MEASURED, "ROOM": 1},
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("accuracy", ["native", "correctly-rounded"])
@pytest.mark.parametrize(
    ("dtype", "moduli", "family"),
    [
        ("float64", 14, "phi4"), ("float64", 14, "cancelling"), ("float64", 14, "wide_rows_and_columns"),
        ("float64", 14, "subnormal_results"), ("float64", 14, "near_overflow"), ("float64", 14, "ties"),
        ("float32", 7, "phi4"), ("complex128", 14, "phi4"), ("complex64", 7, "cancelling"),
        ("float64", 14, "near_ties"), ("float64", 14, "overflow_threshold"), ("float64", 14, "graded"),
        ("float64", 14, "shadowed"), ("float64", 14, "triangular"), ("float32", 7, "near_ties"),
        ("complex128", 14, "near_ties"), ("complex128", 14, "shadowed"), ("complex64", 7, "shadowed"),
    ],
)  # fmt: skip
def test_every_way_gives_the_same_bits(forced, monkeypatch, dtype, moduli, family, accuracy, way):
    for name, value in WAYS[way].items():
        monkeypatch.setattr(recompute, name, value)
    a, b = HOSTILE[family](150, 90, 140, seed=3, dtype=np.dtype(dtype))
    expected = prismm.matmul(a, b, scheme=Residues(moduli), accuracy=accuracy)
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    for left, right in ((x, y), (x.T.contiguous().T, y.T.contiguous().T)):
        found, report = prismm.matmul(
            left, right, scheme=Residues(moduli), accuracy=accuracy, full_output=True
        )  # fmt: skip
        words = found.cpu().numpy().view(np.uint8)
        assert np.array_equal(words, expected.view(np.uint8))
        if family == "phi4":
            assert (report.paths.get("more moduli", 0) > 0) == (way != "alone")


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["phi4", "near_ties", "graded"])
@pytest.mark.parametrize("way", ["again", "balanced"])
def test_batches_share_panels(forced, monkeypatch, way, family):
    for name, value in WAYS[way].items():
        monkeypatch.setattr(recompute, name, value)
    a, b = (np.stack(x) for x in zip(*(HOSTILE[family](20, 30, 40, seed=s) for s in range(7)), strict=True))
    for left, right in ((a, b), (a[:1], b), (a, b[:1])):
        expected = prismm.matmul(left, right, scheme=Residues(14), accuracy="correctly-rounded")
        x, y = torch.from_numpy(left).cuda(), torch.from_numpy(right).cuda()
        found = prismm.matmul(x, y, scheme=Residues(14), accuracy="correctly-rounded")
        assert np.array_equal(found.cpu().numpy(), expected)


SUMS = [
    ("float64", "phi4", 0.7, -1.3), ("float64", "residual", -1.0, 1.0), ("float64", "graded", 0.1, 1.0),
    ("float64", "shadowed", 1e-30, 1.0), ("float64", "subnormal_results", 0.9, -1.0), ("float64", "phi4", 3.0, 0.0),
    ("float64", "near_ties", 3.0, 1e-9), ("float64", "near_overflow", 1.5, 1.0), ("float64", "infinities", 2.0, 1.0),
    ("float32", "phi4", 0.1, 0.7), ("float32", "residual", 0.3, -0.3), ("complex128", "phi4", -0.5, 0.5 - 1j),
    ("complex64", "phi4", 2.0, 0.3), ("complex128", "phi4", 0.5j, 1.0), ("complex128", "shadowed", 0.75, -0.5),
]  # fmt: skip
"""Types, families, alpha and beta. A residual is one of fl(AB), of which nearly all cancels."""


def sum_operands(family, dtype, shape, seed):
    """A, B and C of that kind."""
    make = {**HOSTILE, **SPECIAL}["phi4" if family == "residual" else family]
    m, k, n = shape
    a, b = make(m, k, n, seed=seed, dtype=np.dtype(dtype))
    c = make(m, n, 2, seed=seed + 1, dtype=np.dtype(dtype))[0]
    return a, b, (a @ b).astype(c.dtype) if family == "residual" else c


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["again", "alone", "balanced", "in panels"])
@pytest.mark.parametrize("accuracy", ["native", "correctly-rounded"])
@pytest.mark.parametrize(("dtype", "family", "alpha", "beta"), SUMS)
def test_sums_have_the_same_bits_every_way(forced, monkeypatch, dtype, family, alpha, beta, accuracy, way):
    for name, value in WAYS[way].items():
        monkeypatch.setattr(recompute, name, value)
    single = np.finfo(dtype).precision < 10
    a, b, c = sum_operands(family, dtype, (150, 90, 140), 3)
    given = {"alpha": alpha, "beta": beta, "scheme": Residues(7 if single else 14), "accuracy": accuracy}
    given["reproducible"] = accuracy == "native"
    expected = prismm.gemm(a, b, c, **given)
    x, y, z = (torch.from_numpy(each).cuda() for each in (a, b, c))
    for left, right, addend in ((x, y, z), (x.T.contiguous().T, y.T.contiguous().T, z.T.contiguous().T)):
        found, report = prismm.gemm(left, right, addend, full_output=True, **given)
        got, right_bits = (v.view(v.real.dtype) for v in (found.cpu().numpy(), expected))
        words = np.dtype(f"u{got.itemsize}")
        assert ((got.view(words) == right_bits.view(words)) | (np.isnan(got) & np.isnan(right_bits))).all()
        if family in ("phi4", "residual"):
            assert (report.paths.get("more moduli", 0) > 0) == (way != "alone" and alpha != 0.5j)


@pytest.mark.gpu
def test_sums_of_batches_and_in_place_are_made_again(forced):
    made = [sum_operands("residual", "float64", (20, 30, 40), seed) for seed in range(5)]
    a, b, c = (np.stack(x) for x in zip(*made, strict=True))
    given = {"alpha": -1.0, "beta": 1.0, "scheme": Residues(14), "accuracy": "correctly-rounded"}
    for left, right in ((a, b), (a[:1], b), (a, b[:1])):
        expected = prismm.gemm(left, right, c, **given)
        x, y, z = (torch.from_numpy(each).cuda() for each in (left, right, c))
        assert np.array_equal(prismm.gemm(x, y, z, **given).cpu().numpy(), expected)
        prismm.gemm(x, y, z, out=z, **given)
        assert np.array_equal(z.cpu().numpy(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["near_ties", "overflow_threshold", "graded", "shadowed"])
def test_balanced_operands_decide_what_no_number_of_moduli_does(family):
    """At its price: by 49 moduli alone, nearly all of these entries are left."""
    a, b = (torch.from_numpy(x).cuda() for x in HOSTILE[family](512, 512, 512, seed=5))
    found, report = prismm.matmul(a, b, accuracy="correctly-rounded", full_output=True)
    # Of entries that a sample of 128 does not show, more than one in a hundred is unlikely.
    assert report.paths.get("exact", 0) < 512 * 512 // 100 < report.paths["more moduli"]
    expected = prismm.matmul(a.cpu().numpy(), b.cpu().numpy(), accuracy="correctly-rounded")
    assert np.array_equal(found.cpu().numpy().view(np.uint64), expected.view(np.uint64))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_each_part_of_complex_operands_is_balanced_in_its_own_way(dtype):
    """At its price: no scales serve the products of both parts."""
    a, b = HOSTILE["shadowed"](384, 384, 384, seed=5, dtype=np.dtype(dtype))
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    found, report = prismm.matmul(x, y, accuracy="correctly-rounded", full_output=True)
    assert report.paths.get("exact", 0) < 2 * 384 * 384 // 100 < report.paths["more moduli"]
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    assert np.array_equal(found.cpu().numpy().view(np.uint8), expected.view(np.uint8))


@pytest.mark.gpu
def test_sums_next_to_midpoints_are_made_again():
    """At its price, with an alpha that no product alone is next to midpoints for."""
    a, b = HOSTILE["near_ties"](512, 512, 512, seed=5)
    c = (a @ b) * np.random.default_rng(5).uniform(0.5, 1.0, (512, 512))
    given = {"alpha": 0.75, "beta": -0.75, "accuracy": "correctly-rounded"}
    x, y, z = (torch.from_numpy(each).cuda() for each in (a, b, c))
    found, report = prismm.gemm(x, y, z, full_output=True, **given)
    assert report.paths.get("exact", 0) < 512 * 512 // 100 < report.paths["more moduli"]
    assert np.array_equal(found.cpu().numpy(), prismm.gemm(a, b, c, **given))
