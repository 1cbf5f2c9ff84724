"""What modules do in their forwards, as functions: state, random draws, numbers, conversions, writes in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.kept import kept_workers
from support.recorded_forwards import HEAD, problem
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Problem, ScalarArgument
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.gradients import backward_problem
from rag_kernels.ingest.graphs.stand_ins import assertions_hold, windows_at_once


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as started:
        yield started


IMAGE = "torch.randn(2, 4, 8, 8)"


def test_batchnorm_uses_batch_statistics_and_updates_its_buffers(workers: Workers) -> None:
    case = problem("self.bn = nn.BatchNorm2d(4)", "return self.bn(x)", "torch.randn(8, 4, 5, 5) * 3 + 1")
    done = functionalize(case, workers=workers)
    assert [a.name for a in done.arguments] == ["x", "bn_weight", "bn_bias"]
    assert done.mutated == ("bn.num_batches_tracked", "bn.running_mean", "bn.running_var")
    assert "training=True, eps=eps" in done.source and done.verified


def test_a_module_may_read_tensor_values_while_it_is_built(workers: Workers) -> None:
    init = "self.rates = [r.item() for r in torch.linspace(0, 0.5, 3)]\nself.fc = nn.Linear(8, 8)"
    case = problem(init, "return self.fc(x) * self.rates[1]", "torch.randn(4, 8)")
    done = functionalize(case, workers=workers)
    assert done.verified and ("scale", 0.25) in done.constants


def test_hidden_state_kept_as_a_plain_attribute_is_a_buffer(workers: Workers) -> None:
    init = "self.hidden = torch.randn(4, 8)\nself.cell = nn.Linear(16, 8)"
    forward = "self.hidden = torch.tanh(self.cell(torch.cat((x, self.hidden), dim=1)))\nreturn self.hidden"
    done = functionalize(problem(init, forward, "torch.randn(4, 8)"), workers=workers)
    assert [(a.name, a.role) for a in done.tensors][-1] == ("hidden", "buffer")
    assert done.mutated == ("hidden",) and done.verified


def test_recurrent_layers_are_one_node_and_recorded_quickly(workers: Workers) -> None:
    init = "self.gru = nn.GRU(8, 16, num_layers=2)\nself.lstm = nn.LSTM(16, 16, bidirectional=True)"
    case = problem(init, "y, _ = self.gru(x)\nreturn self.lstm(y)[0]", "torch.randn(2000, 2, 8)")
    done = functionalize(case, workers=workers)
    assert done.verified and {"gru", "lstm"} <= set(done.features.operators)
    assert done.outputs[0].shape == (2000, 2, 32)


def test_numbers_among_the_inputs_are_scalar_arguments(workers: Workers) -> None:
    case = problem(
        "pass", "return torch.cumsum(x, dim) if flag else x", "torch.randn(4, 8), 1, True", given="x, dim, flag"
    )
    done = functionalize(case, workers=workers)
    assert done.arguments[1:] == (ScalarArgument("dim", 1, "1"), ScalarArgument("flag", True, "2"))
    assert done.verified


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ("self.drop = nn.Dropout(0.5)", "return self.drop(x)"),
        ("self.lstm = nn.LSTM(8, 8)", "h = torch.randn(1, 4, 8)\nreturn self.lstm(x, (h, h))[0]"),
    ],
)
def test_random_draws_are_noticed_and_verified_with_one_seed(workers: Workers, init: str, forward: str) -> None:
    done = functionalize(problem(init, forward, "torch.randn(4, 4, 8)"), workers=workers)
    assert done.uses_random and done.verified


def test_dropout_of_rate_zero_is_no_dropout(workers: Workers) -> None:
    case = problem("self.drop = nn.Dropout(0.0)", "return self.drop(x) + 1", "torch.randn(4, 8)")
    done = functionalize(case, workers=workers)
    assert not done.uses_random and done.features.operators == ("add",)


@pytest.mark.parametrize("name", ["Dropout", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout"])
def test_dropout_in_place_draws_nothing_in_eval_mode(workers: Workers, name: str) -> None:
    case = problem(f"self.drop = nn.{name}(0.4, inplace=True)\nself.eval()", "return self.drop(x * 2) + 1", IMAGE)
    done = functionalize(case, workers=workers)
    assert done.verified and not done.uses_random and "dropout" not in done.source


def test_dropout_in_place_draws_in_train_mode(workers: Workers) -> None:
    case = problem("self.drop = nn.Dropout(0.4, inplace=True)", "return self.drop(x * 2) + 1", IMAGE)
    assert functionalize(case, workers=workers).uses_random


@pytest.mark.parametrize("center", [True, False])
def test_a_short_time_fourier_transform_pads_once(workers: Workers, center: bool) -> None:
    spectrum = f"torch.stft(x, 64, hop_length=16, window=self.window, center={center}, return_complex=True)"
    case = problem(
        "self.register_buffer('window', torch.hann_window(64))", f"return {spectrum}.abs()", "torch.randn(4, 512)"
    )
    done = functionalize(case, workers=workers)
    assert done.verified and "torch.stft(" in done.source


def test_overlapping_windows_are_recorded_at_once() -> None:
    """PyTorch's own rule for fakes adds one after another."""
    calls: list[object] = []

    class Counting(FakeTensorMode):
        def dispatch(self, func: Any, *more: Any) -> Any:
            calls.append(func)
            return super().dispatch(func, *more)

    with Counting(), windows_at_once():
        made = torch.ops.aten.unfold_backward(torch.zeros(2, 200, 1024), [2, 51968], 1, 1024, 256)
    assert made.shape == (2, 51968) and len(calls) < 10
    grad = torch.ones(1, 3, 4)
    assert torch.ops.aten.unfold_backward(grad, [1, 8], 1, 4, 2).tolist() == [[1, 1, 2, 2, 2, 2, 1, 1]]


