"""Interception: within a block, torch's products are made by a policy.

A `TorchDispatchMode` sees the aten operators below autograd, so one table of nine operators covers linear, matmul,
einsum and everything else that ends in them, whether Python or C++ called, in the forward and the backward pass. A
`TorchFunctionMode` would see Python's calls alone: no product of the backward pass, none that C++ code makes, and
every composite function would have to be written anew. Modes belong to a thread, nest, and go when their block ends.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from prismm.errors import ArgumentError, PrismmError
from prismm.programs import gemms, places
from prismm.programs.gemms import LEFT, Gemm, Method
from prismm.programs.places import Place
from prismm.programs.policy import Policy
from prismm.programs.recipe import Recipe
from prismm.programs.record import Call, Record

_BUSY = threading.local()
_OFF = Recipe(off=True)


class emulate:
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
        ArgumentError, AccuracyError: for what is no policy, or a policy for another model. Within the block, the errors
        of `matmul` for a scheme that cannot make a product, with a note of the place.

    >>> import prismm, torch
    >>> a, b = torch.tensor([[1e8, 1.0, -1e8]]), torch.ones(3, 1)
    >>> with prismm.emulate("correctly-rounded"):
    ...     print((a @ b).item())
    1.0
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
        self._origins: dict[tuple[int, int], Place] = {}
        self._producers: dict[int, tuple[Any, frozenset[int]]] = {}
        self._entered = threading.local()

    def __enter__(self) -> Record:
        block = contextlib.ExitStack()
        if self.attention == "decomposed":
            from prismm.programs.attention import Decomposed

            block.enter_context(Decomposed())
        block.enter_context(_Mode(self))
        self._entered.__dict__.setdefault("blocks", []).append((block, time.perf_counter()))
        return self.record

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        block, start = self._entered.blocks.pop()
        block.__exit__(kind, value, traceback)
        self.record.wall_seconds += time.perf_counter() - start
        if kind is None:
            self.record.synchronize()


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Operators that make a product are none of the program's: outer blocks let them pass."""
    _BUSY.depth = 1
    try:
        yield
    finally:
        _BUSY.depth = 0


def is_active() -> bool:
    """Whether a block is open in this thread."""
    return any(isinstance(mode, _Mode) for mode in _get_current_dispatch_mode_stack())


def note_hidden(operator: str, what: str) -> None:
    """Tell the blocks that are open in this thread of something that multiplies out of their reach."""
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, _Mode):
            place = places.here(mode.owner.models)
            mode.owner.record.hide(operator, place.module, place.where, what)


