"""The caller's state: no setting of Python, NumPy, torch or the processor changes a result, and none is changed.

Every state is met by every verb, scheme, engine and kind of array: same bits as in a quiet state, or prismm's own error
before any work, whose remedy works.
"""

from __future__ import annotations

import contextlib
import ctypes
import decimal
import functools
import io
import locale
import os
import platform
import sys
import warnings
import zlib
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import EngineError
from prismm.testing import HOSTILE, SPECIAL, exact_product
from tests.covering import covering_rows
from tests.judge import CORRECT, assert_meets, assert_same_bits, magnitudes, usable_engines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X86_LINUX = platform.machine() in ("x86_64", "AMD64") and sys.platform.startswith("linux")
ROUNDINGS = {"down": 0x400, "up": 0x800, "towards zero": 0xC00}
M, K, N = 6, 9, 5


def operands() -> list[tuple[np.ndarray, np.ndarray]]:
    """Matrices with subnormal numbers, sums near overflow, special values and wide rows; one product that threads
    share.
    """
    found = []
    for dtype in ("float64", "float32", "complex64"):
        for name in ("subnormal_operands", "subnormal_results", "near_overflow", "phi4"):
            found.append(HOSTILE[name](M, K, N, 5, dtype)[:2])
        found.append(SPECIAL["specials"](M, K, N, 5, dtype)[:2])
    found.append((np.arange(M * K).reshape(M, K), np.full((K, N), 2**60 + 1)))
    found.append((np.full((96, 96), 2.0**-1022), 0.5 * np.eye(96)))
    return found


def keywords_for(dtype: np.dtype[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}, CORRECT, {"reproducible": True}, {"accuracy": 1e-4}, {"accuracy": "fast"}]
    if dtype.kind == "i":
        return found
    found += [{"scheme": prismm.Native()}, {"scheme": prismm.Slices(mode="CR")}]
    found += [{"scheme": prismm.Residues(10), "engine": engine} for engine in usable_engines()]
    found += [{"scheme": prismm.Residues(10), "accuracy": "native"}]
    if dtype.name in ("float32", "complex64"):
        found += [{"scheme": scheme} for scheme in (prismm.Words.tf32(), prismm.ScaledHalf(), prismm.TileInt8())]
    if dtype.name == "float32":
        found += [
            {"scheme": prismm.Words.fp16(), "engine": "simulated:volta"},
            {"scheme": prismm.Words.bf16(), **CORRECT},
        ]
    return found


def by_matmul(a: Any, b: Any, keywords: dict[str, Any]) -> list[Any]:
    c, report = prismm.matmul(a, b, full_output=True, **keywords)
    return [c, report.bounds, prismm.matmul(a, b, **keywords)]


def by_gemm(a: Any, b: Any, keywords: dict[str, Any]) -> list[Any]:
    c = a[:, :1]
    return [prismm.gemm(a, b, c, alpha=0.75, beta=-1.5, **keywords), prismm.gemm(a, b, alpha=3.0, **keywords)]


def by_prepare(a: Any, b: Any, keywords: dict[str, Any]) -> list[Any]:
    return [
        prismm.matmul(a, prismm.prepare(b, **keywords)),
        prismm.matmul(prismm.prepare(a, side="left", **keywords), b),
    ]


def by_explain(a: Any, b: Any, keywords: dict[str, Any]) -> list[Any]:
    plan = prismm.explain(a, b, **keywords)
    return [np.array([plan.products, plan.workspace_bytes]), np.frombuffer(str(plan.scheme).encode(), np.uint8)]


class Case:
    """One call, its keywords and operands, and what it returned in a quiet state."""

    def __init__(self, verb: Callable[..., list[Any]], a: Any, b: Any, keywords: dict[str, Any], draw: int) -> None:
        self.verb, self.a, self.b, self.keywords = verb, a, b, keywords
        self.row = {"verb": verb.__name__, "array": type(a).__name__, "keywords": str(keywords), "operands": draw}
        self.note = f"{verb.__name__} {type(a).__name__} {a.dtype} {keywords}"

    def call(self) -> list[np.ndarray]:
        return [np.asarray(x) for x in self.verb(self.a, self.b, self.keywords)]

    @functools.cached_property
    def quiet(self) -> list[np.ndarray]:
        return self.call()

    def check(self) -> None:
        for got, right in zip(self.call(), self.quiet, strict=True):
            assert_same_bits(got, right, self.note)


