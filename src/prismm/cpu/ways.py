"""Methods by which many entries are recomputed together."""

from __future__ import annotations

from dataclasses import dataclass

from prismm.core.many_moduli import MOST_BITS, room


@dataclass(frozen=True)
class Moduli:
    """So many moduli, with bits for rows and for columns; corrected: what these leave out is added in float64."""

    moduli: int
    left: int
    right: int
    corrected: bool = False

    path = "more moduli"

    @property
    def text(self) -> str:
        """The method in words, for plans."""
        return f"{self.moduli} moduli" + (" and a correction in float64" if self.corrected else "")


@dataclass(frozen=True)
class Expansion:
    """Sums in two or three parts."""

    parts: int

    @property
    def path(self) -> str:
        """Its name in reports."""
        return "double-double" if self.parts == 2 else "triple-double"

    @property
    def text(self) -> str:
        """The method in words, for plans."""
        return f"sums in {self.path}"


@dataclass(frozen=True)
class InFloat64:
    """One product in float64, of which results of float32 are rounded."""

    path = "float64"
    text = "a product in float64"


Way = Moduli | Expansion | InFloat64


def shared_bits(moduli: int, k: int, rows: int, columns: int) -> Moduli:
    """The bits of the system, given to rows and columns that want so many: all, or what leaves no side less than the
    other for want.
    """
    rows, columns = min(rows, MOST_BITS), min(columns, MOST_BITS)
    # Sums of k products take log2(k) bits of the room.
    total = max(2, room(moduli) - max(k - 1, 0).bit_length())
    if rows + columns <= total:
        return Moduli(moduli, rows, columns)
    # Half each, but what one side cannot use goes to the other.
    left = min(rows, max(total // 2, total - columns))
    return Moduli(moduli, left, total - left)
