"""Which problems compute element by element, and which move by a step where rounding decides.

Comes in: a FunctionalProblem. Goes out: yes or no, of its graph. For the judge and for its children; no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec
from rag_kernels.eval.traits.aten import EXACT_OF_WHOLE, OF_DIFFERENCES, ORDERING, Operator, base_name, operator
from rag_kernels.eval.traits.index_ties import as_they_are, names_in
from rag_kernels.eval.traits.input_kinds import (
    ALOFT,
    BALANCED,
    BELOW_ZERO,
    BESIDE,
    BRINK,
    BURSTS,
    CLIMB,
    CLUSTERS,
    CREST,
    DEEP,
    DEEPEST,
    EVERY,
    FADING,
    FAR_ANGLES,
    FAR_APART,
    FAR_NAMED_NUMBERS,
    FAR_PARAMETERS,
    FAR_TOGETHER,
    FITTED,
    HARDLY_JOINED,
    HUGE,
    INTEGERS,
    LARGE_PARAMETERS,
    LATE,
    LEVELS,
    LOW,
    MASKED,
    MASKED_SPIKES,
    NEARLY_ALIKE,
    NEXT_TO_LINES,
    ORTHONORMAL,
    OUTWEIGHED,
    OVERFLOW,
    PIVOTS,
    POWERS,
    SAME_SUMS,
    SEARCHED,
    SIDES,
    SINGLES,
    SIZES,
    SMALL_WHOLE,
    SORTED_ROWS,
    STEEP,
    TAILS,
    TWINS,
    WAYS,
    WHOLE,
)

PRODUCTS, SUMS = frozenset({"mul", "pow", "square"}), frozenset({"sum", "mean"})  # of elements, and of these
SOUGHT_IN = {"searchsorted": 0, "bucketize": 1}  # the position of what ascends
MANY_STEPS = 5
ANGLES = frozenset({"sin", "cos", "tan"})
WEIGHING = frozenset({"softmax", "_softmax", "sigmoid"})
RUNNING = frozenset({"cumprod"})
ADDED_LOGS = frozenset({"logaddexp", "logaddexp2"})
OF_TAILS = frozenset({"erfc", "special_ndtr", "special_log_ndtr", "log_sigmoid", "log_sigmoid_forward"})
DIVISIONS = frozenset({"div", "floor_divide", "remainder", "fmod"})


def is_elementwise(fp: FunctionalProblem) -> bool:
    """Return whether no element of a result comes of elements at other places, however many steps there are."""
    traits = [operator(node.op) for node in fp.nodes]
    return bool(traits) and all(t.elementwise or t.free or t.cost in ("layout", "factory") for t in traits)


def compares(fp: FunctionalProblem) -> bool:
    """Return whether something compares elements, or jumps where they are equal."""
    return any(operator(node.op).jumps for node in fp.nodes)


def has_to_ascend(fp: FunctionalProblem, name: str) -> bool:
    """Return whether an argument may be what is searched in, so that its order is owed."""
    searches = [node for node in fp.nodes if base_name(node.op) in SOUGHT_IN]
    sought_in = {found for node in searches for found in names_in(node.args[SOUGHT_IN[base_name(node.op)] :][:1])}
    known = {a.name for a in fp.tensors}
    return name in sought_in or not sought_in <= known


def divides_integers(fp: FunctionalProblem) -> bool:
    """Return whether whole numbers are divided, or their remainders taken."""
    return any(base_name(node.op) in DIVISIONS and any(s.dtype in INTEGERS for s in node.outputs) for node in fp.nodes)


def multiplies_spread(fp: FunctionalProblem) -> bool:
    """Return whether elements are multiplied of which neither has all (`x[:, :, None] * w[None]`), or products of
    elements are summed (`x.pow(2).mean(-1)`).
    """
    counts = {a.name: math.prod(a.spec.shape) for a in fp.tensors}
    counts |= {node.name: math.prod(node.outputs[0].shape) for node in fp.nodes if node.outputs}
    products = [node for node in fp.nodes if base_name(node.op) == "mul" and len(node.args) == 2]
    factors = [[counts.get(name, 0) for name in names_in(node.args)] for node in products]
    if any(len(f) == 2 and max(f) < counts[node.name] for f, node in zip(factors, products, strict=True)):
        return True
    made = {node.name for node in fp.nodes if base_name(node.op) in PRODUCTS}
    return any(base_name(node.op) in SUMS and not made.isdisjoint(names_in(node.args)) for node in fp.nodes)


def longest_sum(fp: FunctionalProblem) -> int:
    """Return how many elements are summed into one, at most, as far as shapes tell."""
    shapes = {a.name: a.spec.shape for a in fp.tensors}
    shapes |= {node.name: node.outputs[0].shape for node in fp.nodes if node.outputs}
    longest = 1
    for node in fp.nodes:
        given = [shapes[name] for name in names_in(node.args) if shapes.get(name)]
        if not given or not node.outputs:
            continue
        first, result, name = given[0], math.prod(node.outputs[0].shape), base_name(node.op)
        if operator(name).cost == "product" and len(given) > 1:
            longest = max(longest, math.isqrt(math.prod(first) * math.prod(given[1]) // max(1, result)))
        elif "norm" in name and math.prod(first) == result:
            longest = max(longest, _of_a_norm(name, node, first))
        elif math.prod(first) > result:
            longest = max(longest, math.prod(first) // max(1, result))
        elif operator(name).dims:
            longest = max(longest, *first)
    return longest


def _of_a_norm(name: str, node: Node, shape: tuple[int, ...]) -> int:
    """Return how many elements a norm of its argument's shape takes together."""
    sizes = next((value for value in node.args if isinstance(value, list | tuple) and value), ())
    groups = next((value for value in node.args if type(value) is int), 1)
    parts = {"batch_norm": shape[1:2], "instance_norm": shape[:2], "group_norm": (*shape[:1], groups)}
    if name in ("layer_norm", "rms_norm"):
        return math.prod(size for size in sizes if isinstance(size, int))
    return math.prod(shape) // max(1, math.prod(parts.get(name, ())))


