"""Small changes of a Python file, one at a time: what `tools/mutants.py --draw` plants beside the faults of its table.

A comparison turns strict or loose, a sum a difference, a shift the other way; `and` and `or`, `min` and `max`, `ceil`
and `floor` take each other's place; an integer grows by one, a float is halved; a `not` or a minus goes. What only
tells people something (docstrings, messages of errors, annotations) stays.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
_OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.LShift: ">>", ast.RShift: "<<", ast.BitOr: "&", ast.BitAnd: "|",
}  # fmt: skip
_BOOLEANS = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
_COMMENT = re.compile("#[^\n]*")
_FUNCTIONS = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True, order=True)
class Mutation:
    """The text from `start` to `end` of a file, which `new` replaces; `line` is where it begins."""

    start: int
    end: int
    new: str
    line: int

    def applied(self, text: str) -> str:
        """The file with the change."""
        return text[: self.start] + self.new + text[self.end :]


def mutations(text: str) -> list[Mutation]:
    """Every change of a file, in order.

    >>> source = "def f(x: int) -> int:\\n    return max(x + 2, 0)  # a sum\\n"
    >>> [mutation.applied(source).splitlines()[1] for mutation in mutations(source)]  # doctest: +NORMALIZE_WHITESPACE
    ['    return min(x + 2, 0)  # a sum', '    return max(x - 2, 0)  # a sum',
     '    return max(x + 3, 0)  # a sum', '    return max(x + 2, 1)  # a sum']
    """
    return sorted(set(_Finder(text).found()))


class _Finder:
    """Walks a file's tree. Columns of `ast` count bytes of UTF-8; offsets here count characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = [line.encode() for line in text.splitlines(keepends=True)]
        self.begins = [0]
        for line in text.splitlines(keepends=True):
            self.begins.append(self.begins[-1] + len(line))

    def found(self) -> Iterator[Mutation]:
        """The changes, in no order."""
        yield from self._within(ast.parse(self.text))

    def _within(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)):
            return
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        yield from self._of(node)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._within(child)

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare():
                places = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
                for left, operator, right in places:
                    if new := _COMPARISONS.get(type(operator)):
                        yield self._between(left, right, {"<", "<=", ">", ">=", "==", "!="}, new)
            case ast.BinOp():
                if new := _OPERATORS.get(type(node.op)):
                    yield self._between(node.left, node.right, {"+", "-", "<<", ">>", "|", "&"}, new)
            case ast.AugAssign():
                if new := _OPERATORS.get(type(node.op)):
                    yield self._between(node.target, node.value, {"+=", "-=", "<<=", ">>=", "|=", "&="}, new + "=")
            case ast.BoolOp():
                old, new = _BOOLEANS[type(node.op)]
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield self._between(left, right, {old}, new)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as operator):
                start = self._start(node)
                yield self._mutation(start, start + (3 if isinstance(operator, ast.Not) else 1), "")
            case ast.Constant(value=bool() | str() | bytes() | None):
                return
            case ast.Constant(value=int() as number):
                yield self._mutation(self._start(node), self._end(node), str(number + 1))
            case ast.Constant(value=float() as number):
                yield self._mutation(self._start(node), self._end(node), repr(number / 2 if number else 1.0))
            case ast.Call(func=ast.Name(id=name) as function) if name in _FUNCTIONS:
                yield self._mutation(self._start(function), self._end(function), _FUNCTIONS[name])
            case ast.Call(func=ast.Attribute(attr=name) as function) if name in _FUNCTIONS:
                end = self._end(function)
                yield self._mutation(end - len(name), end, _FUNCTIONS[name])

    def _between(self, left: ast.AST, right: ast.AST, old: set[str], new: str) -> Mutation:
        """The operator between two operands; brackets, comments and new lines may stand there, too."""
        start, end = self._end(left), self._start(right)
        between = _COMMENT.sub(lambda found: " " * len(found[0]), self.text[start:end])
        for length in (3, 2, 1):
            for at in range(len(between) - length + 1):
                if between[at : at + length] in old:
                    return self._mutation(start + at, start + at + length, new)
        raise ValueError(f"no {' or '.join(sorted(old))} in line {self._line(start)}")

    def _mutation(self, start: int, end: int, new: str) -> Mutation:
        return Mutation(start, end, new, self._line(start))

    def _line(self, at: int) -> int:
        return bisect.bisect_right(self.begins, at)

    def _start(self, node: ast.AST) -> int:
        return self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _offset(self, line: int, column: int) -> int:
        return self.begins[line - 1] + len(self.lines[line - 1][:column].decode())