class _Mode(TorchDispatchMode):
    """The interception of one block in one thread (and in the threads that autograd lends it)."""

    def __init__(self, owner: emulate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner = owner
        self.thread = threading.get_ident()
        outer = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Mode)]
        self.outer = outer[-1] if outer else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(_BUSY, "depth", 0):
            return func(*args, **kwargs)
        if gemms.operator_of(func) is not None:
            return self._product(func, args, kwargs)
        if gemms.composite(func) and func._can_decompose():
            # Without autograd's keys (inference mode) linear, matmul and einsum come whole.
            with self:
                return func.decompose(*args, **kwargs)
        what = gemms.hidden(func)
        if what is not None:
            place, _ = self._place(func)
            if not place.internal:
                for mode in self._chain():
                    mode.owner.record.hide(func._schema.name.removeprefix("aten::"), place.module, place.where, what)
        result = func(*args, **kwargs)
        self._follow(func, args, kwargs, result)
        return result

    def _product(self, func: Any, args: Any, kwargs: Any) -> Any:
        gemm = gemms.gemm_of(func, args, kwargs)
        place, backward = self._place(func, gemm)
        if place.internal:
            return func(*args, **kwargs)
        decided, rule = self._decide(gemms.operator_of(func) or "", place, backward)
        recipe = _OFF if rule is None else decided.owner.policy.rules[rule].recipe
        reason = gemm if isinstance(gemm, str) else "" if rule is not None else "no rule"
        clock = _Clock(args)
        if isinstance(gemm, str) or recipe.off:
            with _busy():
                clock.begin()
                result = func(*args, **kwargs)
                clock.stop()
            method = LEFT
            gemm = gemms.unchecked(func, args, kwargs)
        else:
            try:
                with _busy():
                    result, method = _multiplied(gemm, recipe, clock)
            except PrismmError as error:
                error.add_note(f"in {gemm.operator} of module {place.module!r}, {place.where}")
                raise
        for mode in self._chain():
            mode._enter(gemm, place, backward, method, rule if mode is decided else None, reason, clock, result)
        return result

    def _chain(self) -> list[_Mode]:
        """This block and those around it."""
        found, mode = [], self
        while mode is not None:
            found.append(mode)
            mode = mode.outer  # type: ignore[assignment]
        return found

    def _decide(self, operator: str, place: Place, backward: bool) -> tuple[_Mode, int | None]:
        """The innermost block with a rule for this product, and the rule."""
        for mode in self._chain():
            rule = mode.owner.policy.choose(place.module, operator, backward, place.where)
            if rule is not None:
                return mode, rule
        return self, None

    def _place(self, func: Any, gemm: Any = None) -> tuple[Place, bool]:
        """Where a call comes from, and whether autograd makes it: then where its forward product came from."""
        import torch

        node = torch._C._current_autograd_node()
        if node is None:
            place = places.here(self.owner.models)
            if torch.is_grad_enabled() and _needs_grad(gemm):
                # The node of this very call has taken the last number; its backward products will carry it.
                number = torch._C._autograd._get_sequence_nr() - 1
                for mode in self._chain():
                    _bounded(mode.owner._origins)[mode.thread, number] = place
            return place, False
        number = node._sequence_nr()
        for mode in self._chain():
            known = mode.owner._origins.get((mode.thread, number))
            if known is not None:
                return known, True
        return places.here(self.owner.models), True

    def _enter(
        self, gemm: Any, place: Place, backward: bool, method: Method, rule: int | None, reason: str, clock: _Clock,
        result: Any,
    ) -> None:  # fmt: skip
        record = self.owner.record
        number = record.take_number()
        batch, m, k, n = gemm.shape
        call = Call(
            number, place.module, place.where, gemm.operator, backward, batch, m, k, n,
            str(gemm.dtype).removeprefix("torch."), str(gemm.a.device), clock.seconds, method, rule, reason,
            self._sources([gemm.a, gemm.b, gemm.c]) if self.owner.dependencies else frozenset(),
        )  # fmt: skip
        if self.owner.dependencies:
            self._produced([result], frozenset([number]))
        record.add(call, clock.events)

    # Dependencies are kept by storage: views share it, and a write into a part counts for the whole.

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        for mode in self._chain():
            if not mode.owner.dependencies:
                continue
            sources = mode._sources(_pytree.tree_leaves((args, kwargs)))
            if sources:
                written = _written(func, args, kwargs) if func._schema.is_mutable else []
                mode._produced(_pytree.tree_leaves((result, written)), sources)

    def _sources(self, values: list[Any]) -> frozenset[int]:
        import torch

        found: frozenset[int] = frozenset()
        for value in values:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                producer = self.owner._producers.get(value.untyped_storage()._cdata)
                if producer is not None and not producer[0].expired():
                    found |= producer[1]
        return found

    def _produced(self, values: list[Any], calls: frozenset[int]) -> None:
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        for value in values:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                storage = value.untyped_storage()
                producer = self.owner._producers.get(storage._cdata)
                found = calls if producer is None or producer[0].expired() else calls | producer[1]
                if len(self.owner._producers) >= _MOST:
                    gone = [key for key, (reference, _) in self.owner._producers.items() if reference.expired()]
                    for key in gone:
                        del self.owner._producers[key]
                self.owner._producers[storage._cdata] = StorageWeakRef(storage), found


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to; not all of them are returned."""
    given = dict(zip((x.name for x in func._schema.arguments), args, strict=False)) | kwargs
    return [
        given[x.name]
        for x in func._schema.arguments
        if x.alias_info is not None and x.alias_info.is_write and x.name in given
    ]


_MOST = 1 << 18
"""Entries that a block keeps of where forward products came from, and of who produced a storage."""


def _bounded(origins: dict[Any, Place]) -> dict[Any, Place]:
    """The dictionary, without its older half where it is full: graphs that old were run through, or forgotten."""
    if len(origins) >= _MOST:
        for key in list(itertools.islice(origins, _MOST // 2)):
            origins.pop(key, None)
    return origins


def _needs_grad(gemm: Any) -> bool:
    return isinstance(gemm, Gemm) and any(x.requires_grad for x in (gemm.a, gemm.b, gemm.c) if x is not None)


def _multiplied(gemm: Gemm, recipe: Recipe, clock: _Clock) -> tuple[Any, Method]:
    """The product by a recipe, written to its target if it has one."""

    if recipe.reads_data:
        clock.begin()
        value, method, seconds = gemms.multiply_and_describe(gemm, recipe)
        clock.stop(seconds)
    else:
        method = _described(gemm, recipe)
        clock.begin()
        value = gemms.multiply(gemm, recipe)
        clock.stop()
    if gemm.target is None:
        return value, method
    if gemm.target.shape != value.shape:
        if gemm.target.numel():
            warnings.warn(
                f"an output with one or more elements was resized since it had shape {list(gemm.target.shape)}, which "
                f"does not match the required output shape {list(value.shape)}",
                stacklevel=2,
            )
        gemm.target.resize_(value.shape)
    gemm.target.detach().copy_(value)
    return gemm.target, method


_KNOWN: dict[Any, Method] = {}
"""How products were made whose shapes and types decide that."""


def _described(gemm: Gemm, recipe: Recipe) -> Method:
    key = (
        gemm.operator, gemm.shape, gemm.a.dtype, gemm.dtype, gemm.a.device, gemm.plain, recipe,
        gemms.environment_key(),
    )  # fmt: skip
    method = _KNOWN.get(key)
    if method is None:
        if len(_KNOWN) >= 1 << 14:
            _KNOWN.clear()
        method = _KNOWN[key] = gemms.describe(gemm, recipe)
    return method


class _Clock:
    """Wall-clock time of a product: at once on a CPU, by two events on a GPU, where nothing is made to wait."""

    def __init__(self, args: Any) -> None:
        import torch

        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in args)
        self.on_gpu = on_gpu and not torch.cuda.is_current_stream_capturing()
        self.events: tuple[Any, Any] | None = None
        self.seconds = 0.0

    def begin(self) -> None:
        """Begin."""
        import torch

        if self.on_gpu:
            self.events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.events[0].record()
        self.start = time.perf_counter()

    def stop(self, seconds: float | None = None) -> None:
        """End; `seconds` where the product was timed apart from what was told of it."""
        self.seconds = time.perf_counter() - self.start if seconds is None else seconds
        if self.events is not None:
            self.events[1].record()