@functools.cache
def all_cases() -> list[Case]:
    """The whole table."""
    found = []
    for draw, (a, b) in enumerate(operands()):
        integers, large = a.dtype.kind == "i", a.shape[0] > M
        for keywords in keywords_for(a.dtype)[: 3 if large else None]:
            for x, y in ((a, b), (torch.from_numpy(a), torch.from_numpy(b))):
                for verb in (by_matmul,) if integers else (by_matmul, by_gemm, by_prepare, by_explain):
                    found.append(Case(verb, x, y, keywords, draw))
    return found


@pytest.fixture(params=[pytest.param(False, id="some"), pytest.param(True, id="pairs", marks=pytest.mark.slow)])
def cases(request: pytest.FixtureRequest, seed: int) -> list[Case]:
    """Some 20 of the table, other ones for each test, or so many that every pair of verb, kind of array, keywords and
    operands meets in each state: other ones for each test, too, so that nearly every case is met by some state. With
    PRISMM_TEST_ALL every test has the whole table. They come with what they return before anything is set.
    """
    table = all_cases()
    first = zlib.crc32(request.node.nodeid.encode()) % 67  # a prime: a step through all verbs, kinds and keywords
    if not request.param:
        found = table[first::67]
    elif os.environ.get("PRISMM_TEST_ALL"):
        found = table
    else:
        found = [table[place] for place in covering_rows([case.row for case in table], None, Random(seed))]
    assert all(case.quiet for case in found)
    return found


def mxcsr() -> int | None:
    """The control bits of the processor's register; what is sticky in it belongs to no one."""
    if not X86_LINUX:
        return None
    state = (ctypes.c_uint32 * 8)()
    ctypes.CDLL(None).fegetenv(state)
    return state[7] & ~0x3F


def ambient() -> dict[str, Any]:
    """All that a call might change."""
    return {
        "NumPy's errors": np.geterr(), "NumPy's printing": np.get_printoptions(), "filters": list(warnings.filters),
        "dtype": torch.get_default_dtype(), "device": str(torch.get_default_device()),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "precision": [
            flag.fp32_precision
            for flag in (
                torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul, torch.backends.cuda.matmul,
            )
        ],
        "threads": torch.get_num_threads(), "register": mxcsr(), "locale": locale.setlocale(locale.LC_ALL),
        "streams": (id(sys.stdout), id(sys.stderr)), "decimal": str(decimal.getcontext()),
        "digits": sys.get_int_max_str_digits(), "recursion": sys.getrecursionlimit(),
    }  # fmt: skip


