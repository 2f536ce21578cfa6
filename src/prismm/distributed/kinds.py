"""Kinds of products of DTensors: what all of them share that have the same shapes, types, placements and keywords."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from prismm.core import arrays
from prismm.core.request import Request, check_request, check_scalars
from prismm.cpu.implementation import implementation_of
from prismm.cpu.partial.setting import Setting, setting_of
from prismm.cuda.device import FP8
from prismm.distributed.exchange import ranks_of
from prismm.distributed.placements import Layout, Placements, landing, layout_of, whole
from prismm.errors import ArgumentError, DTypeError, EngineError, ShapeError
from prismm.planning.moduli_count import GPU_REPAIRS
from prismm.schemes.names import scheme_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Factors = tuple[complex, complex]


@dataclass(frozen=True)
class ProductKind:
    """A kind of products, on any mesh of the same ranks: meshes that are equal may have groups of their own.

    Attributes:
        text: what ranks have to agree on, in words.
        layout: how the product is cut.
        result: placements of the result.
        setting: of exact sums; None where torch's own reduction will do, or the inner dimension is not sharded.
        exact: whether exact sums are shared by several ranks.
        by_gpu: whether GPUs make the steps of exact sums.
        keywords: as of `dispatch.matmul`.
        factors: alpha and beta of a sum; None for a product alone.
        stepwise: whether a sum is made from the rounded product.
        addend: placements with which C, if there is one, is added to the result's parts.
        here: whether the operands need no collective.
        addend_here: whether C's part, as it is, broadcasts to this rank's part of the result.
        specs: of the latest results, by their types.
    """

    text: str
    layout: Layout
    result: Placements
    setting: Setting | None
    exact: bool
    by_gpu: bool
    keywords: tuple[Any, ...]
    factors: Factors | None
    stepwise: bool
    addend: Placements
    here: bool
    addend_here: bool
    specs: dict[torch.dtype, DTensorSpec]

    @property
    def native(self) -> bool:
        """Whether native grade is all that was asked for."""
        accuracy, scheme, reproducible, out_dtype, engine, *_ = self.keywords
        return accuracy in (None, "native") and not reproducible and scheme is out_dtype is engine is None

    def first(self, mesh: DeviceMesh) -> bool:
        """Whether this rank is the one, of those whose rounded parts are added, that adds C."""
        return not any(mesh.get_local_rank(index) for index in self.layout.inner)

    def placed(self, local: torch.Tensor, mesh: DeviceMesh) -> DTensor:
        """The result, of which a rank has this part."""
        local = local.contiguous()
        spec = self.specs.get(local.dtype)
        if spec is None or spec.mesh is not mesh:
            stride = torch.empty(self.layout.shape, device="meta").stride()
            meta = TensorMeta(torch.Size(self.layout.shape), stride, local.dtype)
            spec = self.specs[local.dtype] = DTensorSpec(mesh, self.result, tensor_meta=meta)
        return DTensor(local, spec, requires_grad=False)


def kind_of(
    a: DTensor, b: DTensor, c: DTensor | None, factors: Factors | None, keywords: tuple[Any, ...],
    narrow: torch.dtype | None, stepwise: bool,
) -> ProductKind:  # fmt: skip
    """The kind of a product; arguments and errors as of `product.multiply`."""
    third = None if c is None else c._spec
    asked = a._spec, b._spec, third, factors, keywords, narrow, stepwise, a._local_tensor.device
    found: Any = _kind if _lasts(keywords) else _kind.__wrapped__
    # 0.0 equals -0.0 but is another factor.
    kind: ProductKind = found(*asked, repr(factors) if factors is not None and 0 in factors else "")
    return kind


def _lasts(keywords: tuple[Any, ...]) -> bool:
    """Whether keywords that are equal stay so: a scheme of the caller's own may change."""
    try:
        hash(keywords)
    except TypeError:  # refused later, with a better error
        return False
    scheme = keywords[1]
    parameters = getattr(type(scheme), "__dataclass_params__", None)
    return scheme is None or isinstance(scheme, str) or (parameters is not None and parameters.frozen)


