"""Pointwise operators: what each takes, what it gives, and what it costs.

Comes in: nothing. Goes out: the enum `Operator`, a line each with its traits. How an operator is written stands in one
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
    OF_PAIR = auto()  # from or to a running pair, or bits: the dtypes that the operator names
    ANY = auto()


@dataclass(frozen=True, slots=True)
class Traits:
    """What passes ask of an operator."""

    arity: int
    types: Types
    commutative: bool = False
    costly: bool = False  # many operations: worth keeping for a later pass rather than computing again
    pair: tuple[tuple[str, ...], str] | None = None  # the dtypes of operands and result, where they are OF_PAIR


_SUM = Traits(2, Types.ALIKE, commutative=True)
_TWO = Traits(2, Types.ALIKE)
_ONE = Traits(1, Types.ALIKE)
_CHEAP = Traits(1, Types.FRACTIONS)
_COSTLY = Traits(1, Types.FRACTIONS, costly=True)
_ORDER = Traits(2, Types.COMPARED)
_EQUAL = Traits(2, Types.COMPARED, commutative=True)
_LOGICAL = Traits(2, Types.LOGICAL, commutative=True)
_BITS = Traits(2, Types.INTEGRAL, commutative=True)


class Operator(Enum):
    """A pointwise operator. NaN comes through every one that computes, as it does in PyTorch."""

    traits: Traits  # what passes ask of the operator

    def __new__(cls, traits: Traits) -> Operator:
        made = object.__new__(cls)
        made._value_, made.traits = len(cls.__members__) + 1, traits  # equal traits make no aliases
        return made

    SAME = _ONE  # the operand, its dimensions listed in another way
    CAST = Traits(1, Types.CAST)
    ADD = _SUM
    SUB = _TWO
    MUL = _SUM
    MUL_ROUNDED = _SUM  # of float32 on a GPU: not in one with a sum
    DIV = Traits(2, Types.FRACTIONS)
    DIV_NEAR = Traits(2, Types.FRACTIONS)  # by one or more, where some last bits do not count
    RATIO = Traits(3, Types.FRACTIONS)  # of x, y and 1 / y, all normal numbers: x / y, which rounds alike up to 256
    NEG = _ONE
    ABS = _ONE
    MAXIMUM = _SUM  # a NaN among the operands wins
    MINIMUM = _SUM
    NO_LESS = _TWO  # the operand, or a number where it is less; of zeros as PyTorch's clamp on the device has it
    NO_MORE = _TWO  # the operand, or a number where it is more
    QUOTIENT = Traits(2, Types.INTEGRAL)  # of integers, towards zero
    REST = _TWO  # what a division towards zero leaves
    FLOOR = _CHEAP
    CEIL = _CHEAP
    ROUND = _CHEAP  # ties to even
    TRUNC = _CHEAP
    AS_FLOAT16 = _CHEAP  # rounded to sixteen bits, and widened again
    AS_BFLOAT16 = _CHEAP
    AS_E4M3 = _CHEAP  # the same with eight bits
    AS_E5M2 = _CHEAP
    BITS_OF_E4M3 = Traits(1, Types.OF_PAIR, pair=(("float32",), "uint8"))  # of a number that is rounded to eight bits
    BITS_OF_E5M2 = Traits(1, Types.OF_PAIR, pair=(("float32",), "uint8"))
    E4M3_OF_BITS = Traits(1, Types.OF_PAIR, pair=(("uint8",), "float32"))  # the number that such bits are
    E5M2_OF_BITS = Traits(1, Types.OF_PAIR, pair=(("uint8",), "float32"))
    BITS_OF_FLOAT16 = Traits(1, Types.OF_PAIR, pair=(("float32",), "int16"))  # of a number that is rounded to it
    BITS_OF_BFLOAT16 = Traits(1, Types.OF_PAIR, pair=(("float32",), "int16"))
    BITS_OF_FLOAT32 = Traits(1, Types.OF_PAIR, pair=(("float32",), "int32"))
    FLOAT16_OF_BITS = Traits(1, Types.OF_PAIR, pair=(("int16",), "float32"))
    BFLOAT16_OF_BITS = Traits(1, Types.OF_PAIR, pair=(("int16",), "float32"))
    FLOAT32_OF_BITS = Traits(1, Types.OF_PAIR, pair=(("int32",), "float32"))
    SQRT = _CHEAP
    EXP = _COSTLY
    EXP_BELOW = Traits(2, Types.FRACTIONS, costly=True)  # exp(x - y), where some last bits do not count
    EXP2 = _COSTLY
    EXP2_WHOLE = _CHEAP  # of a whole number
    EXPM1 = _COSTLY
    LOG = _COSTLY
    LOG1P = _COSTLY
    LOG2 = _COSTLY
    LOG10 = _COSTLY
    SOFTPLUS = _COSTLY  # log(1 + exp(x)), without overflow
    POW = Traits(2, Types.FRACTIONS, costly=True)
    SIN = _COSTLY
    COS = _COSTLY
    TAN = _COSTLY
    ASIN = _COSTLY
    ACOS = _COSTLY
    ATAN = _COSTLY
    ATAN2 = Traits(2, Types.FRACTIONS, costly=True)
    SINH = _COSTLY
    COSH = _COSTLY
    TANH = _COSTLY
    ASINH = _COSTLY
    ACOSH = _COSTLY
    ATANH = _COSTLY
    ERF = _COSTLY
    ERFC = _COSTLY
    ERFINV = _COSTLY
    LGAMMA = _COSTLY  # the logarithm of what gamma(x) is but for its sign
    HYPOT = Traits(2, Types.FRACTIONS, commutative=True, costly=True)
    LT = _ORDER
    LE = _ORDER
    GT = _ORDER
    GE = _ORDER
    EQ = _EQUAL
    NE = _EQUAL
    AND = _LOGICAL
    OR = _LOGICAL
    NOT = Traits(1, Types.LOGICAL)
    BIT_AND = _BITS
    BIT_OR = _BITS
    BIT_XOR = _BITS
    SHIFT_LEFT = Traits(2, Types.INTEGRAL)
    SHIFT_RIGHT = Traits(2, Types.INTEGRAL)
    BIT_NOT = Traits(1, Types.INTEGRAL)
    WHERE = Traits(3, Types.CHOSEN)  # a condition, then what it chooses from
    PAIR_TOP = Traits(1, Types.OF_PAIR, pair=((PAIR,), "float32"))  # the maximum of a softmax's running pair
    PAIR_SUM = Traits(1, Types.OF_PAIR, pair=((PAIR,), "float64"))  # its sum
    PLACED = Traits(2, Types.OF_PAIR, pair=(("float32", "int64"), PLACE))  # an element with its index
    PLACE_INDEX = Traits(1, Types.OF_PAIR, pair=((PLACE,), "int64"))  # the index of an extreme
    PLACE_VALUE = Traits(1, Types.OF_PAIR, pair=((PLACE,), "float32"))  # the extreme itself
    # Names what a text of its own reads: queries, keys, values and the score; no printer has it.
    ATTENTION = Traits(4, Types.ANY)
    READ = Traits(0, Types.ANY)  # names what another text of its own reads


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
            right = (tuple(operands), result) == traits.pair
    return "" if right else f"{told}: {traits.types.name.lower()} dtypes are wanted"
