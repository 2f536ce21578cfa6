"""A CUDA graph queued at the addresses of a call: one compiled function, which calls the driver.

What differs between two calls of one layout are a few addresses. The function stores those that changed in the
parameters of the graph's nodes, hands the nodes that are concerned to the driver, and launches the graph: about 1.5 µs
for the launch and 0.2 µs a node, where a call of the driver from Python takes as long for every kernel.

The graph is described by a table (`launch.kernels.node_table`).
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from prismm.core.jit import kernel
from prismm.core.pointers import words_at
from prismm.cuda.launch.kernels.node_table import (
    ADDRESSES,
    BASES,
    CAPTURING,
    CONTEXT,
    END,
    EXECUTABLE,
    FACTORS_CHANGED,
    FIRST_MAP,
    FIRST_SLOT,
    HANDLE,
    IS_CAPTURING,
    LAUNCH,
    MOVE_MAP,
    NODE,
    NODES,
    PARAMETERS,
    SET_KERNEL,
    SET_MEMSET,
    SLOT,
    STATUS,
    USES,
    WORDS,
)


@intrinsic
def _call(typingctx, address, arguments):
    """What the function at this address returns, an int32, for these words."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * len(arguments))
        function = builder.inttoptr(args[0], kind.as_pointer())
        return builder.call(function, cgutils.unpack_tuple(builder, args[1], len(arguments)))

    return types.int32(types.int64, arguments), codegen


@kernel(f"int64({', '.join(['int64'] * 9)})", nogil=False)
def queue(place, stream, a, b, out, workspace, left, right, addend):
    """Launch a graph on a stream; 0, CAPTURING, or the driver's error.

    place: the address of its table. The others are the bases. Python's lock is held throughout: parameters belong to
    one call at a time.
    """
    table = words_at(place)
    table[STATUS] = 0
    code = _call(table[IS_CAPTURING], (stream, place + 8 * STATUS))
    if code:
        return code
    if table[STATUS]:
        return CAPTURING
    bases = (a, b, out, workspace, left, right, addend)
    changed = table[FACTORS_CHANGED] << ADDRESSES
    for h in range(ADDRESSES):
        if table[BASES + h] != bases[h]:
            changed |= 1 << h
            table[BASES + h] = bases[h]
    for i in range(table[NODES] if changed else 0):
        node = NODE + WORDS * i
        if not table[node + USES] & changed:
            continue
        sets, first_map, end = table[node + FIRST_MAP] < 0, table[node + FIRST_MAP], table[node + END]
        if sets:
            first_map = end
        for slot in range(table[node + FIRST_SLOT], first_map, SLOT):
            words_at(table[slot])[0] = table[BASES + table[slot + 1]] + table[slot + 2]
        for slot in range(first_map, end, SLOT):
            code |= _call(table[MOVE_MAP], (table[slot], table[BASES + table[slot + 1]] + table[slot + 2]))
        if sets:
            code |= _call(
                table[SET_MEMSET],
                (table[EXECUTABLE], table[node + HANDLE], table[node + PARAMETERS], table[CONTEXT]),
            )
        else:
            code |= _call(table[SET_KERNEL], (table[EXECUTABLE], table[node + HANDLE], table[node + PARAMETERS]))
        if code:
            # Which nodes have which addresses is unknown: the next call sets all of them.
            for h in range(ADDRESSES):
                table[BASES + h] = -1
            return code
    table[FACTORS_CHANGED] = 0
    return _call(table[LAUNCH], (table[EXECUTABLE], stream))
