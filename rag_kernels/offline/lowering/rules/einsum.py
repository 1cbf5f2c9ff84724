"""The rule of einsum: products from left to right, by the letters of their operands.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters

from rag_kernels.eval.records import Node, Value
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.lowering.lower import Lowering
from rag_kernels.offline.lowering.rules.product import SUMMED, factor_of, of_factors, operand, shape_of


def einsum(lowering: Lowering, node: Node) -> ir.Value:
    """Return the product of the operands from left to right, as PyTorch multiplies them unless it knows a better order.

    Each letter may stand once in each operand. A dimension that one operand alone has is summed before, and one that no
    later operand has at once, so that a product has two factors.
    """
    operands = node.args[1]
    if not isinstance(operands, tuple):
        raise ir.Unfusable("an einsum of another form")
    terms, output = letters_of(str(node.args[0]), [len(shape_of(lowering, name)) for name in operands])
    if not all((t.isalpha() or not t) and len(set(t)) == len(t) for t in (*terms, output)):
        raise ir.Unfusable("an einsum of another form")
    if len(terms) == 1:
        return rearranged(lowering, lowering.value(operands[0]), terms[0], output)
    values, spelt = [], (*terms, output)
    lanes = [times_used(lowering, operands, spelt, place) for place in range(len(operands))]
    for place, name in enumerate(operands):
        others = set("".join([output, *terms[:place], *terms[place + 1 :]]))
        value = factor_of(lowering, name, lanes=lanes[place])
        if value.dtype not in SUMMED:
            raise ir.Unfusable(f"a product of {value.dtype}")
        alone = [i for i, letter in enumerate(terms[place]) if letter not in others]
        values.append(lowering.reduce("sum", value, alone, keep=False) if alone else value)
        terms[place] = "".join(letter for letter in terms[place] if letter in others)
    letters, total = terms[0], values[0]
    for number, (term, value) in enumerate(zip(terms[1:], values[1:], strict=True), 2):
        later = set("".join([output, *terms[number:]]))
        kept = output if number == len(terms) else "".join(x for x in dict.fromkeys(letters + term) if x in later)
        summed = sorted(set(letters + term) - set(kept))
        factors = []
        given = operand(lowering, total, lanes[0]), operand(lowering, value, lanes[number - 1])
        for side, factor in zip((letters, term), given, strict=True):
            groups = dict(zip(side, factor.dims, strict=True))
            factors.append(lowering.with_dims(factor, tuple(groups.get(letter, ()) for letter in (*kept, *summed))))
        total = of_factors(lowering, factors[0], factors[1], len(summed))
        letters = kept
    return total


def times_used(lowering: Lowering, operands: Sequence[Value], terms: Sequence[str], place: int) -> int:
    """Return how often a product of two operands uses each element of one; 0 where there are more of them.

    `terms` has the letters of the operands as they are given, and of the result.
    """
    if len(operands) != 2:
        return 0
    sizes = dict(zip(terms[1 - place], shape_of(lowering, operands[1 - place]), strict=True))
    return math.prod(size for letter, size in sizes.items() if letter in terms[2] and letter not in terms[place])


def letters_of(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand of an einsum and of its result: those for `...` and for a result that is not
    named too.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    hidden = [rank - len(t.replace("...", "")) if "..." in t else 0 for t, rank in zip(terms, ranks, strict=True)]
    most = max(hidden)
    if not arrow:
        every = inputs.replace(",", "").replace(".", "")
        output = "..." * bool(most) + "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    shared = "".join(free[:most])
    written = [t.replace("...", shared[most - n :]) for t, n in zip(terms, hidden, strict=True)]
    return written, output.replace("...", shared)


def rearranged(lowering: Lowering, value: ir.Value, letters: str, output: str) -> ir.Value:
    """Return one operand of an einsum with its dimensions in another order, summed over those that are left out."""
    gone = [i for i, letter in enumerate(letters) if letter not in output]
    value = lowering.reduce("sum", value, gone, keep=False) if gone else value
    left = [letter for letter in letters if letter in output]
    return lowering.with_dims(value, tuple(value.dims[left.index(letter)] for letter in output))
