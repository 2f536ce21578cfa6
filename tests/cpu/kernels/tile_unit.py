"""AMX's tile unit in NumPy, and the micro-kernel's order of work on it.

`Unit` keeps eight registers of 16 x 64 bytes and knows the four instructions; `emulated` gives `amx`'s drivers, as
Python, micro-kernels that carry out `amx.ORDER` on it and reduce what came before by integer arithmetic. All else, from
addresses to the turns of scratch, is the kernel's own code.
"""

from __future__ import annotations

import ctypes
from types import FunctionType
from typing import Any

import numpy as np

from prismm.cpu.kernels import amx


def at(address: Any, count: int, dtype: str) -> np.ndarray:
    """An array over memory."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(int(address)), dtype)


class Unit:
    """Tile registers, and what is done with them."""

    def __init__(self) -> None:
        self.registers = [np.zeros((16, 64), np.uint8) for _ in range(8)]
        self.operations = 0

    def zero(self, register: int) -> None:
        self.registers[register][:] = 0

    def load(self, register: int, address: int, stride: int) -> None:
        for row in range(16):
            self.registers[register][row] = at(address + row * stride, 64, "u1")

    def store(self, register: int, address: int, stride: int) -> None:
        for row in range(16):
            at(address + row * stride, 64, "u1")[:] = self.registers[register][row]

    def dot(self, sums: int, left: int, right: int) -> None:
        """tdpbsud: signed bytes of a row times unsigned bytes, four rows to a dword."""
        a = self.registers[left].view(np.int8).astype(np.int64)
        b = self.registers[right].reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16).astype(np.int64)
        total = self.registers[sums].view(np.int32).astype(np.int64) + a @ b
        self.registers[sums].view(np.int32)[:] = total.astype(np.int32)  # modulo 2^32
        self.operations += 1


def _micro(unit: Unit, tall: int, modulus_of: dict[int, int]) -> Any:
    def micro(
        a: Any, pitch: Any, panel: Any, steps: Any, fresh: Any, here: Any, before: Any, before_a: Any,
        before_rows: Any, tail: Any, keep: Any, target: Any, table: Any, ahead: Any, ahead_a: Any,
    ) -> None:  # fmt: skip
        a, panel, here, before, before_a = int(a), int(panel), int(here), int(before), int(before_a)
        assert here % 64 == 0 and panel % 64 == 0, "tiles start at a cache line"
        assert before_rows % amx._BESIDE == 0
        sums = [here + 2048 * (r // 2) + 64 * (r % 2) for r in range(2 * tall)]
        for register, place in enumerate(sums):
            if fresh:
                unit.zero(register)
            else:
                unit.load(register, place, 128)
        assert steps >= 1
        for step in range(steps):
            held: dict[str, int] = {}
            for what, which, last in amx.ORDER[tall].split():
                if what == "d":
                    unit.dot(2 * int(which) + int(last), held["a" + which], held["b" + last])
                    continue
                register = int(last)
                assert register >= 2 * tall, "operands stay off the sums"
                held = {name: r for name, r in held.items() if r != register}
                held[what + which] = register
                if what == "a":
                    unit.load(register, a + 64 * step + 16 * int(which) * int(pitch), int(pitch))
                else:
                    unit.load(register, panel + 2048 * step + 64 * int(which), 128)
        for row in range(int(before_rows)):
            offset = at(before_a + row * int(pitch) + int(tail), 1, "i4").astype(np.int64)
            v = at(before + 128 * row, 32, "i4").astype(np.int64) + (int(keep) & offset)
            v = (v + 2**31) % 2**32 - 2**31
            q = modulus_of[int(table)]
            digits = (v + q // 2) % q - q // 2
            at(int(target) + 32 * row, 32, "i1")[:] = digits
        for register, place in enumerate(sums):
            unit.store(register, place, 128)

    return micro


def _begin_with(digits: Any, tile: Any) -> None:
    size = amx.STRIP_ROWS * amx.PANEL
    at(tile, size, "i4")[:] = at(digits, size, "i1")


def emulated(modulus: np.ndarray, tables: np.ndarray) -> tuple[Any, Unit]:
    """`amx.digits_of` in Python, on an emulated unit."""
    unit = Unit()
    places = {tables.ctypes.data + 16 * which: int(q) for which, q in enumerate(modulus)}

    def plain(function: Any, **others: Any) -> Any:
        code = function.py_func
        return FunctionType(code.__code__, {**code.__globals__, **others}, code.__name__, None, code.__closure__)

    micros = {name: _micro(unit, tall, places) for name, tall in (("_micro1", 1), ("micro2", 2))}
    multiply = plain(
        amx._multiply, _factors=amx._factors.py_func, _block_strips=amx.block_strips,
        _span_steps=amx.span_steps, _begin_with=_begin_with, **micros,
    )  # fmt: skip
    return plain(amx.digits_of, _multiply=multiply, _add_digits=amx._add_digits.py_func), unit
