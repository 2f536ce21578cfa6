"""The kernel cache: its folder follows the sources, and each kernel has one signature."""

import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.sigutils import normalize_signature

import prismm
from prismm.core import jit
from tests.all_kernels import all_kernels

KERNELS = dict(all_kernels(here=False))


def half(x):
    return 0.5 * x


def test_kernels_have_one_signature_each(monkeypatch):
    """A small kernel stands for all, which are compiled in the same way; their names and signatures are looked at."""
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    kernel = jit.Kernel(half, "float64(float64)", set())
    compiled = kernel.compile()
    assert compiled.signatures == [(numba.float64,)] and kernel.compile() is compiled
    assert kernel(3.0) == kernel(np.float32(3.0)) == 1.5  # what converts without loss is converted
    with pytest.raises(TypeError):
        kernel(np.ones((2, 2), np.float32))
    assert compiled.signatures == [(numba.float64,)]
    assert len(KERNELS) > 15
    for kernel in KERNELS.values():
        arguments, result = normalize_signature(kernel.signature)
        assert len(arguments) == kernel.function.__code__.co_argcount and result is not None, kernel.signature
    assert len({k.function.__qualname__ for k in KERNELS.values()}) == len(KERNELS), (
        "equal names would share cache files"
    )


def folder_of(tree: Path, cache: Path) -> str:
    """The cache folder that a fresh process with this copy of the sources uses."""
    code = "from prismm.core import jit; print(jit.__file__); print(jit.cache_folder())"
    environment = {"PYTHONPATH": str(tree), "PRISMM_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin", "HOME": str(cache)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    used, folder = run.stdout.split("\n")[:2]
    assert used.startswith(str(tree))
    return folder


@pytest.mark.slow
def test_the_folder_changes_with_any_kernel_source_and_with_nothing_else(tmp_path):
    tree, cache = tmp_path / "src", tmp_path / "cache"
    shutil.copytree(Path(prismm.__file__).parent, tree / "prismm", ignore=shutil.ignore_patterns("__pycache__"))
    first = folder_of(tree, cache)
    assert Path(first).parent == cache
    helper = tree / "prismm" / "cpu" / "kernels" / "scale.py"
    original = helper.read_text()
    helper.write_text(original + "# changed\n")
    assert folder_of(tree, cache) != first
    helper.write_text(original)
    (tree / "prismm" / "core" / "report.py").write_text(
        (tree / "prismm" / "core" / "report.py").read_text() + "# not a kernel\n"
    )
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


PAIR = """
import itertools, sys
from numba.core import bytecode
from prismm.core import jit

bytecode.FunctionIdentity._unique_ids = itertools.count(5000)  # by which processes name what they compile

def made(factor):
    lines = [f"    x ^= (x >> (x & 7)) + {i}" for i in range(40)]  # too much to be inlined
    exec("\\n".join(["def helper(x):", *lines, f"    return {factor} * x"]), scope := {})
    helper = scope["helper"]
    helper.__qualname__, helper.__module__ = NAME, __name__
    return helper, (jit.device if OWN else jit.numba.njit)(helper)

(python3, triple), (python10, tenfold) = made(3), made(10)

@jit.kernel("int64(int64)")
def by_three(x):
    return triple(x) + 1

@jit.kernel("int64(int64)")
def by_ten(x):
    return tenfold(x) + 1

kernels = {"by_three": (by_three, python3), "by_ten": (by_ten, python10)}
for name in sys.argv[1:]:
    kernels[name][0].compile()
for name in sys.argv[1:]:
    kernel, python = kernels[name]
    print("right" if kernel(7777) == python(7777) + 1 else "wrong")
"""
"""Two kernels whose helpers one function makes."""


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_kernels_that_several_processes_compiled_keep_their_helpers_apart(tmp_path, own):
    """As symbols of one name, the helper that is loaded first would serve both kernels. With `own`, as prismm's are
    made; without, as a check that this test would see it.
    """
    environment = {
        "PYTHONPATH": str(Path(prismm.__file__).parents[1]), "PRISMM_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }  # fmt: skip
    program = PAIR.replace("NAME", 'f"helper{factor}"' if own else '"helper"').replace("OWN", repr(own))

    def run(*names: str) -> list[str]:
        ran = subprocess.run(
            [sys.executable, "-c", program, *names], env=environment, check=True, capture_output=True, text=True
        )
        assert ran.stderr.count("\n") == (len(names) == 1), ran.stderr  # compiled alone, loaded together
        return ran.stdout.split()

    for name in ("by_three", "by_ten"):
        assert run(name) == ["right"]
    for order in (("by_three", "by_ten"), ("by_ten", "by_three")):
        assert run(*order) == ["right", "right" if own else "wrong"], order


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
