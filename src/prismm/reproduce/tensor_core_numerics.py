"""The test suite of Fasi, Higham, Mikaitis and Pranesh 2020 (§3.1) on simulated engines.

A test multiplies a few binary16 numbers and adds c; what comes back decides one question about the engine. Engines here
take no accumulator input, so c is made by an earlier block of products (`_accumulator`), exactly as a GEMM would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.formats import BF16, FP16, FP32, FP64, TF32
from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.plot import Panel
from prismm.reproduce.tensor_core_numerics_claims import claims

if TYPE_CHECKING:
    import numpy as np

ENGINES = {"V100": "simulated:volta", "T4": "simulated:turing", "A100": "simulated:ampere", "H100": "simulated:hopper"}
_EIGHTH = (1.0, 1.5, 1.75, 1.875)


@dataclass(frozen=True)
class Test:
    """One question. products: the pairs multiplied, c: added to them, output: "binary32" or "binary16".

    expected: the paper's result on the V100 and what it means; t4: the inputs and result where the T4's extra bit needs
    other constants, else None.
    """

    name: str
    section: str
    decides: str
    products: tuple[tuple[float, float], ...]
    c: float
    expected: float
    output: str = "binary32"
    t4: tuple[tuple[tuple[float, float], ...], float, float] | None = None

    def on(self, device: str) -> tuple[tuple[tuple[float, float], ...], float, float]:
        """Products, c and expected result for a device: the V100's, or those of engines with extra bits."""
        return (self.products, self.c, self.expected) if device == "V100" or self.t4 is None else self.t4


def _sums(*terms: float) -> tuple[tuple[float, float], ...]:
    """Products with a = 1 (Eq. 3); a = 2^-12 where one is not a multiple of binary16's smallest subnormal."""
    return tuple((1.0, term) if term % 2.0**-24 == 0 else (2.0**-12, term * 2.0**12) for term in terms)


def _order(u: float) -> list[tuple[tuple[tuple[float, float], ...], float]]:
    """The five places of the 1 among summands u (§3.1.2)."""
    places = [(_sums(*(1.0 if i == place else u for i in range(4))), u) for place in range(4)]
    return [*places, (_sums(u, u, u, u), 1.0)]


def _tests() -> list[Test]:
    h, u, v = 1 - 2.0**-11, 2.0**-24, 2.0**-25
    tests = [
        Test("subnormal input, binary32", "§3.1.1", "binary16 subnormals are read", ((2.0**-24, 4.0),), 0.0, 2.0**-22),
        Test("subnormal input, binary16", "§3.1.1", "and returned", ((2.0**-24, 4.0),), 0.0, 2.0**-22, "binary16"),
        Test("subnormal result, binary32", "§3.1.1", "made of normal ones", ((2.0**-14, 0.5),), 0.0, 2.0**-15),
        Test("subnormal result, binary16", "§3.1.1", "", ((2.0**-14, 0.5),), 0.0, 2.0**-15, "binary16"),
        Test("subnormal difference, binary16", "§3.1.1", "", ((2.0**-14, 1.0),), -(2.0**-15), 2.0**-15, "binary16"),
        Test("subnormal cut off", "§3.1.1", "in hardware, toward zero", _sums(3 * u, 2.0), 0.0, 2.0),
        Test("exact products", "§3.1.2", "kept exactly", ((h, h),) * 4, 0.0, 4 * (1 - 2.0**-10 + 2.0**-22)),
        Test(
            "exact products, binary16",
            "§3.1.2",
            "also with binary16 sums",
            ((h, h), (h, 2.0**-11)),
            0.0,
            1 - 2.0**-10 + 2.0**-11,
            "binary16",
        ),
        Test("rounding of sums, +", "§3.1.3", "not RN, not RU", _sums(2.0, 3 * u), 0.0, 2.0),
        Test("rounding of sums, -", "§3.1.3", "not RD: toward zero", _sums(-2.0, -3 * u), 0.0, -2.0),
        Test(
            "rounding to binary16",
            "§3.1.3",
            "not toward zero",
            ((2.0**-24, 0.5), (2.0**-24, 0.25)),
            0.0,
            2.0**-24,
            "binary16",
        ),
        Test("guard digit", "§3.1.4", "none; T4: one bit", _sums(1.0), -1 + u, 2 * u, t4=(_sums(1.0), -1 + u, u)),
        Test("normalisation in addition", "§3.1.4", "only at the end", _sums(u, u, u, u), 1 - u, 1 + 2.0**-23),
        Test(
            "normalisation in subtraction",
            "§3.1.4",
            "only at the end",
            _sums(1.0, -u),
            -1 + u,
            2 * u,
            t4=(_sums(1.0, -u), -1 + u, 0.0),
        ),
        Test("third carry bit", "§3.1.4", "no overflow", _sums(*_EIGHTH), 1.875, 8.0),
        Test("rounding at the end, +", "§3.1.4", "toward zero", _sums(1.0, 1.0, 1.0, 1.0), 1 + 3 * 2.0**-23, 5.0),
        Test("rounding at the end, -", "§3.1.4", "", _sums(-1.0, -1.0, -1.0, -1.0), -1 - 3 * 2.0**-23, -5.0),
        Test(
            "monotonicity, c below 1",
            "§3.1.4",
            "",
            _sums(u, u, u, u),
            1 - u,
            1 + 2.0**-23,
            t4=(_sums(v, v, v, 3 * v), 1 - u, 1 + 2.0**-23),
        ),
        Test(
            "monotonicity, c = 1",
            "§3.1.4",
            "a smaller sum",
            _sums(u, u, u, u),
            1.0,
            1.0,
            t4=(_sums(v, v, v, 3 * v), 1.0, 1.0),
        ),
    ]
    for place, ((products, c), (products_t4, c_t4)) in enumerate(zip(_order(u), _order(v), strict=True), 1):
        tests.append(
            Test(
                f"order of sums, place {place}",
                "§3.1.2",
                "from the largest",
                products,
                c,
                1.0,
                t4=(products_t4, c_t4, 1.0),
            )
        )
    for place in range(4):
        terms = [1.0] * 4
        terms[place] = 2.0**-23
        tests.append(
            Test(
                f"carry bits, place {place + 1}",
                "§3.1.4",
                "at least two",
                _sums(*terms),
                1 + 3 * 2.0**-23,
                4 + 2.0**-21,
            )
        )
    return tests


