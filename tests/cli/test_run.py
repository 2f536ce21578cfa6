"""``prismm run``: scripts as Python would run them, the table in three forms, and refusals before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prismm import Policy, Rule
from tests.cli.pages import parsed

SCRIPT = """
import argparse, sys
from helper import WIDTH

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
arguments = parser.parse_args()
import torch

class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, WIDTH), torch.nn.Linear(WIDTH, 2)
    def forward(self, x):
        return self.second(self.first(x).relu())

if __name__ == "__main__":
    model, x = MLP(), torch.ones(4, 6)
    for _ in range(arguments.epochs):
        model(x).square().sum().backward()
    torch.cdist(torch.ones(30, 4), torch.ones(30, 4))
    print("done", sys.argv[1:])
    sys.exit(3)
"""


@pytest.fixture
def script(folder: Path) -> str:
    (folder / "code").mkdir()
    (folder / "code" / "helper.py").write_text("WIDTH = 8\n")
    (folder / "code" / "train.py").write_text(SCRIPT)
    return "code/train.py"


def test_a_table(script: str, prismm_main: Callable) -> None:
    ran = prismm_main("run", "--accuracy", "correctly-rounded", script, "--epochs", 2)
    assert ran.code == 3, ran
    lines = ran.out.splitlines()
    assert lines[0] == "done ['--epochs', '2']"
    assert lines[1].startswith("10 products in ")
    table = [line.split() for line in lines[5:10]]
    assert {(row[0], row[1], row[2].rstrip(",")) for row in table} == {
        ("train.py:15", "first", "addmm"),
        ("train.py:15", "second", "addmm"),
        ("train.py:15", "first", "mm"),
        ("train.py:15", "second", "mm"),
    }
    assert all("½ ulp" in line and "residues:11" in line for line in lines[5:10])
    assert "not covered: 1 x _euclidean_dist, train.py:21: cdist" in ran.out
    assert lines[-1] == "not seen: NumPy's products, other threads and processes"


def test_json_and_a_page(script: str, folder: Path, prismm_main: Callable) -> None:
    policy = Policy([Rule(module="second", off=True), Rule(accuracy=1e-3), Rule(module="third", off=True)])
    policy.save(folder / "p.json")
    ran = prismm_main("run", "--policy", "p.json", "--html", "page.html", "--json", script, "--epochs", 1)
    assert ran.code == 3 and "done ['--epochs', '1']" in ran.err
    content = json.loads(ran.out)
    assert content["exit"] == 3 and content["arguments"] == ["--epochs", "1"]
    rows = {(row["module"], row["backward"]): row for row in content["gemms"]}
    assert rows["first", False]["accuracy"] == "0.001" and rows["second", True]["scheme"] == "torch"
    assert rows["first", False]["bound"] == pytest.approx(1e-3, rel=1e-4) and rows["second", False]["bound"] is None
    assert content["unused_rules"] == [{"module": "third", "off": True}]
    assert [one["operator"] for one in content["unseen"]] == ["_euclidean_dist"]
    page = parsed(folder / "page.html")
    text = " ".join(page.text)
    assert page.count["svg"] == 1 and "train.py:15" in text and "a rule decided nothing" in text
    assert "exists already" in prismm_main("run", "--html", "page.html", script, "--epochs", 1).refused()


def test_failures_are_the_scripts(folder: Path, prismm_main: Callable) -> None:
    (folder / "fails.py").write_text("import torch\ntorch.ones(2, 2) @ torch.ones(2, 2)\nraise KeyError('lost')\n")
    ran = prismm_main("run", "--off", "fails.py")
    assert ran.code == 1 and "1 products in" in ran.out
    assert ran.err.startswith("Traceback") and "KeyError: 'lost'" in ran.err and "runpy" not in ran.err
    (folder / "leaves.py").write_text("import sys\nsys.exit('enough')\n")
    ran = prismm_main("run", "leaves.py")
    assert ran.code == 1 and ran.err == "enough\n" and ran.out.startswith("no matrix products")


def test_refusals(script: str, folder: Path, prismm_main: Callable) -> None:
    (folder / "bad.json").write_text('{"kind": "prismm.Policy", "version": 9, "rules": []}')
    for arguments, words in (
        (["nothing.py"], "no such script"),
        (["--policy", "bad.json", script], "bad.json: a policy of version 9"),
        (["--policy", "none.json", script], "No such file"),
        (["--policy", "bad.json", "--accuracy", "fast", script], "pass one of them"),
        (["--off", "--scheme", "native", script], "pass one of them"),
        (["--accuracy", "exact", script], "accuracy 'exact'"),
        (["--scheme", "fp8", script], "scheme 'fp8'"),
        (["--scheme", "words:tf32x3", "--reproducible", script], "not reproducible"),
    ):
        assert words in prismm_main("run", *arguments).refused()
