"""The verbs for DTensors: what each rank multiplies, and what it sends."""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from prismm import dispatch
from prismm.core import arrays
from prismm.core.request import finite_scalar, refuse_vector
from prismm.core.threads import worker_count
from prismm.cpu.fast_paths import fast_sum
from prismm.cpu.partial.setting import Setting
from prismm.cuda.rows import added, product_and_row
from prismm.distributed.exchange import Exchange
from prismm.distributed.inner import Backend, Product
from prismm.distributed.kinds import Factors, ProductKind, kind_of
from prismm.distributed.on_cpu import OnCpu
from prismm.distributed.placements import arrived, brought, local_part
from prismm.errors import ArgumentError, OperandError

Tensor = torch.Tensor


def matmul(a: Any, b: Any, keywords: tuple[Any, ...], narrow: torch.dtype | None = None) -> DTensor:
    """`prismm.matmul` of DTensors.

    Args:
        a, b: DTensors over one mesh.
        keywords: as of `dispatch.matmul`; no workspace.
        narrow: a type that the result is rounded to once more, if any.

    Returns:
        The product, with the placements that torch's own matmul gives it. Where those are Partial, exact sums are
        scattered over that mesh dimension instead: rounded entries would no longer add up exactly.

    Raises:
        ArgumentError: for meshes and placements that cannot work. OperandError: for operands of which one is no
            DTensor. EngineError: on every rank, where ranks differ, are missing or late. The errors of `prismm.matmul`
            besides.
    """
    return multiply(a, b, None, None, keywords, narrow)


def gemm(
    a: Any, b: Any, c: Any, factors: Factors, transposes: tuple[str, str], keywords: tuple[Any, ...],
    narrow: torch.dtype | None = None,
) -> DTensor:  # fmt: skip
    """`prismm.gemm` of DTensors; arguments, results and errors as of `matmul` here."""
    alpha, beta = finite_scalar(factors[0], "alpha"), finite_scalar(factors[1], "beta")
    if beta != 0 and c is None:
        raise ArgumentError(f"beta={beta!r} needs c; pass it, or beta=0")
    _check(a, "a")
    _check(b, "b")
    a, b = _transposed(a, transposes[0], "trans_a"), _transposed(b, transposes[1], "trans_b")
    return multiply(a, b, c if beta != 0 else None, (alpha, beta), keywords, narrow)


def _check(x: Any, name: str) -> None:
    if not isinstance(x, DTensor):
        raise OperandError(
            f"{name} is a {type(x).__name__}, and another operand is a DTensor; pass "
            f"torch.distributed.tensor.distribute_tensor({name}, mesh, placements), with [Replicate()] placements for "
            "what every rank has whole"
        )


def _transposed(x: DTensor, how: str, name: str) -> Any:
    if how not in ("N", "T", "C"):
        raise ArgumentError(f"{name}={how!r}; pass 'N', 'T' or 'C'")
    if how == "N":
        return x
    refuse_vector(tuple(x.shape), how, name)
    swapped = x.transpose(-2, -1)
    return swapped.conj().resolve_conj() if how == "C" and x.is_complex() else swapped


@torch.no_grad()
def multiply(
    a: Any, b: Any, c: Any, factors: Factors | None, keywords: tuple[Any, ...], narrow: torch.dtype | None = None, *,
    stepwise: bool = False,
) -> DTensor:  # fmt: skip
    """a @ b, or alpha·a @ b + beta·c for factors (alpha, beta); c None where beta is 0. Otherwise as `matmul`.

    stepwise: of a sum on GPUs, whether the product is rounded before it is scaled and C is added, as by torch's
    operators on one GPU.
    """
    for name, x in (("a", a), ("b", b), ("c", c)):
        if x is not None or name != "c":
            _check(x, name)
    if keywords[5] is None:
        keywords = (*keywords[:5], _threads(), *keywords[6:])
    kind = kind_of(a, b, c, factors, keywords, narrow, stepwise)
    layout, mesh = kind.layout, a.device_mesh
    exchange = Exchange(mesh, layout.inner)
    # Where nothing is sent, nobody waits for a rank that is missing.
    alone = kind.here and not kind.exact and exchange.agreed(kind.text) and arrived(a) and arrived(b)
    if alone and (c is None or (kind.addend_here and arrived(c))):
        return kind.placed(_narrowed(_local(a, b, c, kind), narrow), mesh)
    with exchange.entered(kind.text):
        exchange.agree(kind.text, always=kind.exact)
        x, y = brought(a, layout.left), brought(b, layout.right)
        local = _exact(x, y, c, kind, exchange) if kind.exact else _local(x, y, c, kind)
    return kind.placed(_narrowed(local, narrow), mesh)