def test_counts_below_a_minlength_have_a_fixed_shape(workers: Workers) -> None:
    counted = problem(
        "pass", "return torch.bincount(x, w, minlength=16)", "torch.randint(0, 16, (99,)), torch.rand(99)"
    )
    done = functionalize(Problem("counted", counted.source.replace("self, x", "self, x, w")), workers=workers)
    assert done.verified and [(s.shape, s.dtype) for s in done.outputs] == [((16,), "float32")]


def test_what_pytorch_asserts_of_values_holds_and_what_a_program_asks_stays_a_branch() -> None:
    true = torch.tensor(True)
    library = torch.library.Library("asserting", "FRAGMENT")  # as torch.quantile was up to PyTorch 2.11
    library.define("within(Tensor x) -> Tensor")
    checked = {True: lambda x: x * 2, False: lambda x: x[:0]}
    library.impl("within", lambda x: checked[torch.equal((x == x).all(), true)](x), "CompositeImplicitAutograd")
    with FakeTensorMode(allow_non_fake_inputs=True), assertions_hold():
        x = torch.randn(3, 50)
        assert torch.ops.asserting.within(x).shape == (3, 50) and x.quantile(0.9, 1).shape == (3,)
        for ask in (torch.equal, torch.Tensor.equal):
            with pytest.raises(DataDependentOutputException):
                ask((x == x).all(), true)
        with pytest.raises(DataDependentOutputException):
            torch.ops.aten.equal(x, x)


TRANSFORMED = """f = lambda a, b: torch.tanh(a * b).sum()
mapped = torch.vmap(torch.func.grad(f))(x, y) + torch.vmap(torch.dot)(x, y)[:, None]
moved = torch.func.jvp(lambda a: (a * y).softmax(-1), (x,), (y,))
return mapped, *moved, torch.func.jacrev(lambda a: a.sin().sum(0))(x), torch.func.vjp(torch.exp, x)[1](y)[0]"""


CHECKED = """assert (x * x >= 0).all() and not (y != y).any(), "numbers"
if not torch.isfinite(x).all() or (
    x.isnan().any()
):
    raise ValueError("not finite")
return F.gaussian_nll_loss(x, y, x.abs() + 0.1) * 2"""


@pytest.mark.parametrize("forward", [TRANSFORMED, CHECKED], ids=["transforms", "checks"])
def test_functions_of_functions_and_checks_that_only_raise_have_a_form(workers: Workers, forward: str) -> None:
    done = functionalize(
        problem("pass", forward, "torch.randn(5, 6), torch.randn(5, 6)", given="x, y"), workers=workers
    )
    assert done.verified and not any(node.op.startswith("torch.ops") for node in done.nodes)


def test_a_problem_written_for_a_gpu_is_recorded_without_one(workers: Workers) -> None:
    done = functionalize(
        problem(
            "self.w = nn.Parameter(torch.ones(8, device='cuda')).cuda()",
            "mask = torch.ones(8, device=torch.device(DEVICE))\n"
            "assert (x.cuda() == x).all is not None and x.device.type != 'cuda'\nreturn x.to('cuda:0') * self.w * mask",
            "torch.randn(4, 8, device=DEVICE, generator=torch.Generator('cuda').manual_seed(1))",
            constants="DEVICE = 'cuda'",
        ),
        workers=workers,
    )
    assert done.verified and done.arguments[0].name == "x"


