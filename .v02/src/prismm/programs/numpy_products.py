"""NumPy's products within a block of `emulate`, where they are called by a name of the module `numpy`.

NumPy has no hook for the products of its arrays. Within `by_name` the names matmul, dot, vdot, inner, tensordot,
einsum, vecdot, matvec and vecmat of the module `numpy`, and matmul, multi_dot, tensordot and vecdot of `numpy.linalg`,
stand for functions that hand their operands, as views, to torch, where the block intercepts them. Results are arrays
that own their memory where NumPy's do. Code that took the functions before, and the operator ``@`` between arrays,
call NumPy itself: `prismm.programs.numpy_operators` has what a program's ``@`` may be replaced by. What is left to
NumPy is entered into the record, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from prismm.core.arrays import RESULTS
from prismm.errors import PrismmError
from prismm.programs import emulate
from prismm.programs.numpy_einsum import einsum
from prismm.programs.places import without_internals

_TYPES = frozenset(map(np.dtype, RESULTS))
_Function = Callable[..., Any]


def _same(m: int, n: int) -> None:
    """ValueError unless two lengths agree: torch repeats an axis of length 1, NumPy does not."""
    if m != n:
        raise ValueError(f"lengths {m} and {n}")


def _dot(a: Any, b: Any) -> Any:
    """`numpy.dot`: the last axis of a with the last but one of b."""
    axis = max(b.ndim - 2, 0)
    _same(a.shape[-1], b.shape[axis])
    return torch.matmul(a, b) if a.ndim <= 2 and b.ndim <= 2 else torch.tensordot(a, b, ([-1], [axis]))


def _inner(a: Any, b: Any) -> Any:
    """`numpy.inner`: the last axes of both."""
    _same(a.shape[-1], b.shape[-1])
    return torch.tensordot(a, b, ([-1], [-1]))


def _vdot(a: Any, b: Any) -> Any:
    """`numpy.vdot`: of all elements, the first operand's conjugated."""
    return torch.vdot(a.reshape(-1), b.reshape(-1))


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """`numpy.tensordot`, whose axes may be numbers alone as well."""
    if isinstance(axes, int):
        pairs = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        first, second = ([x] if isinstance(x, int) else list(x) for x in axes)
        pairs = first, second
    for i, j in zip(*pairs, strict=True):
        _same(a.shape[i], b.shape[j])
    return torch.tensordot(a, b, pairs)


def _vecdot(a: Any, b: Any) -> Any:
    """`numpy.vecdot`: of the last axes, the first operand's conjugated."""
    return torch.matmul(a.conj()[..., None, :], b[..., :, None])[..., 0, 0]


def _matvec(a: Any, b: Any) -> Any:
    """`numpy.matvec`: matrices in the last two axes of a, vectors in the last one of b."""
    _same(a.ndim >= 2, True)
    return torch.matmul(a, b[..., :, None])[..., 0]


def _vecmat(a: Any, b: Any) -> Any:
    """`numpy.vecmat`: vectors in the last axis of a, conjugated, matrices in the last two of b."""
    _same(b.ndim >= 2, True)
    return torch.matmul(a.conj()[..., None, :], b)[..., 0, :]


def _multi_dot(*operands: Any) -> Any:
    """`numpy.linalg.multi_dot`: in the order with the fewest operations."""
    return torch.linalg.multi_dot(operands)


_BY_TORCH: dict[str, _Function] = {
    "matmul": torch.matmul, "dot": _dot, "vdot": _vdot, "inner": _inner, "tensordot": _tensordot, "einsum": einsum,
    "vecdot": _vecdot, "matvec": _matvec, "vecmat": _vecmat, "multi_dot": _multi_dot,
}  # fmt: skip

_MODULES = {np: tuple(x for x in _BY_TORCH if x != "multi_dot"),
            np.linalg: ("matmul", "tensordot", "vecdot", "multi_dot")}  # fmt: skip
"""The names in each module; some are younger than NumPy 2.0."""

_KEYWORDS = {"tensordot": {"axes"}, "einsum": {"optimize"}}
"""Keywords that are served; ``out`` is, everywhere."""


