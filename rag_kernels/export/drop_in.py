"""A module whose forward is a kernel where that was verified, and the module's own everywhere else.

Comes in: a module as it was constructed, and the calls that it gets. Goes out: the kernel's result, or the module's with
one warning that names which value differs from what was verified. Files written by `--out best.py` import it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rag_kernels.eval.records import MachineError
from rag_kernels.export.runtime import CompiledForward

Held = tuple[nn.Module, str, tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[Any, ...]]


class KernelNotUsed(UserWarning):
    """A call did not take the kernel; the message says why. Given once a module and reason."""


class DropIn(nn.Module):
    """The first base of a `ModelNew`; the second is the module that it replaces.

    `kernel_used` says whether the last call took the kernel, `kernel_reason` why not, and `kernel_calls` counts calls
    by reason ("" counts those that took it).
    """

    COMPILED: ClassVar[CompiledForward]
    VERIFIED: ClassVar[Callable[[], Sequence[Any]]]  # the problem's `get_init_inputs`

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kernel_used: bool | None = None
        self.kernel_reason = ""
        self.kernel_calls: dict[str, int] = {}
        self._refused = _other_arguments(_original(type(self)).__init__, type(self).VERIFIED(), args, kwargs, self)
        self._held = _held(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._traced(args, kwargs)
        inputs = _positional(_original(type(self)).forward, self, args, kwargs, self.COMPILED.last_leaf)
        reason = self._refused or _changed(self._held)
        values: list[Any] = []
        if not reason:
            values, reason = self.COMPILED.values_or_reason(self, pytree.tree_leaves(tuple(inputs)))
        if not reason:
            try:
                result = self.COMPILED.run(values)
            except MachineError as error:
                reason = self._refused = str(error)
            else:
                self._count("")
                return result
        self._count(reason)
        return super().forward(*args, **kwargs)

    def _traced(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What torch.compile and torch.export record: the operator where its contract holds, else the module."""
        if not self._refused and not kwargs and not _changed_traced(self, self._held):
            result = self.COMPILED.traced(self, pytree.tree_leaves(tuple(args)))
            if result is not None:
                return result
        return super().forward(*args, **kwargs)

    def _count(self, reason: str) -> None:
        self.kernel_used, self.kernel_reason = not reason, reason
        if reason and reason not in self.kernel_calls:
            warnings.warn(f"The compiled kernel is not used: {reason}", KernelNotUsed, stacklevel=4)
        self.kernel_calls[reason] = self.kernel_calls.get(reason, 0) + 1


def _original(cls: type) -> Any:
    """Return the class that comes after `DropIn` among the bases: the module that is replaced."""
    bases = cls.__mro__
    return bases[bases.index(DropIn) + 1]


def _other_arguments(
    init: Callable[..., Any], verified: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any], module: nn.Module
) -> str:
    """Return which constructor argument differs from the verified ones, in whatever way they are given."""
    signature = inspect.signature(init)
    expected, given = signature.bind(module, *verified), signature.bind(module, *args, **kwargs)
    expected.apply_defaults()
    given.apply_defaults()
    for name, value in list(expected.arguments.items())[1:]:
        if repr(given.arguments[name]) != repr(value):
            return f"it was constructed with {name}={given.arguments[name]!r}, and verified with {name}={value!r}."
    return ""


def _positional(
    forward: Callable[..., Any], module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], last: int
) -> Sequence[Any]:
    """Return the inputs in the forward's order, without defaults beyond the verified ones."""
    if not kwargs:
        return args
    signature = inspect.signature(forward)
    bound = signature.bind(module, *args, **kwargs)
    bound.apply_defaults()
    inputs = [*bound.args[1:], *bound.kwargs.values()]
    defaults = [p.default for p in list(signature.parameters.values())[1:]]
    while len(inputs) > last + 1 and len(inputs) <= len(defaults) and inputs[-1] is defaults[len(inputs) - 1]:
        inputs.pop()
    return inputs


def _held(module: nn.Module) -> tuple[Held, ...]:
    """Return what a forward may read beside tensors, as it stands: attributes, and `training` where it is asked for."""
    held: list[Held] = []
    by_mode = any(_reads_mode(type(part)) for part in module.modules())
    for path, part in module.named_modules():
        skipped = {"_held", "_refused", "kernel_used", "kernel_reason", "kernel_calls"} if part is module else set()
        names = [
            name
            for name, value in vars(part).items()
            if name not in skipped and not _has_tensors(value) and (by_mode or name != "training")
        ]
        names = [n for n in names if not n.startswith("_") or n in ("_modules", "_forward_hooks", "_forward_pre_hooks")]
        if part is module:  # its own hooks are run around its forward
            names = [n for n in names if "hooks" not in n]
        get = itemgetter(*names, names[0])
        now = tuple(value.copy() if isinstance(value, list | dict) else value for value in get(vars(part)))
        held.append((part, path, tuple(names), get, now))
    return tuple(held)


def _has_tensors(value: Any) -> bool:
    """Tensors are arguments of the kernel, read at each call; `_modules` is compared by identity."""
    return isinstance(value, torch.Tensor) or (
        isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value)
    )


def _reads_mode(kind: type) -> bool:
    for base in kind.__mro__:
        if base in (nn.Module, DropIn, object):
            continue
        try:
            if "training" in inspect.getsource(base):
                return True
        except (OSError, TypeError):
            return True
    return False


def _changed(held: tuple[Held, ...]) -> str:
    """Return which attribute is no longer what it was when the module was constructed."""
    try:
        for part, path, names, get, before in held:
            attributes = part.__dict__
            if get(attributes) != before or "forward" in attributes:
                return _told(attributes, path, names, before)
    except (KeyError, ValueError, RuntimeError) as error:
        return f"an attribute was removed or cannot be compared ({error})."
    return ""


def _told(attributes: dict[str, Any], path: str, names: tuple[str, ...], before: tuple[Any, ...]) -> str:
    prefix = f"{path}." if path else ""
    for name, value in zip(names, before, strict=False):
        if attributes[name] != value:
            if name.startswith("_"):
                return f"{prefix}{name[1:]} changed after construction."
            return f"{prefix}{name} is {attributes[name]!r}, and was {value!r} when it was verified."
    return f"{prefix}forward was replaced."


def _changed_traced(module: nn.Module, held: tuple[Held, ...]) -> bool:
    """The same for a compiler that records Python: plain values only, each of which becomes a guard."""
    for part, _, names, _, before in held:
        for name, value in zip(names, before, strict=False):
            plain = isinstance(value, bool | int | float | str)
            if plain and getattr(part, name) != value:
                return True
    return False
