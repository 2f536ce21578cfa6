"""Approximate inverses R, and the proof that I - RA is small: then A and R are not singular.

Let G = I - RA and v > 0 a vector. If |G|v <= αv with α < 1, then max_i |Gx|_i/v_i <= α·max_i |x|_i/v_i, so every
eigenvalue of G is below 1 in size, and RA = I - G is not singular (Krawczyk; Rump 2010, "Verification methods: rigorous
results using floating-point arithmetic", section 10). Three ways to bound |G|v, each more accurate than the one before:

1. C = RA rounded as a conventional product: |G| <= |I - C| + n·u·|R||A| + n·η. One product; |R||A|v costs two products
   of a matrix and a vector.
2. RN(I - RA), correctly rounded: |G| <= |RN|·(1+u) + η.
3. The same for R = R₁ + … + R_k. With P = RN(RA) and X an approximate inverse of P, XR in k+1 parts is a better inverse
   than R in k parts by a factor of about u·n (Rump 1990, "Inversion of extremely ill-conditioned matrices in
   floating-point"; Rump 2009). Where R is no good yet its last bits are changed at random, lest it be singular. Nothing
   has to be proved of how they arise: the bound of |G| is about the R at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.linalg.entries import beside, largest
from prismm.linalg.expansions import Products, expand, residual_of
from prismm.linalg.factors import approximate_inverse, shaken
from prismm.linalg.matrices import all_finite, gap, host, last_bit, magnitude, product_above
from prismm.linalg.rounding import ETA, TAU, U, above, inflation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_PARTS, FEWER_PARTS, LARGE = 6, 3, 256
"""Parts of R at most, and for n > LARGE, where each is dear; k parts reach condition numbers of about 10^(15k)."""

CLOSE, CLOSER = 2.0**-3, 2.0**-12
"""Below which contraction R serves, and below which a better R is not worth its products."""


@dataclass(frozen=True, eq=False)
class Inverse:
    """R = Σ parts, with |I - RA|·weights <= image <= contraction·weights.

    Attributes:
        parts: each (n, n); one part may be a tensor, where A is one.
        magnitude: (n, n), at least |R|; a tensor as well.
        weights: v > 0, (n,).
        image: (n,), at least |I - RA|·v.
        contraction: α, at least max image/v; below 1 A is proved not to be singular.
        rounded: |RN(I - RA)| where it is known, (n, n).
        products: where they are multiplied.
        eta: by how much more its rounding may leave out than u of it: 0 where nothing underflows.
    """

    parts: tuple[Any, ...]
    magnitude: Any
    weights: Floats
    image: Floats
    contraction: float
    rounded: Floats | None
    products: Products
    eta: float = ETA

    @cached_property
    def bit(self) -> int:
        """e so that every entry of every part is a multiple of 2^e."""
        return min(map(last_bit, self.parts))

    def size_times(self, x: Any) -> Any:
        """At least |R|·x for x >= 0, (n, k), as x is an array or a tensor."""
        return product_above(self.magnitude, x, self.products)

    def image_of(self, x: Any) -> Any:
        """At least |I - RA|·x for x >= 0, (n, k): by entries where they are known, else image·max(x/weights)."""
        most = above(largest(above(x / beside(self.weights, x)[:, None])))
        coarse = above(beside(self.image, x)[:, None] * most)
        if self.rounded is None:
            return coarse
        return np.minimum(coarse, _image(self.rounded, x, self.eta, self.products))

    def reached(self, start: Any) -> Any:
        """Where Σ|G|^k·ρ may be more than 0, for ρ >= 0 with these entries that are not 0, (n, k).

        |E| <= ρ + |G||E| gives |E| <= Σ|G|^k·ρ, as the series converges: elsewhere E is 0.
        """
        if self.rounded is None or self.eta > 0.0 or start.all():
            return start | True
        support = (self.rounded > 0.0).astype(np.float32)
        found = start
        for _ in range(len(support)):
            more = found | (support @ found.astype(np.float32) > 0.0)
            if (more == found).all():
                break
            found = more
        return found


def inverses(a: Any, products: Products, positive: bool) -> Iterator[Inverse]:
    """Inverses of a, each more accurate than the one before, until no more parts are tried.

    Args:
        a: (n, n), finite; of a tensor the first inverse is one, and others are arrays.
        products: where they are multiplied.
        positive: whether to factorise by Cholesky where that succeeds.
    """
    n = len(a)
    first = approximate_inverse(a, products.device, positive)
    if all_finite(first):
        yield _conventional(a, first, products)
    a, parts = host(a), [host(first)]
    for count in range(1, (MOST_PARTS if n <= LARGE else FEWER_PARTS) + 1):
        if not all(np.isfinite(part).all() for part in parts):
            return
        found = _proved(a, parts, products)
        yield found
        if count < (MOST_PARTS if n <= LARGE else FEWER_PARTS):
            far = found.contraction >= 1.0
            if far and count == 1:
                parts = [shaken(parts[0])]
            near = expand(products, parts, [a], 1)[0]
            factor = approximate_inverse(near, products.device, False)
            parts = expand(products, [shaken(factor) if far else factor], parts, count + 1)


def _conventional(a: Any, r: Any, products: Products) -> Inverse:
    """Way 1: |G|v <= |I - C|v + n·u·|R|(|A|v) + n·η·Σv, by four additions and one product of upper bounds."""
    n = len(a)
    near = gap(products.native(r, a))
    size, inverse_size = magnitude(a), magnitude(r)

    def image(v: Floats) -> Floats:
        lost = (n * U) * product_above(inverse_size, product_above(size, v, products), products)
        bound: Floats = (product_above(near, v, products) + lost + n * TAU * np.sum(v)) * inflation(n + 8)
        return bound

    weights, found, contraction = _weighed(image, n)
    return Inverse((r,), inverse_size, weights, found, contraction, None, products)


def _image(rounded: Floats, x: Floats, eta: float, products: Products) -> Floats:
    """Ways 2 and 3: |G|x <= |RN|x·(1+u) + η·Σx, of a matrix |RN| and x >= 0."""
    scale = np.sum(x, axis=0) * eta + 2.0 * eta
    bound: Floats = (product_above(rounded, x, products) * (1.0 + 2.0 * U) + scale) * inflation(len(rounded) + 8)
    return bound


def _proved(a: Floats, parts: list[Floats], products: Products) -> Inverse:
    """Ways 2 and 3."""
    n = len(a)
    g = residual_of(products, parts, [a], np.eye(n))
    size = np.abs(g)
    eta = 0.0 if min(map(last_bit, parts)) + last_bit(a) >= -1021 else ETA
    weights, found, contraction = _weighed(lambda v: _image(size, v, eta, products), n)
    inverse_size = np.abs(parts[0])
    for part in parts[1:]:
        inverse_size = above(inverse_size + np.abs(part))
    return Inverse(tuple(parts), inverse_size, weights, found, contraction, size, products, eta)


def _weighed(image: Callable[[Floats], Floats], n: int) -> tuple[Floats, Floats, float]:
    """Weights v for which max |G|v/v is small, with |G|v and that maximum.

    By Collatz and Wielandt the maximum is at least the spectral radius of |G|, and for its Perron vector equal to it;
    v ← |G|v + a little is the power method for that vector.
    """
    v = np.ones(n)
    best: tuple[Floats, Floats, float] | None = None
    for _ in range(4):
        w = image(v)
        contraction = float(np.max(above(w / v), initial=0.0))
        if not np.isfinite(contraction):
            contraction = np.inf
        if best is None or contraction < best[2]:
            best = v, w, contraction
        if not CLOSER < contraction < np.inf:
            break
        v = w / np.max(w) + 2.0**-20
    assert best is not None
    return best
