"""Integers on a GPU: what they are multiplied as, in torch's own operations.

Integers of up to 32 bits are float64 numbers. Of 64 bits they are where none is beyond 2^53, which has to be asked of
the data and waits for the GPU; others are two numbers each, high + low, and so two terms of the inner dimension, as on
a CPU (`interop.widened`), with the same bits.

torch does little more with unsigned integers of 16 bits and more than to view them as signed ones of as many, which are
below 0 where the first bit is set; so that is all that is done with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.cuda.operands import numpy_dtype
from prismm.errors import ArgumentError, DTypeError, OperandError

if TYPE_CHECKING:
    import torch

_MOST = 2**53


def any_integers(*tensors: torch.Tensor) -> bool:
    """Whether one of them holds integers."""
    return any(not x.dtype.is_floating_point and not x.dtype.is_complex for x in tensors)


def promoted(*operands: torch.Tensor) -> str:
    """The type that NumPy's promotion gives the product of operands of which some are integers, as on a CPU; integers
    alone give float64.
    """
    import numpy as np
    import torch

    narrow = torch.float16, torch.bfloat16
    kinds = [np.dtype(np.float32) if x.dtype in narrow else numpy_dtype(x.dtype) for x in operands]
    found: np.dtype[Any] = np.result_type(*kinds)
    return "float64" if found.kind in "iu" else found.name


def big(x: torch.Tensor) -> bool:
    """Whether x holds integers that float64 cannot; waits for the GPU where they have 64 bits.

    Raises:
        ArgumentError: while a CUDA graph captures the stream.
    """
    import torch

    if x.dtype not in (torch.int64, torch.uint64) or x.numel() == 0:
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ArgumentError(
            "64-bit integers are looked at for ones beyond 2^53, which a CUDA graph cannot capture; pass x.to(int32), "
            "or x.double() if rounding them is meant"
        )
    # Unsigned integers from 2^63 on look negative, and are found by a least one of 0.
    least, most = torch.aminmax(x.view(torch.int64))
    return bool((most > _MOST) | (least < _least(x)))


def alike_in_size(x: torch.Tensor) -> bool:
    """Whether all matrices of a batch hold integers that float64 cannot, or none does: `interop.alike_in_size`."""
    import torch

    if x.ndim < 3 or not big(x):
        return True
    least, most = x.view(torch.int64).flatten(-2).aminmax(dim=-1)
    return bool(((most > _MOST) | (least < _least(x))).all())


def high_low(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """64-bit integers as an exact sum high + low of float64, low = 0 where high alone is exact: `interop.high_low`."""
    import torch

    unsigned, least = x.dtype == torch.uint64, _least(x)
    x = x.view(torch.int64)
    low = (x << 32) >> 32  # the last 32 bits, with a sign
    upper = x >> 32
    # A negative low part has taken 2^32 from the number, which goes to the upper one.
    upper = (upper & 0xFFFFFFFF if unsigned else upper) + (low < 0)
    small = (x <= _MOST) & (x >= least)
    high = (upper.double() * 2.0**32).where(~small, x.where(small, 0).double())
    return high, low.double().where(~small, 0.0)


def widened(a: torch.Tensor, b: torch.Tensor, prepared: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Operands whose product is a @ b exactly, of float64 instead of integers; and how many terms stand for each one
    of the inner dimension.

    Raises:
        OperandError: for integers beyond 2^53 beside a prepared operand. ArgumentError: see `big`.
    """
    import torch

    wide = big(a), big(b)
    if any(wide) and prepared:
        raise OperandError("a prepared operand meets integers beyond 2^53; pass both matrices unprepared")
    of_a, of_b = (high_low(x) if is_wide else (_plain(x),) for x, is_wide in zip((a, b), wide, strict=True))
    if any(wide):
        # Inf and NaN are met by the high part alone, as in `interop.widened`.
        # Every part of one side meets every part of the other once.
        left = [x if p == 0 else _finite(x) for p in range(len(of_b)) for x in of_a]
        right = [x if p == 0 else _finite(x) for x in of_b for p in range(len(of_a))]
        return torch.cat(left, -1), torch.cat(right, -1 if b.ndim == 1 else -2), len(left)
    return of_a[0], of_b[0], 1


def _finite(x: torch.Tensor) -> torch.Tensor:
    """x with 0 for what is not finite."""
    return x.where(x.isfinite(), 0)


def exact(x: torch.Tensor, name: str, otherwise: str) -> torch.Tensor:
    """x in float64 where it holds integers.

    Raises:
        DTypeError: for integers beyond 2^53, saying what is otherwise to be done. ArgumentError: see `big`.
    """
    if big(x):
        raise DTypeError(f"{name} holds integers beyond 2^53{otherwise}")
    return _plain(x)


def _least(x: torch.Tensor) -> int:
    """From where on 64-bit integers are float64 numbers, if at most 2^53, when they are viewed as signed ones."""
    import torch

    return 0 if x.dtype == torch.uint64 else -_MOST


def _plain(x: torch.Tensor) -> torch.Tensor:
    import torch

    # None is beyond 2^53 here, so the view's sign bit is clear.
    x = x.view(torch.int64) if x.dtype == torch.uint64 else x
    return x.double() if any_integers(x) else x
