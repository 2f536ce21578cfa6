"""The GPU kernels in Triton's interpreter against a CPU, bit for bit; prints one line of JSON a case.

python -m tests.gpu.interpreted
"""

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton.runtime import interpreter

import prismm
from prismm.engines import cuda
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE, SPECIAL
from tests.gpu.programs import residue_program

_patch = interpreter._patch_lang_tensor


def _with_index(tensor, scope):
    """Triton 3.6 makes an index of an array of one element by int(), which NumPy 2.4 refuses."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))


interpreter._patch_lang_tensor = _with_index


def product(a: np.ndarray, b: np.ndarray, moduli: int, target: str | None) -> np.ndarray:
    """The program of a GPU, on this CPU."""
    x, y = (torch.from_numpy(z).reshape(-1, *z.shape[-2:]) for z in (a, b))
    out = torch.empty(max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2], dtype=x.dtype)
    program = residue_program(x, y, out, moduli, target, cuda.Device("interpreter", False, False, 4))
    program.run_by_triton(x, y, out)
    return out.reshape(np.matmul(a, b).shape).numpy()


def main() -> None:
    everything = {**HOSTILE, **SPECIAL}
    cases = [("float64", 15, name, None) for name in ("carries", "subnormal_operands", "near_overflow", "wide_rows")]
    cases += [("float64", 15, "infinities", "native"), ("float32", 7, "near_ties", "correctly-rounded")]
    cases += [("float64", 20, "uniform", "correctly-rounded"), ("float32", 7, "normal", "native")]
    cases += [("complex128", 15, name, None) for name in ("carries", "subnormal_operands", "wide_rows")]
    cases += [("complex64", 8, "normal", "correctly-rounded"), ("complex128", 15, "infinities", "native")]
    cases += [("float64", 15, "batch", "native"), ("complex64", 7, "batch of left ones", None)]
    for dtype, moduli, name, target in cases:
        if name.startswith("batch"):
            # Three products, two at a time; one operand may serve all.
            pairs = [HOSTILE["normal"](2, 9, 3, seed=seed, dtype=np.dtype(dtype)) for seed in range(3)]
            a, b = (np.stack(x) for x in zip(*pairs, strict=True))
            b = b if name == "batch" else b[:1]
        else:
            a, b = everything[name](2, 9, 3, seed=11, dtype=np.dtype(dtype))
        keywords = {"accuracy": target} if target else {}
        expected = prismm.matmul(a, b, scheme=Residues(moduli), **keywords)
        got = product(a, b, moduli, target)
        got, expected = (x.view(x.real.dtype) for x in (got, np.ascontiguousarray(expected)))
        word = np.int64 if got.itemsize == 8 else np.int32
        same = (got.view(word) == expected.view(word)) | (np.isnan(got) & np.isnan(expected))
        print(json.dumps({"case": [dtype, moduli, name, target], "wrong": int((~same).sum())}), flush=True)


if __name__ == "__main__":
    main()
