"""Exported modules whose files, parts or tensors are others by now: the kernel is for what it was verified with."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from factories import attempt, candidate, problem
from support.exported_calls import called
from torch import nn

from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Candidate, Problem, TensorArgument, TensorSpec
from rag_kernels.export.forms.module_file import module_text
from rag_kernels.export.serving import served

X = torch.randn(64, 1024)


CHANGED = """
import functools
import torch
import torch.nn as nn

SHIFT = 0.0


@functools.cache
def cached(x):
    return x


def plain(x):
    return x


class Part(nn.Module):
    def forward(self, x):
        return x * getattr(self, "more", 1.0)


class Model(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self._factor = factor
        self.part = Part()

    @staticmethod
    def static(x):
        return x

    @classmethod
    def of_class(cls, x):
        return x

    @property
    def one(self):
        return 1.0

    def forward(self, x):
        y = self.part(self.static(self.of_class(plain(torch.tanh(x)))))
        return y * self._factor * self.one * cached(1.0) + SHIFT


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return [2.0]
"""


@pytest.fixture(scope="module")
def changeable() -> ModuleType:
    p = problem("tanh")
    p = replace(p, problem=Problem("changeable", CHANGED))
    return load_module("changeable", module_text(attempt(p=p, candidate=candidate(p))))


def other(x: Any) -> Any:
    return x * 3.0


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("", "_factor", 9.0),
        ("", "part", nn.ReLU()),
        ("part", "more", 3.0),
        ("part", "forward", other),
        ("Part", "forward", lambda part, x: x * 3.0),
        ("Model", "static", staticmethod(other)),
        ("Model", "of_class", classmethod(lambda cls, x: x * 3.0)),
        ("Model", "one", property(lambda module: 3.0)),
        ("Model", "forward", lambda module, x: x * 3.0),
        ("file", "SHIFT", 3.0),
        ("file", "plain", other),
        ("file", "cached", functools.cache(other)),
    ],
)
def test_what_changed_is_seen_in_calls_and_in_what_is_recorded(
    changeable: ModuleType, place: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after it was recorded, and where nobody called the module before."""
    module, twin, seen = changeable.ModelNew(2.0), changeable.Model(2.0), []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(changeable.COMPILED.name in str(graph.graph))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        whole = torch.compile(module, backend=backend, fullgraph=True)
        torch.testing.assert_close((module(X), whole(X)), (twin(X), twin(X)))
        assert module.kernel_used and seen == [True]
        places = {"": (module, twin), "part": (module.part, twin.part), "file": (changeable,)}
        for changed in places.get(place) or (getattr(changeable, place),):
            monkeypatch.setattr(changed, name, value, raising=False)
        assert not torch.allclose(twin(X), torch.tanh(X) * 2.0)
        torch.testing.assert_close((called(module, X)[0], whole(X)), (twin(X), twin(X)))
        assert not module.kernel_used and seen == [True, False]
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(module, backend=backend, fullgraph=True)(X), twin(X))
        assert seen == [True, False, False]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_is_looked_at_itself_where_it_is_recorded(changeable: ModuleType, copied: Any) -> None:
    sys.modules[changeable.Model.__module__] = changeable
    module = copied(changeable.ModelNew(2.0))
    seen: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(changeable.COMPILED.name in str(graph.graph))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        whole = torch.compile(module, backend=backend, fullgraph=True)
        whole(X)
        module.part.forward = other  # an attribute that no part had
        torch.testing.assert_close(whole(X), other(torch.tanh(X)) * 2.0)
    assert seen == [True, False]


SQUARES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.rand(4, 4)) for _ in range(3))

    def forward(self, x):
        return x * self.a + self.b - self.c


def get_inputs():
    return [torch.randn(4, 4)]


def get_init_inputs():
    return []
"""


SQUARES_CPP = """
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
void squares(In x, In a, In b, In c, rk::Tensor<float> out) {
  for (int i = 0; i < 16; ++i) out.data[i] = x.data[i] * a.data[i] + b.data[i] - c.data[i];
}
RK_EXPORT(forward, squares)
"""


@pytest.fixture(scope="module")
def squares() -> ModuleType:
    names, spec = ("a", "b", "c"), TensorSpec((4, 4), "float32")
    state = [TensorArgument(name, "parameter", spec, name) for name in names]
    functional = "import torch\n\n\ndef module_fn(x, a, b, c):\n    return x * a + b - c\n"
    p = replace(
        problem("tanh"),
        problem=Problem("squares", SQUARES),
        source=functional,
        arguments=(TensorArgument("x", "input", spec, "0"), *state),
        outputs=(spec,),
        constants=(),
    )
    made = attempt(p=p, candidate=Candidate(SQUARES_CPP, "kernel", "cpu"))
    return load_module("squares", module_text(made))


class OfItsOwn(torch.Tensor):
    pass


@pytest.mark.parametrize("at_once", [True, False])
def test_many_tensors_are_asked_at_once_and_say_no_to_all_that_differs(
    squares: ModuleType, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `.data =` the parameter stays the same object; by torch's own check where it is there, else one by one."""
    if not at_once:
        monkeypatch.setattr(served, "tensors_like", lambda values: None)
    x = torch.randn(4, 4)
    changes: list[tuple[str, Any, bool]] = [
        ("other numbers", lambda v: v + 1, True),
        ("transposed", lambda v: v.t(), True),
        ("of strides", lambda v: torch.rand(8, 8)[::2, ::2], True),
        ("double", lambda v: v.double(), False),
        ("a row", lambda v: v[:1], False),
        ("more sizes", lambda v: v[None], False),
    ]
    for told, change, kept in changes:
        module, twin = squares.ModelNew(), squares.Model()
        twin.load_state_dict(module.state_dict())
        with torch.no_grad():
            called(module, x)
            assert module._guard(x) is not None
            module.b.data = twin.b.data = change(module.b.data)
            assert (module._guard(x) is not None) is kept, told
            torch.testing.assert_close(called(module, x)[0], twin(x))
            assert module.kernel_used is kept, told
    module = squares.ModelNew()
    with torch.no_grad():
        called(module, x)
        given = [x.clone(), x.t(), torch.rand(8, 8)[::2, ::2], torch._neg_view(x), module.b, module.b.detach()]
        for one in given:
            assert module._guard(one) is not None
            torch.testing.assert_close(called(module, one)[0], one * module.a + module.b - module.c)
        for one in [x.double(), x[:1], x.as_subclass(OfItsOwn), x.to_sparse(), x.to("meta")]:
            assert module._guard(one) is None
        module.requires_grad_(False)
    assert module._guard(x) is not None and module._guard(x.clone().requires_grad_()) is None


def test_torchs_check_of_tensors_is_known_to_tell_them_apart() -> None:
    assert served._check_tells_apart() and served.tensors_like([X, X[:2]])
    assert served._check_tells_modes("cpu")
    assert served.tensors_like([X, X]) is None  # it also asks whether two are one
