"""Files of compiled kernels: a damaged, foreign or unreadable one is compiled anew, and a disk that takes none stops
nothing. A small kernel stands for all: every kernel is kept by the same few lines.
"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest

from prismm.core import cache_files, jit, kernel_files
from tests.all_kernels import all_kernels

NOBODY = 54321
"""A user without a name, a home or any file."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

PROGRAM = """
import os, resource, signal, sys
import numba
from prismm.core import jit

def toy(x):
    return 3 * x + 1

numba.njit(lambda x: x + 1)(1)  # loads what compiling needs
jit._digest()
exec(sys.argv[1])
kernel = jit.Kernel(toy, "int64(int64)", set())
compiled = kernel.compile()
print(kernel(7), sum(compiled.stats.cache_hits.values()))
print(jit.cache_folder())
"""
"""The arguments' own lines run after the imports: another user may not read what is imported."""

BECOME = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
COMPILED, LOADED = "22 0", "22 1"
ONCE = "prismm: compiling kernels for this CPU (once; about 20 s)\n"


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user can enter, with a temporary folder in it."""
    path = Path(tempfile.mkdtemp(prefix="prismm-test-"))
    path.chmod(0o755)
    (path / "temporary").mkdir()
    (path / "temporary").chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has the toy kernel."""
    path = tmp_path_factory.mktemp("warm")
    assert run(path, TMPDIR=str(path))[0] == COMPILED
    return path / "cache"


@pytest.fixture
def warm(base: Path, compiled_once: Path) -> Path:
    """`base` with a cache that has the toy kernel."""
    shutil.copytree(compiled_once, base / "cache")
    return base


def start(base: Path, first: str = "", wrap: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    """A process that runs the toy kernel, with the cache of `base`."""
    variables = {**os.environ, "PRISMM_CACHE_DIR": str(base / "cache"), "TMPDIR": str(base / "temporary")}
    return subprocess.Popen(
        [*wrap, sys.executable, "-c", PROGRAM, first],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables | environment,
        cwd=base,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str, str]:
    """(the kernel's result and how often it was loaded, the folder, stderr)."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result, folder = out.splitlines()
    return result, folder, err


def run(*args: object, **keywords: str) -> tuple[str, str, str]:
    return finish(start(*args, **keywords))  # type: ignore[arg-type]


def own(base: Path, user: int) -> Path:
    return base / "temporary" / f"prismm-{user}"


# In this process: a kernel that is made anew each time.


def cube(x):
    return x * x * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that kernels of this process are kept in meanwhile."""
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "cache"))
    jit.cache_folder.cache_clear()
    cache_files.tell.cache_clear()
    yield jit.cache_folder()
    jit.cache_folder.cache_clear()
    cache_files.tell.cache_clear()


def loaded() -> bool:
    """Whether the kernel came from the disk; its result is right either way."""
    kernel = jit.Kernel(cube, "int64(int64)", set())
    assert kernel(-7) == -343
    return sum(kernel._compiled.stats.cache_hits.values()) == 1


