"""How a module arranges its results: a kernel returns tensors, and callers want the dict or the list that they know.

Comes in: a forward and a call of it. Goes out: the tree of its results, which is asked for without data, and results
arranged so. Knows nothing of kernels.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from rag_kernels.export.serving.contents import Contents

OF_MODULES = frozenset(vars(nn.Module()))  # what every module has
CONTAINERS = (list, dict, set)


class Results:
    """The tree of a forward's results. `others` are leaves that are no tensors, by their places.

    `same` are tensors, by number, that are an input or of the module's state, by its path, or a part of that; `sets`
    are attributes that the module has other values in after the call.
    """

    def __init__(
        self,
        tree: pytree.TreeSpec,
        shapes: tuple[tuple[int, ...], ...],
        others: tuple[tuple[int, Any], ...],
        same: tuple[tuple[int, str, bool], ...],
        sets: tuple[str, ...],
    ) -> None:
        self.tree, self.shapes, self.others = tree, shapes, others  # shapes of the tensors
        self.same, self.sets = same, sets

    def __getstate__(self) -> tuple[Any, ...]:
        """Return it with the tree as what it is a tree of: trees are torch's, which warns of their copies."""
        leaves = list(range(len(self.shapes) + len(self.others)))
        return pytree.tree_unflatten(leaves, self.tree), self.shapes, self.others, self.same, self.sets

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        results, self.shapes, self.others, self.same, self.sets = state
        self.tree = pytree.tree_structure(results)

    def plain(self) -> bool:
        """Return whether it is one tensor, or a tuple of several: what kernels return."""
        alone = self.tree.is_leaf() or (self.tree.type is tuple and len(self.shapes) > 1)
        return alone and not self.others and self.tree.num_children == len(self.shapes) * (not self.tree.is_leaf())

    def set_by(self) -> str:
        """Return what a module sets of its own attributes when it is called, as a reason to call it; "" for nothing."""
        return f"the module sets {', '.join(self.sets)} when it is called, and a kernel sets nothing." * bool(self.sets)

    def arranged(self, made: Any) -> Any:
        """Return what a kernel made, a tensor or several, as the module returns it."""
        leaves = [made] if isinstance(made, torch.Tensor) else list(made)
        for place, value in self.others:
            leaves.insert(place, value)
        return pytree.tree_unflatten(leaves, self.tree)


def results_of(forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Results:
    """Return how a forward arranges its results, for a call with these tensors; raises whatever the forward does."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return results_in(mode, forward, args, kwargs)


def results_in(
    mode: FakeTensorMode, forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Results:
    """Return the same in a mode that is on. A module whose forward it is stays what it was, and what it holds too."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: _fake(mode, t), (tuple(args), kwargs))
    named, module, before = _inputs(forward, args, kwargs), None, dict[str, Any]()
    if isinstance(forward, MethodType) and isinstance(forward.__self__, nn.Module):
        module = _without_data(mode, forward.__self__, {})
        before = _state(module)
        named |= before
        forward = MethodType(forward.__func__, module)
    held = _by_memory(named)
    contents = Contents((path, one) for path, one in before.items() if path.rpartition(".")[2] not in OF_MODULES)
    try:
        leaves, tree = pytree.tree_flatten(forward(*args, **kwargs))
        after = {} if module is None else _state(module)
        own = [path for path, value in after.items() if _other(before.get(path, before), value)]
        sets = tuple(dict.fromkeys([*own, *contents.changed()]))
    finally:
        contents.set_back()
    made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    same = tuple(
        (number, path, _alike(tensor, one))
        for number, tensor in enumerate(made)
        if tensor.layout is torch.strided
        for path, one in held.get(tensor.untyped_storage()._cdata, ())
    )
    shapes = tuple(tuple(tensor.shape) for tensor in made)
    others = tuple((i, v) for i, v in enumerate(leaves) if not isinstance(v, torch.Tensor))
    return Results(tree, shapes, others, same, sets)


def _without_data(mode: FakeTensorMode, module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    """Return a module of the same parts with tensors without data: a forward may set, count and write."""
    if id(module) in known or isinstance(module, torch.jit.ScriptModule):
        return known.get(id(module), module)
    made = known[id(module)] = type(module).__new__(type(module))
    values = vars(module)
    made.__dict__.update(_faked(mode, values))
    made.__dict__.update({kind: _faked(mode, values[kind]) for kind in ("_parameters", "_buffers")})
    parts = {name: part and _without_data(mode, part, known) for name, part in values["_modules"].items()}
    made.__dict__["_modules"] = parts
    if isinstance(made, nn.RNNBase):
        made._init_flat_weights()  # its own list of its weights, which a call would make anew for those of a copy
    return made


def _faked(mode: FakeTensorMode, values: Mapping[str, Any]) -> dict[str, Any]:
    strided = {n for n, v in values.items() if isinstance(v, torch.Tensor) and v.layout is torch.strided}
    return {name: _fake(mode, value) if name in strided else _kept(name, value) for name, value in values.items()}


def _kept(name: str, value: Any) -> Any:
    """Return a container as it is now: a forward may add to it."""
    return copy.copy(value) if type(value) in CONTAINERS and name not in OF_MODULES else value


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor)


def _inputs(forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves of a call by the paths that they have in contracts."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    bound.apply_defaults()
    leaves = [leaf for value in bound.arguments.values() for leaf in pytree.tree_leaves(value)]
    return {str(i): leaf for i, leaf in enumerate(leaves)}


def _state(module: nn.Module) -> dict[str, Any]:
    """Return what a module has, with what is no parameter or buffer of it."""
    plain = {
        f"{path}.{name}".lstrip("."): _kept(name, value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
    }
    named = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return plain | {path: tensor for found in named for path, tensor in found}


def _by_memory(named: Mapping[str, Any]) -> dict[int, list[tuple[str, torch.Tensor]]]:
    found: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for path, tensor in named.items():
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            found.setdefault(tensor.untyped_storage()._cdata, []).append((path, tensor))
    return found


def _other(before: Any, now: Any) -> bool:
    """Return whether an attribute was set to another value, or another one put into it."""
    if type(before) is not type(now) or type(now) not in (*CONTAINERS, bool, int, float, str):
        return before is not now
    try:
        return bool(before != now)
    except (RuntimeError, ValueError, TypeError):  # of tensors in a container, others than before
        return True


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one memory are the same part of it."""
    places = [(t.dtype, t.shape, t.stride(), t.storage_offset(), t.is_neg(), t.is_conj()) for t in (one, other)]
    return places[0] == places[1]


def other_results(found: Results, tensors: int, *, moves: bool) -> str:
    """Return why a kernel's results cannot be arranged so, or "". Where sizes move, numbers may follow them."""
    if len(found.shapes) != tensors:
        return f"the module returns {len(found.shapes)} tensors, and the kernel {tensors}."
    known = (bool, str, type(None)) if moves else (bool, str, type(None), int, float)
    for _, value in found.others:
        if type(value) not in known:
            return f"the module also returns a {type(value).__name__}, which the kernel does not."
    return ""
