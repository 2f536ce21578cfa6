"""What torch's operators multiply: every aten operator that carries a product out, as alpha·A·B + beta·C.

`gemm_of` reads a call, `multiply` makes it by a recipe. Both are used by the interception, by the compiled graphs and
by the tables of what ran.
"""

from __future__ import annotations

import functools
import math
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prismm import dispatch
from prismm.core import arrays
from prismm.cuda.rows import added, product_and_row
from prismm.programs.policy import OPERATORS
from prismm.programs.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from prismm.core.plan import Plan

_OPERANDS = {
    "mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "addbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
}
_RANKS = {"mm": (2, 2), "addmm": (2, 2), "mv": (2, 1), "addmv": (2, 1), "dot": (1, 1), "vdot": (1, 1)}
"""Dimensions of the operands; three where not named."""

HIDDEN = {
    "_scaled_dot_product": "fused attention: decomposed on request, emulate(attention='decomposed')",
    "_flash_attention": "fused attention",
    "_efficient_attention": "fused attention",
    "_cudnn_attention": "fused attention",
    "_native_multi_head_attention": "fused attention of a whole layer: torch.backends.mha.set_fastpath_enabled(False)",
    "_transformer_encoder_layer_fwd": "a fused encoder layer: torch.backends.mha.set_fastpath_enabled(False)",
    "_euclidean_dist": "cdist: pass compute_mode='donot_use_mm_for_euclid_dist', or multiply yourself",
    "_cdist": "cdist: pass compute_mode='donot_use_mm_for_euclid_dist', or multiply yourself",
    "mkldnn_rnn_layer": "a fused recurrent layer",
    "_cudnn_rnn": "a fused recurrent layer",
    "_thnn_fused": "a fused recurrent cell",
    "_thnn_differentiable": "a fused recurrent cell",
    "miopen_rnn": "a fused recurrent layer",
    "convolution": "a convolution",
    "_convolution": "a convolution",
    "mkldnn_convolution": "a convolution",
    "cudnn_convolution": "a convolution",
    "_slow_conv": "a convolution",
    "thnn_conv2d": "a convolution",
    "_addmm_activation": "a product fused with its activation",
    "mkldnn_linear": "a product in oneDNN's own layout",
    "_mkl_linear": "a product in MKL's own layout",
    "_trilinear": "a bilinear layer",
    "_scaled_mm": "a product of scaled 8-bit numbers",
    "_scaled_grouped_mm": "products of scaled 8-bit numbers",
    "_grouped_mm": "grouped products",
    "_int_mm": "a product of integers",
    "_weight_int": "a product with quantised weights",
    "_sparse_mm": "a sparse product",
    "_sparse_addmm": "a sparse product",
    "_sparse_sparse_matmul": "a sparse product",
    "sspaddmm": "a sparse product",
    "hspmm": "a sparse product",
    "linalg_": "LAPACK multiplies inside",
    "_linalg_": "LAPACK multiplies inside",
    "cholesky": "LAPACK multiplies inside",
    "_cholesky": "LAPACK multiplies inside",
    "triangular_solve": "LAPACK multiplies inside",
    "ormqr": "LAPACK multiplies inside",
    "lu_solve": "LAPACK multiplies inside",
    "geqrf": "LAPACK multiplies inside",
    "matrix_exp": "multiplies inside",
}
"""Operators that multiply where nothing can be intercepted, by the beginning of their names, and what they are."""

_HARMLESS = ("linalg_vector_norm", "linalg_cross", "linalg_diagonal", "_linalg_check_errors")


@dataclass(frozen=True)
class Gemm:
    """alpha·A·B + beta·C as an operator was asked for it; `target` is the tensor that it has to write, if any."""

    operator: str
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    alpha: complex
    beta: complex
    dtype: torch.dtype
    target: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, m, k, n; vectors count as matrices of one row or column."""
        a, b = self.a.shape, self.b.shape
        m = a[-2] if len(a) > 1 else 1
        n = b[-1] if len(b) > 1 else 1
        return (math.prod(a[:-2]) if len(a) > 2 else 1), m, a[-1], n

    @property
    def plain(self) -> bool:
        """Whether it is A·B itself."""
        return self.c is None and self.alpha == 1

    @property
    def unscaled(self) -> bool:
        """Whether it is A·B or A·B + C, in A's type."""
        return self.dtype is self.a.dtype and self.alpha == 1 and (self.c is None or self.beta == 1)


