"""Arrays in and out: NumPy arrays, torch CPU tensors, anything with ``__dlpack__``; types, shapes, results."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.lazy import needs_torch
from prismm.core.namespaces import home_of
from prismm.errors import DTypeError, OperandError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RESULTS = ("float32", "float64", "complex64", "complex128")
NAMES = frozenset(("float16", *RESULTS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))))
"""Types that every face and device multiplies."""

_KINDS = frozenset(np.dtype(name) for name in (*NAMES, "bool", "longdouble", "clongdouble"))


@dataclass(frozen=True)
class Array:
    """An operand as a NumPy array.

    Attributes:
        data: a view, or an exact copy where no view exists.
        family: of what came in: "numpy", "torch", "jax", "dlpack", ….
        source: what came in.
    """

    data: NDArray[Any]
    family: str
    source: Any


def normalise(x: Any, name: str) -> Array:
    """The operand as a NumPy array of a type that prismm multiplies.

    Raises:
        OperandError: if x is not an array, for a tensor on another device or one whose gradient would be lost.
        DTypeError: for other element types (object, strings, dates, …).
    """
    if isinstance(x, np.ndarray):
        if "numpy.ma" in sys.modules and isinstance(x, np.ma.MaskedArray):  # loaded with the first masked array
            raise OperandError(f"{name} is a masked array; pass {name}.filled(value)")
        return Array(_checked(x, name), "numpy", x)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return Array(_from_torch(x, name), "torch", x)
    if hasattr(x, "__dlpack__") and not isinstance(x, type):
        return Array(_checked(_from_dlpack(x, name), name), "dlpack", x)
    if not isinstance(x, type) and _dense(x) == "to_numpy":
        return Array(_checked(_values(x, name), name), "numpy", x)
    _refuse_traced(x, name)
    if chunked(x):
        raise OperandError(f"{name} is a dask array; pass {name}.compute(), or call prismm.matmul or prismm.gemm of it")
    kind = f"class ({x.__name__})" if isinstance(x, type) else type(x).__name__
    method = None if isinstance(x, type) else _dense(x)
    advice, of = (f"{name}.{method}()", "") if method else (f"numpy.asarray({name})", " of nested lists")
    raise OperandError(
        f"{name} is a {kind}; pass a NumPy array, a torch tensor or an array with __dlpack__ ({advice} makes one{of})"
    )


_DENSE = ("toarray", "todense", "to_numpy")
"""Methods of what holds numbers and is no array: matrices of scipy.sparse, other sparse ones (JAX's); data frames and
labelled arrays, which are taken.
"""


def _dense(x: Any) -> str | None:
    """The method by which x makes an array of itself; None where it has none."""
    return next((method for method in _DENSE if callable(getattr(x, method, None))), None)


def _values(x: Any, name: str) -> NDArray[Any]:
    """The entries of a data frame or labelled array (of pandas, xarray, polars), in their order and without labels."""
    try:
        found = x.to_numpy()
    except Exception as error:
        raise OperandError(f"{name} cannot be read: to_numpy failed ({error}); pass a NumPy array") from error
    if not isinstance(found, np.ndarray):
        raise OperandError(f"{name}.to_numpy() gives a {type(found).__name__}; pass a NumPy array")
    return found


def _refuse_traced(x: Any, name: str) -> None:
    """OperandError for what JAX passes while it traces a function."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.core.Tracer):
        raise OperandError(
            f"{name} is traced by JAX (under jit, vmap or grad), and prismm needs its entries; call prismm.jax.matmul "
            "instead of prismm.matmul; for what it has not, pass a function of NumPy arrays that calls prismm to "
            "jax.pure_callback(function, jax.ShapeDtypeStruct(shape, dtype), a, b, "
            "vmap_method='sequential'), inside a jax.custom_vjp for derivatives; on a CPU it begins with "
            "torch.set_flush_denormal(False), as XLA's threads flush subnormal numbers"
        )


def refuse_lazy(out: Any) -> None:
    """Of tensors whose entries are not what their memory holds no view exists that could be written to.

    Raises:
        OperandError: for a tensor whose conjugation or negation is still to come.
    """
    if is_tensor(out) and (out.is_conj() or out.is_neg()):
        raise OperandError(
            "out is a view whose conjugation or negation is still to come (from .conj(), or .imag of one); pass a "
            "tensor of its own, such as torch.empty_like(out)"
        )


def is_tensor(x: Any) -> bool:
    """Whether x is a torch tensor; torch is not loaded for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def chunked(*operands: Any) -> bool:
    """Whether one is a dask array; Dask is not loaded for it."""
    dask = sys.modules.get("dask.array")
    return dask is not None and any(isinstance(x, dask.Array) for x in operands)


def sharded(*operands: Any) -> bool:
    """Whether one is a DTensor, the parts of which other processes hold; its module is not loaded for it."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and any(isinstance(x, tensor.DTensor) for x in operands)


def traced(a: Any, b: Any) -> bool:
    """Whether torch has to see a product of a and b as one of its operators (`prismm.programs.operators`), because more
    is asked of it than the entries of the result: derivatives, batches or graphs, of any level of torch's transforms.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling():  # which Dynamo takes for a constant, and looks no further
        return isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)
    tensor, parameter, grad_enabled, transforms, modes, traces, forward_ad = _watched()
    if transforms() or forward_ad._current_level >= 0 or modes() or traces():
        found = [x for x in (a, b) if isinstance(x, tensor)]
        return bool(found) and (transforming() or any(map(why_traced, found)))
    for x in (a, b):
        kind = type(x)
        if kind is tensor or kind is parameter:
            if x.requires_grad and grad_enabled():
                return True
        elif isinstance(x, tensor) and why_traced(x):
            return True
    return False


def transforming() -> bool:
    """Whether torch's operators pass through the levels of torch.func in this thread, where they wrap constants too."""
    torch = sys.modules.get("torch")
    if torch is None or not torch._C._are_functorch_transforms_active():
        return False
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode)


