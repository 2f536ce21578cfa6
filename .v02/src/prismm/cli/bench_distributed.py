"""``prismm bench distributed``: products of DTensors on 1, 2, 4, … of the ranks that torchrun started, torch's beside
ours.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prismm.cli.console import columns, print_json, say
from prismm.cli.documents import check_new, write_csv
from prismm.cli.env import machine
from prismm.core.extras import install, is_installed, missing
from prismm.errors import ArgumentError

_TIMEOUT = datetime.timedelta(minutes=10)


def run(
    orders: list[int], dtype: np.dtype[Any], targets: dict[str, dict[str, Any]], rounds: int, seed: int,
    seconds: float, csv: Path | None, plot: Path | None, json: bool,
) -> None:  # fmt: skip
    """Time all shardings, on every rank; rank 0 tells of each row, writes it, and prints and draws all. No further row
    is begun after so many `seconds`.

    Raises:
        ArgumentError: outside of torchrun.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ArgumentError(
            "bench distributed runs on the ranks that torchrun starts; call torchrun --nproc-per-node 2 --no-python "
            "prismm bench distributed"
        )
    first = os.environ["RANK"] == "0"
    for path in (csv, plot):
        if path is not None and first:
            check_new(path, force=True)
    if not is_installed("torch"):
        raise missing("prismm bench distributed", "torch")
    if plot is not None and not is_installed("matplotlib"):
        raise ArgumentError(f"--plot needs matplotlib; install it with: {install('plot')}")

    def tell(text: str) -> None:
        if first and not json:
            say(text)

    tell(
        f"timing torch's product and prismm's ({', '.join(targets)}) on {os.environ['WORLD_SIZE']} ranks and fewer: "
        f"{dtype.name}, n = {', '.join(map(str, orders))}, {rounds} rounds each"
    )
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=_TIMEOUT)
    rows: list[dict[str, Any]] = []
    context = machine(None) if first and csv is not None else {}
    try:
        for row in _rows(orders, "cuda" if on_gpu else "cpu", dtype, targets, rounds, seed, seconds, tell):
            if not first:
                continue
            rows.append(row)
            _add_scaling(rows)
            if csv is not None:
                write_csv(csv, [row | context for row in rows])
            tell(_shown(row))
    finally:
        dist.destroy_process_group()
    if not first:
        return
    if csv is not None:
        say(f"wrote {csv}")
    if plot is not None:
        _draw(rows, plot)
        say(f"wrote {plot}")
    if json:
        print_json({"rows": rows})
    else:
        _print(rows)