def _narrowed(local: Tensor, narrow: torch.dtype | None) -> Tensor:
    return local if narrow is None else local.to(narrow)


def _threads() -> int | None:
    """Workers of a rank: its share of the processors where torchrun started several ranks here, unless PRISMM_THREADS
    says how many.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if os.environ.get("PRISMM_THREADS") or not local.isdecimal() or int(local) < 2:
        return None
    return max(1, worker_count() // int(local))


def _local(a: DTensor, b: DTensor, c: DTensor | None, kind: ProductKind) -> Tensor:
    """This rank's product of its parts."""
    x, y = local_part(a), local_part(b)
    if kind.factors is None:
        return cast(Tensor, dispatch.matmul(x, y, kind.keywords))
    alpha, beta = kind.factors
    # All ranks bring it, whoever adds it: of parts that are summed, one has C.
    addend = None if c is None else _addend(c, kind)
    addend = addend if kind.first(a.device_mesh) else None
    if kind.stepwise:
        if addend is not None and alpha == beta == 1 and x.is_cuda:
            value: Tensor | None = product_and_row(x, y, addend, kind.keywords)
            if value is not None:
                return value
        return added(dispatch.matmul(x, y, kind.keywords), addend, alpha, beta)
    if addend is None and alpha == 1:
        return cast(Tensor, dispatch.matmul(x, y, kind.keywords))
    if addend is not None and kind.native:
        value = fast_sum(addend, x, y, alpha, beta)
        if value is not None:
            return value
    return cast(
        Tensor, dispatch.gemm(x, y, addend, (alpha, 0.0 if addend is None else beta), ("N", "N"), kind.keywords)
    )


def _addend(c: DTensor, kind: ProductKind) -> Tensor:
    """This rank's part of C, which broadcasts to its part of the result."""
    if kind.addend_here:
        return local_part(c)
    if tuple(c.shape) != kind.layout.shape:
        # A part of a dimension of size 1 cannot be repeated.
        placements = (Replicate() if type(each) is Shard and c.shape[each.dim] == 1 else each for each in c.placements)
        c = cast(DTensor, brought(c, tuple(placements)).expand(kind.layout.shape))
    return local_part(brought(c, kind.addend))


def _exact(a: DTensor, b: DTensor, c: DTensor | None, kind: ProductKind, exchange: Exchange) -> Tensor:
    """This rank's share of the exact sums over all ranks, rounded once; of operands with the placements of `layout`."""
    setting, layout = kind.setting, kind.layout
    assert setting is not None
    rows, columns, workers = a.ndim > 1, b.ndim > 1, worker_count(kind.keywords[5])
    parts = local_part(a), local_part(b)
    backend, given = _backend(parts, setting, workers, kind.by_gpu)
    x, y = given[0] if rows else given[0][None, :], given[1] if columns else given[1][:, None]
    of_rows = len(layout.shape) - 1 - columns
    axes = {
        index: (0 if rows and kind.result[index].dim == of_rows else 1) if type(kind.result[index]) is Shard else None
        for index in layout.inner
    }
    work = Product(x, y, setting, exchange, axes, backend, workers)
    joins = not kind.stepwise
    shape = *work.batch, *[each.stop - each.start for each in (work.rows,) * rows + (work.columns,) * columns]
    addend = _on_cpu(_addend(c, kind).expand(shape), setting, rows, columns) if c is not None and joins else None
    found = work.run(kind.factors if joins else None, addend)
    found = found if isinstance(found, torch.Tensor) else torch.from_numpy(np.array(found, order="C", copy=None))
    found = found if columns else found[..., 0]
    found = found if rows else found.squeeze(-2 if columns else -1)
    found = found.contiguous().to(parts[0].device)
    if kind.factors is not None and not joins:
        found = added(found, None if c is None else _addend(c, kind), *kind.factors)
    return found


def _on_cpu(c: Tensor, setting: Setting, rows: bool, columns: bool) -> Any:
    """This rank's share of C as an array that has rows and columns."""
    found = arrays.normalise(c.cpu(), "c").data
    found = found if rows else np.expand_dims(found, -2 if columns else -1)
    found = found if columns else found[..., None]
    return found.astype(np.complex128) if setting.is_complex and found.dtype.kind != "c" else found


def _backend(
    parts: tuple[Tensor, Tensor], setting: Setting, workers: int, by_gpu: bool
) -> tuple[Backend, tuple[Any, Any]]:
    """What makes the steps of exact sums, and the operands as it reads them."""
    if by_gpu:
        from prismm.distributed import on_gpu

        return on_gpu.on_gpu(*parts, setting, workers)
    x, y = (arrays.normalise(each.cpu(), "an operand").data for each in parts)
    return OnCpu(setting, workers), (x, y)
