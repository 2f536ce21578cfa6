"""Job and Outcome: what one product of two matrices is asked for, and what became of it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prismm.core.accuracy import Target
from prismm.formats import Format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.core.workspace import Arena


_STRIP, _FEW = 32, 1 << 12
"""A matrix in column order is copied _STRIP columns at a time, unless it has fewer than _FEW elements."""


def finite_abs(z: complex) -> float:
    """|z|, or the largest float where it is beyond."""
    return min(math.hypot(z.real, z.imag), sys.float_info.max)


@dataclass(frozen=True)
class Epilogue:
    """alpha·AB + beta·C.

    Attributes:
        alpha: the factor of AB.
        beta: the factor of C.
        c: C, of the result's shape and type; None where beta is 0.
    """

    alpha: complex
    beta: complex
    c: NDArray[Any] | None

    def block(self, rows: Any) -> Epilogue:
        """The same for some rows of the result."""
        return Epilogue(self.alpha, self.beta, self.c[rows] if self.c is not None else None)

    @property
    def trivial(self) -> bool:
        """Whether it is AB itself."""
        return self.alpha == 1.0 and self.beta == 0.0

    def factors(self, part: int, parts: int) -> NDArray[np.float64]:
        """Factors of (X_re, X_im, C_re, C_im) in the real (part 0) or imaginary part of alpha·X + beta·C."""
        import numpy as np

        alpha, beta = complex(self.alpha), complex(self.beta)
        if parts == 1:
            return np.array([alpha.real, 0.0, beta.real, 0.0])
        if part == 0:
            return np.array([alpha.real, -alpha.imag, beta.real, -beta.imag])
        return np.array([alpha.imag, alpha.real, beta.imag, beta.real])


@dataclass(frozen=True)
class Job:
    """One two-dimensional product, decided in every respect: what a scheme's `multiply` carries out.

    Attributes:
        result: format of the result.
        target: the accuracy; None for the scheme's own value, neither certified nor repaired.
        terms: K of the accuracy targets.
        a_priori: whether certificates come from integer norms alone, so that what is repaired depends on nothing but
            row, column and scheme.
        workers: threads.
        workspace_bytes: bytes of workspace that the product should stay within.
        epilogue: alpha, beta and C, or None for AB itself.
        workspace: the caller's workspace, if any.
        lower: whether entries above the diagonal are not wanted; they may be left as they are, finite.
    """

    result: Format
    target: Target | None
    terms: int
    a_priori: bool
    workers: int
    workspace_bytes: int
    epilogue: Epilogue | None = None
    workspace: Arena | None = None
    lower: bool = False


@dataclass
class Outcome:
    """What became of a two-dimensional product.

    Attributes:
        paths: real entries by the path that gave them their final value.
        timings: seconds per phase.
        products: low-precision matrix products computed.
        split_left: elements of the left operand that were split.
        split_right: elements of the right operand that were split.
        bound: what gives entries their bounds, by `at(result, i, j)`; None where nothing was asked for.
        notes: what the scheme counted, by name.
    """

    paths: dict[str, int] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    products: int = 0
    split_left: int = 0
    split_right: int = 0
    bound: Any = None
    notes: dict[str, int] = field(default_factory=dict)

    def count(self, path: str, entries: int) -> None:
        """Add entries (real and imaginary parts counted apart) to a path."""
        if entries:
            self.paths[path] = self.paths.get(path, 0) + entries

    def time(self, phase: str, seconds: float) -> None:
        """Add wall-clock seconds to a phase."""
        self.timings[phase] = self.timings.get(phase, 0.0) + seconds

    def note(self, name: str, number: int) -> None:
        """Add to a count that the scheme keeps; of those named "most …" the largest is kept."""
        known = self.notes.get(name, 0)
        self.notes[name] = max(known, number) if name.startswith("most ") else known + number

    def merge(self, other: Outcome) -> None:
        """Add another product of the same call (a batch)."""
        for path, entries in other.paths.items():
            self.count(path, entries)
        for phase, seconds in other.timings.items():
            self.time(phase, seconds)
        self.products += other.products
        self.split_left += other.split_left
        self.split_right += other.split_right
        for name, number in other.notes.items():
            self.note(name, number)


def real_parts(x: NDArray[Any]) -> list[NDArray[Any]]:
    """[x], or [real part, imaginary part]."""
    import numpy as np

    return [x.real, x.imag] if np.iscomplexobj(x) else [x]


class _Unlocked:
    """Hands an array's memory to NumPy without its read-only mark, and keeps the array alive."""

    def __init__(self, x: NDArray[Any]) -> None:
        self.owner = x
        interface = dict(x.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def for_kernels(x: NDArray[Any], dtype: Any = "float64", room: NDArray[Any] | None = None) -> NDArray[Any]:
    """x as contiguous float64 (or another type), exactly. Compiled kernels take no read-only arrays, so one comes back
    unmarked: never write it. room: an array of that type and x's shape that takes the copy; without it, a new one does.
    """
    import numpy as np

    if x.size < _FEW or x.ndim != 2 or x.flags.c_contiguous or abs(x.strides[0]) >= abs(x.strides[1]):
        if room is None or (x.flags.c_contiguous and x.dtype == dtype):
            return unlocked(np.ascontiguousarray(x, dtype=dtype))
        room[...] = x
        return room
    # Column order: a strip of columns stays in the cache until whole cache lines of the copy's rows are written.
    copied = np.empty(x.shape, dtype) if room is None else room
    for j in range(0, x.shape[1], _STRIP):
        copied[:, j : j + _STRIP] = x[:, j : j + _STRIP]
    return copied


def unlocked(x: NDArray[Any]) -> NDArray[Any]:
    """The same memory without its read-only mark: never write it."""
    import numpy as np

    return x if x.flags.writeable else np.asarray(_Unlocked(x))
