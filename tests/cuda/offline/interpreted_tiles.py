"""The kernels of `TileInt8` in Triton's interpreter, against the CPU and exact arithmetic; prints one line of JSON a
case.

python -m tests.cuda.harness.interpreter tiles [part/parts [nvidia|hopper]]
"""

import numpy as np
import torch

import prismm
from prismm.core.accuracy import Target
from prismm.core.specials import real_operands
from prismm.cuda.device import Device
from prismm.cuda.implementation import implementation_of
from prismm.cuda.launch.program import Program
from prismm.cuda.multiword import implementation as multiword_implementation
from prismm.cuda.tile_int8 import launches as tile_launches
from prismm.schemes.tile_int8 import TileInt8
from prismm.testing import HOSTILE, SPECIAL, exact_product, ieee_specials
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.programs import job_of
from tests.cuda.harness.programs_of_tiles import tiles_program

DEVICE = Device("interpreter", False, True, 4)
CASES = [
    ("normal", (20, 70, 12), {}, None),
    ("wide_rows", (20, 70, 12), {}, None),
    ("wide_rows_and_columns", (9, 130, 17), {"level": 3, "scaling": "none"}, None),
    ("subnormal_operands", (17, 40, 9), {"level": 2, "tile": (8, 64, 16)}, None),
    ("carries", (20, 70, 12), {"level": 1}, None),
    ("uniform", (33, 300, 40), {"level": 5, "tile": (4, 128, 1)}, None),
    ("one_huge", (5, 40, 6), {"level": 5}, None),
    ("normal", (70, 300, 65), {}, "native"),
    ("wide_rows", (20, 150, 12), {}, "native"),
    ("triangular", (40, 40, 44), {}, "native"),
    ("near_overflow", (6, 9, 3), {}, "native"),
    ("near_overflow", (6, 9, 3), {"scaling": "none"}, None),
    ("overflow_threshold", (6, 9, 3), {}, None),
    ("subnormal_results", (6, 40, 5), {"scaling": "none"}, "native"),
    ("infinities", (6, 80, 5), {}, None),
    ("infinities", (6, 80, 5), {"scaling": "none"}, "native"),
    ("normal", (20, 70, 12), {"complex": True}, None),
    ("wide_rows", (9, 40, 17), {"complex": True, "level": 3, "tile": (8, 64, 16)}, None),
    ("near_overflow", (6, 9, 3), {"complex": True}, None),
    ("wide_rows", (20, 80, 12), {"complex": True}, "native"),
    ("infinities", (6, 40, 5), {"complex": True}, "native"),
    ("normal", (20, 70, 12), {"exponent": "pair"}, None),
    ("stepped", (40, 70, 28), {"exponent": "pair"}, None),
    ("stepped", (9, 150, 10), {"exponent": "pair", "tile": (1, 64, 1), "scaling": "none"}, None),
    ("stepped", (9, 150, 10), {"exponent": "pair", "level": 5, "tile": (4, 32, 2)}, None),
    ("phi4", (9, 150, 10), {"exponent": "pair", "level": 2, "tile": (2, 32, 1)}, None),
    ("wide_rows_and_columns", (9, 130, 17), {"exponent": "pair", "level": 3, "scaling": "none"}, None),
    ("carries", (20, 70, 12), {"exponent": "pair", "level": 1, "tile": (4, 32, 4)}, None),
    ("uniform", (133, 300, 70), {"exponent": "pair", "level": 5, "tile": (4, 128, 1)}, None),
    ("one_huge", (5, 40, 6), {"exponent": "pair", "level": 5, "tile": (1, 32, 1)}, None),
    ("subnormal_operands", (17, 40, 9), {"exponent": "pair", "level": 2, "tile": (8, 64, 16)}, None),
    ("normal", (70, 300, 65), {"exponent": "pair"}, "native"),
    ("stepped", (20, 150, 12), {"exponent": "pair", "tile": (4, 32, 2)}, "native"),
    ("stepped", (20, 150, 12), {"exponent": "pair", "level": 3, "scaling": "none"}, "native"),
    ("triangular", (40, 40, 44), {"exponent": "pair", "level": 2, "scaling": "none"}, "native"),
    ("near_overflow", (6, 9, 3), {"exponent": "pair", "scaling": "none"}, None),
    ("subnormal_results", (6, 40, 5), {"exponent": "pair", "scaling": "none"}, "native"),
    ("infinities", (6, 80, 5), {"exponent": "pair"}, "native"),
    ("wide_rows", (9, 40, 17), {"exponent": "pair", "complex": True, "level": 3, "tile": (8, 64, 16)}, None),
]


