"""Functions that may replace ``@``, ``@=``, ``a.dot`` and ``operator.matmul`` of a program.

They then call `numpy.matmul` and `numpy.dot` by name, where `numpy_products.by_name` reaches them.

Everything that is no array of NumPy's goes to Python's own operators. Errors show the program's lines alone.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from prismm.programs import emulate
from prismm.programs.places import without_internals

_PLAIN = (np.ndarray, list, tuple)
"""Operands that `numpy.matmul` takes as ``@`` of an array does."""


def _by_name(a: Any, b: Any, symbol: str) -> bool:
    """Whether `numpy.matmul` does as the operator; other operands of arrays are entered into the record."""
    if type(a) in _PLAIN and type(b) in _PLAIN:
        return type(a) is np.ndarray or type(b) is np.ndarray
    if (isinstance(a, np.ndarray) or isinstance(b, np.ndarray)) and emulate.is_active():
        emulate.note_hidden(symbol, "left to NumPy: a subclass of ndarray, or another array")
    return False


def product(a: Any, b: Any) -> Any:
    """a @ b, by `numpy.matmul`'s name for NumPy's arrays."""
    try:
        return np.matmul(a, b) if _by_name(a, b, "@") else operator.matmul(a, b)
    except BaseException as error:
        without_internals(error)
        raise


def inplace(a: Any, b: Any) -> Any:
    """The value that ``a @= b`` gives its target: `a` itself, written to, for NumPy's arrays.

    >>> import prismm
    >>> a, b = np.array([[1e16, 1.0, -1e16]] * 3), np.ones((3, 3))
    >>> before = a
    >>> with prismm.programs.numpy_products.by_name(), prismm.emulate("correctly-rounded"):
    ...     a = inplace(a, b)
    >>> a is before, a[0].tolist()
    (True, [1.0, 1.0, 1.0])
    """
    try:
        if type(a) is np.ndarray and _by_name(a, b, "@="):
            y = np.asarray(b)
            if a.ndim and y.ndim >= 2 and y.shape[-1] == y.shape[-2] == a.shape[-1]:
                return np.matmul(a, y, out=a)
        return operator.imatmul(a, b)  # type: ignore[no-untyped-call]
    except BaseException as error:
        without_internals(error)
        raise


def method(owner: Any, name: str) -> Any:
    """``owner.name``; of an array and of the module `operator`, what `numpy_products.by_name` reaches.

    >>> method(np.ones(3), "dot")(np.ones(3)).item(), method(operator, "matmul") is product
    (3.0, True)
    """
    try:
        if owner is operator and name in ("matmul", "imatmul"):
            return product if name == "matmul" else inplace
        return functools.partial(np.dot, owner) if type(owner) is np.ndarray and name == "dot" else getattr(owner, name)
    except BaseException as error:
        without_internals(error)
        raise


class _Key:
    """Returns its index."""

    def __getitem__(self, key: Any) -> Any:
        return key


KEY = _Key()

Target = tuple[Any, Callable[[Any], None]]
"""The value of a target of ``@=``, and a function that gives it another."""


def attribute(owner: Any, name: str) -> Target:
    """The target ``owner.name``."""
    try:
        return getattr(owner, name), lambda value: setattr(owner, name, value)
    except BaseException as error:
        without_internals(error)
        raise


def item(owner: Any, key: Any) -> Target:
    """The target ``owner[key]``."""
    try:
        return owner[key], lambda value: operator.setitem(owner, key, value)
    except BaseException as error:
        without_internals(error)
        raise


def store(target: Target, b: Any) -> None:
    """``target @= b``."""
    value, give = target
    try:
        give(inplace(value, b))
    except BaseException as error:
        without_internals(error)
        raise
