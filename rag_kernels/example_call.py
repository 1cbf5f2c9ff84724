"""The example call of a live module: its arguments in the forward's order, taken apart into tensors and the rest.

Comes in: a module, and what it is called with: by position, by keyword, or both. Goes out: the call that is traced, and
which leaves of later calls are the kernel's tensors and which must stay as they are. Knows nothing of kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rag_kernels.ingest.live.called_module import Call
from rag_kernels.options import OptionError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Leaves:
    """The places of a call's tensors among its leaves, and the other leaves: place, name and value of each.

    A leaf is an argument, a default, or what is nested in one, in the order of the forward's arguments.
    """

    tensors: tuple[int, ...]
    others: tuple[tuple[int, str, Any], ...] = field(default=())

    def plain(self) -> bool:
        """Return whether there are tensors alone."""
        return not self.others


def example_call(module: torch.nn.Module, given: Any, kwargs: Mapping[str, Any] | None = None) -> tuple[Call, Leaves]:
    """Return a call of a module's forward with its defaults, and its leaves.

    `given` is a tensor, a sequence of arguments, or a mapping of arguments by name. Raises OptionError for what is none
    of these, what does not fit the forward, and arguments that are neither tensors nor plain values.
    """
    args, named = _arguments(given)
    name = type(module).__name__
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args, **named, **(kwargs or {}))
    except TypeError as error:
        raise OptionError(f"{name}.forward{signature} does not take these inputs: {error}.") from None
    bound.apply_defaults()
    for one in signature.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            bound.arguments[one.name] = dict(sorted(bound.arguments[one.name].items()))
    return Call(bound.args, bound.kwargs), _leaves(name, bound.arguments)


def _arguments(given: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(given, Mapping):
        return (), given
    if isinstance(given, Sequence) and not isinstance(given, str):
        return given, {}
    if not hasattr(given, "dim"):
        raise OptionError(
            f"example_inputs={given!r} is no call: give what the module takes, in a list or by name in a dict."
        )
    return (given,), {}


def _leaves(module: str, arguments: Mapping[str, Any]) -> Leaves:
    import torch
    from torch.utils import _pytree as pytree

    tensors: list[int] = []
    others: list[tuple[int, str, Any]] = []
    for name, value in arguments.items():
        for leaf in pytree.tree_leaves(value):
            place = len(tensors) + len(others)
            if isinstance(leaf, torch.Tensor):
                tensors.append(place)
            elif isinstance(leaf, bool | int | float | str | None | torch.dtype | torch.device):
                others.append((place, name, leaf))
            else:
                raise OptionError(
                    f"{module} is given {name}, a {type(leaf).__name__}: a kernel takes tensors, and numbers, strings, "
                    "truth values and None that stay as they are, in lists, tuples and dicts. Give them so, or let "
                    "torch know the class (torch.export.register_dataclass, torch.utils._pytree.register_pytree_node)."
                )
    return Leaves(tuple(tensors), tuple(others))