def compiling() -> bool:
    """Whether torch.compile reads this code, which takes the answer for a constant, instead of running it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_dynamo_compiling())


@functools.cache
def _watched() -> tuple[Any, ...]:
    """What `traced` asks of torch, whose names take longer to look up than the answers."""
    import torch
    from torch.autograd import forward_ad

    here = torch._C
    return (
        torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, here._are_functorch_transforms_active,
        here._len_torch_dispatch_stack, here._is_tracing, forward_ad,
    )  # fmt: skip


def why_traced(x: Any) -> str:
    """Why torch has to record operations on a tensor, or "". Below autograd (`emulate`) tangents need no record."""
    import torch
    from torch.autograd import forward_ad

    here, kind = torch._C, type(x)
    if here._are_functorch_transforms_active() and here._functorch.is_functorch_wrapped_tensor(x):
        return "is inside a transform of torch.func"
    if x.requires_grad and torch.is_grad_enabled():
        return REQUIRES_GRAD
    if kind.__torch_dispatch__ is not here._disabled_torch_dispatch_impl:
        return f"is a {kind.__name__}"
    dual = forward_ad._current_level >= 0 and here._is_fwd_grad_enabled()
    dual = dual and not here._dispatch_tls_is_dispatch_key_excluded(here.DispatchKey.AutogradFunctionality)
    if dual and forward_ad.unpack_dual(x).tangent is not None:
        return "has a tangent"
    if here._len_torch_dispatch_stack():
        keys = here._TorchDispatchModeKey
        if any(here._get_dispatch_mode(key) is not None for key in (keys.FAKE, keys.PROXY, keys.FUNCTIONAL)):
            return _TRACE
    return _TRACE if here._is_tracing() else ""


REQUIRES_GRAD = "requires grad"
_TRACE = "belongs to a trace"


def refuse_traced(x: Any, name: str) -> None:
    """OperandError for a tensor that torch has to follow, where no operator does so."""
    why = why_traced(x)
    if why == REQUIRES_GRAD:
        raise OperandError(
            f"{name} {why}, and what is asked for has no derivative; pass {name}.detach(), or call prismm.matmul or "
            f"prismm.programs.operators.gemm"
        )
    if why:
        raise OperandError(
            f"{name} {why}, which what is asked for cannot follow; call prismm.matmul or "
            f"prismm.programs.operators.gemm, or pass plain tensors"
        )


def untraced(x: Any) -> Any:
    """A tensor without its derivative, for what only looks at it; anything else as it is."""
    return x.detach() if is_tensor(x) and why_traced(x) == REQUIRES_GRAD else x


def check_dense(x: Any, name: str) -> None:
    """OperandError for a tensor that is no grid of entries."""
    import torch

    if x.is_nested:
        raise OperandError(f"{name} is a nested tensor; pass torch.nested.to_padded_tensor({name}, 0.0)")
    if x.is_quantized:
        raise OperandError(f"{name} is a quantized tensor; pass {name}.dequantize()")
    if x.layout is not torch.strided:
        raise OperandError(f"{name} has layout {x.layout}; pass {name}.to_dense()")


_DLPACK_CUDA = 2


def lives_on_gpu(x: Any) -> bool:
    """Whether x is an array on a CUDA device: a torch tensor, an operand that was prepared there, or anything that says
    so through DLPack.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return bool(x.is_cuda)
    if isinstance(x, (np.ndarray, type)):
        return False
    if not hasattr(x, "__dlpack_device__"):
        return getattr(x, "is_cuda", False) is True  # a data frame may have a column of that name
    try:
        if _dlpack_device(x)[0] != _DLPACK_CUDA:
            return False
    except Exception:  # `normalise` says of which operand
        return False
    with needs_torch("a product of arrays on a GPU"):
        from torch import cuda
    return bool(cuda.is_available())


