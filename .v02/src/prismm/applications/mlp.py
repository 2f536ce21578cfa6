"""A multilayer perceptron of three linear layers: inference, and training with momentum from five seeds.

Inference passes if the outputs' relative error against a float64 run with correctly rounded products is at most
8·√size·u. Training passes if each seed's loss curve lies closer to the IEEE float32 one and to that of float64 with
certified products than the five seeds' curves lie to each other, at every step.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn

import prismm
from prismm.applications.application import Application, Verdict, main
from prismm.applications.counts import digits
from prismm.applications.references import relative, sample
from prismm.applications.ways import full_precision

SEEDS, STEPS, RATE, MOMENTUM = 5, 8, 0.05, 0.9


def network(inputs: int, hidden: int, outputs: int, seed: int, device: str) -> nn.Sequential:
    """Three linear layers with GELU between them, with weights from a seed."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(
        nn.Linear(inputs, hidden, device=device), nn.GELU(), nn.Linear(hidden, hidden, device=device), nn.GELU(),
        nn.Linear(hidden, outputs, device=device),
    )  # fmt: skip
    device_generator = torch.Generator(device).manual_seed(seed) if device == "cuda" else generator
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, math.sqrt(2.0 / layer.in_features), generator=device_generator)
                layer.bias.normal_(0.0, 0.1, generator=device_generator)
    return layers


@dataclass(frozen=True)
class Inference:
    """A network and its inputs."""

    model: nn.Sequential
    x: torch.Tensor


def make(size: int, seed: int, device: str, dtype: torch.dtype) -> Inference:
    """`size` normal inputs of `size` features; all layers of that width."""
    generator = torch.Generator(device).manual_seed(seed + 1)
    return Inference(
        network(size, size, size, seed, device), torch.randn(size, size, generator=generator, device=device)
    )


@torch.no_grad()
def solve(config: Inference) -> torch.Tensor:
    """The outputs."""
    found: torch.Tensor = config.model(config.x)
    return found


@torch.no_grad()
def refer(config: Inference) -> tuple[torch.Tensor, torch.Tensor]:
    """Some of the inputs, and their outputs by correctly rounded products in float64."""
    rows = sample(len(config.x), 64, 0).to(config.x.device)
    with prismm.emulate("correctly-rounded"):
        return rows, copy.deepcopy(config.model).double()(config.x[rows].double())


def judge(config: Inference, output: torch.Tensor, reference: tuple[torch.Tensor, torch.Tensor]) -> Verdict:
    """The relative error of a sample of rows."""
    rows, exact = reference
    error, limit = relative(output[rows], exact), 8 * math.sqrt(len(config.x)) * 2.0**-24
    return Verdict(error, error <= limit, f"error {error:.2g} (at most {limit:.2g})")


@dataclass(frozen=True)
class Training:
    """Inputs (batch, features), classes (batch,), and the width and number of outputs of the networks to train."""

    x: torch.Tensor
    labels: torch.Tensor
    hidden: int
    outputs: int


def make_training(size: int, seed: int, device: str, dtype: torch.dtype) -> Training:
    """`size` normal inputs of `size` features; a random network of one layer says their classes, of 16."""
    generator = torch.Generator(device).manual_seed(seed + 2)
    x = torch.randn(size, size, generator=generator, device=device)
    teacher = torch.randn(size, 16, generator=generator, device=device, dtype=torch.float64)
    return Training(x, (x.double() @ teacher).argmax(1), size, 16)


def make_small(size: int, seed: int, device: str, dtype: torch.dtype) -> Training:
    """A batch of `size` inputs of 100 features in 10 classes, for hidden layers of 256: products so small that what a
    call costs besides shows.
    """
    generator = torch.Generator(device).manual_seed(seed + 2)
    x = torch.randn(size, 100, generator=generator, device=device)
    teacher = torch.randn(100, 10, generator=generator, device=device, dtype=torch.float64)
    return Training(x, (x.double() @ teacher).argmax(1), 256, 10)


def make_digits(size: int, seed: int, device: str, dtype: torch.dtype) -> Training:
    """`size` of the bundled digits, hidden layers of 128."""
    x, labels = digits()
    return Training((x[:size] / 16).to(device), labels[:size].to(device), 128, 10)


def train(config: Training, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Loss before each of 8 steps of gradient descent with momentum, for five networks: (5, 8), float64."""
    curves = torch.zeros(SEEDS, STEPS, dtype=torch.float64)
    x = config.x.to(dtype)
    for seed in range(SEEDS):
        model = network(x.shape[1], config.hidden, config.outputs, seed, str(x.device.type)).to(dtype)
        velocity = [torch.zeros_like(p) for p in model.parameters()]
        losses = []
        for _ in range(STEPS):
            loss = nn.functional.cross_entropy(model(x), config.labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            losses.append(loss.detach().double())
            with torch.no_grad():
                for p, v, g in zip(model.parameters(), velocity, gradients, strict=True):
                    v.mul_(MOMENTUM).add_(g)
                    p.sub_(v, alpha=RATE)
        curves[seed] = torch.stack(losses).cpu()
    return curves


def refer_training(config: Training) -> tuple[torch.Tensor, torch.Tensor]:
    """The curves of IEEE float32, and of float64 with certified products."""
    with full_precision():
        single = train(config)
    with prismm.emulate("native"):
        return single, train(config, torch.float64)


def judge_training(config: Training, curves: torch.Tensor, reference: tuple[torch.Tensor, torch.Tensor]) -> Verdict:
    """How far the curves are from the references, as a share of the distance between seeds."""
    single, double = reference
    spread = single.max(0).values - single.min(0).values
    distance = max(float(((curves - other).abs() / spread).max()) for other in (single, double))
    error = relative(curves, double)
    return Verdict(error, distance < 1.0, f"curves differ by {distance:.2g} of the spread of {SEEDS} seeds")


APP = Application("mlp", "MLP", make, solve, refer, judge, {"quick": 128, "cpu": 1024, "cuda": 16384})
TRAINING = Application(
    "mlp-training", "MLP, training", make_training, train, refer_training, judge_training,
    {"quick": 64, "cpu": 256, "cuda": 4096},
)  # fmt: skip
DIGITS = Application(
    "mlp-digits", "MLP, training on digits", make_digits, train, refer_training, judge_training,
    {"quick": 64, "cpu": 512, "cuda": 1797},
)  # fmt: skip

SMALL = Application(
    "mlp-small", "MLP, small, training", make_small, train, refer_training, judge_training,
    {"quick": 64, "cpu": 64, "cuda": 64},
)  # fmt: skip

if __name__ == "__main__":
    main(APP, TRAINING, DIGITS, SMALL)
