"""``prismm simulate``: what a matrix engine makes of a dot product, step by step, or of two matrices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prismm.cli import options
from prismm.cli.console import columns, print_json, say
from prismm.errors import ArgumentError

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel

_OF_PRODUCTS = (
    "a", "b", "c", "scale_a", "scale_b", "random", "seed", "round_", "steps", "output", "split_k", "promote", "html",
)  # fmt: skip
_MATRICES = (".npy", ".npz", ".mtx", ".mtx.gz", ".csv", ".csv.gz")


def simulate(
    context: typer.Context,
    engines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENGINE... [A B]",
            help="Engines of the catalogue, or models in JSON files; then two matrix files to multiply them.",
            show_default=False,
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the catalogue; ENGINE... are then parts of names.")
    ] = False,
    a: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help='E.g. "1, -3*2^5, 1+2^-10, 0x1.8p3, inf". Default: a published sum.'),
    ] = None,
    b: Annotated[str | None, typer.Option(metavar="NUMBERS", help="As many.")] = None,
    c: Annotated[str | None, typer.Option(metavar="NUMBER", help="What is added to the products. Default: 0.")] = None,
    scale_a: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Block scale factors of a. Default: ones.")
    ] = None,
    scale_b: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Block scale factors of b.")] = None,
    random: Annotated[
        int | None, typer.Option("--random", metavar="K", min=1, max=4096, help="K random terms instead.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random terms.")] = 0,
    round_: Annotated[
        bool, typer.Option("--round", help="Round values that the engine's formats lack to nearest.")
    ] = False,
    steps: Annotated[
        bool | None, typer.Option("--steps/--no-steps", help="Print every step. Default: of a single engine.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="C", help="The product: .npy or .mtx.")
    ] = None,
    split_k: Annotated[int, typer.Option(min=1, help="Parts of the inner dimension that are added at the end.")] = 1,
    promote: Annotated[
        int | None, typer.Option(min=1, help="Products after which the sum is added to one in FP32.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the bits of every step.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace C and FILE.")] = False,
    json: options.Json = False,
) -> None:
    """Run a model of a matrix engine on one dot product, showing what every step keeps and loses, or on two matrices.

    Numbers are written as decimals, hex floats, 2^-12, -3*2^5, 1+2^-10, inf or nan.
    """
    names = engines or []
    if list_:
        options.refuse(context, _OF_PRODUCTS, "is of no use to --list; leave one of them out")
        _list(names, json)
        return
    files = [name for name in names if name.lower().endswith(_MATRICES)]
    vectors = {"--a": a, "--b": b, "--c": c, "--scale-a": scale_a, "--scale-b": scale_b, "--random": random}
    if len(names) == len(files):
        raise ArgumentError("no engine; pass one such as a100.fp16.fp32, or --list")
    if files:
        if len(files) != 2 or names[-2:] != files:
            raise ArgumentError(f"{len(files)} matrix files; pass ENGINE A B, with two of them at the end")
        given = [name for name, value in {**vectors, "--html": html}.items() if value is not None]
        if given:
            raise ArgumentError(f"{given[0]} is for single dot products; leave it out, or the matrices")
        options.refuse(context, ("seed", "steps"), "is for single dot products; leave it out, or the matrices")
        from prismm.cli.targets import model_of

        _multiply([model_of(name) for name in names[:-2]], names[-2:], output, split_k, promote, round_, force, json)
        return
    if output is not None or split_k != 1 or promote is not None:
        raise ArgumentError("--output, --split-k and --promote are for matrices; pass ENGINE A B")
    if random is None:
        options.refuse(context, ("seed",), "is for random terms; leave it out, or pass --random")
    options.refuse_force(force, html=html)
    from prismm.cli.documents import check_new, write_new
    from prismm.cli.operands import operands
    from prismm.cli.targets import model_of
    from prismm.cli.traces import as_json, summary, traced
    from prismm.cli.traces import steps as steps_of

    if html is not None:
        check_new(html, force)
    models = [model_of(name) for name in names]
    wanted = operands(models, a, b, c, (scale_a, scale_b), random, seed, round_)
    many = [traced(model, wanted.for_engine(model)) for model in models]
    if json:
        print_json({"operands": wanted.origin, "results": [as_json(one) for one in many]})
    else:
        print(summary(many, wanted.origin))
        if steps or (steps is None and len(many) == 1):
            for one in many:
                print(f"\n{steps_of(one)}")
    if html is not None:
        from prismm.cli.html.simulation import simulation_page

        write_new(html, simulation_page(many, wanted.origin), force)
        say(f"wrote {html}")


def _list(parts: list[str], json: bool) -> None:
    """The catalogue, or the entries whose names contain any of `parts`; and what has no model."""
    from prismm.numerics.catalogue import engine, engines, unknown

    wanted = [part.lower() for part in parts]
    models = [engine(name) for name in engines() if not wanted or any(part in name for part in wanted)]
    without = [entry for entry in unknown() if not wanted or any(part in entry.name for part in wanted)]
    if not models and not without:
        raise ArgumentError(
            f"no engine's name contains {' or '.join(map(repr, parts))}; `prismm simulate --list` has all"
        )
    if json:
        rows = [model.to_dict() for model in models]
        print_json(
            {
                "engines": rows,
                "without_model": [{"name": x.name, "known": x.known, "source": x.source} for x in without],
            }
        )
        return
    head = ["engine", "block", "bits", "sum", "rounding", "c", "certainty"]
    print(columns(head, [_cells(model) for model in models], left=("engine", "sum", "rounding", "c", "certainty")))
    if without:
        print("\nwithout a model:")
        print("\n".join(f"  {entry.name}: {entry}" for entry in without))


def _cells(model: EngineModel) -> list[str]:
    """A row of the list: bits are those kept below the largest exponent, or of partial sums."""
    if model.is_integer:
        every = f" every {model.depth}" if model.overflow == "saturate" and model.depth else ""
        return [model.name, "", "all", "exact", f"{model.overflow}s{every}", "inside", _brief(model.certainty)]
    if model.summation == "aligned":
        kept = "all" if model.fraction_bits is None else str(model.fraction_bits)
    else:
        kept = str(model.fraction_bits or model.sums.fraction_bits)
    rounding = model.rounding + (f", {model.last_rounding}" if model.rounding != model.last_rounding else "")
    if model.accumulator is not None:
        rounding += f" to {model.accumulator.name}"
    summation: str = "fma" if model.block == 1 and kept == "all" else model.summation
    if model.groups:
        summation += f", {len(model.groups)} {'sums' if model.group_sums == 'separate' else 'groups'}"
    if model.scale is not None:
        summation += f", {model.scale.format} by {model.scale.length}"
    join = model.join if isinstance(model.join, str) else "late"
    return [model.name, str(model.block), kept, summation, rounding, join, _brief(model.certainty)]


def _brief(certainty: str) -> str:
    """The first clause; --json has the others."""
    first, more, _ = certainty.partition(";")
    return first + ("; …" if more else "")


def _multiply(
    models: list[EngineModel],
    operands: list[str],
    output: Path | None,
    split_k: int,
    promote: int | None,
    rounded: bool,
    force: bool,
    json: bool,
) -> None:
    from prismm.cli.engine_product import Request, run

    if output is not None and len(models) > 1:
        raise ArgumentError("-o takes the product of one engine; pass one ENGINE, or leave out -o to compare errors")
    paths = Path(operands[0]), Path(operands[1])
    result = run(Request(models, *paths, output, split_k, promote, rounded, force, not json))
    if json:
        print_json(result.to_dict())
    else:
        print(result)
