"""The quick check of an exported module's contract: it says yes where the slow way does, which names what differs."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from rag_kernels.eval.problem import load_module
from rag_kernels.export.drop_in import KernelNotUsed
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving import held
from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.inputs import leaves_traced
from rag_kernels.export.serving.served import same_constant

PROBLEM = """
import torch
import torch.nn as nn

SHIFT = 0.25


class Rate:
    def __init__(self):
        self.value = 1.0


class Part(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features))
        self.gain, self.steps = 2.0, [1.0]

    def forward(self, x):
        return x * self.weight * self.gain


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.part = Part(features)
        self.tied = self.part.weight
        self.rows = nn.ParameterList([torch.rand(features)])
        self.register_buffer("offset", torch.rand(features))
        self.seen = torch.ones(1)  # read, and not given to the kernel
        self.scales, self.rate = [1.0, 1.0], Rate()

    def forward(self, x, power: int = 2, mask=None, *, type=True):
        y = self.part(x.pow(power)) * self.scales[0] * self.rate.value * self.seen + self.rows[0] + self.offset + SHIFT
        y = y if type else y * 2.0
        return y if mask is None else y * mask


def get_inputs():
    return [torch.randn(16, 8)]


def get_init_inputs():
    return [8]
"""
KERNEL = r"""
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
void rows(In x, int64_t power, In weight, In row, In offset, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    out.data[i] = x.data[i] * x.data[i] * weight.data[i % 8] * 2.0f + row.data[i % 8] + offset.data[i % 8] + 0.25f;
}
RK_EXPORT(forward, rows)
"""
COMPILED = CompiledForward(
    KERNEL,
    tier="kernel",
    backend="cpu",
    arguments=[
        ("input", "0", (16, 8), "float32", ("N", 8)),
        ("scalar", "1", 2, "int"),
        ("parameter", "tied", (8,), "float32"),
        ("parameter", "rows.0", (8,), "float32"),
        ("buffer", "offset", (8,), "float32"),
    ],
    constants={},
    outputs=[((16, 8), "float32", ("N", 8))],
    name="guarded_rows",
)
NEW = """

from rag_kernels.export.drop_in import DropIn


class ModelNew(DropIn, Model):
    COMPILED = COMPILED
    VERIFIED = staticmethod(get_init_inputs)
