"""Prepared: an operand split once and used often."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from prismm.core import arrays
from prismm.core.accuracy import Target
from prismm.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from prismm.core.arrays import Array
    from prismm.cpu.flow import SplitOperand
    from prismm.cpu.residues.blocking import SplitLeft, SplitRight


class Verbs(NamedTuple):
    """The public verbs, which stand above this module.

    Attributes:
        matmul: `prismm.matmul`, which ``@`` calls.
        prepare: `prismm.prepare`, by which an operand is split for its other side.
    """

    matmul: Callable[..., Any]
    prepare: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A left or right operand that knows its scheme, its scales and its shape; made by `prismm.prepare`.

    It keeps a private copy of the matrix, for repair. Pass it to `matmul` or `gemm` instead of that operand, or write
    ``x @ right``, ``left @ x``; accuracy, scheme, reproducibility and engine come with it, and so does a result type
    that was asked for. ``scipy.sparse.linalg.aslinearoperator`` takes it, whatever its side; of a CuPy array
    ``cupyx.scipy.sparse.linalg.aslinearoperator`` does.

    >>> import numpy as np, prismm
    >>> right = prismm.prepare(np.eye(3), accuracy="correctly-rounded")
    >>> np.ones((1, 3)) @ right
    array([[1., 1., 1.]])

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
        verbs: what its operators call; `prismm.prepare` gives them to the operand that it makes.
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
    verbs: Verbs | None = field(default=None, repr=False, kw_only=True)

    is_cuda: ClassVar[bool] = False
    """Whether it lives on a GPU."""

    __array_ufunc__: ClassVar[None] = None
    """So NumPy leaves ``x @ prepared`` to `__rmatmul__`."""

    @property
    def data(self) -> NDArray[Any]:
        """The private copy of the matrix."""
        return self.array.data

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        """Element type of the matrix."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """2."""
        return len(self.shape)

    def __matmul__(self, x: Any) -> Any:
        return NotImplemented if self.verbs is None else self.verbs.matmul(self, x)

    def __rmatmul__(self, x: Any) -> Any:
        return NotImplemented if self.verbs is None else self.verbs.matmul(x, self)

    def matvec(self, x: Any) -> Any:
        """A @ x for an array of shape (k,) or (k, n), with the accuracy that was prepared for.

        >>> import numpy as np, prismm
        >>> right = prismm.prepare(np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> right.matvec(np.ones(2)), right.rmatvec(np.ones(2))
        (array([3., 7.]), array([4., 6.]))
        """
        return (self if self.side == "left" else self._opposite) @ x

    matmat = matvec

    def rmatvec(self, x: Any) -> Any:
        """Aᴴ @ x for an array of shape (m,) or (m, n), likewise, as (xᴴ @ A)ᴴ."""
        return _adjoint(_adjoint(x) @ (self if self.side == "right" else self._opposite))

    rmatmat = rmatvec

    @functools.cached_property
    def _opposite(self) -> Prepared:
        """The same matrix prepared for the other side, when that is first needed: another copy, and its parts."""
        assert self.verbs is not None
        # What prepare chose itself may be reproducible by its target alone, and would not be taken as a scheme.
        asked = None if self.reproducible and not self.scheme.reproducible else self.scheme
        matrix = self.data if self.is_cuda else arrays.as_caller(self.data, self.array.family, self.array.source)
        found: Prepared = self.verbs.prepare(
            matrix, side="left" if self.side == "right" else "right", accuracy=self.target, scheme=asked,
            reproducible=self.reproducible, out_dtype=self.asked_dtype, engine=self.engine,
        )  # fmt: skip
        return found

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


def _adjoint(x: Any) -> Any:
    """The conjugate transpose; of a vector the conjugate."""
    return x.conj() if x.ndim < 2 else x.conj().T
