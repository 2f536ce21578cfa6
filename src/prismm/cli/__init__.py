"""The ``prismm`` command: one subcommand a module, each importing what is heavy when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from prismm import __version__
from prismm.cli import bench, calibrate, demo, env, explain, multiply, probe, reproduce, run, simulate, tune
from prismm.cli.console import say
from prismm.errors import PrismmError

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


def main() -> None:
    """Run the command line: exit 0 when done, 2 for bad input or usage, 1 for a failure."""
    try:
        app(prog_name="prismm")
    except PrismmError as error:
        say(f"error: {' '.join(str(error).split())}")
        sys.exit(2)
    except MemoryError as error:
        say(f"error: not enough memory: {error}; a smaller --memory makes smaller tiles")
        sys.exit(1)