"""


@dataclass
class Call:
    """One call of a module, which a deviation changes."""

    module: Any
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def give(self, x: torch.Tensor) -> None:
        self.args = [x, *self.args[1:]]

    def guarded(self) -> bool:
        """Return whether the quick way says yes."""
        try:
            return self.module._guard(*self.args, **self.kwargs) is not None
        except Exception:
            return False

    def served(self) -> str:
        """Return why the slow way says no."""
        guard, self.module.__dict__["_guard"] = self.module._guard, None
        _, reason = self.module._by_kernel(self.args, self.kwargs)
        self.module.__dict__["_guard"] = guard
        return str(reason.text)


class Other(torch.Tensor):
    """Another class of tensors."""


@contextlib.contextmanager
def forward_gradients() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


def setting(path: str, value: Any) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        owner, _, name = path.rpartition(".")
        setattr(call.module.get_submodule(owner), name, value)

    return change


def wanted(call: Call) -> None:
    call.args[0] = call.args[0].clone().requires_grad_()


def in_a_list(call: Call) -> None:
    call.module.scales[0] = 3.0


def in_a_list_of_a_part(call: Call) -> None:
    call.module.part.steps[0] = 3.0


def in_an_object(call: Call) -> None:
    call.module.rate.value = 3.0


def content_of_what_is_not_given(call: Call) -> None:
    call.module.seen.mul_(2.0)


def reshaped(call: Call) -> None:
    call.module.part.weight.data = torch.rand(1, 8)


def untied(call: Call) -> None:
    call.module.part.weight = nn.Parameter(torch.rand(8))


def hooked(call: Call) -> None:
    call.module.part.register_forward_hook(lambda *_: None)


def removed(call: Call) -> None:
    del call.module.part.gain


def put(**kwargs: Any) -> Callable[[Call], None]:
    return lambda call: call.kwargs.update(kwargs)


def number(value: Any) -> Callable[[Call], None]:
    return lambda call: setattr(call, "args", [call.args[0], value])


DEVIATIONS: dict[str, tuple[str, Callable[[Call], None]]] = {
    "type": ("float64", lambda call: call.give(call.args[0].double())),
    "rank": (r"\[1, \d+, 8\]", lambda call: call.give(call.args[0][None])),
    "size": (r"\[\d+, 7\]", lambda call: call.give(call.args[0][:, :7])),
    "no elements": (r"\[0, 8\]", lambda call: call.give(call.args[0][:0])),
    "layout": ("sparse", lambda call: call.give(call.args[0].to_sparse())),
    "device": ("is on meta", lambda call: call.give(call.args[0].to("meta"))),
    "class": ("is a Other", lambda call: call.give(call.args[0].as_subclass(Other))),
    "no tensor": ("is a int", lambda call: call.give(3)),  # type: ignore[arg-type]
    "gradients": ("gradients are wanted of input 0", wanted),
    "number": ("input 1 is 3, and was verified as 2", number(3)),
    "kind of number": (r"input 1 is 2\.0", number(2.0)),
    "number that is a tensor": (r"input 1 is tensor", number(torch.tensor(2))),
    "left out then": ("mask is given, and was None", put(mask=torch.ones(8))),
    "another default": ("type is False, and was True", put(type=False)),
    "None for a default": ("type is None, and was True", put(type=None)),
    "unknown keyword": ("do not fit the forward", put(more=1)),
    "attribute": (r"part.gain is 3\.0, and was 2\.0", setting("part.gain", 3.0)),
    "removed attribute": ("part.gain was removed", removed),
    "attribute that is read": ("part.forward was set", setting("part.forward", lambda x: x)),
    "within a list": (r"scales is \[3\.0, 1\.0\]", in_a_list),
    "within a list of a part": (r"part.steps is \[3\.0\]", in_a_list_of_a_part),
    "within an object": ("rate is", in_an_object),
    "content of what is not given": ("seen is .*, and was another tensor", content_of_what_is_not_given),
    "part": ("modules changed", setting("part", nn.Identity())),
    "hook": ("part.forward_hooks changed", hooked),
    "tied": ("part.weight is no longer the same tensor", untied),
    "size of a parameter": (r"tied is float32\[1, 8\]", reshaped),
    "buffer": (r"offset is float32\[3\]", setting("offset", torch.rand(3))),
}
MODES: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "autocast": ("autocast is on", lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "forward gradients": ("forward-mode gradients", forward_gradients),
}


@pytest.fixture(scope="module")
def file() -> ModuleType:
    made = load_module("guarded", PROBLEM)
    made.COMPILED = COMPILED
    exec(compile(NEW, "<new>", "exec"), vars(made))
    return made


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def call_of(file: ModuleType, rows: int = 16) -> Call:
    """Return a call that the quick way takes, after a first one that the slow way took."""
    call = Call(file.ModelNew(8), [torch.randn(rows, 8)])
    torch.testing.assert_close(call.module(*call.args), file.Model.forward(call.module, *call.args))
    assert call.module.kernel_used and call.guarded(), call.module.kernel_reason
    torch.testing.assert_close(call.module(*call.args), file.Model.forward(call.module, *call.args))
    return call


def told(call: Call) -> list[str]:
    with pytest.warns(KernelNotUsed) as seen, contextlib.suppress(Exception):  # the module itself may refuse it
        call.module(*call.args, **call.kwargs)
    assert not call.module.kernel_used
    return [str(warning.message) for warning in seen if warning.category is KernelNotUsed]


@pytest.mark.parametrize("field", DEVIATIONS)
def test_each_field_that_differs_is_refused_quickly_and_named_slowly(file: ModuleType, field: str) -> None:
    words, deviate = DEVIATIONS[field]
    call = call_of(file)
    deviate(call)
    with torch.set_grad_enabled(field == "gradients"):
        if field == "gradients":
            call.module.requires_grad_(False)
        assert not call.guarded()
        [said] = told(call)
    assert re.search(words, said), said


def test_of_a_part_the_version_of_its_attributes_is_asked_where_there_is_one(
    file: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is set to an equal value costs a slow call. Where that goes on, or without versions, each value is asked."""
    assert held.version_of_dicts() is not None
    call = call_of(file)
    for number in range(held.MOST_ASKED + 2):
        call.module.part.gain = float("2.0")
        assert call.guarded() is (number >= held.MOST_ASKED)
        call.module(*call.args)
        assert call.module.kernel_used and call.guarded()
    monkeypatch.setattr(held, "version_of_dicts", lambda: None)
    for kept in (call, call_of(file)):
        for name in ("attribute", "removed attribute", "attribute that is read", "part", "hook", "tied"):
            one = Call(copy.deepcopy(kept.module), kept.args)
            one.module(*one.args)
            assert one.guarded()
            DEVIATIONS[name][1](one)
            assert not one.guarded() and one.served(), name


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_is_refused_quickly_and_named_slowly(file: ModuleType, mode: str) -> None:
    words, entered = MODES[mode]
    call = call_of(file)
    with entered():
        assert not call.guarded()
        [said] = told(call)
    assert words in said and call.guarded()


