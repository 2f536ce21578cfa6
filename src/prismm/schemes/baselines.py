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

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.core.composite import Joined, Scaled, Setting
from prismm.cpu.engines.floats import BlasEngine, blas_for
from prismm.errors import ArgumentError
from prismm.formats import FP16, Format
from prismm.schemes.multiword import Words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WHOLE = 1 << 30
"""A chunk that holds any inner dimension."""
LARGEST = 127
INT32_TERMS = 131072
"""Terms of a sum in INT32: 131072·127² < 2^31."""
_U = 2.0**-24
_PANEL = 256


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
class Quantised:
    """An operand of `QuanTensor`; v vectors (rows on the left, columns on the right).

    integers: int8 (words, v, k). scales: float32 (words, v). residual: ‖x - Σλ_p·X_p‖, size: ‖Σλ_p|X_p|‖, norm: ‖x‖,
    per vector, rounded up; words: ‖λ_p·X_p‖, (words, v).
    """

    integers: NDArray[np.int8]
    scales: NDArray[np.float32]
    residual: NDArray[np.float64]
    size: NDArray[np.float64]
    norm: NDArray[np.float64]
    words: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self.integers, self.scales, self.residual, self.size, self.norm, self.words)
        return sum(x.nbytes for x in arrays)


@dataclass(frozen=True)
class QuanTensor:
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

    def engine_for(self, name: str | None) -> BlasEngine:
        """DGEMM of the words: its sums are the INT32 sums, exactly.

        Raises:
            ArgumentError: for any other engine.
        """
        return blas_for(name, "QuanTensor")

    def check(self, k: int, result: Format) -> None:
        """See `Composite.check`: any inner dimension below 2^31 and any result will do."""
        if k >= 1 << 31:
            raise ArgumentError(f"QuanTensor(...) with k={k}; split products beyond k = 2^31 - 1")

    def split(self, x: Scaled, setting: Setting) -> Quantised:
        """See `Composite.split`."""
        import numpy as np

        from prismm.core import threads as pool

        data = x.data if x.side == "left" else x.data.T
        v, k = data.shape
        integers = np.empty((self.words, v, k), np.int8)
        scales = np.empty((self.words, v), np.float32)
        measured = np.empty((3 + self.words, v))

        def part(i: int) -> None:
            _quantise(
                np.ascontiguousarray(data[i : i + _PANEL]), integers[:, i : i + _PANEL], scales[:, i : i + _PANEL],
                measured[:, i : i + _PANEL],
            )  # fmt: skip

        pool.spread(part, list(range(0, v, _PANEL)), setting.workers)
        return Quantised(integers, scales, measured[0], measured[1], measured[2], measured[3:])

    def multiply(self, left: Quantised, right: Quantised, setting: Setting) -> Joined:
        """See `Composite.multiply`."""
        import numpy as np

        from prismm.core import threads as pool

        _, m, k = left.integers.shape
        n = right.integers.shape[1]
        high = np.empty((m, n))
        panels = list(range(0, m, _PANEL))
        chunks = [slice(h, min(k, h + INT32_TERMS)) for h in range(0, k, INT32_TERMS)]
        room = threading.local()

        def part(i: int) -> None:
            pool.limit_openmp()
            rows = slice(i, min(m, i + _PANEL))
            acc = np.zeros((rows.stop - i, n), np.float32)
            for chunk in chunks:
                for p, q in self.pairs:
                    if getattr(room, "key", None) != (q, chunk.start):
                        room.right = right.integers[q, :, chunk].astype(np.float64)
                        room.key = (q, chunk.start)
                    sums = _exact(left.integers[p, rows, chunk].astype(np.float64), room.right)
                    weight = left.scales[p, rows, None] * right.scales[q, None, :]
                    acc += weight * sums.astype(np.float32)
            high[rows] = acc

        pool.spread(part, panels, setting.workers)
        kept = self.pairs
        dropped = [pair for pair in _pairs(self.words, 2 * self.words - 2) if pair not in kept]
        additions = len(kept) * max(1, len(chunks))
        rounding = (additions + 2) * _U * (1.0 + 2.0**-10)
        rows = [left.residual, left.norm + left.residual, left.size * rounding]
        columns = [right.norm, right.residual, right.size]
        rows += [left.words[p] for p, _ in dropped]
        columns += [right.words[q] for _, q in dropped]
        least = _smallest(left.scales) * _smallest(right.scales)
        # Below 2^-126 a product of scales loses up to 2^-150 and has up to 2^31 to multiply.
        floor = 0.0 if least >= 2.0**-120 else additions * 2.0**-117
        up = 1.0 + 2.0**-40
        return Joined(high, None, 0.0, np.stack(rows) * up, np.stack(columns) * up, floor, len(kept))

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


def _quantise(
    x: NDArray[np.float64], integers: NDArray[np.int8], scales: NDArray[np.float32], measured: NDArray[np.float64]
) -> None:
    """Words, scales and norms (residual, size, norm, one of each word) of the rows of x."""
    import numpy as np

    rest = x.copy()
    size = np.zeros(x.shape)
    for p in range(integers.shape[0]):
        scale = (np.abs(rest).max(axis=1, initial=0.0) / LARGEST).astype(np.float32)
        wide = scale.astype(np.float64)[:, None]
        digits = np.rint(np.clip(rest / np.where(wide == 0.0, np.inf, wide), -LARGEST, LARGEST))
        value = digits * wide  # 24 and 7 bits: exact
        rest -= value
        size += np.abs(value)
        integers[p], scales[p] = digits, scale
        measured[3 + p] = _norms(value)
    # Each subtraction errs by 2^-53 of its result, which is at most 2|x| and shrinks from word to word.
    measured[0] = _norms(np.abs(rest) + (integers != 0).any(axis=0) * np.abs(x) * 2.0**-49)
    measured[1], measured[2] = _norms(size), _norms(x)


def _norms(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Upper bounds of the rows' 2-norms; squares that underflow count as 2^-1022."""
    import numpy as np

    squares = np.where(x == 0.0, 0.0, np.maximum(x * x, 2.0**-1022))
    found: NDArray[np.float64] = np.sqrt(squares.sum(axis=1)) * (1.0 + 2.0**-28)
    return found


def _smallest(scales: NDArray[np.float32]) -> float:
    """The smallest scale that is not 0."""
    import numpy as np

    return float(np.min(scales, where=scales > 0, initial=1.0))


def _exact(x: NDArray[np.float64], y: NDArray[np.float64]) -> Any:
    """x @ y.T of integers whose sums stay below 2^53."""
    import torch

    return (torch.from_numpy(x) @ torch.from_numpy(y).t()).numpy()
