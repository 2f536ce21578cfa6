"""The subcommands, and the options of the whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from prismm import __version__
from prismm.cli import (
    bench,
    calibrate,
    demo,
    env,
    explain,
    interrupts,
    multiply,
    probe,
    reproduce,
    run,
    simulate,
    tune,
)


class _Group(TyperGroup):
    """The command, which says that it was interrupted as its subcommands say everything."""

    def make_context(self, *args: Any, **keywords: Any) -> Any:
        """Read the command line."""
        with _told():
            return super().make_context(*args, **keywords)

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand. ctx: typer's own, or click's, by typer's version."""
        with _told():
            return super().invoke(ctx)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        interrupts.tell()
        raise typer.Exit(interrupts.EXIT_CODE) from None


app = typer.Typer(
    name="prismm",
    cls=_Group,
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
