"""Leave to use AMX's tile registers, which Linux gives to a process that asks for it.

The state of the registers, 8 KiB a thread, is saved only for processes that asked (``arch_prctl``); without leave the
first tile instruction ends the process with SIGILL. Leave holds for all threads of the process and for its forks. The
system refuses it where a thread has an alternate signal stack that the state does not fit in, and where a container
or an old kernel does not know the request.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import sys

from prismm.errors import EngineError

# Linux's numbers on x86-64: of arch_prctl, of its requests for features of the state, and of the tiles' data.
_ARCH_PRCTL = 158
_GET_PERMISSION, _ASK_PERMISSION = 0x1022, 0x1023
_TILE_DATA = 18


def _held(libc: ctypes.CDLL) -> bool:
    """Whether the process has leave already."""
    features = ctypes.c_uint64(0)
    answer = libc.syscall(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_GET_PERMISSION), ctypes.byref(features))
    return answer == 0 and bool(features.value >> _TILE_DATA & 1)


@functools.cache
def refusal() -> str | None:
    """Ask for leave, once per process; None where it is given, otherwise why not."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"tile registers are asked for on Linux for x86-64, and this is {sys.platform} on {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ASK_PERMISSION), ctypes.c_long(_TILE_DATA)) != 0:
        code = ctypes.get_errno()
        if code == errno.ENOSPC:
            return "the system refused its tile registers: a thread's alternate signal stack is too small for them"
        return f"the system refused its tile registers ({errno.errorcode.get(code, code)})"
    # Asked once more: a filter of system calls may answer 0 and do nothing.
    return None if _held(libc) else "the system did not give its tile registers, though it said so"


def require() -> None:
    """Nothing where leave is given; an error instead of the SIGILL that would end the process otherwise.

    Raises:
        EngineError: where the system refused it.
    """
    reason = refusal()
    if reason is not None:
        raise EngineError(f"engine 'cpu:amx' cannot be used here: {reason}; pass engine='cpu' for the best that can")
