"""Collects answers of this machine's matrix instructions: ``python -m prismm.numerics.hardware.collect --out DIR``.

For every instruction that the GPU has: its kernel is compiled and proved (`prismm.numerics.hardware.check`), hostile
vectors are answered (`prismm.numerics.corpus`) and targeted experiments made. Two files come out: ``corpora.tar``, a
file NAME.corpus for each instruction, and ``experiments.json``. What fails is recorded there, and the next one taken.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prismm.errors import FileError, PrismmError
from prismm.numerics.corpus import Corpus, problems, update
from prismm.numerics.hardware import device
from prismm.numerics.hardware.check import check
from prismm.numerics.hardware.engine import HardwareEngine, available
from prismm.numerics.hardware.experiments import EXPERIMENTS
from prismm.numerics.hardware.instructions import Instruction, instruction_named

__all__ = ["collect", "examine", "main"]

COUNT, SEED = 131072, 20260101


def collect(instruction: Instruction | str, count: int = COUNT, seed: int = SEED, proof: bool = True) -> Corpus:
    """Answers of one instruction of this machine's GPU to hostile vectors.

    Args:
        instruction: an `Instruction`, or the name of one.
        count: dot products.
        seed: of the vectors.
        proof: prove the kernel first.

    Raises:
        ArgumentError: for an unknown name.
        EngineError: if it cannot run here, or is not proved.
    """
    import numpy as np

    from prismm.numerics.hardware.engine import sass

    engine = HardwareEngine(instruction)
    mnemonics = check(engine).sass if proof else sass(engine.instruction)
    sha, answers = hashlib.sha256(), []
    for _, a, b, c in problems(engine.input, engine.output, engine.k, count, seed):
        update(sha, a, b, c)
        answers.append(engine.bits(a, b, c))
    here = device.gpu()
    return Corpus(
        instruction=engine.name,
        input=engine.input.name,
        output=engine.output.name,
        k=engine.k,
        count=count,
        seed=seed,
        inputs_sha256=sha.hexdigest(),
        answers=np.concatenate(answers),
        device=here.name,
        driver=here.driver,
        cuda=here.compiler,
        sass=mnemonics or (),
    )


def examine(engine: HardwareEngine) -> dict[str, Any]:
    """All experiments that concern an instruction; one that fails leaves its error in its place."""
    found: dict[str, Any] = {}
    for name, experiment in EXPERIMENTS.items():
        try:
            result = experiment(engine)
        except Exception as error:  # one experiment must not cost the others
            result = {"error": f"{type(error).__name__}: {error}"}
        if result is not None:
            found[name] = result
    return found


def _one(name: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Everything about one instruction; its corpus is left in ``folder``."""
    begun = time.perf_counter()
    engine = HardwareEngine(name)
    proof = check(engine)
    if engine.output.bits == 64:
        count //= 4  # twice the bytes, and the least to find out: a chain of fused multiply-adds
    corpus = collect(engine.instruction, count, seed, proof=False)
    corpus.save(folder / f"{name}.corpus")
    found: dict[str, Any] = {
        "ptx": engine.instruction.ptx,
        "check": asdict(proof),
        "corpus": {"count": count, "seed": seed, "inputs_sha256": corpus.inputs_sha256},
        "experiments": examine(engine),
        "seconds": round(time.perf_counter() - begun, 2),
    }
    seen = "no disassembler" if proof.sass is None else ", ".join(proof.sass)
    failed = [key for key, value in found["experiments"].items() if isinstance(value, dict) and "error" in value]
    print(f"{name}: proved at {proof.positions} positions; {seen}; {found['seconds']} s", *failed, flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Collect from the instructions named, or from all that this GPU has.

    Returns:
        0, or 1 if one of them failed.
    """
    parser = argparse.ArgumentParser(prog="python -m prismm.numerics.hardware.collect", description="Collect answers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="instructions; all that this GPU has if none is named")
    parser.add_argument("--out", required=True, type=Path, help="folder for corpora.tar and experiments.json")
    parser.add_argument(
        "--count", type=int, default=COUNT, help="dot products of each (FP64: a quarter; default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the vectors (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        here = device.gpu()
        names = [instruction_named(name).name for name in options.names]
    except PrismmError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{here.name}, compute capability {here.capability[0]}.{here.capability[1]}, driver {here.driver}, "
        f"NVRTC {here.compiler}, disassembler {device.disassembler()}",
        flush=True,
    )
    usable = available()
    unavailable = {name: why for name, (works, why) in usable.items() if not works}
    done: dict[str, Any] = {}
    report = {"gpu": asdict(here), "instructions": done, "unavailable": unavailable}
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or [name for name in usable if name not in unavailable]:
            try:
                done[name] = _one(name, options.count, options.seed, Path(scratch))
            except Exception as error:  # the next instruction may work
                failures += 1
                done[name] = {"error": f"{type(error).__name__}: {error}"}
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "experiments.json").write_text(json.dumps(report, separators=(",", ":")) + "\n")
            with tarfile.open(options.out / "corpora.tar", "w") as archive:
                for path in sorted(Path(scratch).iterdir()):
                    archive.add(path, arcname=path.name)
        except OSError as error:
            raise FileError(f"cannot write to {options.out}: {error}; pass another --out") from error
    for path in sorted(options.out.iterdir()):
        print(f"{path}: {path.stat().st_size} bytes")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
