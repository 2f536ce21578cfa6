"""Environment variables that a product on a GPU depends on, read at once."""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import kernel
from prismm.core.pointers import words_at
from prismm.core.variables import variable

_PRIME, _BASIS = 1099511628211, -3750763034362895579


@intrinsic
def _byte(typingctx, address):
    """The byte at an address."""

    def codegen(context, builder, sig, args):
        return builder.zext(builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer())), ir.IntType(64))

    return types.int64(types.int64), codegen


@kernel("int64(int64)", nogil=False)
def fingerprint(place):
    """A number made of the values of some variables (FNV-1a, 64 bits), which differs where any of them is another one.

    place: the address of the words of `core.variables.table_of`.
    """
    table = words_at(place)
    found = _BASIS
    for i in range(table[1]):
        value = variable(table, i)
        if value == 0:
            found = (found ^ 256) * _PRIME
            continue
        byte = 1
        while byte:
            byte = _byte(value)
            found = (found ^ byte) * _PRIME
            value += 1
    return found
