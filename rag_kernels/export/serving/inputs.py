"""The inputs of a forward as the leaves of its call, in whatever way they are given: by position, keyword or default.

Comes in: a forward, the arguments of a call, and how many leaves the verified call had. Goes out: the leaves, or what
is given that was not then; and the same as lines of a guard. Knows nothing of kernels.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.served import Reason


@functools.cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def leaves_given(
    forward: Callable[..., Any], module: Any, args: Sequence[Any], kwargs: dict[str, Any], leaves: int
) -> list[Any] | Reason:
    """Return the leaves of a call in the forward's order; what comes after the verified ones must be its default.

    Raises TypeError for arguments that do not fit the forward.
    """
    signature, given = _signature(forward), list[Any]()
    for name, value in _bound(signature, module, args, kwargs).items():
        found = pytree.tree_leaves(value)
        if len(given) < leaves:
            given += found
        elif found and value is not (default := _default(signature.parameters[name])):
            return Reason(name, f"{name} is given, and was {default!r} when it was verified.")
    return given


def guarded_inputs(
    lines: Lines, forward: Callable[..., Any], module: Any, args: Sequence[Any], kwargs: dict[str, Any], leaves: int
) -> tuple[str, list[str]]:
    """Return the text of a guard's parameters, and of the leaves of calls that are given like this one."""
    signature, given, told = _signature(forward), list[str](), list[str]()
    for name, value in _bound(signature, module, args, kwargs).items():
        one = signature.parameters[name]
        told += ["*"] * (one.kind is one.KEYWORD_ONLY and "*" not in "".join(told))
        told.append(_parameter(lines, one))
        if len(given) < leaves:
            given += _within(lines, name, value)
        elif one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            lines.refuse(name)
        else:
            lines.refuse(f"{name} is not {lines.name(_default(one))}")
    if len(given) != len(leaves_given(forward, module, args, kwargs, leaves)):  # nested as only pytree knows
        lines.refuse("True")
        given = ["None"] * leaves
    return ", ".join(told), given


def _bound(signature: inspect.Signature, module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind(module, *args, **kwargs)
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[1:])


def _default(one: inspect.Parameter) -> Any:
    """Return what an input was that the verified call has no leaf of."""
    return None if one.default is one.empty else one.default


def _parameter(lines: Lines, one: inspect.Parameter) -> str:
    stars = "*" * (one.kind is one.VAR_POSITIONAL) + "**" * (one.kind is one.VAR_KEYWORD)
    default = "" if one.default is one.empty else f"={lines.name(one.default)}"
    return f"{stars}{one.name}{default}"


def _within(lines: Lines, read: str, value: Any) -> list[str]:
    """Return how the leaves of a value are read, after the question whether they are arranged as in this one."""
    if type(value) not in (list, tuple, dict):
        return [read]
    lines.refuse(f"{lines.type}({read}) is not {lines.name(type(value))}")
    if not isinstance(value, dict):
        lines.refuse(f"{lines.len}({read}) != {len(value)}")
        items = list(enumerate(value))
    else:
        lines.refuse(f"{lines.name(list)}({read}) != {lines.name(list(value))}")
        items = list(value.items())
    return [leaf for key, item in items for leaf in _within(lines, f"{read}[{lines.name(key)}]", item)]
