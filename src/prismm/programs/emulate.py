"""Interception: within a block, torch's products are made by a policy.

A `TorchDispatchMode` sees the aten operators below autograd, so one table of nine operators covers linear, matmul,
einsum and everything else that ends in them, whether Python or C++ called, in the forward and the backward pass. A
`TorchFunctionMode` would see Python's calls alone: no product of the backward pass, none that C++ code makes, and
every composite function would have to be written anew. But under a mode every operator is a call of Python's. So the
mode is there only while an operator runs that multiplies, which a dispatch key tells (`intercept`), or all the time
where dependencies are followed. Blocks belong to a thread, nest, and leave nothing behind.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from prismm.errors import ArgumentError
from prismm.programs import gemms, intercept
from prismm.programs.block import Block
from prismm.programs.decisions import Decisions, decisions_under
from prismm.programs.places import Spot, Spots
from prismm.programs.policy import Policy
from prismm.programs.record import Record

_F = TypeVar("_F", bound=Callable[..., Any])


class emulate(contextlib.ContextDecorator):
    """Make the products of a block by a policy: ``with prismm.emulate(policy) as record: ...``.

    mm, addmm, bmm, baddbmm, addbmm, mv, addmv, dot and vdot, their out= and in-place forms, and all that ends in them
    (linear, matmul, einsum, ...), forward and backward, of CPU and CUDA tensors. A backward pass is covered where it
    runs within a block. Float16 and bfloat16 products are made in float32 and rounded once more. Other threads are not
    touched; blocks nest, and the innermost policy with a matching rule decides.

    Args:
        policy: a `Policy`, a `Rule`, an accuracy as for `prismm.matmul`, or a scheme; default "native".
        scheme, reproducible, engine: as for `matmul`, instead of a policy.
        model: the model, or several: rules then use the names of its modules even where a part of it is called, and
            are checked against them.
        attention: "fused" leaves torch's fused attention as it is, and the record lists it; "decomposed" makes
            scaled_dot_product_attention of products, which are then covered, at the price of memory.
        calls: keep every single call in `Record.calls`, not only the table.
        dependencies: keep, too, which calls' results went into each call (`Call.after`); implies calls.

    Raises:
        ArgumentError, AccuracyError: for an argument that is not a policy, a policy for another model, and a decorated
            generator or coroutine, which would run outside the block. Within the block, the errors of `matmul` for a
            scheme that cannot make a product, with a note of the place.

    >>> import prismm, torch
    >>> a, b = torch.tensor([[1e8, 1.0, -1e8]]), torch.ones(3, 1)
    >>> with prismm.emulate("correctly-rounded"):
    ...     print((a @ b).item())
    1.0

    A function may be decorated, too: each of its calls is a block, and one record counts them all.

    >>> exactly = prismm.emulate("correctly-rounded")
    >>> @exactly
    ... def product(a, b):
    ...     return a @ b
    >>> product(a, b).item(), product(a, b).item(), exactly.record.rows[0].count
    (1.0, 1.0, 2)
    """

    def __init__(
        self,
        policy: Any = None,
        /,
        *,
        scheme: Any = None,
        reproducible: bool = False,
        engine: str | None = None,
        model: Any = None,
        attention: Literal["fused", "decomposed"] = "fused",
        calls: bool = False,
        dependencies: bool = False,
    ) -> None:
        if attention not in ("fused", "decomposed"):
            raise ArgumentError(f"attention={attention!r}; pass 'fused' or 'decomposed'")
        self.policy = Policy.of(policy, scheme=scheme, reproducible=reproducible, engine=engine)
        self.models = () if model is None else tuple(model) if isinstance(model, (list, tuple)) else (model,)
        for one in self.models:
            self.policy.check(one)
        self.attention = attention
        self.record = Record(self.policy, keeps_calls=calls or dependencies)
        self.dependencies = dependencies
        self.origins: dict[int, dict[int, Spot]] = {}
        self.producers: dict[int, tuple[Any, frozenset[int]]] = {}
        self._entered = threading.local()
        self._decisions: tuple[Any, Decisions] | None = None

    def __call__(self, function: _F) -> _F:
        """The function with a block around each call."""
        if any(test(function) for test in (inspect.iscoroutinefunction, inspect.isgeneratorfunction,
                                           inspect.isasyncgenfunction)):  # fmt: skip
            raise ArgumentError(f"{function.__qualname__} returns before its code runs; open a block inside it")
        return super().__call__(function)

    def __enter__(self) -> Record:
        block = contextlib.ExitStack()
        if self.attention == "decomposed":
            from prismm.programs.attention import Decomposed

            block.enter_context(Decomposed())
        outer, spots = intercept.innermost(), None
        decisions: Decisions = {}
        if outer is None:
            # What a thread has found out in a block, it knows in the next one with the same settings.
            settings = gemms.environment_key()
            if not self.record.keeps_calls:
                decisions = self._decisions_under(settings)
            before, spots = self._entered.__dict__.pop("spots", (None, None))
            if spots is None or before != settings:
                spots = Spots(self.models)
            spots.wake()
            block.callback(self._keep, settings, spots)
        one = Block(self, outer, _Mode, spots or Spots(self.models), decisions)
        block.callback(one.close)
        block.callback(intercept.Interception(one, by_mode=one.follows).end)
        self._entered.__dict__.setdefault("blocks", []).append(block)
        self.record.enter_block()
        return self.record

    def _decisions_under(self, settings: Any) -> Decisions:
        """The decisions under this policy, looked up once: hashing a policy takes as long as opening a block."""
        if self._decisions is None or self._decisions[0] != settings:
            self._decisions = settings, decisions_under(self.policy, settings)
        return self._decisions[1]

    def _keep(self, settings: Any, spots: Spots) -> None:
        """Keep them for this thread's next block."""
        spots.rest()
        self._entered.__dict__["spots"] = settings, spots

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        blocks = self._entered.__dict__.get("blocks")
        if not blocks:
            raise ArgumentError("this block was entered in another thread, and can only be left there")
        blocks.pop().__exit__(kind, value, traceback)
        self.record.leave_block()
        if kind is None:
            self.record.synchronize()


