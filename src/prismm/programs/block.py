"""A block of `emulate` in one thread: what it does with the products of the program that runs in it.

The first product of a layout at a place is checked, described and entered into the record. The block keeps that
decision in a dictionary, and applies it to all further products of this layout at this place. The module `decisions`
keeps it for later blocks with the same policy.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from prismm.core import arrays
from prismm.errors import PrismmError
from prismm.programs import direct, gemms, intercept
from prismm.programs.decisions import Decision, Decisions, keep
from prismm.programs.gemms import LEFT, Gemm, Method
from prismm.programs.layouts import FEW, guarded, layout_of
from prismm.programs.places import Place, Spot, Spots
from prismm.programs.recipe import Recipe
from prismm.programs.record import Call

if TYPE_CHECKING:
    from prismm.programs.emulate import emulate

_OFF = Recipe(off=True)
_autograd_node = torch._C._current_autograd_node
_sequence_number = torch._C._autograd._get_sequence_nr
_grad_enabled = torch.is_grad_enabled
_autocast, _function_modes = torch._C._is_any_autocast_enabled, torch._C._len_torch_function_stack
_STRIDED, _PLAIN = torch.strided, (torch.Tensor, torch.nn.Parameter)
_clock = time.perf_counter
_push_mode, _pop_mode = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack

_MOST = 1 << 18
"""Entries that a block keeps of where forward products came from, and of who produced a storage."""

_LAYOUTS = 1 << 12
"""Layouts that are known of one place."""

_TIMED, _TIMED_LATER = 2, 16
"""On a GPU the first _TIMED products of a layout at a place are timed, and after them one in _TIMED_LATER."""


class Known:
    """What is known of the products of one layout from one place.

    run: makes them from the operator's arguments, or returns None for one that has to be looked at as the first was.
    tallies: their counts and seconds in each block of the chain. torchs: whether torch's own
    operator makes them on a CPU, so that autograd may see the call. on_gpu: whether they are made there. above: whether
    `run` may be called above autograd where no derivative is wanted.
    """

    __slots__ = ("_calls", "above", "on_gpu", "run", "tallies", "torchs")

    def __init__(self, run: Any, tallies: list[list[Any]], *, torchs: bool, on_gpu: bool, above: bool) -> None:
        self.run, self.tallies, self.torchs, self.on_gpu = run, tallies, torchs and not on_gpu, on_gpu
        self.above, self._calls = above, 0

    def is_timed(self) -> bool:
        """Whether the next one on a GPU is timed: events cost the host more than the launch. The first ones are."""
        self._calls += 1
        return self._calls <= _TIMED or self._calls % _TIMED_LATER == 0


class Block:
    """One block in one thread, and in the threads that autograd lends it.

    outer: the block around it. mode: makes the dispatch mode that brings it products. chain: this block and those
    around it, the innermost one first. decisions: those of earlier blocks with the same policy; empty where the block
    may not use them. depth: how many of the program's own modes are around it. meets_dynamo: whether torch.compile came
    upon one of its products. closed: whether it has ended.
    """

    def __init__(
        self, owner: emulate, outer: Block | None, mode: Callable[[Block], Any], spots: Spots, decisions: Decisions
    ) -> None:
        self.owner, self.outer, self.decisions = owner, outer, decisions
        # By the numbers that autograd gave their nodes: where the thread's forward products came from.
        self.origins: dict[int, Spot] = owner.origins.setdefault(threading.get_ident(), {})
        # A block that is open within itself counts once.
        around = () if outer is None else (block for block in outer.chain if block.owner is not owner)
        self.chain: list[Block] = [self, *around]
        self.spots = spots
        self.follows = any(block.owner.dependencies for block in self.chain)
        self.mode, self.depth = mode(self), intercept.plain_modes()
        self.interception: Any = None
        self.meets_dynamo = self.closed = False
        self.keeps_calls = any(block.owner.record.keeps_calls for block in self.chain)
        # The look-up of `known_product`, for the mode, which gets the same product next.
        self._met: tuple[Any, Any, Spot, Known] | None = None

    def close(self) -> None:
        """End the block. Its reference cycles are cut, so reference counting alone frees it and all that it holds."""
        self.closed, self.chain, self.interception, self.mode = True, [], None, None

    def leave_out(self, ended: Block) -> None:
        """Stop counting for an outer block that has ended before this one."""
        if ended in self.chain:
            self.chain.remove(ended)
            self.spots = Spots(self.spots.models)

    def known_product(self, number: int, function: Any, args: Any) -> Any:
        """A product that torch makes, called above autograd, or one on a GPU of which no derivative is wanted; None for
        one that has to be `seen`.
        """
        if self.meets_dynamo:
            return None
        node = _autograd_node()
        backward = node is not None
        spot = self._spot_behind(node) if backward else self.spots.here(3)  # above the kernel
        kind = number, backward
        for other, are_alike, found in spot.guarded:  # noqa: B007
            if other == kind and are_alike(*args):
                break
        else:
            known = spot.backward if backward else spot.forward
            key = layout_of(number, args)
            found = known.get(key) or self._decided(spot, backward, known, key)
            if found is not None and len(spot.guarded) < FEW:
                spot.guarded += guarded(kind, args, found)
        if found is None or not found.torchs:
            if spot.place.internal:
                return function(*args)
            if found is not None and not _autocast():
                if found.above and not _wants_more(args):
                    return self._again(found, function, args, spot)
                if node is None:
                    self._met = function, args[-1], spot, found
                # torch calls a subclass's own dispatch before that key: only the mode sees such products.
                if type(args[-1]) in _PLAIN and not _function_modes():
                    try:
                        return intercept.beneath_autograd(function, args)
                    finally:
                        self._met = None
            return None
        start = _clock()
        value = found.run(*args)
        if value is not None:
            seconds = _clock() - start
            for tally in found.tallies:
                tally[0] += 1
                tally[1] += seconds
            if node is None and value.requires_grad:
                self._remember(spot)
        return value

    def seen(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What an operator returns under the block's mode, which lies within the modes that the program has opened
        before the block, and around those that it has opened since.
        """
        if self.closed or self.interception.by_mode:
            return function(*args, **kwargs)
        inner = [_pop_mode(None) for _ in range(intercept.plain_modes() - self.depth)]
        _push_mode(self.mode)
        for mode in reversed(inner):
            _push_mode(mode)
        try:
            return function(*args, **kwargs)
        finally:
            self._met = None
            for _ in range(len(inner) + 1):
                _pop_mode(None)
            for mode in reversed(inner):
                _push_mode(mode)

    def product(self, number: int, function: Any, args: Any, kwargs: Any) -> Any:
        """The product that an operator was asked for. number: of its overload, or -1 where layouts are not kept."""
        node = _autograd_node()
        if node is None:
            met, self._met = self._met, None
            if met is not None and met[0] is function and met[1] is args[-1]:
                _, _, spot, found = met
                self._remember_derivative(spot, args)
                value = self._again(found, function, args, spot)
                if value is not None:
                    return value
            spot = self._spot_here(args)
            known = spot.forward
        else:
            spot = self._spot_behind(node)
            known = spot.backward
        key = None if number < 0 or kwargs else layout_of(number, args)
        found = None if key is None else known.get(key) or self._decided(spot, node is not None, known, key)
        value = None if found is None else self._again(found, function, args, spot)
        return value if value is not None else self._first(function, args, kwargs, spot, node is not None, known, key)

    def _again(self, found: Known, function: Any, args: Any, spot: Spot) -> Any:
        """A product like one that was made before, counted; None for one that has to be looked at as the first was."""
        timed = not found.on_gpu or found.is_timed()
        clock = _Clock(args) if timed and found.on_gpu else None
        if clock is not None:
            clock.begin()
        start = _clock() if timed else 0.0
        try:
            value = found.run(*args)
        except PrismmError as error:
            _note(error, function, spot.place)
            raise
        if value is None:
            return None
        seconds, events = (_clock() - start if timed else None), None
        if clock is not None:
            clock.stop()
            seconds, events = clock.seconds, clock.events
        for block, tally in zip(self.chain, found.tallies, strict=True):
            block.owner.record.count(tally, seconds, events)
        return value

    def _decided(self, spot: Spot, backward: bool, known: dict[Any, Known], key: Any) -> Known | None:
        """The product as an earlier block decided it, entered as known in this block; None where none has."""
        found = self.decisions.get((spot.place, backward, key))
        if found is None:
            return None
        return self._know(known, key, found, [found.entry(self.owner.record.take_number())])

    def _know(self, known: dict[Any, Known], key: Any, found: Decision, calls: list[Call]) -> Known:
        """Enter a decision as known for this layout, with a new tally in the record of each block of the chain."""
        if len(known) >= _LAYOUTS:
            known.clear()
        tallies = [block.owner.record.tally(call) for block, call in zip(self.chain, calls, strict=True)]
        known[key] = one = Known(found.run, tallies, torchs=found.torchs, on_gpu=found.on_gpu, above=found.above)
        return one

    def hidden(self, name: str, what: str) -> None:
        """Enter an operator, by its name in torch's schema, that multiplies out of reach."""
        node = _autograd_node()
        place = (self.spots.here() if node is None else self._spot_behind(node)).place
        if not place.internal:
            self.hide(name.removeprefix("aten::"), place, what)

    def hide(self, operator: str, place: Place, what: str) -> None:
        """The same, of a place that is known."""
        for block in self.chain:
            block.owner.record.hide(operator, place.module, place.where, what)

    def _first(
        self, function: Any, args: Any, kwargs: Any, spot: Spot, backward: bool, known: dict[Any, Known], key: Any
    ) -> Any:
        """A product whose layout is new here, or that is looked at each time."""
        place = spot.place
        if place.internal:
            return function(*args, **kwargs)
        gemm = gemms.gemm_of(function, args, kwargs)
        decided, rule = self._decide(gemms.operator_of(function) or "", place, backward)
        recipe = _OFF if rule is None else decided.owner.policy.rules[rule].recipe
        reason = gemm if isinstance(gemm, str) else "" if rule is not None else "no rule"
        clock = _Clock(args)
        run: Any = None
        torchs = above = False
        method: Method | None = None
        if isinstance(gemm, str) or recipe.off:
            clock.begin()
            value = function(*args, **kwargs)
            clock.stop()
            if not isinstance(gemm, str):
                run, torchs = direct.left_to_torch(function, gemm), True
            method, gemm = LEFT, gemms.unchecked(function, args, kwargs)
        else:
            try:
                if not recipe.reads_data:
                    run, method, torchs, above = _run_of(function, gemm, recipe)
                # `run` takes positional arguments alone.
                value, method = _multiplied(gemm, recipe, clock, run if key is not None else None, method, args)
            except PrismmError as error:
                _note(error, function, place)
                raise
        calls = []
        for block in self.chain:
            entered = rule if block is decided else None
            calls.append(block.enter(gemm, place, backward, method, entered, reason, clock, value))
        if key is not None and run is not None and not self.keeps_calls and key not in known:
            decision = Decision(calls[0], run, torchs, gemm.a.is_cuda, above)
            self._know(known, key, decision, calls)
            if self.outer is None:
                keep(self.decisions, (place, backward, key), decision)
        return value

    def _decide(self, operator: str, place: Place, backward: bool) -> tuple[Block, int | None]:
        """The innermost block with a rule for this product, and the rule."""
        for block in self.chain:
            rule = block.owner.policy.choose(place.module, operator, backward, place.where)
            if rule is not None:
                return block, rule
        return self, None

    def _spot_here(self, args: Any) -> Spot:
        """Where a call of the program's comes from; noted for its backward products, if it will have some."""
        spot = self.spots.here()
        self._remember_derivative(spot, args)
        return spot

    def _remember_derivative(self, spot: Spot, args: Any) -> None:
        """`_remember`, where a derivative is wanted."""
        if _grad_enabled() and any(x.requires_grad for x in args if isinstance(x, torch.Tensor)):
            self._remember(spot)

    def _remember(self, spot: Spot) -> None:
        """Note where a call comes from whose node has just taken a number: its backward products will carry that."""
        number = _sequence_number() - 1
        for block in self.chain:
            origins = block.origins
            origins[number] = spot
            if len(origins) >= _MOST:
                _forget_older(origins)

    def _spot_behind(self, node: Any) -> Spot:
        """Where the forward product of a call of autograd's came from; else where the backward pass was asked for."""
        number = node._sequence_nr()
        for block in self.chain:
            spot = block.origins.get(number)
            if spot is not None:
                return spot if spot.owner is self.spots.identity else self.spots.of(spot.place)
        return self.spots.here()

    def enter(
        self, gemm: Any, place: Place, backward: bool, method: Method, rule: int | None, reason: str, clock: _Clock,
        result: Any,
    ) -> Call:  # fmt: skip
        """Enter a product into the record."""
        record = self.owner.record
        number = record.take_number()
        batch, m, k, n = gemm.shape
        follows = self.owner.dependencies
        call = Call(
            number, place.module, place.where, gemm.operator, backward, batch, m, k, n,
            str(gemm.dtype).removeprefix("torch."), str(gemm.a.device), clock.seconds, method, rule, reason,
            self.sources([gemm.a, gemm.b, gemm.c]) if follows else frozenset(),
        )  # fmt: skip
        if follows:
            self.produced([result], frozenset([number]))
        record.add(call, clock.events)
        return call

    # Dependencies are kept by storage: views share it, and a write into a part counts for the whole.

    def sources(self, values: Iterable[Any]) -> frozenset[int]:
        """The calls whose results went into some tensors."""
        found: frozenset[int] = frozenset()
        for value in values:
            if _has_storage(value):
                producer = self.owner.producers.get(value.untyped_storage()._cdata)
                if producer is not None and not producer[0].expired():
                    found |= producer[1]
        return found

    def produced(self, values: Iterable[Any], calls: frozenset[int]) -> None:
        """Note that the results of some calls went into tensors."""
        from torch.multiprocessing.reductions import StorageWeakRef

        producers = self.owner.producers
        for value in values:
            if _has_storage(value):
                storage = value.untyped_storage()
                producer = producers.get(storage._cdata)
                found = calls if producer is None or producer[0].expired() else calls | producer[1]
                if len(producers) >= _MOST:
                    for key in [key for key, (reference, _) in producers.items() if reference.expired()]:
                        del producers[key]
                producers[storage._cdata] = StorageWeakRef(storage), found


