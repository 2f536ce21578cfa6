"""Test prismm's wheel at both ends of what it requires, under several interpreters.

    python tools/bounds.py PYTHON... [--extras dask,plot] [--folder build/bounds]

For each interpreter two environments are made: one holds the lowest version of each package that pyproject.toml names
and that has a wheel there, the other the newest. Each holds the wheel, not the sources, and no torch. In each run the
fast tests that need nothing else, `prismm multiply`, `check`, `explain` and `env`, and products of hostile operands,
which must have the same bits in all environments; a hash of them is printed, for other machines. Takes 4 minutes each.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_TOOLS = "pytest", "pytest-timeout", "pytest-xdist", "hypothesis"
CORE_TESTS = (
    "tests/core", "tests/files", "tests/products", "tests/checking", "tests/cli", "tests/laws", "tests/test_formats.py",
    "tests/test_import.py", "tests/test_metrics.py",
)  # fmt: skip
EXTRA_TESTS = {
    "dask": ("tests/dask",),
    "exact": ("tests/testing",),
    "jax": ("tests/jax",),
    "plot": ("tests/reproduce", "tests/test_gallery.py"),
}
"""Tests of what an extra brings."""

COMMANDS = (
    ("multiply", "a.npy", "b.npy", "-o", "c.npy", "--accuracy", "correctly-rounded"),
    ("multiply", "a.npy", "b.npy", "-o", "d.npy", "--reproducible", "--memory", "100KiB"),
    ("check", "a.npy", "b.npy", "c.npy"),
    ("explain", "a.npy", "b.npy"),
    ("env",),
)
OPERANDS = """
import numpy as np
rng = np.random.default_rng(0)
np.save("a.npy", rng.standard_normal((200, 90)))
np.save("b.npy", rng.standard_normal((90, 160)))
"""
DIGESTS = """
import numpy as np
from prismm.files import sha256_of_bits
print(*(sha256_of_bits(np.load(name)) for name in ("c.npy", "d.npy")))
"""


class Failure(Exception):
    """A command that did not end well, with its last lines."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of one interpreter at one end of the bounds."""

    python: str
    end: str
    folder: Path

    @property
    def executable(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def run(self, *arguments: str, cwd: Path = ROOT) -> str:
        """What its interpreter prints; Failure where it ends with an error. Kernels are compiled into its folder."""
        settings = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PRISMM_"))}
        settings["PRISMM_CACHE_DIR"] = str(self.folder / "kernels")
        done = subprocess.run(
            [self.executable, *arguments], cwd=cwd, env=settings, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr).splitlines()[-40:]
            raise Failure("\n".join([" ".join(arguments), *said]))
        return done.stdout

    def install(self, wheel: Path, requirements: list[str], extras: list[str]) -> str:
        """Fill it, and return the versions of what prismm requires."""
        if not (self.folder / "bin").exists():
            subprocess.run([self.python, "-m", "venv", str(self.folder)], check=True)
        names = [_name(one) for one in requirements]
        chosen = [self._lowest(one) for one in requirements] if self.end == "lowest" else names
        asked = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        self.run("-m", "pip", "install", "-q", "--upgrade", asked, *chosen, *TEST_TOOLS)
        program = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
        versions = self.run("-c", program, *names).split()
        return ", ".join(f"{name} {found}" for name, found in zip(names, versions, strict=True))

    def _lowest(self, requirement: str) -> str:
        """The lowest version within a bound that has a wheel for this interpreter, as pip is told of it."""
        name, bound = _name(requirement), requirement.partition(">=")[2]
        said = self.run("-m", "pip", "index", "versions", name)
        line = next(line for line in said.splitlines() if line.startswith("Available versions:"))
        versions = [x for x in re.findall(r"[^ ,]+", line.partition(":")[2]) if re.fullmatch(r"[\d.]+", x)]
        for version in sorted((x for x in versions if _key(x) >= _key(bound)), key=_key):
            try:
                self.run(
                    "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--only-binary", name, f"{name}=={version}"
                )
            except Failure:
                continue
            return f"{name}=={version}"
        raise Failure(f"{requirement}: no version has a wheel")


def _name(requirement: str) -> str:
    """A package's name, without its extras and bounds."""
    return re.split(r"[\[>=<;! ]", requirement)[0]


def _key(version: str) -> tuple[int, ...]:
    """A release as numbers, without the zeros at its end."""
    numbers = [int(x) for x in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def requirements_of(extras: list[str]) -> list[str]:
    """What pyproject.toml requires, and what some extras add; without comments on platforms."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    return [one for one in asked if ">=" in one]


def judge(environment: Environment, tests: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Products by name, as hashes, and pytest's last line; Failure where something fails."""
    work = environment.folder / "work"
    work.mkdir(exist_ok=True)
    for old in work.iterdir():
        old.unlink()
    environment.run("-c", OPERANDS, cwd=work)
    for command in COMMANDS:
        environment.run("-m", "prismm", *command, cwd=work)
    digests = environment.run("-c", DIGESTS, cwd=work).split()
    products: dict[str, str] = json.loads(environment.run("-m", "tests.laws.array_products", "--hostile"))
    said = environment.run("-m", "pytest", "-q", "--core", "-m", "not slow", "-p", "no:cacheprovider", *tests)
    return products | dict(zip(("c.npy", "d.npy"), digests, strict=True)), said.splitlines()[-1]


def main() -> None:
    """Make the environments, judge each, and compare their products."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("python", nargs="+", help="interpreters, as python3.11")
    parser.add_argument("--extras", default="", help=f"extras, with their tests: {', '.join(EXTRA_TESTS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bounds", help="where the environments lie")
    options = parser.parse_args()
    extras = [name for name in options.extras.split(",") if name]
    tests = CORE_TESTS + tuple(path for name in extras for path in EXTRA_TESTS.get(name, ()))
    requirements = requirements_of(extras)
    folder: Path = options.folder.resolve()

    failed, all_products = False, {}
    wheel = None
    for python in options.python:
        for end in ("lowest", "newest"):
            tag = subprocess.run(
                [python, "-c", "import platform; print(platform.python_version())"],
                capture_output=True, text=True, check=True,
            ).stdout.strip()  # fmt: skip
            environment = Environment(python, end, folder / f"{tag}-{end}")
            start = time.monotonic()
            try:
                wheel = wheel or _build(python, folder / "dist")
                versions = environment.install(wheel, requirements, extras)
                print(f"{tag} {end}: {versions}", flush=True)
                products, line = judge(environment, tests)
                all_products[tag, end] = products
                digest = hashlib.sha256(json.dumps(products, sort_keys=True).encode()).hexdigest()
                print(f"  {line.strip('= ')}; {time.monotonic() - start:.0f} s; bits {digest[:16]}", flush=True)
            except Failure as failure:
                failed = True
                print(f"{tag} {end}: FAILED: {failure}", flush=True)
    first = next(iter(all_products.values()), {})
    for (tag, end), products in all_products.items():
        if other := [name for name in first | products if first.get(name) != products.get(name)]:
            failed = True
            print(f"{tag} {end}: FAILED: other bits than the first: {', '.join(other)}")
    if not failed:
        print(f"the same bits of {len(first)} products and operands in {len(all_products)} environments")
    sys.exit(failed)


def _build(python: str, folder: Path) -> Path:
    """The wheel of these sources, built from a copy: what earlier builds left here would come with it."""
    for old in folder.glob("*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as copy:
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / "src", Path(copy, "src"), ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        subprocess.run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), copy], check=True)
    return next(folder.glob("*.whl"))


if __name__ == "__main__":
    main()