def only_file(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def from_disk(path: Path) -> object:
    """What the dispatcher gets for the kernel, None for compiling."""
    from numba.core.registry import cpu_target

    file = kernel_files.KernelFile(path.parent, f"{cube.__module__}.{cube.__qualname__}", "int64(int64)")
    assert file._path(path.parent, cpu_target.target_context.codegen()) == path
    return file.load_overload(None, cpu_target.target_context)


def test_a_kernel_has_one_file_and_is_loaded_from_it(folder, capfd):
    assert not loaded() and capfd.readouterr() == ("", ONCE)
    path = only_file(folder)
    assert path.name.startswith(f"{cube.__module__}.cube-") and path.suffix == ".kernel"
    cache_files.tell.cache_clear()
    assert loaded() and capfd.readouterr() == ("", "")
    assert from_disk(path) is not None


def test_kernels_of_other_settings_have_files_of_their_own(folder, monkeypatch):
    """Else a run with NUMBA_OPT=0, say, would leave slow kernels to all later ones."""
    settings = {"OPT": 0, "LOOP_VECTORIZE": 0, "SLP_VECTORIZE": 1, "BOUNDSCHECK": 1, "DEBUGINFO_DEFAULT": 1}
    assert not loaded()
    for count, (name, value) in enumerate(settings.items(), 2):
        monkeypatch.setattr(numba.config, name, value)
        assert not loaded() and loaded() and len(list(folder.iterdir())) == count, name
    monkeypatch.undo()


def test_kernels_are_compiled_where_the_users_functions_are_not(folder, monkeypatch):
    """NUMBA_DISABLE_JIT is for their debuggers: our helpers are no Python functions."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    helper = jit.device(lambda x: x + 1)

    def total(x):
        return helper(np.sum(jit.contiguous_part(x, 1, 2)))

    for hits in (0, 1):
        kernel = jit.Kernel(total, "float64(float64[::1])", set())
        assert kernel(np.arange(4.0)) == 4.0
        assert sum(kernel._compiled.stats.cache_hits.values()) == hits
    assert numba.config.DISABLE_JIT == 1 and numba.njit(cube) is cube


def test_every_kind_of_damage_is_found(folder, rng):
    """Single bits, lengths, what is appended, blocks of zeros: nothing of it is unpickled."""
    assert not loaded()
    path = only_file(folder)
    whole = path.read_bytes()
    places = {*range(40), *map(int, rng.integers(40, len(whole), 300)), len(whole) - 1}
    with open(path, "r+b") as stream:
        for i, bit in zip(places, rng.integers(0, 8, len(places)), strict=True):
            stream.seek(i)
            stream.write(bytes([whole[i] ^ (1 << int(bit))]))
            stream.flush()
            assert from_disk(path) is None, (i, bit)
            stream.seek(i)
            stream.write(whole[i : i + 1])
        stream.flush()
        assert from_disk(path) is not None
        for length in [*range(40), *rng.integers(40, len(whole), 40), len(whole) - 1]:
            path.write_bytes(whole[:length])
            assert from_disk(path) is None, length
        for more in (b"\0", whole):
            path.write_bytes(whole + more)
            assert from_disk(path) is None
        for block in (512, 4096):
            start = int(rng.integers(0, len(whole) - block))
            path.write_bytes(whole[:start] + bytes(block) + whole[start + block :])
            assert from_disk(path) is None, (block, start)
        path.write_bytes(bytes(len(whole)))
        assert from_disk(path) is None
    path.write_bytes(whole)
    assert from_disk(path) is not None


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "garbage", "gone", "closed", "open", "link", "fifo"])
def test_what_is_damaged_is_compiled_anew_and_replaced(folder, tmp_path, damage, rng):
    assert not loaded()
    path = only_file(folder)
    whole = path.read_bytes()
    if damage in ("empty", "cut", "bit", "garbage"):
        i = int(rng.integers(32, len(whole)))
        bit = whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :]
        path.write_bytes({"empty": b"", "cut": whole[:i], "bit": bit, "garbage": rng.bytes(5000)}[damage])
    elif damage in ("closed", "open"):
        path.chmod(0 if damage == "closed" else 0o666)
    else:
        path.unlink()
        if damage == "link":
            (tmp_path / "elsewhere").write_bytes(whole)
            path.symlink_to(tmp_path / "elsewhere")
        elif damage == "fifo":
            os.mkfifo(path)
    assert loaded() == (damage == "closed" and os.geteuid() == 0)  # root reads it all the same
    assert only_file(folder) == path and stat.S_ISREG(path.lstat().st_mode)
    assert loaded()


def test_a_file_under_another_ones_name_is_not_loaded(folder):
    """Neither another kernel's nor that of other sources, whole as they are."""
    assert not loaded()
    path = only_file(folder)
    square = jit.Kernel(cubed_again, "int64(int64)", set())
    assert square(5) == 25
    (other,) = set(folder.iterdir()) - {path}
    shutil.copy(other, path)
    assert not loaded()
    assert loaded()
    moved = folder.with_name("kernels-of-other-sources")
    shutil.copytree(folder, moved)
    assert from_disk(moved / path.name) is None


def cubed_again(x):
    return x * x


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(5), pickle.dumps((1, 2, 3)), b"\x80\x05."])
def test_what_cannot_be_loaded_is_compiled_anew(folder, content):
    """Sealed as it should be, and yet of no use: of another Numba, say."""
    assert not loaded()
    path = only_file(folder)
    path.write_bytes(kernel_files._seal(path, content) + content)
    assert from_disk(path) is None
    assert not loaded()
    assert loaded()


