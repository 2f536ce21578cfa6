"""`einsum`: each product of two operands is one product of matrices, whatever its indices are.

Of two operands, an index is one of four kinds: in both and in the result (a batch), in one and in the result (rows,
columns), in both and not in the result (summed over), in one and not in the result. An index of the last kind becomes
one more of the inner dimension, along which the other operand is repeated: so the sum over all indices is one sum, and
is rounded once. The price is memory for the repeated operand. One operand is multiplied by ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prismm._api import matmul
from prismm.core import arrays
from prismm.core.accuracy import parse_target
from prismm.errors import AccuracyError, ArgumentError
from prismm.products.axes import as_operand, broadcast, diagonal, matrix, ones, permuted, reshaped, scalar
from prismm.products.subscripts import Labels, lengths, parse

Term = tuple[Any, Labels]
"""An operand and the labels of its axes."""


def einsum(
    subscripts: str,
    /,
    *operands: Any,
    path: Sequence[Any] | None = None,
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
    full_output: bool = False,
) -> Any:
    """The sum of products that Einstein's notation names.

    One or two operands are one product of matrices, so the guarantees of `prismm.matmul` hold for the whole sum: K is
    the number of terms of an entry, the product of the lengths of all indices that are not in the result. More
    operands are multiplied pair by pair, each product rounded to the promoted type of all operands: a target then holds
    for each pair, against the operands of that pair, and not for the whole.

    Args:
        subscripts: letters for the axes of each operand, "ij,jk->ik" or "ij,jk", with "..." for axes that broadcast; a
            letter that an operand repeats takes its diagonal.
        operands: arrays as for `matmul`, of any number of axes.
        path: for more than two operands the pairs in turn, as `numpy.einsum_path` and opt_einsum write them:
            [(0, 1), (0, 1)] multiplies the first two, appends the product, and multiplies it by the third. By default
            opt_einsum chooses it from the shapes.
        accuracy: as for `matmul`; of more than two operands not "correctly-rounded".
        reproducible: as for `matmul`; of more than two operands the bits are those of the path, which has to be given.

    The other arguments, types of results and errors are those of `matmul`.

    Returns:
        The sums, and with ``full_output`` the `Report` of the matrices that are multiplied, (batch, rows, columns); of
        more than two operands a list of them, one a product.

    Raises:
        ArgumentError: for subscripts or a path that do not fit, or without opt_einsum where it is needed. ShapeError:
        for an index with two lengths. AccuracyError: for more than two operands, correctly rounded.

    >>> import numpy as np, prismm
    >>> a = np.array([[1e16, 1.0], [1.0, -1e16]])
    >>> prismm.einsum("ii", a, accuracy="correctly-rounded"), prismm.einsum("ij->", a, accuracy="correctly-rounded")
    (np.float64(0.0), np.float64(2.0))
    >>> prismm.einsum("ij,kj->ik", a, a, reproducible=True).shape
    (2, 2)
    """
    if not isinstance(subscripts, str):
        raise ArgumentError(f"subscripts are a {type(subscripts).__name__}; pass text such as 'ij,jk->ik'")
    if not operands:
        raise ArgumentError(f"einsum({subscripts!r}) without operands; pass the arrays after the subscripts")
    data = [as_operand(x, f"operands[{i}]") for i, x in enumerate(operands)]
    wanted = parse(subscripts, [x.ndim for x in data])
    size = lengths(wanted.inputs, [tuple(x.shape) for x in data], subscripts)
    terms = [_distinct(x, labels, size) for x, labels in zip(data, wanted.inputs, strict=True)]
    keywords: dict[str, Any] = {
        "accuracy": accuracy, "scheme": scheme, "reproducible": reproducible, "engine": engine, "threads": threads,
        "full_output": True,
    }  # fmt: skip
    output = tuple(wanted.output)
    if len(terms) <= 2:
        if path is not None:
            raise ArgumentError(f"path={path!r} of {len(terms)} operands, which are one product; leave it out")
        left = terms[0]
        right = terms[1] if len(terms) == 2 else _ones_for(left, output, size)
        found = _contract(left, right, output, size, keywords | {"out_dtype": out_dtype, "full_output": full_output})
        product, *report = found if full_output else (found,)
        return (scalar(product), *report) if full_output else scalar(product)
    _check_several(len(terms), accuracy, reproducible, path)
    steps = _checked(path, len(terms)) if path is not None else _chosen(terms, output, size)
    reports = []
    promoted = _promoted(terms)
    for number, step in enumerate(steps):
        taken = [terms.pop(i) for i in sorted(step, reverse=True)]
        last = number == len(steps) - 1
        left, right = taken[1], taken[0]
        needed = set(output).union(*(labels for _, labels in terms))
        mine = output if last else tuple(x for x in dict.fromkeys((*left[1], *right[1])) if x in needed)
        dtype = out_dtype if last and out_dtype is not None else _of_pair(promoted, left[0], right[0], last)
        product, report = _contract(left, right, mine, size, keywords | {"out_dtype": dtype})
        terms.append((product, mine))
        reports.append(report)
    product = scalar(terms[0][0])
    return (product, reports) if full_output else product


def _distinct(x: Any, labels: Labels, size: dict[str, int]) -> Term:
    """The operand with each label once: diagonals of repeated ones, and without axes of an ellipsis that broadcast."""
    for i in reversed(range(len(labels))):
        if labels[i][0] == "." and x.shape[i] == 1 != size[labels[i]]:
            x = reshaped(x, (*x.shape[:i], *x.shape[i + 1 :]))
            labels = (*labels[:i], *labels[i + 1 :])
    while len(set(labels)) < len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        x = diagonal(x, first, second)
        labels = (*(other for i, other in enumerate(labels) if i not in (first, second)), label)
    return x, labels


def _ones_for(term: Term, output: Labels, size: dict[str, int]) -> Term:
    """Ones along all that is summed over."""
    x, labels = term
    summed = tuple(label for label in labels if label not in output)
    return ones(x, [size[label] for label in summed]), summed


def _contract(left: Term, right: Term, output: Labels, size: dict[str, int], keywords: dict[str, Any]) -> Any:
    """The product of two operands as one product of matrices, with the labels of `output`."""
    of_a, of_b = left[1], right[1]
    batch = [x for x in of_a if x in of_b and x in output]
    rows = [x for x in of_a if x not in of_b and x in output]
    columns = [x for x in of_b if x not in of_a and x in output]
    summed = [x for x in dict.fromkeys((*of_a, *of_b)) if x not in output]
    groups = ([len(batch)] if batch else []), len(summed)
    a = matrix(_with(left, (*batch, *rows, *summed), size), (*groups[0], len(rows), groups[1]))
    b = matrix(_with(right, (*batch, *summed, *columns), size), (*groups[0], groups[1], len(columns)))
    found = matmul(a, b, **keywords)
    product, *report = found if keywords["full_output"] else (found,)
    order = [*batch, *rows, *columns]
    product = permuted(reshaped(product, [size[x] for x in order]), [order.index(x) for x in output])
    return (product, *report) if keywords["full_output"] else product


def _with(term: Term, labels: Labels, size: dict[str, int]) -> Any:
    """The operand with its axes in this order, repeated along labels that it lacks."""
    x, known = term
    x = permuted(x, [known.index(label) for label in labels if label in known])
    if len(known) == len(labels):
        return x
    x = reshaped(x, [size[label] if label in known else 1 for label in labels])
    return broadcast(x, [size[label] for label in labels])


def _check_several(count: int, accuracy: Any, reproducible: bool, path: Any) -> None:
    """Errors for what products of pairs cannot promise."""
    if accuracy is not None and parse_target(accuracy).kind == "correctly-rounded":
        raise AccuracyError(
            f"accuracy='correctly-rounded' of {count} operands, which are {count - 1} products, each rounded; pass two "
            "operands, or another target, which then holds for each product"
        )
    if reproducible and path is None:
        raise ArgumentError(
            f"reproducible=True of {count} operands: the bits depend on the order of the products; pass it as path=, "
            "such as path=[(0, 1), (0, 1)] or opt_einsum.contract_path(subscripts, *operands)[0]"
        )


def _checked(path: Sequence[Any], count: int) -> list[tuple[int, int]]:
    """The path as pairs.

    Raises:
        ArgumentError: unless it leaves one operand of so many.
    """
    steps = []
    for step in path[1:] if len(path) and path[0] == "einsum_path" else path:
        try:
            first, second = map(int, step)
        except (TypeError, ValueError):
            raise ArgumentError(f"path={path!r} has the step {step!r}; pass pairs such as (0, 1)") from None
        if first == second or not (0 <= first < count and 0 <= second < count):
            raise ArgumentError(f"path={path!r} has the step {step!r} where {count} operands are left")
        steps.append((first, second))
        count -= 1
    if count != 1:
        raise ArgumentError(f"path={path!r} leaves {count} operands; pass one pair less than there are operands")
    return steps


def _chosen(terms: list[Term], output: Labels, size: dict[str, int]) -> list[tuple[int, int]]:
    """opt_einsum's path for these shapes."""
    try:
        import opt_einsum
    except ModuleNotFoundError:
        raise ArgumentError(
            f"einsum of {len(terms)} operands needs opt_einsum to choose the order of the products, and it is not "
            "installed; install it with: pip install opt_einsum, or pass path=, such as path=[(0, 1), (0, 1)]"
        ) from None
    symbols = {label: opt_einsum.get_symbol(i) for i, label in enumerate(size)}
    inputs = ",".join("".join(symbols[label] for label in labels) for _, labels in terms)
    text = f"{inputs}->{''.join(symbols[label] for label in output)}"
    shapes = [tuple(size[label] for label in labels) for _, labels in terms]
    path, _ = opt_einsum.contract_path(text, *shapes, shapes=True)
    steps, left = [], len(terms)
    for step in path:
        places = list(map(int, step))
        # More than two at a time are multiplied in turn: what they leave is appended.
        while len(places) > 1:
            first, second = places[0], places[1]
            steps.append((first, second))
            left -= 1
            places = [p - (p > first) - (p > second) for p in places[2:]] + [left - 1]
    return steps


def _promoted(terms: list[Term]) -> np.dtype[Any] | None:
    """The result's type of all operands; None where all are bools."""
    kinds = [str(x.dtype).removeprefix("torch.").replace("bfloat16", "float32") for x, _ in terms]
    if set(kinds) == {"bool"}:
        return None
    return arrays.result_dtype([np.empty(0, kind) for kind in kinds], None)


def _of_pair(promoted: np.dtype[Any] | None, a: Any, b: Any, last: bool) -> str | None:
    """The type of a product on the way: the promoted one, or its real parts' where both operands are real."""
    if promoted is None:
        return None
    is_complex = any("complex" in str(x.dtype) for x in (a, b))
    if promoted.kind == "c" and not is_complex and not last:
        return "float64" if promoted == np.complex128 else "float32"
    return str(promoted.name)
