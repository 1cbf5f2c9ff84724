"""What is in containers and objects, one in the other: kept before a forward runs without data, set back after it.

Comes in: values of a module by their paths. Goes out: the paths of what holds something else since, and all as it was.
Tensors are no containers here, nor are objects of PyTorch, of Python's library, of this package and of what closes
itself (`__del__`). Knows nothing of kernels, and imports nothing but Python's library and torch: some exports carry its
text.
"""

from __future__ import annotations

import enum
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import partial
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

ALIKE = (bool, int, float, complex, str, bytes, type(None))  # the same where they are equal
KEPT = (*ALIKE, torch.Tensor, FunctionType, ModuleType, type, enum.Enum)
OURS = "rag_kernels_runtime"  # the packages that carry it begin so
OF_OTHERS = frozenset({*sys.stdlib_module_names, "torch", "rag_kernels"})


class Contents:
    """`roots` are paths and values; what is found in one of them goes by its path."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self._held: dict[int, tuple[str, Any, list[Any]]] = {}
        todo = deque(roots)
        while todo:
            path, value = todo.popleft()
            if not isinstance(value, KEPT) and id(value) not in self._held:
                inside = opened(value)
                self._held[id(value)] = path, value, inside
                todo += [(path, one) for one in inside]

    def changed(self) -> tuple[str, ...]:
        """Return the paths of what holds something else now."""
        return tuple(sorted({path for path, value, inside in self._held.values() if not _alike(opened(value), inside)}))

    def set_back(self) -> None:
        """Let all hold what it held."""
        for _, value, inside in self._held.values():
            if not _alike(opened(value), inside):
                _fill(value, inside)


def opened(value: Any) -> list[Any]:
    """Return what a value holds; of dicts and objects names and values in turn."""
    if isinstance(value, (list, tuple, deque)):
        return list(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=id)
    if isinstance(value, dict):
        pairs = OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)
        return [one for pair in pairs for one in pair]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if not _is_plain(value):
        return []
    filled = [(slot, slot.__get__(value)) for slot in _slots(value) if _is_set(slot, value)]
    return [one for pair in [*getattr(value, "__dict__", {}).items(), *filled] for one in pair]


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is SimpleNamespace or isinstance(value, torch.nn.Module):
        return True
    package = kind.__module__.partition(".")[0]
    return not (package in OF_OTHERS or package.startswith(OURS) or hasattr(kind, "__del__"))


def _slots(value: Any) -> list[MemberDescriptorType]:
    """Return what `__slots__` of its classes made."""
    kinds = [kind for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    return [slot for kind in kinds for slot in vars(kind).values() if isinstance(slot, MemberDescriptorType)]


def _is_set(slot: MemberDescriptorType, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _alike(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(_same, now, before))


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, ALIKE) and one == other)


def _fill(value: Any, inside: list[Any]) -> None:
    """Put back what it held. By the containers' own methods: those of classes made of them may do more."""
    pairs = zip(inside[::2], inside[1::2], strict=False)
    if isinstance(value, list):
        list.__setitem__(value, slice(None), inside)
    elif isinstance(value, deque):
        deque.clear(value)
        deque.extend(value, inside)
    elif isinstance(value, set):
        set.clear(value)
        set.update(value, inside)
    elif isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        kind.clear(value)
        for name, one in pairs:
            kind.__setitem__(value, name, one)
    else:
        _fill_object(value, dict(pairs))


def _fill_object(value: Any, inside: dict[Any, Any]) -> None:
    slots = _slots(value)
    if hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update({name: one for name, one in inside.items() if isinstance(name, str)})
    for slot in slots:
        if slot in inside:
            slot.__set__(value, inside[slot])
        elif _is_set(slot, value):
            slot.__delete__(value)
