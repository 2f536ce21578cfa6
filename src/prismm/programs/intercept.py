"""What brings torch's products to an open block: kernels of a dispatch key of their own, which belongs to a thread.

Within a block the thread includes the key. Operators that multiply have kernels for it, in Python; all others fall
through, in C++, and cost what they cost without a block. The key stands above autograd. A product of a known layout
that torch makes is called and checked there. For one that prismm makes, and of which a derivative may be wanted, a
second key is included for the length of the call, whose kernels stand below autograd. For any other product the block's
mode (`emulate`) is laid on torch's stack meanwhile, and sees it below autograd, too. Autograd hands both the first key
and the block to its own threads.

torch has these keys for a library that defers initialisation and fakes tensors, gives them no kernels, and so leaves
them unused.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from prismm.programs import gemms

if TYPE_CHECKING:
    from prismm.programs.block import Block

_F = TypeVar("_F", bound=Callable[..., Any])

_KEY, _BENEATH = "DeferredInit", "Fake"
_BLOCK = "prismm.programs.block"
"""By this name torch keeps a thread's innermost block among what autograd hands on."""

BUSY = threading.local()
"""depth: whether this thread is making a product, whose own operators are none of the program's."""

_known, _get, _stash = torch._C._is_key_in_tls, torch._C._get_obj_in_tls, torch._C._stash_obj_in_tls
_modes, _level = torch._C._len_torch_dispatch_stack, torch._C._functorch.maybe_current_level
_is_included, _include, _exclude = (
    torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_tls_set_dispatch_key_included,
    torch._C._dispatch_tls_set_dispatch_key_excluded,
)  # fmt: skip


def innermost() -> Block | None:
    """The innermost block that is open in this thread, or in the one that autograd works for here."""
    return _get(_BLOCK) if _known(_BLOCK) else None


def _keep(name: str, value: Any) -> None:
    """Have torch keep a value for this thread, with a reference to it."""
    if _lacks_reference():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _stash(name, value)


@functools.cache
def _lacks_reference() -> bool:
    """Whether this torch takes no reference to what it keeps for a thread, though it drops one when it lets go: 2.11
    does so.
    """
    value = object()
    count = sys.getrefcount(value)
    _stash(_BLOCK + ".probe", value)
    lacks = sys.getrefcount(value) == count
    for each in (value, None) if lacks else ():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    _stash(_BLOCK + ".probe", None)
    return lacks


class Interception:
    """A thread's products go to a block until `end`: by the key's kernels or, where torch lacks the key or `by_mode` is
    asked for, by the block's mode, which stays on the thread's stack.

    >>> from prismm.programs import intercept
    >>> intercept.innermost() is None
    True
    """

    def __init__(self, block: Block, *, by_mode: bool) -> None:
        self._block, self._outer, self._key, self._thread = block, innermost(), key(), threading.get_ident()
        self._included = self._key is not None and _is_included(self._key)
        self.by_mode = False
        _keep(_BLOCK, block)
        if self._key is not None:
            _include(self._key, not by_mode)
        if by_mode or self._key is None:
            self.stay()
        block.interception = self

    def stay(self) -> None:
        """Leave the block's mode on the stack instead: Dynamo compiles nothing under it."""
        if threading.get_ident() != self._thread:
            return
        if not self.by_mode and plain_modes() == self._block.depth:
            torch._C._push_on_torch_dispatch_stack(self._block.mode)
            self.by_mode = True
        elif self.by_mode and not _is_included(torch._C.DispatchKey.Python):
            # Dynamo, when it leaves a frame, restores the thread's keys: the modes that came on the stack meanwhile are
            # still there, and see nothing.
            torch._C._push_on_torch_dispatch_stack(torch._C._pop_torch_dispatch_stack(None))
        if self.by_mode and self._key is not None:
            _include(self._key, False)

    def end(self) -> None:
        """Restore the block around this one. Blocks of interleaved asyncio tasks may end in another order than that of
        their beginnings: a block that was opened later and is still open stays the innermost one.
        """
        if self.by_mode:
            torch._C._pop_torch_dispatch_stack(None)
        inner = innermost()
        if inner is not self._block:
            while inner is not None and inner is not self._block:
                inner.leave_out(self._block)
                inner = inner.outer
            return
        outer = self._outer
        while outer is not None and outer.closed:
            outer = outer.outer
        if self._key is not None:
            _include(self._key, self._included and outer is not None)
        _keep(_BLOCK, outer)


def plain_modes() -> int:
    """How many modes stand on the thread's stack, without those of torch's own tracing."""
    return sum(getattr(mode, "_mode_key", None) is None for mode in _get_current_dispatch_mode_stack())


