"""The ``prismm`` command: one subcommand a module, each importing what is heavy when it runs."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Annotated

import typer

from prismm import __version__
from prismm.cli import bench, calibrate, demo, env, explain, multiply, probe, reproduce, run, simulate, tune
from prismm.cli.console import say
from prismm.errors import FileError, PrismmError

app = typer.Typer(
    name="prismm",
    help="Multiply matrices to a stated accuracy, with a certificate for every entry.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    multiply.multiply,
    explain.explain,
    env.env,
    bench.bench,
    calibrate.calibrate,
    demo.demo,
    reproduce.reproduce,
    simulate.simulate,
    probe.probe,
    tune.tune,
)
for _command in _COMMANDS:
    app.command()(_command)
# What follows the script's name is the script's.
app.command(context_settings={"allow_interspersed_args": False})(run.run)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"prismm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Multiply matrices to a stated accuracy, with a certificate for every entry."""


def _run() -> None:
    """Run it, and write out what stdout still holds while an error can be told: Python would only complain at its end.

    Raises:
        FileError: where stdout cannot be written, a full disk say.
    """
    try:
        try:
            app(prog_name="prismm")
        finally:
            if sys.stdout is not None:  # None: it was closed
                sys.stdout.flush()
    except PrismmError:
        raise
    except OSError as error:
        if error.filename is not None:  # no stream's
            raise
        with contextlib.suppress(OSError, ValueError):  # what stdout still holds goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # whoever reads has seen enough
            sys.exit(1)
        raise FileError(f"stdout cannot be written: {error.strerror or error}; send it elsewhere") from error


def main() -> None:
    """Run the command line: exit 0 when done, 2 for bad input or usage, 1 for a failure."""
    try:
        _run()
    except PrismmError as error:
        say(f"error: {' '.join(str(error).split())}")
        sys.exit(2)
    except MemoryError as error:
        say(f"error: not enough memory: {error}; a smaller --memory makes smaller tiles")
        sys.exit(1)