def test_a_module_may_be_built_and_converted_in_the_forward(workers: Workers) -> None:
    made = "layer = nn.Linear(8, 4)\nlayer.weight = nn.Parameter(x[:4])\nlayer.bias = nn.Parameter(x[0, :4])\n"
    done = functionalize(
        problem("pass", made + "return layer.double()(x.double())", "torch.randn(6, 8)"), workers=workers
    )
    assert done.verified and not done.uses_random and done.outputs[0].dtype == "float64"


def test_a_module_may_be_converted_while_it_is_built(workers: Workers) -> None:
    init = "self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(torch.bfloat16).eval()\nself.net.float()"
    done = functionalize(
        problem(f"{init}.double()", "return self.net(x.double())", "torch.randn(2, 3, 8, 8)"), workers=workers
    )
    assert done.verified and {a.role for a in done.tensors} == {"input", "parameter", "buffer"}
    assert {a.spec.dtype for a in done.tensors if a.role == "parameter"} == {"float64"}


MOBILE = (
    HEAD
    + """
BATCH, CHANNELS, SIZE = 2, 8, 12


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        wide = channels * 4
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.SiLU(inplace=True))
        self.depthwise = nn.Sequential(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.SiLU(inplace=True))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide, 1), nn.Sigmoid())
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.depthwise(self.expand(x))
        return x + self.project(y * self.squeeze(y))


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net = nn.Sequential(
            Block(channels), Block(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2, inplace=True)
        ).eval()

    def forward(self, x):
        return self.net(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
"""
)


def test_a_network_as_efficientnet_is_recorded_forward_and_backward(workers: Workers) -> None:
    forward = functionalize(Problem("mobile", MOBILE), workers=workers)
    backward = functionalize(backward_problem(Problem("mobile", MOBILE)), workers=workers)
    for done in (forward, backward):
        assert done.verified and not done.uses_random and not done.mutated and not done.written
    parameters = sum(a.role == "parameter" for a in forward.tensors)
    assert len(backward.outputs) == 1 + parameters  # of the input, and of each
    assert {"aten.conv2d.default"} == {n.op for n in backward.nodes if "conv" in n.op and "backward" not in n.op}


def test_inputs_that_the_forward_changes_are_named(workers: Workers) -> None:
    case = problem("pass", "out[...] = torch.relu(x) + out\nreturn out", "torch.randn(4, 8), torch.ones(4, 8)")
    done = functionalize(Problem("case", case.source.replace("self, x", "self, x, out")), workers=workers)
    assert done.verified and done.written == ("1",)


def test_none_and_strings_among_the_inputs_are_constants(workers: Workers) -> None:
    case = problem(
        "pass",
        "return F.pad(x, (1, 1), mode=mode) if mask is None and flag else x * mask",
        "torch.randn(4, 8), None, 'reflect', True",
        given="x, mask, mode, flag",
    )
    done = functionalize(case, workers=workers)
    assert done.verified
    assert [a.value for a in done.arguments if isinstance(a, ScalarArgument)] == [True]


def test_writes_through_views_become_values(workers: Workers) -> None:
    forward = "y = torch.zeros_like(x)\ny[:, 1:] = x[:, :-1]\ny[:, 0] += 2\nreturn y * x"
    done = functionalize(problem("pass", forward, "torch.randn(4, 8)"), workers=workers)
    assert done.verified
    assert not any(node.op.split(".")[1].endswith("_") for node in done.nodes)


def test_a_cache_written_through_a_view_is_an_update_and_splits_nothing_up(workers: Workers) -> None:
    case = problem(
        "self.register_buffer('cache', torch.zeros(2, 4, 8, 16))",
        "self.cache[:, :, 3:5] = x\nreturn F.scaled_dot_product_attention(x, self.cache, self.cache.clone())",
        "torch.randn(2, 4, 2, 16)",
    )
    done = functionalize(case, workers=workers)
    assert done.verified and done.mutated == ("cache",) and not done.uses_random
    assert [n.op for n in done.nodes][-1] == "aten.scaled_dot_product_attention.default"


def test_a_view_of_an_input_may_be_written_to(workers: Workers) -> None:
    done = functionalize(
        problem("pass", "x[:, 1:] = x[:, :-1].clone()\nx[:, 0] = 7\nreturn x * 2", "torch.randn(4, 8)"), workers=workers
    )
    assert done.verified and done.written == ("0",)
