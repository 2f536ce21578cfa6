"""Arithmetic on eight float64 or int64 at once, as Python expressions that emit LLVM IR.

Numba's own loops are cut into pieces wherever LLVM cannot prove that arrays do not overlap, and into halves of 256 bits
on processors whose 512-bit units it does not trust. An intrinsic that is written with `Lanes` says what it means:
strict IEEE arithmetic, no contraction, every value in a register. On other processors LLVM splits the eight.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from prismm.cpu.kernels.byte_unit import declared

COUNT = 8
_I1, _I8, _I32, _I64, _F32, _F64 = (
    ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType(),
)  # fmt: skip
FLOATS, INTS, MASK = (ir.VectorType(kind, COUNT) for kind in (_F64, _I64, _I1))
_SINGLES, _BYTES = ir.VectorType(_F32, COUNT), ir.VectorType(_I8, COUNT)
_FIRST = ir.Constant(ir.VectorType(_I32, COUNT), [0] * COUNT)


class Lanes:
    """Eight values of one type; Python's operators act lane by lane, on numbers too; comparisons give masks."""

    def __init__(self, b: Any, value: Any) -> None:
        self.b, self.value = b, value

    @property
    def is_float(self) -> bool:
        """Whether the lanes hold float64 (or float32)."""
        return bool(self.value.type.element in (_F64, _F32))

    def _like(self, other: Lanes | float) -> Any:
        if isinstance(other, Lanes):
            return other.value
        return ir.Constant(self.value.type, [other] * COUNT)

    def _two(self, name: str, other: Lanes | float) -> Lanes:
        return Lanes(self.b, getattr(self.b, name)(self.value, self._like(other)))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._two("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._two("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._two("fmul" if self.is_float else "mul", other)

    def __neg__(self) -> Lanes:
        return Lanes(self.b, self.b.fneg(self.value))

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._two("and_", other)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._two("or_", other)

    def __lshift__(self, other: int) -> Lanes:
        return self._two("shl", other)

    def __rshift__(self, other: int) -> Lanes:
        return self._two("ashr", other)

    def __invert__(self) -> Lanes:
        return Lanes(self.b, self.b.not_(self.value))

    def _compare(self, what: str, other: Lanes | float) -> Lanes:
        compare = self.b.icmp_signed
        if self.is_float:
            # Only "not equal" is true of NaN, as in Python.
            compare = self.b.fcmp_unordered if what == "!=" else self.b.fcmp_ordered
        return Lanes(self.b, compare(what, self.value, self._like(other)))

    def __lt__(self, other: Lanes | float) -> Lanes:
        return self._compare("<", other)

    def __gt__(self, other: Lanes | float) -> Lanes:
        return self._compare(">", other)

    def equals(self, other: Lanes | float) -> Lanes:
        """Mask of equal lanes; of masks: where both are the same."""
        return self._compare("==", other)

    def differs(self, other: Lanes | float) -> Lanes:
        """Mask of unequal lanes, NaN included."""
        return self._compare("!=", other)

    def _unary(self, name: str) -> Lanes:
        return Lanes(self.b, self.b.call(declared(self.b.module, name, FLOATS, [FLOATS]), [self.value]))

    def rint(self) -> Lanes:
        """Nearest integers, ties to even."""
        return self._unary("llvm.rint.v8f64")

    def magnitude(self) -> Lanes:
        """Absolute values of float64."""
        return self._unary("llvm.fabs.v8f64")

    def bits(self) -> Lanes:
        """Float64 as int64."""
        return Lanes(self.b, self.b.bitcast(self.value, INTS))

    def floats(self) -> Lanes:
        """Bits as float64."""
        return Lanes(self.b, self.b.bitcast(self.value, FLOATS))

    def singles(self) -> Lanes:
        """Rounded to float32."""
        return Lanes(self.b, self.b.fptrunc(self.value, _SINGLES))

    def where(self, yes: Lanes | float, no: Lanes) -> Lanes:
        """Of a mask: `yes` where it is set, `no` elsewhere."""
        return Lanes(self.b, self.b.select(self.value, no._like(yes), no.value))

    def store(self, address: Any, align: int = 8) -> None:
        """To eight places from an address on; a mask as eight bytes of 0 and 1."""
        value = self.b.zext(self.value, _BYTES) if self.value.type == MASK else self.value
        # Rows begin at any element: LLVM must not count on the alignment of a whole vector.
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer())).align = min(align, 8)

    def any(self) -> Any:
        """Of a mask: an i64 that is 0 where no lane is set."""
        return self.b.zext(self.b.bitcast(self.value, ir.IntType(COUNT)), _I64)


def fma(x: Lanes, y: Lanes | float, z: Lanes) -> Lanes:
    """x·y + z, rounded once."""
    function = declared(x.b.module, "llvm.fma.v8f64", FLOATS, [FLOATS, FLOATS, FLOATS])
    return Lanes(x.b, x.b.call(function, [x.value, x._like(y), z.value]))


def two_sum(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """As `expansion.two_sum`."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


def fast_two_sum(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """As `expansion.fast_two_sum`."""
    s = x + y
    return s, y - (s - x)


def load(b: Any, address: Any, kind: Any = FLOATS) -> Lanes:
    """Eight values from an address on."""
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = 4 if kind.element == _F32 else 8
    return Lanes(b, value)


def everywhere(b: Any, x: Any) -> Lanes:
    """A scalar, float64 or int64, in all lanes."""
    # The pattern of LLVM for a broadcast, which it turns into one instruction.
    kind = ir.VectorType(x.type, COUNT)
    nothing = ir.Constant(kind, ir.Undefined)
    return Lanes(b, b.shuffle_vector(b.insert_element(nothing, x, ir.Constant(_I32, 0)), nothing, _FIRST))


def number(x: int) -> Any:
    """An int64 constant."""
    return ir.Constant(_I64, x)


def float_at(b: Any, address: Any, offset: int) -> Lanes:
    """The float64 at address + offset, in all lanes."""
    return everywhere(b, b.load(b.inttoptr(b.add(address, number(offset)), _F64.as_pointer())))


def power_of_two(b: Any, exponent: Any) -> Lanes:
    """2^exponent of a scalar int64, in all lanes."""
    # An exponent field with an empty fraction: for normal powers alone.
    return everywhere(b, b.bitcast(b.shl(b.add(exponent, number(1023)), number(52)), _F64))


def loop_over(b: Any, count: Any, start: list[Any], body: Any) -> list[Any]:
    """body(index, values) for index 0, 1, … count - 1, count >= 1, which returns the new values; the last ones."""
    before = b.block
    again, done = b.append_basic_block("lanes"), b.append_basic_block("lanes_done")
    b.branch(again)
    b.position_at_end(again)
    index, values = b.phi(_I64), [b.phi(value.type) for value in start]
    index.add_incoming(number(0), before)
    for value, first in zip(values, start, strict=True):
        value.add_incoming(first, before)
    new = body(index, values)
    following = b.add(index, number(1))
    # The body may have appended blocks of its own: the way back is from where it ended.
    index.add_incoming(following, b.block)
    for value, last in zip(values, new, strict=True):
        value.add_incoming(last, b.block)
    b.cbranch(b.icmp_signed("<", following, count), again, done)
    b.position_at_end(done)
    return list(new)


def loop(b: Any, count: Any, body: Any) -> Any:
    """`loop_over` with one i64, which begins as 0: body(index, total) returns the new total; the last one."""
    return loop_over(b, count, [number(0)], lambda index, values: [body(index, values[0])])[0]
