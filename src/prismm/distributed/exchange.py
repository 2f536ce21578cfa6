"""What ranks send each other: exact reductions over the dimensions of a mesh, and an error that names who is missing.

Reductions go through the mesh dimensions one after the other: maxima and sums of integers do not depend on it. All
tensors are on the group's device, so that gloo and NCCL serve alike.

Each rank posts in the group's store which product it has entered. Where a collective fails, or ends by torch's timeout,
ranks that have not entered the product are named, or else those that do not answer.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard

from prismm.core import environment
from prismm.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.distributed.device_mesh import DeviceMesh

    Tensor = torch.Tensor

GRACE = 2.0
"""Seconds in which the ranks that met an error are expected to say so."""

_ENVIRONMENT = ("PRISMM_ENGINE",)
"""Variables that change how a product is made."""

_ENTERED: dict[str, int] = {}
"""Products that this rank entered, by mesh."""

_AGREED: dict[str, set[str]] = {}
"""Kinds of products that all ranks of a mesh agreed on, by mesh."""


_MOST = 4096
"""Kinds that are remembered of a mesh."""


@dataclass
class Traffic:
    """What this rank's exact sums took so far.

    Attributes:
        sent_bytes: handed to collectives for other ranks, not counting what collectives forward.
        waited_seconds: for digits that were not there when they were wanted.
    """

    sent_bytes: int = 0
    waited_seconds: float = 0.0


TRAFFIC = Traffic()


class Exchange:
    """The collectives of one product over some dimensions of a mesh.

    Attributes:
        mesh: of the operands.
        inner: mesh dimensions over which the inner dimension is sharded.
    """

    def __init__(self, mesh: DeviceMesh, inner: tuple[int, ...]) -> None:
        self.mesh = mesh
        self.inner = inner
        self.device = torch.device(mesh.device_type)

    def maximum(self, x: Any) -> Any:
        """The entrywise maximum of integers over all ranks of `inner`: an array for an array, a tensor for a tensor of
        the group's device.
        """
        return self._reduced(x, dist.ReduceOp.MAX)

    def total(self, x: Any) -> Any:
        """The entrywise sum, likewise."""
        return self._reduced(x, dist.ReduceOp.SUM)

    def _reduced(self, x: Any, operation: Any) -> Any:
        if math.prod(x.shape) == 0:
            return x
        array = isinstance(x, np.ndarray)
        found = torch.from_numpy(np.ascontiguousarray(x)).to(self.device) if array else x.contiguous()
        for index in self.inner:
            dist.all_reduce(found, operation, group=self.mesh.get_group(index))
            TRAFFIC.sent_bytes += found.nbytes
        return found.cpu().numpy() if array else found

    def chunks(self, size: int, index: int) -> list[tuple[int, int]]:
        """First and last of each rank's share of `size` along a mesh dimension, as `Shard` cuts it."""
        count = self.mesh.size(index)
        found = []
        for rank in range(count):
            length, start = Shard.local_shard_size_and_offset(size, count, rank)
            found.append((min(int(start), size), min(int(start), size) + int(length)))
        return found

    def share(self, size: int, index: int) -> tuple[int, int]:
        """This rank's share."""
        return self.chunks(size, index)[self.mesh.get_local_rank(index)]

    def start_scatter(self, x: Any, axis: int | None, index: int) -> Pending:
        """Send every rank of a mesh dimension its share of bytes x along `axis` (all of it, where None); what comes
        back from all of them is `Pending`. x: an array, or a tensor of the group's device.
        """
        array = isinstance(x, np.ndarray)
        whole = torch.from_numpy(x) if array else x
        count, rank = self.mesh.size(index), self.mesh.get_local_rank(index)
        places = [(0, 0)] * count if axis is None else self.chunks(x.shape[axis], index)
        cuts = [whole if axis is None else whole.narrow(axis, first, last - first) for first, last in places]
        sizes, mine = [cut.numel() for cut in cuts], cuts[rank].shape
        source = torch.empty(sum(sizes), dtype=whole.dtype, device=whole.device)
        for part, cut in zip(source.split(sizes), cuts, strict=True):
            _copy(part.view(cut.shape), cut)
        source = source.to(self.device) if array else source
        size = math.prod(mine)
        target = torch.empty(size * count, dtype=whole.dtype, device=source.device)
        TRAFFIC.sent_bytes += source.nbytes - sizes[rank]
        group = self.mesh.get_group(index)
        work = dist.all_to_all_single(target, source, [size] * count, sizes, group=group, async_op=True)
        return Pending(work, source, target, (count, *mine), array)

    def gathered(self, x: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """The columns of all ranks' x (rows, own number of columns) side by side, in one order on all ranks; and where
        this rank's begin.
        """
        start = 0
        for index in self.inner:
            group, count = self.mesh.get_group(index), self.mesh.size(index)
            sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(count)]
            dist.all_gather(sizes, torch.tensor([x.shape[1]], device=self.device), group=group)
            widths = [int(size) for size in sizes]
            most = max(widths)
            if most == 0:
                continue
            padded = torch.zeros((x.shape[0], most), dtype=torch.int64, device=self.device)
            padded[:, : x.shape[1]] = torch.from_numpy(np.ascontiguousarray(x)).to(self.device)
            pieces = [torch.empty_like(padded) for _ in range(count)]
            dist.all_gather(pieces, padded, group=group)
            TRAFFIC.sent_bytes += padded.nbytes
            start += sum(widths[: self.mesh.get_local_rank(index)])
            x = np.concatenate([p[:, :w].cpu().numpy() for p, w in zip(pieces, widths, strict=True)], axis=1)
        return x, start

    def agreed(self, kind: str) -> bool:
        """Whether all ranks have compared a product of this kind."""
        return kind in _AGREED.get(_name(self.mesh), ())

    def agree(self, kind: str, *, always: bool) -> None:
        """Compare what is about to be multiplied, and with what, on all ranks of the mesh.

        Args:
            kind: of the product, in words.
            always: before every product, as where exact sums are shared; otherwise before the first one of its kind.

        Raises:
            EngineError: on every rank, with the ranks that differ and what they have.
        """
        # A variable that changes later on one rank changes no bit; were it part of the key, only that rank would ask.
        if not always and self.agreed(kind):
            return
        text = f"prismm {_version()}; {kind}" + "".join(f"; {x}={os.environ.get(x, '')}" for x in _ENVIRONMENT)
        try:
            environment.check_arithmetic()
        except EngineError as error:
            # Told to the others, so that none of them waits for a product that this rank cannot make.
            text += f"; {error}"
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int64) >> 1
        both = torch.from_numpy(np.concatenate([digest, -digest])).to(self.device)
        for index in range(self.mesh.ndim):
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self.mesh.get_group(index))
        most, least = both.cpu().numpy().reshape(2, -1)
        # The maximum of -x is the minimum of x: all are equal where both are.
        if (most != -least).any():
            raise EngineError(self._differences(text))
        environment.check_arithmetic()
        agreed = _AGREED.setdefault(_name(self.mesh), set())
        if len(agreed) >= _MOST:
            agreed.clear()  # on all ranks of this mesh, which agree on the same products
        agreed.add(kind)

    def _differences(self, text: str) -> str:
        known = {dist.get_rank(): text}
        for index in range(self.mesh.ndim):
            group = self.mesh.get_group(index)
            found: list[Any] = [None] * self.mesh.size(index)
            dist.all_gather_object(found, known, group=group)
            known = {rank: each for part in found for rank, each in part.items()}
        common = max(set(known.values()), key=lambda each: (list(known.values()).count(each), each))
        others = [f"rank {rank} has [{each}]" for rank, each in sorted(known.items()) if each != common]
        return (
            f"ranks do not agree on a product: {'; '.join(others)}; the others have [{common}]; start all ranks with "
            "the same program, version and environment"
        )

    @contextlib.contextmanager
    def entered(self, kind: str) -> Iterator[None]:
        """A block in which a collective that fails ends in an EngineError that names the ranks that are missing."""
        name, number = _name(self.mesh), _ENTERED.get(_name(self.mesh), 0) + 1
        _ENTERED[name] = number
        rank, store = dist.get_rank(), _store()
        with contextlib.suppress(RuntimeError):
            store.set(f"prismm/{name}/{rank}", str(number))
        try:
            yield
        except (RuntimeError, dist.DistBackendError) as error:
            if isinstance(error, EngineError):
                raise
            with contextlib.suppress(RuntimeError):
                store.set(f"prismm/{name}/{rank}/failed", str(number))
            raise EngineError(f"{kind}: {self._missing(name, number)}; torch says: {_brief(error)}") from error

    def _missing(self, name: str, number: int) -> str:
        """Which ranks have not come to this product, or do not answer."""
        store, mine = _store(), dist.get_rank()
        ranks = sorted(int(rank) for rank in self.mesh.mesh.flatten() if int(rank) != mine)
        deadline = time.monotonic() + GRACE
        try:
            while True:
                late = [rank for rank in ranks if _posted(store, f"prismm/{name}/{rank}") < number]
                silent = [rank for rank in ranks if _posted(store, f"prismm/{name}/{rank}/failed") < number]
                if not silent or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        except RuntimeError:
            return "the store that ranks meet in is gone: rank 0, or the agent that started it, has ended"
        if late:
            return f"{_ranks(late)} did not come to product {number} of this mesh"
        if silent:
            return f"{_ranks(silent)} did not answer within product {number} of this mesh: ended, or waiting still"
        return f"all ranks met an error within product {number} of this mesh"


