"""Estimated rates of a GPU that nobody calibrated: kept measurements, and the first use that makes one.

Before the first product on such a GPU it is measured, in less than three seconds (`costs.measurement`). The numbers
stay in the user's cache folder; tables are derived from them (`costs.derive`). While a stream is captured nothing is
measured: published figures, or what the driver says, do until a later call. One process measures at a time, and the
others wait for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prismm.core import cache_files, strict_json
from prismm.cuda.costs.derive import Measured, derived
from prismm.cuda.costs.facts import Facts, cards, facts_of
from prismm.cuda.costs.table import Rates, calibrated, file_name, rates_of
from prismm.errors import EngineError, FileError

if TYPE_CHECKING:
    from prismm.cuda.device import Device

__all__ = ["ESTIMATED", "estimate_rates", "estimated", "forget", "is_estimated"]

ESTIMATED = "rates of this GPU are estimated; `prismm calibrate` measures them"

_FORMAT, _VERSION = "prismm measurement", 1
_TURNS = 3
"""Processes that measure at most, until one of them has time for all of it."""
_WAIT = 10.0
"""Seconds that a process waits for another one's measurement."""

_LOCK = threading.Lock()
_SETTLED: set[str] = set()
"""Names of GPUs of which no more will be known in this process."""
_KNOWN: dict[str, tuple[Facts, Measured | None]] = {}
"""What is known of GPUs that are here."""
_ESTIMATES: dict[str, Rates] = {}
"""Tables that `estimated` gave last."""


class _Kept(NamedTuple):
    """A measurement on disk. turns: how many processes made it."""

    facts: Facts
    measured: Measured
    turns: int

    @property
    def complete(self) -> bool:
        """Whether it is not made again."""
        return self.measured.int8 is not None or self.measured.int8_library is not None or self.turns >= _TURNS


def estimate_rates(device: Device, index: int) -> None:
    """Before a call on the GPU of this number: see to it that `rates_of` knows it. Measures it, once for this user,
    where there is no table; not while its stream is captured.

    Raises:
        FileError, ArgumentError: as `rates_of`.
    """
    if device.name in _SETTLED:
        return
    with _LOCK:
        if device.name in _SETTLED:
            return
        if calibrated(device.name) is None and not _estimate(device, index):
            return  # for now
        _SETTLED.add(device.name)


def estimated(name: str) -> Rates | None:
    """The estimated table of a GPU of this name, which need not be here; None where nothing is known of it."""
    known = _KNOWN.get(name)
    if known is None and (kept := _read(name)) is not None:
        known = kept.facts, kept.measured
    if known is None and name in cards():
        known = cards()[name], None
    if known is None:
        return None
    _ESTIMATES[name] = derived(*known)
    return _ESTIMATES[name]


def forget() -> None:
    """Nothing that was learnt of GPUs counts from now on; kept measurements stay."""
    with _LOCK:
        _SETTLED.clear()
        _KNOWN.clear()
        rates_of.cache_clear()


def is_estimated(name: str) -> bool:
    """Whether what `rates_of` has for a GPU is an estimate."""
    found = rates_of(name)
    return found is not None and found is _ESTIMATES.get(name)


def _estimate(device: Device, index: int) -> bool:
    """Know this GPU by a kept measurement, or a new one; whether that is all that can be known."""
    import torch

    begin, name, kept = time.perf_counter(), device.name, _read(device.name)
    complete = kept is not None and kept.complete
    try:
        facts = kept.facts if kept is not None else facts_of(name, index)
    except (OSError, ValueError):  # no driver, or one that says too little
        return True
    measured = kept.measured if kept is not None else None
    if not complete:
        with torch.cuda.device(index):
            capturing = torch.cuda.is_current_stream_capturing()
        if not capturing:
            measured, complete = _measured(device, index, facts, begin), True
    _KNOWN[name] = facts, measured
    rates_of.cache_clear()
    return complete


def _measured(device: Device, index: int, facts: Facts, begin: float) -> Measured | None:
    """A measurement, of this process or of another one that makes it just now; kept. None where there can be none."""
    from prismm.cuda.costs.measurement import measure

    with _alone(device.name):
        kept = _read(device.name)
        if kept is not None and kept.complete:
            return kept.measured
        cache_files.tell(
            f"no table of rates for {device.name}: measuring it once, up to 3 seconds; `prismm calibrate` makes one"
        )
        try:
            found = measure(device, index, begin)
        except (EngineError, RuntimeError) as error:  # among them torch's, out of memory
            cache_files.tell(f"warning: rates of {device.name} are estimated from published figures alone: {error}")
            return kept.measured if kept is not None else None
        _write(device.name, _Kept(facts, found, 1 + (kept.turns if kept is not None else 0)))
        return found


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """While no other process of this user measures such a GPU; for as long as it waits for that at most."""
    path = _path(name, make=True)
    try:
        import fcntl

        if path is None:
            raise OSError
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(path.with_suffix(".lock"), flags, 0o600)
    except (ImportError, OSError):  # on Windows, or where nothing can be written: nobody to wait for
        yield
        return
    try:
        end = time.monotonic() + _WAIT
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _path(name: str, make: bool = False) -> Path | None:
    """Where the measurement of a GPU of this name is kept."""
    found = cache_files.folder(f"measurements-{_VERSION}", make)
    return None if found is None else found / file_name(name)


def _write(name: str, kept: _Kept) -> None:
    content = {
        "format": _FORMAT, "version": _VERSION, "turns": kept.turns, "facts": asdict(kept.facts),
        "measured": asdict(kept.measured),
    }  # fmt: skip
    # Where nothing can be written, each process measures anew.
    with contextlib.suppress(OSError):
        if (path := _path(name, make=True)) is not None:
            cache_files.write(path, (json.dumps(content, indent=1) + "\n").encode())


def _read(name: str) -> _Kept | None:
    """The kept measurement; None where there is none, or none that counts: it is made anew."""
    path = _path(name)
    try:
        if path is None:
            return None
        content = strict_json.loads(cache_files.read(path).decode("utf-8"))
        if content["format"] != _FORMAT or not strict_json.is_version(content["version"], _VERSION):
            return None
        turns = content["turns"]
        if isinstance(turns, bool) or not isinstance(turns, int):
            return None
        return _Kept(_facts(name, content["facts"]), Measured(**_numbers(Measured, content["measured"])), turns)
    except FileError as error:
        cache_files.tell(f"warning: a measurement is not loaded: {error}")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


def _facts(name: str, content: dict[str, Any]) -> Facts:
    """Facts as they were kept.

    Raises:
        ValueError, TypeError, KeyError: for what are none.
    """
    capability, processors, listed = content["capability"], content["processors"], content["listed"]
    if content["name"] != name or not isinstance(listed, bool) or len(capability) != 2:
        raise ValueError("facts of another GPU")
    if any(isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in (*capability, processors)):
        raise ValueError("facts that are none")
    plain = {"name", "capability", "processors", "listed"}
    numbers = _numbers(Facts, {key: value for key, value in content.items() if key not in plain})
    return Facts(name=name, capability=tuple(capability), processors=processors, listed=listed, **numbers)


def _numbers(kind: Any, content: dict[str, Any]) -> dict[str, Any]:
    """Positive numbers by the names of fields; None where that may be.

    Raises:
        ValueError: for anything else.
    """
    parts = {part.name: part for part in fields(kind)}
    if not content.keys() <= parts.keys():
        raise ValueError("unknown keys")
    for key, value in content.items():
        if value is None and parts[key].default is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
            raise ValueError(f"{key} is no positive number")
    return content
