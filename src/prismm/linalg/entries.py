"""Functions of single entries that NumPy and torch spell differently, for arrays and for tensors where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from prismm.core import arrays


def namespace(x: Any) -> Any:
    """The module whose functions take x: numpy or torch."""
    if arrays.is_tensor(x):
        import torch

        return torch
    return np


def is_complex(x: Any) -> bool:
    """Whether entries are complex numbers.

    >>> is_complex(np.ones(1)), is_complex(np.ones(1, complex))
    (False, True)
    """
    return bool(x.is_complex() if arrays.is_tensor(x) else np.iscomplexobj(x))


def beside(x: Any, like: Any) -> Any:
    """An array where another array or tensor lies."""
    if not arrays.is_tensor(like):
        return x.cpu().numpy() if arrays.is_tensor(x) else x
    if arrays.is_tensor(x):
        return x
    import torch

    return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(like.device)


def of_type(x: Any, dtype: Any) -> Any:
    """Rounded to a type, given as NumPy's."""
    if not arrays.is_tensor(x):
        return x.astype(dtype)
    import torch

    return x.to(getattr(torch, np.dtype(dtype).name))


def ldexp(x: Any, exponents: Any) -> Any:
    """RN(x·2^exponents), float64, of integer exponents.

    A tensor's is m·2^e with m in [1/2, 1), in two products: the first one, by 2^1000 at most, is exact, and so is the
    second where the result is normal.

    >>> import numpy as np
    >>> ldexp(np.array([3.0]), np.array([-1]))
    array([1.5])
    """
    if not arrays.is_tensor(x):
        return np.ldexp(x, exponents)
    import torch

    mantissa, e = torch.frexp(x)
    total = e + exponents
    first = total.clamp(-1000, 1000)
    return mantissa * _power(first) * _power((total - first).clamp(-1022, 1023))


def _power(e: Any) -> Any:
    """2^e as float64, of a tensor of integers from -1022 to 1023: its bits."""
    import torch

    return ((e.to(torch.int64) + 1023) << 52).view(torch.float64)


def mantissa(x: Any) -> Any:
    """The m of m·2^e, in [1/2, 1)."""
    if not arrays.is_tensor(x):
        return np.frexp(x)[0]
    import torch

    return torch.frexp(x)[0]


def largest(x: Any) -> Any:
    """The largest entry of each column of x >= 0; 0 where there is none."""
    if not len(x):
        return x.sum(axis=0)
    return namespace(x).amax(x, axis=0)
