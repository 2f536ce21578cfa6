"""Compilation: every product of the graphs by the policy, caches, dynamic shapes, passes of others.

Inductor compiles for seconds, so the cases are few and each checks much.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

import prismm
from prismm import Policy, Rule
from prismm.errors import ArgumentError
from prismm.programs import operators
from prismm.programs.compile import ProductPass

from .models import Branches, branches

POLICY = Policy(
    [
        Rule(module="blocks.1", off=True),
        Rule(module="blocks.*", pass_="backward", accuracy=1e-12),
        Rule(where="models.py:*", operator=("mm", "addmm"), accuracy="correctly-rounded"),
    ]
)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(autouse=True)
def fresh(caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Caches of this file's own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(caches))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Products that the operators' kernels make: (operator, recipe)."""
    found: list[tuple[str, str]] = []
    matmul, gemm = operators._matmul, operators._gemm

    def note_matmul(a, b, recipe, dtype=None):
        found.append(("matmul", recipe))
        return matmul(a, b, recipe, dtype)

    def note_gemm(c, a, b, recipe, alpha=1, beta=1):
        found.append(("gemm", recipe))
        return gemm(c, a, b, recipe, alpha, beta)

    operators.load()
    library = torch.library.Library("prismm", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are overridden
        for name, kernel in (("matmul", note_matmul), ("gemm", note_gemm)):
            library.impl(name, kernel, "CPU", allow_override=True)
    monkeypatch.setattr(operators, "_straight", lambda keys: False)
    yield found
    library._destroy()


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for name, parameter in model.named_parameters() if name.endswith("weight")]


@pytest.mark.slow
def test_forward_backward_and_shapes(made, seed):
    """What the interception gives, which other tests compare with exact arithmetic; one compilation for all."""
    model, x = branches(seed, torch.float64)
    # The count is the process's.
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled = prismm.compile(model, POLICY, dynamic=True)
    for size in (4, 3, 7):
        part = torch.cat([x, x])[:size]
        made.clear()
        model.zero_grad()
        found = compiled(part)
        assert sorted(made) == [("gemm", "correctly-rounded")] * 2 + [("matmul", "correctly-rounded")]
        made.clear()
        found.square().sum().backward()
        mine = gradients(model)
        # blocks.0 has two products in the backward pass, first one (its input wants no gradient), head two.
        assert sorted(made) == [("matmul", "1e-12")] * 2 + [("matmul", "correctly-rounded")] * 3
        model.zero_grad()
        with prismm.emulate(POLICY, model=model):
            expected = model(part)
            expected.square().sum().backward()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mine, gradients(model), rtol=1e-11, atol=1e-11)
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 2


@pytest.mark.slow
def test_policies_do_not_share_graphs(made, seed):
    """One model, many policies, more than Dynamo's limit of recompilations; and back to the first."""
    layer = torch.nn.Linear(40, 3, bias=False)
    x = torch.randn(5, 40)
    recipes = ["native", "correctly-rounded", "1e-09", "scheme=words:tf32x3", "native reproducible"]
    # Without isolate_recompiles, all policies of one model share Dynamo's limit of recompilations.
    isolated = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    recipes += [f"scheme=residues:{moduli}" for moduli in range(8, 13 if isolated else 10)]
    compiled = []
    with torch.no_grad():
        for recipe in recipes:
            keywords = prismm.programs.Recipe.parse(recipe)
            compiled.append(
                prismm.compile(layer, keywords.accuracy, scheme=keywords.scheme, reproducible=keywords.reproducible)
            )
            compiled[-1](x)
        made.clear()
        for recipe, one in [*zip(recipes, compiled, strict=True), (recipes[0], compiled[0])]:
            one(x)
            assert made.pop() == ("matmul", recipe) and not made
    plain = torch.compile(layer)
    with torch.no_grad():
        plain(x)
    assert not made


