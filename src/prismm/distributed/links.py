"""What connects devices, as the scaling model takes it: bytes that collectives send, and seconds that they take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from prismm.errors import ArgumentError

__all__ = ["Links", "Traffic"]


@dataclass(frozen=True)
class Links:
    """What connects the devices; bytes a second are those that one device sends while all others do.

    Attributes:
        per_host: devices of a host, all joined by NVLink.
        nvlink: bytes a second in gathers and sums whose result stays spread. Two H200s moved 575 GB/s of input in a
            reduce-scatter, of which each sends half.
        nvlink_all_reduce: the same where every device gets the sum: 350 GB/s on two H200s.
        network: bytes a second between hosts; by default an adapter of 400 Gbit/s for each device.
        startup: seconds before a collective has begun. An all-reduce of 64 MiB ran at 250 GB/s where a long one ran at
            350.

    Raises:
        ArgumentError: for a number of devices below 1, and for figures that are not finite and above 0.

    >>> from prismm.distributed import Links
    >>> Links(per_host=4).network
    50000000000.0
    """

    per_host: int = 8
    nvlink: float = 575e9 / 2
    nvlink_all_reduce: float = 350e9
    network: float = 50e9
    startup: float = 2**26 * (1 / 250e9 - 1 / 350e9)

    def __post_init__(self) -> None:
        if type(self.per_host) is not int or self.per_host < 1:
            raise ArgumentError(f"per_host={self.per_host!r}; pass a number of devices of 1 or more")
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            least = 0.0 if one.name == "startup" else math.ulp(0.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
                raise ArgumentError(f"{one.name}={value!r}; pass a finite number above 0")


class Traffic:
    """Bytes that one device sends, and seconds that they take."""

    def __init__(self, links: Links) -> None:
        self.links, self.nvlink, self.network, self.seconds = links, 0.0, 0.0, 0.0

    def move(self, size: float, group: int, within: int, *, all_reduce: bool = False) -> None:
        """Gather, or sum, blocks of so many bytes among a group, of which a host has some; or sum them and gather the
        sums, in an all-reduce.

        Of a block each device has, or gets, 1/group. Hosts exchange (group/within - 1)/group of it, devices of a host
        (within - 1)/within.
        """
        times = 2 if all_reduce else 1
        nvlink = self.links.nvlink_all_reduce if all_reduce else self.links.nvlink
        self._send(times * size * (within - 1) / within, times * size * (group // within - 1) / group, nvlink)

    def exchange(self, size: float, group: int, within: int) -> None:
        """Send each device of a group its 1/group of a block of so many bytes (all-to-all)."""
        self._send(size * (within - 1) / group, size * (group - within) / group, self.links.nvlink)

    def _send(self, near: float, far: float, nvlink: float) -> None:
        for sent, rate in ((near, nvlink), (far, self.links.network)):
            if sent > 0.0:
                self.seconds += self.links.startup + sent / rate
        self.nvlink += near
        self.network += far