def test_a_global_and_a_trace_are_refused_too(file: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of(file)
    with monkeypatch.context() as patch:
        patch.setattr(file, "SHIFT", 7.0)
        assert not call.guarded() and "SHIFT is 7.0" in call.served()
    torch.testing.assert_close(torch.vmap(call.module)(torch.randn(3, 16, 8)).shape, (3, 16, 8))
    assert "torch.func" in call.module.kernel_reason
    assert call.guarded()


def test_quick_and_slow_agree_over_random_deviations(file: ModuleType) -> None:
    """Of none to two at once, at random sizes, given by position and by keyword."""
    draw, agreed = random.Random(29), {True: 0, False: 0}
    kept = call_of(file)
    for _ in range(150):
        call = Call(copy.deepcopy(kept.module), [torch.randn(draw.choice((1, 2, 16)), 8)])
        call.module.__dict__["_guard"] = None
        call.module(torch.randn(16, 8))
        way = draw.choice(("position", "keyword", "all"))
        if way == "all":
            call.args += [2, None]
        fields = draw.sample(sorted(DEVIATIONS), draw.choice((0, 0, 1, 2)))
        for one in fields:
            with contextlib.suppress(Exception):  # a sparse tensor has no slices, and so on
                DEVIATIONS[one][1](call)
        if way == "keyword":
            names = ("x", "power", "mask")
            call.kwargs = dict(zip(names, call.args, strict=False)) | call.kwargs
            call.args = []
        with ExitStack() as modes, torch.set_grad_enabled(draw.random() < 0.5):
            if draw.random() < 0.1:
                modes.enter_context(MODES[draw.choice(sorted(MODES))][1]())
            quickly, reason = call.guarded(), call.served()
            assert not (quickly and reason), (fields, way, reason)
            assert call.guarded() is not bool(reason), (fields, way, reason)  # sizes are known now
        agreed[not reason] += 1
    assert min(agreed.values()) > 20, agreed


def test_inputs_within_lists_and_defaults_after_them_take_the_kernel() -> None:
    problem = (
        PROBLEM.replace("x, power: int = 2, mask=None", "pair, mask=None")
        .replace("return [torch.randn(16, 8)]", "return [[torch.randn(16, 8), 2]]")
        .replace("x.pow(power)", "pair[0].pow(pair[1])")
    )
    file = load_module("nested", problem)
    file.COMPILED = COMPILED
    exec(compile(NEW, "<new>", "exec"), vars(file))
    x, module = torch.randn(16, 8), file.ModelNew(8)
    for given in [([x, 2],), ([x, 2], None)]:
        torch.testing.assert_close(module(*given), file.Model.forward(module, *given))
        assert module.kernel_used and Call(module, [[x, 2]]).guarded(), module.kernel_reason
    for other in ([x], [x, 2, 2], [x, 3], x):
        call = Call(module, [other])
        assert not call.guarded() and call.served()
    nested = ((x, 2), [[x, 2]], [[x], 2], {"x": x, "power": 2}, deque([x, 2]))
    for args in [[x, 2], *([one] for one in nested)]:  # the same leaves in the same order
        call = Call(module, args)
        assert not call.guarded() and "pair is nested otherwise" in call.served(), args
        assert leaves_traced(module.INPUTS, args, {}, 2, module.GIVEN)[1] == call.served()
    assert not leaves_traced(module.INPUTS, [[x, 2]], {}, 2, module.GIVEN)[1]
    for args, kwargs in (([[x, 2], None, None], {}), ([[x, 2]], {"pair": x}), ([[x, 2]], {"more": x})):
        assert "do not fit" in leaves_traced(module.INPUTS, args, kwargs, 2, module.GIVEN)[1]


CONSTANTS = (0.0, -0.0, math.nan, float("nan"), math.inf, 1, True, 1.0, 0, False, "1", None, torch.float32)


def test_a_constant_is_another_one_by_type_sign_of_zero_and_value_and_nan_is_itself() -> None:
    for known, value in itertools.product(CONSTANTS, CONSTANTS):
        alike = type(value) is type(known) and repr(value) == repr(known)
        lines = Lines()
        lines.same("value", known)
        assert (lines.function("value", "True")(value) is True) is alike is same_constant(value, known), (known, value)


def test_names_of_a_forward_do_not_meet_those_of_the_check() -> None:
    lines = Lines(["g", "g_0", "known"])
    assert not {"g", "g_0", "known"} & {lines.name(3.5), lines.now, lines.type}
    lines.unlike("g", 3.5)
    guard = lines.function("g", "'yes'")
    assert (guard(3.5), guard(7.0 / 2), guard(3)) == ("yes", "yes", None)


OLD = """
from rag_kernels.compiled import CompiledForward

COMPILED = CompiledForward(
    KERNEL,
    tier='kernel',
    backend='cpu',
    arguments=[('input', '0', (16, 8), 'float32'),
               ('scalar', '1', (), 'int'),
               ('parameter', 'tied', (8,), 'float32'),
               ('parameter', 'rows.0', (8,), 'float32'),
               ('buffer', 'offset', (8,), 'float32')],
    constants={},
    outputs=[((16, 8), 'float32')],
    train_mode_only=False,
)


class ModelNew(Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._as_verified = not kwargs and repr(list(args)) == repr(list(get_init_inputs()))

    def forward(self, *args, **kwargs):
        if self._as_verified and not kwargs and COMPILED.fits(self, args):
            return COMPILED(self, args)
        return super().forward(*args, **kwargs)
"""


def test_a_file_that_was_written_in_november_runs() -> None:
    file = load_module("old", f"{PROBLEM}\nKERNEL = {KERNEL!r}\n{OLD}")
    module, x = file.ModelNew(8), torch.randn(16, 8)
    torch.testing.assert_close(module(x, 2), file.Model.forward(module, x, 2))
    assert file.COMPILED.fits(module, [x, 2])
    with pytest.warns(UserWarning, match=r"input 0 is float32\[3, 8\]"):
        torch.testing.assert_close(module(x[:3], 2), file.Model.forward(module, x[:3], 2))