def _dlpack_device(x: Any) -> tuple[int, int]:
    kind, index = x.__dlpack_device__()
    return int(kind), int(index)


def _checked(x: NDArray[Any], name: str, remedy: str = "astype") -> NDArray[Any]:
    if x.dtype not in _KINDS and x.dtype.name not in NAMES:
        if x.dtype.name == "bfloat16":  # of the package ml_dtypes, which JAX builds upon
            return _widened(x)
        raise DTypeError(
            f"{name} has dtype {x.dtype}; prismm multiplies float16, float32, float64, longdouble, complex numbers, "
            f"integers and bool: convert with {name}.{remedy}(...)"
        )
    x = x.view(np.ndarray) if type(x) is not np.ndarray else x
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _widened(x: NDArray[Any]) -> NDArray[np.float32]:
    """A copy of numbers of a type that NumPy lacks; read-only, as what is written to it would be lost."""
    wide = x.astype(np.float32)
    wide.flags.writeable = False
    return wide


def memory_of(x: Any) -> NDArray[Any]:
    """``x.numpy()`` of a tensor without derivative, where nothing else is asked of its memory. FSDP frees parameters by
    resizing their storage, which ``numpy()`` forbids for good: where it is loaded, DLPack shares the memory.
    """
    if "torch.distributed.fsdp" in sys.modules and x.is_cpu and not (x.is_conj() or x.is_neg() or x.is_quantized):
        import torch

        if x.layout is torch.strided and str(x.dtype).removeprefix("torch.") in NAMES:
            shared: NDArray[Any] = np.from_dlpack(x)
            return shared
    array: NDArray[Any] = x.numpy()
    return array


def _from_torch(x: Any, name: str) -> NDArray[Any]:
    import torch

    refuse_traced(x, name)
    x = x.detach()
    if x.device.type != "cpu":
        remedy = (
            ", which holds no entries: prismm.programs.operators.matmul tells the shape and type of a product"
            if x.is_meta
            else f"; gemm and mixed devices need the CPU: pass {name}.cpu()"
        )
        raise OperandError(f"{name} is on {x.device}{remedy}")
    check_dense(x, name)
    if x.dtype is torch.bfloat16:
        x = x.float()
    try:
        array = memory_of(x.resolve_conj().resolve_neg())
    except TypeError:
        known = "to(torch.complex64)" if x.is_complex() else "float()"
        raise DTypeError(f"{name} has dtype {x.dtype}, which NumPy does not know; pass {name}.{known}") from None
    except RuntimeError as error:
        raise OperandError(f"{name} holds no entries that can be read ({error}); pass a plain tensor") from error
    return _checked(array, name, "to")


def _from_dlpack(x: Any, name: str) -> NDArray[Any]:
    try:
        device = _dlpack_device(x) if hasattr(x, "__dlpack_device__") else (1, 0)
    except Exception as error:
        raise OperandError(
            f"{name} cannot say where it lives: __dlpack_device__ failed ({error}); pass numpy.asarray({name})"
        ) from error
    if device[0] != 1:
        raise OperandError(
            f"{name} is on DLPack device {device}; this version of prismm computes on the CPU: copy it there"
        )
    try:
        array: NDArray[Any] = np.from_dlpack(x)
    except Exception as error:
        _refuse_traced(x, name)
        found = _bfloat16(x)
        if found is None:
            raise OperandError(
                f"{name} cannot be read through __dlpack__ ({error}); pass numpy.asarray({name})"
            ) from error
        return found
    return array


def _bfloat16(x: Any) -> NDArray[Any] | None:
    """An array of bfloat16, which NumPy does not read through DLPack: as the array that x makes of itself, with
    ml_dtypes, or else read by torch; None for any other.
    """
    try:
        if hasattr(x, "__array__"):
            array = np.asarray(x)
            return array if array.dtype.name == "bfloat16" else None
        import torch

        tensor = torch.utils.dlpack.from_dlpack(x)
        return _widened(tensor.float().numpy()) if tensor.dtype is torch.bfloat16 else None
    except Exception:  # `_from_dlpack` has the reason
        return None