def test_variables_of_numba_move_nothing(folder, monkeypatch):
    """`NUMBA_CACHE_LOCATOR_CLASSES` and `NUMBA_CACHE_DIR` would have pickles loaded from elsewhere."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "InTreeCacheLocator", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder.parent / "numba"))
    assert not loaded() and only_file(folder) and loaded()
    assert [x.name for x in folder.parent.iterdir()] == [folder.name]


# In processes of their own.


@pytest.mark.slow
def test_two_processes_that_fill_an_empty_cache_at_once(base):
    both = [finish(process) for process in [start(base), start(base)]]
    for result, _, err in both:
        assert (result, err) in ((COMPILED, ONCE), (LOADED, ""))
    folder = both[0][1]
    assert only_file(Path(folder)).suffix == ".kernel"
    assert run(base) == (LOADED, folder, "")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 1000])
def test_a_limit_of_file_sizes(base, limit):
    """Also where SIGXFSZ would end the process, as Python's start does not have it."""
    lines = f"signal.signal(signal.SIGXFSZ, signal.SIG_DFL); resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, -1))"
    for _ in range(2):
        result, folder, err = run(base, lines)
        assert result == COMPILED and err.startswith(ONCE) and err.count("\n") == 2
        assert f"prismm: warning: compiled kernels are not kept in {folder}: File too large" in err
        assert list(Path(folder).iterdir()) == []


