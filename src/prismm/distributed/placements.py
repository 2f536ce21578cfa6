"""Where the parts of a product lie: the placements of operands for the local products, and of the result.

The result's placements are those that torch's own matmul gives: its sharding rules are asked, with tensors that hold no
entries. Where torch refuses (an uneven batch that it would flatten), or where vectors take part, each mesh dimension
follows the operand that is sharded there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from prismm.core import arrays
from prismm.errors import ArgumentError

Tensor = torch.Tensor
Placements = tuple[Any, ...]


@dataclass(frozen=True)
class Layout:
    """How a product is cut over a mesh.

    Attributes:
        left, right: placements that the operands are brought to.
        result: placements of the result as torch gives them; Partial where the inner dimension is sharded.
        shape: of the whole result.
    """

    left: Placements
    right: Placements
    result: Placements
    shape: tuple[int, ...]

    @property
    def inner(self) -> tuple[int, ...]:
        """Mesh dimensions over which the inner dimension is sharded."""
        return tuple(index for index, each in enumerate(self.result) if each.is_partial())


def layout_of(a: DTensorSpec, b: DTensorSpec) -> Layout:
    """The layout of a @ b, of operands of one mesh with these specifications.

    Raises:
        ArgumentError: for operands on different meshes; for placements that no local products follow from.
        ShapeError: for shapes that do not fit.
    """
    if a.mesh != b.mesh:
        raise ArgumentError(
            f"a is on {a.mesh} with placements {a.placements}, b on {b.mesh} with placements "
            f"{b.placements}; distribute both over one mesh: torch.distributed.tensor.distribute_tensor("
            "b.full_tensor(), a.device_mesh, …)"
        )
    shape = arrays.product_shape(tuple(a.shape), tuple(b.shape))
    for name, x in (("a", a), ("b", b)):
        for each in x.placements:
            if isinstance(each, Partial) and each.reduce_op != "sum":
                raise ArgumentError(
                    f"{name} has placements {x.placements}: {each} is no sum, which no product of the parts gives; "
                    f"pass {name}.redistribute(placements=[Replicate()] * {a.mesh.ndim})"
                )
    return _layout(a, b, shape)


@functools.lru_cache(maxsize=1024)
def _layout(left: Any, right: Any, shape: tuple[int, ...]) -> Layout:
    ranks = left.ndim, right.ndim
    result = _as_torch(left, right) if min(ranks) > 1 else None
    if result is None or not all(_is_plain(each) for each in result):
        result = tuple(
            _followed(p, q, left, right, shape) for p, q in zip(left.placements, right.placements, strict=True)
        )
    needed = [_needed(each, left.shape, right.shape, shape) for each in result]
    return Layout(tuple(x for x, _ in needed), tuple(y for _, y in needed), result, shape)


def _as_torch(left: Any, right: Any) -> Placements | None:
    """Placements of torch's own product of such operands; None where it has none."""
    # As a program's call begins: below autograd, where this may be asked, matmul is not taken apart in the same way.
    # What stands above autograd is of no interest, such as a block that counts products.
    below = torch._C._after_autograd_keyset
    excluded, included = (
        keys & below
        for keys in (torch._C._dispatch_tls_local_exclude_set(), torch._C._dispatch_tls_local_include_set())
    )
    with torch.no_grad(), torch._C._ForceDispatchKeyGuard(included, excluded):
        operands = []
        for spec in (left, right):
            local = torch.empty(_local_shape(spec), dtype=spec.tensor_meta.dtype, device="meta")
            operands.append(DTensor(local, spec, requires_grad=False))
        try:
            found: Any = torch.matmul(*operands)
            return tuple(found.placements)
        except RuntimeError:
            return None


def _local_shape(spec: Any) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(spec.shape, spec.mesh, spec.placements)[0])


def _is_plain(placement: Any) -> bool:
    """Whether it is one of torch's three; strided shards, which views of several shards leave, are not."""
    return type(placement) in (Replicate, Shard) or (type(placement) is Partial and placement.reduce_op == "sum")


def _followed(p: Any, q: Any, left: Any, right: Any, shape: tuple[int, ...]) -> Any:
    """The result's placement over a mesh dimension where the operands have p and q: rows and batches of a first, then
    columns and batches of b, then the inner dimension.
    """
    rank_a, rank_b = left.ndim, right.ndim
    batch = max(rank_a, rank_b, 2) - 2
    if type(p) is Shard and p.dim != rank_a - 1:
        return Shard(p.dim + max(0, batch - max(rank_a - 2, 0)))
    if type(q) is Shard and q.dim != max(rank_b - 2, 0):
        # Columns are the result's last dimension; a batch of b counts from the left.
        return Shard(len(shape) - 1 if q.dim == rank_b - 1 else q.dim + batch - (rank_b - 2))
    if type(p) is Replicate and type(q) is Replicate:
        return Replicate()
    return Partial()


def _needed(placement: Any, left: tuple[int, ...], right: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """What both operands have over a mesh dimension where the result has this placement."""
    rank_a, rank_b = len(left), len(right)
    if placement.is_partial():
        return Shard(rank_a - 1), Shard(max(rank_b - 2, 0))
    if type(placement) is Replicate:
        return Replicate(), Replicate()
    batch = max(rank_a, rank_b, 2) - 2
    dim = placement.dim
    if dim >= batch:
        rows = rank_a > 1 and dim == batch
        return (Shard(rank_a - 2), Replicate()) if rows else (Replicate(), Shard(rank_b - 1))
    found = []
    for sizes in (left, right):
        mine = dim - (batch - (len(sizes) - 2))
        # An operand that is repeated along the batch is whole everywhere.
        found.append(Shard(mine) if mine >= 0 and sizes[mine] == shape[dim] and shape[dim] > 1 else Replicate())
    return found[0], found[1]


def landing(layout: Layout, rows: bool, columns: bool) -> Placements:
    """Where the entries land whose exact sums are scattered: each mesh dimension over which the inner dimension is
    sharded gets the rows or columns of the result, the longer first, if no other one shards them; Replicate where
    neither is left.

    rows, columns: whether the result has them: not where an operand is a vector.
    """
    found, rank = list(layout.result), len(layout.shape)
    longer = [rank - 1 - columns] * rows + [rank - 1] * columns
    longer.sort(key=lambda dim: -layout.shape[dim])
    for index in layout.inner:
        taken = {each.dim for each in found if type(each) is Shard}
        free = [dim for dim in longer if dim not in taken and layout.shape[dim] > 1]
        found[index] = Shard(free[0]) if free else Replicate()
    return tuple(found)


def sharded(x: Any) -> bool:
    """Whether x is a DTensor."""
    return isinstance(x, DTensor)


def whole(placements: Placements) -> Placements:
    """The placements, with all of it where there were parts of sums."""
    return tuple(Replicate() if each.is_partial() else each for each in placements)


def arrived(x: DTensor) -> bool:
    """Whether this rank's part has come, if it was on its way."""
    return not isinstance(x._local_tensor, AsyncCollectiveTensor)


def brought(x: DTensor, placements: Placements) -> DTensor:
    """x with these placements, by torch's own collectives where it has others."""
    return x if tuple(x.placements) == placements else x.redistribute(x.device_mesh, placements)


def local_part(x: DTensor) -> Tensor:
    """This rank's part, once it has come, without its history."""
    found: Tensor = x._local_tensor
    found = found.wait() if isinstance(found, AsyncCollectiveTensor) else found
    return found.detach() if found.requires_grad else found
