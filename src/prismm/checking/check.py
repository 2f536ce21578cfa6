"""`prismm.check`: operands and a product are read, each product of two matrices is checked, the bounds summed up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.checking.operands import DeviceOperands, HostOperands, Operands
from prismm.checking.recompute import Recomputation
from prismm.checking.residual import Errors, measure
from prismm.core import arrays, terms
from prismm.core import threads as pool
from prismm.core.check import Check, ErrorMeasure
from prismm.core.prepared import Prepared
from prismm.errors import DTypeError, OperandError, ShapeError
from prismm.formats import format_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_MEASURES = ("absolute", "componentwise", "relative", "ulps")


def check(a: Any, b: Any, c: Any, /, *, engine: str | None = None, threads: int | None = None) -> Check:
    """How wrong a product is that was computed elsewhere.

    Bounds of c - ab come from one product by residues, whose certificate covers them; entries that it leaves uncertain
    are compared with a correctly rounded product. Every number of the answer is a guaranteed upper bound, and at most
    a few per cent above the truth as a rule.

    Args:
        a: array of shape (..., m, k) or (k,), as in `matmul`: NumPy array, torch tensor (also on a GPU) or anything
            with ``__dlpack__``; float64, float32, complex128, complex64; float16, bfloat16 and integers are taken
            exactly.
        b: array of shape (..., k, n) or (k,), of the same kind.
        c: the product, of the shape that ``a @ b`` has; float64, float32, complex128 or complex64, whatever the
            operands have.
        engine: as in `matmul`, an engine that multiplies residues.
        threads: workers; default all processors, or ``PRISMM_THREADS``.

    Returns:
        A `Check`. Entries that meet Inf or NaN are compared with what the defining sum gives, entries that overflow
        with ±Inf. An entry of c that is wrongly Inf, NaN or finite has an infinite error.

    Raises:
        ShapeError: for shapes that do not fit, or a c of another shape than the product.
        DTypeError: for element types that prismm does not multiply, a c of another type, or a real c of complex
            operands.
        OperandError: for an operand that is not an array, a prepared operand, or arrays of different kinds or devices.
        ArgumentError, EngineError: as `matmul`, for the engine.

    >>> import numpy as np, prismm
    >>> a, b = np.array([[0.1, 0.2]]), np.array([[0.3], [0.7]])
    >>> found = prismm.check(a, b, np.array([[0.17]]))
    >>> found.bound(0, 0) < 2e-17, found.correctly_rounded, found.ulps.worst <= 0.5
    (True, 1.0, True)
    """
    start = time.perf_counter()
    for name, x in (("a", a), ("b", b), ("c", c)):
        if isinstance(x, Prepared):
            raise OperandError(f"{name} is a prepared operand; pass the matrix itself")
    a, b, c = (arrays.untraced(x) for x in (a, b, c))
    given = tuple(str(getattr(x, "dtype", "")).removeprefix("torch.") for x in (a, b))
    on_gpu = any(map(arrays.lives_on_gpu, (a, b, c)))
    a, b, c, make = (_on_gpu if on_gpu else _in_memory)(a, b, c)
    # A data frame has no type of its own.
    names = tuple(name or x.dtype.name for name, x in zip(given, (a, b), strict=True))
    shape = arrays.product_shape(tuple(a.shape), tuple(b.shape))
    if c.shape != shape:
        raise ShapeError(f"c has shape {c.shape}, and the product of a and b has {shape}; pass the product itself")
    workers = pool.worker_count(threads)
    products = _Products(a, b, c, make, engine, workers)
    found = products.check()
    entries = {name: getattr(found, name).reshape(shape) for name in (*_MEASURES, "correct")}
    special = found.special.reshape(shape)
    measures = {name: _measure(entries[name], special) for name in _MEASURES}
    return Check(
        shape=shape, dtype=c.dtype.name, operands=(names[0], names[1]), k=int(a.shape[-1]), **measures,
        correct=entries["correct"], special=int(np.count_nonzero(special)),
        wrong_special=int(np.count_nonzero(found.wrong)), recomputed=products.recomputed, scheme=products.scheme,
        engine=products.engine_used, seconds=time.perf_counter() - start,
    )  # fmt: skip


def _measure(values: NDArray[np.float64], special: NDArray[np.bool_]) -> ErrorMeasure:
    """The worst of the errors, and all of them."""
    place = int(np.argmax(values)) if values.size else 0
    worst = float(values.flat[place]) if values.size else 0.0
    where = tuple(map(int, np.unravel_index(place, values.shape))) if worst > 0.0 else None
    return ErrorMeasure(worst, where, values, special)


class _Products:
    """The two-dimensional products of a call, checked one after the other."""

    def __init__(
        self,
        a: Any,
        b: Any,
        c: NDArray[Any],
        make: Callable[[Any, Any, bool, int], Operands],
        engine: str | None,
        workers: int,
    ) -> None:
        self.a = a[None, :] if a.ndim == 1 else a
        self.b = b[:, None] if b.ndim == 1 else b
        self.c, self.make, self.engine, self.workers = c, make, engine, workers
        self.recomputed, self.scheme, self.engine_used = 0, "none", "none"

    def check(self) -> Errors:
        """The errors of all entries, (products, m, n)."""
        a, b, c = self.a, self.b, self.c
        m, n = int(a.shape[-2]), int(b.shape[-1])
        if c.size == 0:
            return Errors.empty((0, m, n))
        if b.ndim == 2:
            # A batch of left operands against one matrix is one tall product.
            found = Errors.empty((1, c.size // n, n))
            self._one(a.reshape(c.size // n, a.shape[-1]), b, c.reshape(-1, n), found.piece(0))
            return found
        batch = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
        stack = c.reshape(-1, m, n)
        found = Errors.empty(stack.shape)
        for p, place in enumerate(np.ndindex(*batch)):
            left, right = (x[_broadcast_place(place, x.shape[:-2])] for x in (a, b))
            self._one(left, right, stack[p], found.piece(p))
        return found

    def _one(self, a: Any, b: Any, c: NDArray[Any], found: Errors) -> None:
        operands, result = self.make(a, b, np.iscomplexobj(c), self.workers), format_of(c.dtype)
        known = measure(operands, c, result, found, self.engine, self.workers)
        self.scheme, self.engine_used = str(known.report.scheme), known.report.engine
        self.recomputed += Recomputation(operands, c, result, found, known, self.engine, self.workers).run()


def _broadcast_place(place: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The place in an array of this shape that broadcasting puts at `place`."""
    own = place[len(place) - len(shape) :]
    return tuple(0 if extent == 1 else i for i, extent in zip(own, shape, strict=True))


