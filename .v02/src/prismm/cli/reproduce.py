"""``prismm reproduce``: the accuracy experiments of the papers, what they published beside what we find."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prismm.cli import interrupts, options
from prismm.cli.console import columns, print_json, progress, say, table
from prismm.cli.reproduce_table import HEAD, cells, verdicts
from prismm.errors import ArgumentError

if TYPE_CHECKING:
    from prismm.reproduce.claims import Comparison
    from prismm.reproduce.framework import Experiment, Size
    from prismm.reproduce.run import Result


def reproduce(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="An experiment; without, list them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where CSV and PNG go; made if there is none.")
    ] = Path(),
    quick: Annotated[bool, typer.Option("--quick", help="Seconds, at small sizes.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="As near to the paper's sizes as a CPU gets; may take an hour.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what an earlier run has left.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random matrix.")] = 0,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the verdicts and the figures.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    json: options.Json = False,
) -> None:
    """Run a paper's accuracy experiments and print what it published beside ours, with a verdict for each row.

    Finished points are kept in the CSV: the same command continues where it was interrupted.
    """
    from prismm.cli.documents import check_new, write_new
    from prismm.reproduce import PAPERS, load

    if name is None or list_:
        options.refuse(
            context,
            ("out", "quick", "full", "fresh", "seed", "html", "force"),
            "needs the NAME of an experiment; leave it out to list",
        )
        _list(json)
        return
    if quick and full:
        raise ArgumentError("--quick and --full exclude each other; pass one of them or neither")
    options.refuse_force(force, html=html)
    if html is not None:
        check_new(html, force)
    experiment = load(name)
    size: Size = "quick" if quick else "full" if full else "default"
    paper = PAPERS[name]
    result = _run(experiment, paper.citation, out, size, seed, fresh, json)
    plot = _plot(experiment, result)
    if json:
        from prismm.cli.env import machine

        print_json(
            {
                "experiment": name,
                "paper": paper.title,
                "citation": paper.citation,
                "setup": experiment.setup,
                "run": result.run,
                "machine": machine(),
                "csv": str(result.csv),
                "plot": None if plot is None else str(plot),
                "seconds": result.seconds,
                "comparisons": [_as_json(found) for found in result.comparisons],
                "rows": [vars(row) for row in result.rows],
            }
        )
    else:
        _print(experiment, f"{paper.title}\n{paper.citation}", result)
    if html is not None:
        from prismm.cli.html.experiment import experiment_page

        write_new(html, experiment_page(experiment, paper.title, paper.citation, result, plot), force)
        say(f"wrote {html}")
    say(
        f"{result.points} points in {result.seconds:.0f} s; rows in {result.csv}"
        + (f", plot in {plot}" if plot else "")
    )


def _list(json: bool) -> None:
    from prismm.reproduce import PAPERS

    if json:
        papers = [{"name": name, "title": paper.title, "citation": paper.citation} for name, paper in PAPERS.items()]
        print_json({"experiments": papers})
    else:
        print(table([(name, f"{paper.title}; {paper.citation}") for name, paper in PAPERS.items()]))


def _run(
    experiment: Experiment, citation: str, out: Path, size: Size, seed: int, fresh: bool, json: bool
) -> Result:  # fmt: skip
    """The experiment under a progress bar; exit code 130 where it was interrupted."""
    from prismm.reproduce.run import run

    finished, announced = 0, json
    with progress() as bar:
        task = bar.add_task(experiment.name, total=None)

        def started(key: str, done: int, total: int) -> None:
            nonlocal finished, announced
            if not announced:
                say(f"repeating experiments of {citation}")
            announced = True
            finished = done
            bar.update(task, completed=done, total=total, description=f"{experiment.name} {key}".strip())

        try:
            result = run(experiment, out, size, seed, fresh, started)
        except KeyboardInterrupt:
            interrupts.tell(
                f"interrupted: {finished} points are kept in {out}; the same command without --fresh continues"
            )
            raise typer.Exit(interrupts.EXIT_CODE) from None
    if result.kept:
        say(f"{result.kept} of {result.points} points kept from an earlier run; --fresh measures them anew")
    return result


def _plot(experiment: Experiment, result: Result) -> Path | None:
    """The PNG beside the CSV, or None, said aloud, without matplotlib."""
    from prismm.reproduce import PAPERS
    from prismm.reproduce.plot import PlotError, draw

    path = result.csv.with_suffix(".png")
    try:
        draw(experiment.panels, result.rows, path, f"{PAPERS[experiment.name].citation.split(', doi')[0]}: with prismm")
    except PlotError as error:
        say(f"no plot: {error}; the rows are in {result.csv}")
        return None
    return path


def _print(experiment: Experiment, title: str, result: Result) -> None:
    print(f"{title}\n\n{verdicts(result)}\n\n{experiment.setup}\n")
    left = tuple(name for name in HEAD if name != "ours")
    print(columns(HEAD, [cells(found) for found in result.comparisons], left=left))
    notes = [
        (found.claim.where, found.claim.what, found.claim.note) for found in result.comparisons if found.claim.note
    ]
    if notes:
        print("\n" + "\n".join(f"{where}, {what}: {note}" for where, what, note in notes))


def _as_json(found: Comparison) -> dict[str, Any]:
    claim = found.claim
    return {
        "where": claim.where,
        "what": claim.what,
        "published": claim.published,
        "reading": claim.reading,
        "ours": found.values,
        "rule": found.rule,
        "verdict": found.verdict,
        "note": claim.note,
    }
