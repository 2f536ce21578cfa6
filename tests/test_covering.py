"""Covering arrays cover what they say, with few rows, the same in every process, others with another seed."""

import itertools
import random

import pytest
from covering import covering_rows, mark_rest_slow

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
    for other in range(60):
        seen.update(covering_rows(rows[::20], None, random.Random(other)))
    assert seen == set(range(len(rows[::20])))  # in the course of some runs every row is a fast one


def test_few_rows_and_few_parameters():
    assert covering_rows([], None, random.Random(1)) == []
    assert covering_rows([{}], None, random.Random(1)) == [0]
    assert covering_rows([{"x": 1}], None, random.Random(1)) == [0]
    assert covering_rows(product({"x": range(5)}), None, random.Random(1)) == [0, 1, 2, 3, 4]
    assert covering_rows(product({"x": range(3), "y": "ab"}), None, random.Random(1)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"no parameters \['z'\]: there are \['x'\]"):
        covering_rows([{"x": 1}], [("x", "z")], random.Random(1))


def test_the_rest_of_the_rows_is_slow(seed):
    """Of a marked test, for any choice of its rows."""

    class Item:
        def __init__(self, **parameters):
            self.nodeid, self.marks = f"tests/x.py::test_it[{'-'.join(map(str, parameters.values()))}]", []
            self.callspec = type("Spec", (), {"indices": parameters})()

        def get_closest_marker(self, name):
            return pytest.mark.covering.mark if name == "covering" else None

        def add_marker(self, mark):
            self.marks.append(mark.name)

    items = [Item(name=i, dtype=j, engine=k) for i in range(9) for j in range(4) for k in range(5)]
    mark_rest_slow(items, seed)
    fast = [item for item in items if "slow" not in item.marks]
    assert 36 <= len(fast) < 60 and all(item.marks in ([], ["slow"]) for item in items)
    alone = Item(name=0, dtype=0, engine=0)
    mark_rest_slow([alone], seed)
    assert alone.marks == []  # asked for by its name, it is never in the way of `-m "not slow"`
