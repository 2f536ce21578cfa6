"""FP8 (e4m3) matrix engines that this machine lacks, simulated: they serve `Residues` with moduli and digits of e4m3.

Their sums are exact as long as they stay within what the unit keeps, so every bit of a result is that of any integer
engine. The inner dimension is cut into blocks for that (`core.fp8_moduli`, `docs/internals/fp8-residues.md`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core.engine_names import SIMULATED
from prismm.core.fp8_moduli import FAMILIES, DigitFamily, DigitTable, block_length, digit_table, family_of, fp8_system
from prismm.cpu.engines.base import Proof
from prismm.errors import ArgumentError, EngineError
from prismm.formats import INT8, INT32, Format
from prismm.numerics.bounds import unbounded
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.core.moduli import ResidueSystem
    from prismm.cpu.engines.simulated_integers import SimulatedInt8Engine
    from prismm.numerics.model import EngineModel

__all__ = ["SimulatedFp8Engine", "exact_sums", "refusal", "residue_engine"]

SUFFIX = ".fp8"
"""simulated:DEVICE.fp8 has the device's products of e4m3 with sums in FP32."""


def exact_sums(model: EngineModel) -> int:
    """2^w such that sums of products of integers are exact if the magnitudes of the products add up to at most that.

    All terms are integers. A term that is cut off below 2^(E - F) loses nothing while E <= F, and a sum of at most 2^p
    in magnitude is a value of a format of p significand bits. Before the last nonzero product is added the running
    sum is below 2^w, so with w <= F + 1 its exponent is at most F. After it only zeros are added to what may be 2^w
    itself, which has no low bits to lose. So w = min(p, F + 1), p the least precision of the formats that sums pass. A
    `LateJoin` cuts group sums and c once more: w is at most each of its widths.

    >>> from prismm.numerics.catalogue import engine
    >>> names = "b200-tcgen05.e4m3.fp32", "h100-wgmma.e4m3.fp32", "mi300.e4m3fnuz.fp32", "b200-mma.e4m3.fp16"
    >>> [exact_sums(engine(name)).bit_length() - 1 for name in names]
    [24, 14, 24, 11]
    """
    assert isinstance(model.output, Format)
    widths = [model.sums.precision, model.output.precision]
    if model.fraction_bits is not None:
        widths.append(model.fraction_bits + 1)
    if isinstance(model.join, LateJoin):
        join = model.join
        assert model.fraction_bits is not None
        widths += [model.fraction_bits, join.sum_bits, join.accumulator_bits, join.total_bits]
        widths += [] if join.cutoff is None else [join.cutoff]
    return int(2 ** min(widths))


def refusal(model: EngineModel) -> str | None:
    """Why the model cannot multiply residues by digits of e4m3; None where it can.

    >>> from prismm.numerics.catalogue import engine
    >>> refusal(engine("b200-tcgen05.e4m3.fp32")) is None
    True
    >>> refusal(engine("b200-tcgen05.e5m2.fp32"))
    'its inputs are e5m2, which has no 9: digits of residues are integers of four significand bits'
    """
    reason = unbounded(model)
    if reason is not None:
        return reason
    assert isinstance(model.input, Format)
    if model.input.precision < 4:
        return (
            f"its inputs are {model.input.name}, which has no 9: digits of residues are integers of four significand "
            "bits"
        )
    capacity = exact_sums(model)
    family = family_of(capacity)
    least = min((each.largest for each in FAMILIES), default=0)
    if family is None:
        return (
            f"its sums are exact up to {capacity} only, less than one instruction of {model.instruction_depth} "
            f"products of digits up to {least} may reach"
        )
    if model.instruction_depth * family.largest**2 > capacity:
        return f"an instruction of {model.instruction_depth} products may reach more than {capacity}, and be inexact"
    if model.input.max < family.largest:
        return f"its inputs end at {model.input.max:g}, and digits of residues reach {family.largest}"
    if model.subnormal_inputs != "keep" and model.input.smallest_normal > 1.0:
        return "its inputs flush small integers to zero"
    return None


