"""Whole programs beside torch: GPTs in training and inference, a small MLP, a blocked Cholesky factorisation.

Run: python benchmarks/gpu_programs.py [--programs gpt-768,mlp] [--ways tf32,emulate,compile] [--seconds 200]; writes
results/gpu_programs.csv after each row. --device cpu --tiny shows that everything runs.

All ways take turns, in bursts of steps with new data; a burst begins with a step that is not timed. A ratio is torch's
time by a way's in the same round, and its median over the rounds counts. torch multiplies in full IEEE precision, TF32
apart. Errors are relative in the Frobenius norm: of logits in inference, of all gradients in training, both against the
same model in float64; of the factorisation the backward error of some entries, from exact residuals.

The GPTs have an embedding of 8192 tokens and of positions, blocks of LayerNorm, one product for queries, keys and
values, causal scaled_dot_product_attention and an MLP of width 4d with GELU, and a head; training steps are those of
SGD.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _common import RESULTS, machine, write

import prismm
from prismm.applications.cholesky import make as covariance
from prismm.applications.references import residual, sample
from prismm.applications.ways import full_precision, tf32

TOKENS, SETS, ROUNDS, BURST = 8192, 4, 7, 0.1
"""Words of a GPT; inputs that take turns; rounds; seconds of a burst, about."""
WAYS = "tf32", "emulate", "compile"
RATE = 1e-3
"""Of the training steps: weights stay near where they began."""


class Block(torch.nn.Module):
    """One block of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attend, self.project = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same."""
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class GPT(torch.nn.Module):
    """Tokens to logits."""

    def __init__(self, width: int, blocks: int, length: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(tokens, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(blocks)))
        self.last, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, tokens, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) to (batch, tokens, words)."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        out: torch.Tensor = self.head(self.last(self.blocks(x)))
        return out


class Job(NamedTuple):
    """A program as it is measured. One step is timed for each input; another step gives the error."""

    step: Callable[[int], Any]
    error: Callable[[], float]


@dataclass(frozen=True)
class Program:
    """A program: its rows' names, and what makes it a job for each way."""

    name: str
    mode: str
    dtype: str
    jobs: Callable[[tuple[str, ...], str], Iterator[tuple[str, Job]]]


def logits_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """‖found − exact‖ / ‖exact‖."""
    return float(torch.linalg.norm(found.double() - exact) / torch.linalg.norm(exact))


def gradients_error(model: torch.nn.Module, exact: list[torch.Tensor]) -> float:
    """The same of all gradients together."""
    grads = [x.grad for x in model.parameters() if x.grad is not None]
    assert len(grads) == len(exact)
    apart = sum(float((x.double() - y).square().sum()) for x, y in zip(grads, exact, strict=True))
    return (apart / sum(float(y.square().sum()) for y in exact)) ** 0.5