def _has_storage(value: Any) -> bool:
    """Whether value is a tensor whose entries lie in one place: those of a DTensor lie on all ranks."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not arrays.sharded(value)


def _note(error: PrismmError, function: Any, place: Place) -> None:
    error.add_note(f"in {gemms.operator_of(function)} of module {place.module!r}, {place.where}")


def _wants_more(args: Any) -> bool:
    """Whether a call above autograd asks for derivatives, or comes where modes of functions see calls."""
    if _function_modes():
        return True
    return _grad_enabled() and (args[-1].requires_grad or args[-2].requires_grad or args[0].requires_grad)


def _forget_older(origins: dict[int, Spot]) -> None:
    """Drop the older half: graphs that old were run through, or forgotten."""
    for key in list(itertools.islice(origins, _MOST // 2)):
        origins.pop(key, None)


def _run_of(function: Any, gemm: Gemm, recipe: Recipe) -> tuple[Any, Method, bool, bool]:
    """What makes this product and others of its layout from the operator's arguments, or None; what a table says of
    it; whether torch's own operator makes it; and whether it may be made above autograd. For a recipe whose products
    the data do not change.
    """
    found = direct.run_of(function, gemm, recipe)
    if found is not None:
        return *found, True, False
    method = _described(gemm, recipe)
    if gemm.target is not None:
        return None, method, False, False

    def by_steps(*args: Any) -> Any:
        again = gemms.gemm_of(function, args, {})
        return None if isinstance(again, str) else gemms.multiply(again, recipe)

    if arrays.sharded(gemm.a):
        from prismm.programs.sharded import run_of
    else:
        from prismm.programs.direct_cuda import run_of
    run = run_of(gemm, recipe, by_steps)
    return run or by_steps, method, False, run is not None


def _multiplied(
    gemm: Gemm, recipe: Recipe, clock: _Clock, run: Any, method: Method | None, args: Any
) -> tuple[Any, Method]:  # fmt: skip
    """The product by a recipe, written to its target if it has one, and how it was made."""
    clock.begin()
    if method is None:
        value, method, seconds = gemms.multiply_and_describe(gemm, recipe)
        clock.stop(seconds)
    else:
        quick = None if run is None else run(*args)
        value = gemms.multiply(gemm, recipe) if quick is None else quick
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


_DESCRIBED: dict[Any, Method] = {}
"""How products were made whose shapes and types decide that."""


def _described(gemm: Gemm, recipe: Recipe) -> Method:
    key = (
        gemm.operator, gemm.shape, gemm.a.dtype, gemm.dtype, gemm.a.device, gemm.plain, recipe,
        gemms.environment_key(),
    )  # fmt: skip
    method = _DESCRIBED.get(key)
    if method is None:
        if len(_DESCRIBED) >= 1 << 14:
            _DESCRIBED.clear()
        method = _DESCRIBED[key] = gemms.describe(gemm, recipe)
    return method


class _Clock:
    """Wall-clock time of a product: at once on a CPU, by two events on a GPU, where nothing is made to wait."""

    def __init__(self, args: Any) -> None:
        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in args)
        self.on_gpu = on_gpu and not torch.cuda.is_current_stream_capturing()
        self.events: tuple[Any, Any] | None = None
        self.seconds = 0.0

    def begin(self) -> None:
        """Begin."""
        if self.on_gpu:
            self.events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.events[0].record()
        self.start = time.perf_counter()

    def stop(self, seconds: float | None = None) -> None:
        """End; `seconds` where the product was timed apart from its description."""
        self.seconds = time.perf_counter() - self.start if seconds is None else seconds
        if self.events is not None:
            self.events[1].record()
