"""Environment variables that a product on a GPU depends on, read at once."""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import kernel
from prismm.core.pointers import words_at

_PRIME, _BASIS = 1099511628211, -3750763034362895579


@intrinsic
def _value_of(typingctx, getenv, name):
    """What C's getenv returns for the name at an address: an address, or 0."""

    def codegen(context, builder, sig, args):
        word = args[1].type
        function = builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer())
        return builder.call(function, [args[1]])

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _byte(typingctx, address):
    """The byte at an address."""

    def codegen(context, builder, sig, args):
        return builder.zext(builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer())), ir.IntType(64))

    return types.int64(types.int64), codegen


@kernel("int64(int64)", nogil=False)
def fingerprint(place):
    """A number made of the values of some variables (FNV-1a, 64 bits), which differs where any of them is another one.

    place: the address of words: that of C's getenv, how many names, and the addresses of these.
    """
    table = words_at(place)
    found = _BASIS
    for i in range(table[1]):
        value = _value_of(table[0], table[2 + i])
        if value == 0:
            found = (found ^ 256) * _PRIME
            continue
        byte = 1
        while byte:
            byte = _byte(value)
            found = (found ^ byte) * _PRIME
            value += 1
    return found