def namespace(script: str) -> tuple[str, ...]:
    """A command's first words, for what is mounted to be seen by it alone; skips where that is not allowed."""
    words = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh")
    try:
        tried = subprocess.run([*words[:6], "mount -t tmpfs none /mnt", "sh"], capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no unshare")
    if tried.returncode != 0:
        pytest.skip("mounting is not allowed here")
    return words


@as_root
@pytest.mark.slow
def test_a_full_disk(base):
    """Folders fit, no kernel does."""
    (base / "cache").mkdir()
    wrap = namespace(f"mount -t tmpfs -o size=4k,mode=755 none {base}/cache")
    result, _, err = run(base, "", wrap)
    assert result == COMPILED and err.startswith(ONCE) and err.count("\n") == 2
    assert f"not kept in {base}/cache/kernels-" in err and "No space left on device" in err


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("full", [True, False])
def test_a_file_system_that_is_read_only(warm, full):
    """What is there is read; where there is nothing, a temporary folder takes it."""
    base = warm
    if not full:
        shutil.rmtree(base / "cache")
        (base / "cache").mkdir()
    wrap = namespace(f"mount --bind {base}/cache {base}/cache; mount -o remount,bind,ro {base}/cache")
    result, folder, err = run(base, "", wrap)
    if full:
        assert (result, err) == (LOADED, "") and folder.startswith(f"{base}/cache/")
    else:
        assert result == COMPILED and folder.startswith(str(own(base, 0)))
        assert "Read-only file system" in err and err.endswith(ONCE) and err.count("\n") == 2


@as_root
@pytest.mark.slow
def test_a_warm_cache_of_root_serves_other_users_and_is_not_written_by_them(warm):
    base = warm
    result, folder, err = run(base, BECOME)
    assert (result, err) == (LOADED, "") and Path(folder).parent == base / "cache"
    path = only_file(Path(folder))
    path.write_bytes(path.read_bytes()[:-1])
    cut = path.read_bytes()
    result, _, err = run(base, BECOME)
    assert result == COMPILED and err.startswith(ONCE) and err.count("\n") == 2
    assert f"not kept in {folder}: Permission denied" in err
    assert only_file(Path(folder)) == path and path.read_bytes() == cut


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("home", [None, "/", "/nonexistent", "."])
def test_a_user_without_a_name_and_a_home(base, home):
    """As in a container that is started with a number for the user. Nothing is made in the working directory, which
    such a user may own; the second run finds what the first one left.
    """
    work = base / "work"
    work.mkdir()
    os.chown(work, NOBODY, NOBODY)
    place = "os.environ.pop('HOME', None)" if home is None else f"os.environ.update(HOME={home!r})"
    lines = f"{BECOME}; os.chdir({str(work)!r}); {place}"
    for expected in (COMPILED, LOADED) if home is None else (COMPILED,):
        result, folder, err = run(base, lines, PRISMM_CACHE_DIR="", XDG_CACHE_HOME="")
        assert result == expected and Path(folder).parent == own(base, NOBODY)
        assert own(base, NOBODY).stat().st_mode & 0o777 == 0o700
        warning = f"prismm: warning: cache files are kept in {own(base, NOBODY)}: "
        assert err.startswith(warning) and err.count("\n") == (2 if expected == COMPILED else 1)
    assert list(work.iterdir()) == []


IN_A_NAMESPACE = """
import ctypes
libc = ctypes.CDLL(None)
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which a change of user takes away: /proc/self is root's without it
if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
    sys.exit(77)
with open("/proc/self/uid_map", "w") as stream:
    stream.write("1000 54321 1")
assert os.geteuid() == 1000 != os.stat("/").st_uid != 0
"""


@as_root
@pytest.mark.slow
def test_a_user_namespace_without_root(base):
    """Everything of root's appears as of nobody's there, / and /tmp as well."""
    lines = f"{BECOME}\n{IN_A_NAMESPACE}"
    cache = base / "temporary" / "mine"
    for expected in ((COMPILED, ONCE), (LOADED, "")):
        process = start(base, lines, PRISMM_CACHE_DIR=str(cache))
        out, err = process.communicate(timeout=120)
        if process.returncode == 77:
            pytest.skip("user namespaces are not allowed here")
        result, folder = out.splitlines()
        assert (result, err) == expected and Path(folder).parent == cache


class Planted:
    """A pickle that leaves a trace where it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (open, (str(self.trace), "w"))


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("where", ["open cache", "sticky cache", "open folder", "file", "open file"])
def test_what_another_user_planted_is_not_loaded(warm, where):
    """A pickle, sealed as it should be, at the right place in a cache that was open to others."""
    base = warm
    (folder,) = (base / "cache").iterdir()
    path, trace = only_file(folder), base / "trace"
    content = pickle.dumps(Planted(trace))
    path.write_bytes(kernel_files._seal(path, content) + content)
    if where in ("open cache", "sticky cache"):
        os.chown(folder, NOBODY, NOBODY)
        (base / "cache").chmod(0o1777 if where == "sticky cache" else 0o777)
    if where == "open folder":
        folder.chmod(0o777)
    if where == "open file":
        path.chmod(0o666)
    else:
        os.chown(path, NOBODY, NOBODY)
    result, used, err = run(base)
    assert result == COMPILED and err.count("\n") == 2 and err.startswith("prismm: warning: ") and err.endswith(ONCE)
    assert not trace.exists()
    if "file" in where:
        assert Path(used) == folder and "a compiled kernel is not loaded" in err
        assert run(base) == (LOADED, used, "")
    else:
        assert Path(used).parent == own(base, 0) and "set PRISMM_CACHE_DIR" in err
        result, again, err = run(base)
        assert (result, again) == (LOADED, used) and err.count("\n") == 1
    assert not trace.exists()
    # As a check of this test: the pickle does run where it is trusted.
    pickle.loads(content).close()
    assert trace.exists()


def test_results_are_those_of_python(folder, rng):
    for x in rng.integers(-(10**6), 10**6, 20):
        kernel = jit.Kernel(cube, "int64(int64)", set())
        assert kernel(np.int64(x)) == int(x) ** 3


LOAD_ALL = """
import sys
from tests.all_kernels import all_kernels
for name, kernel in all_kernels():
    assert sum(kernel.compile().stats.cache_hits.values()) == 1, name
print(*(name for name in ("numba.np.arraymath", "scipy.linalg") if name in sys.modules))
"""


@pytest.mark.slow
def test_a_kernel_from_disk_needs_nothing_of_the_compiler():
    """Every kernel is loaded by a process in which Numba has not imported what its compiler knows of NumPy."""
    for _, kernel in all_kernels():
        kernel.compile()
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LOAD_ALL], cwd=root, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
