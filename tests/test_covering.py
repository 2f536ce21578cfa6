"""Covering arrays cover what they say, with few rows, the same in every process, others with another seed."""

import itertools
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.covering import covering_rows

PARAMETERS = {"name": [f"family {i}" for i in range(26)], "dtype": list("dszc"), "engine": range(5), "target": range(6)}


def product(parameters):
    return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]


def meetings(rows, group):
    return {tuple(row[name] for name in group) for row in rows}


@pytest.mark.parametrize(
    "together",
    [None, [("name", "dtype")], [("name", "dtype"), ("engine", "target")], ["name", ("dtype", "engine", "target")], []],
    ids=str,
)
def test_all_values_meet_that_are_asked_to(together, seed):
    rows = product(PARAMETERS)
    chosen = [rows[i] for i in covering_rows(rows, together, random.Random(seed))]
    groups = [(x,) if isinstance(x, str) else x for x in together or []]
    if together is None:
        groups = list(itertools.combinations(PARAMETERS, 2))
    for group in [*groups, *((name,) for name in PARAMETERS)]:
        assert meetings(chosen, group) == meetings(rows, group), group
    least = max(len(meetings(rows, group)) for group in [*groups, ("name",)])
    assert least <= len(chosen) <= 1.4 * least, (least, len(chosen))


def test_rows_that_are_left_out_of_a_product_are_not_asked_for(seed):
    """A pair that stands in no row needs none; one that stands in a single row gets that row."""
    rows = [row for row in product(PARAMETERS) if row["dtype"] == "d" or row["engine"] == 0]
    rows.append({"name": "family 0", "dtype": "c", "engine": 4, "target": 3})
    chosen = covering_rows(rows, None, random.Random(seed))
    assert len(rows) - 1 in chosen
    for group in itertools.combinations(PARAMETERS, 2):
        assert meetings([rows[i] for i in chosen], group) == meetings(rows, group)


def test_the_seed_decides_which(seed):
    rows = product(PARAMETERS)
    chosen = covering_rows(rows, None, random.Random(seed))
    assert covering_rows(rows, None, random.Random(seed)) == chosen
    assert covering_rows(rows, None, random.Random(seed + 1)) != chosen
    seen = set()
    for other in range(40):
        seen.update(covering_rows(rows[::40], None, random.Random(other)))
    assert seen == set(range(len(rows[::40])))  # in the course of some runs every row is a fast one


def test_few_rows_and_few_parameters():
    assert covering_rows([], None, random.Random(1)) == []
    assert covering_rows([{}], None, random.Random(1)) == [0]
    assert covering_rows([{"x": 1}], None, random.Random(1)) == [0]
    assert covering_rows(product({"x": range(5)}), None, random.Random(1)) == [0, 1, 2, 3, 4]
    assert covering_rows(product({"x": range(3), "y": "ab"}), None, random.Random(1)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"no parameters \['z'\]: there are \['x'\]"):
        covering_rows([{"x": 1}], [("x", "z")], random.Random(1))


ROOT = Path(__file__).parents[1]

PLUGIN = """
from tests.covering import mark_rest_slow
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_rest_slow(items, 5)
"""

TESTS = """
import pytest

@pytest.mark.covering
@pytest.mark.parametrize("name", ["x", "y", "z", "u", "v", "w", pytest.param("s", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", [(1, 2), [3, 4], {}, [3, 4]], ids=str)
@pytest.mark.parametrize(("left", "right"), [(1, 2), (2, 1), (3, 3)])
def test_pairs(name, shape, left, right):
    pass

@pytest.mark.covering(("shape", "left"), "name")
@pytest.mark.parametrize("name", "abcdef")
@pytest.mark.parametrize("shape", "stuv")
@pytest.mark.parametrize("left", [1, 2, 3])
def test_some(name, shape, left):
    pass

@pytest.mark.covering(of=lambda number: {"half": number // 8, "bit": number % 2})
@pytest.mark.parametrize("number", range(16))
def test_derived(number):
    pass

@pytest.mark.parametrize("name", "abc")
def test_plain(name):
    pass
"""


def collected(folder, hash_seed, *arguments):
    """Names and parameters of what pytest collects, the last line of its output apart."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "covering_plugin",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*command, "--rootdir", str(folder), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONHASHSEED": hash_seed,
             "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line.partition("::")[2] for line in run.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_pytest_takes_the_same_rows_in_every_process(tmp_path):
    (tmp_path / "covering_plugin.py").write_text(PLUGIN)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    covering\n")
    fast = collected(tmp_path, "1", "-m", "not slow")
    assert collected(tmp_path, "2", "-m", "not slow") == fast
    pairs = [x for x in fast if x.startswith("test_pairs")]
    assert 24 <= len(pairs) < 36 and not any("-s]" in x for x in pairs), pairs
    for shape, name in itertools.product(["(1, 2)", "[3, 4]0", "{}", "[3, 4]1"], "xyzuvw"):
        assert any(f"{shape}-{name}]" in x for x in pairs), (shape, name, pairs)
    assert 12 <= sum(x.startswith("test_some") for x in fast) < 16
    derived = [int(x[len("test_derived[") : -1]) for x in fast if x.startswith("test_derived")]
    assert sorted((x // 8, x % 2) for x in derived) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [x for x in fast if x.startswith("test_plain")] == ["test_plain[a]", "test_plain[b]", "test_plain[c]"]
    # What is asked for by its name is never in the way of `-m "not slow"`.
    assert collected(tmp_path, "1", "-m", "not slow", "test_it.py::test_some[1-s-a]") == ["test_some[1-s-a]"]


@pytest.mark.slow
def test_workers_share_the_seed_that_the_header_prints(tmp_path):
    """Without --seed, too: otherwise the workers' covering rows differ, and no failure could be repeated."""
    (tmp_path / "conftest.py").write_text("from conftest_of_all import *\n")
    (tmp_path / "conftest_of_all.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('n', range(4))\n"
        "def test_it(n, pytestconfig):\n    assert not pytestconfig.option.seed, 'seed'\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    gpu\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "xdist", "-p", "hypothesispytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
             "PYTEST_ADDOPTS": ""},
        capture_output=True, text=True,
    )  # fmt: skip
    printed = re.search(r"seed: (\d+)", run.stdout).group(1)
    assert set(re.findall(r"assert not (\d+)", run.stdout)) == {printed}, run.stdout
    assert "4 failed" in run.stdout
