"""What a program multiplied: every product in a table, and what could not be seen."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from prismm.programs.gemms import Method
from prismm.programs.policy import Policy


@dataclass(frozen=True)
class Call:
    """One product.

    Attributes:
        index: number of the call, from 0.
        module: name of the module; "" outside any.
        where: file and line.
        operator: one of `policy.OPERATORS`.
        backward: whether autograd asked for it.
        batch, m, k, n: its shape.
        dtype: element type of the operands.
        device: where they lie.
        seconds: wall-clock time.
        method: how it was multiplied.
        rule: index of the rule that decided, or None.
        reason: why the product was left to torch, else "".
        after: indices of the earlier calls whose results went into it, where dependencies are recorded.
    """

    index: int
    module: str
    where: str
    operator: str
    backward: bool
    batch: int
    m: int
    k: int
    n: int
    dtype: str
    device: str
    seconds: float
    method: Method
    rule: int | None
    reason: str = ""
    after: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[Any, ...]:
        """What calls of one row of the table share."""
        return (
            self.module, self.where, self.operator, self.backward, self.batch, self.m, self.k, self.n, self.dtype,
            self.device, self.method, self.rule, self.reason,
        )  # fmt: skip

    @property
    def made(self) -> Method:
        """The former name of `method`."""
        import warnings

        warnings.warn("Call.made is now Call.method", DeprecationWarning, stacklevel=2)
        return self.method

    @property
    def operations(self) -> int:
        """Multiply-adds, complex ones counted once."""
        return self.batch * self.m * self.k * self.n


@dataclass(frozen=True)
class Row:
    """Products alike: the attributes of their first `Call`, how many they were, and their seconds together.

    On a GPU the first two of a place are timed, then one in sixteen; all others count as the mean of these.
    """

    call: Call
    count: int
    seconds: float

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.call, name)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        content = asdict(self.call)
        method = content.pop("method")
        for key in ("index", "after"):
            content.pop(key)
        return {**content, **method, "count": self.count, "seconds": self.seconds}


@dataclass
class Record:
    """Returned by ``with prismm.emulate(...) as record``: what was multiplied so far.

    Attributes:
        policy: the one in force.
        keeps_calls: whether every single call is stored in `calls`.
        calls: the single calls, in order.
        lock: held while something is counted.
        wall_seconds: time in which some thread was inside the block.

    >>> import prismm, torch
    >>> with prismm.emulate("correctly-rounded") as record:
    ...     c = torch.ones(2, 3) @ torch.ones(3, 2)
    >>> [(row.operator, row.m, row.k, row.n, row.count, row.method.guarantee) for row in record.rows]
    [('mm', 2, 3, 2, 1, '½ ulp')]
    """

    policy: Policy
    keeps_calls: bool = False
    calls: list[Call] = field(default_factory=list)
    wall_seconds: float = 0.0
    _rows: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict, repr=False)
    _unseen: dict[tuple[str, str, str, str], int] = field(default_factory=dict, repr=False)
    _waiting: list[tuple[Call | list[Any], Any, Any]] = field(default_factory=list, repr=False)
    _tallies: list[tuple[Call, list[Any]]] = field(default_factory=list, repr=False)
    lock: Any = field(default_factory=threading.Lock, repr=False)
    _count: int = 0
    _open: int = 0
    """How many threads are inside the block."""
    _since: float = 0.0
    """When the first of them entered it."""

    def enter_block(self) -> None:
        """A thread enters the block."""
        with self.lock:
            if not self._open:
                self._since = time.perf_counter()
            self._open += 1

    def leave_block(self) -> None:
        """A thread leaves it."""
        with self.lock:
            self._open -= 1
            if not self._open:
                self.wall_seconds += time.perf_counter() - self._since

    def take_number(self) -> int:
        """The index of the next call."""
        with self.lock:
            self._count += 1
            return self._count - 1

    def add(self, call: Call, events: tuple[Any, Any] | None = None) -> None:
        """Enter a call; `events` are the two on a GPU that stand around it, read when someone asks."""
        with self.lock:
            if events is not None:
                self._waiting.append((call, *events))
                if len(self._waiting) >= 4096:
                    self._read_events()
            else:
                self._enter(call)

    def tally(self, call: Call) -> list[Any]:
        """A count, seconds, and how many of the count were not timed, of calls alike, which one thread keeps, without a
        lock; the table adds them up.
        """
        found: list[Any] = [0, 0.0, 0]
        with self.lock:
            self._tallies.append((call, found))
        return found

    def count(self, tally: list[Any], seconds: float | None, events: tuple[Any, Any] | None) -> None:
        """Count a call of a tally that several threads keep, autograd's among them; `events` as for `add`; neither
        where it was not timed.
        """
        with self.lock:
            tally[0] += 1
            if events is not None:
                self._waiting.append((tally, *events))
                if len(self._waiting) >= 4096:
                    self._read_events()
            elif seconds is None:
                tally[2] += 1
            else:
                tally[1] += seconds

    def hide(self, operator: str, module: str, where: str, what: str) -> None:
        """Enter an operator that multiplies out of reach."""
        with self.lock:
            key = operator, module, where, what
            self._unseen[key] = self._unseen.get(key, 0) + 1

    @property
    def unseen(self) -> dict[tuple[str, str, str], tuple[int, str]]:
        """Operators that multiply where nothing can be intercepted, {(operator, module, where): (count, what)}.

        Several reasons of one place are joined by semicolons.
        """
        found: dict[tuple[str, str, str], tuple[int, str]] = {}
        for operator, module, where, what, count in self.reasons:
            before, words = found.get((operator, module, where), (0, ""))
            found[operator, module, where] = before + count, f"{words}; {what}" if words else what
        return found

    @property
    def reasons(self) -> list[tuple[str, str, str, str, int]]:
        """The same by reasons: operator, module, where, what and count."""
        with self.lock:
            return [(*key, count) for key, count in self._unseen.items()]

    def synchronize(self) -> Record:
        """Wait for the GPU, and read the times of what ran there."""
        with self.lock:
            self._read_events()
        return self

    def settle(self) -> Record:
        """The former name of `synchronize`."""
        import warnings

        warnings.warn("Record.settle is now Record.synchronize", DeprecationWarning, stacklevel=2)
        return self.synchronize()

    def _read_events(self) -> None:
        from dataclasses import replace

        for counted, start, end in self._waiting:
            end.synchronize()
            seconds = start.elapsed_time(end) * 1e-3
            if isinstance(counted, Call):
                self._enter(replace(counted, seconds=seconds))
            else:
                counted[1] += seconds
        self._waiting.clear()

    def _enter(self, call: Call) -> None:
        if self.keeps_calls:
            self.calls.append(call)
        row = self._rows.setdefault(call.key, [call, 0, 0.0])
        if not row[1]:
            row[0] = call
        row[1] += 1
        row[2] += call.seconds

    @property
    def rows(self) -> list[Row]:
        """Products alike in one row each, the most seconds first."""
        self.synchronize()
        with self.lock:
            found = {key: list(row) for key, row in self._rows.items()}
            for call, (count, seconds, untimed) in self._tallies:
                if not count:  # the known way returned None, so the product was entered as a new one
                    continue
                row = found.setdefault(call.key, [call, 0, 0.0])
                row[1] += count
                row[2] += seconds if not untimed else seconds * (count / (count - untimed))
        return sorted((Row(*row) for row in found.values()), key=lambda row: -row.seconds)

    @property
    def seconds(self) -> float:
        """Time spent in products."""
        return sum(row.seconds for row in self.rows)

    @property
    def unmatched(self) -> list[str]:
        """Modules with products that no rule matched; torch made those."""
        return sorted({row.module for row in self.rows if row.rule is None})

    @property
    def unused(self) -> list[int]:
        """Indices of the policy's rules that decided nothing."""
        used = {row.rule for row in self.rows}
        return [index for index in range(len(self.policy.rules)) if index not in used]

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "policy": self.policy.to_dict(),
            "gemms": [row.to_dict() for row in self.rows],
            "seconds": self.seconds,
            "wall_seconds": self.wall_seconds,
            "unseen": [
                {"operator": operator, "module": module, "where": where, "count": count, "what": what}
                for operator, module, where, what, count in self.reasons
            ],
            "unmatched_modules": self.unmatched,
            "unused_rules": [self.policy.rules[index].to_dict() for index in self.unused],
        }

    def __str__(self) -> str:
        lines = [
            f"{row.count} x {row.operator}{' backward' if row.backward else ''} {shape_text(row.call)} {row.dtype} "
            f"{row.module or '-'} {row.where}: {row.method.scheme}, {row.method.guarantee}, {row.seconds * 1e3:.1f} ms"
            for row in self.rows
        ]
        lines += [
            f"not seen: {count} x {operator} {module} {where} ({what})"
            for operator, module, where, what, count in sorted(self.reasons)
        ]
        return "\n".join(lines) or "no products"


def shape_text(call: Any) -> str:
    """batch x (m x k x n).

    >>> from types import SimpleNamespace
    >>> shape_text(SimpleNamespace(batch=1, m=2, k=3, n=4)), shape_text(SimpleNamespace(batch=8, m=2, k=3, n=4))
    ('2x3x4', '8 of 2x3x4')
    """
    text = f"{call.m}x{call.k}x{call.n}"
    return text if call.batch == 1 else f"{call.batch} of {text}"
