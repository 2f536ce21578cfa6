"""Request: the keywords of a call and its scalars, checked before any work, for every device."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays
from prismm.core import threads as pool
from prismm.core.accuracy import Target, parse_target
from prismm.core.prepared import Prepared
from prismm.core.scheme import Scheme, selects
from prismm.core.workspace import Arena
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Request:
    """The keywords that say how to multiply, checked.

    Attributes:
        target: the accuracy target; None for a scheme's own value.
        scheme: the scheme that was asked for, or None.
        reproducible: whether results have to be reproducible.
        out_dtype: element type that was asked for, or None.
        engine: the engine that was asked for, or None.
        threads: worker threads.
        workspace: the caller's workspace on a GPU, or None.
    """

    target: Target | None
    scheme: Any
    reproducible: bool
    out_dtype: Any
    engine: str | None
    threads: int
    workspace: Arena | None = None


def finite_scalar(x: Any, name: str) -> complex:
    """The scalar as the complex number that it is.

    Raises:
        ArgumentError: unless it is a finite number whose parts are float64 numbers.
        OperandError: for a tensor that torch has to follow.

    >>> finite_scalar(np.float32(0.5), "alpha"), finite_scalar(2**60, "beta")
    ((0.5+0j), (1.152921504606847e+18+0j))
    """
    if arrays.is_tensor(x):
        arrays.refuse_traced(x, name)
    try:
        # Python compares its own numbers exactly.
        number: Any = x.item() if getattr(x, "shape", None) == () else x
        value = None if isinstance(number, str) else complex(number)
    except OverflowError:  # of an integer whose digits may be too many to print
        raise ArgumentError(f"{name} is beyond the largest float; apply it to the result instead") from None
    except (TypeError, ValueError, RuntimeError):  # torch's, of a tensor without entries
        value = None
    if value is None:
        raise ArgumentError(f"{name}={x!r} is no number; pass a scalar")
    if not (math.isfinite(value.real) and math.isfinite(value.imag)):
        raise ArgumentError(f"{name}={x!r} is not finite; apply it to the result instead")
    compares = type(number) is not float and isinstance(number, numbers.Number)
    if compares and number != value:
        raise ArgumentError(f"{name}={x!r} is no float64 number; pass float({name}) if rounding it is meant")
    return value


def check_scalars(alpha: complex, beta: complex, is_complex: bool) -> None:
    """DTypeError for complex factors of a real result."""
    if not is_complex and (alpha.imag != 0 or beta.imag != 0):
        raise DTypeError(f"alpha={alpha}, beta={beta} are complex; pass out_dtype=complex128 or real scalars")


def swaps(x: Any, how: str, name: str) -> bool:
    """Whether a transposition flag asks for more than x; an error for another flag, or a prepared operand."""
    if how not in ("N", "T", "C"):
        raise ArgumentError(f"{name}={how!r}; pass 'N', 'T' or 'C'")
    if how != "N" and isinstance(x, Prepared):
        raise OperandError(f"{name}={how!r} with a prepared operand; prepare the transposed matrix instead")
    return how != "N"


def refuse_vector(shape: tuple[int, ...], how: str, name: str) -> None:
    """ShapeError for what cannot be transposed."""
    if len(shape) < 2:
        raise ShapeError(f"{name}={how!r} needs a matrix; {name[-1]} has shape {shape}")


def transposed(x: Any, how: str, name: str) -> Any:
    """op(x) for a transposition flag, as a view where numbers allow."""
    if not swaps(x, how, name):
        return x
    array = arrays.normalise(x, name[-1])
    refuse_vector(array.data.shape, how, name)
    swapped = np.swapaxes(array.data, -1, -2)
    return arrays.Array(swapped.conj() if how == "C" else swapped, array.family, array.source)


def _is_scheme(x: Any) -> bool:
    return isinstance(x, Scheme) and not isinstance(x, type) and callable(x.implementation)


def check_request(
    accuracy: Any,
    scheme: Any,
    reproducible: bool,
    out_dtype: Any,
    engine: Any,
    threads: Any,
    a: Any,
    b: Any,
    workspace: Any = None,
) -> tuple[Request, Any, Any]:
    """Check the keywords; what a prepared operand carries fills in, and must not be contradicted."""
    if not isinstance(reproducible, (bool, np.bool_)):
        raise ArgumentError(f"reproducible={reproducible!r}; pass True or False")
    target = parse_target(accuracy) if accuracy is not None else None
    if scheme is not None and not (_is_scheme(scheme) or selects(scheme)):
        raise ArgumentError(
            f"scheme={scheme!r} is no scheme; pass prismm.Residues(...), Words(...), ScaledHalf(...), TileInt8(...), "
            f"Slices(...), Native(), Auto(), a name such as 'residues:15', or an object of your own that keeps "
            f"prismm.schemes.Scheme"
        )
    if engine is not None and not isinstance(engine, str):
        raise ArgumentError(f"engine={engine!r}; pass a name such as 'cpu'")
    # What prepare chose itself was checked there: a correctly rounded product is reproducible whatever the scheme.
    if scheme is not None and reproducible and not selects(scheme) and not scheme.reproducible:
        raise ArgumentError(f"{scheme} is not reproducible; pass prismm.Residues(...) or leave scheme out")
    if isinstance(a, Prepared) and isinstance(b, Prepared):
        for keyword in ("scheme", "target", "reproducible", "engine", "out_dtype"):
            if getattr(a, keyword) != getattr(b, keyword):
                raise a.refuse_partner(keyword, b)
    for prepared in (a, b):
        if not isinstance(prepared, Prepared):
            continue
        if target is not None and target != prepared.target and prepared.target is not None:
            raise prepared.refuse("accuracy", accuracy, str(prepared.target))
        if scheme is not None and not selects(scheme) and scheme != prepared.scheme:
            raise prepared.refuse("scheme", scheme, prepared.scheme)
        if reproducible and not prepared.reproducible:
            raise prepared.refuse("reproducible", True, False)
        if engine not in (None, "cuda" if prepared.is_cuda else "cpu", prepared.engine):
            raise prepared.refuse("engine", engine, prepared.engine)
        if out_dtype is not None and prepared.gives(out_dtype) != prepared.out_dtype:
            raise prepared.refuse("out_dtype", out_dtype, prepared.out_dtype)
        target = target if target is not None else prepared.target
        out_dtype = out_dtype if out_dtype is not None else prepared.asked_dtype
        scheme, reproducible, engine = prepared.scheme, prepared.reproducible, prepared.engine
    if selects(scheme):
        scheme = None
    if target is None and getattr(scheme, "rounds_correctly", False):
        target = Target("correctly-rounded")
    if scheme is None and target is None:
        target = Target("native")
    arena = _caller_workspace(workspace, scheme)
    return Request(target, scheme, bool(reproducible), out_dtype, engine, pool.worker_count(threads), arena), a, b


def _caller_workspace(workspace: Any, scheme: Any) -> Arena | None:
    """The caller's workspace, checked; `check_apart` checks what else lies there."""
    if workspace is None:
        return None
    if not getattr(scheme, "takes_workspace", False):
        raise ArgumentError(f"workspace= with scheme={scheme!r}; only prismm.Slices(...) takes one: leave it out")
    if not isinstance(workspace, np.ndarray) or workspace.dtype != np.uint8 or workspace.ndim != 1:
        raise ArgumentError(f"workspace={type(workspace).__name__}; pass np.empty(nbytes, np.uint8)")
    if not workspace.flags.c_contiguous or not workspace.flags.writeable:
        raise ArgumentError("the workspace is read-only or not contiguous; pass np.empty(nbytes, np.uint8)")
    return Arena(workspace)


def check_apart(request: Request, name: str, x: NDArray[Any]) -> None:
    """ArgumentError for an array in the memory that the caller lent, whose contents are lost."""
    if request.workspace is not None and np.may_share_memory(x, request.workspace.memory):
        raise ArgumentError(f"the workspace overlaps {name}; pass memory of its own")


def check_sides(a: Any, b: Any) -> None:
    """OperandError for an operand that was prepared for the other side."""
    if isinstance(a, Prepared) and a.side != "left":
        raise OperandError("the left operand was prepared for side='right'; prepare it with side='left'")
    if isinstance(b, Prepared) and b.side != "right":
        raise OperandError("the right operand was prepared for side='left'; prepare it with side='right'")


def check_prepared(a: Any, b: Any, dtype: str) -> None:
    """OperandError for an operand that was prepared for a result of another type."""
    for prepared in (a, b):
        if isinstance(prepared, Prepared) and dtype != prepared.out_dtype:
            raise OperandError(
                f"the {prepared.side} operand was prepared for a {prepared.out_dtype} result, and this product "
                f"gives {dtype}; prepare it with out_dtype={dtype!r}"
            )