def check_type_survives(source: Any, probe: Any, read: Callable[[Any], Any]) -> None:
    """DTypeError unless the caller's kind of array holds entries of the result's type.

    JAX makes float32 of float64 unless it is told otherwise. probe: an array of one entry, of the result's type and
    device; read: how such arrays are read through DLPack.
    """
    namespace = home_of(source)
    if namespace is None:
        return
    found = read(namespace.from_dlpack(probe)).dtype
    if found == probe.dtype:
        return
    wide, narrow = (str(dtype).removeprefix("torch.") for dtype in (probe.dtype, found))
    library = getattr(namespace, "__name__", type(source).__name__)
    switch = "call jax.config.update('jax_enable_x64', True), " if library == "jax.numpy" else ""
    raise DTypeError(
        f"the product is {wide}, and {library} would make {narrow} of it; {switch}pass out_dtype={narrow!r} "
        f"for a product of that type, or numpy.asarray(a) and numpy.asarray(b) for a NumPy array of {wide}"
    )


def overlaps_itself(x: NDArray[Any]) -> bool:
    """Whether some bytes of x belong to more than one entry."""
    if x.flags.c_contiguous or x.size < 2:
        return False
    axes = sorted((abs(stride), extent) for stride, extent in zip(x.strides, x.shape, strict=True) if extent > 1)
    if axes[0][0] == 0:
        return True
    span, apart = x.itemsize, True
    for stride, extent in axes:
        apart = apart and stride >= span
        span += stride * (extent - 1)
    if apart:
        return False
    # Axes interleave: rare, and decided by all addresses.
    starts = np.zeros(1, np.int64)
    for stride, extent in axes:
        starts = (starts[:, None] + stride * np.arange(extent)).reshape(-1)
    return bool((np.diff(np.sort(starts)) < x.itemsize).any())


def same_family(arrays: list[tuple[str, Array]]) -> str:
    """The family of all arrays.

    Raises:
        OperandError: where NumPy arrays and tensors are mixed.
    """
    families = {array.family for _, array in arrays}
    if len(families) > 1:
        found = ", ".join(f"{name}: {array.family}" for name, array in arrays)
        raise OperandError(f"operands of different kinds ({found}); convert them to one kind first")
    return families.pop()


def result_dtype(arrays: list[NDArray[Any]], out_dtype: Any) -> np.dtype[Any]:
    """The result's type: `out_dtype`, else NumPy's promotion; integers and bools alone give float64, as long doubles do
    beside anything, and narrow floats float32.

    Raises:
        DTypeError: for an `out_dtype` other than the four, or a real one for complex operands.
    """
    promoted = np.result_type(*[x.dtype for x in arrays])
    if promoted.kind in "iub" or promoted == np.longdouble:
        promoted = np.dtype(np.float64)
    elif promoted == np.clongdouble:
        promoted = np.dtype(np.complex128)
    elif promoted == np.float16:
        promoted = np.dtype(np.float32)
    if out_dtype is None:
        return promoted
    try:
        name = str(out_dtype).removeprefix("torch.") if "torch" in str(out_dtype) else np.dtype(out_dtype).name
    except TypeError:
        name = str(out_dtype)
    if name not in RESULTS:
        raise DTypeError(f"out_dtype={out_dtype!r}; pass one of {', '.join(RESULTS)}")
    wanted = np.dtype(name)
    if promoted.kind == "c" and wanted.kind != "c":
        raise DTypeError(f"out_dtype={name} cannot hold a complex product; pass complex64 or complex128")
    return wanted


def product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the product of arrays of these shapes, by NumPy's matmul rules.

    >>> product_shape((5, 1, 2, 3), (4, 3, 7))
    (5, 4, 2, 7)

    Raises:
        ShapeError: where they do not fit.
    """
    if not a or not b:
        raise ShapeError(f"a has shape {a}, b has shape {b}; scalars do not multiply here, use * for them")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise ShapeError(
            f"a has shape {a}, b has shape {b}: the inner dimensions {left[-1]} and {right[-2]} differ; "
            "a needs as many columns as b has rows"
        )
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise ShapeError(
            f"a has shape {a}, b has shape {b}: batch dimensions {left[:-2]} and {right[:-2]} differ"
        ) from None
    rows = (left[-2],) if len(a) > 1 else ()
    columns = (right[-1],) if len(b) > 1 else ()
    return (*batch, *rows, *columns)


def as_caller(result: NDArray[Any], family: str, source: Any) -> Any:
    """The result as the kind of array that the caller passed in."""
    if family == "numpy":
        return result if result.ndim else result[()]
    if family == "torch":
        import torch

        return torch.from_numpy(result)
    namespace = home_of(source)
    return result if namespace is None else namespace.from_dlpack(result)
