"""Results that move by a step where rounding decides: what is excused there, and what is not."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from judging import verdict
from support.kept import kept_judge, kept_workers

from rag_kernels.eval.children.reference.other_roundings import LARGER
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.numerics.compare import UNIT_ROUNDOFF, compare
from rag_kernels.eval.numerics.decisions import AsDecided, Deciding
from rag_kernels.eval.numerics.input_draws import at_constants
from rag_kernels.eval.numerics.rounding_noise import Perturbed, RoundingNoise, rounded_anew, to_tf32
from rag_kernels.eval.numerics.shaped_noise import powers_of_two
from rag_kernels.eval.numerics.steps import Choice, as_good, as_near, dense, excused, lone, stepped
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.traits.index_ties import is_rounded
from rag_kernels.eval.traits.input_kinds import (
    FAR_NAMED_NUMBERS,
    ONE_APART,
    POWERS,
    SMALL_WHOLE,
)
from rag_kernels.eval.traits.steps import has_steps, orders, suits
from rag_kernels.eval.traits.suitable_kinds import may_be_given, reads_places
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.eval.zoo.exploits.red_teams.third_round import SPECIMENS
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.ingest.functional.training_step import training_step

COUNTS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, edges):
        return torch.bincount(torch.bucketize(x.square(), edges), minlength=9)[1:], x.square().argsort()
def get_inputs():
    return [torch.randn(64), torch.linspace(0, 4, 8)]
def get_init_inputs():
    return []
"""
GEN = torch.Generator().manual_seed(0)
QUICK = Limits(measure_compile=False, timing=TimingRule(pairs=7, max_pairs=7, timed_s=0.01, max_timed_s=0.5))


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=QUICK, at_other_sizes=at_other_sizes) as kept:
        yield kept


