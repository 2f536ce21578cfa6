"""What brings products to a block: the key's kernels see what the block's mode sees, and operators between are free."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import prismm
from prismm import Policy, Rule, emulate
from prismm.programs import intercept
from prismm.programs.block import Block
from prismm.programs.outputs import same

from .models import branches


def outputs_of(seed: int) -> dict[str, Callable[[], Any]]:
    """Programs that torch runs by different ways, each of them with products."""
    model, x = branches(seed, torch.float64)
    generator = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randn(3, 3, dtype=torch.float64, generator=generator) for _ in range(3))

    def squared(y: torch.Tensor) -> torch.Tensor:
        return (y @ b @ y).sum()

    def trained() -> Any:
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    def twice() -> Any:
        y = a.clone().requires_grad_()
        (first,) = torch.autograd.grad(squared(y), y, create_graph=True)
        return torch.autograd.grad(first.square().sum(), y)

    def forwards() -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(squared(forward_ad.make_dual(a, c)))

    def again() -> Any:
        y = a.clone().requires_grad_()
        checkpoint(squared, y, use_reentrant=False).backward()
        return y.grad

    def inferred() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.linear(a, b, c[0]), torch.einsum("ij,jk->ik", a, b), model(x)

    return {
        "training": trained,
        "second derivatives": twice,
        "forward derivatives": forwards,
        "checkpoint": again,
        "inference": inferred,
        "torch.func.grad": lambda: torch.func.grad(squared)(a),
        "torch.func.vmap": lambda: torch.func.vmap(lambda y: y @ b)(torch.stack([a, c])),
        "torch.func.jvp": lambda: torch.func.jvp(squared, (a,), (c,)),
        "torch.func.hessian": lambda: torch.func.hessian(squared)(a),
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16)(lambda: a.float() @ b.float())(),
        "in place": lambda: [a.clone().addmm_(b, c), torch.addmm(a, b, c, alpha=2), torch.mm(a, b, out=c.clone())],
        "hidden": lambda: torch.nn.functional.conv1d(a[None], a[None].mT) + torch.linalg.solve(a, b).sum(),
    }


def table(record: Any) -> Counter[Any]:
    """What a record says, without lines and times."""
    found: Counter[Any] = Counter()
    for row in record.rows:
        key = row.operator, row.module, row.backward, row.batch, row.m, row.k, row.n, row.dtype, row.method, row.rule
        found[key] += row.count
    for operator, module, _, what, count in record.reasons:
        found[operator, module, what] += count
    return found


WAYS = (
    "training", "second derivatives", "forward derivatives", "checkpoint", "inference", "torch.func.grad",
    "torch.func.vmap", "torch.func.jvp", "torch.func.hessian", "autocast", "in place", "hidden",
)  # fmt: skip
POLICIES = "native", "correctly-rounded", Policy([Rule(operator="bmm", off=True)])


@pytest.mark.parametrize("name", WAYS)
def test_kernels_see_what_the_mode_sees(name, seed):
    """A block that follows dependencies has its mode around everything: the same products, and the same bits."""
    run = outputs_of(seed)[name]
    for policy in POLICIES:
        with emulate(policy, dependencies=True) as by_mode:
            expected = [run() for _ in range(3)]
        with emulate(policy) as by_key:
            found = [run() for _ in range(3)]
        assert same(found, expected), policy
        assert table(by_key) == table(by_mode) and table(by_key), policy


def test_operators_that_make_no_product_run_without_a_mode():
    a = torch.ones(3, 3)
    with emulate("correctly-rounded"):
        assert intercept.key() is not None
        assert not torch._C._len_torch_dispatch_stack()
        a @ a
        assert not torch._C._len_torch_dispatch_stack()


@pytest.mark.parametrize("policy", ["native", Policy([Rule(reproducible=True)])], ids=["torch's", "prismm's"])
def test_known_products_run_without_a_mode(policy, seed, monkeypatch):
    model, x = branches(seed)
    key = torch._C._dispatch_key_parse(intercept._BENEATH)

    def gradients() -> Any:
        model.zero_grad()
        model(x).sum().backward()
        assert not torch._C._dispatch_tls_is_dispatch_key_included(key)
        return [parameter.grad.clone() for parameter in model.parameters()]

    with emulate(policy) as record:
        expected, counts = gradients(), [row.count for row in record.rows]
        monkeypatch.setattr(Block, "seen", None)  # nothing else is looked at
        assert same(gradients(), expected)
    assert [row.count for row in record.rows] == [2 * count for count in counts]


def test_a_known_product_that_fails_leaves_no_key(seed, monkeypatch):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(3, 3, generator=generator, requires_grad=True)
    key = torch._C._dispatch_key_parse(intercept._BENEATH)
    with emulate(Policy([Rule(reproducible=True)])):
        expected = a @ a
        with monkeypatch.context() as patch:
            patch.setattr(Block, "product", None)
            with pytest.raises(TypeError):
                a @ a
        assert not torch._C._dispatch_tls_is_dispatch_key_included(key)
        assert same(a @ a, expected)


def test_a_block_ends_as_it_began_whatever_fails():
    a = torch.ones(2, 2)
    with emulate("native"):
        a @ a
        with pytest.raises(RuntimeError):
            a @ torch.ones(3, 3)
        with pytest.raises(ZeroDivisionError), emulate("correctly-rounded", dependencies=True), emulate("native"):
            _ = 1 / 0
        with intercept.put_aside():
            a @ a
        assert prismm.programs.emulate.is_active() and not torch._C._len_torch_dispatch_stack()
    assert intercept.innermost() is None


def test_a_block_knows_what_the_one_before_it_met(seed, monkeypatch):
    model, x = branches(seed)
    block = emulate("native")

    def run() -> None:
        with prismm.scope("step"):
            model(x).sum().backward()

    with block as record:
        run()
    expected = [(row.module, row.where, row.backward, row.count) for row in record.rows]
    thread = threading.Thread(target=block(run))  # it finds out for itself
    thread.start()
    thread.join()
    monkeypatch.setattr(Block, "seen", None)  # nothing else is looked at
    for _ in range(2):
        block(run)()
    found = [(row.module, row.where, row.backward, row.count) for row in record.rows]
    assert sorted(found) == sorted((*place, 4 * count) for *place, count in expected)
    with pytest.raises(TypeError), emulate(reproducible=True):
        run()


def test_a_new_block_knows_what_blocks_with_its_policy_met(seed, monkeypatch):
    """The new block's record has the same rows. Blocks with another policy, with dependencies, or within another block
    decide for themselves.
    """
    model, x = branches(seed)

    def rows(*policy: Any, **keywords: Any) -> list[Any]:
        with emulate(*policy, **keywords) as record:
            for _ in range(2):
                model(x).sum().backward()
        return sorted((*row.call.key[:-3], row.method, row.rule, row.count) for row in record.rows)

    expected = {name: rows(**keywords) for name, keywords in _ASKED.items()}
    assert len({str(some) for some in expected.values()}) == len(expected)
    first = Block._first
    looked: list[Any] = []
    monkeypatch.setattr(Block, "_first", lambda self, *args: looked.append(args) or first(self, *args))
    for name, keywords in _ASKED.items():
        assert rows(**keywords) == expected[name]
    assert not looked
    assert rows("correctly-rounded") and looked
    looked.clear()
    assert rows(dependencies=True) == expected["default"] and looked
    looked.clear()
    with emulate(reproducible=True):
        assert rows() == expected["default"] and looked
        looked.clear()
    assert rows() == expected["default"] and not looked


_ASKED: dict[str, dict[str, Any]] = {
    "default": {}, "reproducible": {"reproducible": True}, "engine": {"reproducible": True, "engine": "cpu:float64"},
}  # fmt: skip


def test_blocks_may_end_in_any_order():
    """Interleaved tasks, and a generator that outlives the block around it: products go to the innermost open block."""
    a, found = torch.ones(2, 2), []

    async def task(seconds: float) -> None:
        with emulate("native") as record:
            a @ a
            await asyncio.sleep(seconds)
            a @ a
        found.append(record)

    async def both() -> None:
        await asyncio.gather(task(0.01), task(0.03))

    asyncio.run(both())
    assert [sum(row.count for row in record.rows) for record in found] == [3, 3]
    assert intercept.innermost() is None
    a @ a
    assert [sum(row.count for row in record.rows) for record in found] == [3, 3]

    def inside() -> Iterator[None]:
        with emulate("native") as record:
            found.append(record)
            a @ a
            yield
            a @ a

    with emulate("native"):
        generator = inside()
        next(generator)
    a @ a
    with emulate("native") as record:
        a @ a
        generator.close()
        a @ a
    assert [row.count for row in record.rows] == [1, 1] and intercept.innermost() is None


@pytest.mark.parametrize("recipe", ["native", "correctly-rounded"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_factors_of_sums_are_those_that_the_operator_was_given(device: str, recipe: str, rng: Any) -> None:
    """alpha and beta by keyword, at a line that also makes sums without them."""
    a, b, x = (torch.from_numpy(rng.standard_normal(size)).to(device) for size in ((5, 6), (6, 4), 6))
    shapes = {torch.addmm: (5, 4), torch.addmv: 5, torch.baddbmm: (2, 5, 4), torch.addbmm: (5, 4)}
    for operator, shape in shapes.items():
        c = torch.from_numpy(rng.standard_normal(shape)).to(device)
        stacked = operator in (torch.baddbmm, torch.addbmm)
        operands = (a.expand(2, 5, 6), b.expand(2, 6, 4)) if stacked else (a, x if operator is torch.addmv else b)
        for factors in ({}, {"alpha": 2}, {"beta": 0}, {"beta": 0.5}, {"alpha": -1.5, "beta": 3}, {}):
            with emulate(recipe):
                for _ in range(2):
                    found = operator(c, *operands, **factors)
                    assert torch.allclose(found, operator(c, *operands, **factors), rtol=0, atol=0)
            assert torch.allclose(found, operator(c, *operands, **factors), rtol=1e-12, atol=1e-12), (operator, factors)


def test_products_after_compiled_code_are_made_by_the_policy() -> None:
    """The product in which torch.compile meets a block, all later ones of the block, and those of the next block."""
    x, y = torch.tensor([[1e8, 1.0, -1e8]]), torch.ones(3, 1)
    compiled = torch.compile(lambda a, b: a @ b, backend="eager")
    for count in (5, 5):
        with emulate("native") as outer, emulate("correctly-rounded") as record:
            found = [compiled(x, y), compiled(x, y), x @ y, compiled(x, y), x @ y]
        assert [each.item() for each in found] == [1.0] * 5
        assert sum(row.count for row in record.rows) == sum(row.count for row in outer.rows) == count
    assert (x @ y).item() == 0.0 and intercept.innermost() is None


def test_rules_follow_modules_to_their_new_names() -> None:
    x = torch.tensor([[1e8, 1.0, -1e8]])
    layer = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    model = torch.nn.Sequential(layer)
    policy = Policy([Rule(module="moved", accuracy="correctly-rounded"), Rule(module="*", off=True)])
    block = emulate(policy)
    for opened in (emulate(policy), block, block):
        with opened as record:
            assert model(x).item() == 0.0 and record.rows[-1].module == "0"
    model.add_module("moved", model._modules.pop("0"))
    for opened in (emulate(policy), block, block):
        with opened as record:
            assert model(x).item() == 1.0
        assert "moved" in {row.module for row in record.rows}
    two = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for _ in range(2):
        for _ in range(2):
            with emulate(
                Policy([Rule(module="0", off=True), Rule(module="1", accuracy="correctly-rounded")])
            ) as record:
                two(torch.ones(1, 2))
            assert {row.module: row.method.accuracy for row in record.rows} == {"0": "off", "1": "correctly-rounded"}
        two[0], two[1] = two[1], two[0]


def test_products_that_are_looked_at_anew_count_in_one_row() -> None:
    a = torch.full((4, 4), 1e30)  # whose products overflow
    with emulate("native") as record:
        for _ in range(20):
            a @ a
    assert sum(row.count for row in record.rows) == 20 and len(record._tallies) <= 1


@pytest.mark.parametrize("wrong", [torch.zeros(7), torch.zeros(3, 3).double(), torch.zeros(2, 3, 3)])
def test_addends_that_torch_refuses_are_refused_where_they_count_for_nothing(wrong: torch.Tensor) -> None:
    a = torch.randn(3, 3)
    for recipe in ("native", "correctly-rounded"):
        with emulate(recipe):
            with pytest.raises(RuntimeError):
                torch.addmm(wrong, a, a, beta=0)
            kept = torch.addmm(torch.full((3, 3), torch.nan), a, a, beta=0)
        assert torch.allclose(kept, a @ a)


def test_a_thread_that_keeps_a_block_refers_to_it():
    """Also in versions of torch that take no reference to what they keep for a thread."""

    class Value:
        pass

    value, name = Value(), "prismm.tests.kept"
    count = sys.getrefcount(value)
    for _ in range(3):
        intercept._keep(name, value)
        assert sys.getrefcount(value) == count + 1 and torch._C._get_obj_in_tls(name) is value
    intercept._keep(name, None)
    assert sys.getrefcount(value) == count


def test_what_a_layout_says_is_true_of_all_operands():
    """A product under autocast, or with an operand on another device, is not taken for an earlier one of its shape."""
    a, x, y, z = torch.ones(8, 8), torch.ones(1, 3, 4), torch.ones(1, 4, 5), torch.ones(1, 3, 5)

    def run(cast: bool) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            torch.mm(a, a)

    for recipe in (Rule(off=True), Rule(accuracy="native")):
        for casts in ((False,), (True,), (False, True, False, True)):
            with emulate(recipe) as record:
                for cast in casts:
                    run(cast)
            expected = {"bfloat16": sum(casts), "float32": len(casts) - sum(casts)}
            assert {row.dtype: row.count for row in record.rows} == {k: v for k, v in expected.items() if v}
        for _ in range(2):
            for given in ((x, y), (x, y.to("meta"))):
                with emulate(recipe):
                    assert torch.bmm(*given).device == given[1].device
            for given in ((z, x, y), (z.to("meta"), x, y), (z, x, y.to("meta"))):
                with emulate(recipe):
                    torch.baddbmm(*given)


def test_closed_blocks_are_freed_at_once(seed):
    """Reference counting alone frees a closed block and all that it refers to."""
    model, x = branches(seed)

    def run() -> None:
        with emulate("native"), prismm.scope("inner"), emulate(reproducible=True), contextlib.suppress(ValueError):
            model(x).sum().backward()
            raise ValueError

    run()
    gc.collect()
    gc.disable()
    try:
        before = {id(one) for one in gc.get_objects() if type(one) in (emulate, Block)}
        run()
        assert not [one for one in gc.get_objects() if type(one) in (emulate, Block) and id(one) not in before]
    finally:
        gc.enable()


def test_a_product_that_is_looked_at_after_all_counts_once():
    """A product whose result is not finite takes the full path in a new block, too, and is counted once."""
    a, b = torch.full((2, 3), 1e200, dtype=torch.float64), torch.full((3, 2), 1e200, dtype=torch.float64)
    for x, y in ((a, torch.ones_like(b)), (a, b), (a, b)):
        with emulate("native") as record:
            product = x @ y
        assert [row.count for row in record.rows] == [1] and torch.isinf(product).all() == (y is b)


def test_a_block_with_other_settings_finds_out_for_itself(monkeypatch):
    a, block = torch.ones(3, 3), emulate(reproducible=True)
    for engine in ("cpu:int8", "cpu:float64"):
        monkeypatch.setenv("PRISMM_ENGINE", engine)
        for _ in range(2):
            with block as record:
                a @ a
    assert {row.method.engine: row.count for row in record.rows} == {"cpu:int8": 2, "cpu:float64": 2}


@pytest.mark.slow
def test_blocks_that_are_closed_hold_no_model_and_no_code():
    block, found = emulate("native"), []
    for width in (2, 3):
        space: dict[str, Any] = {}
        exec("def called(model, x): return model(x)", space)
        for _ in range(2):
            model = torch.nn.Sequential(torch.nn.Linear(2, width))
            with block as record:
                for _ in range(2):
                    space["called"](model, torch.ones(1, 2))
            found += [weakref.ref(model), weakref.ref(model[0]), weakref.ref(space["called"].__code__)]
            del model
        space.clear()
        gc.collect()
        assert all(one() is None for one in found)
    assert {(row.module, row.n): row.count for row in record.rows} == {("0", 2): 4, ("0", 3): 4}


def test_a_block_that_is_opened_again_decides_as_one_around_it_asks():
    a, inner = torch.tensor([[1e8, 1.0, -1e8]]), emulate(Policy([Rule(operator="mm", module="none", off=True)]))
    b, found = torch.ones(3, 1), []

    def run() -> None:
        with inner:
            found.append((a @ b).item())

    run()
    with emulate("correctly-rounded"):
        run()
    run()
    plain = (a @ b).item()
    assert found == [plain, 1.0, plain] != [1.0] * 3
