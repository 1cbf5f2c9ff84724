"""A live module that is called as modules of models are: keywords, nested tensors, None, numbers and strings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cli_home import quick_limits
from torch.nn import functional

import rag_kernels
from rag_kernels import wiring
from rag_kernels.best import Best
from rag_kernels.eval.records import ProblemError
from rag_kernels.example_call import Leaves, example_call
from rag_kernels.export.serving.inputs import arranged_in
from rag_kernels.options import OptionError

WIDTH = 32


class Rotated(torch.nn.Module):
    """A norm with rotary places, a mask, and whatever else is given by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        places: tuple[torch.Tensor, torch.Tensor] | None = None,
        use_cache: bool = False,
        *,
        scale: float = 1.0,
        mode: str = "none",
        **more: torch.Tensor,
    ) -> dict[str, Any]:
        y = self.norm(x)
        if places is not None:
            y = y * places[0] + y.flip(-1) * places[1]
        y = functional.gelu(y, approximate=mode) * scale
        if mask is not None:
            y = y.masked_fill(~mask[..., None], 0.0)
        if more:
            y = y * more["gain"] + more["bias"]
        return {"hidden": y, "cache": None, "sums": [y.sum(-1)]}


@dataclass
class Turned:
    """Arguments that torch does not know from the beginning."""

    cosine: torch.Tensor
    scale: float


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Rotated(), Rotated()

    def forward(self, x: torch.Tensor, mask: torch.Tensor, places: Any, rest: dict[str, torch.Tensor]) -> Any:
        x = self.first(x, mask, places=places, scale=0.5, **rest)["hidden"]
        return self.second(x, mask=mask, places=places, scale=0.5, **dict(reversed(rest.items())))


def tensors() -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    places = (torch.randn(8, WIDTH), torch.randn(8, WIDTH))
    rest = {"gain": torch.randn(WIDTH), "bias": torch.randn(WIDTH)}
    return torch.randn(4, 8, WIDTH), torch.rand(4, 8) > 0.3, places, rest


@pytest.fixture(scope="module")
def best() -> Best:
    x, mask, places, rest = tensors()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "Limits", quick_limits)
        return rag_kernels.optimize(
            Rotated().eval(), [x], {"mask": mask, "places": places, "scale": 0.5, **rest}, device="cpu", effort=1,
            rounds=1, drafts=1, archive=":memory:", retrieval="off",
        )  # fmt: skip


def test_leaves_are_numbered_in_the_order_of_the_forward() -> None:
    x, _, places, rest = tensors()
    call, leaves = example_call(Rotated(), {"scale": 0.5, "places": places, "x": x, **rest})
    constants = ((1, "mask", None), (4, "use_cache", False), (5, "scale", 0.5), (6, "mode", "none"))
    assert leaves == Leaves((0, 2, 3, 7, 8), constants)
    in_order = [x, *places, rest["bias"], rest["gain"]]  # any keywords by name
    assert all(one is other for one, other in zip(call.tensors(), in_order, strict=True))


@torch.no_grad()
def test_a_model_that_calls_it_by_keyword_runs_the_kernel(best: Best) -> None:
    x, mask, places, rest = tensors()
    net = Net().eval()
    expected = net(x, mask, places, rest)
    assert rag_kernels.apply(net, [best]) == ["first", "second"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):  # the first call is looked at, later ones pass a guard
            found = net(x, mask, places, rest)
        compiled = torch.compile(net, backend="eager")
        recorded = compiled(x, mask, places, rest)
    with pytest.warns(UserWarning, match="places is nested otherwise than it was when it was verified"):
        otherwise = compiled(x, mask, list(places), rest)
    for one in (found, recorded, otherwise):
        assert list(one) == ["hidden", "cache", "sums"] and one["cache"] is None
        torch.testing.assert_close(one["hidden"], expected["hidden"])
        torch.testing.assert_close(one["sums"], expected["sums"])
    assert [calls.kernel for calls in rag_kernels.apply.report(net)] == [3, 3]  # type: ignore[attr-defined]


@torch.no_grad()
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": 1.0}, "scale is 1.0, and was 0.5 when it was verified"),
        ({"scale": torch.tensor(0.5)}, "scale is a Tensor, and was 0.5"),
        ({"use_cache": True}, "use_cache is True, and was False"),
        ({"use_cache": 0}, "use_cache is 0, and was False"),
        ({"mode": "tanh"}, "mode is 'tanh', and was 'none'"),
        ({"mask": None}, "input 1 is a NoneType"),
    ],
)
def test_a_call_with_other_constants_runs_the_module(best: Best, change: dict[str, Any], said: str) -> None:
    x, mask, places, rest = tensors()
    fast = best.optimized()
    call = {"mask": mask, "places": places, "scale": 0.5, **rest}
    fast(x, **call)
    assert fast.kernel_used
    with pytest.warns(UserWarning, match=said):
        found = fast(x, **(call | change))
    assert not fast.kernel_used
    torch.testing.assert_close(found["hidden"], best.module(x, **(call | change))["hidden"])


def test_what_is_no_call_is_told() -> None:
    x = torch.ones(2, WIDTH)
    with pytest.raises(OptionError, match="is no call: give what the module takes"):
        example_call(Rotated(), 3)
    with pytest.raises(OptionError, match=r"Rotated\.forward.* does not take these inputs: missing a required arg"):
        example_call(Rotated(), {"mask": None})
    with pytest.raises(OptionError, match="is given places, a Net: a kernel takes tensors"):
        example_call(Rotated(), [x], {"places": Net()})
    for other in (type("Kept", (dict,), {})(a=x), Turned(x, 1.0)):
        with pytest.raises(OptionError, match=r"is given places, a \w+: a kernel takes .* or let torch know the class"):
            example_call(Rotated(), [x], {"places": other})
    torch.export.register_dataclass(Turned)
    _, leaves = example_call(Rotated(), [x], {"places": Turned(x, 1.0)})
    assert leaves.tensors == (0, 2) and leaves.others[:2] == ((1, "mask", None), (3, "places", 1.0))
    given = [
        arranged_in(Rotated.forward, Rotated(), [x], {"places": one}) for one in (Turned(x, 2.0), (x, 1.0), [x, 1])
    ]
    assert len({repr(one["places"]) for one in given}) == 3
    for unlike in ([x, None, None, True], [x, None, None, 0], [x, x > 0]):
        with pytest.raises(ProblemError, match="Workloads differ in sizes alone: optimize the module for each other"):
            rag_kernels.optimize(Rotated(), [x], workloads=[unlike], device="cpu", archive=":memory:")
