"""Pointwise operator coverage: ATen name -> C expression over `{0}`, `{1}`... that calls functions of the prelude.

Comes in: the base name of an ATen operator. Goes out: a template; `{T}` is the C type of the result. The functions
`rk_exp`, `rk_tanh`... are defined by each backend's prelude. Knows nothing of shapes: the files `rules_*.py` have the
operators that need more than one expression.
"""

# NaN must come through every one of these as it does in PyTorch: hence `a < b ? b : a` and not fmax.
POINTWISE: dict[str, str] = {
    "abs": "rk_abs({0})",
    "acos": "rk_acos({0})",
    "asin": "rk_asin({0})",
    "atan": "rk_atan({0})",
    "bitwise_and": "{0} & {1}",
    "bitwise_not": "!{0}",
    "bitwise_or": "{0} | {1}",
    "ceil": "rk_ceil({0})",
    "cos": "rk_cos({0})",
    "cosh": "rk_cosh({0})",
    "div": "{T}({0}) / {T}({1})",
    "eq": "{0} == {1}",
    "erf": "rk_erf({0})",
    "exp": "rk_exp({0})",
    "expm1": "rk_expm1({0})",
    "floor": "rk_floor({0})",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "isnan": "{0} != {0}",
    "le": "{0} <= {1}",
    "log": "rk_log({0})",
    "log1p": "rk_log1p({0})",
    "log10": "rk_log10({0})",
    "log2": "rk_log2({0})",
    "logical_and": "({0} != 0) && ({1} != 0)",
    "logical_not": "!({0} != 0)",
    "logical_or": "({0} != 0) || ({1} != 0)",
    "lt": "{0} < {1}",
    "maximum": "({0} < {1} || {1} != {1}) ? {1} : {0}",
    "minimum": "({1} < {0} || {1} != {1}) ? {1} : {0}",
    "mul": "{0} * {1}",
    "ne": "{0} != {1}",
    "neg": "-{0}",
    "reciprocal": "{T}(1) / {0}",
    "relu": "{0} < 0 ? {T}(0) : {0}",
    "relu6": "{0} < 0 ? {T}(0) : {0} > 6 ? {T}(6) : {0}",
    "round": "rk_nearbyint({0})",
    "rsqrt": "{T}(1) / rk_sqrt({0})",
    "sigmoid": "{T}(1) / ({T}(1) + rk_exp(-{0}))",
    "sign": "{T}(({0} > 0) - ({0} < 0))",
    "silu": "{0} / ({T}(1) + rk_exp(-{0}))",
    "sin": "rk_sin({0})",
    "sinh": "rk_sinh({0})",
    "sqrt": "rk_sqrt({0})",
    "square": "{0} * {0}",
    "tan": "rk_tan({0})",
    "tanh": "rk_tanh({0})",
    "trunc": "rk_trunc({0})",
    "where": "{0} ? {T}({1}) : {T}({2})",
}

# Templates that cost many operations: worth keeping for a later pass rather than computing again.
EXPENSIVE = tuple("rk_exp rk_tanh rk_erf rk_log rk_softplus rk_pow rk_sin rk_cos rk_tan".split())
