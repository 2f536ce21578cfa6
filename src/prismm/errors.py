"""The exceptions that prismm raises: few, and each also an instance of the built-in it refines.

Every message says what is wrong, the value met, and what to pass instead.
"""


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


class FileError(PrismmError, OSError):
    """A file that cannot be read, or a target that cannot be written."""
