"""The coverage table: ATen name -> rule. What is not here stays a library call."""

from __future__ import annotations

from rag_kernels.offline.lowering.lower import Rule
from rag_kernels.offline.lowering.pointwise import ALIASES, POINTWISE
from rag_kernels.offline.lowering.rules_norm import (
    batch_norm,
    cross_entropy,
    embedding,
    gather,
    group_norm,
    instance_norm,
    kl_div,
    layer_norm,
    pair_loss,
    rms_norm,
    triplet_margin,
)
from rag_kernels.offline.lowering.rules_point import (
    add_or_sub,
    arange,
    cast,
    clamp,
    divide,
    dropout,
    filled,
    fma_like,
    gelu,
    glu,
    lerp,
    masked_fill,
    mish,
    number,
    pointwise,
    power,
    prelu,
    same,
    softplus,
    where,
    with_numbers,
)
from rag_kernels.offline.lowering.rules_pool import adaptive_avg_pool, avg_pool, max_pool
from rag_kernels.offline.lowering.rules_reduce import (
    arg_extreme,
    cumulative,
    log_softmax,
    logsumexp,
    max_or_min,
    reduction,
    softmax,
    truth,
    variance,
    vector_norm,
)
from rag_kernels.offline.lowering.rules_shape import (
    broadcast_tensors,
    cat,
    chunk,
    expand,
    flip,
    narrow,
    permute,
    reshape,
    select,
    slice_,
    split,
    squeeze,
    triangle,
)


def _pointwise_rules() -> dict[str, Rule]:
    rules = {name: pointwise(template) for name, template in POINTWISE.items()}
    return rules | {alias: rules[name] for alias, name in ALIASES.items()}


RULES: dict[str, Rule] = _pointwise_rules() | {
    "add": add_or_sub("+"), "sub": add_or_sub("-"), "rsub": add_or_sub("-"), "subtract": add_or_sub("-"),
    "div": divide, "divide": divide, "true_divide": divide, "pow": power,
    "clamp": clamp, "clamp_min": clamp, "clamp_max": clamp, "clip": clamp, "hardtanh": clamp,
    "leaky_relu": with_numbers("{0} > 0 ? {0} : {0} * {1}", ("negative_slope", 0.01)),
    "elu": with_numbers("{0} > 0 ? {0} * {2} : {4} * {1} * {2}",
                        ("alpha", 1.0), ("scale", 1.0), ("input_scale", 1.0), first="rk_expm1({0} * {3})"),
    "celu": with_numbers("{0} > 0 ? {0} : {1} * {2}", ("alpha", 1.0), first="rk_expm1({0} / {1})"),
    "selu": with_numbers("{T}(1.0507009873554805) * ({0} > 0 ? {0} : {T}(1.6732632423543772) * {1})",
                         first="rk_expm1({0})"),
    "softplus": softplus, "log_sigmoid": with_numbers("-rk_softplus(-{0})"),
    "hardsigmoid": with_numbers("{0} <= -3 ? {T}(0) : {0} >= 3 ? {T}(1) : {0} / {T}(6) + {T}(0.5)"),
    "hardswish": with_numbers("{0} * ({0} <= -3 ? {T}(0) : {0} >= 3 ? {T}(6) : {0} + {T}(3)) / {T}(6)"),
    "threshold": with_numbers("{0} <= {1} ? {2} : {0}", ("threshold", 0.0), ("value", 0.0)),
    "hardshrink": with_numbers("{0} >= -{1} && {0} <= {1} ? {T}(0) : {0}", ("lambd", 0.5)),
    "softshrink": with_numbers("{0} > {1} ? {0} - {1} : {0} < -{1} ? {0} + {1} : {0} * {T}(0)", ("lambd", 0.5)),
    "gelu": gelu, "mish": mish, "prelu": prelu, "glu": glu, "lerp": lerp,
    "addcmul": fma_like("{0} + {3} * {1} * {2}"), "addcdiv": fma_like("{0} + {3} * {1} / {2}"),
    "clone": same, "contiguous": same, "alias": same, "detach": same, "lift_fresh_copy": same,
    "to": cast, "_to_copy": cast, "type_as": cast, "dropout": dropout, "dropout1d": dropout, "dropout2d": dropout,
    "zeros": filled, "ones": filled, "full": filled, "zeros_like": filled, "ones_like": filled, "full_like": filled,
    "new_zeros": filled, "arange": arange,
    "view": reshape, "reshape": reshape, "_unsafe_view": reshape, "flatten": reshape, "unflatten": reshape,
    "squeeze": squeeze, "unsqueeze": squeeze, "permute": permute, "transpose": permute, "t": permute, "mT": permute,
    "expand": expand, "expand_as": expand, "broadcast_to": expand, "broadcast_tensors": broadcast_tensors,
    "slice": slice_, "narrow": narrow, "select": select, "flip": flip, "chunk": chunk, "split": split,
    "split_with_sizes": split, "cat": cat, "concat": cat, "stack": cat,
    "sum": reduction("sum"), "mean": reduction("mean"), "amax": reduction("max"), "amin": reduction("min"),
    "any": truth("any"), "all": truth("all"), "max": max_or_min("max"), "min": max_or_min("min"),
    "argmax": arg_extreme("max"), "argmin": arg_extreme("min"), "var": variance(False), "std": variance(True),
    "linalg_vector_norm": vector_norm, "norm": vector_norm,
    "softmax": softmax, "_softmax": softmax, "log_softmax": log_softmax, "_log_softmax": log_softmax,
    "logsumexp": logsumexp, "cumsum": cumulative("sum"), "cumprod": cumulative("prod"),
    "layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm, "instance_norm": instance_norm,
    "group_norm": group_norm,
    "mse_loss": pair_loss("({0} - {1}) * ({0} - {1})"), "l1_loss": pair_loss("rk_abs({0} - {1})"),
    "smooth_l1_loss": pair_loss(
        "rk_abs({0} - {1}) < {2} ? {T}(0.5) * ({0} - {1}) * ({0} - {1}) / {2} : rk_abs({0} - {1}) - {T}(0.5) * {2}",
        ("beta", 1.0)),
    "huber_loss": pair_loss(
        "rk_abs({0} - {1}) <= {2} ? {T}(0.5) * ({0} - {1}) * ({0} - {1}) : {2} * (rk_abs({0} - {1}) - {T}(0.5) * {2})",
        ("delta", 1.0)),
    "kl_div": kl_div, "triplet_margin_loss": triplet_margin, "tensor": number,
    "cross_entropy_loss": cross_entropy, "gather": gather, "embedding": embedding,
    "max_pool1d": max_pool(1), "max_pool2d": max_pool(2), "max_pool3d": max_pool(3),
    "avg_pool1d": avg_pool(1), "avg_pool2d": avg_pool(2), "avg_pool3d": avg_pool(3),
    "adaptive_avg_pool1d": adaptive_avg_pool(1), "adaptive_avg_pool2d": adaptive_avg_pool(2),
    "adaptive_avg_pool3d": adaptive_avg_pool(3),
    "tril": triangle(False), "triu": triangle(True), "masked_fill": masked_fill, "where": where,
}  # fmt: skip
