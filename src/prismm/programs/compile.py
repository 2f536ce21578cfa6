"""Compilation: torch.compile, with the products of every graph made by a policy.

AOTAutograd traces the model's forward and backward pass into aten operators; a pass over that joint graph puts prismm's
operators (`programs.operators`) instead of the products, before Inductor fuses, pads or partitions anything. The
policy is part of the pass's identity, and a product's recipe is an argument in the graph: neither Inductor's caches on
disk nor Dynamo's in memory can take the graph of one policy for that of another.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from prismm import __version__
from prismm.errors import ArgumentError
from prismm.programs import derivatives, gemms, intercept, operators, places, policy, recipe
from prismm.programs.policy import Policy

_HOOK = "joint_custom_pre_pass"
_SUMS = "_c10d_functional.all_reduce", "_c10d_functional.reduce_scatter"
_ROUNDED = "native", "fast"
_BY_DECOMPOSITION = ("addbmm",)
"""Operators that torch takes apart into others of the table before the pass."""


def compile(
    model: Any,
    policy: Any = None,
    /,
    *,
    scheme: Any = None,
    reproducible: bool = False,
    engine: str | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Any:
    """torch.compile with the products made by a policy, forward and backward, for fixed and dynamic shapes.

    Args:
        model: a module or a function.
        policy: a `Policy`, a `Rule`, an accuracy as for `prismm.matmul`, or a scheme; default "native". Rules name
            modules as `named_modules` of the model has them; `scope` does not reach into compiled code.
        scheme, reproducible, engine: as for `matmul`, instead of a policy.
        mode, options: as for torch.compile. A ``joint_custom_pre_pass`` of your own, among the options or in
            Inductor's configuration, runs first and sees torch's products; other passes run as ever, and see prismm's.
        **keywords: what else torch.compile takes (fullgraph, dynamic, ...), but no backend: it is Inductor.

    Returns:
        What torch.compile returns. The gradients of what it computes go through the policy too, wherever ``backward``
        is called. Fused attention stays as it is. Where torch.compile has no ``isolate_recompiles``, all policies of
        one model share Dynamo's limit of recompilations: beyond it products are torch's own, and Dynamo warns.

    Raises:
        ArgumentError, AccuracyError: for an argument that is not a policy, a policy for another model, or a backend.

    >>> import prismm, torch
    >>> model = prismm.compile(torch.nn.Linear(3, 2), "correctly-rounded")  # compiled when it is first called
    >>> prismm.compile(torch.nn.Linear(3, 2), prismm.Policy([prismm.Rule(module="head", off=True)]))
    Traceback (most recent call last):
    prismm.errors.ArgumentError: the policy names module 'head', which the model lacks; it has ''
    """
    if "backend" in keywords:
        raise ArgumentError(
            f"backend={keywords['backend']!r}: prismm.compile works through Inductor; leave backend out"
        )
    chosen = Policy.of(policy, scheme=scheme, reproducible=reproducible, engine=engine)
    if isinstance(model, torch.nn.Module):
        chosen.check(model)
    settings = dict(torch._inductor.list_mode_options(mode)) if mode not in (None, "default") else {}
    settings |= dict(options or {})
    backend = _Backend(model, chosen, settings)
    known = inspect.signature(torch.compile).parameters
    if "isolate_recompiles" in known:
        # Each policy has its own graphs: without this, many policies for one model would share one limit.
        keywords.setdefault("isolate_recompiles", True)
    compiled: Any = torch.compile(model, backend=backend, **keywords)
    if isinstance(model, torch.nn.Module):
        compiled.forward = _outside(compiled.forward)
        return compiled
    return _outside(compiled)


def _outside(compiled: Any) -> Any:
    """The compiled callable, which blocks of `emulate` leave alone: where a dispatch mode is active Dynamo would run
    the program as it stands, without the policy.
    """

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if intercept.innermost() is not None:
            from prismm.programs import emulate

            emulate.note_hidden("compiled code", "a program of prismm.compile, whose products follow its own policy")
            with intercept.put_aside():
                return compiled(*args, **kwargs)
        if torch._C._len_torch_dispatch_stack() and not torch.compiler.is_compiling():
            warnings.warn(
                "a dispatch mode is active, under which torch.compile compiles nothing: the products of this call "
                "are torch's own, not the policy's",
                stacklevel=2,
            )
        return compiled(*args, **kwargs)

    return call


class _Backend:
    """A Dynamo backend: Inductor, with the pass. Each is equal to itself alone, so that Dynamo shares no graph."""

    def __init__(self, model: Any, chosen: Policy, settings: dict[str, Any]) -> None:
        self.policy, self.settings = chosen, settings
        modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        self.names = {id(module): name for name, module in modules}

    def __call__(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx

        operators.load()
        before = self.settings.get(_HOOK, getattr(config, _HOOK))
        mine = ProductPass(self.policy, self.names, _listed(before))
        return compile_fx(
            graph, inputs, config_patches={**self.settings, _HOOK: mine}, decompositions=_decompositions()
        )


class ProductPass(CustomGraphPass):
    """The graph pass: products of the policy's rules become prismm's operators.

    Args:
        chosen: the policy.
        names: modules' names by their ids, as Dynamo notes them beside each node.
        before: passes that run first.
    """

    def __init__(
        self, chosen: Policy, names: Mapping[int, str], before: Iterable[Callable[[torch.fx.Graph], Any]] = ()
    ) -> None:
        self.policy, self.names, self.before = chosen, names, tuple(before)

    def uuid(self) -> Any:
        """What decides the result of the pass, or None (no caching) where a pass before it does not say that."""
        identities = []
        for one in self.before:
            identity = one.uuid() if hasattr(one, "uuid") else None
            if identity is None:
                return None
            identities.append(identity)
        return (__version__, _sources(), self.policy.to_json(), tuple(self.names.values()), tuple(identities))

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Rewrite the graph in place."""
        for one in self.before:
            one(graph)
        for node in list(graph.nodes):
            if node.op == "call_function" and gemms.operator_of(node.target) is not None:
                self._replace(graph, node)
        self._check_sums(graph)
        graph.lint()

    def _check_sums(self, graph: torch.fx.Graph) -> None:
        """Warn of sums over ranks in a graph: DTensors stand there as each rank's parts."""
        exact = any(x.recipe.reproducible or x.recipe.accuracy not in (None, *_ROUNDED) for x in self.policy.rules)
        if exact and any(str(node.target).startswith(_SUMS) for node in graph.nodes):
            warnings.warn(
                "a graph adds entries over ranks, by torch's own reduction: where that is the sum over a sharded inner "
                "dimension, or of gradients, it is rounded; prismm.emulate makes such products of DTensors exactly",
                stacklevel=2,
            )

    def _replace(self, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
        gemm = _asked(node)
        if gemm is None:
            return
        found = self.policy.recipe(_module(node, self.names), gemm.operator, _is_backward(node), _where(node))
        if found.off:
            return
        text = str(found)
        with graph.inserting_before(node):
            if gemm.operator == "vdot" and gemm.dtype.is_complex:
                conjugate = self._insert(graph, node, torch.ops.prims.conj_physical.default, (gemm.a,), {})
                new = self._insert(graph, node, torch.ops.prismm.matmul.default, (conjugate, gemm.b, text, None), {})
            elif gemm.c is None and gemm.alpha == 1:
                new = self._insert(graph, node, torch.ops.prismm.matmul.default, (gemm.a, gemm.b, text, gemm.dtype), {})
            else:
                scalars = {"alpha": gemm.alpha, "beta": gemm.beta}
                new = self._insert(graph, node, torch.ops.prismm.gemm.default, (gemm.c, gemm.a, gemm.b, text), scalars)
        node.replace_all_uses_with(new)
        graph.erase_node(node)

    def _insert(self, graph: torch.fx.Graph, like: torch.fx.Node, target: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        from torch._guards import detect_fake_mode
        from torch.fx.node import map_arg

        new = graph.call_function(target, args, kwargs)
        new.meta.update(like.meta)
        values = map_arg((args, kwargs), lambda node: node.meta["val"])
        mode = detect_fake_mode([x for x in values[0] if isinstance(x, torch.Tensor)])
        assert mode is not None, "Inductor traces with fake tensors"
        with mode, torch.no_grad():
            new.meta["val"] = target(*values[0], **values[1])
        new.meta.pop("tensor_meta", None)
        return new


def _asked(node: torch.fx.Node) -> gemms.Gemm | None:
    """The product that a node stands for, with nodes for operands; None where it is left to torch."""
    from torch.fx.node import map_arg

    values = map_arg((node.args, dict(node.kwargs)), lambda x: x.meta["val"])
    nodes = gemms.unchecked(node.target, node.args, dict(node.kwargs), with_addend=True)
    gemm = gemms.gemm_of(node.target, *values, traced=True)
    if isinstance(gemm, str):
        return None
    # A product without an addend of its own still needs one to carry alpha: the operator's, with beta = 0.
    return gemms.Gemm(
        gemm.operator, nodes.a, nodes.b, nodes.c if not gemm.plain else None, _real(gemm.alpha, gemm.dtype),
        _real(gemm.beta, gemm.dtype), gemm.dtype,
    )  # fmt: skip


def _real(x: complex, dtype: torch.dtype) -> complex:
    return x if dtype.is_complex else x.real


def _module(node: torch.fx.Node, names: Mapping[int, str]) -> str:
    """The name of the module that a node comes from, by its own or its forward node's note."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    key, (path, _) = next(reversed(stack.items()))
    if str(key).isdecimal() and int(key) in names:
        return names[int(key)]
    return re.sub(r"\._modules\['([^']+)'\]", r".\1", re.sub(r"^[LG]\['\w+'\]", "", path)).lstrip(".")


def _is_backward(node: torch.fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward" or bool(node.meta.get("autograd_backward"))


def _where(node: torch.fx.Node) -> str:
    """The innermost line outside torch and prismm."""
    for file, line in reversed(re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")):
        found = places.line_of(file, int(line))
        if found:
            return found
    return ""


def _listed(passes: Any) -> list[Any]:
    return [] if passes is None else list(passes) if isinstance(passes, (list, tuple)) else [passes]


class _Table(dict[Any, Any]):
    """Decompositions that a cache's key names instead of describing: torch's version and this file say what they are,
    and both are in the key already.
    """

    def __reduce__(self) -> Any:
        return _decompositions, ()


@functools.cache
def _decompositions() -> _Table:
    """Inductor's decompositions without those of products, which would hide small ones from the pass."""
    from torch._inductor.decomposition import select_decomp_table

    return _Table(
        (function, how)
        for function, how in select_decomp_table().items()
        if gemms.operator_of(function) in (None, *_BY_DECOMPOSITION)
    )


@functools.cache
def _sources() -> bytes:
    found: bytes = get_hash_for_files(
        (*tuple(x.__file__ for x in (derivatives, gemms, operators, policy, recipe)), __file__)
    )
    return found
