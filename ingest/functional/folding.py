"""A problem's text with a `get_inputs` that folds what it draws into bounds, and the text without it.

Comes in: a Problem, and bounds of its integer inputs (`ranges` finds them). Goes out: a Problem. Works on text.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.eval.records import Problem

_MARK = "\n\n# At these sizes: indices are folded into what they index.\n"


@dataclass(frozen=True, slots=True)
class Bound:
    """Values of an input leaf lie in `[low, high)`, or below `low` for sentinels, or are `kept`."""

    path: str
    low: int
    high: int
    wraps: bool
    kept: int | None


def folded(problem: Problem, bounds: list[Bound]) -> Problem:
    """Return the problem with its drawn indices folded into their bounds, or plain where there are none."""
    plain = unfolded(problem)
    return Problem(plain.name, plain.source + _MARK + _wrapper(bounds)) if bounds else plain


def unfolded(problem: Problem) -> Problem:
    """Return the problem without what `folded` added."""
    return Problem(problem.name, problem.source.partition(_MARK)[0])


def _wrapper(bounds: list[Bound]) -> str:
    folds = [f"    fold({b.path}, {b.low}, {b.high}, {b.wraps}, {b.kept})\n" for b in bounds]
    return (
        "_drawn_inputs = get_inputs\n\n\n"
        "def get_inputs():\n"
        "    import torch\n"
        "    from torch.utils import _pytree\n\n"
        "    leaves, tree = _pytree.tree_flatten(_drawn_inputs())\n\n"
        "    def fold(leaf, low, high, wraps, kept):\n"
        "        drawn = leaves[leaf]\n"
        "        if high > torch.iinfo(drawn.dtype).max:\n"
        "            return\n"
        "        beyond = drawn >= high\n"
        "        if kept is not None:\n"
        "            beyond = beyond & (drawn != kept)\n"
        "        values = torch.where(beyond, low + torch.remainder(drawn - low, high - low), drawn)\n"
        "        if wraps:\n"
        "            values = torch.where(drawn < -high, -1 - torch.remainder(-1 - drawn, high), values)\n"
        "        leaves[leaf] = values\n\n" + "".join(folds) + "    return _pytree.tree_unflatten(leaves, tree)\n"
    )