@dataclass(frozen=True)
class SimulatedFp8Engine:
    """An `Engine` that multiplies residues by products of e4m3 digits, as its model says.

    Attributes:
        name: the engine's name.
        model: how it multiplies and adds; one that `refusal` has no objection to.
        dtype: element type of residues.
        sum_dtype: element type of the products' residues.
    """

    name: str
    model: EngineModel
    dtype: str = "float64"
    sum_dtype: str = "float64"

    @property
    def family(self) -> DigitFamily:
        """Moduli and digits for sums as long as the model keeps them."""
        found = family_of(exact_sums(self.model))
        assert found is not None
        return found

    @property
    def largest_modulus(self) -> int:
        """The largest modulus of the family."""
        return self.family.triples[0][0]

    def system(self, moduli: int) -> ResidueSystem:
        """The residue number system for the scheme of `moduli` moduli."""
        return fp8_system(moduli, self.family)

    def products(self, system: ResidueSystem) -> int:
        """How many products of FP8 matrices a product of residues takes."""
        return sum(len(self.table(q).weights) for q in system.moduli)

    def table(self, modulus: int) -> DigitTable:
        """Digits of the residues of a modulus."""
        return digit_table(modulus, self.family)

    def block(self, modulus: int) -> int:
        """Terms of the inner dimension whose sum is exact."""
        return block_length(self.table(modulus), exact_sums(self.model), self.model.instruction_depth)

    def prove(self) -> Proof:
        """Digits of every modulus, as extreme as they are, in blocks as long as they are, against exact integers.

        Full blocks of the largest digits of one sign reach the capacity, and the odd digit at their end is what a unit
        that keeps fewer bits drops. Blocks of more than 4,096 terms are of digits up to 61: of these only the modulus
        with the longest is tested in full.
        """
        import numpy as np

        rng = np.random.default_rng(20260101)
        moduli = (*(q for q, _ in self.family.triples), *sorted({q for some in self.family.singles for q in some}))
        longest = max(moduli, key=self.block)
        for q in moduli:
            table, block = self.table(q), self.block(q)
            k = block + 3 if block <= 4096 or q == longest else 515
            for digits in table.digits[: 1 if q == longest else None]:
                x = rng.choice(digits, (4, k))
                y = rng.choice(digits, (k, 3))
                top = digits[np.argmax(np.abs(digits))]
                x[0], x[1], y[:, 0] = top, np.where(np.arange(k) % 2, top, -top), top
                odd = min(k, block) - 1
                x[2], y[:, 1] = top, top
                x[2, odd] = y[odd, 1] = 1
                found = self._sum(x.astype(np.float64), y.astype(np.float64), block)
                if not np.array_equal(found, x @ y):
                    return Proof(False, f"inexact on extreme digits modulo {q}, in blocks of {block}")
        return Proof(True, "exact on extreme digits")

    def multiply(
        self,
        left: NDArray[np.float64],
        right: NDArray[np.float64],
        out: NDArray[np.float64],
        moduli: tuple[int, ...],
    ) -> None:
        """out[q] ≡ left[q] (m, k) @ right[q] (k, n) modulo q, as symmetric residues."""
        import numpy as np

        for x, y, z, q in zip(left, right, out, moduli, strict=True):
            table, block = self.table(q), self.block(q)
            rows, columns = (np.mod(residues.astype(np.int64), q) for residues in (x, y))
            total = np.zeros(z.shape, np.int64)
            for weight, digits in zip(table.weights, table.digits.astype(np.float64), strict=True):
                # A weight is below q, and a sum of FP8 products far below 2^51 for every k that fits in memory.
                total += weight * np.mod(self._sum(digits[rows], digits[columns], block), q)
            residue = np.mod(total, q)
            z[...] = np.where(residue > q // 2, residue - q, residue)

    def _sum(self, left: NDArray[np.float64], right: NDArray[np.float64], block: int) -> NDArray[np.int64]:
        """left (m, k) @ right (k, n): the engine's sums of blocks, added as integers."""
        import numpy as np

        total = np.zeros((left.shape[0], right.shape[1]), np.int64)
        for h in range(0, left.shape[1], block):
            total += self.product(left[:, h : h + block], right[h : h + block], 1).astype(np.int64)
        return total

    def product(self, left: NDArray[np.float64], right: NDArray[np.float64], workers: int) -> NDArray[np.float64]:
        """left (m, k) @ right (k, n), k at least 1, as the engine makes it in one run of instructions."""
        import numpy as np

        from prismm.numerics import products

        x, y = np.ascontiguousarray(left), np.ascontiguousarray(right)
        found = products.columnwise(self.model, x, y, workers)
        return products.gemm(self.model, x, y, None, 1, None, workers) if found is None else found


@functools.lru_cache(maxsize=64)
def residue_engine(name: str) -> SimulatedFp8Engine | SimulatedInt8Engine:
    """The simulated engine of residues of this name: by INT8 products where the name's models have them, else by FP8.

    Args:
        name: simulated:DEVICE, simulated:DEVICE.fp8, simulated:DEVICE.INPUT.OUTPUT or simulated:PATH.json.

    Raises:
        ArgumentError: for an unknown name, or a file that cannot be read or holds no model.
        EngineError: for one that has neither products, or FP8 products that are not exact.

    >>> residue_engine("simulated:b200-tcgen05.fp8").model.name
    'b200-tcgen05.e4m3.fp32'
    """
    from prismm.cpu.engines import simulated, simulated_integers
    from prismm.numerics import catalogue

    fp8 = name.endswith(SUFFIX)
    device = name.removeprefix(SIMULATED).removesuffix(SUFFIX if fp8 else "")
    if fp8 and device not in catalogue.devices():
        simulated.engine(SIMULATED + device)  # which says what is wrong with an unknown name
        raise ArgumentError(f"engine={name!r}: {device!r} is no device of the catalogue; name its model instead")
    models = catalogue.models_of(device) if device in catalogue.devices() else simulated.engine(name).models
    if not fp8 and any((m.input, m.output) == (INT8, INT32) for m in models):
        return simulated_integers.engine(name)
    candidates = [m for m in models if isinstance(m.input, Format) and m.input.bits == 8]
    if not candidates:
        if fp8:
            raise EngineError(
                f"engine {name!r} has no FP8 products; pass one that does, such as 'simulated:b200-tcgen05.fp8', or "
                "engine='cpu'"
            )
        return simulated_integers.engine(name)
    reasons = {model.name: refusal(model) for model in candidates}
    for model in candidates:
        if reasons[model.name] is None:
            return SimulatedFp8Engine(name, model)
    all_reasons = "; ".join(f"{model}: {reason}" for model, reason in reasons.items())
    raise EngineError(
        f"engine {name!r} multiplies no residues: {all_reasons}. Pass one that does, such as "
        "'simulated:b200-tcgen05.fp8', or engine='cpu'"
    )
