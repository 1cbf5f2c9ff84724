"""The inputs of a forward as the leaves of its call, in whatever way they are given: by position, keyword or default.

Comes in: a forward, the arguments of a call, and how many leaves the verified call had. Goes out: the leaves, or what
is given that was not then; and the same as lines of a guard. Knows nothing of kernels.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.served import Reason, same_constant

PLAIN = (bool, int, float, str)  # defaults that may be given as another object of the same value
OTHERWISE = "is nested otherwise than it was when it was verified."
Arranged = Mapping[str, Any] | None  # the `arrangement` of each argument of the verified call; None: not known


class Input(NamedTuple):
    """One input of a forward."""

    name: str
    default: Any  # `inspect.Parameter.empty` where it has none
    stars: str = ""  # of `*args` and `**kwargs`
    by_place: bool = True  # whether it may be given so


def inputs_of(forward: Callable[..., Any]) -> tuple[Input, ...]:
    """Return the inputs of a forward in their order, without the module."""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = list(inspect.signature(forward).parameters.values())[1:]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(Input(one.name, one.default, stars.get(one.kind, ""), one.kind in by_place) for one in found)


def arrangement(value: Any) -> Any:
    """Return how the leaves of a value lie in it: None of a leaf. The same leaves elsewhere are another call."""
    if value is None or isinstance(value, (torch.Tensor, *PLAIN)):
        return None
    if type(value) in (list, tuple):
        return (type(value).__name__, *[arrangement(item) for item in value])
    if type(value) is dict:
        return ("dict", *[(key, arrangement(item)) for key, item in value.items()])
    items, found = pytree.tree_flatten(value, is_leaf=lambda one: one is not value)
    return None if found.is_leaf() else (found.type, found.context, *[arrangement(item) for item in items])


def arranged_in(
    forward: Callable[..., Any], module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arrangement of each argument of a call; raises TypeError for one that does not fit the forward."""
    bound = _bound(_signature(forward), module, args, kwargs)
    return {name: arrangement(value) for name, value in bound.items()}


def nested(arranged: Arranged) -> bool:
    """Return whether any argument of the verified call has its leaves within it."""
    return arranged is not None and any(arranged.values())


def leaves_traced(
    inputs: Sequence[Input], args: Sequence[Any], kwargs: dict[str, Any], leaves: int, arranged: Arranged
) -> tuple[list[Any], str]:
    """Return what `leaves_given` does, in words that compilers of Python know, or why it is not served."""
    if not kwargs and len(args) == leaves and arranged is None:
        return pytree.tree_leaves(tuple(args)), ""
    given: list[Any] = []
    if not _fit(inputs, args, kwargs):
        return [], "they do not fit the forward."
    for i, one in enumerate(inputs):
        value = _given(inputs, i, args, kwargs)
        if value is inspect.Parameter.empty:
            return [], f"{one.name} is not given."
        if arranged is not None and arrangement(value) != arranged[one.name]:
            return [], f"{one.name} {OTHERWISE}"
        if len(given) < leaves:
            given += pytree.tree_leaves(value)
        elif len(value) if one.stars else not _alike(value, one.default):
            return [], f"{one.name} is given, which was not when it was verified."
    return given, ""


def _fit(inputs: Sequence[Input], args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a forward takes so many arguments by place, and these keywords beside them."""
    stars, by_place = [one.stars for one in inputs], [one.name for one in inputs if one.by_place]
    known = [one.name for one in inputs if not one.stars and one.name not in by_place[: len(args)]]
    few = len(args) <= len(by_place) or "*" in stars
    return few and all(name in known or ("**" in stars and name not in by_place) for name in kwargs)


def _given(inputs: Sequence[Input], i: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what a call has for an input; any keywords in order of name, as `_bound` has them."""
    stars = [one.stars for one in inputs[: i + 1]]
    if stars[-1] == "**":
        names = [one.name for one in inputs]
        return {name: kwargs[name] for name in sorted(kwargs) if name not in names}
    if stars[-1] == "*":
        return tuple(args[i:])
    by_place = i < len(args) and "*" not in stars
    return args[i] if by_place else kwargs.get(inputs[i].name, inputs[i].default)


def _alike(value: Any, default: Any) -> bool:
    """Return whether an input is its default, or of the same value."""
    return value is default or (isinstance(default, PLAIN) and same_constant(value, default))


@functools.cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def leaves_given(
    forward: Callable[..., Any],
    module: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    leaves: int,
    arranged: Arranged,
) -> list[Any] | Reason:
    """Return the leaves of a call in the forward's order; what comes after the verified ones must be its default.

    They have to lie in the arguments as they are `arranged` there, where that is known. Raises TypeError for arguments
    that do not fit the forward.
    """
    signature, given = _signature(forward), list[Any]()
    for name, value in _bound(signature, module, args, kwargs).items():
        found = pytree.tree_leaves(value)
        if arranged is not None and arrangement(value) != arranged[name]:
            return Reason(name, f"{name} {OTHERWISE}")
        if len(given) < leaves:
            given += found
        elif found and not _alike(value, default := _default(signature.parameters[name])):
            told = repr(value) if value is None or isinstance(value, PLAIN) else "given"
            return Reason(name, f"{name} is {told}, and was {default!r} when it was verified.")
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
            default = _default(one)
            is_plain = isinstance(default, PLAIN)
            lines.refuse(lines.unlike_constant(name, default) if is_plain else f"{name} is not {lines.name(default)}")
    if len(given) != len(leaves_given(forward, module, args, kwargs, leaves, None)):  # nested as only pytree knows
        lines.refuse("True")
        given = ["None"] * leaves
    return ", ".join(told), given


def _bound(signature: inspect.Signature, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name in the forward's order; those that it takes any of by keyword in order of name."""
    bound = signature.bind(module, *args, **kwargs)
    bound.apply_defaults()
    for one in signature.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            bound.arguments[one.name] = dict(sorted(bound.arguments[one.name].items()))
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