def _in_memory(a: Any, b: Any, c: Any) -> tuple[Any, Any, NDArray[Any], Callable[[Any, Any, bool, int], Operands]]:
    """Operands and product as NumPy arrays, and what makes them `Operands`."""
    product = np.asarray(c) if isinstance(c, np.generic) else c
    named = [(name, arrays.normalise(x, name)) for name, x in (("a", a), ("b", b), ("c", product))]
    arrays.same_family(named)
    x, y, z = (array.data for _, array in named)
    _check_type(c, z.dtype, np.iscomplexobj(x) or np.iscomplexobj(y))
    return x, y, z, _host_operands


def _host_operands(a: NDArray[Any], b: NDArray[Any], is_complex: bool, workers: int) -> Operands:
    # Elements that float64 cannot hold become sums of several terms.
    left, right, _ = terms.widened(a, b)
    return HostOperands(left, right, is_complex, workers)


def _on_gpu(a: Any, b: Any, c: Any) -> tuple[Any, Any, NDArray[Any], Callable[[Any, Any, bool, int], Operands]]:
    """The same of tensors on a GPU; the product comes to main memory, where it is compared."""
    from prismm.cuda.integers import exact
    from prismm.cuda.operands import tensor_of

    x, y = (
        exact(tensor_of(z, name), name, f"; pass {name}.double() if rounding them is meant")
        for z, name in ((a, "a"), (b, "b"))
    )
    product = tensor_of(c, "c")
    if len({z.device for z in (x, y, product)}) > 1:
        raise OperandError(f"a is on {x.device}, b on {y.device}, c on {product.device}; pass tensors of one device")
    host = arrays.normalise(product.cpu(), "c").data
    _check_type(c, host.dtype, x.is_complex() or y.is_complex())
    return x, y, host, lambda a, b, is_complex, _: DeviceOperands(a, b, is_complex)


def _check_type(c: Any, dtype: np.dtype[Any], is_complex: bool) -> None:
    """DTypeError for a product of a type that products do not have."""
    name = str(getattr(c, "dtype", dtype)).removeprefix("torch.")
    # Arrays of bfloat16 are read as float32, and others of foreign byte order as their own.
    if dtype.name not in arrays.RESULTS or name.endswith("bfloat16"):
        raise DTypeError(
            f"c has dtype {name}; pass a product of type {', '.join(arrays.RESULTS)}: converted to a wider type, its "
            "errors are in ulps of that"
        )
    if is_complex and dtype.kind != "c":
        raise DTypeError(f"c is {name}, and a or b is complex; pass a product of type complex64 or complex128")
