"""What all pieces of a product have to agree on before the first of them is multiplied."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.accuracy import MAGNITUDE, Target, join_mode
from prismm.core.outcome import Epilogue, Job
from prismm.core.problem import Problem
from prismm.core.request import Request
from prismm.core.terms import is_long
from prismm.cpu.backend import select
from prismm.cpu.engines.integer import CpuEngine, DirectEngine, Float64Engine, PackedEngine, choose
from prismm.cpu.residues.split import Splitter
from prismm.errors import ArgumentError
from prismm.formats import Format, format_of
from prismm.planning.moduli_count import moduli_leaving

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES = 256
"""The largest modulus of digits of one byte."""


@dataclass(frozen=True)
class Setting:
    """A product whose inner dimension lies in pieces: what its value follows from, besides the operands.

    Frozen, hashable and without data: pieces on other machines have an equal one, or are not of the same product.

    Attributes:
        moduli: of the scheme.
        k: the whole inner dimension, at least 1.
        is_complex: whether the result is complex.
        result: format of the result, or of its real parts.
        target: the accuracy target; None for the scheme's own value.
        summed: whether gemm's factors and C enter, which the target counts as three more terms.
    """

    moduli: int
    k: int
    is_complex: bool
    result: Format
    target: Target | None
    summed: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Without its splitter, whose engine is that of one machine."""
        return Setting, tuple(getattr(self, each.name) for each in fields(self))

    @property
    def parts(self) -> int:
        """Real parts of an entry."""
        return 2 if self.is_complex else 1

    @property
    def terms(self) -> int:
        """Terms of the real sum behind each real part of an entry."""
        return self.k * self.parts

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the result."""
        names = ("complex128", "complex64") if self.is_complex else ("float64", "float32")
        return np.dtype(names[self.result.precision == 24])

    @property
    def entry_bytes(self) -> int:
        """Bytes of the digits of an entry."""
        return self.moduli * self.parts

    @functools.cached_property
    def splitter(self) -> Splitter:
        """How pieces are split on this machine: engines differ, digits do not."""
        tested = join_mode(self.target) == MAGNITUDE
        return Splitter(self.moduli, byte_engine(), self.k, self.is_complex, a_priori=tested, levels=tested)

    @property
    def levels(self) -> int:
        """Counts of large elements that certificates by magnitude ask for; 0 where there are none."""
        return self.splitter.count_levels if self.splitter.levels else 0

    @functools.cached_property
    def modulus(self) -> NDArray[np.int64]:
        """The moduli, in the order of the digits."""
        return np.array(self.splitter.system.moduli, np.int64)

    def job(self, workers: int, epilogue: Epilogue | None = None) -> Job:
        """The job of a join."""
        terms = self.terms + (3 if self.summed else 0)
        return Job(self.result, self.target, terms, self.splitter.a_priori, workers, 1 << 30, epilogue)

    def real_operand(self, x: NDArray[Any]) -> NDArray[Any]:
        """x in a type that all steps read, exactly: bools as 0 and 1, complex where the result is."""
        _refuse_long(x.dtype)
        x = x.astype(np.uint8) if x.dtype.kind == "b" else x
        return x.astype(np.complex128) if self.is_complex and x.dtype.kind != "c" else x


def _refuse_long(dtype: np.dtype[Any]) -> None:
    """ArgumentError for types whose elements may be beyond float64."""
    if (dtype.kind in "iu" and dtype.itemsize == 8) or is_long(dtype):
        raise ArgumentError(
            f"an operand of {dtype} has elements that may take several float64 numbers, which are not multiplied in "
            "pieces of the inner dimension; convert it to float64 if its values are float64's, or shard rows or "
            "columns instead"
        )


def byte_engine() -> CpuEngine:
    """The engine for residues of a byte: this processor's best, or float64 where it has no unit for them."""
    best = choose("cpu")
    if isinstance(best, DirectEngine) or best.largest_modulus != BYTES:
        return Float64Engine(largest_modulus=BYTES)
    return best


def setting_of(
    m: int, k: int, n: int, types: tuple[np.dtype[Any], np.dtype[Any]], dtype: np.dtype[Any], request: Request, *,
    summed: bool = False, repairs: float | None = None,
) -> Setting:  # fmt: skip
    """The setting of a product (m, k) by (k, n) of these types with a result of type `dtype`.

    The scheme is that of the product on one device where bits depend on it; a correctly rounded result has the bits of
    any. Unless a scheme is named, it takes as many moduli as are likely to leave no more than `repairs` entries of
    normal data uncertified, where that is given.

    Raises:
        ArgumentError: for a scheme, or a choice, whose value is not an exact integer before one rounding; for types
            whose elements may take several terms.
    """
    for each in types:
        _refuse_long(each)
    shapes = zip(types, ((m, max(k, 1)), (max(k, 1), n)), strict=True)
    a, b = (np.broadcast_to(np.zeros((), each), shape) for each, shape in shapes)
    implementation, _, _, problem = select(
        a, b, dtype, request, summed=summed, terms_per_element=1, may_read_data=False
    )
    implementation.check_target(problem, request.target)
    moduli = exact_moduli(implementation, problem)
    if repairs is not None and problem.rounded and request.scheme is None:
        moduli = max(moduli, moduli_leaving(repairs / max(1, m * n), problem.result, problem.terms))
    return Setting(moduli, max(k, 1), dtype.kind == "c", format_of(dtype), request.target, summed)


def exact_moduli(implementation: Any, problem: Problem) -> int:
    """Moduli of the digits that serve an implementation's product."""
    moduli = getattr(implementation, "digit_moduli", None)
    if moduli is not None:
        return int(moduli)
    if problem.rounded:
        return moduli_leaving(1 / 200, problem.result, problem.terms)
    raise ArgumentError(
        f"{implementation.scheme} has no exact partial products: its sums are rounded where the inner dimension is "
        "cut; pass scheme=prismm.Residues(...), reproducible=True or accuracy='correctly-rounded', or shard rows or "
        "columns instead"
    )


def is_packed(engine: CpuEngine) -> bool:
    """Whether an engine reads residues as its own kernels pack them."""
    return isinstance(engine, PackedEngine)
