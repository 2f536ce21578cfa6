"""Subscripts of einsum: text to labels, one for each axis, and the labels' lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prismm.errors import ArgumentError, ShapeError

Labels = tuple[str, ...]
"""A letter for an axis that is named; ".1", ".2", … for those of an ellipsis, counted from its end."""


@dataclass(frozen=True)
class Subscripts:
    """What an einsum sums.

    Attributes:
        inputs: labels of each operand's axes.
        output: labels of the result's axes.
    """

    inputs: tuple[Labels, ...]
    output: Labels


def parse(text: str, axes: Sequence[int]) -> Subscripts:
    """The labels of a text such as "ij,jk->ik", for operands of so many axes.

    Without "->" the result has the axes of the ellipses and then, in alphabetical order, every letter that stands once.

    Raises:
        ArgumentError: for other text, or text that does not fit the operands.

    >>> parse("...ij,jk", (3, 2)).output
    ('.1', 'i', 'k')
    """
    found, arrow, result = "".join(text.split()).partition("->")
    terms = found.split(",")
    if len(terms) != len(axes):
        raise ArgumentError(f"subscripts {text!r} name {len(terms)} operands, and {len(axes)} are passed")
    inputs = tuple(_labels(term, ndim, text, i) for i, (term, ndim) in enumerate(zip(terms, axes, strict=True)))
    dots = max((sum(label[0] == "." for label in labels) for labels in inputs), default=0)
    ellipsis = tuple(f".{i}" for i in range(dots, 0, -1))
    counts = Counter(label for labels in inputs for label in labels)
    if not arrow:
        letters = sorted(label for label, count in counts.items() if count == 1 and label[0] != ".")
        return Subscripts(inputs, (*ellipsis, *letters))
    before, dotted, after = result.partition("...")
    if ellipsis and not dotted:
        raise ArgumentError(f"subscripts {text!r}: the axes of ... are not summed over; write ... in the result too")
    _check_letters(before + after, text)
    output = (*before, *(ellipsis if dotted else ()), *after)
    for label, count in Counter(output).items():
        if label not in counts:
            raise ArgumentError(f"subscripts {text!r}: the result's {label!r} is in no operand")
        if count > 1:
            raise ArgumentError(f"subscripts {text!r}: the result has {label!r} twice; repeat it in an operand alone")
    return Subscripts(inputs, output)


def _labels(term: str, ndim: int, text: str, number: int) -> Labels:
    before, dotted, after = term.partition("...")
    _check_letters(before + after, text)
    named = len(before) + len(after)
    if ndim < named or (ndim > named and not dotted):
        raise ArgumentError(
            f"subscripts {text!r}: operands[{number}] has {ndim} axes, and {term!r} names {named}; write a letter for "
            "each axis, or ... for the others"
        )
    return (*before, *(f".{i}" for i in range(ndim - named, 0, -1)), *after)


def _check_letters(letters: str, text: str) -> None:
    for letter in letters:
        if not letter.isalpha():
            raise ArgumentError(f"subscripts {text!r}: {letter!r} is no letter; write such as 'ij,jk->ik' or '...ij'")


def lengths(inputs: Sequence[Labels], shapes: Sequence[tuple[int, ...]], text: str) -> dict[str, int]:
    """The length of each label; axes of an ellipsis broadcast.

    Raises:
        ShapeError: for a label with two lengths.

    >>> lengths([("i", "j"), ("j", "k")], [(2, 3), (3, 4)], "ij,jk")
    {'i': 2, 'j': 3, 'k': 4}
    """
    found: dict[str, int] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        for label, length in zip(labels, shape, strict=True):
            known = found.setdefault(label, length)
            if known == length or (label[0] == "." and length == 1):
                continue
            if label[0] == "." and known == 1:
                found[label] = length
                continue
            what = "the axes of ..." if label[0] == "." else f"axes {label!r}"
            raise ShapeError(
                f"subscripts {text!r} of operands of shapes {', '.join(map(str, shapes))}: {what} have {known} and "
                f"{length} elements"
            )
    return found
