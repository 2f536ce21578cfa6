"""NumPy's products by name: each is the correctly rounded one, or NumPy's with the reason in the record."""

import pickle
import threading

import numpy as np
import pytest

import prismm
from prismm.programs.numpy_operators import product
from prismm.programs.numpy_products import by_name
from prismm.testing import exact_product
from tests.judge import assert_each, assert_same_bits

NAMES = ("matmul", "dot", "vdot", "inner", "tensordot", "einsum")


def rounded(a, b):
    """RN of the exact product."""
    return exact_product(a, b).rounded("complex128" if np.iscomplexobj(a) or np.iscomplexobj(b) else "float64")


def cancelling(rng, *shape, is_complex=False):
    """Numbers of which large ones meet their negatives in most sums."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape)
    return x + 1j * rng.permutation(x) if is_complex else x


def calls(rng, is_complex):
    a, b = cancelling(rng, 5, 7, is_complex=is_complex), cancelling(rng, 7, 4, is_complex=is_complex)
    u, v = cancelling(rng, 7, is_complex=is_complex), cancelling(rng, 7)
    s, t = cancelling(rng, 3, 5, 7, is_complex=is_complex), cancelling(rng, 3, 7, 4)
    frozen = a.copy()
    frozen.flags.writeable = False
    whole = s.reshape(15, 7)
    younger = {
        "matvec": (lambda: np.matvec(a, v), rounded(a, v[:, None])[:, 0]),
        "vecmat": (lambda: np.vecmat(u, b), rounded(u.conj()[None], b)[0]),
    }
    return {name: case for name, case in younger.items() if hasattr(np, name)} | {
        "matmul": (lambda: np.matmul(a, b), rounded(a, b)),
        "a batch": (lambda: np.matmul(s, t), np.stack([rounded(x, y) for x, y in zip(s, t, strict=True)])),
        "views": (lambda: np.matmul(a[::-1, ::-1], b[::-1]), rounded(a[::-1, ::-1], b[::-1])),
        "not to be written": (lambda: np.matmul(frozen, b), rounded(a, b)),
        "big-endian": (lambda: np.matmul(a.astype(a.dtype.newbyteorder(">")), b), rounded(a, b)),
        "mixed types": (lambda: np.matmul(a, b.astype(b.dtype)), rounded(a, b)),
        "dot": (lambda: np.dot(a, b), rounded(a, b)),
        "dot of vectors": (lambda: np.dot(u, v), rounded(u[None], v[:, None])[0, 0]),
        "dot of a batch": (lambda: np.dot(s, b), rounded(whole, b).reshape(3, 5, 4)),
        "vdot": (lambda: np.vdot(u, v), rounded(u.conj()[None], v[:, None])[0, 0]),
        "inner": (lambda: np.inner(s, b.T), rounded(whole, b).reshape(3, 5, 4)),
        "tensordot": (lambda: np.tensordot(s, b, axes=([2], [0])), rounded(whole, b).reshape(3, 5, 4)),
        "tensordot of an axis": (lambda: np.tensordot(s, b, axes=(2, 0)), rounded(whole, b).reshape(3, 5, 4)),
        "tensordot of one": (lambda: np.tensordot(s, b, 1), rounded(whole, b).reshape(3, 5, 4)),
        "einsum": (lambda: np.einsum("kj,ik->ij", b, a, optimize=True), rounded(a, b)),
        "einsum of a repeated operand": (
            lambda: np.einsum("ij,jk->ik", a[:, :1], b),
            rounded(a[:, :1] + np.zeros((5, 7)), b),
        ),
        "einsum of an index that one operand has": (
            lambda: np.einsum("ij,k->ik", a, u),
            rounded(a, np.tile(u, (7, 1))),
        ),
        "einsum of all indices": (
            lambda: np.einsum("ij,jk->", a, b),
            rounded(np.repeat(a.reshape(1, -1), 4, 1), np.tile(b, (5, 1)).reshape(-1, 1))[0, 0],
        ),
        "linalg.matmul": (lambda: np.linalg.matmul(a, b), rounded(a, b)),
        "linalg.multi_dot": (lambda: np.linalg.multi_dot([a, b]), rounded(a, b)),
        "linalg.tensordot": (lambda: np.linalg.tensordot(s, b, axes=1), rounded(whole, b).reshape(3, 5, 4)),
        "linalg.vecdot": (lambda: np.linalg.vecdot(a, u), rounded(a.conj(), u[:, None])[:, 0]),
        "vecdot": (lambda: np.vecdot(a, u), rounded(a.conj(), u[:, None])[:, 0]),
        "@ of a list": (lambda: product(a, b.tolist()), rounded(a, b)),
        "@": (lambda: product(a, b), rounded(a, b)),
        "out": (lambda: np.matmul(a, b, out=np.empty((5, 4), a.dtype)), rounded(a, b)),
    }


@pytest.mark.parametrize("is_complex", [False, True])
def test_correctly_rounded_by_name(rng, is_complex):
    cases = calls(rng, is_complex)

    def check(name):
        make, expected = cases[name]
        with by_name(), prismm.emulate("correctly-rounded") as record:
            found = make()
        assert_same_bits(found, expected)
        native = make()
        assert type(found) is type(native) and found.dtype == native.dtype
        assert found.flags.writeable == native.flags.writeable and found.flags.owndata == native.flags.owndata
        assert record.rows and not record.unseen

    assert_each(check, cases)


def test_left_to_numpy_with_the_reason(rng):
    a, b = rng.standard_normal((2, 4, 4))
    whole = np.arange(16).reshape(4, 4)
    left = {
        "dtype=": lambda: np.matmul(a, b, dtype="float64"),
        "elements of type int64": lambda: np.dot(whole, whole),
        "a subclass of ndarray": lambda: np.matmul(np.ma.array(a), b),
        "subscripts as lists": lambda: np.einsum(a, [0, 1], b, [1, 2]),
        "out of another type": lambda: np.matmul(a, b, out=np.empty((4, 4), "complex128")),
    }
    for reason, call in left.items():
        expected = call()
        with by_name(), prismm.emulate("correctly-rounded") as record:
            found = call()
        assert np.array_equal(np.asarray(found), np.asarray(expected)), reason
        assert not record.rows and [what for _, what in record.unseen.values()] == [f"left to NumPy: {reason}"]


EINSUMS = (
    ("ij,jk->ik", (1, 3), (1, 2)), ("ij,jk->i", (1, 1), (1, 3)), ("ij,jk", (2, 3), (3, 4)),
    ("...ij,...jk", (5, 2, 3), (1, 3, 4)), ("...ij,...jk->...ki", (5, 2, 3), (3, 4)), ("i,j->", (2,), (3,)),
    ("ii,ij->j", (3, 3), (3, 4)), ("ij,ij->ij", (2, 3), (1, 3)), (",ij->i", (), (2, 3)), ("i,i,i->", (3,), (3,), (3,)),
    ("ij,jk,kl->il", (2, 3), (1, 4), (4, 2)), ("i,ij,j", (2,), (2, 3), (3,)), ("iij,jk->ik", (2, 2, 3), (3, 4)),
    ("b...,b...->...", (3, 2, 2), (3, 2, 1)), ("ij,jk->ik", (2, 0), (0, 3)), ("ij,jk->ik", (2, 1), (0, 3)),
    ("ab,cd,ef->", (2, 3), (2, 2), (1, 3)), ("ij , jk -> ki", (2, 3), (3, 4)), ("aB,Bc", (2, 3), (3, 2)),
    ("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 2), (2, 3)), ("ij->i", (2, 3)),
)  # fmt: skip


def test_einsum_is_numpys_on_integers(rng):
    """Sums of small integers are exact everywhere, so shapes, orders and broadcasts show."""

    def check(case):
        subscripts, *shapes = case
        operands = [rng.integers(-9, 9, shape).astype(float) for shape in shapes]
        with by_name(), prismm.emulate("correctly-rounded") as record:
            found = np.einsum(subscripts, *operands)
        expected = np.einsum(subscripts, *operands)
        assert type(found) is type(expected) and np.array_equal(found, expected) and not record.unseen

    assert_each(check, EINSUMS)


def test_reasons_of_one_line_are_counted_apart():
    with by_name(), prismm.emulate("correctly-rounded") as record:
        for dtype in ("int64", "float16", "int64"):
            np.matmul(np.ones((2, 2), dtype), np.ones((2, 2), dtype))
    found = [(one["count"], one["what"]) for one in record.to_dict()["unseen"]]
    assert found == [(2, "left to NumPy: elements of type int64"), (1, "left to NumPy: elements of type float16")]
    assert [count for count, _ in record.unseen.values()] == [3]


def test_functions_are_pickled_by_name():
    with by_name():
        data = pickle.dumps([np.dot, np.linalg.multi_dot])
        assert pickle.loads(data)[0] is np.dot
    assert pickle.loads(data) == [np.dot, np.linalg.multi_dot]


def test_errors_are_numpys(rng):
    a = rng.standard_normal((4, 5))
    one, frozen = a[:1, :1], np.ones((4, 4))
    frozen.flags.writeable = False
    for call in (
        lambda: np.matmul(a, a), lambda: np.einsum("ij,jk", a, a), lambda: np.dot(a, a), lambda: product(a, a),
        lambda: np.tensordot(a, one, 1), lambda: np.inner(a, one), lambda: np.vecdot(a, one),
        lambda: np.dot(np.ones((2, 2, 3)), np.ones((2, 1, 2))), lambda: np.einsum("ij,jk->ii", a, a.T),
        lambda: np.matmul(a, a.T, out=frozen), lambda: np.einsum("ij,jk->iz", a, a.T),
    ):  # fmt: skip
        with pytest.raises(ValueError) as plain:
            call()
        with by_name(), prismm.emulate("correctly-rounded"), pytest.raises(ValueError) as found:
            call()
        assert str(found.value) == str(plain.value) and found.value.__context__ is None
        files = [place.path for place in found.traceback]
        assert not [path for path in files if "numpy_" in str(path) and "test_" not in str(path)]


def test_scalars_are_no_products(rng):
    a = rng.standard_normal((3, 3))
    with by_name(), prismm.emulate("correctly-rounded") as record:
        found = np.dot(2.0, a)
    assert_same_bits(found, 2.0 * a)
    assert not record.rows and not record.unseen


def test_names_come_back_and_other_threads_are_left_alone():
    before = [getattr(np, name) for name in NAMES]
    a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    native, found = a @ b, []
    with pytest.raises(KeyError), by_name(), prismm.emulate("correctly-rounded"):
        thread = threading.Thread(target=lambda: found.append(np.matmul(a, b)))
        thread.start()
        thread.join()
        assert np.matmul(a, b)[0, 0] == 1.0 and np.matmul.nin == 2
        raise KeyError
    assert_same_bits(found[0], native)
    assert [getattr(np, name) for name in NAMES] == before