def computes_all(fp: FunctionalProblem) -> bool:
    """Return whether no output can be an argument, or lie in one: each holds numbers that are none of its own."""
    held = as_they_are(fp)
    for node in fp.nodes:
        traits = operator(node.op)
        if (traits.cast or traits.idle_if_same or traits.same_value) and not held.isdisjoint(names_in(node.args)):
            held.add(node.name)
    return held.isdisjoint(fp.results)


def orders(fp: FunctionalProblem) -> bool:
    """Return whether it sorts or selects, so that its time may hang on how its elements lie."""
    return any(base_name(node.op) in ORDERING for node in fp.nodes)


def repeats_itself(fp: FunctionalProblem, *, of_any: bool = False) -> bool:
    """Return whether one value goes into many of the same operator, that does not work element by element: steps of a
    walk, of a power iteration, of a recurrent cell; or into many `of_any` operator.
    """
    read = Counter(
        (name, base_name(node.op))
        for node in fp.nodes
        if of_any or operator(node.op).cost == "product"
        for name in set(names_in(node.args))
    )
    return max(read.values(), default=0) >= MANY_STEPS


def has_steps(fp: FunctionalProblem, *, turns: bool = True) -> bool:
    """Return whether something that is computed goes into an operator whose result moves by a step, or `turns`."""
    known = as_they_are(fp)
    for node in fp.nodes:
        traits, read = operator(node.op), set(names_in((*node.args, *(value for _, value in node.kwargs))))
        whole = traits.cast and any("int" in s.dtype for s in node.outputs)
        moves = traits.jumps or traits.tells_equals_apart or whole or (turns and traits.turns)
        if moves and not read <= known:
            return True
    return False


def meets_steps(fp: FunctionalProblem) -> bool:
    """Return whether whole numbers meet its steps exactly, in whatever order their sums and products are computed."""
    traits = [(operator(node.op), base_name(node.op)) for node in fp.nodes]
    plain = all(name in EXACT_OF_WHOLE or t.free or t.cast or t.cost in ("layout", "factory") for t, name in traits)
    return plain and has_steps(fp)


