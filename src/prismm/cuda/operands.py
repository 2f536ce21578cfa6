"""Operands on a GPU: tensors of the types that kernels read, and their rows and columns."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from prismm.core import arrays
from prismm.core.arrays import lives_on_gpu
from prismm.core.prepared import Prepared
from prismm.cuda.launch.arguments import OUT, BufferView
from prismm.cuda.residues.split import SplitVectors
from prismm.cuda.views import Result, Vectors
from prismm.errors import DTypeError, OperandError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PreparedParts:
    """Where the parts of a prepared operand stand in its memory: of so many vectors at a time."""

    step: int
    splits: tuple[SplitVectors, ...]


@dataclass(frozen=True, eq=False)
class PreparedOnDevice(Prepared):
    """An operand that `cuda.prepare.prepare` split once.

    parts, memory: None where the scheme has nothing to keep but the matrix. stream: on which it was split.
    """

    parts: PreparedParts | None = field(repr=False)
    memory: torch.Tensor | None = field(repr=False)
    stream: int = field(repr=False)

    is_cuda: ClassVar[bool] = True

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """All that a product's choice and launches depend on."""
        options = self.side, self.scheme, self.target, self.reproducible, self.engine, self.out_dtype, self.asked_dtype
        return (*options, self.parts)

    @property
    def data(self) -> Any:
        """The private copy of the matrix, a tensor."""
        return self.array.data

    @property
    def dtype(self) -> Any:
        """Element type of the matrix: torch's of a tensor, NumPy's of another array."""
        return self.data.dtype if self.array.family == "torch" else numpy_dtype(self.data.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes held on the device: the copy and its parts."""
        return int(self.data.nbytes) + (self.memory.nbytes if self.memory is not None else 0)

    def gives(self, out_dtype: Any) -> str:
        """See `Prepared.gives`."""
        return name_of(result_dtype([self.data], out_dtype))


def shared(x: Any, name: str) -> torch.Tensor:
    """A tensor of the same memory.

    Raises:
        OperandError: if x is not on a GPU, cannot be read, is sparse, or would lose its derivative.
    """
    import torch

    if not lives_on_gpu(x):
        if not isinstance(x, torch.Tensor):
            arrays.normalise(x, name)  # says of what is no array how to make one
        raise OperandError(
            f"one operand is on a GPU, {name} is a {type(x).__name__} that is not; move it there (torch.as_tensor("
            f"{name}, device='cuda')), or the other one to the CPU"
        )
    try:
        tensor = x if isinstance(x, torch.Tensor) else torch.utils.dlpack.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperandError(f"{name} cannot be read through __dlpack__ ({error}); pass a torch tensor") from error
    arrays.refuse_traced(tensor, name)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        raise OperandError(f"{name} has layout {tensor.layout}; pass {name}.to_dense()")
    return tensor


def tensor_of(x: Any, name: str) -> torch.Tensor:
    """The operand as a tensor of float64, float32 or complex numbers, whose memory holds its entries as they are, or of
    64-bit integers (`cuda.integers`).

    Raises:
        DTypeError: for other types. The errors of `shared` besides.
    """
    import torch

    tensor: torch.Tensor = x.data if isinstance(x, PreparedOnDevice) else shared(x, name)
    # Negation and conjugation may be flags of a view, which kernels, reading memory, would miss.
    if tensor.dtype in (torch.float64, torch.float32):
        return tensor.resolve_neg()
    if tensor.dtype in (torch.complex128, torch.complex64):
        return tensor.resolve_conj().resolve_neg()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    if tensor.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
        return tensor.double()
    if tensor.dtype == torch.uint16:
        return (tensor.view(torch.int16).int() & 0xFFFF).double()
    if tensor.dtype == torch.uint32:
        return (tensor.view(torch.int32).long() & 0xFFFFFFFF).double()
    if tensor.dtype in (torch.int64, torch.uint64):
        return tensor
    raise DTypeError(
        f"{name} has dtype {tensor.dtype}; on a GPU prismm multiplies float64, float32, complex128, complex64, "
        f"float16, bfloat16 and integers: convert it with {name}.to(...)"
    )


def name_of(dtype: torch.dtype) -> str:
    """The type's name in NumPy."""
    return str(dtype).removeprefix("torch.")


def numpy_dtype(dtype: torch.dtype) -> Any:
    """The same type in NumPy."""
    import numpy as np

    return np.dtype(name_of(dtype))


def result_dtype(operands: list[torch.Tensor], out_dtype: Any) -> torch.dtype:
    """`arrays.result_dtype` of tensors."""
    import numpy as np
    import torch

    # NumPy's rules decide, by empty arrays of the same types.
    empty = [np.empty(0, numpy_dtype(x.dtype)) for x in operands]
    wanted = arrays.result_dtype(empty, out_dtype)
    found: torch.dtype = getattr(torch, wanted.name)
    return found


def span(x: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if x.numel() == 0:
        return 0
    return x.element_size() * (1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)))


def overlap(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether x may share memory with any of the others: by addresses, as views of another library's memory have
    storages of their own.
    """
    return any(ranges_overlap(x.data_ptr(), span(x), y.data_ptr(), span(y)) for y in others)


def ranges_overlap(first: int, size: int, other: int, other_size: int) -> bool:
    """Whether so many bytes from one address on overlap those from another one on."""
    return first < other + other_size and other < first + size


def vectors_of(x: torch.Tensor, base: int, *, columns: bool) -> Vectors:
    """Rows of (batch, m, k), or columns of (batch, k, n)."""
    batch, rows, inner = x.shape
    strides = x.stride() if not columns else (x.stride(0), x.stride(2), x.stride(1))
    count, terms = (inner, rows) if columns else (rows, inner)
    # Extents of 1 have any stride.
    vector, element = 1 if count == 1 else strides[1], 1 if terms == 1 else strides[2]
    return Vectors(BufferView(base, 0, x.dtype), batch, count, terms, (strides[0], vector, element))


def result_of(out: torch.Tensor, base: int = OUT) -> Result:
    """Where entries (batch, m, n) are, behind a base."""
    strides = out.stride(0), out.stride(1), out.stride(2)
    return Result(BufferView(base, 0, out.dtype), out.shape[0], out.shape[1], out.shape[2], strides)