class _Intercepted:
    """A function of NumPy's by its name. Attributes are the original's: `numpy.matmul` is a ufunc."""

    def __init__(self, name: str, original: _Function, module: str) -> None:
        self._name, self._original = name, original
        self.__name__, self.__doc__, self.__module__, self.__wrapped__ = name, original.__doc__, module, original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __reduce__(self) -> str:
        return self.__name__  # of the module: other processes find NumPy's own there

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._called(args, kwargs) if emulate.is_active() else self._original(*args, **kwargs)
        except BaseException as error:
            without_internals(error)
            raise

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reason, operands, words = _refused(self._name, args, kwargs)
        if not reason:
            value, reason = self._by_torch(operands, words, kwargs.get("out"))
            if not reason:
                return value
        result = self._original(*args, **kwargs)
        if reason != _NO_PRODUCT:
            emulate.note_hidden(self._name, f"left to NumPy: {reason}")
        return result

    def _by_torch(self, operands: Any, words: tuple[Any, ...], out: Any) -> tuple[Any, str]:
        """The result, or why there is none: shapes that do not fit, for which NumPy has the message, say."""
        try:
            value = _BY_TORCH[self._name](*words, *operands[0], *operands[1])
        except PrismmError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            return None, f"torch says {str(error).splitlines()[0]}"
        found = value.resolve_conj().resolve_neg().numpy()
        if out is None:
            if self._name == "tensordot":  # a reshaped product
                return found.copy().reshape(found.shape), ""
            return found.copy() if found.ndim else found[()], ""
        if out.shape != found.shape:
            return None, "out of another shape"
        out[...] = found
        return out, ""


_NO_PRODUCT = "no product"


def _refused(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, tuple[Any, ...]]:
    """Why a call is NumPy's; else the operands as tensors, with other positional arguments, and subscripts."""
    words: tuple[Any, ...] = ()
    if name == "einsum":
        if not args or not isinstance(args[0], str):
            return "subscripts as lists", (), ()
        words, args = args[:1], args[1:]
        if len(args) == 1:
            return _NO_PRODUCT, (), ()
    if name == "multi_dot" and len(args) == 1:
        args = tuple(args[0])
    unserved = set(kwargs) - _KEYWORDS.get(name, set()) - {"out"}
    if unserved:
        return f"{sorted(unserved)[0]}=", (), ()
    count = max(len(args), 2) if name in ("einsum", "multi_dot") else 2
    given, rest = args[:count], list(args[count:])
    if "axes" in kwargs:
        rest.append(kwargs["axes"])
    if len(given) < count or len(rest) > (name == "tensordot"):
        return "another number of arguments", (), ()
    arrays = [x if isinstance(x, np.ndarray) else np.asarray(x) for x in given]
    if any(type(x) is not np.ndarray for x in arrays):
        return "a subclass of ndarray", (), ()
    if name in ("dot", "inner") and not all(x.ndim for x in arrays):
        return _NO_PRODUCT, (), ()
    kind = np.result_type(*arrays) if arrays else np.dtype(object)
    if kind not in _TYPES:
        return f"elements of type {kind}", (), ()
    out = kwargs.get("out")
    if out is not None and (type(out) is not np.ndarray or out.dtype != kind):
        return "out of another type", (), ()
    if out is not None and not out.flags.writeable:
        return "out that must not be written", (), ()
    return "", ([_tensor(x, kind) for x in arrays], rest), words


def _tensor(x: Any, kind: np.dtype[Any]) -> torch.Tensor:
    """A view where torch can have one: it knows neither negative strides nor arrays that must not be written."""
    x = x.astype(kind.newbyteorder("="), copy=False)
    plain = x.flags.writeable and all(s >= 0 and s % x.itemsize == 0 for s in x.strides)
    return torch.from_numpy(x if plain else x.copy())


@contextlib.contextmanager
def by_name() -> Iterator[None]:
    """Let NumPy's products be intercepted by name in this process, until the block ends.

    Calls in threads without an open `emulate` block are NumPy's own.

    >>> import prismm
    >>> x, y = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> with by_name(), prismm.emulate("correctly-rounded") as record:
    ...     z = np.matmul(x, y)
    >>> z, record.rows[0].operator
    (array([[1.]]), 'mm')
    """
    originals = {
        (module, name): getattr(module, name)
        for module, names in _MODULES.items()
        for name in names
        if hasattr(module, name)
    }
    for (module, name), original in originals.items():
        setattr(module, name, _Intercepted(name, original, module.__name__))
    try:
        yield
    finally:
        for (module, name), original in originals.items():
            setattr(module, name, original)
