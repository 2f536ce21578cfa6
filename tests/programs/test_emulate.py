"""Interception: every operator and form, against exact arithmetic; nesting, failures, threads; what cannot be seen."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import prismm
from prismm import Policy, Rule, emulate
from prismm.errors import ArgumentError, PrismmError
from prismm.programs import Recipe
from prismm.testing import HOSTILE, exact_gemm, exact_product
from tests.judge import assert_same_bits

from .models import Branches, branches

DTYPES = ("float64", "float32", "complex128", "complex64")
RECORD = Policy([])


def tensors(seed: int, dtype: str, *shape: int, name: str = "cancelling") -> tuple[torch.Tensor, torch.Tensor]:
    """Hostile operands (m, k) and (k, n)."""
    a, b = HOSTILE[name](*shape, seed, np.dtype(dtype))
    return torch.from_numpy(np.array(a)), torch.from_numpy(np.array(b))


def right(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """The product, correctly rounded."""
    x, y = a.resolve_conj().numpy(), b.resolve_conj().numpy()
    return exact_product(x, y).rounded(x.dtype)


def stacked(f: Callable[..., np.ndarray], *batches: torch.Tensor) -> np.ndarray:
    return np.stack([f(*one) for one in zip(*batches, strict=True)])


@pytest.mark.parametrize("dependencies", [False, True])
def test_nothing_is_left_over(dependencies):
    def state() -> tuple[object, ...]:
        keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        stacks = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
        return prismm.programs.emulate.is_active(), *stacks, *(one.raw_repr() for one in keys)

    before = state()
    block = emulate("native", attention="decomposed", dependencies=dependencies)
    with pytest.raises(ZeroDivisionError), block:
        within = state()
        assert within[0] and within[2] == before[2] + 1 and within != before
        torch.ones(2, 2) @ torch.ones(2, 2)
        assert state() == within
        _ = 1 / 0
    assert state() == before and not before[0]
    assert [row.count for row in block.record.rows] == [1]
    with block, block:  # again, and within itself
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert state() == before
    assert sum(row.count for row in block.record.rows) == 2  # a block within itself counts a product once


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "@": lambda a, b: a @ b,
    "transposed": lambda a, b: (b.mT @ a.mT).mT,
    "linear": lambda a, b: torch.nn.functional.linear(a, b.mT),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "inner": lambda a, b: torch.inner(a, b.mT),
    "mm, out": lambda a, b: torch.mm(a, b, out=torch.empty(0, dtype=a.dtype)),
    "matmul, out": lambda a, b: torch.matmul(a, b, out=torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)),
    "out, strided": lambda a, b: torch.mm(a, b, out=torch.empty(b.shape[1], a.shape[0], dtype=a.dtype).mT),
    "strided": lambda a, b: torch.mm(torch.cat([a, a])[: a.shape[0]], torch.cat([b, b], 1)[:, : b.shape[1]]),
    "bmm": lambda a, b: torch.bmm(a[None], b[None])[0],
    "bmm, out": lambda a, b: torch.bmm(a[None], b[None], out=torch.empty(0, dtype=a.dtype))[0],
    "mv": lambda a, b: torch.stack([torch.mv(a, column) for column in b.mT], 1),
    "mv, out": lambda a, b: torch.stack([torch.mv(a, x, out=torch.empty(0, dtype=a.dtype)) for x in b.mT], 1),
    "vector": lambda a, b: torch.stack([row @ b for row in a]),
    "dot": lambda a, b: torch.stack([torch.stack([torch.dot(row, column) for column in b.mT]) for row in a]),
    "vdot": lambda a, b: torch.stack([torch.stack([torch.vdot(row.conj(), x) for x in b.mT]) for row in a]),
    "addmm, beta 0": lambda a, b: torch.addmm(torch.full((), torch.nan, dtype=a.dtype), a, b, beta=0),
    "chain": lambda a, b: torch.linalg.multi_dot([a, b]),
}


@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_every_way_to_a_product(name, dtype, seed):
    a, b = tensors(seed, dtype, 4, 9, 3)
    expected = right(a, b)
    with emulate("correctly-rounded") as record:
        assert_same_bits(CALLS[name](a, b).resolve_conj().numpy(), expected)
    assert all(row.method.guarantee == "½ ulp" for row in record.rows)
    with torch.inference_mode(), emulate("correctly-rounded") as record:
        assert_same_bits(CALLS[name](a, b).resolve_conj().numpy(), expected)
    assert record.rows


ADDED: dict[str, Callable[..., torch.Tensor]] = {
    "addmm": lambda c, a, b, alpha, beta: torch.addmm(c, a, b, alpha=alpha, beta=beta),
    "addmm, out": lambda c, a, b, alpha, beta: torch.addmm(c, a, b, alpha=alpha, beta=beta, out=torch.empty_like(c)),
    "addmm_": lambda c, a, b, alpha, beta: c.clone().addmm_(a, b, alpha=alpha, beta=beta),
    "baddbmm": lambda c, a, b, alpha, beta: torch.baddbmm(c[None], a[None], b[None], alpha=alpha, beta=beta)[0],
    "baddbmm_": lambda c, a, b, alpha, beta: c.clone()[None].baddbmm_(a[None], b[None], alpha=alpha, beta=beta)[0],
    "addbmm": lambda c, a, b, alpha, beta: torch.addbmm(
        c, torch.stack(a.split(3, 1)), torch.stack(b.split(3, 0)), alpha=alpha, beta=beta
    ),
    "addmv": lambda c, a, b, alpha, beta: torch.stack(
        [torch.addmv(x, a, y, alpha=alpha, beta=beta) for x, y in zip(c.mT, b.mT, strict=True)], 1
    ),
    "addmv_": lambda c, a, b, alpha, beta: torch.stack(
        [x.clone().addmv_(a, y, alpha=alpha, beta=beta) for x, y in zip(c.mT, b.mT, strict=True)], 1
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ADDED)
def test_sums_with_products_are_rounded_once(name, dtype, seed):
    a, b = tensors(seed, dtype, 4, 9, 3)
    c = torch.from_numpy(right(a, b)) * -1.5
    alpha, beta = 0.1, -3.0
    taken = alpha if dtype in ("float64", "complex128") else float(np.float32(alpha))
    expected = exact_gemm(taken, a.numpy(), b.numpy(), beta, c.numpy()).rounded(np.dtype(dtype))
    with emulate("correctly-rounded") as record:
        assert_same_bits(ADDED[name](c, a, b, alpha, beta).numpy(), expected)
    assert {row.operator for row in record.rows} == {name.split(",")[0].rstrip("_")}


@pytest.mark.parametrize("extents", itertools.product((0, 2), repeat=4), ids=str)
def test_extents_of_zero(extents):
    batch, m, k, n = extents
    a, b, c = torch.ones(batch, m, k), torch.ones(batch, k, n), torch.ones(m, n)
    calls = (
        lambda: torch.addbmm(c, a, b),
        lambda: torch.baddbmm(c, a, b),
        lambda: a @ b,
        lambda: c.addmm(a.sum(0), b.sum(0)),
    )
    for call in calls:
        with emulate("correctly-rounded"):
            found = call()
        assert torch.equal(found, call())


@pytest.mark.parametrize("name", HOSTILE)
def test_the_stated_bound_holds(name, seed):
    """Every scheme that states one, on hostile operands, in exact arithmetic."""
    a, b = tensors(seed, "float32", 5, 33, 4, name=name)
    exact = exact_product(a.numpy(), b.numpy())
    for policy in ("native", "fast", 1e-6, prismm.Words.tf32(3), prismm.Words.bf16(9)):
        with emulate(policy) as record:
            c = (a @ b).numpy()
        bound = record.rows[0].method.bound
        if bound is not None:
            room = np.nextafter(bound * exact.magnitude("up") + 33 * 2.0**-149, np.inf)
            assert (exact.within(c, room) | ~np.isfinite(c)).all(), policy


def test_half_types_are_rounded_once_more(seed):
    a, b = tensors(seed, "float32", 4, 9, 3)
    for dtype in (torch.float16, torch.bfloat16):
        x, y = a.clamp(-9, 9).to(dtype), b.clamp(-9, 9).to(dtype)
        with emulate("correctly-rounded"):
            c = x @ y
        assert c.dtype == dtype
        assert torch.equal(c, torch.from_numpy(right(x.float(), y.float())).to(dtype))


def test_backward_is_covered_and_attributed(seed):
    model, x = branches(seed, torch.float64)
    x.requires_grad_()
    with emulate("correctly-rounded", model=model) as record:
        model(x).sum().backward()
    rows = Counter[tuple[str, str, bool]]()
    for row in record.rows:
        rows[row.module, row.operator, row.backward] += row.count
    assert rows == {
        ("first", "addmm", False): 1,
        ("blocks.0", "mm", False): 1,
        ("blocks.1", "mm", False): 1,
        ("", "bmm", False): 1,
        ("head", "addmm", False): 1,
        ("first", "mm", True): 2,
        ("blocks.0", "mm", True): 2,
        ("blocks.1", "mm", True): 2,
        ("", "bmm", True): 2,
        ("head", "mm", True): 2,
    }
    assert {row.where.split(":")[0] for row in record.rows} == {"models.py"}
    # The gradient of one layer by hand, each product correctly rounded.
    y, g = tensors(seed, "float64", 4, 9, 3)
    weight = y.clone().requires_grad_()
    with emulate("correctly-rounded"):
        (weight @ g).backward(torch.ones(4, 3, dtype=torch.float64))
    assert_same_bits(weight.grad.numpy(), right(torch.ones(4, 3, dtype=torch.float64), g.T))


def test_rules_speak_of_modules_passes_and_lines(seed):
    model, x = branches(seed)
    policy = Policy(
        [
            Rule(module="head", off=True),
            Rule(module="blocks.*", pass_="backward", scheme="words:tf32x3"),
            Rule(module="blocks.1", accuracy=1e-9),
            Rule(operator="bmm", where="models.py:*", reproducible=True),
            Rule(module="nobody", accuracy="native"),
        ]
    )
    with emulate(policy) as record:
        model(x).sum().backward()
    found = {(row.module, row.backward): row.method for row in record.rows}
    assert found["head", False].scheme == found["head", True].scheme == "torch"
    assert found["blocks.0", True].scheme == found["blocks.1", True].scheme == "words:tf32x3"
    assert found["blocks.1", False].accuracy == "1e-09"
    assert found["", False].scheme.startswith("residues:")
    assert found["first", False].scheme == "torch"
    assert record.unmatched == ["blocks.0", "first"]
    assert record.unused == [4]
    reasons = {(row.module, row.backward): row.reason for row in record.rows}
    assert reasons["first", False] == "no rule" and reasons["head", False] == ""


def test_a_part_of_a_model_keeps_its_name(seed):
    model, x = branches(seed)
    for given, name in ((model, "blocks.1"), ([model], "blocks.1"), (None, "")):
        with emulate("native", model=given) as record:
            model.blocks[1](torch.ones(2, 8))
        assert [row.module for row in record.rows] == [name]
    with emulate("native") as record, prismm.scope("step"), prismm.scope("predict"):
        model(x)
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert {row.module for row in record.rows} >= {"step.predict", "step.predict.blocks.1"}
    assert prismm.programs.places._stack() == []


def test_blocks_nest_and_the_innermost_rule_decides(seed):
    a, b = tensors(seed, "float32", 4, 9, 3)
    with emulate("correctly-rounded") as outer:
        with emulate(Policy([Rule(operator="mv", accuracy="native")])) as inner:
            a @ b
            a @ b[:, 0]
        with emulate(Policy([Rule(off=True)])):
            a @ b
        a @ b
    assert {(row.operator, row.method.accuracy) for row in inner.rows} == {
        ("mv", "native"),
        ("mm", "correctly-rounded"),
    }
    counts = Counter[tuple[str, str]]()
    for row in outer.rows:
        counts[row.operator, row.method.accuracy] += row.count
    assert counts == {("mm", "correctly-rounded"): 2, ("mv", "native"): 1, ("mm", "off"): 1}


def test_a_failure_names_its_place_and_changes_nothing():
    a = torch.ones(2, 2, dtype=torch.float64)
    out = torch.full((2, 2), 7.0, dtype=torch.float64)
    with emulate(engine="cuda:int8"), pytest.raises(PrismmError) as caught, prismm.scope("here"):
        torch.mm(a, a, out=out)
    assert any("in mm of module 'here', test_emulate.py:" in note for note in caught.value.__notes__)
    assert (out == 7.0).all()
    assert not getattr(prismm.programs.intercept.BUSY, "depth", 0)


def test_what_torch_refuses_is_refused_by_torch():
    a = torch.ones(2, 3)
    with emulate("native") as record:
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            a @ a
        with pytest.raises(RuntimeError, match="dtype"):
            a @ a.double().T
        with pytest.raises(RuntimeError):
            torch.addmm(torch.ones(5), a, a.T)
        with pytest.raises(RuntimeError):
            torch.mm(a, a.T, out=torch.empty(2, 2, dtype=torch.float64))
        assert torch.equal(
            torch.ones(2, 2, dtype=torch.int64) @ torch.ones(2, 2, dtype=torch.int64), torch.tensor([[2, 2], [2, 2]])
        )
        torch.mm(torch.ones(2, 2).to_sparse(), torch.ones(2, 2))
    assert {row.reason for row in record.rows} == {"int64 elements", "not dense"}


def test_threads_are_apart(seed):
    a, b = tensors(seed, "float32", 4, 9, 3)
    native, found, barrier = a @ b, {}, threading.Barrier(3)

    def work(name: str, policy: object) -> None:
        block = emulate(policy) if policy else None
        barrier.wait()
        for _ in range(20):
            if block is None:
                c = a @ b
            else:
                with block:
                    c = a @ b
        found[name] = c, block.record if block else None

    threads = [
        threading.Thread(target=work, args=args)
        for args in (("right", "correctly-rounded"), ("off", RECORD), ("none", None))
    ]
    with emulate("correctly-rounded") as here:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert here.rows == []
    assert_same_bits(found["right"][0].numpy(), right(a, b))
    assert torch.equal(found["none"][0], native) and torch.equal(found["off"][0], native)
    assert [row.count for row in found["right"][1].rows] == [20]


def test_a_block_is_left_in_the_thread_that_entered_it():
    """A generator that is closed in another thread gets an error that says so."""

    def program():
        with emulate():
            yield torch.ones(3, 3) @ torch.ones(3, 3)

    held = program()
    thread = threading.Thread(target=next, args=(held,))
    thread.start()
    thread.join()
    with pytest.raises(ArgumentError, match="another thread"):
        held.close()
    with emulate() as record:
        torch.ones(3, 3) @ torch.ones(3, 3)
    assert sum(row.count for row in record.rows) == 1


def test_one_block_in_many_threads(seed):
    a, b = tensors(seed, "float32", 4, 9, 3)
    block = emulate("correctly-rounded")
    results = []

    def work() -> None:
        for _ in range(10):
            with block:
                results.append(a @ b)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(row.count for row in block.record.rows) == 40
    for c in results:
        assert_same_bits(c.numpy(), right(a, b))


def test_what_cannot_be_seen_is_listed():
    functional = torch.nn.functional
    q = torch.ones(1, 2, 8, 16)
    with emulate("native") as record:
        functional.scaled_dot_product_attention(q, q, q)
        torch.cdist(torch.ones(30, 4), torch.ones(30, 4))
        torch.nn.LSTM(4, 4)(torch.ones(3, 2, 4))
        torch.nn.Conv1d(3, 3, 2)(torch.ones(2, 3, 5))
        torch.linalg.solve(torch.eye(3), torch.ones(3, 1))
        torch.linalg.norm(torch.ones(3, 3))
    found = {operator for operator, _, _ in record.unseen}
    for start in ("_scaled_dot_product", "_euclidean_dist", "mkldnn_rnn_layer", "convolution", "_linalg_solve_ex"):
        assert any(name.startswith(start) for name in found), (start, found)
    assert len(found) == 5
    assert "not seen: 1 x _euclidean_dist" in str(record)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_decomposed(masked, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, 8, 16, dtype=torch.float64, generator=generator) for _ in range(3))
    for x in (q, k, v):
        x.requires_grad_()
    attend = torch.nn.functional.scaled_dot_product_attention
    keywords = {"attn_mask": torch.arange(64).reshape(8, 8) % 3 > 0} if masked else {"is_causal": True, "scale": 0.3}
    expected = attend(q, k, v, **keywords)
    wanted = torch.autograd.grad(expected.sum(), [q, k, v])
    with emulate("correctly-rounded", attention="decomposed") as record:
        found = attend(q, k, v, **keywords)
        gradients = torch.autograd.grad(found.sum(), [q, k, v])
    assert not record.unseen
    assert sum(row.count for row in record.rows) == 6
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gradients, wanted, rtol=1e-11, atol=1e-12)


def test_fused_layers_step_aside_where_attention_is_decomposed(seed):
    torch.manual_seed(seed)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 8, 16)
    with torch.no_grad():
        expected = layer(x)
        with emulate("native") as fused:
            layer(x)
        with emulate("native", attention="decomposed") as apart:
            found = layer(x)
    assert fused.rows == [] and list(fused.unseen.values()) == [(1, fused.unseen[next(iter(fused.unseen))][1])]
    assert not apart.unseen
    assert sum(row.count for row in apart.rows) == 6
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_dependencies(seed):
    a, b = tensors(seed, "float32", 4, 4, 4)
    with emulate("native", dependencies=True) as record:
        c = a @ b
        d = (c + 1).T.contiguous() @ a
        total = torch.zeros(4, 4)
        total[:2] = d[:2]
        total.add_(torch.relu(a @ a))
        total @ b
        b @ a
        listed = [torch.zeros(4, 4), torch.zeros(4, 4)]
        torch._foreach_add_(listed, [c, b])  # returns nothing
        listed[0] @ b
        listed[1] @ b
    assert [sorted(call.after) for call in record.calls] == [[], [0], [], [1, 2], [], [0], [0]]
    assert [call.index for call in record.calls] == [0, 1, 2, 3, 4, 5, 6]


def test_prismms_own_products_are_not_the_programs(seed):
    a, b = tensors(seed, "float32", 40, 90, 30)
    with emulate("correctly-rounded") as record:
        plain = prismm.matmul(a, b, scheme=prismm.Native())
    assert record.rows == []
    assert torch.equal(plain, a @ b)


def test_other_modes_go_on(seed):
    class Count(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Count.seen += 1
            return func(*args, **(kwargs or {}))

    a, b = tensors(seed, "float32", 4, 9, 3)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as inside, Count(), emulate(RECORD):
        a @ b
    assert Count.seen >= 1
    with emulate("correctly-rounded"), FlopCounterMode(display=False) as within:
        assert_same_bits((a @ b).numpy(), right(a, b))
    assert within.get_total_flops() == inside.get_total_flops() == 2 * 4 * 9 * 3
    assert _get_current_dispatch_mode_stack() == []


def test_training_in_blocks_of_their_own(seed):
    """A backward pass in a later block of the same `emulate` still knows its modules."""
    model, x = branches(seed)
    block = emulate(Policy([Rule(module="head", accuracy="correctly-rounded"), Rule(accuracy="native")]))
    with block:
        loss = model(x).sum()
    with block:
        loss.backward()
    found = {(row.module, row.backward): row.method.accuracy for row in block.record.rows}
    assert found["head", True] == "correctly-rounded" and found["first", True] == "native"


def test_records_are_json(seed):
    import json

    model, x = branches(seed)
    with emulate(Policy([Rule(module="head", accuracy=1e-9)])) as record:
        model(x)
        torch.cdist(torch.ones(30, 4), torch.ones(30, 4))
    content = json.loads(json.dumps(record.to_dict()))
    assert {row["module"] for row in content["gemms"]} == {"", "first", "blocks.0", "blocks.1", "head"}
    assert sum(row["count"] for row in content["gemms"]) == 5
    assert content["unmatched_modules"] == ["", "blocks.0", "blocks.1", "first"]
    assert Policy.from_dict(content["policy"]) == record.policy


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(ArgumentError, match="names module 'decoder'"):
        emulate(Policy([Rule(module="decoder", accuracy="native")]), model=Branches())


def test_former_names_warn():
    with emulate("correctly-rounded") as record:
        torch.ones(2, 3) @ torch.ones(3, 2)
    with pytest.warns(DeprecationWarning, match=r"Record\.synchronize"):
        assert record.settle() is record
    with pytest.warns(DeprecationWarning, match=r"Call\.method"):
        assert record.rows[0].made == record.rows[0].method
    with pytest.warns(DeprecationWarning, match=r"Recipe\.reads_data"):
        assert Recipe("correctly-rounded").looks


def test_a_decorator_is_a_block_for_each_call():
    a, b = torch.tensor([[1e8, 1.0, -1e8]]), torch.ones(3, 1)
    exactly = prismm.emulate("correctly-rounded")

    @exactly
    def product(depth):
        """Calls itself."""
        inner = product(depth - 1) if depth else 0.0
        return (a @ b).item() + inner

    def later():
        yield a @ b

    async def sooner():
        return a @ b

    assert product(2) == 3.0 and product.__doc__ == "Calls itself." and (a @ b).item() == 0.0
    assert [row.count for row in exactly.record.rows] == [3]
    for function in (later, sooner):
        with pytest.raises(prismm.errors.ArgumentError, match="open a block inside"):
            exactly(function)
