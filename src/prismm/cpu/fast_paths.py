"""Fast paths past the planner and the flow: the default call, and tiny and small certified products."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays, environment, threads
from prismm.core.accuracy import MAGNITUDE, join_mode, parse_target
from prismm.core.memory import workspace_limit
from prismm.core.outcome import Job, for_kernels
from prismm.core.request import Request
from prismm.cpu import blas_threads
from prismm.cpu.backend import select
from prismm.cpu.choice import RESIDUE_WORK, TINY_WORK, measured_engine
from prismm.cpu.engines.integer import DIRECT, CpuEngine
from prismm.cpu.engines.named import BLAS, engine_named
from prismm.cpu.native import ordinary
from prismm.cpu.residues import batch as batch_products
from prismm.cpu.residues import long
from prismm.cpu.residues import multiply as residues
from prismm.formats import format_of
from prismm.planning.moduli_count import TINY_MODULI, moduli_for_native
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLAIN = frozenset(np.dtype(name) for name in arrays.RESULTS)
_NOTHING64 = np.empty((0, 0))
_NOTHING32 = np.empty((0, 0), np.float32)
_NO_FLAGS = np.empty((0, 0), np.uint8)


SMALL_WORK = 1 << 27
"""Multiply-adds up to which the host's overhead shows; the planner reads the data from 2^28 on."""


