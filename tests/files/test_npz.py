"""NumPy's .npz: one matrix, every bit of it; whatever else is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from prismm import files
from prismm.errors import FileError
from prismm.files import npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["f4", ">f8", "c16", "u8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(300, 50), (1, 1), (0, 4)])
def test_every_bit_is_read(tmp_path: Path, rng, monkeypatch, save, dtype, order, shape):
    monkeypatch.setattr(npz, "_CHUNK", 1000)
    x = np.asarray(rng.integers(0, 2**20, shape), order=order).astype(dtype, order=order)
    save(tmp_path / "a.npz", x)
    assert files.describe(tmp_path / "a.npz") == files.Description(shape, x.dtype, "npz")
    found = files.read(tmp_path / "a.npz")
    assert found.dtype == x.dtype and found.tobytes() == x.tobytes()
    orders = []

    def allocate(shape, dtype, order):
        orders.append(order)
        return np.zeros(shape, dtype, order)

    assert np.array_equal(files.read(tmp_path / "a.npz", allocate), x)
    assert orders == ["F" if order == "F" and not x.flags.c_contiguous else "C"]


def test_what_is_not_one_matrix_is_refused(tmp_path: Path):
    sparse = pytest.importorskip("scipy.sparse")
    sparse.save_npz(tmp_path / "sparse.npz", sparse.csr_array(np.eye(3)))
    np.savez(tmp_path / "two.npz", a=np.eye(2), b=np.eye(2))
    np.savez(tmp_path / "none.npz")
    np.savez(tmp_path / "cube.npz", np.ones((2, 2, 2)))
    np.savez(tmp_path / "objects.npz", np.array([[{}]]))
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("a.npy", b"text")
    for name, words in (
        ("sparse", r"holds a sparse matrix.*load_npz\(path\)\.toarray"), ("two", r"holds 2 arrays \(a, b\)"),
        ("none", r"holds 0 arrays \(none\)"), ("cube", "array of shape"), ("objects", "Python objects"),
        ("junk", "not an .npz file"), ("text", "not a .npy file"), ("absent", "No such file"),
    ):  # fmt: skip
        for call in (files.describe, files.read):
            with pytest.raises(FileError, match=rf"{name}\.npz: .*{words}"):
                call(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_is_seen(tmp_path: Path, rng, save):
    path = tmp_path / "a.npz"
    x = rng.standard_normal((40, 40))
    save(path, x)
    content = path.read_bytes()
    for at in rng.integers(200, len(content) - 200, 20).tolist():
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            found = files.read(path)
        except FileError:
            continue
        assert found.tobytes() == x.tobytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError, match=r"not an \.npz file"):
        files.read(path)
