"""The exceptions that prismm raises: few, and each also an instance of the built-in it refines.

Every message says what is wrong, the value met, and what to pass instead.
"""

from collections.abc import Collection
from typing import Any


class PrismmError(Exception):
    """Base of every error that prismm raises on purpose."""


class ShapeError(PrismmError, ValueError):
    """Shapes that do not fit together, or an ``out`` of the wrong shape."""


class DTypeError(PrismmError, TypeError):
    """An element type that prismm does not multiply, or cannot return."""


class AccuracyError(PrismmError, ValueError):
    """An unknown accuracy target, or a tolerance that is not finite and positive."""


class ArgumentError(PrismmError, ValueError):
    """An unknown scheme, engine, side or option, or options that exclude each other."""


class OperandError(PrismmError, TypeError):
    """Something that is no array, arrays on different devices, or a prepared operand with the wrong partner."""


class EngineError(PrismmError, RuntimeError):
    """An engine that is missing or failed its proof, or a floating-point environment that spoils exactness."""


class NotCertified(PrismmError, ArithmeticError):
    """A statement of `prismm.linalg` that could not be proved: a singular matrix, or one too close to it.

    Attributes:
        result: the best answer found, unproved where its bound is infinite; None without one.
        report: what is known of it, None without a result.
    """

    def __init__(self, message: str, result: Any = None, report: Any = None) -> None:
        super().__init__(message)
        self.result = result
        self.report = report


class FileError(PrismmError, OSError):
    """A file that cannot be read, or a target that cannot be written."""


def meant(name: str, names: Collection[str]) -> str:
    """In brackets after a name that there is not: those that are most like it, if any is.

    >>> meant("cpu_vnni", ["cpu:vnni", "cpu:int8"]), meant("int8", ["cpu:vnni", "cpu:int8"]), meant("tpu", ["cuda"])
    (" (did you mean 'cpu:vnni'?)", " (did you mean 'cpu:int8'?)", '')
    """
    from difflib import get_close_matches

    wanted = name[:100].lower()
    near = [x for x in names if wanted and x.partition(":")[2] == wanted] or get_close_matches(
        wanted, names, n=3, cutoff=0.75
    )
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