def fast_product(
    a: NDArray[Any], b: NDArray[Any], accuracy: Any, reproducible: Any, workers: int | None = None
) -> NDArray[Any] | None:
    """The product of plain matrices by a fast path: the default call, and tiny and small certified products.

    A fast path takes what `Auto` would select and returns the same bits. It returns None for another target, special
    values or an uncertified entry, and the ordinary path decides.
    """
    if a.dtype not in _PLAIN or b.dtype != a.dtype or a.shape[1] != b.shape[0] or a.shape[1] == 0:
        return None
    native_grade = accuracy is None or (isinstance(accuracy, str) and accuracy == "native")
    work = a.shape[0] * a.shape[1] * b.shape[1]
    if native_grade and reproducible is False:
        environment.check_arithmetic()
        if work >= RESIDUE_WORK and measured_engine():
            return None  # the planner weighs residues
        if work >= blas_threads.SHARED_WORK:
            blas_threads.check_numpy()
        return ordinary.ordinary_product(a, b)
    target = _certified(native_grade, accuracy, reproducible)
    if target is None or environment.variable(b"PRISMM_ENGINE"):
        return None
    environment.check_arithmetic()
    if not 0 < work <= SMALL_WORK or long.suits(a.shape[0], b.shape[1], a.shape[1]):
        return None
    if work >= blas_threads.SHARED_WORK:
        blas_threads.check_numpy()
    if work <= (TINY_WORK if a.dtype.kind != "c" else TINY_WORK // 4):
        return _fast_tiny(a, b, target)
    recipe = _small_recipe(a.shape, b.shape, a.dtype, target, reproducible, threads.worker_count(workers))
    if recipe is None:
        return None
    scheme, engine, job = recipe
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    if engine is DIRECT:
        batch_products.multiply(scheme, a, b, out, job, report=False)
    else:
        residues.multiply(scheme, a, b, out, job, engine)
    return out


def _certified(native_grade: bool, accuracy: Any, reproducible: Any) -> str | None:
    """The target whose entries residues certify, or None for any other call."""
    if native_grade and reproducible is True:
        return "native"
    if isinstance(accuracy, str) and accuracy == "correctly-rounded" and isinstance(reproducible, bool):
        return accuracy
    return None


def fast_batch(
    a: NDArray[Any], b: NDArray[Any], accuracy: Any, reproducible: Any, workers: int | None = None
) -> NDArray[Any] | None:
    """`fast_product` for batches of plain matrices, or vectors among them; None where there is no batch."""
    if a.ndim + b.ndim < 4 or not a.ndim or not b.ndim or a.dtype not in _PLAIN or b.dtype != a.dtype:
        return None
    k = a.shape[-1]
    if k == 0 or k != b.shape[max(b.ndim - 2, 0)]:
        return None
    if b.ndim == 2:
        rows = fast_product(a.reshape(-1, k), b, accuracy, reproducible, workers)
        return None if rows is None else rows.reshape(*a.shape[:-1], b.shape[1])
    native_grade = accuracy is None or (isinstance(accuracy, str) and accuracy == "native")
    if native_grade and reproducible is False:
        environment.check_arithmetic()
        if math.prod(a.shape[-2:]) * b.shape[-1] >= blas_threads.SHARED_WORK:
            blas_threads.check_numpy()
        try:
            return ordinary.ordinary_products(a, b, threads.worker_count(workers))
        except ValueError:  # batches that do not fit
            return None
    target = _certified(native_grade, accuracy, reproducible)
    if target is None or environment.variable(b"PRISMM_ENGINE"):
        return None
    environment.check_arithmetic()
    x, y = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    try:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        return None
    m, n = x.shape[-2], y.shape[-1]
    if not m * n * math.prod(batch):
        return None
    recipe = _small_recipe((2, m, k), (2, k, n), a.dtype, target, reproducible, threads.worker_count(workers))
    if recipe is None or recipe[1] is not DIRECT:
        return None
    out = np.empty((*batch, m, n), a.dtype)
    batch_products.multiply(recipe[0], x, y, out, recipe[2], report=False)
    return out.reshape(*batch, *a.shape[-2:-1], *((n,) if b.ndim > 1 else ()))


SMALL_TENSORS = 1 << 18
"""Multiply-adds up to which a tensor's product takes a fast path; beyond, the overhead does not show."""


def fast_tensors(a: Any, b: Any, accuracy: Any, reproducible: Any, workers: int | None = None) -> Any:
    """`fast_product`, or `fast_batch`, for plain matrices that are torch tensors on the CPU, or None."""
    native_grade = reproducible is False and workers is None and (accuracy is None or accuracy == "native")
    if native_grade:
        result = _fast_native(a, b)
        if result is not None:
            return result
    tensor, parameter, tensor_of, *_ = _tensors()
    kinds = tensor, parameter
    if type(a) not in kinds or type(b) not in kinds or not (workers is None or threads.worker_count(workers)):
        return None
    try:
        x, y = (arrays.memory_of(t if not t.requires_grad else t.detach()) for t in (a, b))
    except (RuntimeError, TypeError):  # on a GPU, not dense, a conjugate view, bfloat16: nothing that NumPy sees
        return None
    if x.ndim != 2 or y.ndim != 2:
        result = fast_batch(x, y, accuracy, reproducible, workers)
        return None if result is None else tensor_of(result)
    if native_grade or x.shape[0] * x.shape[1] * y.shape[1] > SMALL_TENSORS:
        return None
    result = fast_product(x, y, accuracy, reproducible, workers)
    return None if result is None else tensor_of(result)


def _fast_native(a: Any, b: Any) -> Any:
    """torch's own product, or None where its entries need a full check."""
    kinds, strided = _tensors()[:2], _tensors()[3]
    if type(a) not in kinds or type(b) not in kinds or not (a.is_cpu and b.is_cpu) or a.is_nested or b.is_nested:
        return None
    return fast_dense(a, b) if a.layout is strided and b.layout is strided else None


def fast_dense(a: Any, b: Any, c: Any = None, alpha: complex = 1, beta: complex = 1) -> Any:
    """The same for tensors that are known to be dense and on the CPU; alpha·a@b + beta·c where c is given.

    The microseconds count here: unlike NumPy's, torch's product raises no floating-point warnings that would have to be
    silenced, and neither does vdot. The check of a sum is one of its product too: what overflows on the way stays Inf
    or NaN to the end, and where nothing does, rounding errors are small beside the largest float (`ordinary.ordinary`).
    """
    _, _, _, _, mm, addmm, vdot, singles, autocast = _tensors()
    kind, left, right = a.dtype, a.shape, b.shape
    single = singles.get(kind)
    if single is None or kind is not b.dtype or len(left) != 2 or len(right) != 2 or left[1] != right[0]:
        return None
    work = left[0] * left[1] * right[1]
    if not 0 < work <= SMALL_TENSORS:
        return None
    if single:
        if left[1] >= ordinary.SHORT[4] or environment.reduced_float32() is not None:
            return None
        if autocast():
            with environment.outside_autocast():
                return fast_dense(a, b, c, alpha, beta)
    environment.check_arithmetic()
    if work >= blas_threads.SHARED_WORK and not blas_threads.torch_is_right():
        return None
    try:
        if c is None:
            value = mm(a, b)
        elif alpha == 1:
            value = addmm(c, a, b, beta=beta)
        else:  # BLAS might multiply an operand by alpha, which may underflow
            value = mm(a, b).mul_(alpha).add_(c if beta == 1 else c * beta)
        flat = value.numpy()
    except (RuntimeError, TypeError):  # another shape, not dense, or wanting a gradient
        return None
    if kind.is_complex:
        flat = flat.view(flat.real.dtype)
    return value if float(vdot(flat, flat)) < math.inf else None


def fast_sum(c: Any, a: Any, b: Any, alpha: complex, beta: complex) -> Any:
    """alpha·a@b + beta·c in native grade for small plain matrices that are torch tensors on the CPU, or None.

    |alpha| is at most 1: a larger one would enlarge what underflows in a@b beyond what the target leaves.
    """
    tensor, parameter, tensor_of, strided, *_ = _tensors()
    kinds = tensor, parameter
    if type(a) not in kinds or type(b) not in kinds or type(c) not in kinds or abs(alpha) > 1 or not a.is_cpu:
        return None
    if type(alpha) is not complex and type(beta) is not complex and not a.dtype.is_complex:
        dense = a.is_cpu and b.is_cpu and c.is_cpu and a.layout is b.layout is c.layout is strided
        return fast_dense(a, b, c, alpha, beta) if dense and c.dtype is a.dtype else None
    try:
        x, y, z = (arrays.memory_of(t.detach()) for t in (a, b, c))
    except (RuntimeError, TypeError):
        return None
    value = _sum(x, y, z, alpha, beta)
    return None if value is None else tensor_of(value)


def fast_array_sum(
    a: NDArray[Any], b: NDArray[Any], c: Any, alpha: complex, beta: complex
) -> NDArray[Any] | None:  # fmt: skip
    """The same for arrays, with real factors that their type holds exactly: `prismm.gemm` takes them so, and a complex
    one would be rounded more often.
    """
    if alpha.imag or beta.imag or not 0 < abs(alpha) <= 1 or environment.variable(b"PRISMM_ENGINE"):
        return None
    if a.dtype not in _PLAIN or not (beta == 0 or type(c) is np.ndarray):
        return None
    factors = alpha.real, beta.real
    with np.errstate(all="ignore"):
        held = a.dtype.char in "dD" or all(float(np.float32(x)) == x for x in factors)
    return _sum(a, b, c if beta != 0 else None, *factors) if held else None


def _sum(
    x: NDArray[Any], y: NDArray[Any], z: NDArray[Any] | None, alpha: complex, beta: complex
) -> NDArray[Any] | None:  # fmt: skip
    """alpha·x@y + beta·z, or alpha·x@y, in native grade for small matrices of one of four types, or None."""
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0] or (z is not None and z.dtype is not x.dtype):
        return None
    if x.dtype is not y.dtype or x.dtype.char not in "fdFD" or not 0 < x.size * y.shape[1] <= SMALL_TENSORS:
        return None
    shape = (x.shape[0], y.shape[1])
    if z is not None and (z.ndim > 2 or any(p not in (1, q) for p, q in zip(z.shape[::-1], shape[::-1], strict=False))):
        return None
    is_real = x.dtype.char in "fd"
    if is_real and (complex(alpha).imag or complex(beta).imag):
        return None
    environment.check_arithmetic()
    blas_threads.check_numpy()
    value = ordinary.ordinary_product(x, y)
    if value is None:
        return None
    kind = value.dtype.type
    with np.errstate(all="ignore"):
        if alpha != 1:
            value = value * kind(complex(alpha).real if is_real else alpha)
        if z is not None:
            value = value + (z if beta == 1 else z * kind(complex(beta).real if is_real else beta))
        # The product hides no overflow: it is left to see that the sum has none.
        finite = ordinary.squares(value) < math.inf
    return value if finite else None


