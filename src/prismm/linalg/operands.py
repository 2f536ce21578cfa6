"""Arrays in and out of `prismm.linalg`: checks, the real form of complex systems, the caller's kind of array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays, terms
from prismm.errors import ArgumentError, OperandError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Operand:
    """An array of the caller's.

    Attributes:
        data: its entries, on the CPU; zeros of their type where `tensor` has them.
        family: of what came in, as in `core.arrays.Array`.
        source: what came in.
        device: the torch CUDA device where it lies, or None.
        tensor: its entries as float64 or complex128 on that device, where they stay there.
    """

    data: NDArray[Any]
    family: str
    source: Any
    device: Any = None
    tensor: Any = None

    def matrix(self, at: tuple[int, ...], batch: tuple[int, ...] | None = None) -> Any:
        """One matrix as float64 or complex128, contiguous, where it is to be computed with; batch: that to which the
        operand's broadcasts.
        """
        batch = self.data.shape[:-2] if batch is None else batch
        shape = (*batch, *self.data.shape[-2:])
        if self.tensor is not None:
            return self.tensor.expand(shape)[at].contiguous()
        kind = np.complex128 if self.data.dtype.kind == "c" else np.float64
        return np.ascontiguousarray(np.broadcast_to(self.data, shape)[at], kind)

    def returned(self, result: NDArray[Any]) -> Any:
        """A result as the same kind of array, in the same place."""
        found = arrays.as_caller(result, self.family, self.source)
        return found if self.device is None else found.to(self.device)


def operand(x: Any, name: str) -> Operand:
    """x with finite entries that float64 or complex128 hold exactly.

    Raises:
        OperandError, DTypeError: as `prismm.matmul`. ArgumentError: for NaN, Inf and integers beyond 2^53.
    """
    device = None
    if arrays.is_tensor(x) and x.is_cuda:
        arrays.refuse_traced(x, name)
        x, device = x.cpu(), x.device
    elif arrays.lives_on_gpu(x):
        raise OperandError(f"{name} is a {type(x).__name__} on a GPU; pass a torch tensor")
    array = arrays.normalise(x, name)
    data = array.data
    if terms.several(data):
        raise ArgumentError(f"{name} holds {data.dtype} numbers that float64 cannot; pass {name}.astype(float)")
    data = terms.numbers(data)
    check_finite(data, name)
    return Operand(data, array.family, array.source, device)


def operand_where_it_is(x: Any, name: str) -> Operand:
    """`operand`; a tensor on a GPU of one of the four types stays there.

    Raises:
        The errors of `operand`. OperandError: if torch has to follow the tensor, because it requires grad or is traced.
    """
    if not stays(x):
        return operand(x, name)
    arrays.refuse_traced(x, name)
    return resident(x, name)


def stays(x: Any) -> bool:
    """Whether it is a tensor on a GPU of float64, float32, complex128 or complex64."""
    if not arrays.is_tensor(x) or not x.is_cuda:
        return False
    import torch

    return x.dtype in (torch.float64, torch.float32, torch.complex128, torch.complex64)


def real_matrix_on_gpu(x: Any, name: str) -> Operand | None:
    """The same of a real matrix on a GPU, which stays there; None for anything else.

    Raises:
        OperandError: if torch has to follow the tensor, because it requires grad or is traced.
        ArgumentError: for NaN and Inf.
    """
    if not arrays.is_tensor(x) or not x.is_cuda:
        return None
    import torch

    if x.ndim != 2 or x.dtype not in (torch.float64, torch.float32):
        return None
    return operand_where_it_is(x, name)


def resident(x: Any, name: str) -> Operand:
    """A tensor of one of the four types as an operand that stays where it is."""
    import torch

    x = x.detach().resolve_conj()
    if not x.isfinite().all():
        check_finite(x.cpu().numpy(), name)
    dtype = np.dtype(str(x.dtype).removeprefix("torch."))
    zeros = np.broadcast_to(np.zeros((), dtype), tuple(x.shape))
    return Operand(zeros, "torch", x, x.device, x.to(torch.complex128 if x.is_complex() else torch.float64))


def check_finite(x: NDArray[Any], name: str) -> None:
    """ArgumentError for NaN and Inf, with the place of the first."""
    if x.dtype.kind in "iu":
        return
    bad = ~np.isfinite(x)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ArgumentError(f"{name}{list(where)} is {x[where]}; pass finite entries")


def check_square(x: NDArray[Any], name: str) -> None:
    """ShapeError unless x is a square matrix, or a batch of them."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name} has shape {x.shape}; pass a square matrix (..., n, n)")


