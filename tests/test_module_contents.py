"""What a module holds in containers and objects, one in the other: told apart and set back."""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rag_kernels.export.serving.contents import Contents, opened


class Slotted:
    """Two slots, of which one is empty and one private."""

    __slots__ = ("__own", "other")

    def __init__(self) -> None:
        self.__own: list[int] = [0]

    def add(self) -> list[int]:
        self.__own.append(1)
        return self.__own

    def __repr__(self) -> str:
        return f"{self.__own} {hasattr(self, 'other')}"


class Stern(dict[str, Any]):
    """A dict that refuses to be changed by its own methods once it is frozen."""

    frozen = False

    def __setitem__(self, key: str, value: Any) -> None:
        if self.frozen:
            raise RuntimeError("frozen")
        super().__setitem__(key, value)


def stern() -> Stern:
    made = Stern(a=1)
    made.frozen = True
    return made


def loop() -> list[Any]:
    made: list[Any] = [{}]
    made[0]["again"] = made
    return made


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a list in a dict": (lambda: {"a": [1]}, lambda v: v["a"].append(2)),
    "an order": (lambda: OrderedDict(a=1, b=[2]), lambda v: v.move_to_end("a")),
    "a ring": (lambda: deque([1, 2], maxlen=2), lambda v: v.append(3)),
    "a set in a tuple": (lambda: ({1, 2},), lambda v: v[0].add(3)),
    "a default": (lambda: defaultdict(list), lambda v: v["new"]),
    "a loop": (loop, lambda v: v[0].clear()),
    "a dict of a class of its own": (stern, lambda v: dict.__setitem__(v, "a", 2)),
    "a slot": (Slotted, lambda v: v.add()),
    "a slot that was empty": (Slotted, lambda v: setattr(v, "other", 1)),
    "an attribute that is gone": (lambda: SimpleNamespace(a=1), lambda v: delattr(v, "a")),
    "an object of a method": (lambda: [Slotted().add], lambda v: v[0]()),
    "an argument that is bound": (lambda: partial(print, [1], end=[2]), lambda v: v.keywords["end"].append(1)),
    "a truth value": (lambda: [True], lambda v: v.__setitem__(0, 1)),
    "a tensor in a list": (lambda: [torch.zeros(2)], lambda v: v.__setitem__(0, torch.zeros(2))),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_module_holds_is_told_apart_and_set_back(case: str) -> None:
    make, change = CASES[case]
    value = make()
    before, contents = [repr(value), repr([*map(opened, opened(value))])], Contents([("here", value)])
    assert not contents.changed()
    change(value)
    assert contents.changed() == ("here",)
    contents.set_back()
    assert not contents.changed() and [repr(value), repr([*map(opened, opened(value))])] == before


def test_what_is_not_the_modules_own_is_no_content() -> None:
    """Python's library keeps caches of its own, and tensors are another's to look at."""
    log, tensor = logging.getLogger("a module's"), torch.zeros(2)
    contents = Contents([("log", log), ("tensor", [tensor])])
    vars(log)["new"] = tensor[0] = 1
    assert contents.changed() == ()
