"""What the commands are pointed at: models by name or in files, the GPU's instructions, functions of the user's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError, EngineError, FileError, PrismmError

if TYPE_CHECKING:
    from prismm.formats import Format, Integer
    from prismm.numerics.model import EngineModel

_GPU = "gpu"


@dataclass(frozen=True)
class Target:
    """Something that computes dot products.

    Args:
        name: as the user wrote it.
        dot: d = dot(a, b, c) of float64 arrays (n, k), (n, k) and (n,).
        input, output: its formats.
        model: what it computes, where that is known.
    """

    name: str
    dot: Callable[..., Any]
    input: Format | Integer
    output: Format | Integer
    model: EngineModel | None = None


def model_of(text: str) -> EngineModel:
    """The model that a name of the catalogue, or a JSON file, stands for.

    Raises:
        FileError: for a file that cannot be read or holds no model.
        ArgumentError, EngineError: for a name without a model.
    """
    from prismm.numerics import EngineModel, engine

    path = Path(text)
    if not _is_file(text):
        return engine(text)
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{path}: no model: it is not text; pass what EngineModel.to_json wrote") from None
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"{text!r}: {error}; pass the name of a file") from None
    try:
        return EngineModel.from_json(content)
    except ArgumentError as error:
        raise FileError(f"{path}: {error}") from error


def _is_file(text: str) -> bool:
    """Whether a file is meant: by its ending, or because there is one of this name."""
    try:
        return text.lower().endswith(".json") or Path(text).is_file()
    except OSError:  # no file can have such a name
        return False


def targets_of(text: str, input: str | None, output: str | None) -> list[Target]:
    """The black boxes that a TARGET means: one, or for "gpu" all instructions that this machine's GPU has.

    Args:
        text: "gpu", "gpu:INSTRUCTION", "module:function", a JSON file or a name of the catalogue.
        input, output: formats, of functions only.

    Raises:
        ArgumentError: for an unknown name or format, or a function that cannot be imported.
        EngineError: without a GPU, or where it lacks the instruction.
        FileError: for a file that holds no model.
    """
    is_file = _is_file(text)
    is_gpu = text == _GPU or text.startswith(f"{_GPU}:")
    is_function = ":" in text and not is_gpu and not is_file
    if not is_function and (input is not None or output is not None):
        raise ArgumentError(f"--input and --output are for functions; {text} has formats of its own")
    if is_gpu:
        return _instructions(text)
    if is_function:
        return [_function(text, input, output)]
    model = model_of(text)
    if model.scale is not None:
        raise ArgumentError(
            f"{text} has block scales, which a black box dot(a, b, c) does not take; pass another engine"
        )
    return [Target(text, model.dot, model.input, model.output, model)]


def _instructions(text: str) -> list[Target]:
    """One instruction of the GPU, or all that it has."""
    from prismm.numerics.hardware import engine as hardware

    if text != _GPU:
        engines = [hardware.find(text.partition(":")[2])]
    else:
        known = hardware.available()
        names = [name for name, (usable, _) in known.items() if usable]
        if not names:
            raise EngineError(f"no instruction can be run here: {next(why for _, why in known.values())}")
        engines = [hardware.find(name) for name in names]
    return [Target(f"{_GPU}:{engine.name}", engine, engine.input, engine.output) for engine in engines]


def _function(text: str, input: str | None, output: str | None) -> Target:
    """A function of the user's, from the working directory or from what is installed."""
    import numpy as np

    from prismm.formats import format_named

    if input is None or output is None:
        raise ArgumentError(f"{text} is a function; pass its formats too, e.g. --input fp16 --output fp32")
    formats = format_named(input), format_named(output)
    home, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(home)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"{text}: {error}; pass module:function, of the working directory or installed") from error
    except PrismmError:
        raise
    except (Exception, SystemExit) as error:
        raise ArgumentError(f"{text}: importing {home} raised {type(error).__name__}: {error}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ArgumentError(f"{text}: {home} has no function {name!r}; pass module:function")

    def dot(a: Any, b: Any, c: Any) -> Any:
        try:
            d = found(a, b, c)
        except (Exception, SystemExit) as error:
            raise EngineError(f"{text} raised {type(error).__name__}: {error}") from error
        try:
            return np.asarray(d)
        except Exception as error:
            raise EngineError(
                f"{text} returned no array: {error}; return one number for each row of a and b"
            ) from error

    return Target(text, dot, *formats)
