"""Triton's interpreter as the tests run it: with this NumPy, an fma that is one, assembly, and without work done twice.

python -m tests.cuda.harness.interpreter residues|gemm|slices|... [part/parts or a seed]

Runs `interpreted_<name>`, which prints one line of JSON a case. Nothing that is patched here is undone.
"""

import dataclasses
import importlib
import math
import os
import sys
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from tests.cuda.harness import ptx


def _fused(self, x, y, z):
    """Triton's interpreter rounds the product as well."""
    with np.errstate(all="ignore"):
        return interpreter.TensorHandle(ptx.fma(x.data, y.data, z.data), z.dtype.scalar)


def _assembly(self, code, constraints, values, kinds, pure, pack):
    """Triton's interpreter knows none. Of one element at a time; others depend on layouts (`gluon_interpreter`)."""
    assert pack == 1
    found = ptx.elementwise(code, constraints, [x.data for x in values], [interpreter._get_np_dtype(x) for x in kinds])
    return SimpleNamespace(get_result=lambda index: interpreter.TensorHandle(found[index], kinds[index].scalar))


_patch_tensor = interpreter._patch_lang_tensor


def _with_index(tensor, scope):
    """Triton 3.6 makes an index of an array of one element by int(), which NumPy 2.4 refuses."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))


class _Kept:
    """What was patched stays so."""

    def restore(self) -> None:
        pass


_patch_language, _patched = interpreter._patch_lang, set()


def _once(fn):
    """The interpreter patches all of tl anew in each call of a function, a third of its time."""
    space = id(fn.__globals__)
    if space not in _patched:
        _patched.add(space)
        _patch_language(fn)
    return _Kept()


_dtype_of, _dtypes = interpreter._get_np_dtype, {}


def _known_dtype(kind):
    """The interpreter makes a table of all dtypes in each look at one."""
    scalar = kind.scalar
    if scalar.is_ptr():
        return np.dtype(np.uint64)
    if scalar.name not in _dtypes:
        _dtypes[scalar.name] = _dtype_of(scalar)
    return _dtypes[scalar.name]


_make_block, _blocks = tl.core.block_type.__init__, {}


def _known_block(self, element, shape):
    """A type of a block is made anew for each result, its name with it: shape, size and name by extents and element."""
    key = (*(x.value if isinstance(x, tl.constexpr) else x for x in shape), element.name)
    if key not in _blocks:
        _make_block(self, element, shape)
        _blocks[key] = self.shape, self.numel, self.name
    self.element_ty = element
    self.shape, self.numel, self.name = _blocks[key]


_shapes = {}


def _known_shape(self, handle, kind):
    """A tensor's shape, as constants, is made anew for each result."""
    shape = kind.shape if kind.is_block() else ()
    key = tuple(shape)
    if key not in _shapes:
        _shapes[key] = tl.constexpr(math.prod(key)), tl.core.tuple([tl.constexpr(x) for x in key])
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.numel, self.shape = _shapes[key]


_equal_types = tl.core.dtype.__eq__


def _same_type(self, other):
    """Most types that are compared are one object."""
    return self is other or _equal_types(self, other)


def _by_halves(self, values):
    """The interpreter combines one element after the other; a GPU, as here, one half of them with the other."""
    kinds, data = [value.dtype for value in values], [value.handle.data for value in values]
    assert self.axis is not None
    while data[0].shape[self.axis] > 1:
        left, right = zip(*(np.split(x, 2, self.axis) for x in data), strict=True)
        found = self.combine_fn.fn(*map(self.to_tensor, left + right, kinds + kinds))
        data = [x.handle.data for x in (found if isinstance(found, tuple) else (found,))]
    data = data if self.keep_dims else [x.squeeze(self.axis) for x in data]
    return [self.to_tensor(x if x.shape else x.item(), kind) for x, kind in zip(data, kinds, strict=True)]


interpreter.ReduceOps.generic_reduce = _by_halves
interpreter.InterpreterBuilder.create_fma = _fused
interpreter.InterpreterBuilder.create_inline_asm = _assembly
interpreter._patch_lang_tensor = _with_index
interpreter._patch_lang = _once
interpreter._get_np_dtype = _known_dtype
tl.core.dtype.__eq__ = _same_type
tl.core.block_type.__init__ = _known_block
tl.core.tensor.__init__ = _known_shape
# Checks of integers' overflow are computed in 64 bits, three operations for one, and told to nobody without `debug`.
interpreter.interpreter_builder.options = dataclasses.replace(
    interpreter.interpreter_builder.options, sanitize_overflow=False
)


if __name__ == "__main__":
    importlib.import_module(f"tests.cuda.offline.interpreted_{sys.argv[1]}").main(*sys.argv[2:])