def is_active() -> bool:
    """Whether a block is open in this thread."""
    return intercept.innermost() is not None


def note_hidden(operator: str, what: str) -> None:
    """Tell the blocks that are open in this thread of something that multiplies out of their reach."""
    block = intercept.innermost()
    if block is not None:
        block.hide(operator, block.spots.here().place, what)


class _Mode(TorchDispatchMode):
    """The interception of one block in one thread (and in the threads that autograd lends it)."""

    def __init__(self, block: Block) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.block = block
        self.roles = _roles()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would wrap `__torch_dispatch__` in what takes as long as it; `untraced` does without."""
        return False

    @intercept.untraced
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(intercept.BUSY, "depth", False):
            return func(*args, **kwargs)
        role = self.roles.get(func)
        if role is None:
            role = self.roles[func] = _role_of(func)
        if isinstance(role, int):
            return intercept.product_of(self.block, role, func, args, kwargs)
        if role == _COMPOSITE:
            # Without autograd's keys (inference mode) linear, matmul and einsum come whole.
            with self:
                return func.decompose(*args, **kwargs)
        if role != _OTHER:
            self.block.hidden(func._schema.name, role)
        result = func(*args, **kwargs)
        if self.block.follows:
            self._follow(func, args, kwargs, result)
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        for block in self.block.chain:
            if not block.owner.dependencies:
                continue
            sources = block.sources(_pytree.tree_leaves((args, kwargs)))
            if sources:
                written = _written(func, args, kwargs) if func._schema.is_mutable else []
                block.produced(_pytree.tree_leaves((result, written)), sources)


_COMPOSITE, _OTHER = "composite", "other"


@functools.cache
def _roles() -> dict[Any, int | str]:
    """By overload: the number of one whose products' layouts are kept, -1 of others that multiply; else what
    `_role_of` says of it, once it has been met.
    """
    products = enumerate(gemms.products())
    return {function: number if function._overloadname == "default" else -1 for number, function in products}


def _role_of(function: Any) -> str:
    """What an overload is that makes no product itself: a composition of others, what multiplies in it, or neither."""
    if gemms.composite(function) and function._can_decompose():
        return _COMPOSITE
    return gemms.hidden(function) or _OTHER


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to; not all of them are returned."""
    given = dict(zip((x.name for x in func._schema.arguments), args, strict=False)) | kwargs
    return [
        given[x.name]
        for x in func._schema.arguments
        if x.alias_info is not None and x.alias_info.is_write and x.name in given
    ]
