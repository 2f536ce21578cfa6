"""A block of products: layouts that are known are counted, decided and refused as their first product was."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import prismm
from prismm import Policy, Rule, emulate

from .models import Branches


def test_modes_within_a_block_see_its_products_first():
    class Doubled(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            value = func(*args, **(kwargs or {}))
            return value * 2 if func is torch.ops.aten.mm.default else value

    a = torch.full((2, 2), 3.0)
    with emulate("native") as record, Doubled():
        found = a @ a
    assert (found == 36).all() and [row.count for row in record.rows] == [1]


def test_counts_of_many_calls_are_true(seed):
    """First calls and known layouts, places, passes and nested blocks."""
    model = Branches()
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(seed))
    with emulate("native", model=model, calls=True) as single:
        for _ in range(7):
            model(x).sum().backward()
    with emulate(Policy([Rule(accuracy="native")]), model=model) as outer:
        for _ in range(3):
            model(x).sum().backward()
        with emulate(Policy([Rule(module="head", off=True)])) as inner:
            for _ in range(4):
                model(x).sum().backward()

    def counts(record, **only):
        found: dict[object, int] = {}
        for row in record.rows:
            if all(getattr(row, name) == value for name, value in only.items()):
                key = row.module, row.operator, row.backward, row.m, row.k, row.n
                found[key] = found.get(key, 0) + row.count
        return found

    assert counts(outer) == counts(single) and sum(counts(single).values()) == len(single.calls)
    assert sum(counts(inner, rule=0).values()) * 7 == sum(counts(outer, module="head").values()) * 4
    assert {row.method.scheme for row in inner.rows if row.rule == 0} == {"torch"}
    assert all(row.seconds > 0 for row in outer.rows)


def test_a_backward_pass_without_a_block_is_torchs():
    x = torch.ones(3, 3, requires_grad=True)
    with emulate("native") as record:
        y = x @ x
    y.sum().backward()
    assert sum(row.count for row in record.rows) == 1


@pytest.mark.slow
def test_torch_compile_compiles_nothing_within_a_block():
    a = torch.ones(3, 3)
    before, within = torch.compile(lambda x: x @ x + 1), torch.compile(lambda x: x @ x + 2)
    before(a)
    for f in (before, within):
        with emulate("correctly-rounded") as record:
            f(a)
        assert [row.count for row in record.rows] == [1]
    assert within(a)[0, 0] == 5


def test_a_block_of_one_thread_is_not_anothers():
    found: list[object] = []
    with emulate("native") as record:
        thread = threading.Thread(target=lambda: found.append((prismm.programs.emulate.is_active(), torch.eye(2) @ a)))
        a = torch.ones(2, 2)
        thread.start()
        thread.join()
    assert found[0][0] is False and not record.rows  # type: ignore[index]


def test_time_is_that_of_the_block_however_many_threads_are_in_it():
    import time

    block = emulate("native")
    start = time.perf_counter()

    def wait() -> None:
        with block:
            time.sleep(0.05)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    with block as record:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 0.05 <= record.wall_seconds <= time.perf_counter() - start


def test_what_torch_refuses_is_torchs_error_in_a_layout_that_is_known():
    a = torch.ones(3, 3)
    for b in (torch.ones(3, 3, dtype=torch.float64), torch.ones(2, 3)):
        with emulate("native"), pytest.raises(RuntimeError) as found:
            a @ a
            a @ b
        with pytest.raises(RuntimeError) as plain:
            a @ b
        assert str(found.value) == str(plain.value)
