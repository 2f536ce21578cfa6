"""Products that go straight to torch: torch's bits, the table's words, and what is left to the long way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm
from prismm import Policy, emulate
from prismm.core import jit
from prismm.programs import direct, gemms, layouts
from prismm.programs.recipe import Recipe
from prismm.testing import HOSTILE, exact_gemm, exact_product

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
DEFAULT = Recipe("native")


def operands(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normal tensors (4, 5), (5, 3) and (4, 3)."""
    generator = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randn(shape, dtype=dtype, generator=generator) for shape in ((4, 5), (5, 3), (4, 3)))
    return a, b, c


CALLS = {
    "mm": lambda a, b, c: torch.mm(a, b),
    "addmm": lambda a, b, c: torch.addmm(c, a, b),
    "bmm": lambda a, b, c: torch.bmm(a[None], b[None]),
    "baddbmm": lambda a, b, c: torch.baddbmm(c[None], a[None], b[None]),
    "mv": lambda a, b, c: torch.mv(a, b[:, 0]),
    "addmv": lambda a, b, c: torch.addmv(c[:, 0], a, b[:, 0]),
    "dot": lambda a, b, c: torch.dot(a[0], b[:, 0]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_torchs_and_words_are_those_of_explain(name, dtype, seed, monkeypatch):
    a, b, c = operands(seed, dtype)
    expected = CALLS[name](a, b, c)
    monkeypatch.setattr(gemms, "multiply", None)  # nothing else multiplies
    with emulate("native") as record:
        found = [CALLS[name](a, b, c) for _ in range(3)]
    assert all(torch.equal(one, expected) for one in found)
    (row,) = record.rows
    assert (row.count, row.operator) == (3, name)
    function = getattr(torch.ops.aten, name).default
    x, y = (a[None], b[None]) if "bmm" in name else (a, b[:, 0]) if name.endswith("mv") else (a, b)
    x, y = (a[0], b[:, 0]) if name == "dot" else (x, y)
    added = {"addmm": (c,), "baddbmm": (c[None],), "addmv": (c[:, 0],)}.get(name, ())
    gemm = gemms.gemm_of(function, (*added, x, y), {})
    assert isinstance(gemm, gemms.Gemm) and row.method == gemms.describe(gemm, DEFAULT)


@pytest.mark.parametrize("value", [1e38, np.inf, np.nan])
def test_specials_are_those_of_matmul(value):
    """Rounded sums overflow where exact ones do not: the first product, and one of a layout that is known."""
    a = torch.tensor([[value, value], [1.0, 2.0]])
    b = torch.tensor([[8.0, 1.0], [-8.0, 1.0]])
    with emulate("native"):
        torch.ones(2, 2) @ torch.ones(2, 2)
        found = [x @ b for x in (a, torch.ones(2, 2), a)]
    expected = prismm.matmul(a.numpy(), b.numpy())
    for one in (found[0], found[2]):
        np.testing.assert_array_equal(one.numpy(), expected)


def test_long_sums_hide_no_overflow():
    """From 2048 float32 terms on rounding may hide an overflow: operands so large go the long way."""
    a = torch.full((2, 2048), 2.0**64)
    b = torch.full((2048, 2), 2.0**63)
    b[1024:] = -(2.0**63)
    run = direct._run(torch.ops.aten.mm.default, torch.mm, True, True, True, 4)
    assert run(a, b) is None and run(a * 2.0**-64, b * 2.0**-63) is not None
    with emulate("native"):
        found = [a @ b for _ in range(2)]
    assert all((one == 0).all() for one in found)


@pytest.mark.parametrize("name", HOSTILE)
def test_sums_meet_the_native_bound(name, seed):
    a, b = (np.array(x) for x in HOSTILE[name](5, 33, 4, seed, np.float32))
    c = np.array(HOSTILE[name](5, 4, 1, seed + 1, np.float32)[0])
    x, y, z = map(torch.from_numpy, (a, b, c))
    with emulate("native") as record:
        for _ in range(2):
            found, product = torch.addmm(z, x, y).numpy(), (x @ y).numpy()
    assert sum(row.count for row in record.rows) == 4
    for value, exact, terms in ((found, exact_gemm(1, a, b, 1, c), 36), (product, exact_product(a, b), 33)):
        room = terms * 2.0**-24 * exact.magnitude() + terms * 2.0**-149
        assert (exact.within(value, room) | ~np.isfinite(value)).all()
        np.testing.assert_array_equal(np.isfinite(value), np.isfinite(exact.rounded(np.float32)))


def test_addends_of_any_shape_that_torch_takes(seed):
    """One layout is known for all of them; what does not broadcast is refused as without a block."""
    a, b, c = operands(seed, torch.float32)
    addends = c, c[0], c[:, :1], c[0, 0], c.mT.contiguous().mT
    expected = [torch.addmm(one, a, b) for one in addends]
    with emulate("native") as record:
        found = [torch.addmm(one, a, b) for one in addends]
        for wrong in (c[:3], c[:, :2], c[None], c.double(), c.mT):
            with pytest.raises(RuntimeError):
                torch.addmm(wrong, a, b)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert sum(row.count for row in record.rows) == len(addends)


def test_an_engine_that_is_asked_for_meanwhile(seed, monkeypatch):
    a, b, _ = operands(seed, torch.float32)
    run = direct._run(torch.ops.aten.mm.default, torch.mm, True, False, False, 12)
    assert torch.equal(run(a, b), a @ b)
    monkeypatch.setenv("PRISMM_ENGINE", "cpu:float64")
    assert run(a, b) is None


def test_a_new_block_asks_for_no_compiled_kernel_again(seed, monkeypatch):
    """Numba reads the whole environment whenever it is asked, which takes longer than a product."""
    a, b, _ = operands(seed, torch.float64)
    with emulate("native"):
        expected = a @ b
    monkeypatch.setattr(jit, "_compiling", None)
    with emulate("native"):
        assert torch.equal(a @ b, expected)
        assert torch.allclose(b.T @ a.T, expected.T)


def test_settings_of_torch_are_asked_in_every_call(seed):
    a, b, _ = operands(seed, torch.float32)
    expected = a @ b
    out = torch.empty(4, 3)
    with emulate("native") as record:
        a @ b
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.mm(a, b, out=out)  # autocast leaves it alone
            assert (a @ b).dtype == torch.bfloat16
        torch.set_flush_denormal(True)
        try:
            with pytest.raises(prismm.errors.EngineError, match="flushes subnormal") as caught:
                a @ b
            assert any("in mm of module '', test_direct.py:" in note for note in caught.value.__notes__)
        finally:
            torch.set_flush_denormal(False)
    assert torch.equal(out, expected)
    assert {row.dtype for row in record.rows} == {"float32", "bfloat16"}


@pytest.mark.parametrize(
    ("policy", "straight"),
    [("native", True), ("fast", False), (Policy.of("native", reproducible=True), False), ("correctly-rounded", False)],
    ids=str,
)
def test_only_the_default_goes_straight(policy, straight, seed):
    a, b, _ = operands(seed, torch.float32)
    gemm = gemms.gemm_of(torch.ops.aten.mm.default, (a, b), {})
    assert isinstance(gemm, gemms.Gemm)
    found = direct.run_of(torch.ops.aten.mm.default, gemm, Policy.of(policy).recipe("", "mm"))
    assert (found is not None) == straight


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (200, 100), (300, 300)])
def test_energies(shape, dtype, seed):
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    exact = float((x.abs().double() ** 2).sum())
    for one in (x, x.mT):
        assert abs(direct.energy_of(one) - exact) <= 1e-4 * exact
    x[-1, -1] = torch.inf
    assert not direct.energy_of(x) < np.inf


def test_one_line_multiplies_in_more_ways_than_guards_are_kept(seed):
    """Sizes, types, strides, derivatives, and one tensor twice, at one place: each keeps its result and its count."""
    generator = torch.Generator().manual_seed(seed)
    ways = []
    for n in range(2, 5 + layouts.FEW):
        x = torch.randn(n, n, generator=generator)
        y = torch.randn(n, n, generator=generator)
        ways += [(x, y), (x.double(), y.double()), (x.t(), y), (x, x), (x.clone().requires_grad_(), y)]
    with emulate("native") as record:
        found = [torch.mm(a, b) for _ in range(3) for a, b in ways]
    for value, (a, b) in zip(found, ways * 3, strict=True):
        assert torch.equal(value, torch.mm(a, b)) and value.requires_grad == a.requires_grad
    assert sum(row.count for row in record.rows) == len(found)
    assert {row.count for row in record.rows if row.dtype == "float64"} == {3}
