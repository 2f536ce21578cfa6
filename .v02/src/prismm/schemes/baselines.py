"""Older methods to compare with: Markidis, EGEMM-TC and QuanTensor.

The first two are configurations of `Words`: two FP16 words cut toward zero ("truncate-split", ascribed to Markidis et
al. 2018) or to nearest (the "round-split" of EGEMM-TC, Feng et al. 2021), their products summed in FP32 over the whole
inner dimension. They model the splits, not the kernels or the accumulators of these papers. Here, as everywhere in
prismm, rows and columns are scaled by powers of two first, so that words neither overflow nor underflow for want of
it; the originals take data as they are.

`QuanTensor` quantises to INT8 and refines with the quantised residuals (Li et al. 2021, as Lin et al. 2024 describe
it: "nine INT8 multiplications with accompanying repetitive scaling and quantization steps").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core.scheme import BuiltIn
from prismm.errors import ArgumentError
from prismm.formats import FP16, Format
from prismm.schemes.multiword import Words

if TYPE_CHECKING:
    pass

WHOLE = 1 << 30
"""A chunk that holds any inner dimension."""
LARGEST = 127
INT32_TERMS = 131072
"""Terms of a sum in INT32: 131072·127² < 2^31."""


def markidis(products: int = 4) -> Words:
    """Markidis et al. 2018: two FP16 words, the residual of a truncation; 4 products, or 3 without the low words'.

    >>> markidis()
    Words(fp16, words=2, products=4, chunk=1073741824, rounding='toward-zero')
    """
    return Words(FP16, words=2, products=products, chunk=WHOLE, rounding="toward-zero")


def egemm(products: int = 4) -> Words:
    """EGEMM-TC (Feng et al. 2021): two FP16 words rounded to nearest, which hold one bit more; 4 products.

    >>> egemm().rounding
    'nearest'
    """
    return Words(FP16, words=2, products=products, chunk=WHOLE)


@dataclass(frozen=True)
class QuanTensor(BuiltIn):
    """INT8 words with a scale per row or column, each the quantised residual of those before.

    Value: λ_p = RN32(max|r_p|/127) over a row of A (or column of B), X_p = RN(r_p/λ_p) in [-127, 127], r_(p+1) =
    r_p - λ_p·X_p, from r_0, the scaled data, in float64. The INT8 products S_pq of the kept pairs are exact in INT32 (a
    sum for each 131072 of k); c = c + (λ_p·λ_q)·S_pq, every operation and the conversion of S rounded to FP32, the
    main product first and refinements after it, by p + q.

    Bound: with s = Σ_p λ_p|X_p| per element and N additions, |c - ab| <= ‖δa_i‖‖b_j‖ + (‖a_i‖+‖δa_i‖)‖δb_j‖ +
    Σ_dropped ‖λ_pX_p‖‖λ_qX_q‖ + (N + 2)u·‖s_i‖‖s_j‖·(1+2^-10): Cauchy and Schwarz on what is not represented or not
    multiplied; three roundings make each term, and N - 1 follow (Jeannerod and Rump 2013). Residuals are measured.

    Reproducible: yes, each entry is a function of its row and its column. Scale-invariant: yes.

    The original has one scale for a whole matrix; one per row and column is at least as accurate, and lets an entry
    depend on its row and column alone.

    Args:
        words: 1 to 4; the original's refined version has 3, with 9 products. Two words with 3 products is a reading of
            Lin et al.'s Table 1 (14 bits, 3×INT8) for its faster one, not taken from Li et al.
            Lin et al. quote errors of 6.76e-5 and 1.5e-6 without data or k; errors here vary with both by factors of
            200 (two words, 3 products), so these figures confirm neither reading.
        products: pairs (p, q) with p + q <= d for some d; default all, words².

    Raises:
        ArgumentError: for values outside of these.

    >>> QuanTensor().products_for(64, FP16), QuanTensor(2, products=3).pairs
    (9, ((0, 0), (0, 1), (1, 0)))
    """

    room = "baselines"

    words: int = 3
    products: int | None = None

    def __post_init__(self) -> None:
        if type(self.words) is not int or not 1 <= self.words <= 4:
            raise ArgumentError(f"QuanTensor(words={self.words!r}); pass an integer from 1 to 4")
        counts = [len(_pairs(self.words, d)) for d in range(2 * self.words - 1)]
        if self.products is None:
            object.__setattr__(self, "products", counts[-1])
        elif type(self.products) is not int or self.products not in counts:
            raise ArgumentError(
                f"QuanTensor(products={self.products!r}) with {self.words} words; pass one of "
                f"{', '.join(map(str, counts))}"
            )

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The kept pairs of words, in the order in which they are added."""
        assert self.products is not None
        return _pairs(self.words, 2 * self.words - 2)[: self.products]

    @property
    def reproducible(self) -> bool:
        """True: INT32 sums have no order, and additions have a fixed one."""
        return True

    @property
    def granule(self) -> tuple[int, int]:
        """Any block will do."""
        return 1, 1

    def check(self, k: int, result: Format) -> None:
        """See `Composite.check`: any inner dimension below 2^31 and any result will do."""
        if k >= 1 << 31:
            raise ArgumentError(f"QuanTensor(...) with k={k}; split products beyond k = 2^31 - 1")

    def products_for(self, k: int, result: Format) -> int:
        """See `Composite.products_for`."""
        return len(self.pairs)

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """See `Composite.workspace`."""
        return (self.words + 16) * (m + n) * k + 24 * m * n


def _pairs(words: int, limit: int) -> tuple[tuple[int, int], ...]:
    """Pairs with p + q <= limit, by p + q."""
    pairs = [(p, q) for p in range(words) for q in range(words) if p + q <= limit]
    return tuple(sorted(pairs, key=lambda pair: (sum(pair), pair)))
