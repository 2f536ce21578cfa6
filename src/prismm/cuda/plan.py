"""The plan of a product on a GPU: `Auto`'s table there, predicted times, and blocks of rows and columns.

| asked for | chosen |
| --- | --- |
| "native", "fast" | Native, Residues of native grade or, in float32, ScaledHalf, whichever is predicted fastest; Native
    by cuBLAS or, for small products, in one kernel on float64's matrix instructions (of float32 operands too) |
| a tolerance | Residues, moduli by what the tolerance needs |
| "correctly-rounded" | Residues, moduli by the fewest predicted seconds, repair included |
| reproducible=True | Residues, moduli from result type, K and target alone, as on a CPU |

Batches of tiny matrices are multiplied in one kernel, but for a tolerance: to the values of Residues without residues.

Nothing here looks at the data; where residues of native grade would be taken, the caller's look at a sample may add
moduli, or leave them for cuBLAS (`cuda.sample`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from prismm.core import engine_names as names
from prismm.core.accuracy import join_test
from prismm.core.environment import variable
from prismm.core.moduli import MAX_MODULI, byte_tables, norm_fraction_bits, operand_bits
from prismm.core.plan import Plan, bound_text
from prismm.core.problem import Problem
from prismm.cuda.conventional import tiles as direct_tiles
from prismm.cuda.conventional import tiny as cuda_tiny
from prismm.cuda.costs import host_speed as host_pace
from prismm.cuda.costs.table import Rates, rates_of, usual_rates, waves
from prismm.cuda.implementations import module_of
from prismm.cuda.launch import cublas
from prismm.cuda.launch.program import LONGEST_GRID
from prismm.cuda.multiword import implementation as words
from prismm.cuda.residues import launches as cuda
from prismm.cuda.residues import strassen as cuda_quarters
from prismm.cuda.slices.launches import FP64
from prismm.errors import ArgumentError, EngineError
from prismm.formats import Format
from prismm.planning.moduli_count import moduli_for_native, moduli_for_tolerance
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from prismm.schemes.slices import Slices

if TYPE_CHECKING:
    from prismm.core.request import Request

_LARGE = 1 << 30
"""Bytes of scratch up to which nobody asks how much memory is free."""

_MOST_VECTORS = 1 << 21
"""Rows and columns of a block at most: a grid's second extent ends at 65535 strips of 64."""

_MOST_BATCHES = 32767
"""Matrices that one launch takes: a grid's third extent, times the parts of a complex number, ends at 65535."""


class Left(NamedTuple):
    """Shares of the entries of a product: open to its join, and among them those that magnitudes leave open too; and of
    the strips that the quick join cannot certify as a whole.
    """

    open: float
    exact: float
    strips: float = 0.0


@dataclass(frozen=True)
class Choice:
    """Scheme, engine and why; rows and columns of the blocks in which the product is made, and matrices of a batch at
    a time. quarters: whether a block's product of residues is made from seven of quarters; tiny: whether a batch is
    made in one kernel, whose values are the scheme's.
    """

    scheme: Any
    engine: str
    reasons: tuple[str, ...]
    rows: int
    columns: int
    scratch: int
    batches: int = 1
    quarters: bool = False
    tiny: bool = False


def choose(
    problem: Problem, request: Request, device: cuda.Device, kept: tuple[int | None, int | None] = (None, None),
    look: Callable[[int], Left] | None = None, *, one_kernel: bool = True,
) -> Choice:  # fmt: skip
    """Scheme, engine and blocks. kept: rows and columns of a block, where prepared operands have been cut so. look:
    what so many moduli would leave open (`cuda.sample`), where it is to be known. one_kernel: whether Auto may take a
    native product in one kernel.

    Raises:
        ArgumentError: for an engine that is none of a GPU's, or too few moduli. EngineError: for a scheme that does not
        run on a GPU. Both name ``PRISMM_ENGINE`` where the call goes well without it.
    """
    default = default_engine() if request.engine is None else None
    if default is None:
        return _choose(problem, request, request.engine, device, kept, look, one_kernel)
    try:
        return _choose(problem, request, default, device, kept, look, one_kernel)
    except (ArgumentError, EngineError) as error:
        _choose(problem, request, None, device, kept, look, one_kernel)
        raise type(error)(f"PRISMM_ENGINE={default!r}: {error}") from None


