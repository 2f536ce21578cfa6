"""A script's own ``@``, ``@=``, ``.dot`` and ``operator.matmul`` as calls: NumPy has no hook for its products."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

PRODUCT, INPLACE = "__prismm_product__", "__prismm_inplace__"
METHOD = "__prismm_method__"
ATTRIBUTE, ITEM, KEY, STORE = "__prismm_attribute__", "__prismm_item__", "__prismm_key__", "__prismm_store__"

_METHODS = ("dot", "matmul", "imatmul")
"""Attributes that may be a product of NumPy's arrays."""

_COMPILERS = ("jit", "njit", "vectorize", "guvectorize", "stencil", "script")
"""Decorators, by the ends of their names, of functions that are compiled from their source: those are left alone."""


def _function(name: str) -> Callable[[], Any]:
    def find() -> Any:
        from prismm.programs import numpy_operators

        return getattr(numpy_operators, name)

    return find


HELPERS = {
    PRODUCT: _function("product"), INPLACE: _function("inplace"), ATTRIBUTE: _function("attribute"),
    METHOD: _function("method"), ITEM: _function("item"), KEY: _function("KEY"), STORE: _function("store"),
}  # fmt: skip
"""Builtins by which the code calls `prismm.programs.numpy_operators`: whatever its globals are, it finds them."""


def compiled(source: bytes, path: str) -> types.CodeType:
    """A script's code with its own products replaced; lines and names are as they were.

    Operands, objects and indices are evaluated once, in the same order. Functions that Numba, JAX or TorchScript
    compile are as they were. Nesting is not followed by recursion: an expression may be as long as Python takes it.

    Raises:
        SyntaxError: as Python would.
    """
    tree = ast.parse(source, path)
    if not _rewrite(tree):
        code: types.CodeType = compile(source, path, "exec", dont_inherit=True)
        return code
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(4 * limit)  # the tree is as deep as the parser allows, which is three times the limit
    try:
        code = compile(tree, path, "exec", dont_inherit=True)
    finally:
        sys.setrecursionlimit(limit)
    return code


def _rewrite(tree: ast.AST) -> bool:
    """Replace the operators in place; whether there was any."""
    found, waiting = False, [(tree, "")]
    while waiting:
        node, owner = waiting.pop()
        for field, index, child in _children(node):
            inside = node.name if isinstance(node, ast.ClassDef) and field == "body" else owner
            new = _replacement(child, inside)
            if new is not child:
                found = True
                if index is None:
                    setattr(node, field, new)
                else:
                    getattr(node, field)[index] = new
            if not _is_compiled(new) and not isinstance(new, ast.pattern):  # which only names what it compares
                waiting.append((new, inside))
    return found


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, ast.AST):
                    yield field, index, one


def _is_compiled(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return False
    names = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return any((getattr(one, "attr", None) or getattr(one, "id", None)) in _COMPILERS for one in names)


def _replacement(node: ast.AST, owner: str) -> ast.AST:
    """The node that replaces an operator; any other node itself. owner: the class around it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return _call(PRODUCT, node, node.left, node.right)
    if isinstance(node, ast.Attribute) and node.attr in _METHODS and isinstance(node.ctx, ast.Load):
        return _call(METHOD, node, node.value, ast.copy_location(ast.Constant(node.attr), node))
    if not (isinstance(node, ast.AugAssign) and isinstance(node.op, ast.MatMult)):
        return node
    target = node.target
    if isinstance(target, ast.Name):
        loaded = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        return ast.copy_location(ast.Assign([target], _call(INPLACE, node, loaded, node.value)), node)
    if isinstance(target, ast.Attribute):
        name = ast.copy_location(ast.Constant(_mangled(target.attr, owner)), target)
        place = _call(ATTRIBUTE, target, target.value, name)
    else:
        # The index as it is written, slices included, of an object that returns its index.
        keys = ast.copy_location(ast.Name(KEY, ast.Load()), target)
        key = ast.copy_location(ast.Subscript(keys, target.slice, ast.Load()), target)
        place = _call(ITEM, target, target.value, key)
    return ast.copy_location(ast.Expr(_call(STORE, node, place, node.value)), node)


def _call(name: str, at: ast.AST, *arguments: ast.expr) -> ast.Call:
    function = ast.copy_location(ast.Name(name, ast.Load()), at)
    return ast.copy_location(ast.Call(function, list(arguments), []), at)


def _mangled(name: str, owner: str) -> str:
    """A private name in a class, as Python stores it.

    >>> _mangled("__weight", "_Layer"), _mangled("__len__", "Layer"), _mangled("__x", "")
    ('_Layer__weight', '__len__', '__x')
    """
    owner = owner.lstrip("_")
    private = name.startswith("__") and not name.endswith("__") and owner
    return f"_{owner}{name}" if private else name
