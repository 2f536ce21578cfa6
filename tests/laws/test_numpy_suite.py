"""NumPy's own tests of matmul, as they stand in the installed NumPy, with matmul replaced."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.errors import DTypeError

suite = pytest.importorskip("numpy._core.tests.test_multiarray")

RESULTS = {
    **dict.fromkeys("bhilqBHILQ", np.float64), "e": np.float32, "g": np.float64, "G": np.complex128,
}  # fmt: skip
"""Where prismm's types of results are others than NumPy's: integers would wrap, narrow floats overflow."""


class Renamed(ModuleType):
    """NumPy with another matmul."""

    matmul = staticmethod(prismm.matmul)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the tests call ``np.matmul``; NumPy itself, and prismm, keep theirs."""
    monkeypatch.setattr(suite, "np", Renamed("numpy"))


class TestMatmul(suite.TestMatmul):
    matmul = staticmethod(prismm.matmul)
    types = suite.TestMatmul.types.replace("O", "")

    def test_result_types(self):
        same = [kind for kind in self.types if kind not in RESULTS]
        assert len(same) == 5
        alone = type("Alone", (suite.TestMatmul,), {"matmul": staticmethod(prismm.matmul), "types": same})
        alone().test_result_types()
        for kind, result in RESULTS.items():
            x = np.ones((1, 1), kind)
            for operands in ((x, x), (x[0], x), (x, x[0]), (x[0], x[0])):
                assert prismm.matmul(*operands).dtype == result

    @pytest.mark.parametrize("test", ["matmul_object", "matmul_object_type_scalar", "matmul_empty"])
    def test_objects_are_refused(self, test):
        case = suite.TestMatmul()
        case.matmul = prismm.matmul
        with pytest.raises(DTypeError, match="has dtype object"):
            getattr(case, f"test_{test}")()

    test_matmul_object = test_matmul_object_type_scalar = test_matmul_empty = None


class TestMatmulOperator(suite.MatmulCommon):
    """The operator with an operand that is prepared, where it is a matrix."""

    types = suite.TestMatmul.types.replace("O", "")

    @staticmethod
    def matmul(a: Any, b: Any) -> Any:
        if a.ndim == 2:
            return prismm.prepare(a, side="left") @ b
        return a @ prismm.prepare(b) if b.ndim == 2 else prismm.matmul(a, b)

    test_result_types = None

    def test_scalars_are_refused(self):
        for a, b in ((np.int8(5), np.int8(5)), (np.void(b"abc"), np.void(b"abc")), (np.arange(10), np.void(b"abc"))):
            with pytest.raises(TypeError):
                prismm.matmul(a, b)


def test_all_of_them_are_run():
    """54 tests with their parameters in NumPy 2.4."""
    names = [name for name in dir(suite.TestMatmul) if name.startswith("test_")]
    assert {name for name in names if getattr(TestMatmul, name) is None} == {
        "test_matmul_object", "test_matmul_object_type_scalar", "test_matmul_empty"
    }  # fmt: skip
