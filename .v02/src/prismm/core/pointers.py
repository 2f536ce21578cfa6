"""Arrays of int64 as bare pointers, for helpers that are not copied into their callers.

A NumPy array is seven or more arguments of a compiled function, and its reference is counted at every call, which costs
as much as the arithmetic of a short sum, and more where threads share the array. `pointer` makes one, which
is indexed like it, without negative indices; the caller keeps the array alive.
"""

import operator

import numpy as np
from numba.core import types
from numba.core.imputils import lower_builtin
from numba.core.types.misc import CPointer
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic

from prismm.core.jit import device

_WORDS = CPointer(types.int64)


@intrinsic
def _at(typingctx, address):
    """The pointer of an address."""

    def codegen(context, builder, sig, args):
        return builder.inttoptr(args[0], context.get_value_type(_WORDS))

    return _WORDS(types.uintp), codegen


@device
def pointer(array, i):
    """The words of a contiguous array, from its row i on."""
    return _at(array.ctypes.data + i * array.strides[0])


@device
def words_at(address):
    """The words at an address."""
    return _at(np.uintp(address))


@infer_global(operator.getitem)
class _Load(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args, kws):
        pointer, index = args
        if pointer == _WORDS and isinstance(index, types.Integer):
            return signature(types.int64, pointer, types.intp)
        return None


@infer_global(operator.setitem)
class _Store(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args, kws):
        pointer, index, _ = args
        if pointer == _WORDS and isinstance(index, types.Integer):
            return signature(types.none, pointer, types.intp, types.int64)
        return None


@lower_builtin(operator.getitem, CPointer, types.intp)
def _load(context, builder, sig, args):
    return builder.load(builder.gep(args[0], [args[1]]))


@lower_builtin(operator.setitem, CPointer, types.intp, types.int64)
def _store(context, builder, sig, args):
    builder.store(args[2], builder.gep(args[0], [args[1]]))
    return context.get_dummy_value()
