"""``prismm calibrate`` on a machine without a GPU, and its help; on one, the table that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from prismm.cuda.costs.table import read

Run = Callable[..., Any]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(prismm_main: Run, folder: Path) -> None:
    assert "there is no NVIDIA GPU here" in prismm_main("calibrate", "-o", "table.json").refused()
    assert list(folder.glob("*")) == []


def test_help(prismm_main: Run) -> None:
    done = prismm_main("calibrate", "--help")
    assert done.code == 0 and "PRISMM_RATES" in done.out


@pytest.mark.gpu
def test_a_table(prismm_main: Run, folder: Path) -> None:
    done = prismm_main("calibrate", "-o", "table.json", "--json")
    assert done.code == 0, done.err
    table = read(Path("table.json"))
    assert json.loads(done.out)["name"] == table.name == torch.cuda.get_device_name(0)
    assert "exists already" in prismm_main("calibrate", "-o", "table.json").refused()
    assert "counted from 0" in prismm_main("calibrate", "--device", "77", "-o", "other.json", "--json").refused()
