"""Matrix engines that this machine lacks, simulated bit for bit: what they keep, what they cut off, how they round.

Every engine is one or more `numerics.EngineModel`s, which say what the arithmetic is; they are run in compiled code.

| name | inputs | sums | block | kept bits | rounding |
| --- | --- | --- | --- | --- | --- |
| simulated:volta | fp16 | fp32, fp16 | 4 | 23 | toward zero; fp16: to nearest |
| simulated:turing | fp16 | fp32, fp16 | 8 | 24 | the same |
| simulated:ampere | fp16, bf16, tf32 | fp32; fp16 of fp16 | 8, tf32 4 | 24 | the same |
| simulated:hopper | fp16, bf16, tf32 | fp32; fp16 of fp16 | 16, tf32 8 | 25 | the same |
| …-fp16 | fp16 | fp16 only | as above | as above | to nearest |
| simulated:fp16 | fp16 | fp16 | chained | all | to nearest (HGEMM of FMAs) |
| simulated:rn, simulated:rz | any with exact products | any | chained | all | to nearest, toward zero |

simulated:DEVICE has the models of `numerics.catalogue` for this device (simulated:h100-wgmma, simulated:mi300);
simulated:DEVICE.INPUT.OUTPUT has one of them (simulated:a100.tf32.fp32); simulated:PATH.json has the model that
`EngineModel.to_json` wrote to this file.

An engine also takes formats whose every value is one of its own input format. Models without an error bound (of
block-scaled operands, with sums that wrap around or saturate) serve no scheme; those of integers are in
`simulated_integers`.

The largest relative error of three products of TF32 (of FP16 on V100, which has no other), added up by the engine
alone, is one line on any of them:

>>> import numpy as np, prismm
>>> rng = np.random.default_rng(0)
>>> a, b = (rng.random((64, 512), np.float32) for _ in "ab")
>>> exact = a.astype(float) @ b.T
>>> for device in ("v100", "a100", "h100-mma", "h100-wgmma", "mi300"):
...     words = prismm.Words.fp16(chunk=512) if device == "v100" else prismm.Words.tf32(chunk=512)
...     c = prismm.matmul(a, b.T, scheme=words, engine=f"simulated:{device}")
...     print(device, f"{(abs(c - exact) / exact).max():.1e}")
v100 1.2e-05
a100 6.8e-06
h100-mma 3.7e-06
h100-wgmma 3.7e-06
mi300 5.9e-07
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prismm.core.engine_names import SIMULATED
from prismm.cpu.engines.floats import Accumulation
from prismm.errors import ArgumentError, EngineError, meant
from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format
from prismm.numerics.bounds import dot_bound, unbounded
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import within
from prismm.numerics.products import exact_products

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.numerics.parts import Mode

__all__ = ["SimulatedEngine", "engine", "names"]


@dataclass(frozen=True)
class SimulatedEngine:
    """A `FloatEngine` (see `cpu.engines.floats`) that adds as its models say, whatever this machine's own arithmetic.

    Results are functions of the entry's row and column alone: the same on all machines, for all numbers of workers.

    Args:
        name: as `engine=` takes it.
        models: of its instructions; the first that fits serves.
        chained: instead of models: any inputs with exact products, added one by one in any format, rounded like this.

    >>> from prismm.formats import FP16, FP32
    >>> engine("simulated:volta").model(FP16, FP32).block
    4
    """

    name: str
    models: tuple[EngineModel, ...]
    chained: Mode | None = None

    def model(self, inputs: Format, accumulate: Format) -> EngineModel | None:
        """The first model that multiplies values of `inputs` with sums in `accumulate`, or None."""
        for model in self.models:
            if isinstance(model.input, Format) and within(inputs, model.input) and _same(model.output, accumulate):
                return model
        sums = accumulate.precision <= 51 or _same(accumulate, FP64)
        if self.chained is not None and exact_products(inputs) and sums:
            return _chained(inputs, accumulate, self.chained)
        return None

    def refuse(self, inputs: Format, accumulate: Format) -> str | None:
        """See `FloatEngine.refuse`."""
        found = self.model(inputs, accumulate)
        if found is not None:
            reason = unbounded(found)
            return None if reason is None else f"its model {found.name!r} serves no scheme: {reason}"
        has = [f"{model.input.name} -> {model.output.name}" for model in self.models]
        if self.chained is not None:
            has.append("any format with exact products -> any format")
        return (
            f"it has no {_named(inputs)} inputs with sums in {_named(accumulate)}; it has "
            f"{', '.join(dict.fromkeys(has))}"
        )

    def accumulation(self, k: int, inputs: Format, accumulate: Format, largest: float = math.inf) -> Accumulation:
        """See `FloatEngine.accumulation`; proved in `numerics.bounds`."""
        model = self._model(inputs, accumulate)
        return Accumulation(*dot_bound(model, k, min(largest, inputs.max)))

    def _model(self, inputs: Format, accumulate: Format) -> EngineModel:
        reason = self.refuse(inputs, accumulate)
        found = self.model(inputs, accumulate)
        if found is None or reason is not None:
            raise EngineError(
                f"engine {self.name!r} cannot be used here: {reason}; pass another of {', '.join(names())}"
            )
        return found

    def multiply(
        self, left: NDArray[Any], right: NDArray[Any], inputs: Format, accumulate: Format, workers: int
    ) -> NDArray[Any]:
        """See `FloatEngine.multiply`.

        Raises:
            EngineError: if no model serves, or an operand holds what is no value of `inputs`.
        """
        import numpy as np

        from prismm.numerics import encodings, products

        model = self._model(inputs, accumulate)
        for side, x in (("left", left), ("right", right)):
            # What the format does not hold would be simulated as something that no device ever sees.
            count = int((encodings.foreign(x, inputs) | ~np.isfinite(x)).sum())
            if count:
                raise EngineError(f"{count} elements of the {side} operand are no {_named(inputs)} values; round them")
        if left.shape[1] == 0:
            out = np.zeros((left.shape[0], right.shape[1]))
        else:
            # A faster kernel serves some models; None says that this is none of them.
            found = products.columnwise(model, left, right, workers)
            out = products.gemm(model, left, right, None, 1, None, workers) if found is None else found
        return out.astype(np.float32) if isinstance(model.output, Format) and within(model.output, FP32) else out


def _same(x: object, y: Format) -> bool:
    return isinstance(x, Format) and (x.exponent_bits, x.fraction_bits) == (y.exponent_bits, y.fraction_bits)


@functools.lru_cache(maxsize=64)
def _chained(inputs: Format, accumulate: Format, rounding: Mode) -> EngineModel:
    """Products that are exact and added by themselves, as in a loop of FMAs."""
    return EngineModel("chained", inputs, accumulate, rounding=rounding, zeros="ieee")


def _named(format: Format) -> str:
    return format.name or f"e{format.exponent_bits}m{format.fraction_bits}"


def _generation(device: str) -> tuple[EngineModel, ...]:
    """A device's models of inputs of 16 bits, and of TF32."""
    from prismm.numerics import catalogue

    return tuple(model for model in catalogue.models_of(device) if model.input in (FP16, BF16, TF32))


