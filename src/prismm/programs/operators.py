"""The products as torch operators: ``prismm::matmul`` and ``prismm::gemm``, with derivatives and shapes for tracing.

    matmul(Tensor a, Tensor b, str recipe, ScalarType? dtype=None) -> Tensor
    gemm(Tensor c, Tensor a, Tensor b, str recipe, Scalar alpha=1, Scalar beta=1) -> Tensor

The recipe (`programs.recipe`) is text, so that a compiled graph carries it and no cache can take one graph for
another. Derivatives of every order, backwards and forwards, and batches (`torch.func.vmap`) are products by the same
recipe (`programs.derivatives`). Both operators work on CPU and CUDA tensors of any strides.

``torch.autocast`` lowers the operands of torch's own products, and none of prismm's: both operators, their derivatives
and all of prismm's functions give the same bits and types within its blocks as outside of them. Whoever wants narrow
operands converts them; under `prismm.emulate` they come narrow, because it is torch's own products that it makes.

`prismm.matmul` becomes the operator by itself (`matmul_of`) wherever torch has to see the product: tensors that require
grad or have a tangent, the levels of torch.func, fake tensors, subclasses, graphs that are being made. What cannot
follow, as ``out=``, ``full_output=`` and the other functions, raises OperandError; compiled code ends its graph there.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import torch
from torch.autograd import forward_ad

from prismm import dispatch
from prismm.core import arrays
from prismm.cpu.fast_paths import fast_dense, fast_sum, fast_tensors
from prismm.cuda.rows import product_and_row
from prismm.errors import ArgumentError, DTypeError, OperandError, PrismmError, ShapeError
from prismm.programs import derivatives
from prismm.programs.gemms import Gemm, check, multiply
from prismm.programs.recipe import Recipe, scheme_text

Tensor = torch.Tensor
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))

_SCHEMAS = {
    "matmul": "matmul(Tensor a, Tensor b, str recipe, ScalarType? dtype=None) -> Tensor",
    "gemm": "gemm(Tensor c, Tensor a, Tensor b, str recipe, Scalar alpha=1, Scalar beta=1) -> Tensor",
}


def matmul(a: Tensor, b: Tensor, recipe: str | Recipe = "native", dtype: torch.dtype | None = None) -> Tensor:
    """a @ b as an operator with a derivative.

    Args:
        a, b: tensors as for `prismm.matmul`, on one device; shapes by NumPy's rules.
        recipe: how, as `Recipe` writes it: "native", "1e-12 reproducible", "scheme=words:tf32x3", ...
        dtype: of the result; float16 and bfloat16 are rounded from a float32 result.

    Raises:
        The errors of `prismm.matmul`.

    >>> import torch
    >>> from prismm.programs import operators
    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> operators.matmul(x, torch.ones(3, 2), "correctly-rounded").sum().backward()
    >>> x.grad[0]
    tensor([2., 2., 2.])
    """
    text = _text(recipe)
    if not text:
        raise ArgumentError(_SHELL)
    if _unseen_level():
        raise OperandError(_UNSEEN)
    if arrays.sharded(a, b):
        _serve_sharded(torch.compiler.is_dynamo_compiling())
    found: Tensor = torch.ops.prismm.matmul.default(a, b, text, dtype)
    return found


def gemm(
    c: Tensor, a: Tensor, b: Tensor, recipe: str | Recipe = "native", alpha: complex = 1, beta: complex = 1
) -> Tensor:
    """alpha·a @ b + beta·c as an operator with a derivative.

    Args:
        c: tensor that broadcasts to the result's shape.
        a, b: matrices, batches of three dimensions, or a matrix and a vector, of c's type.
        recipe: as for `matmul`.
        alpha, beta: scalars, rounded to float32 for all but float64 data, as torch does.

    Raises:
        The errors of `prismm.gemm`.

    >>> import torch
    >>> from prismm.programs import operators
    >>> operators.gemm(torch.ones(2), torch.eye(2), torch.eye(2), beta=3)
    tensor([[4., 3.],
            [3., 4.]])
    """
    text = _text(recipe)
    if not text:
        raise ArgumentError(_SHELL)
    if _unseen_level():
        raise OperandError(_UNSEEN)
    if arrays.sharded(c, a, b):
        _serve_sharded(torch.compiler.is_dynamo_compiling())
    found: Tensor = torch.ops.prismm.gemm.default(c, a, b, text, alpha, beta)
    return found


def matmul_of(a: Any, b: Any, keywords: tuple[Any, ...], out: Any, workspace: Any, full_output: bool) -> Tensor:
    """`prismm.matmul` of tensors that torch has to see (`arrays.traced`), as the operator; errors are its own.

    keywords: accuracy, scheme, reproducible, out_dtype, engine, threads.
    """
    given = "out=" if out is not None else "full_output=" if full_output else ""
    given = "workspace=" if workspace is not None else given
    kind_a, kind_b = (x.dtype if isinstance(x, Tensor) else type(x).__name__ for x in (a, b))
    if torch.compiler.is_dynamo_compiling():
        error = "" if keywords[1] is None or isinstance(keywords[1], str) or _READS_DATACLASSES else _OPAQUE
        error = _UNSEEN if _unseen_level() else error
        error = _SHARDED if arrays.sharded(a, b) else error
        if not error:
            text, dtype, error = _constants(kind_a, kind_b, given, *keywords)
        if not error:
            found: Tensor = torch.ops.prismm.matmul.default(a, b, text, dtype)
            return found
        accuracy, scheme, reproducible, out_dtype, engine, threads = keywords
        result: Tensor = uncompiled("matmul", error)(
            a, b, accuracy=accuracy, scheme=scheme, reproducible=reproducible, out=out, out_dtype=out_dtype,
            engine=engine, threads=threads, workspace=workspace, full_output=full_output,
        )  # fmt: skip
        return result
    why_a, why_b = (arrays.why_traced(x) if isinstance(x, Tensor) else "" for x in (a, b))
    if not why_a and not why_b:
        with torch._C._DisableFuncTorch():
            plain: Tensor = dispatch.matmul(a, b, (*keywords, workspace), out, full_output)
        return plain
    text, dtype = _asked(kind_a, kind_b, why_a, why_b, given, *keywords)
    for name, x in (("a", a), ("b", b)):
        arrays.check_dense(x, name)
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise OperandError(f"{name} is on {x.device}; prismm multiplies on CPUs and CUDA devices: move it to one")
    try:
        return matmul(a, b, text, dtype)
    except PrismmError:
        raise
    except (NotImplementedError, TypeError, AssertionError, RuntimeError) as error:
        # What subclasses and modes make of operators is their own affair.
        for name, why in (("a", why_a), ("b", why_b)):
            if why not in ("", arrays.REQUIRES_GRAD):
                raise OperandError(f"{name} {why}, which does not take torch.ops.prismm.matmul: {error}") from error
        raise


def sharded_gemm(
    a: Any, b: Any, c: Any, factors: tuple[complex, complex], transposes: tuple[str, str], keywords: tuple[Any, ...],
    out: Any, full_output: bool,
) -> Tensor:  # fmt: skip
    """`prismm.gemm` of DTensors."""
    from prismm.distributed.product import gemm as gemm_of_parts

    given = "out=" if out is not None else "full_output=" if full_output else ""
    if given or keywords[6] is not None:
        raise OperandError(f"an operand is a DTensor, and {given or 'workspace='} cannot follow; leave it out")
    for name, x in (("a", a), ("b", b), ("c", c)):
        if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
            raise OperandError(
                f"{name} requires grad, and gemm has no derivative; pass {name}.detach(), or call "
                "prismm.programs.operators.gemm"
            )
    return gemm_of_parts(a, b, c, factors, transposes, keywords)


_SHARDED = "ranks agree on products of DTensors as they run, which no graph holds"


def _serve_sharded(compiling: bool) -> None:
    """Have DTensor's dispatcher know the operators; `prismm.distributed` is loaded for it."""
    if compiling:
        raise OperandError(f"{_SHARDED}; call prismm.matmul, before which the graph ends, or multiply outside")
    from prismm.programs import sharded

    sharded.serve()


