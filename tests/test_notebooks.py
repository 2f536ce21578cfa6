"""The notebooks run, and print what is committed in them: on this machine, with its engines and threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def text_of(cell: object) -> str:
    """What a cell printed and returned, as text; what it said on stderr does not count."""
    found = []
    for output in cell.get("outputs", []):  # type: ignore[attr-defined]
        assert output["output_type"] != "error", output["traceback"]
        if output["output_type"] == "stream" and output["name"] == "stdout":
            found.append(output["text"])
        elif "data" in output:
            found.append(output["data"]["text/plain"])
    return "".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_prints_what_is_committed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    committed = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    for before, after in zip(committed.cells, notebook.cells, strict=True):
        assert text_of(after) == text_of(before), after["source"]
    assert sum(text_of(cell) != "" for cell in committed.cells if cell["cell_type"] == "code") >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stays_small(path: Path) -> None:
    assert path.stat().st_size < 60_000


def test_there_are_four() -> None:
    assert len(NOTEBOOKS) == 4