def floors(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.floor(x / s)


def test_a_step_is_excused_where_something_was_rounded_before_it_alone() -> None:
    x, s = torch.rand(4, 512, generator=GEN) * 30, torch.rand(4, 1, generator=GEN) + 0.5
    x[:, 7] = (3 * s * (1 - 2**-23))[:, 0]  # quotients next to 3, which are rounded
    x[0, 5], s[0] = 6.0, 2.0  # one that is exact
    reference, oracle = floors(x, s), floors(x.double(), s.double())

    def again() -> Iterator[torch.Tensor]:
        for _ in range(16):
            with RoundingNoise(GEN, exact_stays=True):
                moved = floors(x, s)
            yield moved

    got = reference.clone()
    got[2, 7] = 5 - got[2, 7]  # 2 where it was 3, or the other way round
    put_right = excused(got, reference, oracle, again())
    assert put_right is not None and torch.equal(put_right[2], oracle[2].float())
    got[0, 5] = 2.0
    assert excused(got, reference, oracle, again()) is None
    got = reference.clone()
    got[1, 7] = 9.0  # by more than a step
    assert excused(got, reference, oracle, again()) is None


def test_a_step_is_excused_once_a_run_moves_it_as_far() -> None:
    reference = oracle = torch.arange(64.0).repeat(4, 1)
    little, as_far = reference.clone(), reference.clone()
    little[0, 3] += 0.5
    as_far[0, 3] += 2.0
    got = reference.clone()
    got[0, 3] += 2.0
    assert excused(got, reference, oracle.double(), [little, little]) is None
    assert excused(got, reference, oracle.double(), [little, as_far]) is not None


def pixels(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ceil(torch.sqrt(x * x + y * y) * 1000).int()


def test_whole_numbers_of_computed_ones_are_as_near_as_rounding_leaves_them() -> None:
    x, y = torch.randn(2, 4, 512, generator=GEN).unbind()
    x[2], y[2] = 2e4 * x[2], 2e4 * y[2]  # counts of some ten millions
    reference, oracle = pixels(x, y), pixels(x.double(), y.double())
    got = torch.ceil(torch.hypot(x, y) * 1000).int()
    assert int((got - reference).abs().max()) > 1

    def again() -> Iterator[torch.Tensor]:
        for _ in range(16):
            with RoundingNoise(GEN, exact_stays=True):
                moved = pixels(x, y)
            yield moved

    assert as_near(got, reference, oracle, again())
    for wrong in (got & ~0xFFF, got.clamp(max=1 << 24), (torch.hypot(x, y) * 1000).int()):
        assert not as_near(wrong, reference, oracle, again())


def shares(x: torch.Tensor) -> torch.Tensor:
    return x / x.sum(-1, keepdim=True)


def test_lone_elements_are_off_as_far_as_rounded_inputs_leave_them() -> None:
    x = torch.randn(2000, 64, generator=GEN)
    x[7, 0] -= x[7].double().sum().float()  # which leaves some roundings
    x[7, 0] += 1e-4
    right = shares(x.double())
    allowed = torch.full_like(right, 0.1)

    def again() -> Iterator[torch.Tensor]:
        for _ in range(8):
            with RoundingNoise(GEN):
                moved = shares(rounded_anew(x, GEN))
            yield moved

    got = x / sum(part.sum(-1, keepdim=True) for part in x.flip(-1).chunk(8, -1))  # another order
    assert bool(((got - right).abs() > allowed)[7].any())
    put_right = lone(got, right, allowed, again())
    assert put_right is not None and torch.equal(put_right[7], right[7].float()) and torch.equal(put_right[:7], got[:7])
    assert lone(x / (x.sum(-1, keepdim=True) + 1e-3), right, allowed, again()) is None  # by far more than rounding
    got[9, 3] += 0.5
    assert lone(got, right, allowed, again()) is None, "that is off where nothing is ill-conditioned"


def test_a_lone_element_without_a_digit_may_be_any_number() -> None:
    """One over a difference that rounding makes of either sign: one run in many is next to zero there."""
    right = torch.ones(100, 20, dtype=torch.float64)
    right[3, 3] = 1e-5
    runs = [torch.where(right == 1, 1.0, sign * 2e-6).float() for sign in (1, -1, 1)]
    got = right.float()
    got[3, 3] = 0.01
    allowed = torch.full_like(right, 1e-3)
    assert lone(got, right, allowed, runs[:1]) is None, "one run may be off by chance"
    put_right = lone(got, right, allowed, runs)
    assert put_right is not None and torch.equal(put_right, right.float())
    got[3, 3] = float("nan")
    assert lone(got, right, allowed, runs) is None, "but no number at all"


def test_places_that_noise_moves_stay_within_reach() -> None:
    x, at = torch.full((4,), 50.0), torch.zeros(51)
    with RoundingNoise(GEN):
        for _ in range(32):
            at.index_add_(0, (x * 1.0).ceil().long(), torch.ones(4))
            at.gather(0, (x * 1.0).ceil().long())
    assert float(at.sum()) > 0


def bent(x: torch.Tensor, w: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """Return the gradient behind a product and a ReLU, the product summed in so many parts."""
    product = sum(a @ b for a, b in zip(x.chunk(parts, 1), w.chunk(parts, 0), strict=True))
    return (product > 0).to(x.dtype) @ w.t()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("exact", [False, True])
def test_the_sign_of_a_product_that_cancels_is_roundings_unless_it_is_exact(exact: bool) -> None:
    x, w = torch.randn(64, 256, generator=GEN), torch.randn(256, 64, generator=GEN)
    x[0] -= (x[0].double() @ w[:, 0].double() / w[:, 0].double().square().sum() * w[:, 0].double()).float()
    if exact:
        x, w = (x * 4).round(), (w * 4).round()
        x[0], w[:, 0] = 0.0, 1.0
        x[0, 0], x[0, 1] = 1.0, -1.0
    reference, oracle = bent(x, w), bent(x.double(), w.double())

    def again() -> Iterator[torch.Tensor]:
        for _ in range(16):
            with RoundingNoise(GEN, operands=UNIT_ROUNDOFF[torch.float32], exact_stays=True):
                moved = bent(x, w)
            yield moved

    got = oracle.float()
    got[0] += (-1 if oracle_sign(x, w) > 0 else 1) * w[:, 0]  # the sign of one element is the other one
    assert (excused(got, reference, oracle, again()) is None) is exact


@pytest.mark.parametrize(("units", "right"), [(10.0, True), (4e4, False)])
def test_a_sign_within_the_error_that_a_product_may_have_is_its_own(units: float, right: bool) -> None:
    x, w = torch.randn(64, 256, generator=GEN), torch.randn(256, 64, generator=GEN)
    x, w = x.double(), w.double()
    scale = units * UNIT_ROUNDOFF[torch.float32] * x[0].norm() * w[:, 0].norm() / 16
    x[0] -= (x[0] @ w[:, 0] - scale) / w[:, 0].square().sum() * w[:, 0]
    x, w = x.float(), w.float()
    reference, oracle = bent(x, w), bent(x.double(), w.double())

    def again() -> Iterator[torch.Tensor]:
        for larger in LARGER:
            for _ in range(5):
                with RoundingNoise(GEN, operands=larger * UNIT_ROUNDOFF[torch.float32], exact_stays=True):
                    moved = bent(x, w)
                yield moved

    got = oracle.float()
    got[0] += (-1 if oracle_sign(x, w) > 0 else 1) * w[:, 0]
    assert (excused(got, reference, oracle, again()) is not None) is right


def eight_bits(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (torch.round(x / scale) @ w) * scale


def test_what_one_integer_moves_by_little_is_excused_with_what_it_moves_far() -> None:
    """A step in a product's factor moves a row: some elements far, some less than rounding could, and all right."""
    x, w = torch.randn(64, 256, generator=GEN), torch.randint(-127, 128, (256, 512), generator=GEN).float()
    scale = x[3].abs().amax() / 127
    x[3, 5], w[5, :200] = 12.5 * scale, 1.0
    reference, oracle = eight_bits(x, w), eight_bits(x.double(), w.double())

    def again() -> Iterator[torch.Tensor]:
        for _ in range(16):
            with RoundingNoise(GEN, operands=UNIT_ROUNDOFF[torch.float32], exact_stays=True):
                moved = eight_bits(x, w)
            yield moved

    side = 1 if float(torch.round(x[3, 5].double() / (x[3].abs().amax().double() / 127))) == 12 else -1
    got = oracle.float()
    got[3] += side * scale * w[5]  # the other integer
    put_right = excused(got, reference, oracle, again())
    assert put_right is not None and compare(put_right, reference, oracle).ok
    got[4] += 1e-5 * oracle[4].abs().max().float()  # where there is no step
    put_right = excused(got, reference, oracle, again())
    assert put_right is None or not compare(put_right, reference, oracle).ok


def test_a_count_is_a_number_and_no_place(judge: LocalJudge) -> None:
    fp = functionalize(problem_from_source("counts", COUNTS), workers=judge.workers)
    assert is_rounded(fp, fp.results[0]) and not is_rounded(fp, fp.results[1])


def normed(x: torch.Tensor, w: torch.Tensor, ge: torch.Tensor, turned: torch.Tensor | None = None) -> torch.Tensor:
    """Return the gradient of x behind a product, a norm over rows and a ReLU, of which one sign can be the other."""
    product = x @ w
    scale = torch.rsqrt(product.var(0, correction=0) + 1e-5)
    normal = (product - product.mean(0)) * scale
    on = normal > 0 if turned is None else (normal > 0) ^ turned
    slope = on.to(x.dtype) * ge.to(x.dtype)
    return (scale * (slope - slope.mean(0) - normal * (slope * normal).mean(0))) @ w.t()


@pytest.mark.parametrize("larger", [1.0, 1.01])
def test_a_sign_that_moves_all_by_a_little_through_a_norm_is_its_own(larger: float) -> None:
    x, w, ge = (
        torch.rand(128, 64, generator=GEN),
        torch.randn(64, 64, generator=GEN),
        torch.randn(128, 64, generator=GEN),
    )
    for _ in range(4):  # one element becomes the mean, up to rounding
        product = x.double() @ w[:, 5].double()
        x[9] += ((product.mean() - product[9]) / w[:, 5].double().square().sum() * w[:, 5].double()).float()
    reference, oracle = normed(x, w, ge), normed(x.double(), w.double(), ge.double())

    def again() -> Iterator[torch.Tensor]:
        for _ in range(16):
            with RoundingNoise(GEN, operands=4 * UNIT_ROUNDOFF[torch.float32], exact_stays=True):
                moved = normed(x, w, ge)
            yield moved

    turned = torch.zeros(128, 64, dtype=torch.bool)
    turned[9, 5] = True
    got = larger * normed(x.double(), w.double(), ge.double(), turned).float()
    assert stepped(got, oracle, oracle) is None, "more elements are off than a step's"
    assert (excused(got, reference, oracle, again()) is not None) is (larger == 1.0)


def oracle_sign(x: torch.Tensor, w: torch.Tensor) -> float:
    return float(x[0].double() @ w[:, 0].double())


def of_filters(x: torch.Tensor, w: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """Return a weight's gradient behind a product and a leaky ReLU, the product summed in so many parts."""
    product = sum(a @ b for a, b in zip(x.chunk(parts, 1), w.chunk(parts, 0), strict=True))
    return x.t() @ torch.where(product > 0, 1.0, 0.01).to(x.dtype)  # type: ignore[operator]


def test_signs_that_differ_everywhere_are_as_many_as_rounding_makes() -> None:
    x, w = torch.rand(8192, 64, generator=GEN) + 3000, torch.randn(64, 32, generator=GEN)
    w -= w.mean(0)
    reference, oracle = of_filters(x, w), of_filters(x.double(), w.double())

    def again() -> Iterator[torch.Tensor]:
        for _ in range(5):
            with RoundingNoise(GEN, operands=UNIT_ROUNDOFF[torch.float32], exact_stays=True):
                moved = of_filters(x, w)
            yield moved

    with Perturbed(operands=to_tf32):
        lower = of_filters(x, w)
    got = of_filters(x, w, parts=8)
    assert dense(got, oracle, again()) is not None
    assert dense(lower, oracle, again()) is None and excused(lower, reference, oracle, again()) is None
    got[:, 3] = 0.9 * got[:, 3]
    assert dense(got, oracle, again()) is None and excused(got, reference, oracle, again()) is None


def test_of_what_underflows_any_index_is_as_good_and_of_nothing_else() -> None:
    """A router takes the second best of probabilities of which all but one are below what fp32 exponentials keep."""
    values = torch.tensor([[1.0, 1e-60, 2e-42, 1.6e-38, 1e-30]], dtype=torch.float64)
    wide, own = Choice(values, 1), Choice(values.float(), 1)
    kept = Choice(values[:, :4], 1), Choice(values[:, :4].float(), 1)
    for got in (1, 2, 3):
        assert as_good(torch.tensor([[0, got]]), torch.tensor([[0, 3]]), *kept, exact=False), got
        assert not as_good(torch.tensor([[0, got]]), torch.tensor([[0, 4]]), wide, own, exact=False), got
    assert not as_good(torch.tensor([[0, 2]]), torch.tensor([[0, 3]]), *kept, exact=True)


def test_an_index_is_as_good_as_its_value() -> None:
    values = torch.tensor([[0.5, 0.25, 0.2500001, 0.1]], dtype=torch.float64)
    own = Choice(values.to(torch.bfloat16), 1)
    wide, right = Choice(values, 1), torch.tensor([[0, 2]])
    for got, good in (([0, 1], True), ([0, 3], False), ([0, 0], False), ([1, 2], False), ([0, 4], False)):
        assert as_good(torch.tensor([got]), right, wide, own, exact=False) is good, got
    assert not as_good(torch.tensor([[0, 1]]), right, wide, own, exact=True)


def test_what_the_largest_value_may_be_off_by_is_no_room_for_small_ones() -> None:
    shares = torch.tensor([[0.9, 1e-3, 4e-4, 2e-4, 1e-4] + [1e-5] * 11], dtype=torch.float64)
    own, wide = Choice(shares.to(torch.bfloat16), 1), Choice(shares, 1)
    assert not as_good(torch.tensor([[0, 4]]), torch.tensor([[0, 1]]), wide, own, exact=False)
    for seed in range(1, 7):
        sums = torch.tensor([[5.0, 0.020, 0.0195, 1.0, -3.0, 0.5]], dtype=torch.float64)  # whose errors are of one size
        sums = torch.cat([sums, torch.linspace(-1, 1, 2400, dtype=torch.float64).reshape(400, 6)])
        drawn = torch.randn(sums.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        moved = sums + 1e-3 * drawn
        moved[0, 1:3] = sums[0, 1:3]
        own, wide = Choice(moved.float(), 1), Choice(sums, 1)
        right = wide.operand.topk(4, 1).indices
        got = right.clone()
        got[0, 3] = 2
        assert as_good(got, right, wide, own, exact=False)
        got[0, 3] = 4  # the least
        assert not as_good(got, right, wide, own, exact=False)


CHOSEN = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        unused = x.topk(3, -1)
        return torch.softmax(x, -1).to(torch.bfloat16).argmax(1)


def get_inputs():
    return [torch.randn(512, 64)]


def get_init_inputs():
    return []
"""
FIRST = """#include "rag_kernel.h"
void best(rk::Tensor<const float> x, int64_t, int64_t, rk::Tensor<int64_t> out) {
  const int64_t n = x.size(1);
  for (int64_t r = 0; r < x.size(0); ++r) {
    int64_t at = 0;
    for (int64_t i = 1; i < n; ++i)
      if (x.data[r * n + i] > x.data[r * n + at]) at = i;
    out.data[r] = CHANGE;
  }
}
RK_EXPORT(forward, best)
"""


def test_a_choice_is_found_though_the_module_makes_others_too(judge: LocalJudge) -> None:
    """In fp32 another one is the largest now and then, of values that are equal in bf16."""
    fp = functionalize(problem_from_source("chosen", CHOSEN), workers=judge.workers)
    found = verdict(judge, fp, FIRST.replace("CHANGE", "at"))
    assert "passed" in codes(found), found
    found = verdict(judge, fp, FIRST.replace("CHANGE", "r % 64 == 5 ? (at + 1) % n : at"))
    assert codes(found) & {"wrong"}, found


@pytest.mark.parametrize("name", ["routed", "attention"])
def test_strangers_faults_are_told_and_their_twins_are_right(judge: LocalJudge, name: str) -> None:
    specimen = next(s for s in SPECIMENS if s.task == name)
    fp = functionalize(problem_from_source(name.replace(" ", "_"), TASKS[name].problem), workers=judge.workers)
    honest = codes(verdict(judge, fp, specimen.honest.source))
    assert "passed" in honest and not any(c.startswith(("label:fragile", "label:precision ")) for c in honest), honest
    found = verdict(judge, fp, specimen.candidates()[-1].source)
    assert codes(found) & set(specimen.expect), found


@pytest.mark.parametrize(
    ("forward", "steps"),
    [
        ("F.max_pool2d(x * w, 2)", True),
        ("F.max_pool2d(x, 2)", False),
        ("(x * w).abs()", True),
        ("(x * w).tanh()", False),
    ],
)
def test_gradients_step_where_what_is_computed_has_a_bend(forward: str, steps: bool) -> None:
    text = f"""
import torch
from torch.nn import functional as F


class Model(torch.nn.Module):
    def forward(self, x, w):
        return {forward}


def get_inputs():
    return [torch.randn(2, 3, 8, 8), torch.randn(8)]


def get_init_inputs():
    return []
"""
    with kept_workers() as workers:
        fp = functionalize(training_step(problem_from_source("bend", text)), workers=workers)
    assert has_steps(fp) is steps


def test_whole_numbers_meet_steps_of_sums_exactly_and_powers_of_two_those_of_parts() -> None:
    text = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, w):
        return (torch.matmul(x, w).STEP >= 1.0).float()


def get_inputs():
    return [torch.randn(8, 16), torch.randn(16, 8)]


def get_init_inputs():
    return []
"""
    with kept_workers() as workers:
        forms = [
            functionalize(problem_from_source("step", text.replace("STEP", step)), workers=workers)
            for step in ("relu()", "mean(-1)", "div(w[0])", "div(3.0)", "mean(-1).square()", "softmax(-1)")
        ]
    assert [suits(fp, SMALL_WHOLE) for fp in forms] == [True, False, False, False, False, False]
    assert [suits(fp, POWERS) for fp in forms] == [False, True, True, False, False, False]


def test_far_numbers_of_its_own_are_tried_where_no_element_is_beside_others() -> None:
    """A row's norm beside a number of 1e20 is what rounding left of the rest."""
    text = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return FORWARD


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""
    with kept_workers() as workers:
        forms = [
            functionalize(problem_from_source("far", text.replace("FORWARD", forward)), workers=workers)
            for forward in ("torch.nn.functional.silu(x)", "torch.nn.functional.layer_norm(x, (16,))", "x.sum(-1)")
        ]
    assert [suits(fp, FAR_NAMED_NUMBERS) for fp in forms] == [True, False, False]


def test_on_a_gpu_integers_are_any_where_no_operator_reads_places() -> None:
    """A bad index would end all work there; and where elements are ordered a kernel's time is tried on bad orders."""
    text = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return FORWARD


def get_inputs():
    return [torch.randint(0, 900, (8, 16))]


def get_init_inputs():
    return []
"""
    forwards = (
        "x.cumsum(-1)",
        "x.sort(-1).values",
        "x.float()[x.remainder(8), 0]",
        "torch.bincount(x.reshape(-1), minlength=1000)",
    )
    with kept_workers() as workers:
        forms = [
            functionalize(problem_from_source("whole", text.replace("FORWARD", forward)), workers=workers)
            for forward in forwards
        ]
    assert [reads_places(fp) for fp in forms] == [False, False, True, True]
    looks = {"masks": False, "structured": False, "ordered": False}
    given = [[may_be_given(fp, ONE_APART, on_gpu=on_gpu, **looks) for fp in forms[:2]] for on_gpu in (False, True)]
    assert given == [[True, True], [True, True]]
    assert [orders(fp) for fp in forms] == [False, True, False, False]


def test_what_lies_on_a_number_of_the_problem_is_decided_as_pytorch_does() -> None:
    """In fp64 0.3725 is another number than in fp32; where something was rounded before, that decides nothing."""
    x = torch.tensor([0.3725, 0.1, 0.5, math.nan])
    for run in (
        lambda v: torch.nn.functional.threshold(v, 0.3725, -2.0),
        lambda v: torch.nn.functional.hardshrink(v, 0.3725),
        lambda v: (v == 0.3725).to(v.dtype),
        lambda v: torch.where(v > 0.3725, v, -v),
        lambda v: torch.histc(v[:3], bins=3, min=-0.5275, max=0.3725),
    ):
        with Deciding() as seen:
            own = run(x)
        with AsDecided(seen.made):
            right = run(x.double())
        assert len(seen.made) == 1 and torch.equal(own.double().nan_to_num(7), right.nan_to_num(7))
        assert not torch.equal(run(x.double()).nan_to_num(7), right.nan_to_num(7))
    with Deciding() as seen:
        _ = x > 0.5, x.bfloat16() > 0.3725, torch.histc(torch.tensor([0.4]), bins=4, min=0.1, max=0.7)
    assert not seen.made  # an exact number; of sixteen bits PyTorch's own ways differ; next to a bound between bins
    with Deciding() as seen:
        _ = x * 3 > 0.3725
    wide = x.double() * (3 + 1e-9)
    with AsDecided(seen.made):
        assert torch.equal(wide > 0.3725, torch.tensor([True, False, True, False]))


def test_histograms_lie_on_their_ends_and_steps_of_a_scale_on_their_halves() -> None:
    generator = torch.Generator().manual_seed(0)
    ends = at_constants(torch.randn(4096), [-2.3, 2.7], generator, alone=True)
    assert torch.equal(ends.sign().unique(), torch.tensor([-1.0, 1.0])) and len(ends.unique()) == 6
    assert bool(((ends - 2.7).abs() < 1e-6).any())
    halves = 16 * powers_of_two(torch.randn(64, 64), generator, scales=[0.0625, 16.0])
    assert bool((halves.abs() == 0.5).any()) and torch.equal(halves.abs().log2(), halves.abs().log2().round())