def check_hermitian(x: NDArray[Any], name: str) -> None:
    """ArgumentError for a matrix that differs from its conjugate transpose, with the place of the first difference."""
    check_square(x, name)
    check_mirrored(x, name, True)


def check_hermitian_operand(x: Operand, name: str) -> None:
    """The same of an operand, where it is."""
    if x.tensor is None:
        check_hermitian(x.data, name)
        return
    check_square(x.data, name)
    if bool((x.tensor != x.tensor.mH).any()):
        check_hermitian(x.tensor.cpu().numpy(), name)


def check_mirrored(x: NDArray[Any], name: str, hermitian: bool, remedy: str = "") -> None:
    """ArgumentError for a square matrix that differs from its (conjugate) transpose; NaN counts as equal to NaN."""
    other = np.swapaxes(x, -1, -2)
    other = np.conj(other) if hermitian else other
    pairs = [(x.real, other.real), (x.imag, other.imag)] if x.dtype.kind == "c" else [(x, other)]
    differs = np.any([(a != b) & ((a == a) | (b == b)) for a, b in pairs], axis=0)
    if differs.any():
        where = tuple(int(i) for i in np.argwhere(differs)[0])
        kind = "Hermitian" if x.dtype.kind == "c" and hermitian else "symmetric"
        raise ArgumentError(
            f"{name} is not {kind}: {name}{list(where)} is {x[where]}, and the entry across the diagonal asks for "
            f"{other[where]}{remedy}"
        )


def common(operands: dict[str, Operand]) -> tuple[Operand, np.dtype[Any]]:
    """The operand that results go back to, and their type.

    Raises:
        OperandError: for operands of different kinds, or on different devices.
    """
    found = [(name, arrays.Array(x.data, x.family, x.source)) for name, x in operands.items()]
    arrays.same_family(found)
    devices = {str(x.device) for x in operands.values()}
    if len(devices) > 1:
        raise OperandError(f"operands are on different devices ({', '.join(sorted(devices))}); move them to one")
    return next(iter(operands.values())), arrays.result_dtype([x.data for x in operands.values()], None)


def real_form(a: Any, complex_result: bool) -> Any:
    """The matrix as float64, and X + iY as [[X, -Y], [Y, X]]: the real map on real parts above imaginary parts. Of a
    tensor it is one.

    It is a homomorphism: inverses, transposes and products carry over, and a Hermitian positive definite matrix becomes
    a symmetric positive definite one, with each eigenvalue twice.
    """
    if arrays.is_tensor(a):
        if not complex_result:
            return a
        import torch

        x, y = (a.real, a.imag) if a.is_complex() else (a, torch.zeros_like(a))
        return torch.cat([torch.cat([x, -y], dim=1), torch.cat([y, x], dim=1)])
    if not complex_result:
        return np.ascontiguousarray(a, dtype=np.float64)
    x, y = a.real.astype(np.float64), a.imag.astype(np.float64)
    return np.block([[x, -y], [y, x]])


def stacked(b: NDArray[Any], complex_result: bool) -> Floats:
    """Right-hand sides of the real form: real parts above imaginary parts."""
    if not complex_result:
        return np.ascontiguousarray(b, dtype=np.float64)
    return np.concatenate([b.real.astype(np.float64), b.imag.astype(np.float64)])


def unstacked(x: NDArray[Any], complex_result: bool) -> NDArray[Any]:
    """The complex matrix whose real parts are above its imaginary parts."""
    if not complex_result:
        return x
    half = len(x) // 2
    result = np.empty((half, *x.shape[1:]), np.complex64 if x.dtype == np.float32 else np.complex128)
    result.real, result.imag = x[:half], x[half:]
    return result


def larger_half(x: NDArray[Any], complex_result: bool) -> NDArray[Any]:
    """Of bounds of the real and the imaginary parts the larger ones."""
    return np.maximum(x[: len(x) // 2], x[len(x) // 2 :]) if complex_result else x