@functools.cache
def _tensors() -> tuple[Any, ...]:
    """The types of plain tensors, what makes one of an array, the layout of plain ones, torch's product and sum,
    NumPy's vdot without its check for other kinds of arrays, the element types of native products: whether they are
    of float32, and what tells whether torch.autocast is on.
    """
    import torch

    singles = {torch.float32: True, torch.complex64: True, torch.float64: False, torch.complex128: False}
    vdot = getattr(np.vdot, "_implementation", np.vdot)
    autocast = torch._C._is_any_autocast_enabled
    return (
        torch.Tensor, torch.nn.Parameter, torch.from_numpy, torch.strided, torch.mm, torch.addmm, vdot, singles,
        autocast,
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _small_recipe(
    left: tuple[int, ...], right: tuple[int, ...], dtype: np.dtype[Any], accuracy: str, reproducible: bool, workers: int
) -> tuple[Residues, CpuEngine, Job] | None:
    """What the planner chooses for any data of these shapes (batches of any size where they have three axes), and the
    job that comes of it; None for another scheme.
    """
    target = parse_target(accuracy)
    # Views of one element: below `SMALL_WORK` the choice reads shapes and types, and no data.
    a, b = np.broadcast_to(dtype.type(1), left), np.broadcast_to(dtype.type(1), right)
    request = Request(target, None, reproducible, None, None, workers)
    implementation, engine, _, problem = select(
        a, b, dtype, request, summed=False, terms_per_element=1, may_read_data=True
    )
    if engine == BLAS:  # no residues
        return None
    workspace_bytes = workspace_limit(
        a.size * dtype.itemsize + b.size * dtype.itemsize, problem.m * problem.n * dtype.itemsize
    )
    a_priori = join_mode(target) == MAGNITUDE
    return (
        implementation.scheme,
        engine_named(engine),
        Job(problem.result, target, problem.terms, a_priori, workers, workspace_bytes),
    )


@functools.lru_cache(maxsize=1024)
def _tiny_recipe(dtype: np.dtype[Any], k: int, accuracy: str) -> tuple[Any, ...]:
    """What `tiny_product` needs for this type, inner dimension and target."""
    target, result = parse_target(accuracy), format_of(dtype)
    terms = 2 * k if dtype.kind == "c" else k
    moduli = TINY_MODULI[result.precision] if target.kind == "correctly-rounded" else moduli_for_native(result, terms)
    return batch_products.tiny_recipe(dtype, k, moduli, target, terms)


def _fast_tiny(a: NDArray[Any], b: NDArray[Any], accuracy: str) -> NDArray[Any] | None:
    """A tiny product by the direct engine's rules in one compiled call, or None if any entry is uncertified."""
    from prismm.cpu.kernels.tiny import tiny_product

    recipe = _tiny_recipe(a.dtype, a.shape[1], accuracy)
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    parts, kind, real = (2, "complex128", out.real.dtype) if a.dtype.kind == "c" else (1, "float64", out.dtype)
    x, y, target = for_kernels(a, kind).view(np.float64), for_kernels(b, kind).view(np.float64), out.view(real)
    out64, out32 = (target, _NOTHING32) if real == np.float64 else (_NOTHING64, target)
    return out if tiny_product(x, y, parts, *recipe, out64, out32, _NO_FLAGS) == 0 else None