def _rows(
    orders: list[int], device: str, dtype: np.dtype[Any], targets: dict[str, dict[str, Any]], rounds: int, seed: int,
    seconds: float, tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Rows as they are measured: on every rank of a mesh its own. Rank 0 is in all of them, and its clock ends them."""
    import torch
    import torch.distributed as dist

    start, begun = time.perf_counter(), False
    for about, mesh, left, right, n in _cases(dist.get_world_size(), orders, device):
        here = mesh.get_coordinate() is not None
        a = b = None
        for target, keywords in targets.items():
            over = torch.tensor([int(begun and time.perf_counter() - start > seconds)], device=device)
            dist.broadcast(over, 0)  # ranks outside of the mesh wait here
            if over.item():
                labels = {**about, "n": n, "accuracy": target}
                tell(f"out of time before {_named(labels)}")
                return
            begun = True
            if here:
                if a is None:
                    a, b = _part(n, mesh, left, dtype, seed), _part(n, mesh, right, dtype, seed + 1)
                labels = {**about, "n": n, "dtype": dtype.name, "accuracy": target, "mesh": mesh.device_type}
                yield labels | _timed(a, b, mesh, keywords, rounds)
    dist.barrier()


def _cases(world: int, orders: list[int], device: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any, int]]:
    """The labels of a row, the mesh, placements of both operands, and the matrices' order. All ranks make all
    meshes.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard

    counts = [1 << x for x in range(world.bit_length()) if 1 << x <= world]
    for count in sorted({*counts, world}):
        line = DeviceMesh(device, torch.arange(count))
        shardings: list[tuple[str, Any, Any, Any]] = [
            ("rows", line, [Shard(0)], [Replicate()]), ("inner", line, [Shard(1)], [Shard(0)]),
        ]  # fmt: skip
        side = next(x for x in range(int(count**0.5), 0, -1) if count % x == 0)
        if side > 1:
            grid = DeviceMesh(device, torch.arange(count).reshape(side, -1))
            shardings.append(("2-D", grid, [Shard(0), Replicate()], [Replicate(), Shard(1)]))
        for name, mesh, left, right in shardings:
            for n in orders:
                # Work grows with the third power of the order.
                for scaling, order in (("strong", n), ("weak", round(n * count ** (1 / 3)))):
                    if count > 1 or scaling == "strong":
                        yield (
                            {"sharding": name, "scaling": scaling, "ranks": count, "base": n},
                            mesh,
                            left,
                            right,
                            order,
                        )


def _timed(a: Any, b: Any, mesh: Any, keywords: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Seconds of torch's product and of ours, those of the slowest rank, and what this rank sent and waited for."""
    import torch

    import prismm
    from prismm.distributed.exchange import TRAFFIC

    ours = _landed(lambda: prismm.matmul(a, b, **keywords))
    native = _landed(lambda: torch.matmul(a, b))
    ours(), native()
    sent, waited = TRAFFIC.sent_bytes, TRAFFIC.waited_seconds
    times = [(_seconds(native, mesh), _seconds(ours, mesh)) for _ in range(rounds)]
    mine = statistics.median(y for _, y in times)
    return {
        "ratio": statistics.median(x / y for x, y in times),
        "native_seconds": statistics.median(x for x, _ in times),
        "prismm_seconds": mine,
        "rounds": rounds,
        "sent_bytes": (TRAFFIC.sent_bytes - sent) // rounds,
        "waited": (TRAFFIC.waited_seconds - waited) / rounds / mine,
    }


def _part(n: int, mesh: Any, placements: Any, dtype: np.dtype[Any], seed: int) -> Any:
    """A random matrix, of which a rank draws its part: another one along sharded dimensions alone."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    shape, place = [n, n], 0
    for index, each in enumerate(placements):
        if isinstance(each, Shard):
            shape[each.dim], _ = Shard.local_shard_size_and_offset(
                shape[each.dim], mesh.size(index), mesh.get_local_rank(index)
            )
            place = place * mesh.size(index) + mesh.get_local_rank(index)
    generator = torch.Generator(mesh.device_type).manual_seed(1000 * seed + place)
    kind = getattr(torch, dtype.name)
    local = torch.randn(shape, dtype=kind, device=mesh.device_type, generator=generator)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size((n, n)), stride=(n, 1))


def _landed(product: Callable[[], Any]) -> Callable[[], Any]:
    """The product, its sums over ranks made and scattered."""
    from torch.distributed.tensor import Shard

    def made() -> Any:
        found = product()
        placements = [Shard(0) if each.is_partial() else each for each in found.placements]
        return found.redistribute(placements=placements).to_local()

    return made


def _seconds(product: Callable[[], Any], mesh: Any) -> float:
    """From a common start to the last rank's end."""
    import torch
    import torch.distributed as dist

    groups = [mesh.get_group(index) for index in range(mesh.ndim)]
    # NCCL's barrier guesses the device, and says so, unless it is told.
    devices = [torch.cuda.current_device()] if mesh.device_type == "cuda" else None
    for group in groups:
        dist.barrier(group=group, device_ids=devices)
    start = time.perf_counter()
    product()
    if mesh.device_type == "cuda":
        torch.cuda.synchronize()
    taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=mesh.device_type)
    for group in groups:
        dist.all_reduce(taken, dist.ReduceOp.MAX, group=group)
    return float(taken)


def _add_scaling(rows: list[dict[str, Any]]) -> None:
    """Speed-up over one rank (strong), or its time over the time here (weak), from rows of the same base."""
    alone = {(x["base"], x["accuracy"], x["sharding"]): x for x in rows if x["ranks"] == 1}
    for row in rows:
        # One rank's rows are as good a beginning for two dimensions.
        one = alone[row["base"], row["accuracy"], "rows" if row["sharding"] == "2-D" else row["sharding"]]
        for name in ("native", "prismm"):
            row[f"{name}_scaling"] = one[f"{name}_seconds"] / row[f"{name}_seconds"]


def _named(row: dict[str, Any]) -> str:
    ranks = f"{row['ranks']} rank{'s' if row['ranks'] > 1 else ''}"
    return f"{row['sharding']}, {row['scaling']} scaling, {ranks}, n = {row['n']}, {row['accuracy']}"


def _shown(row: dict[str, Any]) -> str:
    """One line of words."""
    return f"{_named(row)}: torch {1e3 * row['native_seconds']:.3g} ms, prismm {1e3 * row['prismm_seconds']:.3g} ms"


def _print(rows: list[dict[str, Any]]) -> None:
    head = ["sharding", "scaling", "ranks", "n", "accuracy", "torch", "prismm", "ratio"]
    head += ["torch x", "prismm x", "sent", "waited"]
    cells = [
        [
            row["sharding"], row["scaling"], str(row["ranks"]), str(row["n"]), row["accuracy"],
            f"{1e3 * row['native_seconds']:.3g} ms", f"{1e3 * row['prismm_seconds']:.3g} ms", f"{row['ratio']:.2f}",
            f"{row['native_scaling']:.2f}", f"{row['prismm_scaling']:.2f}", f"{row['sent_bytes'] / 2**20:.3g} MiB",
            f"{100 * row['waited']:.0f}%",
        ]
        for row in rows
    ]  # fmt: skip
    print(columns(head, cells, left=("sharding", "scaling", "accuracy")))


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Strong scaling: the speed-up of torch's and our products over one rank, a line for each sharding and target."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    strong = [row for row in rows if row["scaling"] == "strong" and row["base"] == max(x["base"] for x in rows)]
    for key in sorted({(row["sharding"], row["accuracy"]) for row in strong}):
        mine = [row for row in strong if (row["sharding"], row["accuracy"]) == key]
        ranks = [row["ranks"] for row in mine]
        axes.plot(ranks, [row["prismm_scaling"] for row in mine], "o-", label=f"prismm, {key[0]}, {key[1]}")
        axes.plot(ranks, [row["native_scaling"] for row in mine], "x:", color=axes.lines[-1].get_color())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("ranks")
    axes.set_ylabel("speed-up over one rank (dotted: torch)")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
