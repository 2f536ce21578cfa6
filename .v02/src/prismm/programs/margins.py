"""From the errors of some inputs to a bound for new ones of the same distribution."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

RISK = 1e-3
"""The probability, under the model below, that a new input's error exceeds `upper`."""

FACTOR = 1.25
"""At least so far above the largest error seen, whatever the spread says: errors need not be log-normal."""

FEW_FACTOR = 4.0
"""The same where fewer than three inputs say nothing of the spread."""


def upper(errors: Sequence[float], factor: float | None = None) -> float:
    """What the error of a new input will not exceed.

    Rounding errors of many products add up to errors whose logarithms vary little and nearly normally from input to
    input. For n >= 3 errors with logarithms of mean m and standard deviation s, a further one lies below
    m + t·s·√(1 + 1/n) with probability 1 - RISK, t the quantile of Student's distribution with n - 1 degrees of
    freedom. The result is that, but at least `FACTOR` (`FEW_FACTOR` for n < 3) times the largest error; with `factor`
    given it is that multiple of the largest error.

    >>> upper([2.0, 2.0, 2.0, 2.0]), upper([2.0]), round(upper([1.9, 2.0, 2.1]), 2)
    (2.5, 8.0, 7.26)
    """
    largest = max(errors)
    if factor is not None:
        return factor * largest
    if len(errors) < 3:
        return FEW_FACTOR * largest
    if not math.isfinite(largest) or largest == 0.0:
        return largest
    # An error of 0 among others is as good as a very small one.
    logs = [math.log(max(error, 1e-3 * largest)) for error in errors]
    n, mean = len(logs), math.fsum(logs) / len(logs)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1))
    reach = mean + student(n - 1, 1.0 - RISK) * deviation * math.sqrt(1.0 + 1.0 / n)
    return max(FACTOR * largest, math.exp(min(reach, 700.0)))


@functools.lru_cache(maxsize=256)
def student(freedom: int, probability: float) -> float:
    """Quantile of Student's t distribution, for probabilities above 1/2.

    With t = √ν·tan θ its density becomes cos^(ν-1) θ, whose integral is summed by Simpson's rule.

    >>> round(student(1, 0.999), 1), round(student(4, 0.999), 3), round(student(30, 0.999), 3)
    (318.3, 7.173, 3.385)
    """

    def mass(theta: float) -> float:
        steps = 1000
        h = theta / steps
        inner = sum((4 if i % 2 else 2) * math.cos(i * h) ** (freedom - 1) for i in range(1, steps))
        return h / 3 * (1.0 + inner + math.cos(theta) ** (freedom - 1))

    wanted = (2.0 * probability - 1.0) * mass(math.pi / 2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) < wanted else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)
