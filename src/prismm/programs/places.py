"""Where a product comes from: module, file and line, read from the Python stack.

Nothing is registered with torch or with the model for this: the modules whose calls are on the stack are the modules
in which the product runs, in this thread, whatever other threads do and however the call ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.errors import PrismmError

if TYPE_CHECKING:
    import torch


class _Scopes(threading.local):
    """The scopes that are open in a thread."""

    names: list[str] | tuple[()] = ()
    """What the class has serves threads that have opened none: an attribute that is missing costs an exception."""


_SCOPES = _Scopes()
_NAMES: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, str | None]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Place:
    """A module by its name ("" for the outermost one), and the innermost line outside torch and prismm."""

    module: str
    where: str
    internal: bool = False
    """Whether prismm itself made the call."""


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """A name for a part of a program without modules, for rules and tables; nests, joined by dots.

    Args:
        name: counts as a module's name within the block, before the names of modules that are called in it.

    >>> import prismm, torch
    >>> with prismm.emulate("native") as seen, prismm.scope("trailing update"):
    ...     c = torch.ones(2, 2) @ torch.ones(2, 2)
    >>> seen.rows[0].module
    'trailing update'
    """
    stack = _stack()
    stack.append(str(name))
    try:
        yield
    finally:
        stack.pop()


def _stack() -> list[str]:
    found = _SCOPES.names
    if not isinstance(found, list):
        found = _SCOPES.names = []
    return found


@functools.cache
def _folders() -> tuple[str, str, str]:
    """Folders of torch, of prismm, and of prismm's programs."""
    import torch

    here = os.path.dirname(os.path.abspath(__file__))
    return os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, os.path.dirname(here) + os.sep, here + os.sep


@functools.cache
def _kind(filename: str) -> str:
    """Whose code a file holds: "torch", "prismm", "programs", "cli" or "user"."""
    torch_folder, prismm_folder, programs = _folders()
    path = os.path.abspath(filename)
    if path.startswith(torch_folder):
        return "torch"
    if path.startswith(prismm_folder + "applications" + os.sep):
        return "user"  # they are written as a user's programs are
    if path.startswith(programs) or path.startswith(prismm_folder + "cli" + os.sep):
        return "programs"
    if path.startswith(prismm_folder):
        return "prismm"
    return "python" if filename.startswith("<frozen") or path.startswith(_library()) else "user"


@functools.cache
def _library() -> str:
    return os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib"


def line_of(file: str, line: int) -> str:
    """A file and line as rules and tables have them; "" for code of torch, of prismm or of Python itself."""
    return f"{os.path.basename(file)}:{line}" if _kind(file) == "user" else ""


def without_internals(error: BaseException) -> None:
    """Take prismm's first frames from an exception's traceback, all that prismm raised itself included.

    A bare ``raise`` afterwards adds none: the traceback of a product that fails begins at the program's line.
    """
    place = error.__traceback__
    while place is not None and (
        isinstance(error, PrismmError) or _kind(place.tb_frame.f_code.co_filename) in ("programs", "prismm")
    ):
        place = place.tb_next
    error.__traceback__ = place


class Spot:
    """A place as a block knows it: what is known of the products that were made there, by their layouts, forward and
    backward; guarded: a few of them, by `layouts.guarded`.
    """

    __slots__ = ("_code", "backward", "forward", "guarded", "owner", "place")

    def __init__(self, place: Place, owner: Any, code: Any = None) -> None:
        self.place, self.owner, self._code = place, owner, code
        self.forward: dict[Any, Any] = {}
        self.backward: dict[Any, Any] = {}
        self.guarded: list[tuple[tuple[int, bool], Any, Any]] = []

    def weak_code(self) -> Any:
        """A weak reference to its code, if it has some; it holds that no more."""
        code, self._code = self._code, None
        return None if code is None else weakref.ref(code)

    def is_of(self, code: Any) -> bool:
        """Hold again what `weak_code` returned; false where that is gone."""
        self._code = None if code is None else code()
        return code is None or self._code is not None