PROGRAM = """
import json, sys, torch, prismm
from torch._dynamo.utils import counters
torch.manual_seed(0)
layer, x = torch.nn.Linear(300, 4, bias=False), torch.randn(5, 300)
def f(x, w):
    return x @ w.T
right = prismm.matmul(x, layer.weight.detach().T, accuracy="correctly-rounded")
for how in sys.argv[1:]:
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(f) if how == "torch" else prismm.compile(f, how)
    y = compiled(x, layer.weight)
    y.sum().backward()
    hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    print(json.dumps({"right": bool((y == right).all()), "hits": hits}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_caches_on_disk_tell_policies_apart(tmp_path):
    """In processes that share a cache: the graph of another policy is never taken, one's own is."""
    found = []
    for ways in (("torch", "correctly-rounded"), ("native", "correctly-rounded")):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *ways],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "shared")},
        )
        found += map(json.loads, done.stdout.splitlines()[-2:])
    assert [one["hits"] > 0 for one in found] == [False, False, False, True]
    assert [one["right"] for one in found] == [False, True, False, True]


class Doubled(CustomGraphPass):
    """Another's pass: it sees torch's products, and doubles them."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
            self.seen += 1
            with graph.inserting_after(node):
                double = graph.call_function(torch.ops.aten.add.Tensor, (node, node))
            double.meta.update(node.meta)
            node.replace_all_uses_with(double, delete_user_cb=lambda user, double=double: user is not double)

    def uuid(self) -> str:
        return "doubled"


@pytest.mark.slow
def test_other_passes_run_too(made, seed):
    a, b = torch.randn(5, 40), torch.randn(40, 3)
    before, after = Doubled(), Doubled()
    options = {"joint_custom_pre_pass": before, "post_grad_custom_pre_pass": after}
    compiled = prismm.compile(lambda x, y: x @ y, "correctly-rounded", options=options)
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    assert torch.equal(compiled(a, b), 2 * expected)
    assert (before.seen, after.seen, made) == (1, 0, [("matmul", "correctly-rounded")])


def test_the_identity_of_the_pass():
    """Policy and passes before it; one without an identity forbids caching."""
    before = Doubled()
    assert ProductPass(POLICY, {}, [lambda graph: None]).uuid() is None
    assert ProductPass(POLICY, {}, [before]).uuid() != ProductPass(POLICY, {}).uuid()
    assert ProductPass(POLICY, {}).uuid() != ProductPass(Policy.of("native"), {}).uuid()
    assert copy.copy(ProductPass(POLICY, {})).uuid() == ProductPass(POLICY, {}).uuid()


@pytest.mark.slow
def test_all_operators(made, seed):
    def f(a, b, c, v):
        return (
            torch.addmm(c, a, b, alpha=0.5, beta=2),
            torch.addmm(c, a, b, beta=0),
            torch.baddbmm(c[None], a[None], b[None]),
            torch.addmv(c[:, 0], a, v),
            torch.mv(a, v),
            torch.dot(v, v),
            torch.vdot(v, v),
            torch.einsum("ij,kj->ik", a, a),
            a[:1] @ b[:, :1],
        )

    a, b, c, v = (torch.randn(shape) for shape in ((5, 40), (40, 3), (5, 3), (40,)))
    compiled = prismm.compile(f, "correctly-rounded")
    found = compiled(a, b, c, v)
    assert len(made) == 9
    with prismm.emulate("correctly-rounded"):
        expected = f(a, b, c, v)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.slow
def test_blocks_of_emulate_leave_compiled_programs_alone(made, seed):
    a, b = torch.randn(5, 40), torch.randn(40, 3)
    compiled = prismm.compile(torch.mm, "correctly-rounded")
    with prismm.emulate("native") as record:
        found = compiled(a, b)
    assert torch.equal(found, prismm.matmul(a, b, accuracy="correctly-rounded"))
    assert [operator for operator, _, _ in record.unseen] == ["compiled code"] and record.rows == []
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False), pytest.warns(UserWarning, match="torch.compile compiles nothing"):
        compiled(a, b)
    # A program of torch.compile runs uncompiled in a block, and is seen.
    plain = torch.compile(Branches())
    with prismm.emulate("native") as record:
        plain(torch.randn(2, 5, 6))
    assert {row.module for row in record.rows} == {"", "first", "blocks.0", "blocks.1", "head"}


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="backend='eager'"):
        prismm.compile(Branches(), "native", backend="eager")
    with pytest.raises(ArgumentError, match="names module 'encoder'"):
        prismm.compile(Branches(), Policy([Rule(module="encoder", accuracy="native")]))
    with pytest.raises(ArgumentError, match="a policy and scheme"):
        prismm.compile(Branches(), POLICY, scheme="native")
