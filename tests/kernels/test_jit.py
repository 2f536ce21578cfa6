"""The kernel cache: its folder follows the sources, and each kernel has one signature."""

import importlib
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import prismm.kernels.cpu
from prismm.kernels.cpu import jit, vnni

KERNELS = {
    f"{module.name}.{name}": value
    for module in pkgutil.iter_modules(prismm.kernels.cpu.__path__)
    for name, value in vars(importlib.import_module(f"prismm.kernels.cpu.{module.name}")).items()
    if isinstance(value, jit.Kernel) and value.function.__module__.endswith(module.name)
}


FOR_VNNI = ("fused", "packed", "vnni")
"""Modules whose kernels compile where there are the instructions."""


def test_kernels_have_one_signature_each():
    assert len(KERNELS) > 15
    for name, kernel in KERNELS.items():
        if name.partition(".")[0] in FOR_VNNI and not vnni.supported():
            continue
        compiled = kernel.compile()
        assert len(compiled.signatures) == 1, name
        assert kernel.compile() is compiled
    assert len({k.function.__qualname__ for k in KERNELS.values()}) == len(KERNELS), (
        "equal names would share cache files"
    )


def test_other_types_are_refused_rather_than_compiled():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(TypeError):
        KERNELS["rounding.fold_float64"](x, x, 3.0)
    assert len(KERNELS["rounding.fold_float64"].compile().signatures) == 1


def folder_of(tree: Path, cache: Path) -> str:
    """The cache folder that a fresh process with this copy of the sources uses."""
    code = "from prismm.kernels.cpu import jit; print(jit.__file__); print(jit.cache_folder())"
    environment = {"PYTHONPATH": str(tree), "PRISMM_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin", "HOME": str(cache)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    used, folder = run.stdout.split("\n")[:2]
    assert used.startswith(str(tree))
    return folder


def test_the_folder_changes_with_any_kernel_source_and_with_nothing_else(tmp_path):
    tree, cache = tmp_path / "src", tmp_path / "cache"
    shutil.copytree(Path(prismm.__file__).parent, tree / "prismm", ignore=shutil.ignore_patterns("__pycache__"))
    first = folder_of(tree, cache)
    assert Path(first).parent == cache
    helper = tree / "prismm" / "kernels" / "cpu" / "scale.py"
    original = helper.read_text()
    helper.write_text(original + "# changed\n")
    assert folder_of(tree, cache) != first
    helper.write_text(original)
    (tree / "prismm" / "report.py").write_text((tree / "prismm" / "report.py").read_text() + "# not a kernel\n")
    assert folder_of(tree, cache) == first


def test_no_two_functions_share_a_name():
    """Files of kernels bring helpers as symbols that are made of their names."""

    def made(x):
        return x

    def made_again(x):
        return x + 1

    jit.device(made)
    jit.device(made)
    made_again.__qualname__ = made.__qualname__
    with pytest.raises(TypeError, match="two functions named"):
        jit.device(made_again)
    with pytest.raises(TypeError, match="two functions named"):
        jit.Kernel(made_again, "int64(int64)", set())
    assert not [name for name in jit._NAMED if "<locals>" in name[1] and name[0].startswith("prismm.")]


APART = """
import itertools, sys
from numba.core import bytecode
bytecode.FunctionIdentity._unique_ids = itertools.count(5000)  # by which processes name what they compile
from prismm.kernels.cpu import fused
getattr(fused, sys.argv[1]).compile()
"""

TOGETHER = """
import sys
import numpy as np
import prismm
from prismm.kernels.cpu import fused
for name in sys.argv[1:]:
    getattr(fused, name).compile()
rng = np.random.default_rng(1)
a, b = (rng.integers(-99, 100, shape).astype(float) for shape in ((66, 70), (70, 130)))
c, d = (a + 1j * a[::-1], b - 2j * b[:, ::-1])
for x, y in ((a, b), (c, d)):
    assert (prismm.matmul(x, y, scheme=prismm.Residues(15), accuracy="native") == x @ y).all(), sys.argv
"""


@pytest.mark.slow
@pytest.mark.skipif(not vnni.supported(), reason="no AVX-512 VNNI, for which these kernels are")
def test_kernels_that_several_processes_compiled_keep_their_helpers_apart(tmp_path):
    """A real product and a complex one call helpers that one function makes: as symbols of one name, what was loaded
    first would serve both, and results would be wrong.
    """
    environment = {
        "PYTHONPATH": str(Path(prismm.__file__).parents[1]), "PRISMM_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }  # fmt: skip
    both = ("fused_product", "fused_complex_product")
    for name in both:
        subprocess.run([sys.executable, "-c", APART, name], env=environment, check=True, capture_output=True)
    for order in (both, both[::-1]):
        subprocess.run([sys.executable, "-c", TOGETHER, *order], env=environment, check=True, capture_output=True)


def test_the_cache_root_is_asked_for_or_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "asked"))
    assert jit.cache_root() == tmp_path / "asked" and (tmp_path / "asked").is_dir()
    monkeypatch.delenv("PRISMM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jit.cache_root() == tmp_path / "xdg" / "prismm"
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(blocked))
    assert jit.cache_root() is None


def test_fma_rounds_once(monkeypatch, capfd):
    monkeypatch.setattr(jit, "cache_folder", lambda: None)  # a kernel of the tests' own: nothing for the user's cache

    @jit.kernel("float64(float64, float64, float64)")
    def once(x, y, z):
        return jit.fma(x, y, z)

    x = 1.0 + 2.0**-30
    assert once(x, x, -(x * x)) == 2.0**-60
    assert x * x - x * x == 0.0


def test_powers_of_two_and_bit_counts_are_those_of_python():
    """2^e from its bits where it is normal, from libm beyond; zeros below the lowest set bit, be it the sign."""

    @numba.njit
    def power(e):
        return jit.power_of_two(e)

    @numba.njit
    def zeros(x):
        return jit.trailing_zeros(x)

    for e in [*range(-1080, 1030), -5000, 5000]:
        with np.errstate(all="ignore"):
            assert power(e) == np.ldexp(1.0, e), e
    for bit in range(64):
        for high in (0, 1 << 63, 0x5A << min(bit + 1, 57)):
            word = np.array([(1 << bit) | high], np.uint64)
            word[0] &= np.uint64(2**64 - (1 << bit))
            assert zeros(np.int64(word.view(np.int64)[0])) == bit