@functools.cache
def _generations() -> dict[str, SimulatedEngine]:
    devices = {"volta": "v100", "turing": "t4", "ampere": "a100", "hopper": "h100-mma"}
    models = {name: _generation(device) for name, device in devices.items()}
    models |= {f"{name}-fp16": tuple(m for m in found if m.output == FP16) for name, found in models.items()}
    models["fp16"] = (_chained(FP16, FP16, "nearest"),)
    found = {name: SimulatedEngine(SIMULATED + name, each) for name, each in models.items()}
    found["rn"] = SimulatedEngine(SIMULATED + "rn", (), "nearest")
    found["rz"] = SimulatedEngine(SIMULATED + "rz", (), "zero")
    return found


def names() -> list[str]:
    """Every simulated engine, as `engine=` takes it: generations, arithmetics, and the devices of the catalogue.

    >>> names()[:3]
    ['simulated:volta', 'simulated:turing', 'simulated:ampere']
    """
    return [SIMULATED + name for name in dict.fromkeys([*_generations(), *_devices()])]


@functools.cache
def _devices() -> dict[str, SimulatedEngine]:
    """Devices of the catalogue with what serves schemes."""
    from prismm.numerics import catalogue

    found = {}
    for device in catalogue.devices():
        models = tuple(model for model in catalogue.models_of(device) if unbounded(model) is None)
        if models:
            found[device] = SimulatedEngine(SIMULATED + device, models)
    return found


def engine(name: str) -> SimulatedEngine:
    """The simulated engine of this name; see the module.

    Raises:
        ArgumentError: for an unknown name, with those there are; for a file that cannot be read or holds no model.

    >>> from prismm.formats import FP16, FP32
    >>> engine("simulated:rz").accumulation(8, FP16, FP32).gamma < 8.1 * 2**-23
    True
    >>> engine("simulated:a100.tf32.fp32").models[0].block
    4
    """
    short = name.removeprefix(SIMULATED)
    found = _generations().get(short) or _devices().get(short)
    # Without its prefix a name is none of an engine's, though the catalogue may know it.
    if found is not None and name != short:
        return found
    if name != short and short.lower().endswith(".json"):
        try:
            text = Path(short).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # a name that no file can have, or what is no text
            raise ArgumentError(f"engine={name!r}: {error}; pass a file that EngineModel.to_json wrote") from None
        try:
            return SimulatedEngine(name, (EngineModel.from_json(text),))
        except ArgumentError as error:
            raise ArgumentError(f"engine={name!r}: {error}") from None
    if name != short and "." in short:
        from prismm.numerics import catalogue

        return SimulatedEngine(name, (catalogue.engine(short),))
    raise ArgumentError(
        f"unknown simulated engine {name!r}{meant(name, names())}; pass one of {', '.join(map(repr, names()))}"
    )
