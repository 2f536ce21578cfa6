"""Solutions of AX = B as sums of parts, each with a proved radius, and their last rounding.

One step. Let X̃ = Σ parts, E = A⁻¹B - X̃ its error, r̃ the residual B - AX̃ in as many parts as R, each the rounded
rest of those before it, r' the last of them, and c = RN(R·r̃). As RA = I - G,

    E = R(B - AX̃) + G·E,   |R(B - AX̃)| <= |c|·(1+u) + η + |R|(u·|r'| + η) =: ρ.

With |G|v <= w <= αv, α < 1 (`inverse.py`) and δ = max_i ρ_i/v_i: |E| <= v·δ/(1-α), since the largest |E_i|/v_i is at
most δ + α times itself. So |E| <= ρ + |G||E|, and the new X̃ + c, added without rounding, has

    |E - c| <= |G||E| + u·|c| + η + |R|(u·|r'| + η)

(Krawczyk 1969; Rump 2010, section 10; residuals and sums by parts as in Rump 2009). If r̃ = 0 and no product of A and X̃
can have a bit below η, the residual is exactly 0, and so is E.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays
from prismm.linalg.entries import beside, largest, ldexp, mantissa, namespace, of_type
from prismm.linalg.expansions import Products, expand, normalised, paired, residual_of
from prismm.linalg.inverse import CLOSE, CLOSER, Inverse, inverses
from prismm.linalg.matrices import Scaled, host, last_bit, scaled_norm, scaling
from prismm.linalg.rounding import ETA, TAU, U, above, below, inflation, sum_above

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_STEPS, MOST_KEPT = 60, 6
GUESSES = (2, 4)
"""Steps after which the rounded solution is tried as the exact one."""

LEVEL_STEPS = 12
"""Steps with one R, before a better one is tried."""
BEST = 2.0**-40
"""The contraction below which a better R helps no more."""

NEARLY_HALF = 0.5625
"""Ulps: half of one is the last rounding, so a solution is correctly rounded but for exact values beside a midpoint."""

FLOOR = 2.0**-212
"""u⁴: components that much smaller than the largest of their column count as zeros."""


@dataclass(frozen=True, eq=False)
class Enclosure:
    """|exact - Σ parts·2^exponents| <= radius·2^exponents. All are arrays, or all tensors.

    Attributes:
        parts: each (n, k).
        radius: (n, k); infinite where nothing is proved.
        exponents: (n, k), of the powers of two that undo scaling.
    """

    parts: tuple[Any, ...]
    radius: Any
    exponents: Any

    def fetched(self) -> Enclosure:
        """In main memory."""
        return Enclosure(tuple(map(host, self.parts)), host(self.radius), host(self.exponents))


@dataclass(frozen=True, eq=False)
class Rounded:
    """The last rounding of an `Enclosure`, in arrays or tensors as that is.

    Attributes:
        value: (n, k), of the type that was asked for.
        bounds: float64, at least |value - exact|.
        correct: where value = RN(exact) is proved.
    """

    value: Any
    bounds: Any
    correct: Any

    def fetched(self) -> Rounded:
        """In main memory."""
        return Rounded(host(self.value), host(self.bounds), host(self.correct))


def rounded(enclosure: Enclosure, dtype: np.dtype[Any]) -> Rounded:
    """The nearest numbers of a type, with bounds.

    All is compared in the scale of the enclosure, where nothing underflows that does not in its parts. With x₁ the
    first part, t the rounded sum of the others, e the radius with all that roundings here leave out, and
    s = x₁ - value, which is exact, the solution is in value + s + t ± e. Value is RN of it where that lies strictly
    between the midpoints to both neighbours: s - h + (t + e) < 0 above, s + h' + (t - e) > 0 below, with h and h' half
    the distances. s ± h are exact, and the sign of a rounded sum is that of the sum. Where e = 0, t is exact, and value
    is RN(x₁ + t), but for subnormal ones, which are RN(x₁): of these those with t = 0 alone.
    """
    xp, exponents = namespace(enclosure.radius), enclosure.exponents
    parts, error = enclosure.parts, enclosure.radius
    head = parts[0]
    tail = xp.zeros_like(head)
    for part in parts[:0:-1]:
        tail = tail + part
    if len(parts) > 2:
        # Each of the additions of at most MOST_KEPT + 1 parts errs by u times a partial sum at most.
        size = sum_above(xp.abs(xp.stack(parts[1:])), 0)
        lost = xp.where((xp.stack(parts[2:]) != 0.0).any(axis=0), above(len(parts) * U * size), 0.0)
        error = xp.where(lost > 0.0, above(error + lost), error)
    if dtype == np.float64:
        value, exact = ldexp(head, exponents), tail == 0.0
    else:
        # Rounding to odd first makes the second rounding the rounding of the sum (53 >= 24 + 2 digits).
        even = mantissa(head) * 2.0**52 % 1.0 == 0.0
        toward = xp.where(tail > 0.0, above(head), below(head))
        value = of_type(ldexp(xp.where(even & (tail != 0.0), toward, head), exponents), dtype)
        exact = True
    s, up, down = _compared(value, head, exponents)
    if dtype == np.float64 and (s != 0.0).any():
        # A subnormal's first part is rounded again, and may be a midpoint then.
        over, under = (s - up) + tail > 0.0, (s + down) + tail < 0.0
        value = xp.where(over & xp.isfinite(s), above(value), xp.where(under, below(value), value))
        s, up, down = _compared(value, head, exponents)
    correct = ((s - up) + above(tail + error) < 0.0) & ((s + down) + below(tail - error) > 0.0)
    correct |= (error == 0.0) & xp.isfinite(s) & ((s == 0.0) | exact)
    total = xp.abs(s + tail)
    bounds = xp.where((total > 0.0) & (s != 0.0) & (tail != 0.0), above(total), total)
    bounds = xp.where(error > 0.0, _added(bounds, error), bounds)
    found = ldexp(bounds, exponents)
    found = xp.where(ldexp(found, -exponents) < bounds, above(found), found)
    return Rounded(value, xp.where(xp.isnan(found) | ~xp.isfinite(s), np.inf, found), correct)


def _compared(value: Any, head: Any, exponents: Any) -> tuple[Any, Any, Any]:
    """(head - value, half the distances to the neighbours above and below, at most), times 2^-exponents but for head;
    infinite where value is.
    """
    xp = namespace(value)
    up, down = (ldexp(gap, -exponents - 1) for gap in _gaps(value))
    s = xp.where(xp.isfinite(value), head - ldexp(of_type(value, np.float64), -exponents), np.inf)
    return s, up, down


def _added(x: Any, y: Any) -> Any:
    """At least x + y, which is exact where it is subnormal."""
    total = x + y
    return namespace(total).where(total < TAU, total, above(total))


def _gaps(x: Any) -> tuple[Any, Any]:
    """The distances from x to its neighbours above and below; beyond the largest float as below it."""
    xp, wide = namespace(x), of_type(x, np.float64)
    up, down = of_type(above(x), np.float64) - wide, wide - of_type(below(x), np.float64)
    return xp.where(xp.isfinite(up), up, down), xp.where(xp.isfinite(down), down, up)


@dataclass(frozen=True, eq=False)
class Solution:
    """What `solve_real` found.

    Attributes:
        enclosure: the solution, with a proved radius.
        steps: refinement steps.
        inverse: the last R; None where no R was proved to be close to an inverse.
        inverse_norm: about ‖A⁻¹‖∞, for the condition number.
    """

    enclosure: Enclosure
    steps: int
    inverse: Inverse | None
    inverse_norm: float


def solve_real(
    a: Any,
    b: Any,
    met: Callable[[Enclosure], NDArray[np.bool_]],
    products: Products,
    positive: bool = False,
) -> Solution:
    """Refine until every component is met, or no further.

    Args:
        a: (n, n), finite float64, an array or a tensor.
        b: (n, k), finite float64, an array or, where a is one, a tensor. Enclosures are as b is, until an inverse in
            more parts is an array.
        met: which columns of an enclosure are good enough, of those that it has.
        products: where they are multiplied.
        positive: whether to factorise by Cholesky.
    """
    scaled = scaling(a, b)
    if scaled.lost.any():
        # Small entries of b decide small components, which are exact without the scaling, if it is not needed.
        plain = _solved(Scaled.not_at_all(a, b), met, products, positive)
        if plain.inverse is not None and met(plain.enclosure).all():
            return plain
    return _solved(scaled, met, products, positive)


def _solved(
    scaled: Scaled, met: Callable[[Enclosure], NDArray[np.bool_]], products: Products, positive: bool
) -> Solution:
    """The solution of a scaled system, as `solve_real` asks for it."""
    a, b, lost = scaled.a, scaled.b, scaled.lost
    rows, columns, kappa = scaled.rows, scaled.columns, scaled.kappa
    exponents = beside(columns[:, None] + kappa[None, :], b)
    shape, xp = tuple(b.shape), namespace(b)
    radius, parts = xp.full_like(b, np.inf), [xp.zeros_like(b)]
    steps, last, unmet = 0, None, np.arange(shape[1])
    bit = last_bit(a)
    if not len(a):
        return Solution(Enclosure((b,), xp.zeros_like(b), exponents), 0, None, 0.0)
    for inverse in inverses(a, products, positive):
        last = inverse if inverse.contraction < 1.0 else last
        if not inverse.contraction < CLOSE:
            continue
        if not arrays.is_tensor(inverse.parts[0]):
            a, b, radius, exponents, *parts = (host(x) for x in (a, b, radius, exponents, *parts))
            xp = np
        for taken in range(LEVEL_STEPS):
            if not len(unmet) or (taken == 3 and inverse.contraction > CLOSER):
                break
            current = [part[:, unmet] for i, part in enumerate(parts) if i == 0 or part[:, unmet].any()]
            first = taken == 0 and (steps == 0 or len(inverse.parts) > 1)
            right = b[:, unmet], beside(lost[unmet], b)
            found, error = _step(a, bit, right, current, inverse, products, first)
            steps += 1
            done = met(Enclosure(tuple(found), error, exponents[:, unmet]))
            if steps in GUESSES and not done.all():
                found, error = _guessed(a, bit, right, found, error, products)
                done = met(Enclosure(tuple(found), error, exponents[:, unmet]))
            while len(parts) < len(found):
                parts.append(xp.zeros_like(b))
            for i, part in enumerate(parts):
                part[:, unmet] = found[i] if i < len(found) else 0.0
            radius[:, unmet] = error
            unmet = unmet[~done]
        if not len(unmet) or steps >= MOST_STEPS or (inverse.rounded is not None and inverse.contraction < BEST):
            break
    norm = np.inf if last is None else scaled_norm(last.magnitude, rows, columns, products)
    return Solution(Enclosure(tuple(parts), radius, exponents), steps, last, norm)


def _step(
    a: Any, bit: int, right: tuple[Any, Any], parts: list[Any], inverse: Inverse, products: Products, first: bool
) -> tuple[list[Any], Any]:
    """The next parts and their radius; the first ones from R·b. Entries of a are multiples of 2^bit.

    The residual is kept in as many parts as R, since R may cancel as many digits of it. In columns of b that lost bits
    entries were rounded, by η/2 at most.
    """
    b, lost_bits = right
    if first and len(inverse.parts) == 1:
        parts = [products.native(inverse.parts[0], b)]
    elif first:
        parts = [products.rounded(*paired(inverse.parts, [b]))]
    if len(inverse.parts) == 1:
        r = [residual_of(products, [a], parts, b)]
    else:
        r = expand(products, [-a], parts, len(inverse.parts), [b])
    c = products.rounded(*paired(inverse.parts, r))
    xp = namespace(b)
    size = xp.abs(c)
    # RN leaves u of its value out and η/2, and a product with u another η/2: nothing but the first where all terms are
    # multiples of 2^-1021.
    eta = 0.0 if min(bit + min(map(last_bit, parts)), last_bit(b)) >= -1021 else ETA
    lost = inverse.size_times((xp.abs(r[-1]) * U + (eta + of_type(lost_bits, np.float64) * ETA)) * inflation(2))
    eta = 0.0 if inverse.bit + min(map(last_bit, r)) >= -1021 else ETA
    rho = (size * (1.0 + 2.0 * U) + eta + lost) * inflation(4)
    v = beside(inverse.weights, b)[:, None]
    delta = largest(above(rho / v))
    error = above(above(delta / below(1.0 - inverse.contraction)) * v)
    image = inverse.image_of(error)
    # |E| <= ρ + |G||E| is often smaller than v·δ/(1-α).
    for _ in range(20 if b.shape[1] <= 8 else 2):
        before, image = image, xp.minimum(image, inverse.image_of((rho + image) * inflation(1)))
        if (image >= 0.5 * before).all():
            break
    image = xp.where(inverse.reached(rho > 0.0), image, 0.0)
    radius = (image + size * U + eta + lost) * inflation(4)
    radius = xp.where(_no_residual(bit, parts, r[0]) & ~lost_bits, 0.0, radius)
    found = normalised([*parts, c])
    if len(found) > MOST_KEPT:
        dropped = sum_above(xp.abs(xp.stack(found[MOST_KEPT:])), 0)
        radius = xp.where(dropped > 0.0, above(radius + dropped), radius)
        found = found[:MOST_KEPT]
    finite = xp.isfinite(xp.stack(found)).all(axis=0) & xp.isfinite(radius)
    return found, xp.where(finite, radius, np.inf)


def _guessed(
    a: Any, bit: int, right: tuple[Any, Any], parts: list[Any], radius: Any, products: Products
) -> tuple[list[Any], Any]:
    """The parts, or in columns where it has no residual the first part alone, with zeros where 0 is enclosed.

    A is not singular, so such a column is the exact solution. Refinement comes ever closer to it, and need not meet it.
    """
    b, lost_bits = right
    xp = namespace(b)
    guess = xp.where(xp.abs(parts[0]) <= 4.0 * radius, 0.0, parts[0])
    if not xp.isfinite(guess).all():
        return parts, radius
    exact = _no_residual(bit, [guess], residual_of(products, [a], [guess], b)) & ~lost_bits
    found = [xp.where(exact, guess if i == 0 else 0.0, part) for i, part in enumerate(parts)]
    return found, xp.where(exact, 0.0, radius)


def _no_residual(bit: int, parts: list[Any], r: Any) -> Any:
    """The columns whose residual is exactly 0: r = 0 says that it is below η, and all its terms are multiples of η, as
    entries of the matrix are multiples of 2^bit.
    """
    smallest = min((last_bit(part) for part in parts), default=0)
    exact = bit + smallest >= -1074
    return ~(r != 0.0).any(axis=0) & exact


def relative_target(value: Rounded, tolerance: float | None) -> Any:
    """Components whose bound is at most NEARLY_HALF an ulp (or 3 of the smallest subnormal), or tolerance·|value| and
    half an ulp; or FLOOR·max|value| of their column.
    """
    xp = namespace(value.value)
    unit, size = _gaps(xp.abs(value.value))[0], xp.abs(of_type(value.value, np.float64))
    room = unit * NEARLY_HALF if tolerance is None else below(below(tolerance * size) + below(unit * 0.5))
    least = 3.0 * (ETA if value.value.itemsize == 8 else 2.0**-149)
    room = xp.where(room < least, least, room)
    return xp.isfinite(value.bounds) & ((value.bounds <= room) | (value.bounds <= largest(size) * FLOOR))
