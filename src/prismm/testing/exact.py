"""The exact matrix product: the slow, obvious twin of everything that prismm computes.

It rests on integers alone (`prismm.testing.dyadic`, `prismm.formats`) and shares no code with what
it judges. With python-flint a product of n = 256 takes a fraction of a second; without, Python
integers give the same answer slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prismm.errors import ArgumentError, DTypeError, ShapeError
from prismm.formats import FP64, Format, format_of, round_fraction
from prismm.testing.dyadic import Backend, Dyadic
from prismm.testing.parts import (
    Parts,
    Side,
    add,
    moduli,
    moduli_product,
    product,
    read,
    real_arrays,
    scalar,
    scaled,
)

__all__ = ["ExactProduct", "correctly_rounded", "exact_gemm", "exact_product", "ieee_specials"]

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExactProduct:
    """A real or complex (m, n) matrix, known exactly.

    Args:
        parts: the real part, and the imaginary part if the product is complex.

    An entry of ``c`` that is ±Inf has error 0 where the exact value, rounded to the type of ``c``, is that infinity.
    Any other infinity has error inf. NaN has error NaN, which meets no bound.

    >>> import numpy as np
    >>> from prismm.testing import exact_product
    >>> exact = exact_product(np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1)))
    >>> exact.rounded(np.float64), exact.error(np.array([[0.0]])), exact.magnitude()
    (array([[1.]]), array([[1.]]), array([[2.e+16]]))
    """

    parts: Parts
    _magnitude: Callable[[Side], Floats] = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, n)."""
        return self.parts[0].numerators.shape

    @property
    def is_complex(self) -> bool:
        """Whether there is an imaginary part."""
        return len(self.parts) == 2

    def rounded(self, dtype: Any = np.float64) -> NDArray[Any]:
        """RN(exact), ties to even; each part by itself.

        Args:
            dtype: a floating-point NumPy type, or a `prismm.formats.Format`, whose values come as
                float64.

        Returns:
            (m, n) of that type, with subnormals, and ±Inf from max + ulp/2 on; a real product may
            be asked for as complex.

        Raises:
            DTypeError: for a real ``dtype`` of a complex product, and for types that are not
                floating point.
        """
        fmt = dtype if isinstance(dtype, Format) else format_of(dtype)
        if isinstance(dtype, Format):
            dtype = np.complex128 if self.is_complex else np.float64
        real = [part.rounded(fmt) for part in self.parts]
        if np.dtype(dtype).kind != "c":
            if self.is_complex:
                raise DTypeError(f"the product is complex; pass complex64 or complex128, not {np.dtype(dtype)}")
            return real[0].astype(dtype)
        result = np.zeros(self.shape, dtype)
        result.real = real[0]
        if self.is_complex:
            result.imag = real[1]
        return result

    def part_errors(self, c: NDArray[Any]) -> tuple[Floats, ...]:
        """|c − exact| of the real and, if ``c`` is complex, the imaginary part; rounded up.

        Args:
            c: (m, n), floating point; complex if the product is.

        Raises:
            ShapeError: if ``c`` has another shape.
            DTypeError: if ``c`` is not floating point, or real where the product is complex.
        """
        return tuple(_with_specials(gap.rounded(FP64, "up"), part, x) for part, x, gap in self._compared(c))

    def error(self, c: NDArray[Any]) -> Floats:
        """|c − exact| rounded up; of complex entries the larger of the two parts' errors.

        Argument and exceptions as `part_errors`.
        """
        worst: Floats = np.maximum.reduce(self.part_errors(c))
        return worst

    def within(self, c: NDArray[Any], bound: Any) -> NDArray[np.bool_]:
        """Whether |c − exact| <= bound, decided exactly; of complex entries, for both parts.

        Args:
            c: (m, n) as in `part_errors`.
            bound: broadcastable to (m, n), taken as float64; NaN bounds nothing, inf everything but
                NaN.

        Raises:
            ShapeError, DTypeError: as `part_errors`.
        """
        limit = np.broadcast_to(np.asarray(bound, np.float64), self.shape)
        room = Dyadic.from_array(np.where(np.isfinite(limit), limit, 0.0))
        verdict = np.ones(self.shape, bool)
        for part, x, gap in self._compared(c):
            met = np.where(np.isfinite(limit), ((room - gap).numerators >= 0).astype(bool), limit == np.inf)
            odd = ~np.isfinite(x)
            verdict &= np.where(odd, _with_specials(np.zeros(self.shape), part, x) <= limit, met)
        return verdict

    def ulps(self, c: NDArray[Any]) -> Floats:
        """|c − exact| in ulps of RN(exact) in the type of ``c``, rounded up.

        At most 0.5 where c = RN(exact). Of complex entries the larger of the two parts' errors.
        Where RN(exact) is infinite: 0 if c
        equals it, else inf. Argument and exceptions as `part_errors`.
        """
        fmt = format_of(np.asarray(c).dtype)
        worst = np.zeros(self.shape)
        for part, x, gap in self._compared(c):
            nearest = part.rounded(fmt)
            finite = np.isfinite(nearest)
            units = [fmt.ulp_exponent(v) if np.isfinite(v) else 0 for v in nearest.ravel().tolist()]
            in_units = Dyadic(gap.numerators, gap.exponents - np.array(units, np.int64).reshape(self.shape))
            counted = np.where(finite, in_units.rounded(FP64, "up"), np.inf)
            worst = np.maximum(worst, _with_specials(counted, part, x))
        return worst

    def magnitude(self, rounding: Side = "down") -> Floats:
        """|a| @ |b| as float64 (of a gemm |α||a||b| + |β||c|), rounded "down" or "up".

        Of real operands it is the exact value, rounded once. Moduli of complex ones are irrational:
        each is taken to 128 bits below the last bit of its operand, on the same side, so the result
        is still a bound, almost always the best.

        Raises:
            ArgumentError: for another ``rounding``.
        """
        if rounding not in ("down", "up"):
            raise ArgumentError(f"rounding={rounding!r} is unknown; pass 'down' or 'up'")
        return self._magnitude(rounding)

    def _compared(self, c: NDArray[Any]) -> list[tuple[Dyadic, NDArray[Any], Dyadic]]:
        """Per part: exact, ``c`` and |c − exact| (|exact| where ``c`` is not finite)."""
        c = np.asarray(c)
        format_of(c.dtype)
        if c.shape != self.shape:
            raise ShapeError(f"c has shape {c.shape}, the exact product {self.shape}; pass equal shapes")
        if self.is_complex and c.dtype.kind != "c":
            raise DTypeError(f"the product is complex and c is {c.dtype}; pass complex64 or complex128")
        exact, given = self.parts, real_arrays(c)
        if len(given) > len(exact):
            exact = (*exact, Dyadic.from_array(np.zeros(self.shape)))
        return [
            (part, x, abs(part - Dyadic.from_array(np.where(np.isfinite(x), x, np.zeros_like(x)))))
            for part, x in zip(exact, given, strict=True)
        ]