def _choose(
    problem: Problem, request: Request, engine: str | None, device: cuda.Device, kept: tuple[int | None, int | None],
    look: Callable[[int], Left] | None, one_kernel: bool,
) -> Choice:  # fmt: skip
    """`choose` with this engine."""
    if engine not in (None, "cuda", *names.CUDA):
        names.check(engine)
        known = ", ".join(map(repr, names.CUDA))
        raise ArgumentError(f"engine={engine!r} for operands on a GPU; pass 'cuda' or one of {known}")
    scheme, reasons = request.scheme, ["asked for by the caller"]
    tiny = one_kernel and scheme is None and engine in (None, "cuda") and kept == (None, None)
    tiny = tiny and _is_tiny(problem, device)
    if tiny and rates_of(device.name) is not None and _is_conventional(problem):  # float64 is not slow there
        native = Native("float64") if problem.result.precision == 24 else Native()
        return Choice(native, FP64, (_TINY,), problem.m, problem.n, 0, tiny=True)
    if scheme is None:
        scheme, engine, reasons = _auto(problem, device, engine, look, one_kernel)
    tiny = tiny and _of_residues(problem)
    joined = isinstance(scheme, (Residues, Slices))
    if problem.summed and not joined:
        _check_sum(scheme, problem)
    values = problem.result_bytes if problem.summed and not joined else 0
    if not isinstance(scheme, (Native, Residues)):
        module = module_of(scheme)
        name = module.check(scheme, problem, engine)
        rows, columns, scratch = _blocks(problem, lambda r, c: module.workspace(scheme, problem, r, c))
        together = max(1, min(math.prod(problem.batch), words.BATCH_BYTES // max(1, scratch)))
        return Choice(scheme, name, tuple(reasons), rows, columns, scratch * together + values)
    if isinstance(scheme, Native):
        name = _native_engine(scheme, problem, engine, device)
        own = 0
        if problem.reads_operands:
            own = cublas.WORKSPACE if name == cuda.BLAS else _parts_bytes(problem, device)
        return Choice(scheme, name, tuple(reasons), problem.m, problem.n, own + values)
    if engine not in (None, "cuda", cuda.INT8):
        raise ArgumentError(f"engine={engine!r} multiplies floating-point numbers; {scheme} takes {cuda.INT8!r}")
    if norm_fraction_bits(scheme.moduli, problem.terms) < 1 or problem.k >= 1 << 23:
        raise ArgumentError(
            f"{scheme} holds too few bits for an inner dimension of {problem.k}; pass more moduli, or multiply "
            f"in blocks of at most {(1 << 23) - 1}"
        )
    test, split = test_of(problem), (kept[0] is None, kept[1] is None)
    parts = problem.parts

    def scratch_of(rows: int, columns: int) -> int:
        return cuda.scratch_bytes(
            rows, columns, max(1, problem.k), scheme.moduli, parts, test, split, summed=problem.summed
        )  # fmt: skip

    def of_quarters(rows: int, columns: int) -> int:
        return cuda_quarters.scratch_bytes(
            rows, columns, problem.k, scheme.moduli, parts, test, device, split, summed=problem.summed
        )  # fmt: skip

    rows, columns, scratch = _blocks(problem, scratch_of, kept)
    block, rates = replace(problem, m=rows, n=columns, batch=()), rates_of(device.name) or usual_rates()
    if device.hopper and by_quarters(block, _products(scheme, problem), rates):
        # Not for the price of smaller blocks, which ask for more splits.
        *cut, more = _blocks(problem, of_quarters, kept)
        if cut == [rows, columns]:
            reasons = [*reasons, "seven products of quarters in place of eight (Strassen, modulo p): the same bits"]
            return Choice(scheme, cuda.INT8, tuple(reasons), rows, columns, more, quarters=True)
    batches = max(1, min(math.prod(problem.batch), _MOST_BATCHES, _LARGE // max(1, scratch)))
    if tiny:
        reasons = [*reasons, f"{_TINY}: the same bits"]
        return Choice(scheme, FP64, tuple(reasons), rows, columns, 0, batches, tiny=True)
    held = 0 if problem.summed else cuda.held_bytes(rows, columns, parts, batches, test, device)
    return Choice(scheme, cuda.INT8, tuple(reasons), rows, columns, scratch * batches + held, batches)


def _is_tiny(problem: Problem, device: cuda.Device) -> bool:
    """Whether it is a batch of tiny products."""
    several = math.prod(problem.batch) > 1 and device.nvidia and problem.reads_operands and not problem.summed
    return several and cuda_tiny.serves(problem.m, problem.n, problem.k, problem.parts)


def _of_residues(problem: Problem) -> bool:
    """Whether a batch of tiny products, in one kernel, has values that are those of residues."""
    return problem.rounded or (
        problem.reproducible and problem.target is not None and problem.target.kind != "tolerance"
    )


def _is_conventional(problem: Problem) -> bool:
    """Whether a batch of tiny products, in one kernel, may be made of sums in float64."""
    plain = (
        problem.one_type
        and not problem.reproducible
        and problem.target is not None
        and problem.target.kind in ("native", "fast")
    )
    return plain and cuda_tiny.serves(problem.m, problem.n, problem.k, problem.parts, cuda_tiny.MOST_NATIVE)


_TINY = "a batch of tiny products, in one kernel on float64's units"


def test_of(problem: Problem) -> cuda.Test:
    """What the join asks of an entry."""
    terms = problem.target_terms + (3 if problem.summed else 0)
    return cuda.Test(*join_test(problem.target, terms, problem.result), problem.terms, problem.result.precision)


def _check_sum(scheme: Any, problem: Problem) -> None:
    """EngineError where gemm's sum of values of a scheme would not keep what it promises."""
    kind = problem.target.kind if problem.target is not None else None
    if scheme.reproducible or problem.reproducible or kind in ("correctly-rounded", "tolerance"):
        raise EngineError(
            f"gemm on a GPU rounds the product of {scheme} before it adds C; pass prismm.Residues(...) for one "
            "rounding, or CPU tensors"
        )
    if problem.reads_operands and not problem.sum_bounded:
        raise EngineError(
            f"{scheme} decides no overflow of gemm on a GPU with an alpha as large as this one: times what the product "
            f"of {problem.terms} terms was rounded by, it may pass the largest number; leave scheme out, or pass "
            "prismm.Residues(...)"
        )
    if kind == "native" and not problem.sum_of_values:
        raise EngineError(
            f"{scheme} certifies no gemm on a GPU with an alpha that is complex, or beyond 16 in magnitude, or with "
            "2^23 terms or more; leave scheme out, or pass prismm.Residues(...)"
        )


def settings(single: bool = True) -> tuple[str | None, ...]:
    """What the choice depends on besides the call itself: settings of cuBLAS and torch, and ``PRISMM_ENGINE``. single:
    of products in float32 too.
    """
    return cuda.emulated_by_cublas(), cuda.reduced_float32() if single else None, default_engine()


def default_engine() -> str | None:
    """``PRISMM_ENGINE``, where it names an engine of a GPU."""
    name = variable(b"PRISMM_ENGINE")
    return name if name.startswith("cuda") else None


def _native_engine(scheme: Native, problem: Problem, engine: str | None, device: cuda.Device) -> str:
    """cuBLAS, or float64's matrix instructions, for a native product; errors of `choose` where it is none."""
    single = problem.result.precision == 24
    if scheme.compute == "float32" and not single:
        raise EngineError(f"{scheme} loses bits of {problem.result.name}; pass Native()")
    if engine not in (None, "cuda", cuda.BLAS, FP64):
        raise ArgumentError(f"engine={engine!r} multiplies parts of numbers; Native() takes {cuda.BLAS!r} or {FP64!r}")
    if not problem.one_type:
        raise ArgumentError("Native() on a GPU takes operands and result of one type; convert them, or pass Residues")
    if problem.target is not None and problem.target.kind in ("correctly-rounded", "tolerance"):
        raise EngineError(
            f"Native() certifies accuracy 'native' and 'fast' on a GPU, not {problem.target}; leave scheme out"
        )
    wider = single and scheme.compute == "float64"
    if wider if engine in (None, "cuda") else engine == FP64:
        if single and not wider:
            raise ArgumentError(f"engine={FP64!r} multiplies float32 in float64: pass scheme=Native('float64')")
        nothing = min(problem.m, problem.n, problem.k, *problem.batch) == 0 or not problem.reads_operands
        if not nothing and not _directly(problem, device):
            raise EngineError(
                f"{FP64!r} multiplies real matrices of at most {direct_tiles.MOST_ROWS} rows and 2^30 columns, with an "
                f"inner dimension below 2^24, in batches of at most {LONGEST_GRID}: leave engine and scheme out"
            )
        return FP64
    if wider:
        raise ArgumentError(f"engine={engine!r} multiplies float32 in float32: pass scheme=Native(), or {FP64!r}")
    spoiled = _spoiled(problem)
    if spoiled is not None and problem.target is not None:
        raise EngineError(f"{spoiled}: a native product is not certain to keep {problem.result.name}; set it back")
    return cuda.BLAS


def _directly(problem: Problem, device: cuda.Device) -> bool:
    """Whether a native product may be one kernel on float64's matrix instructions."""
    return (
        device.nvidia
        and problem.one_type
        and problem.reads_operands
        and not problem.is_complex
        and shape_of(problem).served
    )


def _one_kernel(problem: Problem, device: cuda.Device, rates: Rates) -> bool:
    """Whether one kernel is sure enough to be as fast as cuBLAS and the look at its result: of a vector and a matrix
    whose terms are no neighbours it uses a sixteenth of its tiles, and is where little is to be read.
    """
    if problem.strided_vector and problem.operand_bytes > _LITTLE:
        return False
    return _directly(problem, device) and _SURE * _kernel_seconds(problem, rates) <= _product_seconds(
        Native(), problem, rates
    )


def _parts_bytes(problem: Problem, device: cuda.Device) -> int:
    """Scratch of a native product in one kernel, where its inner dimension is cut."""
    shape = shape_of(problem)
    if not shape.served:
        return 0
    return direct_tiles.scratch_bytes(shape, device.programs, device.shared, hopper=device.hopper)


def _kernel_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of that kernel."""
    return direct_tiles.seconds_of(shape_of(problem), rates.processors, rates.direct, rates.memory, hopper=rates.hopper)


def shape_of(problem: Problem) -> direct_tiles.Shape:
    """Of what one kernel multiplies."""
    return direct_tiles.Shape(
        problem.m, problem.n, problem.k, math.prod(problem.batch), problem.number_bytes, problem.strided_vector
    )


def _spoiled(problem: Problem) -> str | None:
    """Which setting keeps cuBLAS from being a conventional product of the result's type."""
    return cuda.emulated_by_cublas() or (cuda.reduced_float32() if problem.result.precision == 24 else None)


def _auto(
    problem: Problem, device: cuda.Device, engine: str | None, look: Callable[[int], Left] | None, one_kernel: bool
) -> tuple[Any, str | None, list[str]]:
    """Scheme, its engine where that matters, and why."""
    target = problem.target
    assert target is not None
    if problem.reproducible and target.kind not in ("correctly-rounded", "tolerance"):
        reason = "reproducible, of native grade; the number of moduli follows from result type and K alone"
        return Residues(moduli_for_native(problem.result, problem.terms)), engine, [reason]
    if target.kind == "tolerance":
        assert target.tolerance is not None
        moduli = moduli_for_tolerance(target.tolerance, problem.terms, problem.result)
        reason = f"the fewest moduli whose bound is likely within {target.tolerance:g}·|a||b|"
        return Residues(moduli), engine, [reason]
    rates = rates_of(device.name)
    if problem.rounded:
        moduli = _moduli_for_rounding(problem, rates or usual_rates())
        return Residues(moduli), engine, ["the fewest predicted seconds, repair included, on ordinary data"]
    moduli = native_grade(problem.result, problem.terms)
    if not problem.one_type:
        return Residues(moduli), engine, ["operands and result of several types: one rounding, at the end"]
    if not problem.sum_of_values:
        return Residues(moduli), engine, ["alpha, or a long sum, asks for one rounding, at the end"]
    if engine not in (None, "cuda"):
        return _asked_for(problem, engine, moduli), engine, [f"engine {engine} asked for by the caller"]
    direct, seconds = Native("float64") if problem.result.precision == 24 else Native(), math.inf
    if rates is not None and one_kernel and _one_kernel(problem, device, rates):
        seconds = gpu_seconds(direct, problem, rates, FP64)
    spoiled = _spoiled(problem)
    if rates is None:
        if spoiled is not None:
            return Residues(moduli), engine, [_doubtful(spoiled, problem)]
        return Native(), cuda.BLAS, [f"no rates of {device.name} are known, and its a-priori bound meets the target"]
    # Of a vector every product is made of an element that is read once: there is nothing to be gained by parts of it.
    others = (words.of_native_grade(problem) if min(problem.m, problem.n) > 1 else None, Residues(moduli))
    # By the GPU's own seconds: what the host takes is the same for all, and what is slower in graphs replaces nothing.
    found = [(gpu_seconds(x, problem, rates), x) for x in others if x is not None]
    ours, best = min(found, key=lambda one: one[0])
    if spoiled is not None:
        if seconds < ours:
            return direct, FP64, [_doubtful(spoiled, problem)]
        return found[0][1], None, [_doubtful(spoiled, problem)]
    cublas = gpu_seconds(Native(), problem, rates)
    # One kernel of our own is surely faster than cuBLAS, and what takes no longer errs less.
    enough = seconds if seconds < cublas else cublas / _MARGIN
    seen = ""
    if look is not None and isinstance(best, Residues) and ours < enough:
        left = look(moduli)
        if left.open or left.strips:
            found[-1] = _moduli_for_spread(moduli, left, problem, rates, look)
            ours, best = min(found, key=lambda one: one[0])
            seen = f"; {moduli} moduli would leave {left.open:.2g} of a sample's entries open"
            seen += f", {left.exact:.2g} to be made exact" if left.exact else ""
            seen += f", and look twice at {left.strips:.2g} of all" if left.strips else ""
    if ours < enough:
        faster = f"predicted {cublas / ours:.2f} times as fast as cuBLAS on the GPU"
        return best, None, [f"of native grade, and {faster}{seen}"]
    reason = "its a-priori bound meets the target, and nothing is predicted much faster" + seen
    return (Native(), cuda.BLAS, [reason]) if cublas <= seconds else (direct, FP64, [reason])


def _doubtful(spoiled: str, problem: Problem) -> str:
    return f"{spoiled}: cuBLAS may use fewer bits than {problem.result.name}"


def _moduli_for_spread(
    moduli: int, left: Left, problem: Problem, rates: Rates, look: Callable[[int], Left]
) -> tuple[float, Residues]:
    """(seconds, scheme) where so many moduli leave entries open: a few more may be faster. Where a sample shows none
    any more, a modulus is taken to leave a sixteenth, as samples of lognormal data do.
    """
    found = []
    for count in range(moduli, min(moduli + _MORE, MAX_MODULI) + 1):
        if count > moduli:
            seen = look(count)
            left = Left(seen.open or left.open / 16, seen.exact or left.exact / 16, seen.strips)
        seconds = gpu_seconds(Residues(count), problem, rates) + _open_seconds(left, count, problem, rates)
        found.append((seconds, Residues(count)))
    return min(found, key=lambda one: one[0])


def _open_seconds(left: Left, moduli: int, problem: Problem, rates: Rates) -> float:
    """Seconds that entries take which the quick join leaves open, as measured on an H200: the careful join of strips
    that hold some, planes of magnitudes and their products, exact values one by one or, where they are many, by rows.
    """
    entries, words = _entries(problem), math.prod(problem.batch) * (problem.m + problem.n) * problem.k * problem.parts
    products = entries * problem.terms
    strips = min(1.0, left.open * _STRIP)
    share = left.exact if problem.terms <= cuda.MOST_MAGNITUDES else left.open
    exact = min(share * rates.repair, _BY_ROWS * min(1.0, share * _ROWS))
    careful = max(strips, left.strips) * entries * _CAREFUL * moduli
    return careful + strips * (words * _PLANES + products * _MAGNITUDES) + products * exact


def _asked_for(problem: Problem, engine: str, moduli: int) -> Any:
    """The scheme that an engine stands for."""
    if engine == cuda.INT8:
        return Residues(moduli)
    if engine in (cuda.BLAS, FP64):
        return Native("float64" if engine == FP64 and problem.result.precision == 24 else None)
    grade = words.of_native_grade(problem) or ScaledHalf()
    return {"cuda:fp16": grade, "cuda:tf32": Words.tf32(), "cuda:bf16": Words.bf16()}[engine]


def native_grade(result: Format, terms: int) -> int:
    """The fewest moduli whose typical error is no larger than cuBLAS's, on evenly scaled data.

    With N moduli the scale of a vector of norm √K is 2^s, s = floor(L_N - log2(√K)), and the relative error of the
    product about 0.43·2^-s; that of cuBLAS on an H200 is about 2.9e-17·√K in float64, 1.6e-8·√K in float32.
    """
    ours, native = (14, 2.9e-17) if result.precision == 53 else (7, 1.6e-8)
    while ours < MAX_MODULI:
        s = math.floor(operand_bits(ours) - 0.5 * math.log2(terms))
        if 0.43 * 2.0**-s <= native * math.sqrt(terms) or terms < 4:
            break
        ours += 1
    return ours


_ALONE = 5e-5
"""Seconds of the first repair: its instructions come from memory."""


def _moduli_for_rounding(problem: Problem, rates: Rates) -> int:
    """Moduli for correct rounding: products against repair.

    Of normal data a share of about 2^(-12.1 + 1.6·(73.47 - L))·(K/8192)^1.7 stays open in float64, and 2^(-13.7 +
    1.82·(43.02 - L))·(K/2048)^1.83 in float32, as measured: it falls faster than 2^-L because elements of 53 or 24 bits
    are exact but for the small ones.
    """
    best = (math.inf, MAX_MODULI)
    for moduli in range(9, MAX_MODULI + 1):
        bits = operand_bits(moduli)
        if problem.result.precision == 53:
            share = min(1.0, 2.0 ** (-12.1 + 1.6 * (73.47 - bits)) * (problem.terms / 8192) ** 1.7)
        else:
            share = min(1.0, 2.0 ** (-13.7 + 1.82 * (43.02 - bits)) * (problem.terms / 2048) ** 1.83)
        left_open = _entries(problem) * share
        repair = left_open * problem.terms * rates.repair + min(1.0, left_open) * _ALONE
        seconds = gpu_seconds(Residues(moduli), problem, rates) + repair
        best = min(best, (seconds, moduli))
    return best[1]


def _entries(problem: Problem) -> int:
    return math.prod(problem.batch) * problem.m * problem.n * problem.parts


class _Tiles(NamedTuple):
    """Tiles in which the GPU's own product is made: their rows and columns, what they reach of its rate where they keep
    all processors busy, and seconds that they cost besides.
    """

    rows: int
    columns: int
    rate: float = 1.0
    more: float = 0.0

    def share(self, m: int, n: int, count: int, processors: int) -> float:
        """How much of the GPU's rate they reach in so many products."""
        return self.rate * waves(-(-m // self.rows) * -(-n // self.columns) * count, processors)


def native_tiles(problem: Problem) -> tuple[_Tiles, ...]:
    """Tiles of which cuBLAS takes the fastest, as its times on an H200 tell."""
    if problem.result.precision == 53 and not problem.is_complex:
        reached = max(1, problem.k) / (problem.k + _ENDS) if min(problem.m, problem.n) <= _NATIVE_TILE else 1.0
        found = _Tiles(128, 128), _Tiles(128, 64), _Tiles(64, 64, _FINE), _Tiles(32, 64, 1.0, 1.2e-6)
        return tuple(tiles._replace(rate=reached * tiles.rate) for tiles in found)
    return _Tiles(128, 128), _Tiles(64, 64, _FINE)


def native_share(problem: Problem, processors: int) -> float:
    """How much of a GPU its own products keep busy."""
    count = math.prod(problem.batch)
    return max(tiles.share(problem.m, problem.n, count, processors) for tiles in native_tiles(problem))


_STRIP, _ROWS = 8192, 16
"""Entries of a strip, and how many of it have a row's sums made with theirs."""

_CAREFUL, _PLANES, _MAGNITUDES, _BY_ROWS = 2.7e-12, 7e-12, 3.6e-15, 2.3e-12
"""Seconds for an entry and modulus, an element, a product of magnitudes, and one in twice float64's precision."""

_MORE = 4
"""Moduli that Auto adds to those of native grade at most, for data that spread."""
_MARGIN = 1.05
"""How many times as fast as the GPU's own product a scheme must be predicted to be taken by default."""

_NATIVE_TILE = 64
"""Rows and columns that the GPU's own product rounds small extents up to, about."""

_FINE, _SMALL = 0.9, 0.6
"""What it reaches of its rate in tiles of order 64, or where the inner dimension is cut, as measured on an H200; and
where it is cut for a result of one such tile.
"""

_ENDS = 56
"""Terms that a tile's beginning and end take the time of, in float64, where a result is one tile wide or high."""

_CUT, _LONG_INNER = 8e-6, 1024
"""Seconds that this cut costs besides, and from which length on it is made."""

_SEEN = {53: 0.4, 24: 1.0}
"""What is seen of writing the result, or of multiplying, whichever takes less, beside the other one, by the result's
precision; as measured on an H200 with inner dimensions of 32, 128 and 512.
"""

_ODD = 1.24
"""How many times as long it takes in float64 where rows begin at odd multiples of eight bytes, of orders 1777 and 3333
on an H200.
"""

_LITTLE = 1 << 20
"""Bytes of operands up to which a launch that is saved is worth more than how fast they are read."""
_SURE = 1.03
"""How much faster than cuBLAS one kernel must be predicted to be: predictions are no closer than that."""

WHOLE = 8192**3
"""Products of elements up to which no product is made from those of quarters: as many as a calibration times."""

_QUARTERS = 1.04
"""How many times as fast as a whole product those of quarters must be predicted to be: their tiles are half as deep, so
that they reach 2 % less, as measured on an H200; and they take twice the memory.
"""

_COMPLEX_LOOKS, _ROUNDED_LOOKS = 11, 4
"""How many times as long second looks take for an entry of complex data, and for correct rounding, as measured."""


def native_seconds(problem: Problem, rates: Rates, slower: float = 1.0) -> float:
    """Seconds that torch's call of the GPU's own product is expected to take on an idle GPU. slower: of the host, as
    for `predict`.
    """
    return rates.torch.seconds(own_seconds(problem, rates), slower)


def own_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds that the GPU is expected to work on its own product.

    Its tiles are full; where they are few, the inner dimension is cut so that they fill the GPU, at the price of
    another pass over the result.
    """
    count = math.prod(problem.batch)
    m, n = (-(-x // _NATIVE_TILE) * _NATIVE_TILE if x > 1 else x for x in (problem.m, problem.n))
    full = (
        2.0
        * count
        * m
        * n
        * max(1, problem.k)
        * (4 if problem.is_complex else 1)
        / rates.native(problem.result.precision)
    )
    if (
        problem.result.precision == 53
        and not problem.is_complex
        and min(problem.m, problem.n, problem.k) > 1
        and (problem.n % 2 or problem.k % 2)
    ):
        full *= _ODD
    once = min(
        full / tiles.share(problem.m, problem.n, count, rates.processors) + tiles.more
        for tiles in native_tiles(problem)
    )
    if problem.k >= _LONG_INNER:
        once = min(once, full / _cut_share(problem) + _CUT)
    less, more = sorted((max(once, problem.operand_bytes / rates.memory), problem.result_bytes / rates.memory))
    return rates.launch + more + _SEEN[problem.result.precision] * less


def _cut_share(problem: Problem) -> float:
    """What the GPU's own product reaches of its rate where the inner dimension is cut."""
    return _SMALL if max(problem.m, problem.n) <= _NATIVE_TILE else _FINE


def written_seconds(problem: Problem, memory: float) -> float:
    """Seconds that writing the result adds to those of a product that takes longer."""
    return _SEEN[problem.result.precision] * problem.result_bytes / memory


def uninterrupted(problem: Problem, seconds: float, processors: int) -> float:
    """Seconds that a product of full tiles, which takes so many besides its launch, would take if all processors were
    busy all the time: `own_seconds` backwards.
    """
    count = math.prod(problem.batch)
    found = [
        tiles.share(problem.m, problem.n, count, processors) * (seconds - tiles.more) for tiles in native_tiles(problem)
    ]
    return max(*found, _cut_share(problem) * (seconds - _CUT) if problem.k >= _LONG_INNER else 0.0)


_PROVED = 1 << 21
"""Real numbers of a result from which on its operands may be read in its place."""


def is_proved(problem: Problem) -> bool:
    """Whether a native product's operands, which are smaller, are looked at in place of its result: before the product,
    in a graph beside it.
    """
    numbers = problem.parts * math.prod(problem.batch) * problem.m * problem.n
    few = 2 * problem.operand_bytes <= problem.result_bytes and problem.parts * problem.k <= cuda.PROOF_TERMS
    return few and numbers >= _PROVED and not problem.summed


def checked_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of the look at a native product's entries that are not finite, or at operands beside it."""
    if is_proved(problem):
        return rates.look + rates.once_over(problem.operand_bytes)
    return rates.once_over(problem.result_bytes)


def residue_operations(problem: Problem, moduli: int, processors: int) -> float:
    """Operations of products of residues in full tiles, with those of the processors that wait for the last ones."""
    tiles = -(-problem.m // 128) * -(-problem.n // 256) * moduli * math.prod(problem.batch)
    return 2.0 * tiles * 128 * 256 * max(1, problem.k) / waves(tiles, processors)


def predict(
    scheme: Any,
    problem: Problem,
    rates: Rates,
    engine: str | None = None,
    slower: float = 1.0,
    quarters: bool | None = None,
) -> float:
    """Seconds that a call like earlier ones is expected to take while nothing else runs on the device. engine: of a
    native product, where the scheme does not say; slower: how many times as long the host takes as that of the rates;
    quarters: whether products of residues are made from those of quarters, None for where that is faster.
    """
    return rates.call.seconds(gpu_seconds(scheme, problem, rates, engine, quarters), slower)


def gpu_seconds(
    scheme: Any, problem: Problem, rates: Rates, engine: str | None = None, quarters: bool | None = None
) -> float:
    """Seconds that the GPU is expected to work on a call, whatever the host takes: as in a graph of many."""
    seconds = _product_seconds(scheme, problem, rates, engine, quarters)
    if problem.summed:
        # C is read; what is no join of digits reads the product once more and writes the sum.
        passes = 1 if isinstance(scheme, (Residues, Slices)) else 3
        seconds += 4 * rates.look + passes * problem.result_bytes / rates.memory
    return seconds


def _product_seconds(
    scheme: Any, problem: Problem, rates: Rates, engine: str | None = None, quarters: bool | None = None
) -> float:
    """`gpu_seconds` of the product alone."""
    if isinstance(scheme, Native):
        if engine == FP64 or (scheme.compute == "float64" and problem.result.precision == 24):
            return _kernel_seconds(problem, rates)
        return own_seconds(problem, rates) + checked_seconds(problem, rates)
    if not isinstance(scheme, Residues):
        return float(module_of(scheme).gpu_seconds(scheme, problem, rates))
    count = math.prod(problem.batch)
    parts, moduli = problem.parts, scheme.moduli * (3 if problem.is_complex else 1)
    m, n, k = problem.m, problem.n, max(1, problem.k)
    if quarters is None:
        quarters = rates.hopper and by_quarters(problem, moduli, rates)
    seconds = rates.product + (_quarters_seconds if quarters else _whole_seconds)(problem, moduli, rates)
    launches = right_launches(problem, scheme.moduli, rates.processors, hopper=rates.hopper)
    for line, elements, share in ((rates.left, m * k, 1.0), (rates.right, k * n, launches)):
        seconds += share * line.launch + count * elements * (parts * line.element + moduli * line.modulus)
    # A part of a complex entry is joined from two or three digits a modulus.
    entries = float(count * m * n)
    seconds += (rates.rounded if problem.rounded else rates.join).seconds(
        entries * parts * (2 * parts - 1), scheme.moduli
    )
    looks = entries if problem.result.precision == 53 else 0.0
    looks *= (_COMPLEX_LOOKS if problem.is_complex else 1) * (_ROUNDED_LOOKS if problem.rounded else 1)
    return seconds + rates.finish.seconds(looks, 0)


def _whole_seconds(problem: Problem, moduli: int, rates: Rates) -> float:
    """Seconds of products modulo so many numbers; of a short inner dimension, what takes longer are the digits on their
    way to memory.
    """
    product = _multiplied_seconds(residue_operations(problem, moduli, rates.processors), rates)
    return max(product, float(math.prod(problem.batch) * problem.m * problem.n) * moduli / rates.memory)


def _multiplied_seconds(operations: float, rates: Rates) -> float:
    """Seconds that so many take on the matrix unit."""
    return rates.at_length(operations / rates.int8)


def _quarters_seconds(problem: Problem, moduli: int, rates: Rates) -> float:
    """`_whole_seconds` where seven products of quarters take the place of eight, with all that is added for them: see
    `cuda.residues.kernels.strassen` for its bytes.
    """
    m, n, k = cuda_quarters.quarter(problem.m, problem.n, max(1, problem.k))
    products = replace(problem, m=m, n=n, k=k, batch=(*problem.batch, 7))
    moved = math.prod(problem.batch) * moduli * (4.0 * k * 2 * (m + n) + 11.0 * m * n)
    added = 3 * rates.look + moved / rates.memory
    return _multiplied_seconds(residue_operations(products, moduli, rates.processors), rates) + added


def by_quarters(problem: Problem, moduli: int, rates: Rates) -> bool:
    """Whether a product of residues is predicted to be faster from seven of quarters."""
    if problem.m * problem.n * problem.k <= WHOLE or not cuda_quarters.serves(problem.m, problem.n, problem.k):
        return False
    return _QUARTERS * _quarters_seconds(problem, moduli, rates) < _whole_seconds(problem, moduli, rates)


def right_launches(problem: Problem, moduli: int, processors: int, *, hopper: bool) -> float:
    """The share of the right operand's launches that there are: one of three where it measures and splits columns."""
    if not hopper or problem.is_complex:
        return 1.0
    size = max(1, problem.k) * problem.number_bytes
    together = cuda.columns_at_once(math.prod(problem.batch), problem.n, size, byte_tables(moduli).dwords, processors)
    return 1 / 3 if together else 1.0


def _blocks(
    problem: Problem, scratch: Callable[[int, int], int], kept: tuple[int | None, int | None] = (None, None)
) -> tuple[int, int, int]:
    """Rows and columns of a block, and its scratch: everything at once if that fits in a quarter of the free memory.
    What was cut before stays as it is.
    """
    rows, columns = (
        max(1, min(size, _MOST_VECTORS) if cut is None else min(cut, size))
        for cut, size in zip(kept, (problem.m, problem.n), strict=True)
    )
    if scratch(rows, columns) <= _LARGE:
        return rows, columns, scratch(rows, columns)
    import torch

    limit = max(_LARGE, torch.cuda.mem_get_info()[0] // 4)
    while scratch(rows, columns) > limit:
        free_rows, free_columns = 0 if kept[0] else rows, 0 if kept[1] else columns
        if max(free_rows, free_columns) <= 128:
            break
        if free_rows >= free_columns:
            rows = -(-rows // 256) * 128
        else:
            columns = -(-columns // 256) * 128
    return rows, columns, scratch(rows, columns)


def make_plan(problem: Problem, choice: Choice, request: Request, device: str, left: str, right: str) -> Plan:
    """All that can be said of a call before it runs; predictions are those of an H200 where the GPU is unknown, beside
    this host as fast as it is just now.
    """
    count = math.prod(problem.batch)
    scheme, target = choice.scheme, problem.target
    rates = rates_of(device) or usual_rates()
    slower = host_pace.seconds() / rates.pace
    return Plan(
        m=problem.m, n=problem.n, k=problem.k // problem.terms_per_element, batch=problem.batch,
        operands=(left, right), result=problem.dtype,
        target=target, scheme=scheme, engine=choice.engine,
        reproducible=request.reproducible or bool(scheme.reproducible) or problem.rounded, threads=1,
        products=count * (1 if choice.tiny else _products(scheme, problem)),
        row_panel=choice.rows,
        column_block=choice.columns, workspace_bytes=choice.scratch,
        predicted_seconds=(
            rates.call.seconds(_tiny_seconds(problem, rates), slower) if choice.tiny
            else predict(scheme, problem, rates, choice.engine, slower, choice.quarters)
        ),
        native_seconds=native_seconds(problem, rates, slower),
        bound=bound_text(scheme, target, problem.result, problem.is_complex), reasons=choice.reasons,
    )  # fmt: skip


_DOUBLED = 11
"""Operations that a term takes in twice float64's precision."""


def _tiny_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of `cuda.conventional.kernels.tiny`: what it reads and writes, or its operations, which reach half of
    the rate of the GPU's own products, two of them in one.
    """
    operations = _entries(problem) * problem.terms * (_DOUBLED if _of_residues(problem) else 1)
    moved = (problem.operand_bytes + problem.result_bytes) / rates.memory
    return rates.launch + max(moved, 4.0 * operations / rates.native(53))


def _products(scheme: Any, problem: Problem) -> int:
    """Products on the matrix unit of one product of the call."""
    if isinstance(scheme, Native):
        return 1
    if isinstance(scheme, Residues):
        return (3 if problem.is_complex else 1) * int(scheme.moduli)
    return int(module_of(scheme).products(scheme, problem))