def meets_steps_in_parts(fp: FunctionalProblem) -> bool:
    """Return whether powers of two meet its steps exactly behind a quotient or a mean, in whatever order they are
    computed: of two of these no product is taken.
    """
    known, counts = as_they_are(fp), {a.name: math.prod(a.spec.shape) for a in fp.tensors}
    parts, alone = set[str](), is_elementwise(fp)
    for node in fp.nodes:
        traits, name, read = operator(node.op), base_name(node.op), list(names_in(node.args))
        counts |= {node.name: math.prod(node.outputs[0].shape)} if node.outputs else {}
        if name in ("mean", "div"):
            if not (_halves(counts, node, read) if name == "mean" else _divides_by_power(node, known)):
                return False
            parts.add(node.name)
            continue
        if not (name in EXACT_OF_WHOLE or traits.free or traits.cast or traits.cost in ("layout", "factory")):
            return False
        if alone and name == "mul" and any(isinstance(v, float) and _is_power(v) for v in node.args):
            parts.add(node.name)
            continue
        among = sum(one in parts for one in read) * (2 if name == "square" else 1)
        if among > 1 and (name in PRODUCTS or traits.cost == "product"):
            return False
        if among and not traits.jumps:
            parts.add(node.name)
    return bool(parts) and has_steps(fp)


def _halves(counts: Mapping[str, int], node: Node, read: Sequence[str]) -> bool:
    """Return whether a mean is of a power of two of elements."""
    times = counts.get(read[0], 0) // max(1, counts.get(node.name, 1)) if read else 0
    return times > 0 and times & (times - 1) == 0


def _divides_by_power(node: Node, known: Set[str]) -> bool:
    """Return whether a divisor is an argument as it is, or a number that is a power of two."""
    by = node.args[1] if len(node.args) > 1 else None
    if isinstance(by, Ref):
        return by.name in known
    return isinstance(by, int | float) and _is_power(by)


def _is_power(value: float) -> bool:
    return value != 0 and math.frexp(abs(value))[0] == 0.5


def _chooses_from_inputs(fp: FunctionalProblem) -> bool:
    """Return whether whatever looks for the largest of many does so among inputs as they are, and does no more."""
    known = as_they_are(fp)
    looking = [node for node in fp.nodes if operator(node.op).largest]
    reads = [set(names_in(node.args)) for node in looking]
    return bool(reads) and all(read <= known for read in reads) and all(selects(operator(n.op)) for n in looking)


def selects(traits: Operator) -> bool:
    """Return whether an operator gives some of its elements, or their places, and computes nothing with them."""
    return traits.exact or traits.tells_equals_apart or traits.reads_in_part


def _may_balance(fp: FunctionalProblem, kind: str) -> bool:
    """Return whether several of its operands may make up for each other in this way."""
    names = Counter(base_name(node.op) for node in fp.nodes)
    floats = [a for a in fp.tensors if a.role != "buffer" and a.spec.dtype in ("float32", "float64", "bfloat16")]
    if kind == OUTWEIGHED:
        weighs = any(operator(name).cost == "product" or name in WEIGHING or name in RUNNING for name in names)
        return weighs and sum(len(a.spec.shape) > 1 for a in floats) > 1
    if not is_elementwise(fp):
        return False
    if kind == BELOW_ZERO:
        return sum(a.role == "input" for a in floats) > 1 and any(operator(n).fades or n in ADDED_LOGS for n in names)
    taken = ("mul", "div") if kind == FAR_TOGETHER else ("add", "sub")
    return len(floats) > 2 and sum(names[name] for name in taken) > 1


def alike_inputs(fp: FunctionalProblem) -> tuple[int, ...]:
    """Return for each tensor argument the number of the first input that one tensor may be given for as well: floats of
    the same form that the call does not write to. Else its own.
    """
    first: dict[TensorSpec, int] = {}
    return tuple(
        first.setdefault(a.spec, number)
        if a.role == "input" and "float" in a.spec.dtype and a.spec.shape and a.path not in fp.mutated
        else number
        for number, a in enumerate(fp.tensors)
    )


def _lines_as_long(fp: FunctionalProblem) -> set[int]:
    """Return how long lines are of which several tensors have some, and not as many."""
    shapes = {a.spec.shape for a in fp.tensors if "float" in a.spec.dtype and len(a.spec.shape) > 1}
    lengths = Counter(shape[-1] for shape in shapes)
    return {length for length, count in lengths.items() if count > 1}


