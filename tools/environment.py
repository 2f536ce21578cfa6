"""Set up .venv for ``make``, run by the interpreter that it shall be made from.

    python3 tools/environment.py {demo,dev} [--any-python]

The demo needs no PyTorch. For development one that this interpreter can already import is used in
place; otherwise the one named in constraints.txt is installed. Does nothing when .venv already
holds what pyproject.toml asks for.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import site
import subprocess
import sys
import sysconfig

# An older Python must get as far as the message in `create`: nothing newer than Python 3.6 is used
# before it.
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
TRITON = "triton==3.6.0"

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
RECORD = os.path.join(VENV, "prismm-environment.json")
CONSTRAINTS = os.path.join(ROOT, "constraints.txt")
INPUTS = (os.path.join(ROOT, "pyproject.toml"), CONSTRAINTS, os.path.abspath(__file__))


def main():
    """Make or bring up to date the environment for ``demo`` or ``dev``."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("extra", choices=("demo", "dev"))
    parser.add_argument(
        "--any-python",
        action="store_true",
        help="keep a .venv that was made from another interpreter than this one",
    )
    options = parser.parse_args()
    extra = options.extra
    record = read_record()
    if not usable(record, options.any_python):
        record = create()
    wanted = fingerprint()
    if wanted in (record["installed"].get(extra), record["installed"].get("dev")):
        return
    install(extra, record["reused_torch"])
    record["installed"][extra] = wanted
    write_record(record)
    say("Ready.\n")


def usable(record, any_python):
    """Whether .venv is whole, of this checkout, and of this interpreter if one was asked for."""
    whole = record is not None and "installed" in record and os.path.exists(VENV_PYTHON)
    if not whole or record["root"] != ROOT:
        return False
    return any_python or running_inside() or record["made_from"] == interpreter()


def create():
    """Make an empty .venv that sees this interpreter's torch, if it has one; return its record."""
    if sys.version_info < OLDEST_PYTHON:
        stop(
            "prismm needs Python {}.{} or newer; {} is {}.".format(
                *OLDEST_PYTHON, sys.executable, platform.python_version()
            ),
            "Pass another one: make ... PYTHON=python3.12",
        )
    if running_inside():
        stop(".venv must be made anew, but its own Python is running this: deactivate it first.")
    if os.path.isdir(VENV):
        if read_record() is None:
            stop(".venv exists, but make did not make it: move or remove it first.")
        shutil.rmtree(VENV)

    torch = reusable_torch()
    in_venv = sys.prefix != sys.base_prefix
    os.mkdir(VENV)
    write_record({"root": ROOT})  # an interrupted start is known as ours
    try:
        import venv

        builder = venv.EnvBuilder(with_pip=True, symlinks=True, system_site_packages=torch is not None and not in_venv)
        builder.create(VENV)
    except (subprocess.CalledProcessError, ImportError):
        shutil.rmtree(VENV)
        stop(
            f"{sys.executable} cannot make a virtual environment with pip in it.",
            "On Debian and Ubuntu: apt install python3-venv.",
            "Or pass another one: make ... PYTHON=python3.12",
        )
    if torch is not None and in_venv:
        # A venv made from a venv sees neither its packages nor, here, those of its base: name them.
        # The file sorts last, so that everything installed in .venv itself comes first.
        packages = sysconfig.get_path("purelib", "venv", {"base": VENV})
        with open(os.path.join(packages, "zz_packages_of_PYTHON.pth"), "w") as file:
            for folder in site.getsitepackages():
                file.write(f"import site; site.addsitedir({folder!r})\n")
    record = {"root": ROOT, "made_from": interpreter(), "reused_torch": torch, "installed": {}}
    write_record(record)
    return record


def reusable_torch():
    """The version of the torch that this interpreter has, or None where it is none or too old."""
    version = torch_version(sys.executable)
    if version is None:
        return None
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        say(f"  torch      {version} of {sys.executable} is too old, 2.11 is needed: not used")
        return None
    return version


