"""Pointwise operators: what each takes, what it gives, and what it costs.

Comes in: nothing. Goes out: the enum `Operator` with its traits. How an operator is written in a language stands in one
dictionary a language beside the printers (`codegen/operator_texts.py`); expressions are composed of operators in
`ir/expressions.py`. Passes match on the members of this enum and never on text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from rag_kernels.offline.ir.dtypes import INTEGERS, is_float

PAIR, PLACE = "maxsum", "place"
"""Dtypes of running pairs: a softmax's maximum and sum, and an extreme with its index."""


class Types(Enum):
    """How the dtypes of operands and result go together."""

    ALIKE = auto()  # all one dtype
    FRACTIONS = auto()  # all one floating dtype
    INTEGRAL = auto()  # all one integer dtype, or truth values
    COMPARED = auto()  # operands of one dtype, a truth value
    LOGICAL = auto()  # truth values
    CHOSEN = auto()  # a truth value, then two operands and a result of one dtype
    CAST = auto()  # any two
    OF_PAIR = auto()  # from or to a running pair
    ANY = auto()


@dataclass(frozen=True, slots=True)
class Traits:
    """What passes ask of an operator."""

    arity: int
    types: Types
    commutative: bool = False
    costly: bool = False  # many operations: worth keeping for a later pass rather than computing again


class Operator(Enum):
    """A pointwise operator. NaN comes through every one that computes, as it does in PyTorch."""

    SAME = auto()  # the operand, its dimensions listed in another way
    CAST = auto()
    ADD = auto()
    SUB = auto()
    MUL = auto()
    DIV = auto()
    DIV_NEAR = auto()  # by one or more, where some last bits do not count
    NEG = auto()
    ABS = auto()
    MAXIMUM = auto()  # a NaN among the operands wins
    MINIMUM = auto()
    QUOTIENT = auto()  # of integers, towards zero
    REST = auto()  # what a division towards zero leaves
    FLOOR = auto()
    CEIL = auto()
    ROUND = auto()  # ties to even
    TRUNC = auto()
    AS_FLOAT16 = auto()  # rounded to sixteen bits, and widened again
    AS_BFLOAT16 = auto()
    SQRT = auto()
    EXP = auto()
    EXP_BELOW = auto()  # exp(x - y), where some last bits do not count
    EXP2 = auto()
    EXPM1 = auto()
    LOG = auto()
    LOG1P = auto()
    LOG2 = auto()
    LOG10 = auto()
    SOFTPLUS = auto()  # log(1 + exp(x)), without overflow
    POW = auto()
    SIN = auto()
    COS = auto()
    TAN = auto()
    ASIN = auto()
    ACOS = auto()
    ATAN = auto()
    ATAN2 = auto()
    SINH = auto()
    COSH = auto()
    TANH = auto()
    ASINH = auto()
    ACOSH = auto()
    ATANH = auto()
    ERF = auto()
    ERFC = auto()
    HYPOT = auto()
    LT = auto()
    LE = auto()
    GT = auto()
    GE = auto()
    EQ = auto()
    NE = auto()
    AND = auto()
    OR = auto()
    NOT = auto()
    BIT_AND = auto()
    BIT_OR = auto()
    BIT_XOR = auto()
    SHIFT_LEFT = auto()
    SHIFT_RIGHT = auto()
    BIT_NOT = auto()
    WHERE = auto()  # a condition, then what it chooses from
    PAIR_TOP = auto()  # the maximum of a softmax's running pair
    PAIR_SUM = auto()  # its sum
    PLACED = auto()  # an element with its index
    PLACE_INDEX = auto()  # the index of an extreme
    PLACE_VALUE = auto()  # the extreme itself
    ATTENTION = auto()  # names what a text of its own reads: queries, keys, values and the score; no printer has it
    READ = auto()  # names what another text of its own reads

    @property
    def traits(self) -> Traits:
        """Return what passes ask of the operator."""
        return _TRAITS[self]


_SUM = Traits(2, Types.ALIKE, commutative=True)
_TWO = Traits(2, Types.ALIKE)
_ONE = Traits(1, Types.ALIKE)
_CHEAP = Traits(1, Types.FRACTIONS)
_COSTLY = Traits(1, Types.FRACTIONS, costly=True)
_ORDER = Traits(2, Types.COMPARED)
_EQUAL = Traits(2, Types.COMPARED, commutative=True)
_LOGICAL = Traits(2, Types.LOGICAL, commutative=True)
_BITS = Traits(2, Types.INTEGRAL, commutative=True)

