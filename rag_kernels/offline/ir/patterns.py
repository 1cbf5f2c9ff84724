"""Shapes of expressions that passes look for.

Comes in: a value. Goes out: the parts of it, or None where it is none of that shape. Knows nothing of languages.
"""

from __future__ import annotations

import math

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF, STORED_ONLY
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.reductions import Kind

Two = tuple[ir.Value, ir.Value]
NARROWED = {
    Operator.AS_FLOAT16: "float16",
    Operator.AS_BFLOAT16: "bfloat16",
    Operator.AS_E4M3: "float8_e4m3fn",
    Operator.AS_E5M2: "float8_e5m2",
}
OF_BITS = {
    Operator.E4M3_OF_BITS: "float8_e4m3fn",
    Operator.E5M2_OF_BITS: "float8_e5m2",
    Operator.FLOAT16_OF_BITS: "float16",
    Operator.BFLOAT16_OF_BITS: "bfloat16",
    Operator.FLOAT32_OF_BITS: "float32",
}
BITS_OF = {
    Operator.BITS_OF_E4M3: "float8_e4m3fn",
    Operator.BITS_OF_E5M2: "float8_e5m2",
    Operator.BITS_OF_FLOAT16: "float16",
    Operator.BITS_OF_BFLOAT16: "bfloat16",
    Operator.BITS_OF_FLOAT32: "float32",
}
EXACT_AS = NARROWED | {operator: dtype for operator, dtype in OF_BITS.items() if dtype in STORED_ONLY}
NAMES_DTYPE = NARROWED | OF_BITS | BITS_OF
HALVED = frozenset(operator for operator, dtype in NARROWED.items() if dtype in HALF)
LEAST_ROWS, LEAST_COLUMNS, LEAST_DEPTH = 4, 8, 4  # of a product in tiles; smaller ones run as any other reduction


def operands(value: ir.Value, operator: Operator) -> tuple[ir.Value, ...] | None:
    """Return what this operator is taken of."""
    return value.args if isinstance(value, ir.Op) and value.operator is operator else None


def strip(value: ir.Value) -> ir.Value:
    """Return the value below operators that only lay dimensions out."""
    while isinstance(value, ir.Op) and value.operator is Operator.SAME:
        value = value.args[0]
    return value


def uncast(value: ir.Value) -> ir.Value:
    """Return the value below casts, roundings to sixteen bits and operators that only lay dimensions out."""
    while isinstance(value, ir.Op) and value.operator in {Operator.SAME, Operator.CAST, *HALVED}:
        value = value.args[0]
    return value


def is_bfloat16(value: ir.Value) -> bool:
    """Return whether a value is one of bfloat16's numbers: read as one, rounded to one, or chosen from such."""
    match strip(value):
        case ir.Load(storage=storage):
            return storage == "bfloat16"
        case ir.Const(number=number, name=""):
            return math.isinf(number) or (abs(number) <= 256 and number == int(number))
        case ir.Op(operator=Operator.WHERE, args=args):
            return all(map(is_bfloat16, args[1:]))
        case ir.Op(operator=operator):
            return operator is Operator.AS_BFLOAT16
        case _:
            return False


def squared(value: ir.Value) -> ir.Value | None:
    """Return x of x * x."""
    found = operands(value, Operator.MUL)
    return found[0] if found and found[0] is found[1] else None


def squared_difference(value: ir.Value) -> Two | None:
    """Return x and m of (x - m) squared."""
    base = squared(value)
    found = operands(base, Operator.SUB) if base else None
    return (found[0], found[1]) if found else None


def sixteen_bits(value: ir.Value) -> str:
    """Return the dtype of sixteen bits that a value has exactly: a tensor's, or what it is rounded to; else ""."""
    found = narrow_dtype(value)
    return found if found in HALF else ""


def narrow_dtype(value: ir.Value) -> str:
    """Return the narrow dtype that a value has exactly: a tensor's, or what it is rounded to; else ""."""
    value = strip(value)
    if isinstance(value, ir.Load):
        return value.storage if value.storage in STORED_ONLY else ""
    return EXACT_AS.get(value.operator, "") if isinstance(value, ir.Op) else ""


def before_rounding(value: ir.Value, dtype: str) -> ir.Value:
    """Return the value that is stored in a dtype without a rounding to it, which storing does anyway."""
    below = strip(value)
    if not isinstance(below, ir.Op) or NARROWED.get(below.operator) != dtype:
        return value
    return ir.Op(value.dims, below.dtype, Operator.SAME, below.args)


def exponential_below(value: ir.Value) -> Two | None:
    """Return x and m of exp(x - m)."""
    if both := operands(value, Operator.EXP_BELOW):
        return both[0], both[1]
    inside = operands(value, Operator.EXP)
    found = operands(inside[0], Operator.SUB) if inside else None
    return (found[0], found[1]) if found else None


def exponentials(value: ir.Reduce) -> tuple[ir.Reduce, bool] | None:
    """Return the maximum of what a sum has exponentials of, and whether 0 stands for that where it is infinite."""
    power = exponential_below(value.arg) if value.kind is Kind.SUM and value.dtype == "float32" else None
    below = strip(power[1]) if power else None
    chosen = operands(below, Operator.WHERE) if below else None
    top = strip(chosen[2]) if chosen else below
    if not power or not isinstance(top, ir.Reduce) or top.kind is not Kind.FASTMAX or top.arg is not power[0]:
        return None
    known = not chosen or (isinstance(chosen[1], ir.Const) and chosen[1].number == 0 and is_infinite(chosen[0], top))
    alike = set(ir.leaves(top.over)) == set(ir.leaves(value.over)) and not top.guards and not value.guards
    return (top, bool(chosen)) if known and alike else None


def is_infinite(condition: ir.Value, x: ir.Value) -> bool:
    """Return whether a condition says that x is infinite."""
    both = operands(strip(condition), Operator.EQ)
    size = operands(strip(both[0]), Operator.ABS) if both else None
    most = both[1] if both else None
    return size is not None and strip(size[0]) is x and isinstance(most, ir.Const) and most.number == math.inf


def mean(value: ir.Value) -> tuple[ir.Value, ir.Size] | None:
    """Return the total and the count of a quotient of both."""
    found = operands(value, Operator.DIV)
    return (found[0], found[1]) if found and isinstance(found[1], ir.Size) else None


def in_double(value: ir.Value) -> ir.Value | None:
    """Return x of x cast to float64."""
    found = operands(value, Operator.CAST)
    return found[0] if found and value.dtype == "float64" else None


def squared_in_double(value: ir.Value) -> ir.Value | None:
    """Return x of the square of x cast to float64."""
    base = squared(value)
    return in_double(base) if base else None


def place_of_extreme(value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Return x, the extreme and the index, of the index where x is the extreme or NaN (`expressions.hit_place`)."""
    chosen = operands(value, Operator.WHERE)
    hit = operands(chosen[0], Operator.OR) if chosen else None
    same = operands(hit[0], Operator.EQ) if hit else None
    nan = operands(hit[1], Operator.NE) if hit else None
    if not chosen or not same or not nan or not nan[0] is nan[1] is same[0] or not isinstance(chosen[2], ir.Const):
        return None
    return same[0], same[1], chosen[1]
