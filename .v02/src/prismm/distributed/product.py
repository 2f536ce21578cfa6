"""The verbs for DTensors: what is multiplied where, and what the result's placements are."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, cast

import numpy as np
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from prismm import dispatch
from prismm.core import arrays
from prismm.core.request import Request, check_request, check_scalars, finite_scalar, refuse_vector
from prismm.core.threads import worker_count
from prismm.cpu.implementation import implementation_of
from prismm.cpu.partial.setting import Setting, setting_of
from prismm.cuda.device import FP8
from prismm.distributed.exchange import Exchange, ranks_of
from prismm.distributed.inner import Backend, Product
from prismm.distributed.on_cpu import OnCpu
from prismm.distributed.placements import Layout, brought, here, landing, layout_of, local_part
from prismm.errors import ArgumentError, DTypeError, EngineError, OperandError, ShapeError
from prismm.schemes.names import scheme_of

Tensor = torch.Tensor
Factors = tuple[complex, complex]


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
    a: Any, b: Any, c: Any, factors: Factors | None, keywords: tuple[Any, ...], narrow: torch.dtype | None = None
) -> DTensor:
    """a @ b, or alpha·a @ b + beta·c for factors (alpha, beta); c None where beta is 0. Otherwise as `matmul`."""
    for name, x in (("a", a), ("b", b), *((("c", c),) if c is not None else ())):
        _check(x, name)
    accuracy, scheme, reproducible, out_dtype, engine, threads, _ = keywords
    threads = _threads() if threads is None else threads
    types = _numpy_type(a), _numpy_type(b)
    if out_dtype is None and all(each.kind == "b" for each in types):
        # Of gemm, which counts: the operators take no bools.
        out_dtype = "float64"
    keywords = accuracy, scheme_of(scheme), reproducible, out_dtype, engine, threads, None
    request = check_request(accuracy, scheme_of(scheme), reproducible, out_dtype, engine, threads, None, None)[0]
    layout = layout_of(a, b)
    dtype = arrays.result_dtype(
        [np.empty(0, each) for each in (*types, *((_numpy_type(c),) if c is not None else ()))], out_dtype
    )
    if factors is not None:
        check_scalars(*factors, dtype.kind == "c")
        # A product alone is one of a matmul, with its bits.
        factors = None if factors == (1, 0) else factors
    setting = _setting(a, b, types, dtype, request, factors is not None) if layout.inner else None
    exchange = Exchange(a.device_mesh, layout.inner)
    by_gpu = setting is not None and _by_gpu(a, setting)
    kind = _kind(a, b, c, factors, keywords, narrow, setting) + ("; by GPUs" if by_gpu else "")
    exact = setting is not None and any(a.device_mesh.size(index) > 1 for index in layout.inner)
    # Where nothing is sent, nobody waits for a rank that is missing.
    alone = not exact and c is None and here(a, layout.left) and here(b, layout.right) and exchange.agreed(kind)
    with contextlib.nullcontext() if alone else exchange.entered(kind):
        if not alone:
            exchange.agree(kind, always=exact)
        x, y = brought(a, layout.left), brought(b, layout.right)
        result = layout.result if setting is None else landing(layout, a.ndim > 1, b.ndim > 1)
        if setting is None or not exact:
            local = _local(x, y, c, factors, layout, keywords, exchange)
        else:
            local = _exact(x, y, c, factors, layout, result, setting, exchange, request, by_gpu)
    if narrow is not None:
        local = local.to(narrow)
    stride = torch.empty(layout.shape, device="meta").stride()
    return DTensor.from_local(
        local.contiguous(), a.device_mesh, result, run_check=False, shape=torch.Size(layout.shape), stride=stride
    )


def _threads() -> int | None:
    """Workers of a rank: its share of the processors where torchrun started several ranks here, unless PRISMM_THREADS
    says how many.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if os.environ.get("PRISMM_THREADS") or not local.isdecimal() or int(local) < 2:
        return None
    return max(1, worker_count() // int(local))


def _numpy_type(x: DTensor) -> np.dtype[Any]:
    """The element type as NumPy has it; float32 holds what NumPy lacks."""
    name = str(x.dtype).removeprefix("torch.").replace("bfloat16", "float32")
    if name not in arrays.NAMES and name != "bool":
        raise DTypeError(f"an operand has dtype {name}, which prismm does not multiply; convert it with .to(...)")
    return np.dtype(name)


def _kind(
    a: DTensor, b: DTensor, c: DTensor | None, factors: Factors | None, keywords: tuple[Any, ...],
    narrow: torch.dtype | None, setting: Setting | None,
) -> str:  # fmt: skip
    """What ranks have to agree on, in words."""
    operands = " and ".join(f"{tuple(x.shape)} {x.dtype} {x.placements}" for x in (a, b, c) if x is not None)
    asked = ", ".join(f"{name}={value!r}" for name, value in zip(_KEYWORDS, keywords, strict=False) if value)
    exact = f"; exact with {setting.moduli} moduli of k = {setting.k}" if setting is not None else ""
    scaled = f"; factors {factors}" if factors is not None else ""
    return f"product of {operands} over mesh {ranks_of(a.device_mesh)}, {asked or 'native'}{scaled}{exact}; {narrow}"


_KEYWORDS = ("accuracy", "scheme", "reproducible", "out_dtype", "engine")


def _setting(
    a: DTensor,
    b: DTensor,
    types: tuple[Any, Any],
    dtype: np.dtype[Any],
    request: Request,
    summed: bool,
) -> Setting | None:
    """The setting of exact sums; None where torch's own reduction of rounded ones will do.

    That adds K terms in some order, as native products do: the bound of Native, K·u·|a||b|, holds for it as a whole.
    """
    kind = request.target.kind if request.target is not None else "fast"
    of_digits = request.scheme is not None and hasattr(implementation_of(request.scheme), "digit_moduli")
    if not (request.reproducible or of_digits or kind in ("tolerance", "correctly-rounded")):
        return None
    m, n = (a.shape[-2] if a.ndim > 1 else 1), (b.shape[-1] if b.ndim > 1 else 1)
    if a.device_mesh.device_type != "cpu" and (request.engine or "").startswith("cuda"):
        # A GPU's INT8 units are the only ones that make exact sums there.
        if request.engine == FP8:
            raise EngineError(
                f"engine={FP8!r} multiplies no products whose inner dimension is sharded; leave engine out, or pass "
                "'cuda:int8'"
            )
        request = dataclasses.replace(request, engine=None)
    return setting_of(m, a.shape[-1], n, types, dtype, request, summed=summed)


def _local(
    a: DTensor, b: DTensor, c: DTensor | None, factors: Factors | None, layout: Layout, keywords: tuple[Any, ...],
    exchange: Exchange,
) -> Tensor:  # fmt: skip
    """This rank's product of its parts."""
    x, y = local_part(a), local_part(b)
    if factors is None:
        found: Tensor = dispatch.matmul(x, y, keywords)
        return found
    alpha, beta = factors
    addend = None
    if c is not None:
        whole = tuple(Replicate() if each.is_partial() else each for each in layout.result)
        addend = _addend(c, layout, whole)
        # Of parts that are summed, one has C.
        if any(exchange.mesh.get_local_rank(index) for index in layout.inner):
            addend, beta = None, 0.0
    found = dispatch.gemm(x, y, addend, (alpha, beta if addend is not None else 0.0), ("N", "N"), keywords)
    return found


def _addend(c: DTensor, layout: Layout, placements: tuple[Any, ...]) -> Tensor:
    """This rank's part of C, with the result's shape and these placements."""
    if tuple(c.shape) != layout.shape:
        try:
            c = cast(DTensor, c.expand(layout.shape))
        except RuntimeError:
            raise ShapeError(
                f"c has shape {tuple(c.shape)}, the product has shape {layout.shape}; c must broadcast to it"
            ) from None
    return local_part(brought(c, placements))


def _exact(
    a: DTensor, b: DTensor, c: DTensor | None, factors: Factors | None, layout: Layout, result: tuple[Any, ...],
    setting: Setting, exchange: Exchange, request: Request, by_gpu: bool,
) -> Tensor:  # fmt: skip
    """This rank's share of the exact sums over all ranks, rounded once.

    Args:
        a, b, c, factors, layout, exchange, request: of the product.
        result: placements where the sums land.
        setting: of the sums.
        by_gpu: whether GPUs make the steps.
    """
    rows, columns = a.ndim > 1, b.ndim > 1
    parts = local_part(a).detach(), local_part(b).detach()
    backend, given = _backend(parts, setting, request, by_gpu)
    x, y = given[0] if rows else given[0][None, :], given[1] if columns else given[1][:, None]
    of_rows = len(layout.shape) - 1 - columns
    axes = {
        index: (0 if rows and result[index].dim == of_rows else 1) if type(result[index]) is Shard else None
        for index in layout.inner
    }
    work = Product(x, y, setting, exchange, axes, backend, request.threads)
    addend = None
    if c is not None:
        addend = arrays.normalise(_addend(c, layout, result).detach().cpu(), "c").data
        addend = addend if rows else np.expand_dims(addend, -2 if columns else -1)
        addend = addend if columns else addend[..., None]
        if setting.is_complex and addend.dtype.kind != "c":
            addend = addend.astype(np.complex128)
    found = work.run(factors, addend)
    found = found if isinstance(found, torch.Tensor) else torch.from_numpy(np.array(found, order="C", copy=None))
    found = found if columns else found[..., 0]
    found = found if rows else found.squeeze(-2 if columns else -1)
    return found.contiguous().to(parts[0].device)


def _by_gpu(a: DTensor, setting: Setting) -> bool:
    """Whether this rank's GPU makes the steps of exact sums; all ranks have to agree."""
    if a.device_mesh.device_type != "cuda":
        return False
    from prismm.distributed import on_gpu

    return on_gpu.serves(a._local_tensor.device, setting)


def _backend(
    parts: tuple[Tensor, Tensor], setting: Setting, request: Request, by_gpu: bool
) -> tuple[Backend, tuple[Any, Any]]:
    """What makes the steps of exact sums, and the operands as it reads them."""
    if by_gpu:
        from prismm.distributed import on_gpu

        return on_gpu.on_gpu(*parts, setting, request.threads)
    x, y = (arrays.normalise(each.cpu(), "an operand").data for each in parts)
    return OnCpu(setting, request.threads), (x, y)
