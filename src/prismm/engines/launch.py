"""Launches of compiled kernels without Triton's own way through arguments, which takes longer than a small product.

Triton compiles a kernel for the types of its arguments, and for which integers are 1 or divisible by 16 and which
pointers are aligned. Where all of these are known to be those of an earlier launch, the kernel that Triton chose then
is launched directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable


class Launches:
    """The launches of products that agree in every shape, stride, type and alignment: each kernel is looked up once."""

    def __init__(self, stream: int = 0) -> None:
        self._compiled: dict[Hashable, tuple[Any, Any, Any, tuple[Any, ...]]] = {}
        self._stream = stream

    def on(self, stream: int) -> Launches:
        """The same kernels on this stream: what one call uses, beside calls of other threads."""
        there = Launches(stream)
        there._compiled = self._compiled
        return there

    def __call__(
        self, name: Hashable, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any
    ) -> None:  # fmt: skip
        """kernel[grid](*arguments, **constants) on the current stream, which `on` has to name from the second launch of
        this name on.

        arguments: all that are no `constexpr`; they stand first in the signature. constants: the others, and Triton's
        options.
        """
        found = self._compiled.get(name)
        if found is None:
            compiled = kernel[grid](*arguments, **constants)
            if compiled is not None:  # None comes from Triton's interpreter
                order = tuple(constants[x] for x in kernel.arg_names[len(arguments) :])
                self._compiled[name] = compiled.run, compiled.function, compiled.packed_metadata, order
            return
        run, function, metadata, order = found
        rows, columns = grid if len(grid) == 2 else (grid[0], 1)
        run(rows, columns, 1, self._stream, function, metadata, None, None, None, *arguments, *order)
