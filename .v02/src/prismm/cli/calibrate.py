"""``prismm calibrate``: measure what this machine's GPU reaches, for `Auto` and for predicted times."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prismm.cli import options
from prismm.cli.console import print_json, say, table
from prismm.cli.documents import check_new
from prismm.cli.warm import has_driver
from prismm.core.extras import is_installed, missing
from prismm.errors import EngineError, FileError


def calibrate(
    device: Annotated[int, typer.Option(min=0, metavar="N", help="Number of the GPU.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the table goes; see below.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    json: options.Json = False,
) -> None:
    """Time products of every kind on a GPU, and keep the rates that fit them: Auto and explain go by these.

    It takes two or three minutes, in which nothing else should run there. The table goes to the user's cache folder,
    where prismm finds it, or to FILE, which the environment variable PRISMM_RATES can name.
    """
    from prismm.core import cache_files

    if not is_installed("torch"):
        raise missing("prismm calibrate", "torch")
    if not has_driver():  # torch takes seconds to load
        raise EngineError("there is no NVIDIA GPU here: its driver is missing; run it on a machine with one")
    if output is not None:
        check_new(output, force)
    if not json:
        say(f"measuring GPU {device}")
    import torch

    from prismm.cuda.costs.table import rates_of, user_file

    if not torch.cuda.is_available():
        raise EngineError("there is no NVIDIA GPU here, or this torch is a CPU build; run it on a machine with one")
    count = torch.cuda.device_count()
    if device >= count:
        raise EngineError(f"--device {device}: this machine has {count} GPU{'s' if count > 1 else ''}, counted from 0")
    name = torch.cuda.get_device_name(device)
    path = output if output is not None else user_file(name, make=True)
    if path is None:
        raise FileError("no cache folder can be written to; set PRISMM_CACHE_DIR, or pass --output FILE")
    from prismm.cuda.costs.calibrate import measure
    from prismm.files.target import explained, replace_text

    rates = measure(device, say)
    if output is None:
        with explained(path):
            cache_files.write(path, rates.to_json().encode())
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, rates.to_json())
    rates_of.cache_clear()
    if json:
        print_json({"file": str(path), **asdict(rates)})
        return
    rows = [
        ("GPU", f"{rates.name}, {rates.processors} multiprocessors"),
        ("float64, float32", f"{rates.float64 / 1e12:.1f}, {rates.float32 / 1e12:.1f} TFLOP/s of its own products"),
        ("residues", f"{rates.int8 / 1e12:.0f} TOP/s, {rates.sustained / 1e12:.0f} for long"),
        ("FP16 words", f"{rates.multiword / 1e12:.0f} TFLOP/s"),
        ("a call", f"{1e6 * rates.call.before:.0f} µs before the GPU begins, {1e6 * rates.call.least:.0f} at least"),
        ("torch.mm", f"{1e6 * rates.torch.before:.0f} µs, {1e6 * rates.torch.least:.0f} at least"),
    ]
    print(table(rows))
    say(f"wrote {path}")
