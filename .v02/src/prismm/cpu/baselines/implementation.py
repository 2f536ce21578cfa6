"""`QuanTensor` on a CPU: INT8 words with a scale per vector, products by BLAS."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prismm.core.composite import Joined, Scaled, Setting
from prismm.cpu import blas_pieces
from prismm.cpu.composite import CompositeImplementation
from prismm.cpu.engines.floats import BlasEngine, blas_for
from prismm.schemes.baselines import INT32_TERMS, LARGEST, QuanTensor, _pairs

_PANEL = 256

_U = 2.0**-24


@dataclass(frozen=True)
class Quantised:
    """An operand of `QuanTensor`; v vectors (rows on the left, columns on the right).

    Norms are rounded up.

    Attributes:
        integers: X_p, int8 (words, v, k).
        scales: λ_p, float32 (words, v).
        residual: ‖x - Σλ_p·X_p‖ per vector.
        size: ‖Σλ_p|X_p|‖ per vector.
        norm: ‖x‖ per vector.
        words: ‖λ_p·X_p‖, (words, v).
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
    """x @ y.T of integers whose sums stay below 2^53, by torch where it is loaded: it heeds the limit of a worker."""
    if sys.modules.get("torch") is None:
        out = np.empty((x.shape[0], y.shape[0]))
        blas_pieces.multiply(x, y.T, out=out)
        return out
    import torch

    return (torch.from_numpy(x) @ torch.from_numpy(y).t()).numpy()


class Implementation(CompositeImplementation):
    """`QuanTensor` on a CPU."""

    scheme: QuanTensor

    def engine_for(self, name: str | None) -> BlasEngine:
        """DGEMM of the words: its sums are the INT32 sums, exactly.

        Raises:
            ArgumentError: for any other engine.
        """
        return blas_for(name, "QuanTensor")

    def split(self, x: Scaled, setting: Setting) -> Quantised:
        """See `Composite.split`."""
        import numpy as np

        from prismm.core import threads

        data = x.data if x.side == "left" else x.data.T
        v, k = data.shape
        integers = np.empty((self.scheme.words, v, k), np.int8)
        scales = np.empty((self.scheme.words, v), np.float32)
        measured = np.empty((3 + self.scheme.words, v))

        def part(i: int) -> None:
            _quantise(
                np.ascontiguousarray(data[i : i + _PANEL]), integers[:, i : i + _PANEL], scales[:, i : i + _PANEL],
                measured[:, i : i + _PANEL],
            )  # fmt: skip

        threads.spread(part, list(range(0, v, _PANEL)), setting.workers)
        return Quantised(integers, scales, measured[0], measured[1], measured[2], measured[3:])

    def multiply(self, left: Quantised, right: Quantised, setting: Setting) -> Joined:
        """See `Composite.multiply`."""
        import numpy as np

        from prismm.core import threads

        _, m, k = left.integers.shape
        n = right.integers.shape[1]
        high = np.empty((m, n))
        panels = list(range(0, m, _PANEL))
        chunks = [slice(h, min(k, h + INT32_TERMS)) for h in range(0, k, INT32_TERMS)]
        room = threading.local()

        def part(i: int) -> None:
            threads.limit_openmp()
            rows = slice(i, min(m, i + _PANEL))
            acc = np.zeros((rows.stop - i, n), np.float32)
            for chunk in chunks:
                for p, q in self.scheme.pairs:
                    if getattr(room, "key", None) != (q, chunk.start):
                        room.right = right.integers[q, :, chunk].astype(np.float64)
                        room.key = (q, chunk.start)
                    sums = _exact(left.integers[p, rows, chunk].astype(np.float64), room.right)
                    weight = left.scales[p, rows, None] * right.scales[q, None, :]
                    acc += weight * sums.astype(np.float32)
            high[rows] = acc

        threads.spread(part, panels, setting.workers)
        chosen = self.scheme.pairs
        dropped = [pair for pair in _pairs(self.scheme.words, 2 * self.scheme.words - 2) if pair not in chosen]
        additions = len(chosen) * max(1, len(chunks))
        rounding = (additions + 2) * _U * (1.0 + 2.0**-10)
        rows = [left.residual, left.norm + left.residual, left.size * rounding]
        columns = [right.norm, right.residual, right.size]
        rows += [left.words[p] for p, _ in dropped]
        columns += [right.words[q] for _, q in dropped]
        least = _smallest(left.scales) * _smallest(right.scales)
        # Below 2^-126 a product of scales loses up to 2^-150 and has up to 2^31 to multiply.
        floor = 0.0 if least >= 2.0**-120 else additions * 2.0**-117
        up = 1.0 + 2.0**-40
        return Joined(high, None, 0.0, np.stack(rows) * up, np.stack(columns) * up, floor, len(chosen))