def _unseen_level() -> bool:
    """Whether compiled code is within a level of `torch.autograd.forward_ad` itself: its graph enters that unknown to
    Python, and the operators would see no tangents there.
    """
    entered = forward_ad._current_level >= 0 and not torch._C._are_functorch_transforms_active()
    return entered and torch.compiler.is_dynamo_compiling()


_UNSEEN = "a graph passes on no tangents of torch.autograd.forward_ad.dual_level; torch.func.jvp has them"


_SHELL = "a recipe or scheme that is made inside of compiled code cannot be read there; make it outside"


_READS_DATACLASSES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether Dynamo hands frozen dataclasses to functions whose results are constants."""

_OPAQUE = "torch.compile of this PyTorch cannot read a scheme object; from PyTorch 2.13 on it can"


def _is_shell(x: Any) -> bool:
    """Whether this is a dataclass without its fields, as Dynamo hands over what compiled code makes: the defaults of
    its class would show through.
    """
    return dataclasses.is_dataclass(x) and any(field.name not in vars(x) for field in dataclasses.fields(x))


def _text(recipe: str | Recipe) -> str:
    """The recipe as text, once there are operators to read it; "" for a shell."""
    load()
    return "" if _is_shell(recipe) else str(recipe)


def _constants(
    kind_a: Any, kind_b: Any, given: str, accuracy: Any, scheme: Any, reproducible: Any, out_dtype: Any, engine: Any,
    threads: Any,
) -> tuple[str, torch.dtype | None, str]:  # fmt: skip
    """`_asked`, or what is wrong, as constants of a graph: Dynamo calls this instead of looking into it."""
    if _is_shell(scheme) or _is_shell(accuracy):
        return "", None, _SHELL
    why = "is traced by torch.compile"
    try:
        found = _asked(
            kind_a, kind_b, why, why, given, accuracy, scheme, reproducible, out_dtype, engine, threads
        )  # fmt: skip
    except PrismmError as error:
        return "", None, str(error)
    return *found, ""


def beneath(verb: Any) -> Any:
    """A verb of prismm for plain tensors, constants of the transforms of torch.func that are under way."""

    def call(*args: Any, **keywords: Any) -> Any:
        with torch._C._DisableFuncTorch():
            return verb(*args, **keywords)

    return call


def uncompiled(verb: str, why: str = "there is no such operator") -> Any:
    """A verb of prismm for compiled code that no operator serves: the graph ends before it and goes on behind it. Where
    it may not, ``fullgraph=True``, torch's error says why.
    """
    return _UNCOMPILED[_uncompiled(verb, why)]


_UNCOMPILED: dict[tuple[str, str], Any] = {}
"""Verbs that torch.compile does not look into, by their names and the reasons that it gives."""


def _uncompiled(verb: str, why: str) -> tuple[str, str]:
    import prismm

    reason = f"prismm.{verb}: {why}; a graph may hold prismm.matmul of tensors and prismm.programs.operators.gemm"
    _UNCOMPILED.setdefault((verb, why), torch.compiler.disable(getattr(prismm, verb), reason=reason))
    return verb, why


for _function in (_text, _constants, _uncompiled):
    # What `torch.compiler.assume_constant_result` does, without its import of the compiler.
    _function.__dict__["_dynamo_marked_constant"] = True


def _asked(
    kind_a: Any, kind_b: Any, why_a: str, why_b: str, given: str, accuracy: Any, scheme: Any, reproducible: Any,
    out_dtype: Any, engine: Any, threads: Any,
) -> tuple[str, torch.dtype | None]:  # fmt: skip
    """The recipe of a call and the type of its result, once all else is checked.

    kind_a, kind_b: the operands' element types, or the names of those that are no tensors; why_a, why_b: why torch has
    to see them; given: what of a call's arguments no operator has.
    """
    import numpy as np

    from prismm.core.request import check_request
    from prismm.schemes.names import scheme_of

    load()
    scheme = scheme_of(scheme)
    check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, None, None)
    name, why, other, kind = ("a", why_a, "b", kind_b) if why_a else ("b", why_b, "a", kind_a)
    detached = f", or pass {name}.detach()" if why == arrays.REQUIRES_GRAD else ""
    if given:
        lacks = "has no derivative" if detached else "cannot follow"
        raise OperandError(f"{name} {why}, and {given} {lacks}; leave it out{detached}")
    if not isinstance(kind, torch.dtype):
        matrix = "the matrix itself" if kind.startswith("Prepared") else "tensors"
        raise OperandError(f"{name} {why}, {other} is a {kind}; pass {matrix}{detached}")
    _promoted(kind_a, kind_b)
    dtype = None
    if out_dtype is not None:
        wanted = arrays.result_dtype([np.empty(0, str(_promoted(x, x))[6:]) for x in (kind_a, kind_b)], out_dtype)
        dtype = getattr(torch, wanted.name)
    return str(_recipe(accuracy, scheme, bool(reproducible), engine, threads)), dtype


def _recipe(accuracy: Any, scheme: Any, reproducible: bool, engine: str | None, threads: int | None) -> Recipe:
    from prismm.core.accuracy import Target

    if isinstance(accuracy, Target):
        accuracy = accuracy.tolerance or accuracy.kind
    return Recipe(accuracy, None if scheme is None else scheme_text(scheme), reproducible, engine, threads)


@functools.cache
def load() -> Any:
    """The namespace ``torch.ops.prismm``, with both operators registered; once a process."""
    with _LOADING:
        # Threads may come here together: the cache knows nothing of a call that is under way.
        if not _LIBRARIES:
            _LIBRARIES.append(_registered())
    return torch.ops.prismm


def _registered() -> Any:
    library = torch.library.Library("prismm", "FRAGMENT")
    for schema in _SCHEMAS.values():
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("matmul", _matmul, "CPU")
    library.impl("matmul", _matmul, "CUDA")
    library.impl("gemm", _gemm, "CPU")
    library.impl("gemm", _gemm, "CUDA")
    torch.library.register_fake("prismm::matmul", _matmul_shape, lib=library)
    torch.library.register_fake("prismm::gemm", _gemm_shape, lib=library)
    library.impl("matmul", _matmul_autograd, "Autograd", with_keyset=True)
    library.impl("gemm", _gemm_autograd, "Autograd", with_keyset=True)
    torch.library.register_vmap("prismm::matmul", derivatives.batched_matmul, lib=library)
    torch.library.register_vmap("prismm::gemm", derivatives.batched_gemm, lib=library)
    return library


_LOADING = threading.Lock()
_LIBRARIES: list[Any] = []
"""A library is unregistered when it is collected."""


def result_type(a: torch.dtype, b: torch.dtype, dtype: torch.dtype | None = None) -> torch.dtype:
    """The result's type: `dtype`, else NumPy's promotion, as `prismm.matmul` has it.

    >>> result_type(torch.float32, torch.int64)
    torch.float64
    """
    return dtype if dtype is not None else _promoted(a, b)


@functools.cache
def _promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    import numpy as np

    names = [str(x).removeprefix("torch.").replace("bfloat16", "float32") for x in (a, b)]
    for name in names:
        if name not in arrays.NAMES:
            raise DTypeError(
                f"an operand has dtype {name}; prismm multiplies float16, bfloat16, float32, float64, complex64, "
                f"complex128 and integers: convert it with .to(...)"
            )
    found: torch.dtype = getattr(torch, arrays.result_dtype([np.empty(0, x) for x in names], None).name)
    return found


@functools.lru_cache(maxsize=1024)
def _keywords(recipe: str, dtype: torch.dtype | None) -> tuple[Any, ...]:
    return Recipe.parse(recipe).asked(dtype)


@functools.lru_cache(maxsize=1024)
def _is_default(recipe: str) -> bool:
    return Recipe.parse(recipe).is_default


@functools.lru_cache(maxsize=1024)
def _plain_recipe(recipe: str) -> tuple[Any, bool] | None:
    """Accuracy and reproducibility, where a recipe says nothing else."""
    found = Recipe.parse(recipe)
    plain = Recipe(found.accuracy, reproducible=found.reproducible)
    return (found.accuracy, found.reproducible) if found == plain else None


def _matmul(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None) -> Tensor:
    """The kernel; autograd has been here before."""
    if dtype is None:
        plain = _plain_recipe(recipe)
        value: Tensor | None = None if plain is None else fast_tensors(a, b, *plain)
        if value is not None:
            return value
    a, b = _plain(a), _plain(b)
    narrow = dtype is torch.float16 or dtype is torch.bfloat16
    if dtype is None or narrow:
        result: Tensor = dispatch.matmul(a, b, _keywords(recipe, None))
        return result if dtype is None or result.dtype == dtype else result.to(dtype)
    result = dispatch.matmul(a, b, _keywords(recipe, dtype))
    return result


def _matmul_shape(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None) -> Tensor:
    if a.device != b.device:
        raise OperandError(f"a is on {a.device}, b is on {b.device}; move them to one device")
    if not a.ndim or not b.ndim:
        raise ShapeError(f"a has shape {tuple(a.shape)}, b has shape {tuple(b.shape)}; use * for scalars")
    kind = result_type(a.dtype, b.dtype, dtype)
    if all(type(n) is int for n in (*a.shape, *b.shape)):
        return a.new_empty(arrays.product_shape(tuple(a.shape), tuple(b.shape)), dtype=kind)
    torch._check(
        a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0],
        lambda: f"a has shape {tuple(a.shape)}, b has shape {tuple(b.shape)}: the inner dimensions differ",
    )
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, *(a.shape[-2:-1]), *(b.shape[-1:] if b.ndim > 1 else ()))
    return a.new_empty(shape, dtype=kind)


# `torch.library.register_autograd` would do what follows, at twice the price of a whole call: it goes through the
# dispatcher again even where no gradient is wanted. Nor does it know tangents.


def _matmul_autograd(keys: Any, a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None) -> Tensor:
    if ((a.requires_grad or b.requires_grad) and torch.is_grad_enabled()) or derivatives.moves():
        return derivatives.recorded_matmul(a, b, recipe, dtype)
    straight = _straight(keys.raw_repr())
    if straight == "CPU" and dtype is None and type(a) in _TENSORS and type(b) in _TENSORS and _is_default(recipe):
        value: Tensor | None = fast_dense(a, b)
        if value is not None:
            return value
    if straight:
        return _matmul(a, b, recipe, dtype)
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = torch.ops.prismm.matmul.default(a, b, recipe, dtype)
        return result


@functools.lru_cache(maxsize=256)
def _straight(keys: int) -> str:
    """What comes after autograd if that is nothing but the kernel of "CPU" or "CUDA", else "": a mode, a subclass,
    tracing. Where it is "CPU", all tensors are there, and dense.
    """
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & torch._C._after_autograd_keyset
    key = below.remove(torch._C.DispatchKey.ADInplaceOrView).highestPriorityTypeId()
    return key.name if key in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA) else ""


def _gemm(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: complex = 1, beta: complex = 1) -> Tensor:
    """The kernel of gemm."""
    if _is_default(recipe) and a.ndim == 2:
        value: Tensor | None = fast_sum(c, a, b, alpha, beta)
        if value is not None:
            return value
    if alpha == beta == 1 and a.is_cuda:
        value = product_and_row(_plain(a), _plain(b), _plain(c), _keywords(recipe, None))
        if value is not None:
            return value
    operator = "baddbmm" if a.ndim == 3 else "addmv" if b.ndim == 1 else "addmm"
    asked = check(Gemm(operator, _plain(a), _plain(b), _plain(c) if beta != 0 else None, alpha, beta, a.dtype))
    if isinstance(asked, str):
        types = ", ".join(f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in (c, a, b))
        raise OperandError(f"c, a, b are {types}, alpha={alpha}, beta={beta}: {asked}; pass tensors that fit together")
    return multiply(asked, Recipe.parse(recipe))


def _plain(x: Tensor) -> Tensor:
    return x.detach() if x.requires_grad else x


def _gemm_shape(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: complex = 1, beta: complex = 1) -> Tensor:
    shape = (*a.shape[:-1], *(b.shape[-1:] if b.ndim > 1 else ()))
    torch._check(
        a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0],
        lambda: f"a has shape {tuple(a.shape)}, b has shape {tuple(b.shape)}: the inner dimensions differ",
    )
    return a.new_empty(shape)


def _gemm_autograd(
    keys: Any, c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: complex = 1, beta: complex = 1
) -> Tensor:
    if ((a.requires_grad or b.requires_grad or c.requires_grad) and torch.is_grad_enabled()) or derivatives.moves():
        return derivatives.recorded_gemm(c, a, b, recipe, alpha, beta)
    if _straight(keys.raw_repr()):
        return _gemm(c, a, b, recipe, alpha, beta)
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = torch.ops.prismm.gemm.default(c, a, b, recipe, alpha, beta)
        return result
