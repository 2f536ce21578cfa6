"""Workers that share blocks of columns multiply each row of each block once, help slower ones, and give memory back."""

import threading
import time

import numpy as np
import pytest

import prismm
from prismm.cpu.residues import sharing
from prismm.cpu.residues.sharing import Block, Blocks
from tests.judge import assert_same_bits


def run(blocks, workers, split, multiply):
    """Run all workers at the same time; returns the exceptions that they raised."""
    errors = []

    def part():
        try:
            blocks.work(split, multiply)
        except BaseException as error:
            blocks.over = True
            errors.append(error)

    threads = [threading.Thread(target=part) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blocks.close()
    return errors


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("most", [96, 4128])
def test_every_row_of_every_block_once(workers, most, rng):
    columns = [(32 * x, 32 * x + 32) for x in range(7)]
    ends = [int(x) for x in rng.integers(1, 2000, 7)]
    starts = [int(rng.integers(0, end + 1)) if x % 3 else 0 for x, end in enumerate(ends)]
    split, seen, guard = [], np.zeros((7, 2000), np.int64), threading.Lock()
    sizes = []

    def multiply(block, first, last):
        assert block.first in split and block.residues is not None
        with guard:
            seen[block.first // 32, first:last] += 1
            sizes.append((last - first, block.end - first))
        time.sleep(float(rng.random()) * 1e-3)

    def ready(block):
        block.residues = block.workspace.empty((10,), "int8")
        split.append(block.first)

    blocks = [Block(*x, start, end) for x, start, end in zip(columns, starts, ends, strict=True)]
    assert not run(Blocks(blocks, workers, most), workers, ready, multiply)
    for x, (start, end) in enumerate(zip(starts, ends, strict=True)):
        assert (seen[x, start:end] == 1).all() and seen[x].sum() == end - start
    assert sorted(split) == [first for first, _ in columns], (
        "a block without rows is split, too, as its scales are wanted"
    )
    assert all(size == left or size % sharing.ROW_STEP == 0 for size, left in sizes)
    assert max(size for size, _ in sizes) <= most


def test_who_is_free_helps_a_slow_worker():
    """One worker takes a hundred times as long for a row: the others take nearly all rows of its block."""
    slow, rows = [], {}

    def split(block):
        if not slow:
            slow.append(threading.get_ident())

    def multiply(block, first, last):
        here = threading.get_ident()
        rows[here] = rows.get(here, 0) + last - first
        time.sleep((last - first) * (1e-4 if here in slow else 1e-6))

    blocks = [Block(0, 32, 0, 4000), Block(32, 64, 0, 4000)]
    start = time.monotonic()
    assert not run(Blocks(blocks, 2, 480), 2, split, multiply)
    assert sum(rows.values()) == 8000 and rows[slow[0]] < 2000, rows
    assert time.monotonic() - start < 0.3


def test_an_error_ends_all_and_gives_memory_back():
    """A split fails: no worker takes rows of that block, which has no residues."""

    def split(block):
        block.workspace.empty((1 << 20,), "int8")
        if block.first:
            raise MemoryError("no room")

    def multiply(block, first, last):
        assert not block.first
        time.sleep(1e-3)

    blocks = [Block(x, x + 1, 0, 3000) for x in range(3)]
    errors = run(Blocks(blocks, 2, 96), 2, split, multiply)
    assert errors and all(isinstance(error, MemoryError) for error in errors)
    assert not any(block.workspace._in_use for block in blocks)


@pytest.mark.parametrize("threads", [2, 3])
def test_products_have_the_bits_of_one_worker(threads, rng):
    a, b = rng.standard_normal((900, 60)), rng.standard_normal((60, 450))
    for given in ({"reproducible": True}, {"accuracy": "correctly-rounded"}):
        assert_same_bits(prismm.matmul(a, b, threads=threads, **given), prismm.matmul(a, b, threads=1, **given))
