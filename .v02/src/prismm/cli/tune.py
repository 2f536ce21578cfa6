"""``prismm tune``: a policy for a program of yours, as fast as its output's tolerance lets it be."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prismm.cli import options
from prismm.cli.console import columns, print_json, say
from prismm.core.extras import is_installed, missing
from prismm.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from prismm.programs.tuning import Tuning


def tune(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file that defines the function.")],
    tolerance: Annotated[float, typer.Option(metavar="ERROR", help="The largest error of the output, e.g. 1e-4.")],
    fn: Annotated[str, typer.Option(metavar="NAME", help="The function, or a model.")] = "fn",
    inputs: Annotated[
        str, typer.Option(metavar="NAME", help="Its inputs: a list, or a function without arguments that returns one.")
    ] = "inputs",
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A function of (output, reference) that returns the error. Default: the relative error in the "
            "Frobenius norm.",
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL,…", help="What to choose from, most accurate first, e.g. native,scheme=residues:5."
        ),
    ] = None,
    reference: Annotated[
        str, typer.Option(metavar="TARGET", help="Accuracy of the run that errors are measured against.")
    ] = "correctly-rounded",
    margin: Annotated[
        float | None, typer.Option(metavar="FACTOR", help="Instead of the statistical margin for new inputs.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Run at most so many choices.")] = 400,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the policy here, not to stdout.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what was measured; a run that was stopped goes on from there."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the policy's file.")] = False,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not tell of the trials.")] = False,
) -> None:
    """Find the fastest policy whose output error stays within a tolerance, on new inputs too.

    The products of SCRIPT's function are profiled, lowered where the time goes, and measured against a run with
    certified products. Give four inputs or more: half of them are held back from the search and have the last word.
    """
    import prismm
    from prismm.cli.documents import check_new, write_new

    options.refuse_force(force, output=output)
    if output is not None:
        check_new(output, force)
    if not is_installed("torch"):
        raise missing("prismm.tune", "torch")
    if not (quiet or json) and script.is_file():
        say(f"loading {script}")  # and torch with it, which takes seconds
    names = load(script)
    program, given = _named(names, fn, script), _named(names, inputs, script)
    policy, tuning = prismm.tune(
        program,
        given() if callable(given) else given,
        tolerance,
        metric=None if metric is None else _named(names, metric, script),
        levels=None if levels is None else levels.split(","),
        model=_module(program),
        reference=options.parse_accuracy(reference) or "correctly-rounded",
        margin=margin,
        trials=trials,
        state=state,
        progress=None if quiet else say,
        full_output=True,
    )
    if output is not None:
        write_new(output, policy.to_json(), force)
        say(f"wrote {output}; apply it with prismm.emulate(prismm.Policy.load({str(output)!r}))")
    if json:
        print_json(tuning.to_dict())
    elif output is not None:
        print(summary(tuning))
    else:
        say(f"\n{summary(tuning)}")
        print(policy.to_json(), end="")


def load(script: Path) -> dict[str, Any]:
    """The names that a Python file defines; it is not run as a program.

    Raises:
        FileError: where there is no such file.
    """
    if not script.is_file():
        raise FileError(f"{script}: there is no such file; pass a Python file that defines the function to tune")
    sys.path.insert(0, str(script.resolve().parent))
    return runpy.run_path(str(script), run_name=script.stem)


def _named(names: dict[str, Any], name: str, script: Path) -> Any:
    if name in names:
        return names[name]
    some = ", ".join(key for key in names if not key.startswith("_"))
    raise ArgumentError(f"{script} defines no {name!r}; it has {some or 'nothing'}: pass one of them, or define it")


def _module(program: Any) -> Any:
    """The program itself, where it is a model: its policy is bound to it."""
    import torch

    return program if isinstance(program, torch.nn.Module) else None


def summary(tuning: Tuning) -> str:
    """A table of sites, and what the policy is worth."""
    whole = tuning.base_seconds or 1.0
    rows = [
        [
            site.name,
            f"{100 * site.base_seconds / whole:.1f} %",
            str(site.recipe),
            f"{site.base_seconds / site.seconds:.2f}" if site.seconds else "-",
            ", ".join(str(source + 1) for source in site.sources),
        ]
        for site in tuning.sites
    ]
    for place, row in enumerate(rows, 1):
        row.insert(0, str(place))
    head = ["", "product", "share", "made by", "faster", "fed by"]
    lines = [columns(head, rows, left=("product", "made by", "fed by")), ""]
    lines.append(
        f"error {max(tuning.errors):.3g} measured on {len(tuning.errors)} inputs, at most {tuning.upper:.3g} expected "
        f"on new ones; tolerance {tuning.tolerance:g}"
    )
    speed = f"products {tuning.base_seconds / tuning.seconds:.2f} times as fast as at the first level"
    if tuning.torch_seconds is not None:
        speed += f", {tuning.torch_seconds / tuning.seconds:.2f} times as fast as torch's own"
    lines.append(f"{speed}; {tuning.trials} choices run")
    lines += [f"not run here: {name}: {why}" for name, why in tuning.dropped.items()]
    lines += [f"not covered: {what}" for what in tuning.unseen]
    return "\n".join(lines)
