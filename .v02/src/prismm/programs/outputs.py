"""Outputs of a program: kept, compared bit for bit, and measured against a reference."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError

if TYPE_CHECKING:
    import torch


def leaves(output: Any) -> list[Any]:
    """The tensors, arrays and numbers of nested tuples, lists and dictionaries (and dataclasses), in order."""
    import dataclasses

    from torch.utils import _pytree

    found: list[Any] = []
    for leaf in _pytree.tree_leaves(output):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += leaves([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
        else:
            found.append(leaf)
    return found


def copied(output: Any) -> Any:
    """The output with tensors of its own, which a later run cannot overwrite."""
    import copy

    import torch
    from torch.utils import _pytree

    def keep(leaf: Any) -> Any:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)

    return _pytree.tree_map(keep, output)


def same(one: Any, other: Any) -> bool:
    """Whether two outputs are the same to the last bit; NaN equals NaN."""
    import numpy as np
    import torch

    first, second = leaves(one), leaves(other)
    if len(first) != len(second):
        return False
    for a, b in zip(first, second, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device or not _equal(a, b):
                return False
        elif isinstance(a, (np.ndarray, np.generic)) and isinstance(b, (np.ndarray, np.generic)):
            equal_nan = np.asarray(a).dtype.kind in "fc"
            if not np.array_equal(a, b, equal_nan=equal_nan):
                return False
        elif isinstance(a, (float, complex)) and a != a:
            if b == b:
                return False
        elif type(a) is not type(b) or (isinstance(a, (bool, int, float, complex, str, bytes)) and a != b):
            return False
    return True


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout is not b.layout:
        return False
    a, b = (x.detach().to_dense() if str(x.layout) != "torch.strided" else x.detach() for x in (a, b))
    return bool(((a == b) | ((a != a) & (b != b))).all())


def relative_error(output: Any, reference: Any) -> float:
    """‖x − r‖_F / ‖r‖_F over all floating-point numbers of two outputs (MixPert's Eq. 10), in float64.

    Where both are the same infinity, or both NaN, there is no error; where only one is, it is infinite.

    Raises:
        ArgumentError: for outputs without a floating-point number.

    >>> import torch
    >>> relative_error({"x": torch.tensor([3.0, 4.5])}, {"x": torch.tensor([3.0, 4.0])})
    0.1
    """
    mine, theirs = _floats(output), _floats(reference)
    if not theirs:
        raise ArgumentError(
            "the output holds no floating-point number to measure; pass metric=, a function of (output, reference)"
        )
    if [x.shape for x in mine] != [x.shape for x in theirs]:
        return math.inf
    import torch

    difference = math.hypot(
        *(
            # Equal infinities agree, and NaN with NaN.
            float(torch.linalg.vector_norm(torch.where((a == b) | ((a != a) & (b != b)), 0.0, a - b)))
            for a, b in zip(mine, theirs, strict=True)
        )
    )
    size = math.hypot(*(float(torch.linalg.vector_norm(torch.where(b.isfinite(), b, 0.0))) for b in theirs))
    return difference / size if size else (0.0 if difference == 0 else math.inf)


def _floats(output: Any) -> list[torch.Tensor]:
    import numpy as np
    import torch

    found = []
    for leaf in leaves(output):
        if isinstance(leaf, (np.ndarray, np.generic)) and np.asarray(leaf).dtype.kind in "fc":
            leaf = torch.from_numpy(np.array(leaf))
        if isinstance(leaf, (float, complex)):
            leaf = torch.tensor(leaf, dtype=torch.complex128 if isinstance(leaf, complex) else torch.float64)
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            found.append(leaf.detach().to(torch.complex128 if leaf.is_complex() else torch.float64))
    return found


def digest(value: Any) -> str:
    """A digest of all tensors, arrays and numbers of an input, which tells inputs apart."""
    import numpy as np
    import torch

    sha = hashlib.sha256()
    for leaf in leaves(value):
        if isinstance(leaf, torch.Tensor) and str(leaf.layout) == "torch.strided":
            dense = leaf.detach().cpu().contiguous()
            sha.update(f"{dense.dtype} {tuple(dense.shape)}".encode())
            if dense.numel():
                sha.update(dense.reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(leaf, np.ndarray):
            sha.update(f"{leaf.dtype} {leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes())
        elif isinstance(leaf, (bool, int, float, complex, str, bytes)):
            sha.update(repr(leaf).encode())
        else:
            sha.update(type(leaf).__qualname__.encode())
    return sha.hexdigest()[:16]