@contextlib.contextmanager
def restored(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def raising_errors() -> Iterator[None]:
    with np.errstate(all="raise"):
        yield


@contextlib.contextmanager
def calling_errors() -> Iterator[None]:
    def forbidden(kind: str, _: int) -> None:
        raise AssertionError(kind)

    with np.errstate(all="call", call=forbidden):
        yield


@contextlib.contextmanager
def warnings_as_errors() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def torch_always_warns() -> Iterator[None]:
    with restored(torch.is_warn_always_enabled, torch.set_warn_always, True), warnings_as_errors():
        yield


def default_dtype(dtype: torch.dtype) -> Callable[[], Any]:
    return lambda: restored(torch.get_default_dtype, torch.set_default_dtype, dtype)


@contextlib.contextmanager
def meta_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def flushed_before() -> Iterator[None]:
    """On and off again, with a product of torch's and a refused one of ours in between."""
    if torch.set_flush_denormal(True):
        try:
            x = torch.ones(300, 300)
            torch.mm(x, x)
            with pytest.raises(EngineError):
                prismm.matmul(x, x)
        finally:
            torch.set_flush_denormal(False)
    yield


def any_locale() -> contextlib.AbstractContextManager[None]:
    names = ("de_DE.UTF-8", "fr_FR.UTF-8", "tr_TR.UTF-8", "C.UTF-8", "C")

    def put(name: str) -> None:
        for other in (name, *names):
            with contextlib.suppress(locale.Error):
                locale.setlocale(locale.LC_ALL, other)
                return

    return restored(lambda: locale.setlocale(locale.LC_ALL), put, names[0])


@contextlib.contextmanager
def closed_streams() -> Iterator[None]:
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stdout(closed), contextlib.redirect_stderr(closed):
        yield


@contextlib.contextmanager
def no_streams() -> Iterator[None]:
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        yield


@contextlib.contextmanager
def few_digits() -> Iterator[None]:
    digits = restored(sys.get_int_max_str_digits, sys.set_int_max_str_digits, 640)
    with digits, decimal.localcontext() as context, np.printoptions(precision=1, threshold=3):
        context.prec, context.traps[decimal.Inexact] = 2, True
        yield


STATES: dict[str, Callable[[], Any]] = {
    "NumPy raises": raising_errors, "NumPy calls": calling_errors, "warnings are errors": warnings_as_errors,
    "torch always warns": torch_always_warns, "float16": default_dtype(torch.float16),
    "bfloat16": default_dtype(torch.bfloat16), "float64": default_dtype(torch.float64), "meta": meta_device,
    "device cpu": lambda: torch.device("cpu"), "deterministic": deterministic, "inference": torch.inference_mode,
    "no gradients": torch.no_grad, "anomalies": lambda: torch.autograd.detect_anomaly(check_nan=True),
    "flushed before": flushed_before, "locale": any_locale, "closed streams": closed_streams, "no streams": no_streams,
    "few digits": few_digits,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("state", STATES)
def test_same_bits_in_any_state(cases, state):
    """The state is the same after the calls as before them."""
    with STATES[state]():
        within = ambient()
        for case in cases:
            case.check()
        assert ambient() == within


def test_tensors_and_results_of_inference_mode(cases):
    for case in [case for case in cases if isinstance(case.a, torch.Tensor) and case.verb is by_matmul]:
        with torch.inference_mode():
            x, y = case.a.clone(), case.b.clone()
            out = torch.empty_like(torch.from_numpy(case.quiet[0].copy()))
        right = case.quiet[0]
        assert_same_bits(prismm.matmul(x, y, **case.keywords), right, case.note)
        assert prismm.matmul(x, y, out=out, **case.keywords) is out
        assert_same_bits(out, right, case.note)


FLAGS: dict[str, tuple[Any, str, str]] = {
    **{
        f"{name}.fp32_precision={value}": (flag, "fp32_precision", value)
        for name, flag, values in (
            ("torch.backends", torch.backends, ("tf32", "ieee")),
            ("mkldnn", torch.backends.mkldnn, ("bf16", "tf32", "ieee")),
            ("mkldnn.matmul", torch.backends.mkldnn.matmul, ("bf16", "tf32", "ieee")),
            ("cuda.matmul", torch.backends.cuda.matmul, ("tf32", "ieee")),
        )
        for value in values
    },
    **{f"old: {value}": (None, "", value) for value in ("high", "medium", "highest")},
}


@contextlib.contextmanager
def flag_of_precision(owner: Any, name: str, value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision() if owner is None else getattr(owner, name)
    products = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # old flags set these as well
    found = [product.fp32_precision for product in products]
    try:
        torch.set_float32_matmul_precision(value) if owner is None else setattr(owner, name, value)
        yield
    finally:
        torch.set_float32_matmul_precision(before) if owner is None else setattr(owner, name, before)
        for product, precision in zip(products, found, strict=True):
            product.fp32_precision = precision


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_precision_old_and_new(cases, flag):
    """Products of tensors may be NumPy's where torch's would be of fewer bits: then native ones meet their target."""
    quiet = ambient()
    with flag_of_precision(*FLAGS[flag]):
        within = ambient()
        for case in cases:
            bits = case.keywords in (CORRECT, {"reproducible": True}) or isinstance(
                case.keywords.get("scheme"), (prismm.Residues, prismm.Slices, prismm.TileInt8)
            )
            if bits or case.a.dtype not in (torch.float32, torch.complex64):
                case.check()
            elif case.verb is by_matmul and case.keywords in ({}, {"accuracy": 1e-4}) and case.a.isfinite().all():
                a, b = case.a.numpy(), case.b.numpy()
                target, exact = case.keywords.get("accuracy", "native"), exact_product(a, b)
                terms = K * (2 if a.dtype.kind == "c" else 1)
                c, _, at_once = case.call()
                for value in (c, at_once):
                    assert_meets(target, exact, magnitudes(a, b), value, terms, case.note)
            else:
                case.call()
        assert ambient() == within
    assert ambient()["precision"] == quiet["precision"]


def by_torch() -> None:
    torch.set_flush_denormal(False)


def by_libc() -> None:
    ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))


def refused_then_served(cases: list[Case], spoil: Callable[[], Any], remedies: list[Any], words: str) -> None:
    """Every call is refused before any work; after each remedy it has the bits of a quiet state."""
    quiet = ambient()
    for remedy in remedies:
        for case in cases:
            spoil()
            try:
                within = ambient()
                with pytest.raises(EngineError, match=words):
                    case.call()
                assert mxcsr() == within["register"]
            finally:
                remedy()
            case.check()
        assert ambient() == quiet


def test_flushed_subnormals_are_refused_until_they_are_not(cases):
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    torch.set_flush_denormal(False)
    remedies = [by_torch, by_libc] if X86_LINUX else [by_torch]
    refused_then_served(cases, lambda: torch.set_flush_denormal(True), remedies, r"set_flush_denormal\(False\)")


@pytest.mark.skipif(not X86_LINUX, reason="the codes of fesetround are those of x86")
@pytest.mark.parametrize("way", ROUNDINGS)
def test_other_roundings_are_refused_until_they_are_not(cases, way):
    spoil = ctypes.CDLL(None).fesetround
    refused_then_served(cases, lambda: spoil(ROUNDINGS[way]), [by_libc], r"round to nearest.*fesetenv")


@pytest.mark.skipif(not X86_LINUX, reason="the bits of the register are those of x86")
@pytest.mark.parametrize("bit", [0x8000, 0x40], ids=["results", "operands"])
def test_either_kind_of_flushing_is_noticed(cases, bit):
    """The processor has one switch for subnormal results and one for subnormal operands."""
    libc = ctypes.CDLL(None)

    def spoil() -> None:
        state = (ctypes.c_uint32 * 8)()
        libc.fegetenv(state)
        state[7] |= bit
        libc.fesetenv(state)

    refused_then_served(cases, spoil, [by_torch, by_libc], "flushes subnormal")


def test_a_sample_of_huge_numbers_warns_of_nothing(rng):
    """From 2^28 multiply-adds on the planner looks at the data: a norm beyond the largest float is no error."""
    a, b = rng.standard_normal((2, 16, 4096))
    for scale in (1.0, 2.0**530, 2.0**-530):
        x, y = np.broadcast_to(a[:, None], (16, 64, 4096)).reshape(1024, 4096), (scale * b).T
        y = np.concatenate([y] * 8, axis=1)[:, :64]
        plans = []
        for states in (contextlib.nullcontext(), warnings_as_errors(), raising_errors()):
            with states:
                plans.append(str(prismm.explain(x, y, **CORRECT).scheme))
        assert plans == [str(prismm.explain(x, y / scale, **CORRECT).scheme)] * 3


@pytest.mark.slow
def test_products_of_huge_numbers_are_right_where_warnings_are_errors(rng):
    a, b = rng.standard_normal((2, 700, 700))
    right = prismm.matmul(a, b, **CORRECT)
    with warnings_as_errors():
        assert_same_bits(prismm.matmul(a, b * 2.0**530, **CORRECT), right * 2.0**530)
    exact = exact_product(a[:3], b)
    assert_same_bits(right[:3], exact.rounded(np.float64))
