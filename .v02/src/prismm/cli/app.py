"""The subcommands, and the options of the whole."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from prismm import __version__
from prismm.cli import (
    bench,
    calibrate,
    check,
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
    warm,
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
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = {
    "Products": (multiply.multiply, check.check, explain.explain, demo.demo, bench.bench),
    "Programs": (tune.tune,),
    "Engines": (env.env, warm.warm, calibrate.calibrate, simulate.simulate, probe.probe),
    "Papers": (reproduce.reproduce,),
}
"""The commands by subject, as help lists them."""


def _help(command: Callable[..., None]) -> str:
    """The command's docstring, each paragraph on one line: a terminal's width breaks it, and nothing else."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(command) or "").split("\n\n"))


for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(help=_help(_command), rich_help_panel=_panel)(_command)
    if _panel == "Programs":
        # Arguments after the script's name are the script's.
        app.command(help=_help(run.run), rich_help_panel=_panel, context_settings={"allow_interspersed_args": False})(
            run.run
        )


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