TESTS = _tests()


def _factors(x: float) -> tuple[float, float]:
    """Two normal binary16 numbers whose product is x, of at most 11 significand bits."""
    import math

    if x == 0:
        return 0.0, 0.0
    fraction, exponent = math.frexp(x)
    half = exponent // 2
    return math.ldexp(fraction, half), math.ldexp(1.0, exponent - half)


def _accumulator(c: float, block: int) -> list[tuple[float, float]]:
    """Products of one block whose sum is exactly c.

    Words of at most 11 bits, cut toward zero: none has a larger exponent than c, so no bit of a 24-bit c is lost where
    23 are kept below the leading one.
    """
    import math

    pairs, rest = [], c
    for _ in range(3):
        if rest:
            unit = 2.0 ** (math.frexp(rest)[1] - 11)
            word = math.trunc(rest / unit) * unit
            pairs.append(_factors(word))
            rest -= word
    if rest:
        raise ValueError(f"{c} has more than 33 bits")
    return pairs + [(0.0, 0.0)] * (block - len(pairs))


def result_of(engine: str, products: tuple[tuple[float, float], ...], c: float, output: str) -> float:
    """What the engine returns for the sum of the products and c."""
    import numpy as np

    from prismm.cpu.engines.simulated import engine as simulated

    chosen = simulated(engine)
    to = FP32 if output == "binary32" else FP16
    found = chosen.model(FP16, to)
    if found is None:
        raise ValueError(f"{engine} has no {output} sums of binary16")
    block = found.block
    pairs = (_accumulator(c, block) if c else []) + [*products] + [(0.0, 0.0)] * (block - len(products))
    left, right = np.array(pairs).T
    return float(chosen.multiply(left[None, :].copy(), right[:, None].copy(), FP16, to, 1)[0, 0])


def _run_tests(device: str) -> Point:
    def run(rng: np.random.Generator) -> list[Row]:
        rows = []
        for test in TESTS:
            products, c, expected = test.on(device)
            rows.append(Row(test.name, device, "result", result_of(ENGINES[device], products, c, test.output)))
            rows.append(Row(test.name, device, "expected", expected))
        return [*rows, Row("extra bits", device, "result", _extra_bits(ENGINES[device]))]

    return Point(f"tests {device}", run)


def _extra_bits(engine: str) -> float:
    """Bits below binary32's last that survive alignment: the largest j with (1 + 2^-(23+j)) - 1 not 0."""
    for j in range(12, -24, -1):
        if result_of(engine, _sums(1.0, -1.0, 2.0**-12 * 2.0 ** -(11 + j)), 0.0, "binary32") != 0:
            return float(j)
    raise ValueError(f"{engine} keeps nothing")


def _tables(rng: np.random.Generator) -> list[Row]:
    """Tables 1 and 3: products added at once, by input format; and the parameters of the formats."""
    from prismm.cpu.engines.simulated import engine as simulated

    rows = []
    for device, name in ENGINES.items():
        for fmt in (FP16, BF16, TF32):
            found = simulated(name).model(fmt, FP32)
            rows.append(Row("Table 1", device, f"k of {fmt.name}", float(found.block) if found else 0.0))
    for fmt in (FP16, BF16, TF32, FP32, FP64):
        values = {
            "p": fmt.precision,
            "e_max": fmt.maxexp - 1,
            "e_min": fmt.minexp,
            "epsilon": fmt.eps,
            "f_min": fmt.smallest_normal,
            "s_min": fmt.smallest_subnormal,
        }
        rows += [Row("Table 3", fmt.name, measure, float(value)) for measure, value in values.items()]
    return rows


def _points(size: Size) -> list[Point]:
    return [Point("tables", _tables), *(_run_tests(device) for device in ENGINES)]


EXPERIMENT = Experiment(
    name="tensor-core-numerics",
    version=1,
    setup=(
        "Engines: simulated, by the models that reproduce published outputs of these devices. Inputs: the\n"
        "paper's; for the T4 the constants that its extra bit needs (§3.2). c is built by an earlier block."
    ),
    points=_points,
    claims=claims(TESTS),
    panels=(
        Panel(
            "Bits below binary32's last that alignment keeps",
            "extra bits",
            "result",
            "",
            "bits",
            logx=False,
            logy=False,
            published=(("published: V100 and T4", ((0.0, 0.0), (1.0, 1.0))),),
            by_series=True,
        ),
    ),
)