_TRAITS = {
    Operator.SAME: _ONE,
    Operator.CAST: Traits(1, Types.CAST),
    Operator.ADD: _SUM,
    Operator.SUB: _TWO,
    Operator.MUL: _SUM,
    Operator.DIV: Traits(2, Types.FRACTIONS),
    Operator.DIV_NEAR: Traits(2, Types.FRACTIONS),
    Operator.NEG: _ONE,
    Operator.ABS: _ONE,
    Operator.MAXIMUM: _SUM,
    Operator.MINIMUM: _SUM,
    Operator.QUOTIENT: Traits(2, Types.INTEGRAL),
    Operator.REST: _TWO,
    Operator.FLOOR: _CHEAP,
    Operator.CEIL: _CHEAP,
    Operator.ROUND: _CHEAP,
    Operator.TRUNC: _CHEAP,
    Operator.AS_FLOAT16: _CHEAP,
    Operator.AS_BFLOAT16: _CHEAP,
    Operator.SQRT: _CHEAP,
    Operator.EXP: _COSTLY,
    Operator.EXP_BELOW: Traits(2, Types.FRACTIONS, costly=True),
    Operator.EXP2: _COSTLY,
    Operator.EXPM1: _COSTLY,
    Operator.LOG: _COSTLY,
    Operator.LOG1P: _COSTLY,
    Operator.LOG2: _COSTLY,
    Operator.LOG10: _COSTLY,
    Operator.SOFTPLUS: _COSTLY,
    Operator.POW: Traits(2, Types.FRACTIONS, costly=True),
    Operator.SIN: _COSTLY,
    Operator.COS: _COSTLY,
    Operator.TAN: _COSTLY,
    Operator.ASIN: _COSTLY,
    Operator.ACOS: _COSTLY,
    Operator.ATAN: _COSTLY,
    Operator.ATAN2: Traits(2, Types.FRACTIONS, costly=True),
    Operator.SINH: _COSTLY,
    Operator.COSH: _COSTLY,
    Operator.TANH: _COSTLY,
    Operator.ASINH: _COSTLY,
    Operator.ACOSH: _COSTLY,
    Operator.ATANH: _COSTLY,
    Operator.ERF: _COSTLY,
    Operator.ERFC: _COSTLY,
    Operator.HYPOT: Traits(2, Types.FRACTIONS, commutative=True, costly=True),
    Operator.LT: _ORDER,
    Operator.LE: _ORDER,
    Operator.GT: _ORDER,
    Operator.GE: _ORDER,
    Operator.EQ: _EQUAL,
    Operator.NE: _EQUAL,
    Operator.AND: _LOGICAL,
    Operator.OR: _LOGICAL,
    Operator.NOT: Traits(1, Types.LOGICAL),
    Operator.BIT_AND: _BITS,
    Operator.BIT_OR: _BITS,
    Operator.BIT_XOR: _BITS,
    Operator.SHIFT_LEFT: Traits(2, Types.INTEGRAL),
    Operator.SHIFT_RIGHT: Traits(2, Types.INTEGRAL),
    Operator.BIT_NOT: Traits(1, Types.INTEGRAL),
    Operator.WHERE: Traits(3, Types.CHOSEN),
    Operator.PAIR_TOP: Traits(1, Types.OF_PAIR),
    Operator.PAIR_SUM: Traits(1, Types.OF_PAIR),
    Operator.PLACED: Traits(2, Types.OF_PAIR),
    Operator.PLACE_INDEX: Traits(1, Types.OF_PAIR),
    Operator.PLACE_VALUE: Traits(1, Types.OF_PAIR),
    Operator.ATTENTION: Traits(4, Types.ANY),
    Operator.READ: Traits(0, Types.ANY),
}

_OF_PAIRS = {
    Operator.PAIR_TOP: ((PAIR,), "float32"),
    Operator.PAIR_SUM: ((PAIR,), "float64"),
    Operator.PLACED: (("float32", "int64"), PLACE),
    Operator.PLACE_INDEX: ((PLACE,), "int64"),
    Operator.PLACE_VALUE: ((PLACE,), "float32"),
}


def type_fault(operator: Operator, operands: Sequence[str], result: str) -> str:
    """Return why these dtypes are none of the operator's, or the empty string where they are."""
    traits, told = operator.traits, f"{operator.name} of {', '.join(operands)} as {result}"
    if len(operands) != traits.arity and operator is not Operator.READ:
        return f"{told}: it takes {traits.arity} operands"
    match traits.types:
        case Types.ALIKE:
            right = {*operands} == {result}
        case Types.FRACTIONS:
            right = {*operands} == {result} and is_float(result)
        case Types.INTEGRAL:
            right = {*operands} == {result} and result in INTEGERS
        case Types.COMPARED:
            right = len({*operands}) == 1 and result == "bool"
        case Types.LOGICAL:
            right = {*operands, result} == {"bool"}
        case Types.CHOSEN:
            right = operands[0] == "bool" and {*operands[1:]} == {result}
        case Types.CAST | Types.ANY:
            right = True
        case Types.OF_PAIR:
            right = (tuple(operands), result) == _OF_PAIRS[operator]
    return "" if right else f"{told}: {traits.types.name.lower()} dtypes are wanted"
