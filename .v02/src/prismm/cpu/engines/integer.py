"""CPU engines: INT8 dot-product units through own kernels and through torch, FP64 BLAS through NumPy, and a direct
integer dot for tiny products.

| name | moduli | inner product | exact because |
| --- | --- | --- | --- |
| cpu:amx | up to 256 | Numba, AMX tiles | k·2^14 < 2^31 for k <= 131008, reduced between such blocks |
| cpu:vnni | up to 256 | Numba, AVX-512 VNNI or AVX-VNNI | likewise |
| cpu:avx2 | up to 256 | Numba, AVX2 on a CPU without VNNI | likewise |
| cpu:int8 | up to 256 | torch._int_mm | k·2^14 < 2^31 for k <= 131071, on CPUs whose INT8 product keeps 32 bits |
| cpu:int8-7bit | up to 128 | torch._int_mm | pairs of 7-bit products fit the 16-bit sums of older units |
| cpu:float64 | up to 2^22 | numpy.matmul | 3·k·2^42 < 2^53 for k <= 512 (3: complex), in any order |
| cpu:direct | none | Numba | limbs of 20 bits, see `cpu.kernels.direct` |
| simulated:… | up to 256 | a model of an INT8 engine | as cpu:int8, see `cpu.engines.simulated_integers` |
| simulated:….fp8 | up to 1693 | a model of an FP8 engine | sums within 2^24 (2^14), see `cpu.engines.simulated_fp8` |

Without VNNI, oneDNN's INT8 product saturates and is silently wrong: hence the proof, once per process, on operands that
would show it.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prismm.core import engine_names as names
from prismm.core import threads
from prismm.core.engine_names import SIMULATED
from prismm.core.extras import install, is_installed
from prismm.cpu.engines import torch_int8
from prismm.cpu.engines.base import INT8_BLOCK, Proof, add_blocks
from prismm.cpu.engines.simulated_fp8 import SimulatedFp8Engine, residue_engine
from prismm.cpu.engines.simulated_integers import SimulatedInt8Engine
from prismm.errors import ArgumentError, EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOAT64_BLOCK = 512


@dataclass(frozen=True)
class Int8Engine:
    """INT8 products with int32 sums through ``torch._int_mm`` (oneDNN)."""

    name: str
    largest_modulus: int

    @property
    def dtype(self) -> str:
        """Element type of the residues."""
        return "int8"

    @property
    def sum_dtype(self) -> str:
        """Element type of the products."""
        return "int32"

    def prove(self) -> Proof:
        """See `Engine.prove`."""
        return _prove(self.name)

    def multiply(
        self,
        left: NDArray[np.int8],
        right: NDArray[np.int8],
        out: NDArray[np.int32],
        moduli: tuple[int, ...],
    ) -> None:
        """out[q] = left[q] (m, k) @ right[q] (k, n); beyond k = 131071 residues are added block by block."""
        if left.shape[2] <= INT8_BLOCK:
            for x, y, z in zip(left, right, out, strict=True):
                torch_int8.product(x, y, z)
            return
        add_blocks(torch_int8.product, left, right, out, moduli)


@dataclass(frozen=True)
class PackedEngine:
    """INT8 products by the kernel for units of bytes, joined tile by tile while they are in the cache
    (`cpu.kernels.vnni`).
    """

    name: str = "cpu:vnni"
    largest_modulus: int = 256

    dtype, sum_dtype = "int8", "int32"
    """Element types of the left operand's residues (the right one's are packed four to a dword), and of products."""

    def prove(self) -> Proof:
        """See `Engine.prove`."""
        from prismm.cpu.kernels import byte_unit

        if not byte_unit.has_vnni():
            return Proof(False, "the CPU has no VNNI instructions, of AVX-512 or of AVX")
        return _prove(self.name)

    row_step = 4
    """Rows that the kernel takes at a time."""

    block_bytes, widest_block, tile_columns = 10 << 20, 384, 192
    """Bytes of residues, and columns, of a block, at most; columns that the kernel takes through all rows at a time."""

    def pitch(self, k: int) -> int:
        """Bytes of a left row: its residues, an int32 per chunk, and an odd number of cache lines in all."""
        from prismm.cpu.kernels.vnni import CHUNK

        # An odd number of lines, so that rows do not fall on the same sets of a cache.
        lines = -(-(k + 4 * -(-k // CHUNK)) // 64)
        return 64 * (lines | 1)

    def panel_shape(self, columns: int, k: int) -> tuple[int, int, int]:
        """Shape of a modulus' right residues: panels of 32 columns, dwords of 4 rows (an odd number), columns."""
        return -(-columns // 32), -(-k // 4) | 1, 32

    def scratch(self, parts: int, moduli: int, rows: int, columns: int, k: int) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and types of what `fused` needs beside operands, to join so many rows and columns."""
        from prismm.cpu.kernels.vnni import TILE_COLUMNS, TILE_ROWS

        return [((parts, TILE_ROWS, moduli, TILE_COLUMNS), "int32")]

    def fused(self) -> tuple[Any, Any, Any]:
        """The kernels that multiply and join: real operands, complex ones, and real ones of up to 49 moduli."""
        from prismm.cpu.kernels import fused

        return fused.fused_product, fused.fused_complex_product, fused.fused_many_product

    def packed(self, left: NDArray[np.int8], right: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.uint32]]:
        """Plain residues left (moduli, m, k) and right (moduli, k, n) as the kernels read them."""
        import numpy as np

        from prismm.cpu.kernels import packed

        count, m, k = left.shape
        # Zeros in the padding of rows and steps add nothing to sums.
        x = np.zeros((count, -(-m // self.row_step) * self.row_step, self.pitch(k)), np.int8)
        y = np.zeros((count, *self.panel_shape(right.shape[2], k)), np.uint32)
        packed.pack_residues(left, right, x, y)
        return x, y

    def multiply(
        self,
        left: NDArray[np.int8],
        right: NDArray[np.int8],
        out: NDArray[np.int32],
        moduli: tuple[int, ...],
    ) -> None:
        """out[q] = left[q] (m, k) @ right[q] (k, n) for plain residues, packed here; products of operands split once
        and used often are joined without leaving the cache (`cpu.kernels.fused`).
        """
        import numpy as np

        from prismm.cpu.kernels import vnni

        count, m, k = left.shape
        n = right.shape[2]
        x, y = self.packed(left, right)
        whole = np.empty((x.shape[1], count, 32 * y.shape[1]), np.int32)
        vnni.packed_product(x, y, k, np.array(moduli, np.float64), whole)
        out[...] = whole[:m, :, :n].transpose(1, 0, 2)


@dataclass(frozen=True)
class Avx2Engine(PackedEngine):
    """The same kernel on CPUs without VNNI, by products of 16-bit integers."""

    name: str = "cpu:avx2"

    def prove(self) -> Proof:
        """See `Engine.prove`."""
        from prismm.cpu.kernels import byte_unit

        if byte_unit.has_vnni():
            return Proof(False, "cpu:vnni takes its place on this CPU")
        if not byte_unit.widens():
            return Proof(False, "the CPU has no AVX2 instructions")
        return _prove(self.name)


@dataclass(frozen=True)
class AmxEngine(PackedEngine):
    """INT8 products on AMX's tile unit, reduced to bytes on their way out of it (`cpu.kernels.amx`)."""

    name: str = "cpu:amx"

    row_step = 16

    block_bytes, widest_block, tile_columns = 32 << 20, 512, 512
    """All of A passes by for each block, six times as fast as by `PackedEngine`."""

    def prove(self) -> Proof:
        """See `Engine.prove`. The system's leave is asked for here, when the engine is first wanted."""
        from prismm.cpu.engines import tile_permission
        from prismm.cpu.kernels import amx

        if not amx.supported():
            return Proof(False, "the CPU has no AMX INT8 tiles")
        refusal = tile_permission.refusal()
        return Proof(False, refusal) if refusal is not None else _prove(self.name)

    def pitch(self, k: int) -> int:
        """As for `PackedEngine`, but the int32 of the chunks stand in lines of their own: steps of 64 meet zeros."""
        from prismm.cpu.kernels.vnni import CHUNK

        lines = -(-k // 64) + -(-4 * -(-k // CHUNK) // 64)
        return 64 * (lines | 1)

    def panel_shape(self, columns: int, k: int) -> tuple[int, int, int]:
        """As for `PackedEngine`, with room for whole steps of 64."""
        return -(-columns // 32), 16 * -(-k // 64) | 1, 32

    def scratch(self, parts: int, moduli: int, rows: int, columns: int, k: int) -> list[tuple[tuple[int, ...], str]]:
        """Digits of a block of rows, int32 tiles, and tables."""
        from prismm.cpu.kernels.amx import PANEL, SCRATCH_BYTES, STRIP_ROWS, joined_strips

        strips = joined_strips(rows, columns, moduli * parts)
        digits = (parts, strips, -(-max(columns, 1) // PANEL), moduli, STRIP_ROWS, PANEL)
        return [(digits, "int8"), ((SCRATCH_BYTES,), "int8"), ((moduli, 4), "int32")]

    def fused(self) -> tuple[Any, Any, Any]:
        """See `PackedEngine.fused`."""
        from prismm.cpu.engines import tile_permission
        from prismm.cpu.kernels import fused_amx as kernels

        tile_permission.require()
        return kernels.fused_amx_product, kernels.fused_amx_complex_product, kernels.fused_amx_many_product

    def digits(self, left: NDArray[np.int8], right: NDArray[np.int8], modulus: int) -> NDArray[np.int8]:
        """left (m, k) @ right (k, n) modulo `modulus`, by the kernel behind `fused`. The engine's proof checks it.

        `multiply` returns int32 sums instead, by the kernel of `PackedEngine`, which reads the same packed residues.
        """
        import numpy as np

        from prismm.core.workspace import Workspace
        from prismm.cpu.engines import tile_permission
        from prismm.cpu.kernels import amx

        tile_permission.require()
        m, k, n = *left.shape, right.shape[1]
        found = np.empty((m, n), np.int8)
        with Workspace() as workspace:
            # Tiles start at cache lines, as arrays of a workspace do.
            packed = self.packed(left[None], right[None])
            x, y = (workspace.empty(residues.shape, residues.dtype) for residues in packed)
            x[...], y[...] = packed
            digits, tiles, tables = (workspace.empty(*each) for each in self.scratch(1, 1, m, n, k))
            step = digits.shape[1] * amx.STRIP_ROWS
            for i in range(0, m, step):
                rows = min(m, i + step) - i
                piece = x[:, i : i + (-(-rows // self.row_step) * self.row_step)]
                amx.tile_digits(piece, y, k, np.array([modulus], np.float64), tiles, tables, digits[0])
                found[i : i + rows] = digits[0, :, :, 0].transpose(0, 2, 1, 3).reshape(step, -1)[:rows, :n]
        return found


@dataclass(frozen=True)
class Float64Engine:
    """Products of 22-bit residues in FP64 BLAS: exact integers below 2^53 on any IEEE machine."""

    name: str = "cpu:float64"
    largest_modulus: int = 1 << 22

    @property
    def dtype(self) -> str:
        """Element type of the residues."""
        return "float64"

    @property
    def sum_dtype(self) -> str:
        """Element type of the products."""
        return "float64"

    def prove(self) -> Proof:
        """See `Engine.prove`."""
        return _prove(self.name)

    def multiply(
        self,
        left: NDArray[np.float64],
        right: NDArray[np.float64],
        out: NDArray[np.float64],
        moduli: tuple[int, ...],
    ) -> None:
        """out[q] = left[q] @ right[q], in blocks of 512 of the inner dimension."""
        import numpy as np

        from prismm.cpu.kernels.rounding import fold_float64

        k = left.shape[2]
        # Products of 22-bit residues leave room for 512 terms below 2^53; the fold makes residues of sums again.
        for which, q in enumerate(moduli):
            np.matmul(left[which][:, :FLOAT64_BLOCK], right[which][:FLOAT64_BLOCK], out=out[which])
            for h in range(FLOAT64_BLOCK, k, FLOAT64_BLOCK):
                block = np.matmul(left[which][:, h : h + FLOAT64_BLOCK], right[which][h : h + FLOAT64_BLOCK])
                fold_float64(out[which], block, float(q))


@dataclass(frozen=True)
class DirectEngine:
    """Exact integer dot products in compiled loops; no residues at all."""

    name: str = "cpu:direct"
    largest_modulus: int = 0

    def prove(self) -> Proof:
        """See `Engine.prove`."""
        return Proof(True, "exact integer limbs in float64")


CpuEngine = (
    PackedEngine
    | Avx2Engine
    | AmxEngine
    | Int8Engine
    | Float64Engine
    | DirectEngine
    | SimulatedInt8Engine
    | SimulatedFp8Engine
)

AMX = AmxEngine()
VNNI = PackedEngine()
AVX2 = Avx2Engine()
INT8 = Int8Engine("cpu:int8", 256)
INT8_7BIT = Int8Engine("cpu:int8-7bit", 128)
FLOAT64 = Float64Engine()
DIRECT = DirectEngine()
ENGINES: dict[str, CpuEngine] = {e.name: e for e in (AMX, VNNI, AVX2, INT8, INT8_7BIT, FLOAT64, DIRECT)}


@functools.cache
def _prove(name: str) -> Proof:
    return proof_of(ENGINES[name])


def proof_of(engine: CpuEngine) -> Proof:
    """What comes of extreme operands, compared with exact integers."""
    import numpy as np

    assert not isinstance(engine, DirectEngine)
    if isinstance(engine, Int8Engine):
        try:
            import torch
        except (ImportError, RuntimeError, OSError) as error:  # an interpreter that ends; a library that torch lacks
            if isinstance(error, ModuleNotFoundError) and error.name == "torch":
                return Proof(False, f"torch is not installed ({install('torch')})")
            return Proof(False, f"torch cannot be imported: {error}")
        # A private function of torch's, which a release may lack.
        if not hasattr(torch, "_int_mm"):
            return Proof(False, f"torch {torch.__version__} has no _int_mm")
    half = engine.largest_modulus // 2
    low, high = -half, half - 1
    rng = np.random.default_rng(20260101)
    # Long enough for a second block in depth, and odd; rows and columns for every micro-kernel and for two panels.
    long = FLOAT64_BLOCK if isinstance(engine, Float64Engine) else 4103
    for m, k, n in ((1, 1, 1), (3, 5, 7), (16, 64, 16), (17, 259, 33), (64, 256, 48), (13, long, 40)):
        cases = []
        for x in (low, high):
            for y in (low, high):
                cases.append((np.full((m, k), x), np.full((k, n), y)))
        signs = np.where(np.arange(k) % 2 == 0, low, high)
        cases.append((np.broadcast_to(signs, (m, k)), np.broadcast_to(signs[:, None], (k, n))))
        cases.append((rng.integers(low, high + 1, (m, k)), rng.integers(low, high + 1, (k, n))))
        for a, b in cases:
            expected = _exact(a, b, engine)
            out = np.empty((1, m, n), engine.sum_dtype)
            left = np.ascontiguousarray(a, dtype=engine.dtype)[None]
            right = np.ascontiguousarray(b, dtype=engine.dtype)[None]
            try:
                engine.multiply(left, right, out, (engine.largest_modulus,))
            except RuntimeError as error:
                return Proof(False, f"the product failed: {error}")
            exact = np.array_equal(out[0].astype(np.int64), expected)
            if isinstance(engine, AmxEngine):
                # The kernel for tiles returns digits, which are the sums modulo 256.
                exact &= not ((engine.digits(left[0], right[0], 256) - expected) % 256).any()
            if not exact:
                return Proof(False, f"inexact on extreme {engine.dtype} operands of shape ({m}, {k}) x ({k}, {n})")
    return Proof(True, "exact on extreme operands")


def _exact(a: NDArray[np.int64], b: NDArray[np.int64], engine: CpuEngine) -> NDArray[np.int64]:
    """a @ b, exactly.

    Sums of bytes' products are integers below 2^53, which FP64 adds in any order, and BLAS does at a hundred times the
    speed. The FP64 engine is not asked about itself.
    """
    import numpy as np

    if isinstance(engine, Float64Engine):
        return a.astype(np.int64) @ b.astype(np.int64)
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def available() -> dict[str, tuple[bool, str]]:
    """Every CPU engine by name: whether it proved itself exact in this process, and why (not).

    >>> available()["cpu:float64"]
    (True, 'exact on extreme operands')
    """
    return {name: (_proof(name).usable, _proof(name).reason) for name in ENGINES}


def choose(name: str | None = None) -> CpuEngine:
    """The engine of this name (``PRISMM_ENGINE`` where none is given), or for "cpu" the fastest that proved itself.

    Raises:
        ArgumentError: for an unknown name.
        EngineError: where the engine asked for is not exact on this machine.
    """
    asked = name if name is not None else os.environ.get("PRISMM_ENGINE") or "cpu"
    if asked == "cpu":
        return _best()
    if asked.startswith(SIMULATED):
        return _proved(asked, residue_engine(asked))
    if asked not in ENGINES:
        raise names.not_here(asked) or ArgumentError(
            f"engine {asked!r} multiplies no residues; pass 'cpu' or one of {', '.join(map(repr, ENGINES))}"
        )
    return _proved(asked, ENGINES[asked])


def _proved(name: str, engine: CpuEngine) -> CpuEngine:
    proof = _proof(name)
    if not proof.usable:
        raise EngineError(
            f"engine {name!r} cannot be used here: {proof.reason}; pass engine='cpu' for the best that can"
        )
    return engine


@functools.cache
def _proof(name: str) -> Proof:
    """The proof of the engine of this name; simulated engines whose models are equal have one together."""
    simulated = name.startswith(SIMULATED)
    return _proof_on_a_worker(replace(residue_engine(name), name=SIMULATED) if simulated else ENGINES[name])


@functools.cache
def _proof_on_a_worker(engine: CpuEngine) -> Proof:
    """The engine's proof, run on a worker (whose OpenMP teams have one thread, as in use)."""

    def prove(_: int) -> Proof:
        threads.limit_openmp()
        return engine.prove()

    proof: Proof = threads.run(prove, 1)[0]
    return proof


def is_taken(name: str) -> bool:
    """Whether an engine proved itself exact here and "cpu" may stand for it: torch's INT8 product is a plain loop where
    oneDNN has none for the CPU, and then slower than the FP64 products that do as well.
    """
    return _proof(name).usable and (name not in (INT8.name, INT8_7BIT.name) or torch_int8.is_fast())


def is_expected(name: str) -> bool:
    """Whether "cpu" may stand for an engine here, as far as that can be told without loading torch.

    Where an engine needs torch, and nothing has loaded it, torch's being installed and the processor's features tell.
    """
    if name not in (INT8.name, INT8_7BIT.name) or sys.modules.get("torch") is not None:
        return is_taken(name)
    return is_installed("torch") and (name != INT8.name or _keeps_32_bits())


def expected() -> str:
    """The name of the engine that "cpu" is expected to stand for; torch is not loaded to ask its engines.

    >>> expected() in ENGINES
    True
    """
    found = next((engine.name for engine in _BY_SPEED if is_expected(engine.name)), None)
    return found or choose("cpu").name  # which says why there is none


def _keeps_32_bits() -> bool:
    """Whether oneDNN's INT8 product is expected to be exact: without VNNI it adds pairs in 16 bits on x86."""
    from numba.core.registry import cpu_target

    features = set(cpu_target.target_context.codegen()._get_host_cpu_features().split(","))
    return platform.machine().lower() not in ("x86_64", "amd64") or bool(features & {"+avx512vnni", "+avxvnni"})


_BY_SPEED = AMX, VNNI, AVX2, INT8, INT8_7BIT, FLOAT64


@functools.cache
def _best() -> CpuEngine:
    for engine in _BY_SPEED:
        if is_taken(engine.name):
            return engine
    raise EngineError("no CPU engine is exact on this machine; is the floating-point environment IEEE?")
