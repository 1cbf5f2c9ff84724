"""What is right where rounding decides: answers of the judge beside those of other orders, roundings and choices."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from support.generated_kernels import Case, functional
from support.kept import kept_workers

from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.children.reference.right_answers import RightAnswers
from rag_kernels.eval.numerics.compare import ratios
from rag_kernels.eval.numerics.exactness_probe import one_hot, targets
from rag_kernels.eval.numerics.rounding_noise import Perturbed, cut_to_tf32, through, to_tf32
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.traits.input_kinds import SEVEN_BITS
from rag_kernels.eval.traits.packed_bits import packed_at
from rag_kernels.ingest.functional.functionalize import functionalize


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as kept:
        yield kept


ENLARGED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(96, 64)

    def forward(self, x):
        return torch.softmax(4 * self.linear(x), dim=-1)

def get_inputs():
    return [torch.rand(32, 96)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("change", "shown"), [("tf32", "tf32"), ("cut off", "tf32"), ("float16", "tf32"), ("bfloat16", "bf16")]
)
def test_a_probe_tells_tf32_from_bf16_where_what_follows_a_product_enlarges_both(
    workers: Workers, change: str, shown: str
) -> None:
    fp = functionalize(problem_from_source("enlarged", ENLARGED), workers=workers)
    chosen = targets(fp)
    generator = torch.Generator().manual_seed(7)
    content = [torch.randn(a.spec.shape, generator=generator) for a in fp.tensors]
    content = [
        one_hot(v, chosen[a.name], generator) if a.name in chosen else v
        for a, v in zip(fp.tensors, content, strict=True)
    ]
    known = {"tf32": to_tf32, "cut off": cut_to_tf32}
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, [torch.empty(32, 64)], operands=0.0)
        answers.compute(0, noisy=False, moved=False)
        assert answers.precision(module.call(), 0).name == "strict"
        with Perturbed(operands=known.get(change) or through(getattr(torch, change))):
            outputs = module.call()
        found = answers.precision(outputs, 0)
    assert found.name == shown and found.error > SEVEN_BITS  # by which alone all four were bf16


SQUARED = ENLARGED.replace("torch.softmax(4 * self.linear(x), dim=-1)", "self.linear(x).pow(2).mean(0)")


@pytest.mark.parametrize(
    ("change", "shown"), [(to_tf32, "tf32"), (cut_to_tf32, "tf32"), (through(torch.bfloat16), "bf16")]
)
def test_a_probe_tells_cut_factors_from_bf16_where_what_is_cut_adds_up(
    workers: Workers, change: Callable[[torch.Tensor], torch.Tensor], shown: str
) -> None:
    """In a mean of squares what is cut off is as much as what bf16 leaves by chance."""
    fp = functionalize(problem_from_source("squared", SQUARED), workers=workers)
    chosen, generator = targets(fp), torch.Generator().manual_seed(7)
    content = [torch.randn(a.spec.shape, generator=generator) for a in fp.tensors]
    content = [
        one_hot(v, chosen[a.name], generator) if a.name in chosen else v
        for a, v in zip(fp.tensors, content, strict=True)
    ]
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, [torch.empty(64)], operands=2.0**-11)
        answers.compute(0, noisy=False, moved=False)
        with Perturbed(operands=change):
            outputs = module.call()
        assert answers.precision(outputs, 0).name == shown


FILTERED = ENLARGED.replace("torch.nn.Linear(96, 64)", "torch.nn.Conv1d(4, 8, 3)").replace(
    "torch.softmax(4 * self.linear(x), dim=-1)", "self.linear(x).mean(2)"
)


@pytest.mark.parametrize(
    ("made", "operands", "right"),
    [
        (to_tf32, 2.0**-11, True),
        (to_tf32, 0.0, False),
        (cut_to_tf32, 2.0**-11, True),
        (cut_to_tf32, 0.0, False),
        (through(torch.bfloat16), 2.0**-11, False),
        (through(torch.bfloat16), 2.0**-8, True),
    ],
)
def test_what_an_allowed_precision_makes_of_a_content_is_right_on_it_whatever_another_draw_gave(
    workers: Workers, made: Callable[[torch.Tensor], torch.Tensor], operands: float, right: bool
) -> None:
    """A layer's filters are few, so that a mean over all its pixels is moved far more on one draw than on another."""
    source = FILTERED.replace("torch.rand(32, 96)", "torch.rand(64, 4, 500)")
    fp = functionalize(problem_from_source("filtered", source), workers=workers)
    generator = torch.Generator().manual_seed(5)
    content = [torch.rand(a.spec.shape, generator=generator) for a in fp.tensors]
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, module.call(), operands=operands)
        answers.compute(0, noisy=False, moved=False)
        with Perturbed(operands=made):
            outputs = module.call()
        rms, largest = ratios(outputs[0], answers.answers[0].reference[0], answers.answers[0].oracle[0])
        limits = rms / 2, largest / 2  # as of a draw on which filters were rounded less
        first, settled = (answers.check(outputs, 0, limits, noisy=False, settle=s).results[0] for s in (False, True))
    assert first.unsettled and not first.ok
    assert settled.ok is right


