"""``prismm run``: an unchanged script with its products made by a policy, then a table of every one of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prismm.cli import ending, options
from prismm.cli.console import print_json, say
from prismm.cli.run_table import text_of
from prismm.cli.script import Program
from prismm.errors import ArgumentError, FileError


def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python program that uses torch or NumPy.")],
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

    Products of torch in all threads, and of NumPy where the script writes @, @= or a.dot(b), or calls numpy.matmul,
    dot, vdot, inner, tensordot, einsum, vecdot, matvec, vecmat or numpy.linalg.multi_dot by name. The default is
    --accuracy native. The exit code is the script's own.

    Under torchrun rank 0 alone lists its products: torchrun --no-python prismm run SCRIPT.
    """
    from prismm.cli.documents import check_new, write_new

    options.refuse_force(force, html=html)
    chosen = _policy(policy, accuracy, scheme, reproducible, engine, off)
    if not script.is_file():
        raise FileError(f"{script}: there is no such script")
    speaks = _speaks()
    if html is not None and speaks:
        check_new(html, force)
    import prismm

    block = prismm.emulate(chosen, attention="decomposed" if decompose_attention else "fused")
    program = Program(script, arguments or [], block, sys.stderr if json else sys.stdout)
    code = 0

    def report() -> None:
        program.close()
        if not speaks:
            return
        record = block.record
        if json:
            print_json({"script": str(script), "arguments": arguments or [], "exit": code, **record.to_dict()})
        else:
            print(text_of(record))
        if html is not None:
            from prismm.cli.html.run import run_page

            write_new(html, run_page(record, " ".join([str(script), *(arguments or [])])), force)
            say(f"wrote {html}")

    end = ending.prepare(report)
    code = program.run()
    end()
    if code:
        raise typer.Exit(code)


def _speaks() -> bool:
    """Whether this process prints: of several that torchrun, or another launcher by its variables, started, rank 0."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


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
