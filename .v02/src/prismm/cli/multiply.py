"""``prismm multiply``: the product of two files into a third, with its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prismm.cli import interrupts, options
from prismm.cli.console import print_json


def multiply(
    a: options.LeftFile,
    b: options.RightFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="C", help="The result: .npy or .mtx.")],
    accuracy: options.Accuracy = None,
    reproducible: options.Reproducible = False,
    scheme: options.Scheme = None,
    out_dtype: options.OutDtype = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory to work in, e.g. 2GiB; larger products are made tile by tile. "
            "Default: half of what is available.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace C, or an unfinished product of that name.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the product that was interrupted.")] = False,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no certificate.")] = False,
) -> None:
    """Multiply A by B into the file C and print the certificate.

    C appears under its name only when it is whole. Ctrl-C keeps the finished tiles for --resume and
    exits with 130 (143 when terminated); a tile that takes longer than a second more is given up.
    """
    from prismm.cli.memory import parse_size
    from prismm.cli.product import Interrupted, Request, run

    request = Request(
        a=a,
        b=b,
        output=output,
        options=options.matmul_options(accuracy, scheme, reproducible, out_dtype, engine, threads),
        memory=None if memory is None else parse_size(memory),
        force=force,
        resume=resume,
        quiet=quiet,
        announced=not (quiet or json),
    )
    try:
        certificate = run(request)
    except Interrupted as interruption:
        interrupts.tell(str(interruption))
        raise typer.Exit(interruption.exit_code) from interruption
    except MemoryError as error:
        raise MemoryError(f"{error}; a smaller --memory makes smaller tiles") from error
    if json:
        print_json(certificate.to_dict())
    elif not quiet:
        print(certificate)