STEPPED = ENLARGED.replace("torch.softmax(4 * self.linear(x), dim=-1)", "torch.round(self.linear(x))")


@pytest.mark.parametrize(("operands", "right"), [(2.0**-11, True), (0.0, False)])
def test_a_step_is_decided_by_the_rounding_that_is_allowed(workers: Workers, operands: float, right: bool) -> None:
    fp = functionalize(problem_from_source("stepped", STEPPED), workers=workers)
    generator = torch.Generator().manual_seed(7)
    content = [torch.randn(a.spec.shape, generator=generator) for a in fp.tensors]
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, [torch.empty(32, 64)], operands=operands)
        with Perturbed(operands=to_tf32):
            outputs = module.call()
        assert not torch.equal(outputs[0], module.call()[0])
        assert answers.check(outputs, None, None, noisy=False).results[0].ok == right
        outputs[0][3, 5] += 9
        assert not answers.check(outputs, None, None, noisy=False).results[0].ok


STEEP = ENLARGED.replace("torch.softmax(4 * self.linear(x), dim=-1)", "torch.tanh(self.linear(x))").replace(
    "torch.nn.Linear(96, 64)", "torch.nn.Linear(32, 256, bias=False)"
)


def test_what_is_steep_where_factors_are_rounded_is_held_to_many_runs(workers: Workers) -> None:
    """One tanh of each row is of terms that cancel: the rounding that is allowed turns its sign, in some runs alone."""
    fp = functionalize(problem_from_source("steep", STEEP.replace("32, 96", "512, 32")), workers=workers)
    torch.manual_seed(11)
    x, w = 1e5 * torch.randn(512, 16), torch.randn(256, 16)
    x[:, 0], w[1:, 0] = 3e5, 30  # all others are far from zero
    apart = 10 * torch.randn(512, 16)
    apart[3] = 5e4  # and so is all of this row
    x, w = torch.cat([x, apart - x], 1), torch.cat([w, w * torch.tensor([1.0] + 255 * [-1.0])[:, None]], 1)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), [x, w], seed=1)
        answers = RightAnswers(module, [torch.empty(512, 256)], operands=2.0**-11)
        answers.compute(0, noisy=True, moved=False)
        with Perturbed(operands=to_tf32):
            outputs = module.call()
        right = answers.answers[0].oracle[0]
        assert 20 < int(((outputs[0] > 0) != (right > 0)).any(1).sum()) < 500
        first, settled = (answers.check(outputs, 0, None, noisy=True, settle=s).results[0] for s in (False, True))
        outputs[0][3, 5] *= -1
        other = answers.check(outputs, 0, None, noisy=True, settle=True).results[0]
    assert first.unsettled and settled.ok and not other.ok, (first, settled, other)


SMALL_BESIDE = ENLARGED.replace(
    "return torch.softmax(4 * self.linear(x), dim=-1)", "y = self.linear(x)\n        return y, y.mean()"
)


@pytest.mark.parametrize(("operands", "right"), [(2.0**-11, True), (0.0, False)])
def test_small_elements_beside_a_single_number_are_as_exact_as_is_allowed(
    workers: Workers, operands: float, right: bool
) -> None:
    fp = functionalize(problem_from_source("small_beside", SMALL_BESIDE.replace("32, 96", "512, 96")), workers=workers)
    generator = torch.Generator().manual_seed(7)
    content = [torch.randn(a.spec.shape, generator=generator) for a in fp.tensors]
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, module.call(), operands=operands)
        with Perturbed(operands=to_tf32):
            outputs = module.call()
        found = answers.check(outputs, None, (4096.0, 4096.0), noisy=False, settle=True).results[0]
    assert found.ok == right and (right or "where results are between" in found.where)


