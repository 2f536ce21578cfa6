"""A process that interprets or compiles the cases of many modules, one after the other.

    python -m tests.cuda.harness.server {interpreter,compiler}

Reads a line of JSON for each module, {"module", "arguments", "fresh"}, and answers with one: {"cases", "ran"} or
{"error"}. What is patched for the interpreter stays so; the imports and a CPU's own kernels are there once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1" if sys.argv[1:] == ["interpreter"] else "0"

from tests.cuda.harness import evidence


def follow_interpreter() -> None:
    """Have programs run in Triton's interpreter where their case wants it, and be noted where it does not."""
    import torch

    import prismm
    from prismm.cuda.launch import program as launch
    from tests.cuda.harness import interpreter  # noqa: F401  (patches Triton's)

    run = launch.Program.run_by_triton

    def run_or_note(program: Any, a: Any, b: Any, out: Any, *kept: Any, factors: Any = (), prepare: Any = None) -> Any:
        recorder = evidence.recorder()
        workspace = torch.full((program.workspace,), 0xA5, dtype=torch.uint8)
        if prepare is not None:
            prepare(workspace)
        if recorder is None or recorder.runs:
            return run(program, a, b, out, *kept, factors=factors, prepare=lambda memory: memory.copy_(workspace))
        recorder.note(*evidence.launches(program), repr([int(x) for x in factors]))
        recorder.note(*map(evidence.contents, (a, b, out, *kept)), *([evidence.contents(workspace)] if prepare else []))
        return workspace

    launch.Program.run_by_triton = run_or_note  # type: ignore[method-assign]
    for name in ("matmul", "gemm"):
        setattr(prismm, name, _noting(getattr(prismm, name)))


def _noting(verb: Any) -> Any:
    """A verb whose results on a CPU belong to what cases follow from, where a call promises their bits."""

    def verb_and_note(*arguments: Any, **named: Any) -> Any:
        import numpy as np

        found = verb(*arguments, **named)
        promised = "scheme" in named or "reproducible" in named or named.get("accuracy") == "correctly-rounded"
        if promised and (recorder := evidence.recorder()) is not None:
            recorder.note(evidence.contents(np.asarray(found)))
        return found

    return verb_and_note


class NotCompiled:
    """Stands in for a compiled kernel of a case that is only noted."""

    def __init__(self, key: str) -> None:
        self.hash, self.asm, self.metadata, self.log = key, {"ptx": " "}, self, ""
        self.shared = 0


class Compiled:
    """A compiled kernel by the hash of what it was compiled from, and what the assembler said."""

    def __init__(self, key: str, made: Any, log: str) -> None:
        self.hash, self.asm, self.metadata, self.log = key, made.asm, made.metadata, log


def follow_compiler() -> None:
    """Have programs' kernels compiled where their case wants it, and be noted where it does not."""
    from prismm.cuda.launch import program as launch
    from tests.cuda.offline.compiled import architecture

    compile_all = launch.Program._compile_all

    def compiled(program: Any) -> Iterator[tuple[str, Any]]:
        recorder = evidence.recorder()
        for one in program._kernels():
            one.kernel.device_caches.clear()  # which know one architecture
            text = f"{architecture()} {evidence.specialised(program, one)}"
            if recorder is not None:
                recorder.note(text)
            name = one.kernel.fn.__name__
            if recorder is None or recorder.runs:
                with contextlib.redirect_stdout(_Log()) as log:
                    ((_, made),) = compile_all(program, [one])
                yield name, Compiled(text, made, log.text())
            else:
                yield name, NotCompiled(text)

    launch.Program.compiled = compiled  # type: ignore[method-assign]


class _Log:
    """What Triton prints of the assembler."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)

    def flush(self) -> None:
        pass

    def text(self) -> str:
        return "".join(self.parts)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The cases of one module."""
    name, arguments = request["module"], request["arguments"]
    module = importlib.import_module(f"tests.cuda.offline.{name}")
    known = evidence.read(name, Path(request["folder"]))
    source = Path(str(module.__file__))

    def run(*given: Any) -> None:
        import torch

        torch.manual_seed(0)  # a case that draws by torch's own generator draws the same every time
        module.main(*given)

    with constants_restored():
        cases, ran = evidence.cases_of(name, source, arguments, run, known, request["fresh"])
    return {"cases": cases, "ran": ran}


@contextlib.contextmanager
def constants_restored() -> Iterator[None]:
    """Put numbers and texts of prismm's modules back that a case sets: one module's cases change no other's."""
    kinds = int, float, str, tuple, type(None)
    before = [
        (module, {key: value for key, value in vars(module).items() if type(value) in kinds})
        for name, module in list(sys.modules.items())
        if name.startswith("prismm") and module is not None
    ]
    yield
    for module, values in before:
        vars(module).update(values)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no answer
    follow_interpreter() if sys.argv[1] == "interpreter" else follow_compiler()
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
