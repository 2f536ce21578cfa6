"""One product on many devices: of torch's distributed tensors (DTensor), and what it would take.

`prismm.matmul`, `prismm.gemm` and the operators of `prismm.programs` come here by themselves: the bits are the same on
any number of ranks. Rows, columns and batches are multiplied where they are. A sharded inner dimension is summed by
torch at native grade, and as exact integers where bits or certificates depend on it (`inner`).

`model` predicts seconds, bytes and memory on any number of GPUs (`scaling`); it needs neither torch nor a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.lazy import attributes

if TYPE_CHECKING:
    from prismm.distributed.links import Links
    from prismm.distributed.scaling import Model, Point, model

__all__ = ["Links", "Model", "Point", "model"]

_HOMES = {
    "Links": "prismm.distributed.links",
    "Model": "prismm.distributed.scaling",
    "Point": "prismm.distributed.scaling",
    "model": "prismm.distributed.scaling",
}

__getattr__ = attributes(globals(), _HOMES)
