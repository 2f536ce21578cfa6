"""Parts of products with zeros: every entry in one of them, and less work."""

import numpy as np
import pytest

from prismm.cpu import structure
from prismm.cpu.balance import balanced
from prismm.cpu.entries import Entries
from prismm.cpu.escalation import Block
from prismm.testing import HOSTILE
from tests.judge import assert_same_bits


def work(a, b, i, j, parts):
    """Products in rows, columns and inner indices that are not zero throughout."""
    total = 0
    for part in parts:
        rows, columns = np.unique(i[part]), np.unique(j[part])
        alive = (a[rows] != 0).any(axis=0) & (b[:, columns] != 0).any(axis=1)
        total += rows.size * columns.size * int(alive.sum())
    return total


def entries_of(wanted):
    return np.nonzero(wanted)


@pytest.mark.parametrize("kind", ["triangular", "lower", "banded", "blocks", "dense", "scattered"])
@pytest.mark.parametrize(("m", "k", "n"), [(512, 512, 512), (700, 130, 515), (64, 900, 200)])
def test_parts_hold_every_entry_once_and_take_less_work(kind, m, k, n, rng):
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    wanted = np.ones((m, n), bool)
    if kind in ("triangular", "lower"):
        cut = np.triu if kind == "triangular" else np.tril
        a, b, wanted = cut(a), cut(b), cut(wanted)
    elif kind == "banded":
        a, b = np.triu(np.tril(a, 4), -4), np.triu(np.tril(b, 4), -4)
        wanted = (a @ b) != 0
    elif kind == "blocks":
        a[: m // 2, k // 2 :] = 0
        b[: k // 2, n // 2 :] = 0
        wanted[: m // 2, n // 2 :] = False
        wanted[m // 2 :, : n // 2] = False
    elif kind == "scattered":
        wanted = rng.random((m, n)) < 0.3
    i, j = entries_of(wanted)
    parts = structure.parts(a, b, i, j)
    taken = np.zeros(i.size, int)
    for part in parts:
        taken[part] += 1
    assert (taken == 1).all()
    share = work(a, b, i, j, parts) / work(a, b, i, j, [slice(None)])
    if kind in ("dense", "scattered") or min(m, n) < 2 * structure.LEAST_ROWS:
        assert len(parts) == 1
    elif m == k == n:
        assert share < {"triangular": 0.45, "lower": 0.45, "banded": 0.05, "blocks": 0.55}[kind]
    else:
        assert share <= 1.0


@pytest.mark.parametrize("name", HOSTILE)
def test_balanced_operands_have_the_same_terms(name, seed):
    a, b = HOSTILE[name](30, 40, 50, seed)
    alive = (a != 0).any(axis=0) & (b != 0).any(axis=1)
    a, b = a[:, alive], b[alive]
    found = balanced(a, b) if alive.any() else None
    assert (found is not None) or name != "graded"
    if found is None:
        return
    x, y = found
    for before, after in ((a, x), (b, y)):
        # Significands are the same; exponents move together, by one number for each inner index.
        assert_same_bits(np.frexp(before)[0], np.frexp(after)[0])
    moved = np.where(a != 0, np.frexp(a)[1] - np.frexp(x)[1], 0)
    back = np.where(b != 0, np.frexp(y)[1] - np.frexp(b)[1], 0)
    shift = np.where(a != 0, moved, -9999).max(axis=0)
    assert (np.where(a != 0, moved == shift, True)).all() and (np.where(b != 0, back == shift[:, None], True)).all()


def test_an_inner_index_that_would_lose_a_bit_stays(rng):
    a, b = rng.standard_normal((9, 40)), rng.standard_normal((40, 7))
    scale = 2.0 ** rng.integers(-60, 60, 40)
    a, b = a * scale, b / scale[:, None]
    a[:, 0] = 2.0**700
    a[3, 0] = 2.0**-1070  # below the least number once the index is divided by 2^400 or so
    b[0] = 2.0**-400
    b[1], a[:, 1] = 2.0**1000, 2.0**-1060 * (1 + 2.0**-10)
    b[1, 2] = 2.0**-1000 * (1 + 2.0**-20)  # likewise
    x, y = balanced(a, b)
    for h in (0, 1):
        assert_same_bits(x[:, h], a[:, h])
        assert_same_bits(y[h], b[h])
    assert (x != a).any()


def test_graded_operands_take_few_bits(seed):
    a, b = HOSTILE["graded"](80, 200, 90, seed)
    i, j = (x.reshape(-1) for x in np.indices((80, 90)))
    block = Block.of(a, b, Entries(0, i, j))
    assert int(block.rows.bits.max()) < 90 < 170 < np.ptp(np.frexp(a)[1]) + 53
    assert int(block.columns.bits.max()) < 90