def exact_product(a: NDArray[Any], b: NDArray[Any], *, backend: Backend | None = None) -> ExactProduct:
    """a @ b without any rounding.

    Args:
        a: (m, k), finite; float16, float32, float64, complex64, complex128 or integers.
        b: (k, n), likewise; the types need not match.
        backend: "flint" or "python" integers, which agree in every bit; None takes FLINT where it
            is installed.

    Raises:
        ShapeError: if the operands are no matrices or do not fit.
        DTypeError: for other element types.
        ArgumentError: for Inf or NaN (see `correctly_rounded`), and for an unknown backend.

    >>> import numpy as np
    >>> from prismm.testing import exact_product
    >>> exact_product(np.array([[0.1]]), np.array([[10.0]])).error(np.array([[1.0]]))
    array([[5.55111512e-17]])
    """
    a, b = np.asarray(a), np.asarray(b)
    _check_shapes(a, b)
    x, y = read(a), read(b)
    return ExactProduct(product(x, y, backend), lambda way: moduli_product(x, y, way, backend).rounded(FP64, way))


def exact_gemm(
    alpha: complex,
    a: NDArray[Any],
    b: NDArray[Any],
    beta: complex = 0.0,
    c: NDArray[Any] | None = None,
    *,
    backend: Backend | None = None,
) -> ExactProduct:
    """α·a@b + β·c without any rounding.

    As in BLAS, α = 0 never reads a and b, and β = 0 never reads c.

    Args:
        alpha: a finite float or complex.
        a: (m, k), as in `exact_product`; transpose beforehand.
        b: (k, n), likewise.
        beta: a finite float or complex.
        c: (m, n), likewise, or None if ``beta`` is 0.
        backend: as in `exact_product`.

    Raises:
        ShapeError, DTypeError, ArgumentError: as `exact_product`; ArgumentError also for ``beta``
            without ``c`` and for factors that are not finite.

    >>> import numpy as np
    >>> from prismm.testing import exact_gemm
    >>> exact_gemm(2.0, np.eye(2), np.eye(2), -1.0, np.ones((2, 2))).rounded()
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    a, b = np.asarray(a), np.asarray(b)
    _check_shapes(a, b)
    shape = (a.shape[0], b.shape[1])
    left, right = scalar("alpha", alpha), scalar("beta", beta)
    total: Parts = (Dyadic.from_array(np.zeros(shape)),)
    sizes: list[Callable[[Side], Dyadic]] = []
    if alpha != 0:
        x, y = read(a), read(b)
        total = add(total, scaled(left, product(x, y, backend)))
        sizes.append(lambda way: moduli(left, way).times(moduli_product(x, y, way, backend)))
    if beta != 0:
        if c is None:
            raise ArgumentError(f"beta={beta} needs c; pass c of shape {shape}, or beta=0.0")
        if np.shape(c) != shape:
            raise ShapeError(f"c has shape {np.shape(c)}; a @ b has {shape}")
        z = read(np.asarray(c))
        total = add(total, scaled(right, z))
        sizes.append(lambda way: moduli(right, way).times(moduli(z, way)))

    def magnitude(way: Side) -> Floats:
        return sum((size(way) for size in sizes), Dyadic.from_array(np.zeros(shape))).rounded(FP64, way)

    return ExactProduct(total, magnitude)


def ieee_specials(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """What the defining sum gives for the entries that meet Inf or NaN, and 0 for all others.

    0·Inf and Inf − Inf are NaN. Sums of finite terms are exact, so none overflows on the way. A
    complex product is the four real ones, Re = Σ ar·br − ai·bi and Im = Σ ar·bi + ai·br, without
    C99's recovery of infinities.

    Args:
        a: (m, k), floating point or integers.
        b: (k, n), likewise.

    Returns:
        (m, n), float64 or complex128; exactly those entries are not finite whose row or column is
        not.

    Raises:
        ShapeError: if the operands are no matrices or do not fit.

    >>> import numpy as np
    >>> from prismm.testing import ieee_specials
    >>> ieee_specials(np.array([[np.inf, 1.0], [1.0, 1.0]]), np.array([[-3.0, 0.0], [1.0, 1.0]]))
    array([[-inf,  nan],
           [  0.,   0.]])
    """
    a, b = np.asarray(a), np.asarray(b)
    _check_shapes(a, b)
    if not (np.iscomplexobj(a) or np.iscomplexobj(b)):
        return _specials(a, b)
    (ar, ai), (br, bi) = (a.real, a.imag), (b.real, b.imag)
    result = np.zeros((a.shape[0], b.shape[1]), np.complex128)
    result.real = _specials(np.hstack([ar, ai]), np.vstack([br, -bi]))
    result.imag = _specials(np.hstack([ar, ai]), np.vstack([bi, br]))
    return result


def correctly_rounded(
    a: NDArray[Any], b: NDArray[Any], dtype: Any = None, *, backend: Backend | None = None
) -> NDArray[Any]:
    """RN(exact) of a @ b, and the defining sum's Inf or NaN for entries that meet one.

    Args:
        a: (m, k), as in `exact_product`, but Inf and NaN are welcome.
        b: (k, n), likewise.
        dtype: of the result; None takes NumPy's promotion of the operands.
        backend: as in `exact_product`.

    Raises:
        ShapeError, DTypeError, ArgumentError: as `exact_product`.

    >>> import numpy as np
    >>> from prismm.testing import correctly_rounded
    >>> correctly_rounded(np.array([[1e200, np.inf], [1e200, 1.0]]), np.array([[1e200], [1.0]]))
    array([[inf],
           [inf]])
    """
    a, b = np.asarray(a), np.asarray(b)
    specials = ieee_specials(a, b)
    result = exact_product(_finite(a), _finite(b), backend=backend).rounded(
        np.result_type(a, b) if dtype is None else dtype
    )
    return np.where(np.isfinite(specials), result, specials.astype(result.dtype))


def _check_shapes(a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"cannot multiply shapes {a.shape} and {b.shape}; pass (m, k) and (k, n)")


def _finite(x: NDArray[Any]) -> NDArray[Any]:
    """x with zeros for what is not finite; the other part of a complex entry stays."""
    if x.dtype.kind not in "fc":
        return x
    clean = x.copy()
    for part in real_arrays(clean):  # views
        part[~np.isfinite(part)] = 0
    return clean


def _with_specials(errors: Floats, exact: Dyadic, c: NDArray[Any]) -> Floats:
    """Errors with those of infinite and NaN entries of ``c`` put right."""
    fmt = format_of(c.dtype)
    for place in np.argwhere(~np.isfinite(c)):
        i, j = place
        right = round_fraction(fmt, exact.numerators[i, j], int(exact.exponents[i, j]))
        errors[i, j] = np.nan if np.isnan(c[i, j]) else 0.0 if c[i, j] == right else np.inf
    return errors


def _specials(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """The sum of outer products of signs, infinities and NaN: finite terms cannot overflow."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    left, right = np.where(np.isfinite(x), np.sign(x), x), np.where(np.isfinite(y), np.sign(y), y)
    total = np.zeros((a.shape[0], b.shape[1]))
    # Only terms with a factor that is not finite can leave anything behind; the others' signs add up to a number.
    some = ~(np.isfinite(left).all(axis=0) & np.isfinite(right).all(axis=1))
    with np.errstate(invalid="ignore"):
        for h in np.flatnonzero(some):
            total += np.outer(left[:, h], right[h, :])
    return np.where(np.isfinite(total), 0.0, total)