def stepped(m: int, k: int, n: int, seed: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Magnitudes that change along the inner dimension, and from vector to vector, by up to 40 binades: a program's
    tiles have many exponents. A third is 0, so that some tiles are empty.
    """
    rng = np.random.default_rng(seed)
    found = []
    for count in (m, n):
        x = rng.standard_normal((count, k)) * (rng.random((count, k)) < 2 / 3)
        found.append(np.ldexp(x, np.repeat(rng.integers(-40, 1, (count, -(-k // 32))), 32, 1)[:, :k]).astype(dtype))
    return found[0], np.ascontiguousarray(found[1].T)


def product(a: np.ndarray, b: np.ndarray, scheme: TileInt8, target: Target | None) -> tuple[np.ndarray, list[int]]:
    """The pipeline of a GPU, on this CPU."""
    config = tile_launches.config_for(scheme, a.shape[1] * (2 if np.iscomplexobj(a) else 1), target)
    x, y = (torch.from_numpy(v)[None] for v in (a, b))
    out = torch.full((1, a.shape[0], b.shape[1]), torch.nan, dtype=x.dtype)
    program, counts = tiles_program(x, y, out, config, DEVICE)
    workspace = program.run_by_triton(x, y, out)
    return out[0].numpy(), workspace[counts.offset : counts.offset + 32].view(torch.int64).tolist()


def main(share: str = "0/1", device: str = "nvidia") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    part, parts = map(int, share.split("/"))
    for name, shape, asked, kind in CASES[part::parts]:
        given = {key: value for key, value in asked.items() if key != "complex"}
        dtype = np.dtype(np.complex64 if "complex" in asked else np.float32)
        a, b = {**HOSTILE, **SPECIAL, "stepped": stepped}[name](*shape, seed=3, dtype=dtype)
        if name == "normal":
            a[3], b[:, 2] = 0.0, 0.0
        scheme = TileInt8(fallback=False, **given)
        target = Target(kind) if kind else None
        with np.errstate(over="ignore"):
            expected = np.asarray(prismm.matmul(a, b, scheme=scheme))
        different = wrong = 0
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            c, counts = product(x, y, scheme, target)
            if kind is None:
                real = np.isnan(c.view(np.float32)) & np.isnan(expected.view(np.float32))
                same = (c.view(np.int32) == expected.view(np.int32)) | real
                different += int((~same).sum())
                continue
            for index, own in enumerate((c.real.copy(), c.imag.copy()) if np.iscomplexobj(c) else (c,)):
                left, right = real_operands(a, b, index)
                if name in SPECIAL:
                    special = ieee_specials(left, right)
                    outside = ~np.isfinite(special)
                    wrong += int((outside & ~((own == special) | (np.isnan(own) & np.isnan(special)))).sum())
                else:
                    exact, terms = exact_product(left, right), left.shape[1]
                    allowed = terms * 2.0**-24 * exact.magnitude("up") + terms * 2.0**-149
                    wrong += int((~exact.within(own, allowed)).sum())
        case = [name, kind, str(scheme)]
        tell(case, different=different, wrong=wrong, counts=counts)
    if part == 0:
        blocks_of_a_batch()


def blocks_of_a_batch() -> None:
    """Three products that share an operand, two at a time, in blocks of rows and columns."""
    scheme = TileInt8(fallback=False)
    a = torch.from_numpy(np.stack([HOSTILE["wide_rows"](40, 70, 5, seed=x, dtype=np.float32)[0] for x in range(3)]))
    b = torch.from_numpy(HOSTILE["wide_rows"](5, 70, 30, seed=9, dtype=np.float32)[1])[None]
    out = torch.full((3, 40, 30), torch.nan)
    program = Program()
    counts = program.allocate(torch.int64, 4)
    multiword_implementation.BATCH_BYTES = 2 * tile_launches.workspace(scheme, 32, 16, 70)
    config = tile_launches.config_for(scheme, 70, None)
    implementation_of(scheme).queue(job_of(program, a, b, out, config, counts, DEVICE, (40, 17)))
    program.run_by_triton(a, b, out)
    expected = np.stack([np.asarray(prismm.matmul(x.numpy(), b[0].numpy(), scheme=scheme)) for x in a])
    different = int((out.numpy().view(np.int32) != expected.view(np.int32)).sum())
    tell(["blocks of a batch"], different=different, wrong=0, counts=[])