class Spots:
    """The places from which a block's products came, found again by what is on the stack.

    Args:
        models: models whose own names count; other modules are named from the outermost module that was called.
    """

    def __init__(self, models: tuple[torch.nn.Module, ...] = ()) -> None:
        from torch.nn import Module

        self.models, self._call = models, Module._wrapped_call_impl.__code__
        # Spots refer to this token, not to the object that holds them: that would be a reference cycle.
        self.identity = object()
        self._known: dict[Any, Spot] = {}
        self._kinds: dict[str, str] = {}
        self._of_places: dict[Place, Spot] = {}
        self._resting: list[tuple[Any, tuple[Any, ...], Spot]] = []

    def here(self, above: int = 1) -> Spot:
        """Where the caller's product comes from; looked for that many frames above this one."""
        call, kinds, internal = self._call, self._kinds, False
        modules: tuple[Any, ...] = ()
        frame: Any = sys._getframe(above)
        # Walk up to the innermost line of user code. Above that line only calls of modules matter.
        while frame is not None:
            code = frame.f_code
            if code is call:
                modules += (frame.f_locals["self"],)
            else:
                kind = kinds.get(code.co_filename)
                if kind is None:
                    kind = kinds[code.co_filename] = _kind(code.co_filename)
                if kind == "user":
                    break
                internal = internal or kind == "prismm"
            frame = frame.f_back
        user = frame
        while frame is not None:
            if frame.f_code is call:
                modules += (frame.f_locals["self"],)
            frame = frame.f_back
        # A spot holds its code, so that no other has that identity.
        key: tuple[Any, ...] = (None, 0, internal) if user is None else (id(code), user.f_lasti, internal)
        if modules or _SCOPES.names:
            key = *key, *modules, *_SCOPES.names
        found = self._known.get(key)
        if found is None:
            where = "" if user is None else f"{os.path.basename(user.f_code.co_filename)}:{user.f_lineno}"
            place = Place(_name(modules, self.models, _SCOPES.names), where, internal)
            found = self._known[key] = Spot(place, self.identity, None if user is None else user.f_code)
        return found

    def rest(self) -> None:
        """Hold no code and no module until `wake`."""
        for key, spot in self._known.items():
            with contextlib.suppress(TypeError):  # what cannot be held weakly is found anew
                rest = tuple(x if isinstance(x, str) else weakref.ref(x) for x in key[3:])
                self._resting.append((spot.weak_code(), (*key[:3], *rest), spot))
        self._known.clear()

    def wake(self) -> None:
        """Find places again as before `rest`, where their code and modules live on."""
        for code, key, spot in self._resting:
            found = tuple(x() if isinstance(x, weakref.ref) else x for x in key[3:])
            if None not in found and spot.is_of(code):
                modules = tuple(x for x in found if not isinstance(x, str))
                scopes = [x for x in found if isinstance(x, str)]
                # Modules may have other names by now.
                if not modules or _name(modules, self.models, scopes) == spot.place.module:
                    self._known[*key[:3], *found] = spot
        self._resting.clear()

    def of(self, place: Place) -> Spot:
        """The spot of a place that another block has found."""
        return self._of_places.setdefault(place, Spot(place, self.identity))


def _name(modules: tuple[Any, ...], models: tuple[Any, ...], scopes: Sequence[str]) -> str:
    """The innermost module's name, after the scopes that are open."""
    found = ""
    if modules:
        innermost, outermost = modules[0], modules[-1]
        for root in (*models, outermost):
            name = _names(root, innermost)
            if name is not None:
                found = name
                break
        else:
            # A module that its outermost caller does not own: named from the nearest caller that does.
            for root in reversed(modules):
                name = _names(root, innermost)
                if name is not None:
                    found = name
                    break
    if "_orig_mod" in found:  # what torch.compile puts around a module
        found = ".".join(part for part in found.split(".") if part != "_orig_mod")
    return ".".join([*scopes, found] if found else scopes)


def _resolves(root: Any, name: str | None, module: Any) -> bool:
    """Whether a name still is the module's within root; None: that it has none."""
    if name is None:
        return module is not root
    found = root
    for part in name.split(".") if name else ():
        found = getattr(found, "_modules", {}).get(part)
        if found is None:
            return False
    return found is module


def _names(root: Any, module: Any) -> str | None:
    """The module's name within root, or None; a module that is there twice goes by its first name."""
    with _LOCK:
        known = _NAMES.get(root)
        if known is None or module not in known or not _resolves(root, known[module], module):
            known = weakref.WeakKeyDictionary()
            for name, one in root.named_modules():
                known[one] = name
            known.setdefault(module, None)
            _NAMES[root] = known
        return known[module]