class Pending:
    """Digits on their way."""

    def __init__(self, work: Any, source: Tensor, target: Tensor, shape: tuple[int, ...], array: bool) -> None:
        self._work, self._source, self._target, self._shape, self._array = work, source, target, shape, array

    def wait(self) -> Any:
        """(ranks, …): what every rank sent; of a GPU, once what is queued before has run."""
        start = time.perf_counter()
        self._work.wait()
        TRAFFIC.waited_seconds += time.perf_counter() - start
        found = self._target.view(self._shape)
        return found.cpu().numpy() if self._array else found


def _copy(target: Tensor, source: Tensor) -> None:
    """target = source, of bytes; eight at a time where they lie so: torch copies element by element."""
    if all(_in_words(x) for x in (target, source)):
        target, source = target.view(torch.int64), source.view(torch.int64)
    target.copy_(source)


def _in_words(x: Tensor) -> bool:
    steps = x.stride()[:-1]
    return x.numel() > 0 and x.stride(-1) == 1 and not any(y % 8 for y in (x.shape[-1], x.data_ptr(), *steps))


def beside(left: Any, right: Any) -> Any:
    """Two arrays, or two tensors, of as many rows in one."""
    return np.concatenate([left, right], axis=1) if isinstance(left, np.ndarray) else torch.cat([left, right], dim=1)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


@functools.lru_cache(maxsize=64)
def ranks_of(mesh: DeviceMesh) -> str:
    """The ranks of a mesh, in its order."""
    return repr(mesh.mesh.tolist())


@functools.lru_cache(maxsize=64)
def _name(mesh: DeviceMesh) -> str:
    """Of the ranks of a mesh, in its order."""
    return hashlib.sha256(ranks_of(mesh).encode()).hexdigest()[:16]


def _version() -> str:
    from prismm import __version__

    return __version__


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def _posted(store: Any, key: str) -> int:
    return int(store.get(key)) if store.check([key]) else 0


def _brief(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200]