def install(extra, reused_torch):
    """Install prismm in editable mode with one extra, saying beforehand what is downloaded."""
    say(f"Setting up .venv ({extra}), from Python {platform.python_version()}; to download:")
    constraints = CONSTRAINTS
    present = torch_version(VENV_PYTHON)
    if reused_torch is not None:
        if present != reused_torch:
            stop(f"torch {reused_torch} is not what .venv finds ({present}): make clean, try again.")
        # Nor may pip replace the torch that is there by another.
        constraints = os.path.join(VENV, "constraints.txt")
        with open(constraints, "w") as file:
            file.write(f"torch=={reused_torch}\n")
        say(f"  torch      {reused_torch}, the one that this Python has: nothing")
    elif present is None and extra == "dev":
        announce_torch()
    size = "400 MB" if extra == "dev" else "190 MB"
    say(f"  the rest   NumPy, Numba, SciPy, scikit-learn, matplotlib, ...: at most {size}")

    pip("-c", constraints, "-e", f"{ROOT}[{extra}]")
    if extra != "dev":
        return
    torch = torch_version(VENV_PYTHON)
    if torch is None:
        stop("torch does not load; this shows why: .venv/bin/python -c 'import torch'")
    on_linux = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if on_linux and torch.endswith("+cpu"):
        # A CUDA build of torch brings Triton, a CPU build does not: the GPU kernels compile, and
        # run in Triton's interpreter, without a GPU.
        say("  Triton     3.6.0, which a CPU build of torch does not bring: about 190 MB")
        pip(TRITON)


def announce_torch():
    """Say which build of torch is about to be downloaded and how large it is."""
    with open(CONSTRAINTS) as file:
        pinned = next(line for line in file if line.startswith("torch==")).strip()[len("torch==") :]
    query = [VENV_PYTHON, "-m", "pip", "index", "versions", "torch"]
    offered = subprocess.run(query, capture_output=True, text=True).stdout
    if f"{pinned}+cpu" in offered or sys.platform == "darwin":
        say(
            f"  torch      {pinned}, the CPU build: about 200 MB",
            "             (to use one that you have: make ... PYTHON=path/to/its/python)",
        )
    else:
        say(
            f"  torch      {pinned}; on Linux this is the CUDA build, SEVERAL GB in all.",
            "             No GPU? Stop here (Ctrl-C), install PyTorch's CPU build (200 MB) first,",
            "             and pass the Python that has it: make ... PYTHON=path/to/python",
        )


def pip(*arguments):
    """Run ``pip install`` in .venv, showing its progress on a terminal and elsewhere its errors."""
    command = [VENV_PYTHON, "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    if not sys.stdout.isatty():
        command.append("--quiet")
    if subprocess.run(command).returncode:
        stop("pip could not install what prismm needs: its reason stands above.")


def torch_version(python):
    """The version of the torch that an interpreter can import, or None."""
    probe = "import torch; print(torch.__version__)"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True)
    return done.stdout.split()[-1] if done.returncode == 0 else None


def interpreter():
    """What tells one interpreter from another, by whatever name it was called."""
    return [os.path.realpath(sys.prefix), platform.python_version()]


def running_inside():
    """Whether .venv itself is the interpreter's home, as when it has been activated."""
    return os.path.realpath(sys.prefix) == os.path.realpath(VENV)


def fingerprint():
    """A hash of all that decides what is installed."""
    digest = hashlib.sha256()
    for path in INPUTS:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def read_record():
    """What an earlier run wrote into .venv, or None."""
    try:
        with open(RECORD) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def write_record(record):
    """Leave in .venv what a later run needs to know."""
    with open(RECORD, "w") as file:
        json.dump(record, file, indent=1)


def say(*lines):
    """Print at once, so that it stands before what pip prints."""
    print("\n".join(lines), flush=True)


def stop(*lines):
    """Give up with a message and no traceback."""
    sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
