"""stdout and stderr as every command finds them: open, with a character for everything, and named in their errors.

A stream that was closed would leave its number to the next file that is opened, and whatever prints, a library in C
say, would write into that file: it is opened on the null device. What a stream's encoding lacks is written in ASCII.
Results that cannot be written end the command; words that cannot be written are left out.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from prismm.errors import FileError

_STAND_INS = {
    "·": "*", "×": "x", "−": "-", "…": "...", "⋯": "...", "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "→": "->",
    "½": "1/2", "²": "^2", "‖": "||", "√": "sqrt", "∞": "inf", "§": "section ", "Σ": "sum", "µ": "u", "μ": "u",
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "Δ": "Delta", "ε": "epsilon", "η": "eta", "κ": "kappa",
    "λ": "lambda", "σ": "sigma", "φ": "phi", "₁": "_1", "₂": "_2", "▸": ">", "▾": "v",
}  # fmt: skip


def stand_in(error: UnicodeError) -> tuple[str, int]:
    """ASCII for characters that an encoding lacks, as `codecs.register_error` takes it.

    >>> codecs.register_error("prismm.stand-in", stand_in)
    >>> "|a·b| ≤ K·η, é".encode("ascii", "prismm.stand-in")
    b'|a*b| <= K*eta, \\\\xe9'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    words = (_STAND_INS.get(x) or x.encode("ascii", "backslashreplace").decode() for x in lacking)
    return "".join(words), error.end


class Stream(io.TextIOWrapper):
    """A standard stream, ``given`` by Python, whose buffer it shares.

    Raises:
        FileError: where results cannot be written, on a full disk say. SystemExit: where who read them has gone.
    """

    def __init__(self, given: TextIO, results: bool) -> None:
        wrapper: Any = given
        super().__init__(
            wrapper.buffer,
            wrapper.encoding,
            "prismm.stand-in" if wrapper.errors in ("strict", "backslashreplace") else wrapper.errors,
            line_buffering=wrapper.line_buffering,
            write_through=wrapper.write_through,
        )
        self.given = given
        self._results = results

    def write(self, text: str) -> int:
        """Write it, or see the class."""
        with self._explained():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write what waits, or see the class."""
        with self._explained():
            super().flush()

    def release(self) -> None:
        """Leave the buffer to the stream that was given."""
        self._results = False  # what cannot be written by now was told, or is not to hide another error
        self.detach()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError, ValueError):  # what still waits goes nowhere
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())
                os.close(null)
            if not self._results:
                return
            if error.errno == errno.EPIPE:  # whoever reads has seen enough
                raise SystemExit(1) from None
            why = error.strerror or error
            raise FileError(f"stdout cannot be written: {why}; send it elsewhere") from error


@contextlib.contextmanager
def ready() -> Iterator[None]:
    """stdout and stderr are `Stream`s inside; streams of another kind, which a program in Python put there, stay."""
    codecs.register_error("prismm.stand-in", stand_in)
    before = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    inside: dict[str, Any] = {}

    def restore(name: str) -> None:
        stream = getattr(sys, name)  # one that a script put there stays, for its exit handlers
        if stream is inside.get(name) or (before[name] is None and stream is not None and stream.closed):
            setattr(sys, name, before[name])

    with contextlib.ExitStack() as stack:
        for name, stream in before.items():  # a closed one takes the lowest number, its own
            stack.callback(restore, name)
            if stream is None:
                stream = stack.enter_context(open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))
                os.set_inheritable(stream.fileno(), True)
                setattr(sys, name, stream)
            if name != "stdin" and isinstance(stream, io.TextIOWrapper) and not isinstance(stream, Stream):
                stream.flush()
                ours = Stream(stream, results=name == "stdout")
                stack.callback(ours.release)
                setattr(sys, name, ours)
            inside[name] = getattr(sys, name)
        yield


def flush() -> None:
    """Write results of the command that are still buffered."""
    if isinstance(sys.stdout, Stream):
        sys.stdout.flush()


def given(stream: TextIO) -> TextIO:
    """The stream as Python gave it, for programs that are not ours."""
    return stream.given if isinstance(stream, Stream) else stream
