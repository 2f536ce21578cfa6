"""Operands of simulated dot products: which arrays, values and scale factors a model takes."""

from __future__ import annotations

import numbers
import reprlib
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.formats import E4M3, Format, Integer
from prismm.numerics import encodings
from prismm.numerics.parts import Model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from prismm.numerics.model import EngineModel

__all__ = ["array", "check", "check_model", "checked", "scale_factors"]


def checked(
    model: EngineModel,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    scale_a: ArrayLike | None,
    scale_b: ArrayLike | None,
) -> tuple[list[float], list[float], float, list[float], list[float]]:
    """The operands of a single dot product that `dot` takes, as Python's floats; without block scales [] for them.

    Raises:
        PrismmError: those of `dot`.
    """
    check_model(model)
    x, y, z = array("a", a), array("b", b), array("c", c)
    if x.ndim != 1 or x.shape != y.shape or not x.size or z.ndim:
        raise ShapeError(f"a {x.shape}, b {y.shape} and c {z.shape}; pass (k,), (k,) with the same k >= 1, ()")
    factors = [
        [] if found is None else found[0].tolist()
        for found in (
            scale_factors(model, "scale_a", x.shape, scale_a),
            scale_factors(model, "scale_b", y.shape, scale_b),
        )
    ]
    for what, values, format in (("a", x, model.input), ("b", y, model.input), ("c", z, model.output)):
        check(what, values, format)
    return x.tolist(), y.tolist(), float(z), factors[0], factors[1]


def check_model(model: object) -> None:
    """Refuse what is no model."""
    if not isinstance(model, Model):
        raise ArgumentError(
            f"model={reprlib.repr(model)}; pass an EngineModel, such as prismm.numerics.engine('a100.fp16.fp32')"
        )


def array(what: str, given: ArrayLike) -> NDArray[np.float64]:
    """Real numbers as float64.

    Raises:
        OperandError: for an operand that is not an array, such as lists of different lengths.
        DTypeError: for an array of other things.
    """
    import numpy as np

    try:
        found = np.asarray(given)
        real = found.dtype == object and all(isinstance(x, numbers.Real) for x in found.flat)
        if real or found.dtype.kind not in _NOT_REAL:
            return np.asarray(found, np.float64)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise OperandError(
            f"{what}={reprlib.repr(given)} is no array of numbers ({error}); pass what numpy.asarray(…, float) takes"
        ) from error
    raise DTypeError(f"{what}={reprlib.repr(given)} holds {_NOT_REAL[found.dtype.kind]}; pass real numbers")


_NOT_REAL = {"c": "complex numbers", "O": "what is no number", "S": "bytes", "U": "text", "M": "dates", "m": "times"}
"""Kinds of NumPy's types that are refused, and what they hold."""


def check(what: str, values: NDArray[np.float64], format: Format | Integer) -> None:
    """Refuse values that the format does not have."""
    bad = encodings.foreign(values, format)
    if bad.any():
        raise ArgumentError(
            f"{int(bad.sum())} of {bad.size} values of {what} are none of {format.name or format}, first "
            f"{float(values[bad].flat[0])!r}; round them first"
        )


def scale_factors(
    model: EngineModel, what: str, shape: tuple[int, ...], given: ArrayLike | None
) -> NDArray[np.float64] | None:
    """The scale factors of every row of an operand of this shape, checked."""
    import numpy as np

    scale = model.scale
    if scale is None:
        if given is not None:
            raise ArgumentError(f"{model.name} has no block scales; leave out {what}")
        return None
    wanted = (*shape[:-1], -(-shape[-1] // scale.length))
    if given is None:
        raise ArgumentError(f"{model.name} takes block scales; pass {what} of shape {wanted}")
    factors = array(what, given)
    try:
        factors = np.broadcast_to(factors, wanted)
    except ValueError:
        raise ShapeError(f"{what} has shape {factors.shape}; pass {wanted}") from None
    if scale.format == "ue8m0":
        power, exponent = np.frexp(factors)
        good = (power == 0.5) & (exponent >= -126) & (exponent <= 128)
    else:
        good = ~encodings.foreign(factors, E4M3) & ~np.signbit(factors)
    bad = ~(good | np.isnan(factors))
    if bad.any():
        values = "powers of two from 2^-127 to 2^127" if scale.format == "ue8m0" else "values of e4m3 without a sign"
        raise ArgumentError(
            f"{float(factors[bad].flat[0])!r} in {what} is no {scale.format} value; pass {values}, or NaN"
        )
    return factors.reshape(-1, wanted[-1])
