"""What Fasi, Higham, Mikaitis and Pranesh 2020 published, and how our rows are compared with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from prismm.reproduce.claims import Claim, equals
from prismm.reproduce.framework import Rows

if TYPE_CHECKING:
    from prismm.reproduce.tensor_core_numerics import Test

_TABLE_1 = {
    ("V100", "fp16"): (4, ""),
    ("T4", "fp16"): (4, "published outputs fit blocks of 8, as its m16n8k8 instruction has it"),
    ("A100", "bf16"): (8, ""),
    ("A100", "fp16"): (8, ""),
    ("A100", "tf32"): (8, "published outputs fit blocks of 4; its output, binary64 in the table, is binary32"),
}
PARAMETERS = ("p", "e_max", "e_min", "epsilon", "f_min", "s_min")
_TABLE_3 = {
    "fp16": (11, 15, -14, 2.0**-10, 2.0**-14, 2.0**-24),
    "bf16": (8, 127, -126, 2.0**-7, 2.0**-126, 2.0**-133),
    "tf32": (11, 127, -126, 2.0**-10, 2.0**-126, 2.0**-136),
    "fp32": (24, 127, -126, 2.0**-23, 2.0**-126, 2.0**-149),
    "fp64": (53, 1023, -1022, 2.0**-52, 2.0**-1022, 5e-324),
}


def text_of(x: float) -> str:
    """A short sum of powers of two, as the paper writes its numbers.

    >>> text_of(1 + 2**-23), text_of(5.0), text_of(0.0), text_of(-2.0), text_of(2**-22)
    ('1+2^-23', '5', '0', '-2', '2^-22')
    """
    if x == int(x):
        return str(int(x))
    near = float(round(x))
    rest = x - near
    fraction, exponent = math.frexp(abs(rest))
    power = f"2^{exponent - 1}" if fraction == 0.5 else f"{fraction * 2:g}·2^{exponent - 1}"
    if near == 0:
        return power if rest > 0 else f"-{power}"
    return f"{int(near)}{'+' if rest > 0 else '-'}{power}"


def _found(figure: str, device: str) -> Callable[[Rows], list[float]]:
    return lambda rows: list(rows.curve(figure, device, "result").values())


def _non_monotone(device: str) -> Callable[[Rows], list[float]]:
    """Result with the smaller c less that with c = 1: positive where the engine is not monotone."""

    def measure(rows: Rows) -> list[float]:
        low, high = (_found(f"monotonicity, {c}", device)(rows) for c in ("c below 1", "c = 1"))
        return [low[0] - high[0]] if low and high else []

    return measure


def claims(tests: Sequence[Test]) -> tuple[Claim, ...]:
    """The V100's and T4's column of every test, and Tables 1 and 3."""
    found: list[Claim] = []
    for device in ("V100", "T4"):
        for question, group in groupby(tests, key=lambda test: test.name.split(", place")[0]):
            places = list(group)
            expected = places[0].on(device)[2]
            where = places[0].section if device == "V100" else f"{places[0].section}, §3.2"
            what = f"{device}: {question}" + (f" ({places[0].decides})" if places[0].decides else "")
            found.append(
                Claim(
                    where,
                    what,
                    text_of(expected),
                    equals(expected, text_of(expected)),
                    lambda rows, p=places, d=device: [v for test in p for v in _found(test.name, d)(rows)],  # type: ignore[misc]
                    show=text_of,
                )
            )
    found += [
        Claim("§3.1.4", "V100: extra bits below binary32's last", "0: {3.23}", equals(0), _found("extra bits", "V100")),
        Claim("§3.2", "T4: extra bits below binary32's last", "1: {3.24}", equals(1), _found("extra bits", "T4")),
        Claim("-", "A100: extra bits", "to be tested", None, _found("extra bits", "A100")),
        Claim("-", "H100: extra bits", "later device", None, _found("extra bits", "H100")),
        Claim(
            "§3.1.4", "V100: d(c below 1) - d(c = 1)", "2^-23: not monotone", equals(2.0**-23), _non_monotone("V100")
        ),
        Claim("§3.2", "T4: d(c below 1) - d(c = 1)", "2^-23: not monotone", equals(2.0**-23), _non_monotone("T4")),
        Claim(
            "§3.1.1",
            "binary32 subnormal c = 2^-149 with zero products",
            "unchanged",
            None,
            device="an engine with an accumulator input",
        ),
    ]
    for (device, fmt), (k, note) in _TABLE_1.items():
        found.append(
            Claim(
                "Table 1",
                f"{device}: inner dimension of a block, {fmt}",
                str(k),
                equals(k),
                lambda rows, d=device, f=fmt: list(rows.curve("Table 1", d, f"k of {f}").values()),  # type: ignore[misc]
                note=note,
            )
        )
    for fmt, published in _TABLE_3.items():
        found.append(
            Claim(
                "Table 3",
                f"{fmt}: parameters that differ",
                ", ".join(f"{name} {value:g}" for name, value in zip(PARAMETERS, published, strict=True)),
                equals(0),
                _differing(fmt),
            )
        )
    return tuple(found)


def _differing(fmt: str) -> Callable[[Rows], list[float]]:
    """How many parameters are not as published; nothing unless all are there."""

    def measure(rows: Rows) -> list[float]:
        ours = [rows.curve("Table 3", fmt, name).get(0.0) for name in PARAMETERS]
        return [] if None in ours else [sum(x != y for x, y in zip(ours, _TABLE_3[fmt], strict=True))]

    return measure
