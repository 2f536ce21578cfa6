"""``prismm probe``: which model is behind a matrix engine, with the evidence; and the published tests of engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prismm.cli import interrupts, options
from prismm.cli.console import print_json, say
from prismm.errors import ArgumentError, PrismmError

if TYPE_CHECKING:
    from prismm.cli.targets import Target
    from prismm.numerics.finding import Finding

_OF_MODELS = ("output_model", "html", "seed", "refutations", "quiet")
_SUITE = ("v100", "t4", "a100", "h100-mma")
"""Devices whose tables --suite prints by default."""


def probe(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET...",
            help="An engine of the catalogue, a model in a JSON file, gpu:INSTRUCTION, gpu for all that this "
            "machine's GPU has, or module:function of your own.",
            show_default=False,
        ),
    ] = None,
    suite: Annotated[
        bool, typer.Option("--suite", help="Print the published tests' tables instead; devices are targets, too.")
    ] = False,
    input: Annotated[str | None, typer.Option(metavar="FORMAT", help="Of a function's a and b, e.g. fp16.")] = None,
    output: Annotated[str | None, typer.Option(metavar="FORMAT", help="Of a function's c and d, e.g. fp32.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    refutations: Annotated[
        int, typer.Option(metavar="N", min=0, help="Further answers that the model has to reproduce at the end.")
    ] = 100_000,
    output_model: Annotated[
        Path | None, typer.Option("--output-model", "-o", metavar="FILE", help="Write the model as JSON.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with all the evidence.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace these files.")] = False,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not tell of the stages.")] = False,
) -> None:
    """Find the model behind an engine d = c + Σ a·b, property by property, each with what decides it.

    A function takes float64 arrays a, b of shape (n, k) and c of shape (n,), values of its formats, and returns d of
    shape (n,). Exit code 1: no model of the family reproduces the engine.
    """
    from prismm.cli.documents import check_new, write_new
    from prismm.cli.targets import targets_of

    names = targets or []
    if suite:
        options.refuse(context, _OF_MODELS, "is for finding a model; leave it out, or --suite")
        _suite(names or list(_SUITE), input, output, json)
        return
    if not names:
        raise ArgumentError("no target; pass one such as a100.fp16.fp32, gpu:mma.fp16.fp32 or module:function")
    options.refuse_force(force, output_model=output_model, html=html)
    for path in (output_model, html):
        if path is not None:
            check_new(path, force)
    wanted = [target for name in names for target in targets_of(name, input, output)]
    if output_model is not None and len(wanted) > 1:
        raise ArgumentError(f"-o takes the model of one target; {len(wanted)} are named: pass one")
    found, code = _all(wanted, seed, refutations, quiet)
    if not found:
        raise typer.Exit(code)
    from prismm.cli import findings

    if json:
        print_json({"findings": [findings.as_json(finding, name) for name, finding in found]})
    else:
        print("\n\n".join(findings.report(finding, name) for name, finding in found))
    if html is not None:
        from prismm.cli.html.finding import findings_page

        write_new(html, findings_page(found, seed), force)
        say(f"wrote {html}")
    if output_model is not None:
        model = found[0][1].model
        if model is None:
            say(f"no model, so {output_model} was not written")
        else:
            write_new(output_model, model.to_json() + "\n", force)
            say(f"wrote {output_model}; `prismm simulate {output_model}` runs it")
    if code:
        raise typer.Exit(code)


def _all(wanted: list[Target], seed: int, refutations: int, quiet: bool) -> tuple[list[tuple[str, Finding]], int]:
    """What was found of each target, and the exit code: one that fails among several does not end the others."""
    found: list[tuple[str, Finding]] = []
    code = 0
    for target in wanted:
        try:
            found.append((target.name, _probed(target, seed, refutations, quiet)))
        except PrismmError as error:
            if len(wanted) == 1:
                raise
            say(f"error: {target.name}: {' '.join(str(error).split())}")
            code = 2
        except KeyboardInterrupt:
            interrupts.tell(f"interrupted; {len(found)} of {len(wanted)} targets were probed")
            return found, interrupts.EXIT_CODE
    return found, code or int(any(finding.model is None for _, finding in found))


def _probed(target: Target, seed: int, refutations: int, quiet: bool) -> Finding:
    from prismm import numerics

    def tell(text: str) -> None:
        if not quiet:
            say(f"{target.name}: {text}")

    return numerics.probe(
        target.dot,
        target.input,
        target.output,
        refutations=refutations,
        seed=seed,
        name=target.name,
        say=tell,
    )


def _suite(names: list[str], input: str | None, output: str | None, json: bool) -> None:
    """The tables of every published test for these targets; a device's two output formats share a column."""
    from prismm.cli.targets import Target, targets_of
    from prismm.formats import Format
    from prismm.numerics import suite
    from prismm.numerics.catalogue import devices, models_of

    wanted: list[tuple[str, Target]] = []
    for name in names:
        if name.lower() in devices():
            models = [m for m in models_of(name) if m.input.name == "fp16"]
            if not models:
                raise ArgumentError(f"{name} has no fp16 engine; pass one of its engines by its whole name")
            wanted += [(name.lower(), Target(m.name, m.dot, m.input, m.output, m)) for m in models]
        else:
            wanted += [(target.name, target) for target in targets_of(name, input, output)]
    if not json and all(target.model is not None and not target.model.is_integer for _, target in wanted):
        say(f"asking {', '.join(dict.fromkeys(column for column, _ in wanted))} the published tests")
    results = []
    for column, target in wanted:
        if isinstance(target.input, Format) and isinstance(target.output, Format):
            results.append(suite.run(target.dot, target.input, target.output, engine=column))
        elif len(wanted) == 1:
            raise ArgumentError(f"{target.name} adds integers; the published tests are for floating-point engines")
        else:
            say(f"{target.name} adds integers, and is left out")
    if json:
        print_json({"results": [one.to_dict() for one in results]})
    else:
        print(suite.tables(*results))