@functools.lru_cache(maxsize=4096)
def _kind(
    a: DTensorSpec, b: DTensorSpec, c: DTensorSpec | None, factors: Factors | None, keywords: tuple[Any, ...],
    narrow: torch.dtype | None, stepwise: bool, device: torch.device, signs: str,
) -> ProductKind:  # fmt: skip
    """`kind_of` for the tensors' specifications. device: this rank's. signs: "", or text that tells 0.0 from -0.0."""
    accuracy, scheme, reproducible, out_dtype, engine, threads, _ = keywords
    types = _numpy_type(a), _numpy_type(b)
    if out_dtype is None and all(each.kind == "b" for each in types):
        # Of gemm, which counts: the operators take no bools.
        out_dtype = "float64"
    keywords = accuracy, scheme_of(scheme), reproducible, out_dtype, engine, threads, None
    request = check_request(accuracy, keywords[1], reproducible, out_dtype, engine, threads, None, None)[0]
    layout = layout_of(a, b)
    dtype = arrays.result_dtype([np.empty(0, each) for each in types], out_dtype)
    if c is not None:
        _check_addend(a, c, layout)
        own, dtype = dtype, arrays.result_dtype([np.empty(0, each) for each in (*types, _numpy_type(c))], out_dtype)
        if own != dtype:
            # Ranks that do not add C have to make parts of the same type.
            keywords = *keywords[:3], dtype.name, *keywords[4:]
    if factors is not None:
        check_scalars(*factors, dtype.kind == "c")
        # A product alone is one of a matmul, with its bits.
        factors = None if factors == (1, 0) else factors
    stepwise = stepwise and factors is not None
    summed = factors is not None and not stepwise
    setting = _setting(a, b, types, dtype, request, summed) if layout.inner else None
    exact = setting is not None and any(a.mesh.size(index) > 1 for index in layout.inner)
    by_gpu = setting is not None and _by_gpu(a.mesh.device_type, device, setting)
    result = layout.result if setting is None else landing(layout, a.ndim > 1, b.ndim > 1)
    text = _text([each for each in (a, b, c) if each is not None], request, dtype, factors, setting, narrow)
    text += ("; by GPUs" if by_gpu else "") + ("; rounded before the sum" if stepwise else "")
    addend = whole(result)
    return ProductKind(
        text, layout, result, setting, exact, by_gpu, keywords, factors, stepwise, addend,
        a.placements == layout.left and b.placements == layout.right,
        c is not None and _fits(c, layout.shape, addend), {},
    )  # fmt: skip


def _check_addend(a: DTensorSpec, c: DTensorSpec, layout: Layout) -> None:
    if c.mesh != a.mesh:
        raise ArgumentError(
            f"c is on {c.mesh} with placements {c.placements}, a and b on {a.mesh}; distribute all over one mesh: "
            "torch.distributed.tensor.distribute_tensor(c.full_tensor(), a.device_mesh, …)"
        )
    added = len(layout.shape) - c.ndim
    if added < 0 or any(x not in (1, y) for x, y in zip(c.shape, layout.shape[added:], strict=True)):
        raise ShapeError(f"c has shape {tuple(c.shape)}, the product has shape {layout.shape}; c must broadcast to it")


def _fits(c: DTensorSpec, shape: tuple[int, ...], placements: Placements) -> bool:
    """Whether a part of C broadcasts to the part of a tensor of this shape that has these placements."""
    added = len(shape) - c.ndim
    for mine, wanted in zip(c.placements, placements, strict=True):
        if mine.is_replicate():
            if type(wanted) is Shard and wanted.dim >= added and c.shape[wanted.dim - added] != 1:
                return False
        elif type(mine) is not Shard or wanted != Shard(mine.dim + added) or c.shape[mine.dim] == 1:
            return False
    return True


