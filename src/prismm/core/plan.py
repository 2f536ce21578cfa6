"""Plan: what would run for a product, why, and what it is expected to take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from prismm.core.accuracy import Target
from prismm.formats import Format


@dataclass(frozen=True)
class Alternative:
    """A scheme that was not taken.

    Attributes:
        scheme: its name.
        engine: the engine that it would run on.
        predicted_seconds: predicted time of the call.
        reason: why it was not taken.
    """

    scheme: str
    engine: str
    predicted_seconds: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "scheme": self.scheme,
            "engine": self.engine,
            "predicted_seconds": self.predicted_seconds,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        return f"{self.scheme} on {self.engine}, {readable_seconds(self.predicted_seconds)}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """What would run for a product, why, and what it is expected to take; returned by `prismm.explain`.

    Attributes:
        m: rows of one product.
        n: columns of one product.
        k: inner dimension.
        batch: shape of the batch, or ().
        operands: element types of both operands.
        result: element type of the result.
        target: the accuracy target; None for a scheme's own value.
        scheme: the scheme.
        engine: the engine, such as "cpu:vnni".
        reproducible: whether the bits depend on operands, types, k and target alone.
        threads: worker threads.
        products: low-precision matrix products expected.
        row_panel: rows of the result computed at a time.
        column_block: columns of the result computed at a time.
        workspace_bytes: memory beside operands and result.
        predicted_seconds: predicted time of the call, an estimate for this kind of machine.
        native_seconds: predicted time of the native product, likewise.
        bound: the guarantee per entry, in one line.
        reasons: why this scheme and engine.
        alternatives: schemes that were not taken, and why not.

    >>> import numpy as np, prismm
    >>> plan = prismm.explain(np.ones((8, 4)), np.ones((4, 2)), reproducible=True)
    >>> plan.m, plan.k, plan.n, str(plan.scheme), plan.reproducible
    (8, 4, 2, 'Residues(moduli=15)', True)
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    operands: tuple[str, str]
    result: str
    target: Target | None
    scheme: Any
    engine: str
    reproducible: bool
    threads: int
    products: int
    row_panel: int
    column_block: int
    workspace_bytes: int
    predicted_seconds: float
    native_seconds: float
    bound: str
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "batch": list(self.batch),
            "operands": list(self.operands),
            "result": self.result,
            "accuracy": str(self.target) if self.target is not None else None,
            "scheme": str(self.scheme),
            "engine": self.engine,
            "reproducible": self.reproducible,
            "threads": self.threads,
            "products": self.products,
            "row_panel": self.row_panel,
            "column_block": self.column_block,
            "workspace_bytes": self.workspace_bytes,
            "predicted_seconds": self.predicted_seconds,
            "native_seconds": self.native_seconds,
            "bound": self.bound,
            "reasons": list(self.reasons),
            "alternatives": [alternative.to_dict() for alternative in self.alternatives],
        }

    def _repr_html_(self) -> str:
        from prismm.core.notebook import table

        size = f"{self.m}×{self.k} by {self.k}×{self.n}"
        size = f"{'×'.join(map(str, self.batch))} of {size}" if self.batch else size
        target = str(self.target) if self.target is not None else "the scheme's own value"
        rows = [
            ["product", f"{size}, {self.operands[0]} and {self.operands[1]} → {self.result}"],
            ["accuracy", target + (", reproducible" if self.reproducible else "")],
            ["scheme", f"{self.scheme} on {self.engine}"],
            ["bound", self.bound],
            [
                "predicted",
                f"{readable_seconds(self.predicted_seconds)}, native {readable_seconds(self.native_seconds)}",
            ],
            *(["because", reason] for reason in self.reasons),
            *(["instead", str(alternative)] for alternative in self.alternatives),
        ]
        return table("plan of a product", [], rows)

    def __str__(self) -> str:
        target = str(self.target) if self.target is not None else "the scheme's own value"
        expected, native = readable_seconds(self.predicted_seconds), readable_seconds(self.native_seconds)
        lines = [
            heading(self.batch, (self.m, self.k, self.n), self.operands, self.result),
            f"  accuracy    {target}" + (", reproducible" if self.reproducible else ""),
            f"  scheme      {self.scheme} on {self.engine}, {self.threads} thread{'s' if self.threads != 1 else ''}",
            f"  products    {self.products}",
            f"  bound       {self.bound}",
            f"  predicted   {expected} (native {native})",
            f"  workspace   {self.workspace_bytes / 2**20:.1f} MiB, panels of {self.row_panel} rows, "
            f"blocks of {self.column_block} columns",
        ]
        lines += [f"  because     {reason}" for reason in self.reasons]
        return "\n".join([*lines, *(f"  instead     {alternative}" for alternative in self.alternatives)])


