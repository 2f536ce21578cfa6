"""The compiled queue of a graph: which addresses it stores, and what it asks of the driver, here functions of C that
write down what they are given.
"""

import ctypes

import numpy as np
import pytest

from prismm.cuda.launch.kernels import node_table as compiled
from prismm.cuda.launch.kernels.queue import queue

WORD = ctypes.c_int64
A, B, OUT, WORKSPACE = range(4)


class Driver:
    """Functions with the driver's calling convention that answer `code` to every call."""

    def __init__(self):
        self.calls, self.code, self.capturing = [], 0, 0
        self.functions = {}
        for name, count in (("launch", 2), ("kernel", 3), ("memset", 4), ("map", 2), ("capturing", 2)):
            kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[WORD] * count)
            self.functions[name] = kind(lambda *words, name=name: self.note(name, words))

    def note(self, name, words):
        if name == "capturing":
            ctypes.c_int32.from_address(words[1]).value = self.capturing
            return 0
        self.calls.append((name, *words))
        return self.code if name != "launch" else 0

    def address(self, name):
        return ctypes.cast(self.functions[name], ctypes.c_void_p).value

    def taken(self):
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def graph():
    """Two kernels and memory that is set, with the words where their addresses are stored."""
    driver, words = Driver(), np.zeros(6, np.int64)
    at = [words.ctypes.data + 8 * x for x in range(6)]
    head = [0] * compiled.NODE
    for place, value in (
        (compiled.EXECUTABLE, 77), (compiled.IS_CAPTURING, driver.address("capturing")),
        (compiled.LAUNCH, driver.address("launch")),
        (compiled.SET_KERNEL, driver.address("kernel")), (compiled.SET_MEMSET, driver.address("memset")),
        (compiled.MOVE_MAP, driver.address("map")), (compiled.CONTEXT, 88), (compiled.NODES, 3),
        (compiled.FACTORS_CHANGED, 1),
    ):  # fmt: skip
        head[place] = value
    head[compiled.BASES : compiled.BASES + compiled.ADDRESSES] = [-1] * compiled.ADDRESSES
    first = compiled.NODE + 3 * compiled.WORDS
    nodes = [
        *(1, 101, 1 << A | 1 << WORKSPACE, first, first + 6, first + 6),
        *(2, 102, 1 << WORKSPACE, first + 6, -1, first + 9),
        *(3, 103, 1 << B | 1 << OUT | 1 << compiled.ADDRESSES, first + 9, first + 15, first + 18),
    ]
    slots = [
        *(at[0], A, 16), *(at[1], WORKSPACE, 0),
        *(at[2], WORKSPACE, 256),
        *(at[3], OUT, 0), *(at[4], compiled.ADDRESSES + 1, 0), *(at[5], B, 32),
    ]  # fmt: skip
    table = np.array(head + nodes + slots, np.int64)
    return driver, table, words, at


def run(table, *bases):
    return queue(table.ctypes.data, 5, *bases, *[0] * (compiled.ADDRESSES - len(bases)))


def test_every_node_is_set_at_first_and_then_those_whose_bases_have_changed(graph):
    driver, table, words, at = graph
    table[compiled.BASES + compiled.ADDRESSES + 1] = 4242
    assert run(table, 1000, 2000, 3000, 4000) == 0
    assert words[:5].tolist() == [1016, 4000, 4256, 3000, 4242]
    assert driver.taken() == [
        ("kernel", 77, 1, 101), ("memset", 77, 2, 102, 88), ("map", at[5], 2032), ("kernel", 77, 3, 103),
        ("launch", 77, 5),
    ]  # fmt: skip
    assert run(table, 1000, 2000, 3000, 4000) == 0 and driver.taken() == [("launch", 77, 5)]
    words[:] = 0  # as another graph of the same parameters leaves them
    assert run(table, 1000, 2000, 3500, 4000) == 0
    assert driver.taken() == [("map", at[5], 2032), ("kernel", 77, 3, 103), ("launch", 77, 5)]
    assert words.tolist() == [0, 0, 0, 3500, 4242, 0]
    assert run(table, 1000, 2000, 3500, 1 << 46) == 0
    assert [x[:3] for x in driver.taken()] == [("kernel", 77, 1), ("memset", 77, 2), ("launch", 77, 5)]
    assert words[1] == 1 << 46 and words[2] == (1 << 46) + 256


def test_factors_concern_the_nodes_that_take_them(graph):
    driver, table, words, _ = graph
    assert run(table, 1000, 2000, 3000, 4000) == 0
    driver.taken()
    table[compiled.BASES + compiled.ADDRESSES + 1] = -5
    table[compiled.FACTORS_CHANGED] = 1
    assert run(table, 1000, 2000, 3000, 4000) == 0
    assert [x[:3] for x in driver.taken() if x[0] == "kernel"] == [("kernel", 77, 3)] and words[4] == -5
    assert table[compiled.FACTORS_CHANGED] == 0


def test_after_an_error_every_node_is_set_again(graph):
    driver, table, _, _ = graph
    driver.code = 700
    assert run(table, 1000, 2000, 3000, 4000) == 700
    assert [x[0] for x in driver.taken()] == ["kernel"]
    driver.code = 0
    assert run(table, 1000, 2000, 3000, 4000) == 0
    assert [x[0] for x in driver.taken()] == ["kernel", "memset", "map", "kernel", "launch"]


def test_nothing_is_launched_on_a_stream_that_is_captured(graph):
    driver, table, words, _ = graph
    driver.capturing = 1
    assert run(table, 1000, 2000, 3000, 4000) == compiled.CAPTURING
    assert driver.taken() == [] and not words.any()
    driver.capturing = 0
    assert run(table, 1000, 2000, 3000, 4000) == 0
    assert [x[0] for x in driver.taken()] == ["kernel", "memset", "map", "kernel", "launch"]