@functools.cache
def key() -> Any:
    """The dispatch key whose kernels bring products to a block; None where torch lacks it or what it takes, or somebody
    else has kernels for it.
    """
    try:
        found, beneath = torch._C._dispatch_key_parse(_KEY), _key_beneath()
        untraced(key.__wrapped__)
    except (AttributeError, RuntimeError):
        return None
    if any(map(torch._C._dispatch_has_backend_fallback, (found, beneath))):
        return None
    everything, library = _library(_KEY)
    below, library_beneath = _library(_BENEATH)
    for number, function in enumerate(gemms.products()):
        kept = function._overloadname == "default"
        library.impl(function, _product(found, number if kept else -1, function))
        if kept:
            library_beneath.impl(function, _beneath(beneath, number, function))
    for function in gemms.hidden_functions():
        library.impl(function, _hidden(found, function))
    _LIBRARIES.extend((everything, library, below, library_beneath))
    return found


@functools.cache
def _key_beneath() -> Any:
    """The key whose kernels stand below autograd."""
    return torch._C._dispatch_key_parse(_BENEATH)


def _library(name: str) -> tuple[torch.library.Library, torch.library.Library]:
    """Two libraries of a key: the first lets every operator fall through, the second takes kernels."""
    everything = torch.library.Library("_", "IMPL", name)
    everything.fallback(torch.library.fallthrough_kernel, name)
    return everything, torch.library.Library("aten", "IMPL", name)


_LIBRARIES: list[Any] = []
"""What is registered lives as long as these."""


@contextlib.contextmanager
def put_aside() -> Iterator[None]:
    """A block without the thread's key and modes."""
    ours = key()
    before = ours is not None and torch._C._dispatch_tls_is_dispatch_key_excluded(ours)
    if ours is not None:
        _exclude(ours, True)
    try:
        with _disable_current_modes():
            yield
    finally:
        if ours is not None:
            _exclude(ours, before)


def untraced(function: _F) -> _F:
    """The function, which torch.compile leaves as it is, with all that it calls."""
    frames: Any = torch._C._dynamo.eval_frame
    code: Any = function.__code__
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    return function


def _product(key: Any, number: int, function: Any) -> Callable[..., Any]:
    """The kernel of an operator that makes a product. number: of its overload, or -1 where layouts are not kept."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        _exclude(key, True)
        try:
            if _level() is not None:  # the levels of torch.func come here again with tensors of their own
                return function(*args, **kwargs)
            if number >= 0 and not kwargs and not _modes() and forward_ad._current_level < 0:
                value = _get(_BLOCK).known_product(number, function, args)
                if value is not None:
                    return value
            block = innermost()
            if block is None or getattr(BUSY, "depth", False):
                return function(*args, **kwargs)
            _keep_uncompiled(block)
            return block.seen(function, args, kwargs)
        finally:
            _exclude(key, False)

    return untraced(kernel)


def beneath_autograd(function: Any, args: Any) -> Any:
    """The operator, whose product the thread's block makes below autograd."""
    beneath = _key_beneath()
    _include(beneath, True)
    try:
        return function(*args)
    finally:
        _include(beneath, False)


def product_of(block: Block, number: int, function: Any, args: Any, kwargs: Any) -> Any:
    """The product by a block. Operators that make it are none of the program's: outer blocks let them pass."""
    BUSY.depth = True
    try:
        return block.product(number, function, args, kwargs)
    finally:
        BUSY.depth = False


def _beneath(key: Any, number: int, function: Any) -> Callable[..., Any]:
    """The kernel of such an operator there. number: of its overload."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        _include(key, False)
        try:
            return product_of(_get(_BLOCK), number, function, args, kwargs)
        finally:
            _include(key, True)

    return untraced(kernel)


def _hidden(key: Any, function: Any) -> Callable[..., Any]:
    """The kernel of an operator that multiplies out of reach."""
    what, name = gemms.hidden(function), function._schema.name
    assert what is not None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        _exclude(key, True)
        try:
            block = innermost() if _level() is None else None
            if block is not None and not getattr(BUSY, "depth", False):
                _keep_uncompiled(block)
                block.hidden(name, what)
            return function(*args, **kwargs)
        finally:
            _exclude(key, False)

    return untraced(kernel)


def _keep_uncompiled(block: Block) -> None:
    """Raise where torch.compile is at work: an operator that is not implemented stays out of its graph. From then on
    the block's mode stays on the stack.
    """
    if _modes() and torch._guards.CompileContext.try_get() is not None:
        block.meets_dynamo = True
        raise NotImplementedError("products within a block of prismm.emulate are not compiled")
    if block.meets_dynamo:
        block.interception.stay()
