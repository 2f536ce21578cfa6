"""``prismm tune``: a policy for a script's function, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prismm

Run = Callable[..., Any]

SCRIPT = """
import torch

weights = torch.linspace(-1, 1, 24 * 16).reshape(24, 16)

def fn(x):
    return torch.nn.functional.softsign(x @ weights)

def inputs():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(8, 24, generator=generator) for _ in range(4)]

def largest(output, reference):
    return float((output - reference).abs().max())

def noisy(x):
    return x @ weights + torch.rand(())

def idle(x):
    return x + 1
"""


@pytest.fixture
def script(folder: Path) -> Path:
    pytest.importorskip("torch")
    path = folder / "program.py"
    path.write_text(SCRIPT)
    return path


def test_a_policy_goes_to_stdout_or_a_file(prismm_main: Run, script: Path) -> None:
    ran = prismm_main("tune", script, "--tolerance", "1e-5")
    policy = prismm.Policy.from_json(ran.out)
    assert "tolerance 1e-05" in policy.note
    assert "program.py:7" in ran.err
    ran = prismm_main("tune", script, "--tolerance", "1e-5", "-o", "policy.json", "--metric", "largest", "-q")
    assert prismm.Policy.load("policy.json").rules == policy.rules
    assert "faster" in ran.out
    assert "exists already" in prismm_main("tune", script, "--tolerance", "1e-5", "-o", "policy.json").refused()


def test_json_and_levels_and_state(prismm_main: Run, script: Path) -> None:
    arguments = ("tune", script, "--tolerance", "1e-2", "--levels", "native,1e-6", "--state", "state.json", "--json")
    found = prismm_main(*arguments).json()
    assert [site["site"] for site in found["sites"]] == ["mm program.py:7"]
    assert found["policy"]["kind"] == "prismm.Policy"
    trials = json.loads(Path("state.json").read_text())["trials"]
    assert prismm_main(*arguments).json()["trials"] >= len(trials)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--fn", "noisy"], "not deterministic"),
        (["--fn", "idle"], "multiplied no matrices"),
        (["--fn", "absent"], "defines no 'absent'"),
        (["--metric", "absent"], "defines no 'absent'"),
        (["--levels", "worst"], "worst"),
        (["--margin", "0.1"], "margin=0.1"),
        (["-o", "nowhere/policy.json"], "nowhere"),
    ],
)
def test_refusals(prismm_main: Run, script: Path, arguments: list[str], word: str) -> None:
    ran = prismm_main("tune", script, "--tolerance", "1e-3", "-q", *arguments)
    assert word in ran.refused()


def test_a_script_that_is_not_there(prismm_main: Run) -> None:
    pytest.importorskip("torch")
    assert "no such file" in prismm_main("tune", "absent.py", "--tolerance", "1e-3").refused()
