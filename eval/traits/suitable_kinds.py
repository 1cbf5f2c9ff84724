"""Which kinds of inputs may a problem be given beside its own? Whether its answer to them is sound is tried elsewhere.

Comes in: a FunctionalProblem, a kind of `input_kinds`, and what the problem's own inputs are like. Goes out: yes or no.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rag_kernels.eval.records import FunctionalProblem, TensorArgument
from rag_kernels.eval.traits.aten import NO_PLACES, base_name, operator
from rag_kernels.eval.traits.index_ties import first_of_equals
from rag_kernels.eval.traits.input_kinds import (
    AGREE,
    AGREEING,
    ALIKE,
    AT_CONSTANTS,
    CONSTANT_ROWS,
    DISORDER,
    ENDS_TOGETHER,
    FROM_END,
    HIDDEN,
    IGNORED,
    INTEGERS,
    IRREGULAR,
    MASKED,
    MOVED,
    MULTIPLES,
    NEARLY,
    ONE_APART,
    OTHER_COLUMNS,
    OTHER_ROWS,
    OUT_OF_RANGE,
    PADDED,
    REPEATED,
    SEARCHED,
    STRIDED,
    TWICE,
    UNEVEN,
    UNTRUE,
    WIDE,
    WIDEST,
)
from rag_kernels.eval.traits.marked_values import ignored_targets
from rag_kernels.eval.traits.steps import alike_inputs, divides_integers, suits

FULL_WIDTH = frozenset({"int32", "int64"})  # of narrower ones wide integers are as wide already
MOST_SEARCHED = 1 << 18  # elements of outputs: inputs are searched for in some forty calls in fp64
INDEX_KINDS = frozenset(
    {"ties", CONSTANT_ROWS, MASKED}
)  # equal values have no one right index, but where the first is taken


def may_be_given(
    fp: FunctionalProblem, kind: str, *, on_gpu: bool, masks: bool, structured: bool, ordered: bool
) -> bool:
    """Return whether inputs of this kind are such as the problem may get, and tell anything there.

    Its own are `masks`, `structured` or `ordered` as its first draw shows.
    """
    if not suits(fp, kind):
        return False
    if kind == OUT_OF_RANGE and (on_gpu or not fp.bounds):  # where a bad index ends all work
        return False
    if not _outputs_decide(fp, kind):
        return False
    integers = [a for a in fp.tensors if a.role == "input" and a.spec.dtype in INTEGERS]
    if not _integers_may(fp, kind, integers, on_gpu=on_gpu):
        return False
    truths = any(a.role == "input" and a.spec.dtype == "bool" for a in fp.tensors)
    if (kind == UNTRUE and not truths) or (kind in (PADDED, *HIDDEN) and not masks):
        return False
    if kind == ALIKE and not (integers or truths):
        return False
    if kind == DISORDER and not (structured or ordered):
        return False
    if kind == UNEVEN and not (structured and any(len(a.spec.shape) == 1 for a in integers)):
        return False
    if kind in AGREEING and not (masks or (fp.bounds and kind == AGREE)):
        return False
    if kind in TWICE and alike_inputs(fp) == tuple(range(len(fp.tensors))):
        return False
    least = 2 if kind in (OTHER_ROWS, OTHER_COLUMNS) else 1
    if kind in MOVED and not any(len(a.spec.shape) >= least and "float" in a.spec.dtype for a in fp.tensors):
        return False
    regular = structured or integers or any(a.role == "parameter" for a in fp.tensors)
    return kind != IRREGULAR or bool(regular)


def _outputs_decide(fp: FunctionalProblem, kind: str) -> bool:
    """Return whether the outputs have one right answer to such inputs, in as many calls as are worth it."""
    indices = any("int" in s.dtype or s.dtype == "bool" for s in fp.outputs)
    if kind in INDEX_KINDS and indices and not first_of_equals(fp):
        return False
    if kind == AT_CONSTANTS and indices and any(operator(node.op).tells_equals_apart for node in fp.nodes):
        return False
    return kind not in SEARCHED or sum(math.prod(s.shape) for s in fp.outputs) <= MOST_SEARCHED


def _integers_may(fp: FunctionalProblem, kind: str, integers: Sequence[TensorArgument], *, on_gpu: bool) -> bool:
    """Return whether its integers may be such.

    A bad index ends a GPU's work: only what is known to be none, or is bounded, is tried there.
    """
    stays = any(operator(node.op).last_write_stays for node in fp.nodes)
    if kind in (REPEATED, ALIKE, ENDS_TOGETHER, ONE_APART, STRIDED, WIDEST) and stays:
        return False
    if kind in (REPEATED, ENDS_TOGETHER, ONE_APART, STRIDED, WIDE, WIDEST) and not integers:
        return False
    if kind == NEARLY and (stays or not {a.path for a in integers} & {bound.path for bound in fp.bounds}):
        return False
    if kind == FROM_END and not any(bound.wraps for bound in fp.bounds):
        return False
    if kind == IGNORED and not ignored_targets(fp):
        return False
    known = len(fp.bounds) == len(integers) or not reads_places(fp)
    if kind in (ONE_APART, STRIDED, WIDE, WIDEST) and on_gpu and not known:
        return False
    if kind in (STRIDED, WIDEST) and not any(a.spec.dtype in FULL_WIDTH for a in _unbounded(fp, integers)):
        return False
    return kind != MULTIPLES or divides_integers(fp)


def reads_places(fp: FunctionalProblem) -> bool:
    """Return whether one of its operators may take whole numbers for places of something, or how often they come."""
    return any(base_name(node.op) not in NO_PLACES for node in fp.nodes)


def _unbounded(fp: FunctionalProblem, integers: Sequence[TensorArgument]) -> list[TensorArgument]:
    """Return the integers that nothing reads as indices."""
    bounded = {*(bound.path for bound in fp.bounds), *fp.as_drawn}
    return [a for a in integers if a.path not in bounded]


def wide_in_words(fp: FunctionalProblem) -> str:
    """Return what the kind of wide integers holds, in words."""
    known = {b.path: f"{b.low} to {b.high - 1}" for b in fp.bounds}
    known |= dict.fromkeys(fp.as_drawn, "from the least to the greatest that the problem draws")
    inputs = [a for a in fp.tensors if a.role == "input" and a.spec.dtype in INTEGERS]
    return ", ".join(f"{known.get(a.path, 'any of either sign')} (`{a.name}`)" for a in inputs)