OF_MATRICES = frozenset(("mm", "bmm", "addmm", "baddbmm"))
"""Operators whose operands are those of `prismm.matmul`."""


@dataclass(frozen=True)
class Method:
    """How a product was made: what a table says of it.

    bound: ε with |c - exact| <= ε·(|a||b|), η apart, or None; guarantee: the same in words.
    """

    scheme: str
    engine: str
    accuracy: str
    bound: float | None
    guarantee: str


LEFT = Method("torch", "torch", "off", None, "none")
"""What a table says of a product that was left to torch."""


@functools.cache
def _table() -> dict[Any, tuple[str, tuple[str, ...], bool]]:
    """Overloads of the operators: (operator, names of the arguments, whether self is written)."""
    import torch

    found: dict[Any, tuple[str, tuple[str, ...], bool]] = {}
    for operator in OPERATORS:
        for name in (operator, f"{operator}_"):
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                function = getattr(packet, overload)
                names = tuple(argument.name for argument in function._schema.arguments)
                found[function] = operator, names, name != operator
    return found


def products() -> tuple[Any, ...]:
    """The overloads of the operators, out= and in-place forms included."""
    return tuple(_table())


def operator_of(function: Any) -> str | None:
    """The operator that an aten overload belongs to, or None if it makes no product."""
    entry = _table().get(function)
    return entry[0] if entry is not None else None


@functools.lru_cache(maxsize=4096)
def hidden(function: Any) -> str | None:
    """What multiplies inside this aten overload, out of reach, or None."""
    name = function._schema.name.removeprefix("aten::")
    if name.startswith(_HARMLESS):
        return None
    return next((what for start, what in HIDDEN.items() if name.startswith(start)), None)


def hidden_functions() -> tuple[Any, ...]:
    """The aten overloads that multiply out of reach, without compositions, whose parts are seen."""
    import torch

    found = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        if space != "aten" or not rest.startswith((*HIDDEN,)):
            continue
        operator, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, operator, None)
        function = getattr(packet, overload or "default", None) if packet is not None else None
        if function is not None and hidden(function) and not function._can_decompose():
            found.append(function)
    return tuple(found)


def gemm_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], traced: bool = False) -> Gemm | str:
    """The product that a call of an aten overload asks for, or why prismm leaves it to torch.

    Calls that torch will refuse (shapes that do not fit, mixed types) are among those. `traced`: the tensors are those
    of a trace, which torch has accepted.
    """
    operator, names, in_place = _table()[function]
    given = dict(zip(names, args, strict=False)) | kwargs
    left, right = _OPERANDS[operator]
    a, b = given[left], given[right]
    adds = operator.startswith("add") or operator == "baddbmm"
    alpha, beta = given.get("alpha", 1), given.get("beta", 1) if adds else 0
    c = given["self"] if adds else None
    target = given["self"] if in_place else given.get("out")
    dtype = given.get("out_dtype") or a.dtype
    found = check(Gemm(operator, a, b, c, alpha, beta, dtype, target), traced)
    # torch checks C where beta is 0, too, and then ignores its values.
    return found if isinstance(found, str) or found.beta != 0 else replace(found, c=None)


def check(gemm: Gemm, traced: bool = False) -> Gemm | str:
    """The product with its scalars in its own precision, as torch takes them, or why it is left to torch."""
    import torch

    a, b, c, operator = gemm.a, gemm.b, gemm.c, gemm.operator
    tensors = [x for x in (a, b, c, gemm.target) if x is not None]
    plain = all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors)
    # Of DTensors every rank multiplies its parts (`prismm.distributed`).
    if not traced and not plain and not all(map(arrays.sharded, tensors)):
        return "a tensor subclass"
    if any(x.layout is not torch.strided for x in tensors):
        return "not dense"
    device = a.device
    if device.type not in ("cpu", "cuda"):
        return f"on {device.type}"
    if a.dtype not in _types():
        return f"{str(a.dtype).removeprefix('torch.')} elements"
    ranks = _RANKS.get(operator, (3, 3))
    fits = traced or (
        (a.ndim, b.ndim) == ranks
        and a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0]
        and (a.ndim < 3 or a.shape[0] == b.shape[0])
        and all(x.device == device for x in tensors)
        and all(x.dtype == a.dtype for x in (b, c) if x is not None)
        and (gemm.target is None or gemm.target.dtype == gemm.dtype)
    )
    if fits and c is not None and not traced:
        shape = (() if operator == "addbmm" else a.shape[:-2]) + a.shape[-2:-1] + b.shape[b.ndim - 1 : 0 : -1][:1]
        fits = len(c.shape) <= len(shape) and all(
            x in (1, y) for x, y in zip(reversed(c.shape), reversed(shape), strict=False)
        )
        fits = fits and (gemm.target is not c or tuple(c.shape) == tuple(shape))
    if not fits:
        return "refused by torch"
    scalars = rounded_scalars(gemm)
    if isinstance(scalars, str):
        return scalars
    return Gemm(operator, a, b, c, *scalars, gemm.dtype, gemm.target)


