"""Kernels made to wait less than they have to, of which the interpreter must find every one; tells of each.

python -m tests.cuda.harness.interpreter hasty
"""

import dataclasses
import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from triton.runtime.errors import InterpreterError

from prismm.cuda.multiword.kernels import (
    product_sm90 as words_product_sm90,
)
from prismm.cuda.multiword.kernels import (
    split_product_sm90 as words_direct_sm90,
)
from prismm.cuda.native.kernels import product as direct
from prismm.cuda.native.kernels import product_sm90 as direct_sm90
from prismm.cuda.native.tiles import BY_GROUPS, TILES
from prismm.cuda.residues.kernels import product_sm90
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpret, interpreted_device
from tests.cuda.offline import interpreted_words
from tests.cuda.offline.interpreted_direct import multiply
from tests.cuda.offline.interpreted_product import wrong_digits
from tests.cuda.offline.interpreted_words import aligned

GIVEN = """tma.store_wait(0)
                gl.thread_barrier()
                mbarrier.arrive(free.index(held), count=1, pred=(start == begin) & (unit > first))"""
EARLY = "wait(0, deps=(sums,))\n            sums = warpgroup_mma("
CASES = [
    ("as it is", direct, "", ""),
    ("copies are not waited for", direct, "wait_group(STAGES - 2)", "wait_group(STAGES - 1)"),
    ("copies into what is read", direct, "(stage + STAGES - 1) % STAGES", "stage"),
    ("groups as they are", direct_sm90, "", ""),
    ("boxes are not waited for", direct_sm90, "mbarrier.wait(full.index(stage), phase, pred=", "(phase, "),
    ("boxes are given back too early", direct_sm90, "mbarrier.wait(free.index(stage), phase)", "pass"),
    ("results are written over", direct_sm90, "        tma.store_wait(0)\n        gl.thread", "        gl.thread"),
    ("rows are not where they are read", direct_sm90, "v = [2, 4, 1, 8] if left", "v = [1, 4, 2, 8] if left"),
    ("stages are not waited for", product_sm90, "mbarrier.wait(full.index(stage), phase)", "pass"),
    ("sums are not waited for", product_sm90, "second = warpgroup_mma_wait(0, deps=(second,))", "pass"),
    ("stages are given back too early", product_sm90, "warpgroup_mma_wait(2, deps=", "warpgroup_mma_wait(9, deps="),
    ("words as they are", words_direct_sm90, "", ""),
    ("elements are not waited for", words_direct_sm90, "mbarrier.wait(arrived, copied)", "pass"),
    ("words are not waited for", words_direct_sm90, "mbarrier.wait(full.index(stage), phase)", "pass"),
    ("words are written over", words_direct_sm90, "mbarrier.wait(free.index(stage), phase)", "pass"),
    ("words are told of too early", words_direct_sm90, "full.index(written), count=1, pred", "full.index(stage), pred"),
    ("high words do not wait for the others", words_direct_sm90, EARLY, EARLY.replace("wait(0", "wait(9")),
    ("copied words as they are", words_product_sm90, "", ""),
    ("copied words are not waited for", words_product_sm90, "mbarrier.wait(full.index(stage), phase)", "pass"),
    ("copied words are written over", words_product_sm90, "mbarrier.wait(free.index(stage), phase)", "pass"),
    ("a group writes over what the other one reads", words_product_sm90, "mbarrier.wait(done, write_phase)", "pass"),
    ("a tile has not left", words_product_sm90, GIVEN, GIVEN.removeprefix("tma.store_wait(0)")),
    (
        "a tile's stage is given back with its words",
        words_product_sm90,
        "pred=more)\n                " + GIVEN,
        "pred=True)",
    ),
]


def changed(module: ModuleType, old: str, new: str, folder: str) -> ModuleType:
    """The module with another text in place of one, where kernels are looked for."""
    name = module.__name__.rsplit(".", 1)[1]
    text = Path(str(module.__file__)).read_text()
    assert old in text
    path = Path(folder, f"{name}.py")
    path.write_text(text.replace(old, new) if old else text)
    spec = importlib.util.spec_from_file_location(module.__name__, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    setattr(package_of(module), name, found)
    interpret(found)
    return found


def package_of(module: ModuleType) -> ModuleType:
    """Where launches look for a kernel's module."""
    return importlib.import_module(module.__name__.rpartition(".")[0])


def wrong_entries(tile, *shapes) -> int:
    """Of a product by a tile, with those that it had to recompute."""
    a, b = (np.random.default_rng(x).integers(-9, 10, shape).astype(float) for x, shape in enumerate(shapes))
    c, counts = multiply(a, b.T.copy(), ("rows", "rows"), tile)
    return int((c != a @ b.T).sum()) + sum(counts)


def wrong_sums_of_words(directly: bool) -> int:
    """Of two tiles of a product of small integers by words, which are exact, with those that had to be repaired."""
    x, y = (torch.randint(-9, 10, (1, *shape)).float() for shape in ((20, 200), (200, 132)))
    c, counts = interpreted_words.batched(aligned(x), aligned(y), "fp16 2 12", None, directly)
    return int((c != x @ y).sum()) + sum(counts)


def main() -> None:
    torch.manual_seed(1)
    left, right = (torch.randint(-128, 128, (1, 2, x, 1500), dtype=torch.int8) for x in (70, 260))
    sm90 = interpreted_device("hopper")
    interpreted_words.DEVICE = dataclasses.replace(sm90, programs=1)
    checks = {
        direct: lambda: wrong_entries(TILES[5], (20, 150), (20, 150)),
        direct_sm90: lambda: wrong_entries(BY_GROUPS[0], (520, 70), (2, 70)),
        product_sm90: lambda: wrong_digits(left, right, sm90),
        words_direct_sm90: lambda: wrong_sums_of_words(True),
        words_product_sm90: lambda: wrong_sums_of_words(False),
    }
    for case, module, old, new in CASES:
        with tempfile.TemporaryDirectory() as folder:
            changed(module, old, new, folder)
            try:
                wrong = checks[module]()
            except InterpreterError:
                wrong = 1
        tell([case], wrong=wrong)
        for plain in checks:
            setattr(package_of(plain), plain.__name__.rpartition(".")[2], plain)
    tell(["as it was"], wrong=wrong_digits(left, right, sm90))