def heading(batch: tuple[int, ...], sizes: tuple[int, int, int], operands: tuple[str, str], result: str) -> str:
    """A plan's first line: shapes and types of the product. `sizes` are m, k and n.

    >>> heading((), (2, 3, 4), ("float64", "float32"), "float64")
    '(2 x 3) @ (3 x 4), float64 and float32 -> float64'
    """
    m, k, n = sizes
    shape = f"({m} x {k}) @ ({k} x {n})"
    if batch:
        shape = f"{'x'.join(map(str, batch))} of {shape}"
    return f"{shape}, {operands[0]} and {operands[1]} -> {result}"


@dataclass(frozen=True)
class Decision:
    """What was chosen for a product. Its `Plan`, with all predictions, is worked out when somebody asks for it.

    Attributes:
        scheme: the scheme.
        engine: the engine.
        target: the accuracy target; None for a scheme's own value.
        reproducible: whether the bits depend on operands, types, k and target alone.
        make_plan: works the plan out.
    """

    scheme: Any
    engine: str
    target: Target | None
    reproducible: bool
    make_plan: Callable[[], Plan]

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan."""
        return self.make_plan()

    @classmethod
    def of(cls, plan: Plan) -> Decision:
        """The decision that a plan states."""
        return cls(plan.scheme, plan.engine, plan.target, plan.reproducible, lambda: plan)


def readable_seconds(seconds: float) -> str:
    """Seconds in a unit that suits them.

    >>> [readable_seconds(x) for x in (2e-5, 0.25, 3.0, 5400.0, 20000.0, 4e5)]
    ['20 µs', '250.0 ms', '3.00 s', '90.0 minutes', '5.6 hours', '4.6 days']
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1.0:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120.0:
        return f"{seconds:.2f} s"
    for name, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {name}"
    return f"{seconds:.0f} s"


def bound_text(scheme: Any, target: Target | None, result: Format, is_complex: bool) -> str:
    """The guarantee per entry, in one line."""
    u = f"2^-{result.precision}"
    terms = "2k" if is_complex else "k"
    if target is None:
        return "the scheme's own: Report.bound(i, j)"
    if target.kind == "correctly-rounded":
        return "half an ulp: c = RN(exact)" + (", real and imaginary part each" if is_complex else "")
    if target.kind == "tolerance":
        return f"|c - exact| <= {target.tolerance:g}·(|a||b|) + {u}·|exact| + η/2"
    if target.kind == "native":
        return f"|c - exact| <= {terms}·{u}·(|a||b|) + {terms}·η"
    return "none per entry; Report.bound(i, j) gives what the scheme guarantees"


NOTEWORTHY = 0.05
"""Share of a plan's seconds from which on what repairs add is told."""


def with_repairs(plan: Plan, repairs: tuple[float, str] | None) -> Plan:
    """The plan with the seconds that repairs are expected to add, and the reason, if they are worth telling."""
    if repairs is None or repairs[0] < NOTEWORTHY * plan.predicted_seconds:
        return plan
    seconds, reason = repairs
    return replace(plan, predicted_seconds=plan.predicted_seconds + seconds, reasons=(*plan.reasons, reason))
