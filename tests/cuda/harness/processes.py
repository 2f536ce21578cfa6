"""Kernels of a GPU where there is none: cases that are interpreted or compiled, in one process of each kind."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cuda.harness import evidence

FRESH = "PRISMM_TEST_ALL"
"""An environment variable: every case runs, and is compared with the record."""


class Server:
    """A process of `tests.cuda.harness.server`."""

    def __init__(self, kind: str, folder: Path = evidence.FOLDER, **environment: str) -> None:
        self.folder, self.ended = folder, False
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.cuda.harness.server", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=evidence.ROOT,
            env={**os.environ, "TRITON_DUMP_PTXAS_LOG": "1", **environment},
        )  # fmt: skip
        atexit.register(self.close)

    def ask(self, module: str, arguments: list[str], fresh: bool) -> dict[str, Any]:
        """The cases of a module and which of them ran."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"module": module, "arguments": arguments, "fresh": fresh, "folder": str(self.folder)}
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
            assert line, "the server ended"
            found: dict[str, Any] = json.loads(line)
        except BaseException:
            # The answer may still come, to whoever asks next: so nobody asks this process any more.
            self.close()
            raise
        return found

    def close(self) -> None:
        """End the process."""
        self.ended = True
        self._process.kill()
        self._process.communicate()


_SERVERS: dict[str, Server] = {}


def _server(kind: str) -> Server:
    if kind not in _SERVERS or _SERVERS[kind].ended:
        _SERVERS[kind] = Server(kind)
    return _SERVERS[kind]


def facts(kind: str, module: str, *arguments: str, server: Server | None = None) -> list[dict[str, Any]]:
    """What the cases of a module have for facts, from the record where their hashes stand there.

    Cases that ran are recorded. On CI a case of the record whose hash is another by now fails, since whoever changes
    what it follows from commits the evidence with the change.
    """
    asked = server or _server(kind)
    found = asked.ask(module, list(arguments), bool(os.environ.get(FRESH)))
    assert "error" not in found, found["error"]
    known = evidence.read(module, asked.folder)
    cases: evidence.Cases = {name: (key, told) for name, (key, told) in found["cases"].items()}
    prefix = " ".join(arguments)
    committed = {name: known[name][0] for name in known if name.startswith(f"{prefix} [")}
    stale = [name for name, key in committed.items() if name not in cases or cases[name][0] != key]
    if os.environ.get("CI"):
        assert not stale, f"evidence of {module} is of other sources: `make evidence`, and commit it; {stale[:5]}"
    elif {name: key for name, (key, _) in cases.items()} != committed:
        evidence.write(module, prefix, cases, asked.folder)
    return [told for _, told in cases.values()]


def interpreted(name: str, *arguments: str) -> list[dict[str, Any]]:
    """The facts of `interpreted_<name>`, in Triton's interpreter."""
    return facts("interpreter", f"interpreted_{name}", *arguments)


def compiled(name: str, *arguments: str) -> list[dict[str, Any]]:
    """The facts of `compiled_<name>`, by Triton's compiler."""
    return facts("compiler", f"compiled_{name}" if name else "compiled", *arguments)


def lines_of(module: str) -> list[Any]:
    """What a module of the tests prints in a process of its own, lines of JSON."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.cuda.harness.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=evidence.ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