RARE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        gate = torch.relu(self.linear(x) - 2)
        return gate, gate <= 0

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return []
"""


def test_a_rows_only_element_is_not_held_to_what_pytorch_has_right_by_luck(workers: Workers) -> None:
    """A third of the rows have an element behind the gate: another order of the sum was 300 times PyTorch's error."""
    fp = functionalize(problem_from_source("rare", RARE), workers=workers)
    torch.manual_seed(3)
    x, weight, bias = content = [torch.randn(512, 1024), torch.randn(1024, 1024) / 55, torch.randn(1024) / 55]
    parts = torch.randperm(1024).split(256)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        total = sum((x[:, p] @ weight[:, p].t() for p in parts), torch.zeros(512, 1024))
        gate = torch.relu(total + bias - 2)
        found = answers.check([gate, gate <= 0], None, None, noisy=False).results[0]
        assert not found.ok and found.unsettled
        assert answers.check([gate, gate <= 0], None, None, noisy=False, settle=True).results[0].ok
        gate += 1e-4 * (gate > 0)
        assert not answers.check([gate, gate <= 0], None, None, noisy=False, settle=True).results[0].ok


PACKED = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        q = torch.round((x - low) / ((high - low) / 15.0).clamp(min=1e-6)).clamp(0, 15).to(torch.uint8)
        return (q[:, 0::2] | (q[:, 1::2] << 4)).reshape(64, 16, 8), q[:, 0::2] + 16 * q[:, 1::2]

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return []
"""


def test_numbers_packed_into_a_byte_are_right_where_rounding_decides_each(workers: Workers) -> None:
    """A step of the upper one is sixteen of the byte: a quantisation by a reciprocal was refused."""
    fp = functionalize(problem_from_source("packed", PACKED), workers=workers)
    assert [packed_at(fp, result) for result in fp.results] == [(4,), (4,)]
    x = 0.07 * torch.randint(-150, 150, (64, 256), generator=torch.Generator().manual_seed(7))
    x[:, :2] = 0.07 * torch.tensor([-150, 150])
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    q = torch.round((x - low) * (15 / (high - low))).clamp(0, 15).to(torch.uint8)
    packed = q[:, 0::2] | (q[:, 1::2] << 4)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), [x], seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        own = module.call()[1]
        assert ((packed ^ own) & 15).any() and ((packed ^ own) >> 4).any()
        assert all(r.ok for r in answers.check([packed.view(64, 16, 8), packed], None, None, noisy=False).results)
        far = torch.where(((packed ^ own) & 15) > 0, packed ^ 7, packed)  # where rounding decides, and by more than one
        for wrong in (packed ^ 16, torch.where(torch.arange(128) == 5, packed ^ 1, packed), far):
            assert not any(r.ok for r in answers.check([wrong.view(64, 16, 8), wrong], None, None, noisy=False).results)


GROUPED = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        scores = torch.sigmoid(x)
        best = scores.sum(-1).topk(1, dim=-1).indices
        kept = torch.zeros(2048, 8).scatter(1, best, 1.0)[..., None].expand(2048, 8, 4).reshape(2048, 32)
        return scores.reshape(2048, 32).masked_fill(kept == 0, float("-inf")).topk(2, dim=-1).indices

def get_inputs():
    return [torch.randn(2048, 8, 4)]

def get_init_inputs():
    return []
"""


def test_a_choice_behind_a_choice_is_right_where_rounding_decides_the_first(workers: Workers) -> None:
    """Of two groups as good as each other one was taken: what PyTorch takes of the other one was owed then."""
    fp = functionalize(problem_from_source("grouped", GROUPED), workers=workers)
    x = torch.randn(2048, 8, 4, generator=torch.Generator().manual_seed(7))
    x[3, 1] = torch.tensor([3.0, 2.7, 2.9, 2.3])
    x[3, 2] = x[3, 1].flip(0) * (1 + 5e-7)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), [x], seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        least = int(x[4].sigmoid().sum(-1).argmin())
        for group, line, ok in ((1, 3, True), (2, 3, True), (5, 3, False), (least, 4, False)):
            got = module.call()[0].clone()
            got[line] = 4 * group + x[line, group].topk(2).indices
            assert answers.check([got], None, None, noisy=False, settle=True).results[0].ok == ok, (group, line)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=["bfloat16", "half"])
