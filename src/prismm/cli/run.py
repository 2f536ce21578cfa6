"""``prismm run``: an unchanged script with its products made by a policy, then a table of every one of them."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from prismm.cli import interrupts, options, streams
from prismm.cli.console import print_json, say
from prismm.cli.run_table import text_of
from prismm.errors import ArgumentError, FileError


def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python program that uses torch.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS...", help="Its arguments.")] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A policy, as prismm.Policy.save or `prismm tune` writes it.")
    ] = None,
    accuracy: options.Accuracy = None,
    scheme: options.Scheme = None,
    reproducible: options.Reproducible = False,
    engine: options.Engine = None,
    off: Annotated[bool, typer.Option("--off", help="Leave every product to torch, and only report.")] = False,
    decompose_attention: Annotated[
        bool, typer.Option("--decompose-attention", help="Make fused attention of products, which are then covered.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the table and a chart.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON; what the script prints goes to stderr.")
    ] = False,
) -> None:
    """Run a script with its matrix products made by a policy or to an accuracy, and list every product.

    The default is --accuracy native. The exit code is the script's own.
    """
    from prismm.cli.documents import check_new, write_new

    chosen = _policy(policy, accuracy, scheme, reproducible, engine, off)
    if not script.is_file():
        raise FileError(f"{script}: there is no such script")
    if html is not None:
        check_new(html, force)
    import prismm

    block = prismm.emulate(chosen, attention="decomposed" if decompose_attention else "fused")
    code = _execute(script, arguments or [], block, sys.stderr if json else sys.stdout)
    record = block.record
    words = [str(script), *(arguments or [])]
    if json:
        print_json({"script": str(script), "arguments": arguments or [], "exit": code, **record.to_dict()})
    else:
        print(text_of(record))
    if html is not None:
        from prismm.cli.html.run import run_page

        write_new(html, run_page(record, " ".join(words)), force)
        say(f"wrote {html}")
    if code:
        raise typer.Exit(code)


def _policy(
    file: Path | None, accuracy: str | None, scheme: str | None, reproducible: bool, engine: str | None, off: bool
) -> Any:
    """The policy that the options ask for."""
    from prismm.programs import Policy, Rule

    others = accuracy is not None or scheme is not None or reproducible or engine is not None
    if (file is not None) + others + off > 1:
        raise ArgumentError(
            "--policy, --off, and --accuracy with --scheme, --reproducible and --engine: pass one of them"
        )
    if file is not None:
        return Policy.load(file)
    if off:
        return Policy((Rule(off=True),))
    keywords = options.matmul_options(accuracy, scheme, reproducible, None, engine, None)
    return Policy.of(
        keywords["accuracy"], scheme=keywords["scheme"], reproducible=reproducible, engine=engine
    )  # fmt: skip


def _execute(script: Path, arguments: list[str], block: Any, stdout: TextIO) -> int:
    """Run the script as Python would, in the block; its exit code. stdout: what takes the script's own."""
    import runpy

    try:
        with _as_program(script, arguments, stdout), block:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("interrupted; what ran until then:")
        return interrupts.EXIT_CODE
    except Exception as error:
        _print_traceback(error, script)
        return 1
    return 0


@contextlib.contextmanager
def _as_program(script: Path, arguments: list[str], stdout: TextIO) -> Iterator[None]:
    """Arguments, streams and signals as the script would find them without us."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    stdout.flush()
    with (
        contextlib.redirect_stdout(streams.given(stdout)),
        contextlib.redirect_stderr(streams.given(sys.stderr)),
        interrupts.left_alone(),
    ):
        try:
            yield
        finally:
            sys.argv, sys.path[:] = argv, path
            with contextlib.suppress(OSError, ValueError):  # the script's streams are the script's affair
                sys.stdout.flush()


def _print_traceback(error: Exception, script: Path) -> None:
    """The traceback from the script's own first line on."""
    place = error.__traceback__
    while place is not None and Path(place.tb_frame.f_code.co_filename).resolve() != script.resolve():
        place = place.tb_next
    traceback.print_exception(type(error), error, place or error.__traceback__)
