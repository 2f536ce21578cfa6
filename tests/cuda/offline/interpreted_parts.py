"""Products of a long inner dimension in parts, in the interpreter, against exact arithmetic; prints one line of JSON a
case.

python -m tests.cuda.harness.interpreter parts
"""

import itertools

from prismm.cuda.native.kernels import product as direct
from prismm.cuda.native.kernels import product_sm90 as direct_sm90
from prismm.cuda.native.kernels import repair
from prismm.cuda.native.tiles import BY_GROUPS, TILES, Split
from prismm.cuda.residues.kernels import product_sm90
from prismm.testing import SPECIAL
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpret
from tests.cuda.offline.interpreted_direct import LAYOUTS, NAMES, batched, bounded, hidden, overflowing, special

EXTENTS = [(1, 40, 1, 16), (17, 130, 29, 32), (5, 600, 70, 64), (33, 193, 19, 64)]
"""Rows, inner dimension, columns, terms of a part."""


GROUPED = [(132, 100, 68), (64, 64, 128), (4, 200, 4)]
"""The same for groups, which multiply 32 terms at least."""


def split(tile, k: int, length: int) -> Split:
    return Split(tile, -(-k // length), length)


def main() -> None:
    interpret(product_sm90, direct, direct_sm90, repair)
    cases: list = []
    some = [TILES[0], TILES[4], TILES[5]]
    for turn, (tile, dtype, extents) in enumerate(itertools.product(some, ("float64", "float32"), EXTENTS)):
        m, k, n, length = extents
        for name in (NAMES[turn % len(NAMES)], NAMES[(turn + 5) % len(NAMES)]):
            cases.append((bounded, name, split(tile, k, length), dtype, LAYOUTS[turn % len(LAYOUTS)], (m, k, n)))
    cases += [(bounded, "normal", split(TILES[5], 300, 16), dtype, LAYOUTS[0], (20, 300, 20))
              for dtype in ("float64", "float32")]  # fmt: skip
    cases += [(special, name, split(TILES[5], 70, 32), dtype) for name in SPECIAL for dtype in ("float64", "float32")]
    for turn, ((m, k, n), tile) in enumerate(itertools.product(GROUPED, BY_GROUPS)):
        dtype = "float64" if tile.double else "float32"
        for name in ("normal", NAMES[turn % len(NAMES)], NAMES[(turn + 5) % len(NAMES)]):
            cases.append((bounded, name, split(tile, k, 32), dtype, LAYOUTS[turn % 3], (m, k, n)))
    cases += [(special, name, split(tile, 72, 32), "float64" if tile.double else "float32")
              for name, tile in itertools.product(SPECIAL, BY_GROUPS)]  # fmt: skip
    # A part for each of the terms that cancel: of 3, of 4, and of 21.
    cases += [(hidden, Split(TILES[5], parts, length)) for parts, length in ((3, 1), (2, 2))]
    cases += [(overflowing, Split(TILES[5], 4, 1)), (batched, Split(TILES[5], 3, 8)), (batched, Split(TILES[0], 21, 1))]
    for check, *rest in cases:
        told = [f"{x.parts} parts of {x.length}" if isinstance(x, Split) else x for x in rest]
        tell([check.__name__, *told], wrong=int(check(*rest)))