def _numpy_type(x: DTensorSpec) -> np.dtype[Any]:
    """The element type as NumPy has it; float32 holds what NumPy lacks."""
    name = str(_meta(x).dtype).removeprefix("torch.").replace("bfloat16", "float32")
    if name not in arrays.NAMES and name != "bool":
        raise DTypeError(f"an operand has dtype {name}, which prismm does not multiply; convert it with .to(...)")
    return np.dtype(name)


def _meta(x: DTensorSpec) -> TensorMeta:
    assert x.tensor_meta is not None
    return x.tensor_meta


def _text(
    operands: list[DTensorSpec], request: Request, dtype: np.dtype[Any], factors: Factors | None,
    setting: Setting | None, narrow: torch.dtype | None,
) -> str:  # fmt: skip
    """What ranks have to agree on, in words; the same for keywords that are equal."""
    each = " and ".join(f"{tuple(x.shape)} {_meta(x).dtype} {x.placements}" for x in operands)
    asked = [
        f"accuracy={request.target.tolerance or request.target.kind}" if request.target is not None else "",
        f"scheme={_scheme_text(request.scheme)}" if request.scheme is not None else "",
        "reproducible" if request.reproducible else "",
        f"out_dtype={dtype.name}" if request.out_dtype is not None else "",
        f"engine={request.engine}" if request.engine is not None else "",
    ]
    exact = f"; exact with {setting.moduli} moduli of k = {setting.k}" if setting is not None else ""
    scaled = f"; factors {complex(factors[0])} and {complex(factors[1])}" if factors is not None else ""
    how = ", ".join(filter(None, asked)) or "native"
    return f"product of {each} over mesh {ranks_of(operands[0].mesh)}, {how}{scaled}{exact}; {narrow}"


def _scheme_text(scheme: Any) -> str:
    """The scheme's repr, or its class where the repr is Python's default, which is another on each rank."""
    kind: Any = type(scheme)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__repr__ is object.__repr__ else repr(scheme)


def _setting(
    a: DTensorSpec, b: DTensorSpec, types: tuple[Any, Any], dtype: np.dtype[Any], request: Request, summed: bool
) -> Setting | None:  # fmt: skip
    """The setting of exact sums; None where torch's own reduction of rounded ones will do.

    That adds K terms in some order, as native products do: the bound of Native, K·u·|a||b|, holds for it as a whole.
    """
    kind = request.target.kind if request.target is not None else "fast"
    of_digits = request.scheme is not None and hasattr(implementation_of(request.scheme), "digit_moduli")
    if not (request.reproducible or of_digits or kind in ("tolerance", "correctly-rounded")):
        return None
    m, n = (a.shape[-2] if a.ndim > 1 else 1), (b.shape[-1] if b.ndim > 1 else 1)
    if a.mesh.device_type != "cpu" and (request.engine or "").startswith("cuda"):
        # A GPU's INT8 units are the only ones that make exact sums there.
        if request.engine == FP8:
            raise EngineError(
                f"engine={FP8!r} multiplies no products whose inner dimension is sharded; leave engine out, or pass "
                "'cuda:int8'"
            )
        request = dataclasses.replace(request, engine=None)
    # CPUs repair what GPUs leave uncertified, and that takes longer than one more modulus.
    repairs = GPU_REPAIRS if a.mesh.device_type == "cuda" else None
    return setting_of(m, a.shape[-1], n, types, dtype, request, summed=summed, repairs=repairs)


def _by_gpu(device_type: str, device: torch.device, setting: Setting) -> bool:
    """Whether this rank's GPU makes the steps of exact sums; all ranks have to agree."""
    if device_type != "cuda":
        return False
    from prismm.distributed import on_gpu

    return on_gpu.serves(device, setting)
