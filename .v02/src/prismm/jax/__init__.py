"""`matmul` for JAX: under ``jit``, ``grad`` and ``vmap``, with the guarantees of `prismm.matmul`.

Products run on the CPU, in a callback of the compiled program (`jax.pure_callback`); their derivatives are products by
the same keywords (`jax.custom_vjp`).
"""

from __future__ import annotations

from typing import Any

__all__ = ["matmul"]


def matmul(
    a: Any,
    b: Any,
    /,
    *,
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
) -> Any:
    """Multiply matrices to a stated accuracy, in JAX's transformations too.

    Args:
        a, b: JAX arrays, traced ones included, or NumPy arrays that JAX takes without rounding; shapes and types as for
            `prismm.matmul`.

    The other arguments are those of `prismm.matmul`; they are constants of a compiled program.

    Returns:
        The product as a JAX array; reproducible and correctly rounded ones have the bits of `prismm.matmul`. Under
        ``vmap`` all products of a batch are one call. Derivatives (``grad``, ``vjp``, of any order) are products with
        the same keywords, rounded once to the operand's type: an operand that broadcasts over a batch gets its
        derivative as one sum over the batch. Forward derivatives (``jvp``) are not defined.

    Raises:
        DTypeError: for a float64 result while ``jax_enable_x64`` is off, when the program is traced. The errors of
        `prismm.matmul`: of shapes, types and keywords when it is traced, others when it runs.
    """
    from prismm.core.extras import missing
    from prismm.schemes.names import scheme_of

    try:
        from prismm.jax.product import product
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
            raise
        raise missing("prismm.jax", "jax") from None
    return product(a, b, (accuracy, scheme_of(scheme), reproducible, out_dtype, engine, threads))
