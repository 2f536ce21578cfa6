"""`numpy.einsum` of two or more operands, so that every sum is one that a product of matrices makes.

`torch.einsum` adds by itself along an index that one operand alone has, or that has length 1 in the other: no product,
and no accuracy. Here such an index becomes one more of the product's inner dimension, along which the other operand is
repeated, at the price of memory. More operands than two are contracted in pairs, in the order that
`numpy.einsum_path` finds; each pair's result is rounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Labels = tuple[int, ...]
"""The axes of an operand: letters by their code points, axes under an ellipsis as negative numbers, the last one -1."""

Term = tuple[torch.Tensor, Labels]

_MOST = 52
"""Labels that `torch.einsum` knows."""


def einsum(subscripts: str, *operands: torch.Tensor) -> torch.Tensor:
    """As `numpy.einsum` of tensors of one type.

    Raises:
        ValueError: for subscripts that NumPy does not take, or that are left to it.

    >>> a, b = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 2)
    >>> einsum("ij,jk->ik", a, b), einsum("...i,...i", a, a)
    (tensor([[6., 6.]]), tensor([14.]))
    """
    inputs, output = _parsed(subscripts, [x.ndim for x in operands])
    _check_lengths(inputs, operands)
    terms = [_distinct(x, labels) for x, labels in zip(operands, inputs, strict=True)]
    for step in _path(terms, output):
        taken = [terms.pop(place) for place in sorted(step, reverse=True)]
        while len(taken) > 1:
            right, left = taken.pop(), taken.pop()
            rest = [*terms, *taken]
            needed = set(output).union(*(labels for _, labels in rest))
            taken.append(_contracted(left, right, needed if rest else output))
        terms += taken
    return terms[0][0]


def _parsed(subscripts: str, axes: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of the operands and of the result."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    words = left.split(",")
    if len(words) != len(axes) or not all(re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", x) for x in (*words, right)):
        raise ValueError(f"subscripts {subscripts!r}")
    inputs = [_labels(word, ndim) for word, ndim in zip(words, axes, strict=True)]
    hidden = sorted({label for labels in inputs for label in labels if label < 0})
    counts = Counter(label for labels in inputs for label in labels)
    if not arrow:
        return inputs, (*hidden, *sorted(x for x, count in counts.items() if count == 1 and x > 0))
    before, dots, after = right.partition("...")
    output = (*map(ord, before), *(hidden if dots else ()), *map(ord, after))
    if len(set(output)) < len(output) or not set(output) <= set(counts) or (hidden and not dots):
        raise ValueError(f"output of {subscripts!r}")
    return inputs, output


def _labels(word: str, ndim: int) -> Labels:
    before, dots, after = word.partition("...")
    rest = ndim - len(before) - len(after)
    if rest < 0 or (rest and not dots):
        raise ValueError(f"an operand of {ndim} axes for {word!r}")
    return (*map(ord, before), *range(-rest, 0), *map(ord, after))


def _check_lengths(inputs: Sequence[Labels], operands: Sequence[torch.Tensor]) -> None:
    """ValueError unless each index has one length; an axis of length 1 is repeated."""
    size: dict[int, int] = {}
    for labels, x in zip(inputs, operands, strict=True):
        for label, length in zip(labels, x.shape, strict=True):
            if size.setdefault(label, length) == 1:
                size[label] = length
            elif length not in (1, size[label]):
                raise ValueError(f"lengths {size[label]} and {length} of one index")


def _distinct(x: torch.Tensor, labels: Labels) -> Term:
    """An operand's diagonals along indices that it has more than once: a view."""
    while len(set(labels)) < len(labels):
        label = next(one for one in labels if labels.count(one) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        if x.shape[first] != x.shape[second]:
            raise ValueError("a diagonal of a matrix that is not square")
        x = torch.diagonal(x, dim1=first, dim2=second)
        labels = (*(one for at, one in enumerate(labels) if at not in (first, second)), label)
    return x, labels


def _path(terms: Sequence[Term], output: Labels) -> list[Sequence[int]]:
    """Which of the terms that are left to contract next; results go to the end."""
    if len(terms) == 2:
        return [(0, 1)]
    places = _places([label for _, labels in terms for label in labels])
    words: list[Any] = []
    for x, labels in terms:
        words += [np.broadcast_to(np.empty(()), x.shape), [places[label] for label in labels]]
    path: list[Sequence[int]] = np.einsum_path(*words, [places[label] for label in output], optimize="greedy")[0]
    return path[1:]


def _places(labels: Sequence[int]) -> dict[int, int]:
    """Labels as `torch.einsum` and `numpy.einsum_path` take them."""
    places = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    if len(places) > _MOST:
        raise ValueError(f"more than {_MOST} indices")
    return places


def _contracted(left: Term, right: Term, kept: Labels | set[int]) -> Term:
    """The product of two terms, summed over all indices that are not kept, whose order counts if they are a tuple."""
    places = _places((*left[1], *right[1]))
    output = kept if isinstance(kept, tuple) else tuple(label for label in places if label in kept)
    summed = [label for label in places if label not in kept]
    words: list[Any] = []
    for term, other in ((left, right), (right, left)):
        x, labels = _repeated(term, other, summed)
        words += [x, [places[label] for label in labels]]
    return torch.einsum(*words, [places[label] for label in output]), output


def _repeated(term: Term, other: Term, summed: Sequence[int]) -> Term:
    """A term with every index that is summed over, as long as the other term has it: a view."""
    x, labels = term
    lengths = dict(zip(other[1], other[0].shape, strict=True))
    more = tuple(label for label in summed if label not in labels and lengths[label] != 1)
    x, labels = x[(..., *[None] * len(more))], (*labels, *more)
    shape = [
        lengths.get(label, 1) if length == 1 and label in summed else length
        for label, length in zip(labels, x.shape, strict=True)
    ]
    return x.expand(shape), labels