def rounded_scalars(gemm: Gemm) -> tuple[complex, complex] | str:
    """alpha and beta in the product's own precision, as torch takes them, or why it is left to torch."""
    try:
        alpha, beta = (_scalar(x, gemm.dtype) for x in (gemm.alpha, gemm.beta))
    except (TypeError, ValueError, OverflowError):
        return "refused by torch"
    if not all(map(math.isfinite, (alpha.real, alpha.imag, beta.real, beta.imag))):
        return "a scalar that is not finite"
    return alpha, beta


@functools.cache
def _types() -> frozenset[torch.dtype]:
    import torch

    return frozenset((torch.float64, torch.float32, torch.complex128, torch.complex64, torch.float16, torch.bfloat16))


def _scalar(x: Any, dtype: torch.dtype) -> complex:
    """A scalar as torch applies it: rounded to float32 for all but float64 data."""
    import numpy as np
    import torch

    if x in (0, 1):
        return complex(x)
    value = complex(x)
    if not dtype.is_complex and value.imag:
        raise ValueError("a complex scalar for real data")
    if dtype in (torch.float64, torch.complex128):
        return value
    with np.errstate(over="ignore"):
        return complex(np.complex64(value))


def multiply(gemm: Gemm, recipe: Recipe) -> torch.Tensor:
    """The product, as a tensor of its own.

    Raises:
        PrismmError: for a recipe that cannot make this product.
    """
    if gemm.c is not None and recipe.is_default and gemm.a.dtype == gemm.dtype and not arrays.sharded(gemm.a):
        from prismm.cpu.fast_paths import fast_sum

        value = fast_sum(gemm.c, gemm.a, gemm.b, gemm.alpha, gemm.beta)
        if value is not None:
            return value  # type: ignore[no-any-return]
    alone = gemm.a.is_cuda and not arrays.sharded(gemm.a) and gemm.dtype is gemm.a.dtype
    if gemm.c is not None and alone and gemm.alpha == gemm.beta == 1:
        value = product_and_row(*_operands(gemm), gemm.c.detach(), recipe.asked())
        if value is not None:
            return value  # type: ignore[no-any-return]
    return _result(gemm, recipe)[0]


def multiply_and_describe(gemm: Gemm, recipe: Recipe) -> tuple[torch.Tensor, Method, float]:
    """The product, how it was made, and the seconds that it took without the telling."""
    if arrays.sharded(gemm.a):
        method = describe(gemm, recipe)
        start = time.perf_counter()
        return multiply(gemm, recipe), method, time.perf_counter() - start
    value, report = _result(gemm, recipe, with_report=True)
    return value, method_of(report.plan, not gemm.plain, gemm.a.is_cuda), float(report.timings.get("total", 0.0))


def describe(gemm: Gemm, recipe: Recipe) -> Method:
    """How a product will be made whose recipe does not look at the data."""
    a, b = _operands(gemm)
    if arrays.sharded(a):
        # The whole product, of which each rank makes its part.
        a, b = (torch_zeros(x) for x in (a, b))
    return method_of(dispatch.explain(a, b, recipe.asked()[:6], foresee=False), not gemm.plain, gemm.a.is_cuda)


def torch_zeros(x: torch.Tensor) -> torch.Tensor:
    """A tensor of this shape and type, on its device, that takes no memory."""
    import torch

    return torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape)


def _operands(gemm: Gemm) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = gemm.a.detach(), gemm.b.detach()
    if gemm.operator == "vdot":
        a = a.conj()
    elif gemm.operator == "addbmm":
        a, b = a.transpose(0, 1).flatten(1), b.flatten(0, 1)
    return a, b


