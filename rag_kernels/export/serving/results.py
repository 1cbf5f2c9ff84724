"""How a module arranges its results: a kernel returns tensors, and callers want the dict or the list that they know.

Comes in: a forward and a call of it. Goes out: the tree of its results, which is asked for without data, and results
arranged so. Knows nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree


class Results:
    """The tree of a forward's results. `others` are leaves that are no tensors, by their places."""

    def __init__(
        self, tree: pytree.TreeSpec, shapes: tuple[tuple[int, ...], ...], others: tuple[tuple[int, Any], ...]
    ) -> None:
        self.tree, self.shapes, self.others = tree, shapes, others  # shapes of the tensors

    def __getstate__(self) -> tuple[Any, ...]:
        """Return it with the tree as what it is a tree of: trees are torch's, which warns of their copies."""
        leaves = list(range(len(self.shapes) + len(self.others)))
        return pytree.tree_unflatten(leaves, self.tree), self.shapes, self.others

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        results, self.shapes, self.others = state
        self.tree = pytree.tree_structure(results)

    def plain(self) -> bool:
        """Return whether it is one tensor, or a tuple of several: what kernels return."""
        alone = self.tree.is_leaf() or (self.tree.type is tuple and len(self.shapes) > 1)
        return alone and not self.others and self.tree.num_children == len(self.shapes) * (not self.tree.is_leaf())

    def arranged(self, made: Any) -> Any:
        """Return what a kernel made, a tensor or several, as the module returns it."""
        leaves = [made] if isinstance(made, torch.Tensor) else list(made)
        for place, value in self.others:
            leaves.insert(place, value)
        return pytree.tree_unflatten(leaves, self.tree)


def results_of(forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Results:
    """Return how a forward arranges its results, for a call with these tensors; raises whatever the forward does."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given, named = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (tuple(args), kwargs))
        return arrangement(forward(*given, **named))


def arrangement(results: Any) -> Results:
    """Return how these are arranged."""
    leaves, tree = pytree.tree_flatten(results)
    shapes = tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))
    return Results(tree, shapes, tuple((i, v) for i, v in enumerate(leaves) if not isinstance(v, torch.Tensor)))


def other_results(found: Results, tensors: int, *, moves: bool) -> str:
    """Return why a kernel's results cannot be arranged so, or "". Where sizes move, numbers may follow them."""
    if len(found.shapes) != tensors:
        return f"the module returns {len(found.shapes)} tensors, and the kernel {tensors}."
    known = (bool, str, type(None)) if moves else (bool, str, type(None), int, float)
    for _, value in found.others:
        if type(value) not in known:
            return f"the module also returns a {type(value).__name__}, which the kernel does not."
    return ""
