"""How each operator is written in C++ and in CUDA, and how operators nest.

Comes in: an operator, the dtype of what it gives, and the form in which it is written. Goes out: a `Text`, in which
`{0}`, `{1}`... stand for the operands and `{T}` for the C type of the result. The functions `rk_exp`, `rk_tanh`... are
those of `math_prelude.py`, which has each for both languages: those of `_libm` by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from rag_kernels.offline.ir.dtypes import is_float
from rag_kernels.offline.ir.operators import Operator

NAME, UNARY, PRODUCT, SUM, SHIFT, ORDER, EQUALITY, BIT_AND, BIT_XOR, BIT_OR, BOTH, EITHER, CHOICE = range(13, 0, -1)
"""How tightly a text binds, as C has it: an operand that binds less stands in parentheses."""


@dataclass(frozen=True, slots=True)
class Text:
    """An operator in C, and how tightly it binds.

    `calls`: the function of `math_prelude` that it calls. `libm`: the one of C's library that this wraps, where there
    is no better one.
    """

    form: str
    binds: int = NAME
    calls: str = ""
    libm: str = ""

    def repeats(self, place: int) -> bool:
        """Return whether an operand is written more than once, so that it must have a name."""
        return self.form.count(f"{{{place}}}") > 1

    def least(self, place: int) -> int:
        """Return how tightly an operand must bind to stand there without parentheses."""
        if self.binds == NAME:
            return CHOICE
        if self.binds in {UNARY, CHOICE, BOTH, EITHER}:
            return self.binds + (self.binds < NAME)
        return self.binds + (place > 0)


def _call(name: str, operands: str = "{0}") -> Text:
    return Text(f"{name}({operands})", calls=name)


def _libm(name: str, operands: str = "{0}") -> Text:
    return replace(_call(f"rk_{name}", operands), libm=name)


C: dict[Operator, Text] = {
    Operator.CAST: Text("{T}({0})"),
    Operator.ADD: Text("{0} + {1}", SUM),
    Operator.SUB: Text("{0} - {1}", SUM),
    Operator.MUL: Text("{0} * {1}", PRODUCT),
    Operator.MUL_ROUNDED: Text("__fmul_rn({0}, {1})"),
    Operator.DIV: Text("{0} / {1}", PRODUCT),
    Operator.DIV_NEAR: Text("__fdividef({0}, {1})"),
    Operator.RATIO: _call("rk_ratio", "{0}, {1}, {2}"),
    Operator.QUOTIENT: Text("{0} / {1}", PRODUCT),
    Operator.REST: _libm("fmod", "{0}, {1}"),
    Operator.NEG: Text("-{0}", UNARY),
    Operator.ABS: _call("rk_abs"),
    Operator.MAXIMUM: Text("{0} < {1} || {1} != {1} ? {1} : {0}", CHOICE),
    Operator.MINIMUM: Text("{1} < {0} || {1} != {1} ? {1} : {0}", CHOICE),
    Operator.NO_LESS: Text("{0} < {1} ? {1} : {0}", CHOICE),
    Operator.NO_MORE: Text("{1} < {0} ? {1} : {0}", CHOICE),
    Operator.FLOOR: _libm("floor"),
    Operator.CEIL: _libm("ceil"),
    Operator.ROUND: _libm("nearbyint"),
    Operator.TRUNC: _libm("trunc"),
    Operator.AS_FLOAT16: _call("rk_float16"),
    Operator.AS_BFLOAT16: _call("rk_bfloat16"),
    Operator.AS_E4M3: _call("rk_e4m3"),
    Operator.AS_E5M2: _call("rk_e5m2"),
    Operator.BITS_OF_E4M3: _call("rk_bits_of_e4m3"),
    Operator.BITS_OF_E5M2: _call("rk_bits_of_e5m2"),
    Operator.E4M3_OF_BITS: _call("rk_e4m3_of_bits"),
    Operator.E5M2_OF_BITS: _call("rk_e5m2_of_bits"),
    Operator.BITS_OF_FLOAT16: _call("rk_bits_of_float16"),
    Operator.BITS_OF_BFLOAT16: _call("rk_bits_of_bfloat16"),
    Operator.BITS_OF_FLOAT32: _call("rk_bits_of_float32"),
    Operator.FLOAT16_OF_BITS: _call("rk_float16_of_bits"),
    Operator.BFLOAT16_OF_BITS: _call("rk_bfloat16_of_bits"),
    Operator.FLOAT32_OF_BITS: _call("rk_float32_of_bits"),
    Operator.SQRT: _libm("sqrt"),
    Operator.EXP: _libm("exp"),
    Operator.EXP_BELOW: _call("rk_exp_below", "{0}, {1}"),
    Operator.EXP2: _libm("exp2"),
    Operator.EXP2_WHOLE: _call("rk_exp2_whole"),
    Operator.EXPM1: _libm("expm1"),
    Operator.LOG: _libm("log"),
    Operator.LOG1P: _libm("log1p"),
    Operator.LOG2: _libm("log2"),
    Operator.LOG10: _libm("log10"),
    Operator.SOFTPLUS: _call("rk_softplus"),
    Operator.POW: _libm("pow", "{0}, {1}"),
    Operator.SIN: _libm("sin"),
    Operator.COS: _libm("cos"),
    Operator.TAN: _libm("tan"),
    Operator.ASIN: _libm("asin"),
    Operator.ACOS: _libm("acos"),
    Operator.ATAN: _libm("atan"),
    Operator.ATAN2: _libm("atan2", "{0}, {1}"),
    Operator.SINH: _libm("sinh"),
    Operator.COSH: _libm("cosh"),
    Operator.TANH: _libm("tanh"),
    Operator.ASINH: _libm("asinh"),
    Operator.ACOSH: _libm("acosh"),
    Operator.ATANH: _libm("atanh"),
    Operator.ERF: _libm("erf"),
    Operator.ERFC: _libm("erfc"),
    Operator.ERFINV: _libm("erfinv"),
    Operator.LGAMMA: _libm("lgamma"),
    Operator.HYPOT: _libm("hypot", "{0}, {1}"),
    Operator.LT: Text("{0} < {1}", ORDER),
    Operator.LE: Text("{0} <= {1}", ORDER),
    Operator.GT: Text("{0} > {1}", ORDER),
    Operator.GE: Text("{0} >= {1}", ORDER),
    Operator.EQ: Text("{0} == {1}", EQUALITY),
    Operator.NE: Text("{0} != {1}", EQUALITY),
    Operator.AND: Text("{0} && {1}", BOTH),
    Operator.OR: Text("{0} || {1}", EITHER),
    Operator.NOT: Text("!{0}", UNARY),
    Operator.BIT_AND: Text("{0} & {1}", BIT_AND),
    Operator.BIT_OR: Text("{0} | {1}", BIT_OR),
    Operator.BIT_XOR: Text("{0} ^ {1}", BIT_XOR),
    Operator.SHIFT_LEFT: Text("{0} << {1}", SHIFT),
    Operator.SHIFT_RIGHT: Text("{0} >> {1}", SHIFT),
    Operator.BIT_NOT: Text("~{0}", UNARY),
    Operator.WHERE: Text("{0} ? {1} : {2}", CHOICE),
    Operator.PAIR_TOP: Text("{0}.top"),
    Operator.PAIR_SUM: Text("{0}.sum"),
    Operator.PLACED: Text("Place{{{0}, uint32_t({1})}}"),
    Operator.PLACE_INDEX: Text("place_of({0})"),
    Operator.PLACE_VALUE: Text("{0}.value"),
}
"""Every operator that is printed."""

C_OF_INTEGERS: dict[Operator, Text] = {
    Operator.REST: _call("rk_rest", "{0}, {1}"),
    Operator.ABS: Text("{0} < 0 ? -{0} : {0}", CHOICE),
    Operator.MAXIMUM: Text("{0} < {1} ? {1} : {0}", CHOICE),
    Operator.MINIMUM: Text("{1} < {0} ? {1} : {0}", CHOICE),
}
CPP_QUOTIENT = _call("rk_quotient", "{0}, {1}")
"""A quotient of 32 bits in C++, of which no processor has vectors."""
CUDA_OF_FLOAT32: dict[Operator, Text] = {
    Operator.MAXIMUM: Text("extreme<true>({0}, {1})"),
    Operator.MINIMUM: Text("extreme<false>({0}, {1})"),
    Operator.NO_LESS: Text("extreme<true>({0}, {1})"),  # one instruction for two; zero wins over -0.0 there
    Operator.NO_MORE: Text("extreme<false>({0}, {1})"),
}
CUDA_BY_NUMBER = Text("{0} * (1.0f / {1})", PRODUCT)
"""A division by a number that a caller gives, which PyTorch multiplies by its reciprocal on a GPU, too."""
CUDA_NEAR: dict[Operator, Text] = {
    Operator.DIV: _call("rk_divide_near", "{0}, {1}"),
    Operator.EXP: _call("rk_exp_near"),
    Operator.EXPM1: _call("rk_expm1_near"),
    Operator.LOG1P: _call("rk_log1p_near"),
    Operator.SOFTPLUS: _call("rk_softplus_near"),
    Operator.TANH: _call("rk_tanh_near"),
    Operator.ERF: _call("rk_erf_near"),
}


class Form(Enum):
    """For what an operator is written."""

    C = auto()
    CUDA = auto()
    CUDA_NEAR = auto()  # where functions may be exact to some bits fewer than float32 has


def on_gpu(*, near: bool) -> Form:
    return Form.CUDA_NEAR if near else Form.CUDA


OF_TRUTH = Text("{T}(int32_t({0}))")  # compilers make no vectors of what turns it into a float at once


def text_of(operator: Operator, dtype: str, operands: str, form: Form = Form.C) -> Text:
    """Return how an operator is written whose result has this dtype, and whose first operand the other."""
    if operator is Operator.CAST and operands == "bool" and is_float(dtype):
        return OF_TRUTH
    if operator is Operator.QUOTIENT and form is Form.C and dtype == "int32":
        return CPP_QUOTIENT
    if not is_float(dtype) and operator in C_OF_INTEGERS:
        return C_OF_INTEGERS[operator]
    if form is not Form.C and dtype == "float32" and operator in CUDA_OF_FLOAT32:
        return CUDA_OF_FLOAT32[operator]
    return CUDA_NEAR[operator] if form is Form.CUDA_NEAR and operator in CUDA_NEAR else C[operator]
