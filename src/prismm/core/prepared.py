"""Prepared: an operand split once and used often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from prismm.core import arrays
from prismm.core.accuracy import Target
from prismm.errors import OperandError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.arrays import Array
    from prismm.cpu.flow import SplitOperand
    from prismm.cpu.residues.blocking import SplitLeft, SplitRight


@dataclass(frozen=True, eq=False)
class Prepared:
    """A left or right operand that knows its scheme, its scales and its shape; made by `prismm.prepare`.

    It keeps a private copy of the matrix, for repair. Pass it to `matmul` or `gemm` instead of that operand;
    accuracy, scheme, reproducibility and engine come with it, and so does a result type that was asked for.

    Attributes:
        side: "left" or "right".
        scheme: the scheme that split it.
        target: the accuracy target; None for a scheme's own value.
        reproducible: whether results have to be reproducible.
        engine: the engine that it was split for.
        out_dtype: element type of results.
        asked_dtype: the same where the caller named it, else None.
        array: the private copy.
        split: the split operand; None where it is split with its partner.
    """

    side: Literal["left", "right"]
    scheme: Any
    target: Target | None
    reproducible: bool
    engine: str
    out_dtype: str
    asked_dtype: str | None
    array: Array = field(repr=False)
    split: SplitLeft | SplitRight | SplitOperand | None = field(repr=False)

    is_cuda: ClassVar[bool] = False
    """Whether it lives on a GPU."""

    @property
    def data(self) -> NDArray[Any]:
        """The private copy of the matrix."""
        return self.array.data

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        return tuple(self.data.shape)

    @property
    def nbytes(self) -> int:
        """Bytes held: the copy and its parts."""
        return int(self.data.nbytes) + (self.split.nbytes if self.split is not None else 0)

    def gives(self, out_dtype: Any) -> str:
        """The type of a result for which this one would be asked for, by name."""
        return str(arrays.result_dtype([self.data], out_dtype).name)

    def refuse(self, keyword: str, given: Any, known: Any) -> OperandError:
        """The error for an option that contradicts what the operand was prepared for."""
        return OperandError(
            f"the {self.side} operand was prepared with {keyword}={known!r}, not {given!r}; leave {keyword} out, or "
            f"prepare it again"
        )

    def refuse_partner(self, keyword: str, partner: Prepared) -> OperandError:
        """The error for two prepared operands that differ in something, by the name of the attribute."""
        mine, other = getattr(self, keyword), getattr(partner, keyword)
        name = "accuracy" if keyword == "target" else keyword
        mine, other = (str(x) if isinstance(x, Target) else x for x in (mine, other))
        return OperandError(
            f"the {self.side} operand was prepared with {name}={mine!r}, the {partner.side} one with {name}={other!r}; "
            f"prepare both with the same {name}"
        )