def _result(gemm: Gemm, recipe: Recipe, *, with_report: bool = False) -> tuple[torch.Tensor, Any]:
    """The product, and the report if it was asked for."""
    if arrays.sharded(gemm.a):
        return multiply_parts(gemm, recipe), None
    a, b = _operands(gemm)
    c = gemm.c.detach() if gemm.c is not None else None
    keywords = recipe.asked()
    if gemm.plain or gemm.a.is_cuda:
        found = dispatch.matmul(a, b, keywords, full_output=with_report)
        value, report = found if with_report else (found, None)
        if not gemm.plain:
            value = added(value, c, gemm.alpha, gemm.beta)
    else:
        column = b.ndim == 1
        if column:  # `gemm` takes matrices
            b, c = b[:, None], c[..., None] if c is not None else None
        beta = gemm.beta if c is not None else 0
        found = dispatch.gemm(a, b, c, (gemm.alpha, beta), ("N", "N"), keywords, full_output=with_report)
        value, report = found if with_report else (found, None)
        value = value[..., 0] if column else value
    return value if value.dtype == gemm.dtype else value.to(gemm.dtype), report


def multiply_parts(gemm: Gemm, recipe: Recipe) -> torch.Tensor:
    """The product of DTensors; a sum is rounded as often as on one device."""
    from prismm.distributed.product import multiply as multiply_dtensors

    # Each detached DTensor would cost a pass through torch's dispatcher.
    a, b = _operands(gemm) if gemm.operator in ("vdot", "addbmm") else (gemm.a, gemm.b)
    narrow = gemm.dtype if gemm.dtype.itemsize == 2 else None
    factors = None if gemm.plain else (gemm.alpha, gemm.beta if gemm.c is not None else 0.0)
    return multiply_dtensors(a, b, gemm.c, factors, recipe.asked(), narrow, stepwise=gemm.a.is_cuda)


def method_of(plan: Plan, epilogue: bool, cuda: bool) -> Method:
    """What a plan says of a product, in a table's words."""
    from prismm.formats import format_of
    from prismm.schemes.names import scheme_name

    target, scheme = plan.target, plan.scheme
    result = format_of(plan.result)
    u = result.unit_roundoff
    terms = max(plan.k, 1) * (2 if plan.result.startswith("complex") else 1)
    if epilogue and not cuda:
        terms += 3
    bound: float | None = None
    kind = target.kind if target is not None else None
    if kind == "correctly-rounded":
        bound, text = u, "½ ulp"
    elif kind == "tolerance":
        assert target is not None and target.tolerance is not None
        bound, text = target.tolerance + u, f"{target.tolerance:.3g}·|a||b| + ½ ulp"
    else:
        implementation: Any = None if cuda else scheme.implementation("cpu")
        if kind == "native" or getattr(scheme, "is_conventional", False):
            bound = terms * u
        elif hasattr(implementation, "relative_bound") and plan.engine == implementation.engine_for(None).name:
            relative = float(implementation.relative_bound(max(1, terms)))
            bound = relative + u if math.isfinite(relative) else None
        text = "its own" if bound is None else f"{bound:.2e}·|a||b|"
    if epilogue and cuda:
        text += ", then alpha and beta in torch"
    return Method(scheme_name(scheme) or str(scheme), plan.engine, str(target or "own"), bound, text)


@functools.lru_cache(maxsize=4096)
def composite(function: Any) -> bool:
    """Whether this aten overload is a function of others that may end in a product."""
    name = function._schema.name.removeprefix("aten::").removesuffix("_")
    return name in _COMPOSITE or name.startswith("linalg_")


_COMPOSITE = frozenset(
    ("linear", "matmul", "einsum", "tensordot", "inner", "bilinear", "chain_matmul", "kron", "cov", "corrcoef", "cdist")
) | frozenset(
    ("matrix_power", "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell")
) | frozenset(("rnn_tanh_cell", "rnn_relu_cell", "conv1d", "conv2d", "conv3d"))  # fmt: skip


def unchecked(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], with_addend: bool = False) -> Gemm:
    """The operands of a call that torch made, for the table; or of a traced one, whatever stands for them there."""
    operator, names, _ = _table()[function]
    given = dict(zip(names, args, strict=False)) | kwargs
    left, right = _OPERANDS[operator]
    a, c = given[left], given["self"] if with_addend and "self" not in (left, right) else None
    return Gemm(operator, a, given[right], c, 1, 0, None if with_addend else a.dtype)  # type: ignore[arg-type]


def environment_key() -> Any:
    """The settings that may change what runs."""
    return os.environ.get("PRISMM_ENGINE"), os.environ.get("PRISMM_THREADS")
