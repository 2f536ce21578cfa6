"""An instruction of this machine's GPU as an engine: dot products of its formats, as bit patterns or as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError, EngineError, ShapeError
from prismm.formats import Format, Integer
from prismm.numerics.encodings import decode, encode, storage
from prismm.numerics.hardware import device
from prismm.numerics.hardware.instructions import INSTRUCTIONS, Instruction, instruction_named, obstacle

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["HardwareEngine", "available", "find", "sass"]

_CHUNK_BYTES = 1 << 27


class HardwareEngine:
    """Dot products by one matrix instruction of this machine's GPU.

    Longer products than the instruction's k chain it: D of one block of k is C of the next. Shorter ones are padded
    with +0, and 0 · 0 is added like any other product.

    Args:
        instruction: an `Instruction`, or the name of one.

    Raises:
        ArgumentError: for an unknown name.
        EngineError: without cuda-core, without a GPU, or if this GPU does not have the instruction.
    """

    def __init__(self, instruction: Instruction | str) -> None:
        self.instruction = instruction_named(instruction) if isinstance(instruction, str) else instruction
        why = obstacle(self.instruction, device.gpu().capability)
        if why:
            raise EngineError(f"{why}; pass another instruction (available() lists them), or simulate this one")

    def __repr__(self) -> str:
        return f"HardwareEngine({self.name!r}) on {device.gpu().name}"

    @property
    def name(self) -> str:
        """The instruction's name."""
        return self.instruction.name

    @property
    def input(self) -> Format | Integer:
        """Format of the factors."""
        return self.instruction.input

    @property
    def output(self) -> Format | Integer:
        """Format of what is added to, and of the result."""
        return self.instruction.output

    @property
    def k(self) -> int:
        """Products in one instruction."""
        return self.instruction.k

    def bits(
        self, a: ArrayLike, b: ArrayLike, c: ArrayLike, turn: int = 0, turn_step: int = 0
    ) -> NDArray[np.unsignedinteger[Any]]:
        """D of each problem, as bit patterns.

        Args:
            a: patterns of the input format, (count, length).
            b: the same.
            c: patterns of the output format, (count,).
            turn: rows by which problems are moved within the instruction's m; changes no bit of the results.
            turn_step: rows by which every next group of n problems is moved further.

        Returns:
            Patterns of the output format, (count,).

        Raises:
            ShapeError: for other shapes.
            ArgumentError: for integers that are not patterns of the formats.
            EngineError: if the launch fails.
        """
        import numpy as np

        left, right, start = np.asarray(a), np.asarray(b), np.asarray(c)
        if left.ndim != 2 or right.shape != left.shape or start.shape != left.shape[:1]:
            raise ShapeError(
                f"patterns of shapes {left.shape}, {right.shape} and {start.shape} are no batch of dot products; pass "
                "(count, length), (count, length) and (count,)"
            )
        for x, format in ((left, self.input), (right, self.input), (start, self.output)):
            if x.size and (x.dtype.kind not in "iu" or int(x.min()) < 0 or int(x.max()) >> format.bits):
                raise ArgumentError(
                    f"bit patterns of {format.name} are integers from 0 to 2^{format.bits} - 1; pass those"
                )
        count, length = left.shape
        padded = max(1, -(-length // self.k)) * self.k
        n, kind = self.instruction.n, storage(self.input)
        step = max(1, _CHUNK_BYTES // (padded * kind.itemsize * n)) * n  # whole groups
        found = np.empty(count, storage(self.output))
        for first in range(0, count, step):
            last = min(first + step, count)
            pair = np.zeros((2, last - first, padded), kind)
            pair[0, :, :length] = left[first:last]
            pair[1, :, :length] = right[first:last]
            moved = turn + first // n * turn_step
            found[first:last] = device.multiply_bits(
                self.instruction, pair[0], pair[1], start[first:last], moved % self.instruction.m, turn_step
            )
        return found

    def dot(self, a: ArrayLike, b: ArrayLike, c: ArrayLike = 0.0) -> NDArray[np.float64]:
        """D of each problem, as values.

        Args:
            a: values of the input format, (count, length).
            b: the same.
            c: values of the output format, (count,) or a scalar.

        Raises:
            ArgumentError: for values that the formats do not have; nothing is rounded.
            ShapeError: for other shapes.

        NaN is passed as the format's canonical NaN.
        """
        import numpy as np

        left = encode(a, self.input)
        start = np.broadcast_to(encode(c, self.output), left.shape[:1])
        return decode(self.bits(left, encode(b, self.input), start), self.output)

    __call__ = dot


def find(name: str) -> HardwareEngine:
    """The engine of an instruction's name.

    Raises:
        ArgumentError: for an unknown name, with those there are.
        EngineError: if it cannot run here, with the reason.
    """
    return HardwareEngine(name)


def available() -> dict[str, tuple[bool, str]]:
    """For every instruction: whether this machine can run it, and why not."""
    try:
        capability = device.gpu().capability
    except EngineError as error:
        return {instruction.name: (False, str(error)) for instruction in INSTRUCTIONS}
    reasons = {instruction.name: obstacle(instruction, capability) for instruction in INSTRUCTIONS}
    return {name: (not why, why) for name, why in reasons.items()}


def sass(instruction: Instruction | str, arch: str | None = None) -> tuple[str, ...] | None:
    """The matrix instructions that the compiler makes of an instruction's kernel, in order.

    Args:
        instruction: an `Instruction`, or the name of one.
        arch: to compile for, such as "sm_90a"; None: this machine's GPU.

    Returns:
        Mnemonics, or None where there is no nvdisasm or cuobjdump (on PATH, or in Triton's package).

    Raises:
        ArgumentError: for an unknown name.
        EngineError: without cuda-core and NVRTC, or without a GPU where ``arch`` is None.
    """
    chosen = instruction_named(instruction) if isinstance(instruction, str) else instruction
    return device.mnemonics(device.compile_cubin(chosen, arch))