def model_jobs(
    make: Callable[[], torch.nn.Module],
    draw: Callable[[str], tuple[torch.Tensor, torch.Tensor]],
    training: bool,
    ways: tuple[str, ...],
    device: str,
) -> Iterator[tuple[str, Job]]:
    """Jobs of a model in float32. draw: inputs and classes of the outputs."""
    torch.manual_seed(0)
    model = make().to(device)
    data = [draw(device) for _ in range(SETS)]
    begin = copy.deepcopy(model.state_dict())

    def advance(run: Any, optimiser: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        optimiser.zero_grad()
        out = run(x)
        torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)).backward()
        optimiser.step()

    def infer(run: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = run(x)
        return out

    exact_model = copy.deepcopy(model).double()
    first = data[0][0].double() if data[0][0].is_floating_point() else data[0][0]
    exact: list[torch.Tensor] = []
    if training:
        advance(exact_model, torch.optim.SGD(exact_model.parameters(), lr=0.0), first, data[0][1])
        exact += [x.grad for x in exact_model.parameters() if x.grad is not None]
    else:
        exact.append(infer(exact_model, first))
    del exact_model

    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for way in ways:
        run = prismm.compile(model, dynamic=False) if way == "compile" else model

        def step(i: int, run: Any = run) -> None:
            x, y = data[i % SETS]
            advance(run, optimiser, x, y) if training else infer(run, x)

        def error(run: Any = run) -> float:
            model.load_state_dict(begin)
            if not training:
                return logits_error(infer(run, data[0][0]), exact[0])
            step(0, run)
            return gradients_error(model, exact)

        yield way, Job(step, error)


def gpt(width: int, blocks: int, batch: int, length: int, training: bool, tokens: int) -> Program:
    """A GPT."""

    def draw(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.randint(0, tokens, (batch, length + 1), device=device)
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()

    make = functools.partial(GPT, width, blocks, length, tokens)
    name = f"gpt-{width}-{blocks} {batch}x{length}"
    return Program(name, *_kind(training), functools.partial(model_jobs, make, draw, training))


def mlp(batch: int, training: bool) -> Program:
    """100-256-256-10, ReLU."""

    def make() -> torch.nn.Module:
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        return torch.nn.Sequential(linear(100, 256), relu(), linear(256, 256), relu(), linear(256, 10))

    def draw(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, 100, device=device), torch.randint(0, 10, (batch,), device=device)

    return Program(f"mlp {batch}", *_kind(training), functools.partial(model_jobs, make, draw, training))


def _kind(training: bool) -> tuple[str, str]:
    return ("training" if training else "inference"), "float32"


def factor(a: torch.Tensor, block: int) -> torch.Tensor:
    """The lower factor of a in its place, from the left to the right."""
    n = len(a)
    for i in range(0, n, block):
        j = min(i + block, n)
        a[i:j, i:j] = torch.linalg.cholesky(a[i:j, i:j])
        if j < n:
            a[j:, i:j] = torch.linalg.solve_triangular(a[i:j, i:j], a[j:, i:j].mT, upper=False).mT
            a[j:, j:] -= a[j:, i:j] @ a[j:, i:j].mT
    return a.tril_()


def cholesky_jobs(n: int, block: int, ways: tuple[str, ...], device: str) -> Iterator[tuple[str, Job]]:
    """Jobs of the factorisation in float64, which TF32 does not touch and nothing compiles."""
    data = [covariance(n, seed, device, torch.float64) for seed in range(SETS)]
    work = torch.empty_like(data[0])
    rows, columns = (sample(n, 192, i).to(device) for i in (0, 1))

    def step(i: int) -> torch.Tensor:
        return factor(work.copy_(data[i % SETS]), block)

    def error() -> float:
        found = step(0)
        chosen = data[0][rows][:, columns]
        left = residual(chosen, found[rows], found[columns].T)
        return float(torch.linalg.norm(left) / torch.linalg.norm(chosen))

    for way in ways:
        if way not in ("tf32", "compile"):
            yield way, Job(step, error)


def programs(tiny: bool) -> list[Program]:
    """All of them."""
    if tiny:
        models = [gpt(64, 2, 2, 32, training, 64) for training in (True, False)]
        return [*models, mlp(8, True), Program("cholesky 96", "", "float64", functools.partial(cholesky_jobs, 96, 32))]
    found = [gpt(768, 6, batch, 512, training, TOKENS) for batch in (16, 2) for training in (True, False)]
    found.append(Program("cholesky 6000", "", "float64", functools.partial(cholesky_jobs, 6000, 512)))
    found += [mlp(64, training) for training in (True, False)]
    return found + [gpt(2048, 2, 16, 512, training, TOKENS) for training in (True, False)]


def context(way: str) -> AbstractContextManager[Any]:
    """What a burst of a way runs in."""
    if way == "tf32":
        return tf32()
    stack = contextlib.ExitStack()
    stack.enter_context(full_precision())
    if way == "emulate":
        stack.enter_context(prismm.emulate())
    return stack


def burst(job: Job, way: str, count: int, numbers: Iterator[int], wait: Callable[[], None]) -> float:
    """Seconds of a step among so many."""
    with context(way):
        job.step(next(numbers))
        wait()
        start = time.perf_counter()
        for _ in range(count):
            job.step(next(numbers))
        wait()
        return (time.perf_counter() - start) / count


def measured(program: Program, ways: tuple[str, ...], device: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Rows of a program; its own way first."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.compiler.reset()
    jobs: dict[str, Job] = {}
    errors, counts, first = {}, {}, {}
    numbers = itertools.count(1)
    for way, job in program.jobs(("torch", *ways), device):
        start = time.perf_counter()
        with context(way):
            errors[way] = job.error()
            wait()
        first[way] = time.perf_counter() - start
        burst(job, way, 2, numbers, wait)
        once = burst(job, way, 1, numbers, wait)
        counts[way] = max(2, min(100, int(BURST / once)))
        jobs[way] = job
        say(f"  {program.name} {program.mode} {way}: first step {first[way]:.1f} s, then {1e3 * once:.3g} ms")
    seconds: dict[str, list[float]] = {way: [] for way in jobs}
    for _ in range(ROUNDS):
        for way, job in jobs.items():
            seconds[way].append(burst(job, way, counts[way], numbers, wait))
    rows = []
    for way in jobs:
        ratios = sorted(x / y for x, y in zip(seconds["torch"], seconds[way], strict=True))
        rows.append(
            {
                "program": program.name, "mode": program.mode, "dtype": program.dtype, "way": way,
                "ratio": statistics.median(ratios), "ratio_low": ratios[0], "ratio_high": ratios[-1],
                "ms": 1e3 * statistics.median(seconds[way]), "torch_ms": 1e3 * statistics.median(seconds["torch"]),
                "error": errors[way], "torch_error": errors["torch"], "first_s": first[way], "rounds": ROUNDS,
                "steps": counts[way],
            }
        )  # fmt: skip
    return rows


def machine_of(device: str) -> dict[str, Any]:
    """Columns that say where the numbers come from."""
    cuda = device == "cuda"
    return {
        "gpu": torch.cuda.get_device_name() if cuda else "cpu", "cuda": torch.version.cuda if cuda else "",
        "threads": torch.get_num_threads(), **machine(),
    }  # fmt: skip


def main() -> None:
    """Measure, print, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that everything runs; writes nothing")
    parser.add_argument("--programs", default="", help="beginnings of their names, separated by commas; default: all")
    parser.add_argument("--ways", default=",".join(WAYS), help="of " + ", ".join(WAYS))
    parser.add_argument("--seconds", type=float, default=200, help="begin no further program after so many")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the CSV goes")
    options = parser.parse_args()
    start = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - start:5.0f} s {text}", flush=True)

    fixed = machine_of(options.device)
    say(f"{fixed['gpu']}, torch {fixed['torch']}, {fixed['cpu']}, {fixed['cores']} cores")
    for program in programs(options.tiny):
        if not program.name.startswith(tuple(options.programs.split(","))):
            continue
        if time.perf_counter() - start > options.seconds:
            say(f"out of time before {program.name} {program.mode}")
            continue
        for row in measured(program, tuple(options.ways.split(",")), options.device, say):
            say(
                f"{row['program']} {row['mode']} {row['way']}: x{row['ratio']:.3f} ({row['ratio_low']:.2f} to "
                f"{row['ratio_high']:.2f}), {row['ms']:.3f} ms, error {row['error']:.2e} "
                f"(torch {row['torch_error']:.2e})"
            )
            if not options.tiny:
                write("gpu_programs", [{**row, **fixed}], ("program", "mode", "way", "gpu"), options.folder)
        if options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
