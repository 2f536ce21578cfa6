"""What does a matrix engine compute? Models of its arithmetic, a simulator that runs them, a probe that finds them.

`engine` gives the model of a known engine by name (`engines` lists them) and `EngineModel` makes others; `trace`
shows every step of a dot product, `gemm` multiplies matrices as an engine does, `separate` finds inputs on which two
models differ, and `probe` finds the model behind a black box. Submodules: `catalogue`, `simulate`, `hardware` (single
instructions of the GPU in this machine), `suite` (published tests of matrix engines), `corpus`, `encodings`.

>>> from prismm import numerics
>>> model = numerics.engine("a100.fp16.fp32")
>>> model.dot([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23).item()  # exactly -0.875
-0.5
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.lazy import attributes

if TYPE_CHECKING:
    from prismm.numerics.catalogue import devices, engine, engines
    from prismm.numerics.finding import Evidence, Finding
    from prismm.numerics.model import BlockScale, EngineModel, LateJoin
    from prismm.numerics.observations import Observation
    from prismm.numerics.probing import probe
    from prismm.numerics.separation import Separation, separate
    from prismm.numerics.simulate import gemm
    from prismm.numerics.specification import trace
    from prismm.numerics.steps import Loss, Step, Term, Trace

_HOMES = {
    "EngineModel": "model",
    "LateJoin": "model",
    "BlockScale": "model",
    "engine": "catalogue",
    "engines": "catalogue",
    "devices": "catalogue",
    "gemm": "simulate",
    "probe": "probing",
    "Finding": "finding",
    "Evidence": "finding",
    "Observation": "observations",
    "separate": "separation",
    "Separation": "separation",
    "trace": "specification",
    "Trace": "steps",
    "Loss": "steps",
    "Step": "steps",
    "Term": "steps",
}
_MODULES = ("catalogue", "corpus", "encodings", "hardware", "simulate", "suite")

__all__ = [
    "BlockScale",
    "EngineModel",
    "Evidence",
    "Finding",
    "LateJoin",
    "Loss",
    "Observation",
    "Separation",
    "Step",
    "Term",
    "Trace",
    "devices",
    "engine",
    "engines",
    "gemm",
    "probe",
    "separate",
    "trace",
]


__getattr__ = attributes(globals(), {name: f"prismm.numerics.{home}" for name, home in _HOMES.items()}, _MODULES)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
