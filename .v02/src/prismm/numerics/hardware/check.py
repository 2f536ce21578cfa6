"""The proof of an instruction's kernel on this machine, before any of its results is believed.

It shows that fragments stand where the layouts say (a one-hot factor picks every k at every row and column, from
patterns that differ by k and by column), that C and D stand so too, that the position changes no bit of hostile
products, and, where there is a disassembler, that the instruction meant is the one that runs. A permutation of k that A
and B have in common is beyond it: nothing but the PTX ISA says which k is the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.errors import EngineError
from prismm.formats import Format, Integer
from prismm.numerics.encodings import decode, encode
from prismm.numerics.hardware import device
from prismm.numerics.hardware.engine import HardwareEngine, sass
from prismm.numerics.hostile import vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Check", "check", "distinct"]


@dataclass(frozen=True)
class Check:
    """What was proved.

    Args:
        instruction: its name.
        positions: (row, column) pairs, all of D.
        picked: one-hot products, each right.
        moved: hostile dot products that gave the same bits at every position.
        sass: mnemonics of the kernel's matrix instructions; None without a disassembler.
    """

    instruction: str
    positions: int
    picked: int
    moved: int
    sass: tuple[str, ...] | None


def distinct(format: Format | Integer, count: int) -> NDArray[Any]:
    """Patterns of ``count`` different positive values, from 1 up; whole where there are enough of these.

    >>> from prismm.formats import E5M2
    >>> decode(distinct(E5M2, 6), E5M2).tolist(), decode(distinct(E5M2, 9), E5M2).tolist()[:6]
    ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 1.25, 1.5, 1.75, 2.0, 2.5])
    """
    import numpy as np

    if isinstance(format, Integer) or count < 2**format.precision:
        return encode(np.arange(1, count + 1), format)
    return int(encode(1.0, format)) + np.arange(count)


def _failed(engine: HardwareEngine, what: str) -> EngineError:
    return EngineError(f"{engine!r} is not proved: {what}; do not use its results, and report this")


def check(engine: HardwareEngine, samples: int = 32) -> Check:
    """Prove an instruction's kernel.

    Args:
        engine: of the instruction.
        samples: hostile dot products to move to every position.

    Raises:
        EngineError: if an answer is wrong, a position changes one, or another instruction runs.
    """
    import numpy as np

    one = engine.instruction
    groups = one.m * one.k
    count = groups * one.n
    index = np.arange(count)
    # Group g has turn g mod m and picks k number (g // m + column) mod k, so that columns differ in it.
    pick = (index // (one.n * one.m) + index % one.n) % one.k
    hot = np.zeros((count, one.k), np.int64)
    hot[index, pick] = int(encode(1.0, one.input))
    spread = distinct(one.input, one.k)[(np.arange(one.k) + 3 * (index % one.n)[:, None]) % one.k]
    wanted = decode(spread[index, pick], one.input)
    nothing = np.zeros(count, np.int64)
    for a, b in ((hot, spread), (spread, hot)):
        found = decode(engine.bits(a, b, nothing, turn_step=1), one.output)
        wrong = np.flatnonzero(found != wanted)
        if wrong.size:
            at = int(wrong[0])
            raise _failed(
                engine,
                f"{wrong.size} of {count} one-hot products are wrong, first k {int(pick[at])} of column {at % one.n}, "
                f"turn {at // one.n % one.m}: {found[at]!r} where {wanted[at]!r} belongs",
            )
    starts = encode(1.0 + index % 1021, one.output)
    kept = engine.bits(np.zeros((count, one.k), np.int64), np.zeros((count, one.k), np.int64), starts, turn_step=1)
    if not np.array_equal(kept, starts):
        raise _failed(
            engine, f"{int((kept != starts).sum())} of {count} values of C do not come back through 0 · 0 + C"
        )
    for number, factor in enumerate((1, 2)):
        _moved(engine, samples, factor * one.k, seed=20 + number)
    mnemonics = sass(one)
    expected = one.mnemonic(device.gpu().capability)
    if mnemonics is not None and not (mnemonics and all(m.startswith(expected) for m in mnemonics)):
        raise _failed(
            engine, f"its machine code holds {', '.join(mnemonics) or 'no matrix instruction'}, no {expected}"
        )
    return Check(one.name, one.m * one.n, 2 * count, 2 * samples, mnemonics)


def _moved(engine: HardwareEngine, samples: int, length: int, seed: int) -> None:
    """Every sample at every position: n columns of a group times m turns."""
    import numpy as np

    one = engine.instruction
    a, b, c = vectors(one.input, one.output, length, samples, seed)
    copies = one.m * one.n
    left, right, start = (np.repeat(x, copies, axis=0) for x in (a, b, c))
    found = engine.bits(left, right, start, turn_step=1).reshape(samples, copies)
    unlike = np.flatnonzero((found != found[:, :1]).any(1))
    if unlike.size:
        row = found[int(unlike[0])]
        raise _failed(
            engine,
            f"{unlike.size} of {samples} dot products depend on where they stand, the first gives "
            + ", ".join(hex(int(x)) for x in np.unique(row)[:4]),
        )
