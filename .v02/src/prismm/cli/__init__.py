"""The ``prismm`` command: one subcommand a module, each importing what is heavy when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from prismm.errors import PrismmError


def main() -> None:
    """Run `command` as a process, which Ctrl-C ends at once: Python's own end may wait for threads that compute."""
    try:
        from prismm.cli import ending

        ending.is_process()
        command()
    except KeyboardInterrupt:  # it came while the first modules were imported
        print("prismm: interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    except SystemExit as end:
        from prismm.cli import interrupts

        if interrupts.told() and isinstance(end.code, int):
            os._exit(end.code)
        raise


def command() -> None:
    """Run the command line: exit 0 when done, 2 for bad input or usage, 1 for a failure, 130 where interrupted."""

    def run() -> None:
        from prismm.cli import interrupts, streams

        with interrupts.prompt():
            from prismm.cli.app import app

            try:
                app(prog_name="prismm")
            finally:
                streams.flush()  # while an error can be told: Python would only complain at its end

    reported(run)


def reported(run: Callable[[], None]) -> None:
    """Run a part of the command; its errors are one line each, and SystemExit with their code."""
    from prismm.cli import interrupts, streams
    from prismm.cli.console import say

    with streams.ready():
        try:
            run()
        except PrismmError as error:
            say(f"error: {' '.join(str(error).split())}")
            sys.exit(2)
        except KeyboardInterrupt:
            interrupts.tell()
            sys.exit(interrupts.EXIT_CODE)
        except MemoryError as error:
            say(f"error: not enough memory: {error}")
            sys.exit(1)
        except OSError as error:
            say(f"error: {error}")
            sys.exit(1)
