"""Composite schemes: operands split into floating-point or integer parts, products of parts joined with rounding.

What `Words`, `ScaledHalf`, `TileInt8` and `Slices` have in common, so that one flow (`cpu.flow`) can scale their
operands, certify every entry and repair those uncertified. A composite scheme sees real, finite operands whose rows
(left) and columns (right) were scaled by powers of two to magnitudes in [1/2, 1), and says how far its value may lie
from the exact product: ε <= gamma·(|a||b|) + Σ_r rows[r]·columns[r] + floor, entry by entry, in the same scaled units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.core.workspace import Arena
    from prismm.formats import Format

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Scaled:
    """A real, finite operand whose vectors (rows on the left, columns on the right) are scaled by powers of two.

    Attributes:
        side: "left" or "right".
        data: C-contiguous float64, (m, k) left or (k, n) right, never to be written; the largest magnitude of a vector
            is in [1/2, 1), or 0.
        exponent: int64 per vector; the operand is data·2^exponent, exactly but for vectors marked in `lost`.
        lost: whether a vector has elements below 2^-1022 of its largest, which were rounded to multiples of 2^-1074;
            the flow accounts for it.
        precision: bits that the elements' significands have at most; 24 for float32 data.
    """

    side: Side
    data: NDArray[np.float64]
    exponent: NDArray[np.int64]
    lost: NDArray[np.bool_]
    precision: int = 53

    @property
    def k(self) -> int:
        """Inner dimension."""
        return int(self.data.shape[1 if self.side == "left" else 0])

    @property
    def axis(self) -> int:
        """The axis of the inner dimension."""
        return 1 if self.side == "left" else 0


@dataclass(frozen=True)
class Setting:
    """What a composite scheme is told besides its operands.

    Attributes:
        result: the type that the caller gets.
        workers: threads.
        workspace_bytes: bytes of workspace that the scheme should stay within.
        engine: what `cpu.engines.floats.engine_for` or the scheme's own `engine_for` returned.
        workspace: the caller's workspace, for schemes with `takes_workspace`.
        further: whether something is added to the value before it is rounded, so that high and low do not suffice.
    """

    result: Format
    workers: int
    workspace_bytes: int
    engine: Any
    workspace: Arena | None = None
    further: bool = False


class Lost(NamedTuple):
    """Entries of a sum that may have lost some that underflows, and two numbers each that hold all of it.

    Attributes:
        i: their rows, (entries,).
        j: their columns, (entries,).
        high: (entries,); high + low is the value, times 2^lift.
        low: (entries,).
        lift: the exponent of that power of two.
    """

    i: NDArray[np.int64]
    j: NDArray[np.int64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    lift: int


@dataclass
class Joined:
    """The value of a composite scheme before the last rounding, in scaled units, and how wrong it can be.

    The value is high + low (low None for 0); high is float64. Every entry is within
    gamma·(|a||b|)_ij + Σ_r rows[r, i]·columns[r, j] + floor of the exact product of the scaled operands.

    Attributes:
        high, low: the value.
        gamma, rows, columns, floor: the bound.
        products: matrix products made on the engine.
        notes: counts for the report ("fallback tiles": 3).
        rounds: whether low was rounded to odd. RN(high + low) is then RN(exact) in every format of at most 53 bits as
            far as gamma goes: only rows, columns and floor leave a rounding uncertified.
        rest: further numbers of a value that high and low do not hold, where `Setting.further` asks for them.
        whole: the value of an entry (i, j) as an integer and an exponent, where all these numbers do not hold it or
            some of them underflow; None where they hold it.
        lost: the entries of a sum that may have underflowed in part.
    """

    high: NDArray[np.float64]
    low: NDArray[np.float64] | None
    gamma: float
    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    floor: float
    products: int
    notes: dict[str, int] = field(default_factory=dict)
    rounds: bool = False
    rest: tuple[NDArray[np.float64], ...] = ()
    whole: Callable[[int, int], tuple[int, int]] | None = None
    lost: Lost | None = None


@runtime_checkable
class Composite(Protocol):
    """A scheme that goes through `cpu.flow`. It must hold that

    - `split` depends on its operand (and scheme, inner dimension, setting) alone, so that `prepare` can keep it;
    - `multiply` returns a value within the bound that it states, for all finite scaled operands;
    - if `reproducible`, each entry of the value is a function of its row, its column and the scheme alone.
    """

    @property
    def reproducible(self) -> bool:
        """Whether the value is the same on every engine, thread count, batch and order of the inner dimension."""

    @property
    def granule(self) -> tuple[int, int]:
        """Rows and columns of which blocks of the product must be multiples, so that blocking changes no bit."""

    def engine_for(self, name: str | None) -> Any:
        """The engine of this name, or the scheme's own choice on a CPU for None and "cpu".

        Raises:
            ArgumentError, EngineError: for an engine that cannot serve the scheme, with the remedy.
        """

    def check(self, k: int, result: Format) -> None:
        """Raise ArgumentError for parameters that cannot serve this inner dimension or result, with the remedy."""

    def split(self, x: Scaled, setting: Setting) -> Any:
        """The operand's parts, with `nbytes`."""

    def multiply(self, left: Any, right: Any, setting: Setting) -> Joined:
        """The product of two split operands."""

    def products_for(self, k: int, result: Format) -> int:
        """Matrix products on the engine that one real product is expected to take (for the plan)."""

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """Bytes of workspace for a block of the product (for the plan, and for the blocking by the flow)."""