def suits(fp: FunctionalProblem, kind: str) -> bool:
    """Return whether a kind of special values is for this problem; most are for all."""
    traits = [operator(node.op) for node in fp.nodes]
    if kind == LOW:
        return any(t.fades for t in traits)
    if kind == DEEP:
        return any(t.largest for t in traits)
    if kind == DEEPEST:
        return _chooses_from_inputs(fp)
    if kind in (MASKED, MASKED_SPIKES, CREST, ALOFT, CLIMB):
        return any(t.largest and not selects(t) for t in traits)
    if kind == FADING:
        floats = [a for a in fp.tensors if a.role == "input" and a.spec.dtype in ("float32", "bfloat16")]
        return len(floats) > 1 and is_elementwise(fp)
    if kind in (SMALL_WHOLE, FAR_APART):
        roles = ("input", "parameter") if kind == SMALL_WHOLE else ("input",)
        suited = is_elementwise(fp) or (kind == SMALL_WHOLE and meets_steps(fp))
        return suited and sum(a.role in roles and "float" in a.spec.dtype for a in fp.tensors) > 1
    if kind == POWERS:
        return meets_steps_in_parts(fp)
    if kind == FAR_ANGLES:
        return is_elementwise(fp) and any(base_name(node.op) in ANGLES for node in fp.nodes)
    if kind in FAR_PARAMETERS:
        own = [a.spec for a in fp.tensors if a.role == "parameter" and "float" in a.spec.dtype]
        return any(kind == LARGE_PARAMETERS or len(spec.shape) < 2 for spec in own)
    if kind in BURSTS:
        return any(t.near or t.parted for t in traits)
    if kind == TAILS:
        return is_elementwise(fp) and any(base_name(node.op) in OF_TAILS for node in fp.nodes)
    if kind in SINGLES:
        single = [a for a in fp.tensors if a.role == "input" and math.prod(a.spec.shape) == 1]
        return any("float" in a.spec.dtype and a.path not in fp.as_drawn for a in single)
    if kind in BESIDE:
        inputs = [a for a in fp.tensors if a.role == "input" and "float" in a.spec.dtype and a.spec.shape]
        mixes = any(t.cost in ("product", "recurrent") for t in traits)
        return len(inputs) > 1 and (kind == NEARLY_ALIKE or not mixes)
    if kind in BALANCED:
        return _may_balance(fp, kind)
    if kind in SIZES:  # products of lines mix their sizes, and beyond fp64 nothing says what is right
        if any(a.spec.dtype in ("bfloat16", "float16") for a in fp.tensors):  # sums of which may overflow or not
            return False
        mixes = any(t.cost in ("product", "recurrent") or t.near for t in traits)
        return not mixes and (is_elementwise(fp) or all(s.dtype != "float64" for s in fp.outputs))
    if kind == FAR_NAMED_NUMBERS:  # beside far numbers the rest of a line is what rounding leaves
        return is_elementwise(fp)
    if kind in WAYS:
        return repeats_itself(fp, of_any=True)
    if kind in ORTHONORMAL:
        return any(t.cost == "product" for t in traits)
    if kind == NEXT_TO_LINES:
        return not is_elementwise(fp) and len(_lines_as_long(fp)) > 0
    if kind in FITTED:
        return any(base_name(node.op) in OF_DIFFERENCES for node in fp.nodes)
    if kind in (SIDES, HARDLY_JOINED, LATE):
        return repeats_itself(fp)
    if kind == SAME_SUMS:
        return compares(fp) and not is_elementwise(fp)
    if kind == CLUSTERS:
        floats = [a for a in fp.tensors if a.role == "input" and "float" in a.spec.dtype]
        return len(floats) > 1 and not is_elementwise(fp)
    if kind in (PIVOTS, SORTED_ROWS, TWINS, EVERY, STEEP, LEVELS):
        return not is_elementwise(fp)
    if kind in SEARCHED:
        return is_elementwise(fp) and not has_steps(fp, turns=False) and any(s.dtype == "float32" for s in fp.outputs)
    if kind == OVERFLOW:
        return any(s.dtype == "float16" for s in fp.outputs)
    if kind in (BRINK, HUGE):
        return is_elementwise(fp)
    return kind != WHOLE or has_steps(fp)
