"""Environment variables that compiled code asks for by itself, in fractions of a microsecond."""

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device


def table_of(names: tuple[bytes, ...]) -> tuple[Any, Any]:
    """Words for `variable`: the address of C's getenv, how many names, and the addresses of these; and what has to live
    as long as the words are used.
    """
    texts = [ctypes.create_string_buffer(name) for name in names]
    getenv = ctypes.cast(ctypes.PyDLL(None).getenv, ctypes.c_void_p).value or 0
    return np.array([getenv, len(texts), *map(ctypes.addressof, texts)], np.int64), texts


@intrinsic
def _call(typingctx: Any, getenv: Any, name: Any) -> Any:
    """What C's getenv returns for the name at an address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = args[1].type
        function = builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer())
        return builder.call(function, [args[1]])

    return types.int64(types.int64, types.int64), codegen


@device
def variable(table: Any, i: Any) -> Any:
    """The address of the value of the i-th variable of a table, 0 where it is not set."""
    return _call(table[0], table[2 + i])
