"""Slices with exponents of their own as a GPU cuts them, in Triton's interpreter, against a CPU's, which a twin checks:
digits, exponents, and what a bound is told; tells what is wrong with each.

python -m tests.cuda.harness.interpreter adaptive_digits [seed [any|nvidia|hopper]]
"""

import dataclasses

import numpy as np
import torch

from prismm.core import accuracy
from prismm.core.composite import Scaled
from prismm.cpu.slices.split import cut
from prismm.cuda.device import Device
from prismm.cuda.launch.arguments import A, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.residues.tables import CertificateTest
from prismm.cuda.slices import pairs as slice_pairs
from prismm.cuda.slices.config import Cut, LaunchConfig, digits_for
from prismm.cuda.views import Vectors
from tests.cpu.kernels.test_slice import hostile_rows
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.offline.interpreted_adaptive import UNITS, gaps


def operand(seed: int, k: int) -> np.ndarray:
    """Rows with their largest magnitudes in [1/2, 1): hostile ones, zeros, and such with elements far apart."""
    rows = np.asarray(hostile_rows(np.random.default_rng(seed), k))
    wide = gaps(3, k, 1, seed, np.dtype("float64"))[0]
    rows = np.concatenate([rows, np.zeros((1, k)), wide])
    return np.ldexp(rows, -np.frexp(np.abs(rows).max(1))[1][:, None])


def sliced(rows: np.ndarray, config: LaunchConfig, device: Device) -> list[np.ndarray]:
    """Digits, statistics, and what is kept of every slice."""
    count, k = rows.shape
    x = torch.from_numpy(rows)[None]
    program = Program()
    vectors = Vectors(BufferView(A, 0, x.dtype), 1, count, k, x.stride())
    padded = Cut(1, 256)
    found = slice_pairs.slice_vectors(program, vectors, config, padded, device, left=True)
    workspace = program.run_by_triton(x, x, x)

    def read(place: BufferView) -> np.ndarray:
        size = int(np.prod(place.shape)) * place.dtype.itemsize
        return workspace[place.offset : place.offset + size].view(place.dtype).reshape(place.shape).numpy()

    kept = read(found.extras)[0].reshape(3, config.slices, count)
    return [read(found.digits)[:, :count].astype(np.float64), read(found.statistics)[0], kept]


def main(seed: str = "3", device: str = "any") -> None:
    k, slices = 150, 9
    rows = operand(int(seed), k)
    count = len(rows)
    for scheme in UNITS:
        layout = dataclasses.replace(scheme.layout(k), block=k)
        held = digits_for(scheme.unit, layout.bits, layout.rounding == "toward-zero", True)
        config = LaunchConfig(slices, slices, CertificateTest(accuracy.MAGNITUDE, 1.0, 1.0, k, 53), held)
        digits, statistics, kept = sliced(rows, config, interpreted_device(device))
        own = cut(Scaled("left", rows, np.zeros(count, np.int64), np.zeros(count, np.bool_)), layout, slices, 1)
        wrong = sum(int((digits[p, :, :k] != own.slice(p, 0)).sum()) for p in range(slices)) + int(
            digits[..., k:].any()
        )
        wrong += int((kept[0] != own.exponent - own.exponent[0]).sum())
        wrong += int((statistics[4] != -own.exponent[0]).sum())
        for row, size, unit in ((1, own.magnitude, kept[0]), (2, own.remainder[1:], -own.exponent[0])):
            exact = np.ldexp(size, unit)
            least = np.where(size > 0, np.maximum(exact, 2.0**-500), 0.0)
            wrong += int((kept[row].view(np.float64) != least).sum())
        tell([str(scheme)], wrong=wrong)