def test_rows_of_sixteen_bits_are_what_they_are(dtype: torch.dtype) -> None:
    """Where rows are constant a mean may be a rounding of fp32 off, as a kernel computes it, and not one of theirs."""
    drawn = (f"torch.{make}.to({dtype})" for make in ("randn(64, 200)", "ones(200)"))
    fp = functional("norm", Case("return F.layer_norm(x, (200,), y)", *drawn))
    x, weight = torch.full((64, 200), 0.7, dtype=dtype), torch.ones(200, dtype=dtype)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), [x, weight], seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        answers.compute(0, noisy=True, moved=True)
        for off, right in ((0.0, True), (2.0**-24, True), (2.0**-13, False)):
            mean = x.double().mean(1, keepdim=True) * (1 + off)
            got = ((x.double() - mean) / math.sqrt(1e-5)).to(x.dtype)
            assert answers.check([got], 0, None, noisy=True).results[0].ok is right, off


RECURRENT = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 6, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.lstm(x)[0]

def get_inputs():
    return [torch.rand(3, 5, 8)]

def get_init_inputs():
    return []
"""


def test_weights_that_a_module_moves_into_memory_of_its_own_are_the_contents(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU an LSTM's are moved side by side, and again after a call on others, as fp64's are."""

    def moved(rnn: torch.nn.RNNBase) -> None:
        for weight in rnn.parameters():
            weight.data = weight.data.clone()

    monkeypatch.setattr(torch.nn.RNNBase, "flatten_parameters", moved)
    fp = functionalize(problem_from_source("recurrent", RECURRENT), workers=workers)
    content = [torch.zeros(a.spec.shape) for a in fp.tensors]
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        for _ in range(3):
            for value in content:
                value.copy_(torch.randn(value.shape))
            given = {a.path: value for a, value in zip(fp.tensors, content, strict=True)}
            weights = [given[f"lstm.{name}"] for name, _ in module.model.lstm.named_parameters()]
            right = torch.lstm(given["0"], [torch.zeros(2, 3, 6)] * 2, weights, True, 1, 0.0, False, True, True)[0]
            torch.testing.assert_close(module.call_in_double()[0].float(), right)
            module.restore()
            torch.testing.assert_close(module.call()[0], right)


TOTAL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum()

def get_inputs():
    return [torch.randn(100000)]

def get_init_inputs():
    return []
"""


def test_a_sum_that_cancels_is_held_to_what_sums_of_such_numbers_come_to(workers: Workers) -> None:
    """Two sums one by one are 64 times as far off as PyTorch in one draw of forty, where the sum is next to nothing."""
    fp = functionalize(problem_from_source("total", TOTAL), workers=workers)
    content, near, refused = [torch.empty(100000)], 0, 0
    module = BoundModule(fp, torch.device("cpu"), content, seed=1)
    answers = RightAnswers(module, [torch.empty(())], operands=0.0)
    for seed in range(40):
        torch.randn(100000, generator=torch.Generator().manual_seed(seed), out=content[0])
        content[0][-1] -= content[0].double().sum().float() * 0.99  # what is left is a hundredth of what it might be
        halves = [torch.tensor(np.cumsum(half.numpy())[-1]) for half in content[0].reshape(2, -1)]
        near += not answers.check([sum(halves)], None, None, noisy=False).results[0].ok
        assert answers.check([sum(halves)], None, None, noisy=False, settle=True).results[0].ok
        fewer = content[0].to(torch.float16).double().sum().float()
        refused += not answers.check([fewer], None, None, noisy=False, settle=True).results[0].ok
    assert near and refused > 30  # one sum may come out right by chance


TURNED = """
import torch

class Model(torch.nn.Module):
    def forward(self, q):
        w, x, y, z = q.unbind(-1)
        return torch.atan2(w * x + y * z, x * x - 2)

def get_inputs():
    return [torch.rand(4096, 4)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("beside", "right"), [(0.0, True), (1e-20, False)])
def test_where_an_angle_turns_a_zero_that_rounding_left_has_either_sign(
    workers: Workers, beside: float, right: bool
) -> None:
    """A product beyond the least numbers has its sign in a multiplication with addition, and loses it in a sum."""
    fp = functionalize(problem_from_source("turned", TURNED), workers=workers)
    content = [torch.rand(4096, 4)]
    content[0][7] = torch.tensor([-1e-30, 1e-30, 1.0, beside])
    module = BoundModule(fp, torch.device("cpu"), content, seed=1)
    answers = RightAnswers(module, [torch.empty(4096)], operands=0.0)
    outputs = [t.clone() for t in module.call()]
    assert outputs[0][7] > 3
    outputs[0][7] *= -1
    assert answers.check(outputs, None, None, noisy=False, settle=True).results[0].ok == right
