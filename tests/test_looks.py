"""What the judge does beside comparing: contents for calls that only look timed, accounts, rounding of 16 bits."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rag_kernels.eval.buffers.call_content import (
    compose,
    nudged,
    plain,
    random_recipe,
    whole_draw,
    with_parameters_changed,
    with_rows_of,
)
from rag_kernels.eval.build.candidate_form import asks_for_sanitizers, looks_for_sanitizers
from rag_kernels.eval.numerics.arranged_inputs import is_sorted, is_structured
from rag_kernels.eval.numerics.input_draws import at_constants, redraw
from rag_kernels.eval.numerics.integer_draws import MOST_WIDE, repeated, widened
from rag_kernels.eval.numerics.rounding_faults import rounding_fault
from rag_kernels.eval.records import IndexBound, TensorSpec
from rag_kernels.eval.sessions.candidate_session import Account
from rag_kernels.eval.timing.race import Times
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.trial.activity_checks import beside
from rag_kernels.eval.trial.recurrence import depends_on_recurrence, needs_no_recurrence

ROWS = TensorSpec((40, 6), "float32")


def composed(recipe: object, draws: list[np.ndarray]) -> np.ndarray:
    target = np.empty((40, 6), np.float32)
    raw = [d.reshape(-1).view(np.uint8) for d in draws]
    compose(target.reshape(-1).view(np.uint8), raw, recipe[0], ROWS)  # type: ignore[index]
    return target


def test_what_threads_go_on_with_has_a_limit_of_its_own() -> None:
    asleep, cleaning = (Account(4e-4, 1e-5, 3e-5, left_s=left) for left in (2e-5, 1e-3))
    busy = Account(4e-4, 4e-4, 3e-5)
    assert beside("kernel", [asleep] * 7 + [cleaning] * 3).share < 1, "a few of them, which a machine at work disturbs"
    told = beside("kernel", [cleaning] * 7 + [asleep] * 3)
    assert told.share > 2 and "other threads" in told.when
    assert beside("kernel", [cleaning.__class__(3e-2, 0.0, 0.0, left_s=1e-3)] * 4).share < 1, (
        "little beside such a call"
    )
    assert beside("kernel", [busy] * 4).share > 2 and "before" in beside("kernel", [busy] * 4).when


def test_a_nudged_content_is_another_in_one_element() -> None:
    rng, draws = random.Random(3), [np.random.default_rng(i).random((40, 6), np.float32) for i in range(2)]
    for recipe in (plain(1, 1), random_recipe([ROWS], [True], range(2), rng)):
        other = nudged(recipe, [ROWS], [False], rng)
        assert whole_draw(other) is None
        assert (composed(recipe, draws) != composed(other, draws)).sum() == 1
    assert nudged(plain(0, 1), [TensorSpec((4,), "int64")], [False], rng) == plain(0, 1)


def test_rows_of_another_draw_stand_between_the_others() -> None:
    rng, draws = random.Random(5), [np.random.default_rng(0).random((40, 6), np.float32) for _ in range(2)]
    draws.append(np.full((40, 6), 150, np.float32))
    counts = {
        int((composed(with_rows_of(random_recipe([ROWS], [True], range(2), rng), 2, [ROWS], rng), draws) > 100).sum())
        for _ in range(40)
    }
    assert counts == {6, 12}  # a row, or a sixteenth of all


def test_wide_integers_stay_within_what_they_index() -> None:
    generator = torch.Generator().manual_seed(1)
    own = torch.randint(0, 10, (5000,), dtype=torch.int32)
    free = widened(own, None, generator)
    assert free.dtype == torch.int32 and int(free.min()) < -40000 and 40000 < int(free.max()) <= MOST_WIDE
    assert set(widened(own, IndexBound("0", 0, 7, False), generator).tolist()) == set(range(7))
    assert set(widened(own, IndexBound("0", 0, 7, True), generator).tolist()) == set(range(7))
    assert set(widened(own - 1, IndexBound("0", 0, 7, True), generator).tolist()) == set(range(-7, 7))
    assert int(widened(own.to(torch.uint8), None, generator).max()) == 255


@pytest.mark.parametrize("kind", ["negative", "positive", "one spike", "sparse", "non-finite"])
def test_kinds_are_what_they_are_called(kind: str) -> None:
    x = redraw(kind, torch.zeros(64, 128), torch.Generator().manual_seed(2))
    share = {
        "negative": (x <= 0).float().mean(),
        "positive": (x >= 0).float().mean(),
        "one spike": ((x > 100).sum() == 1).float(),
        "sparse": ((x == 0).float().mean() > 0.8).float(),
        "non-finite": torch.tensor(float(x.isnan().any() and x.isinf().any() and x.isfinite().float().mean() > 0.99)),
    }
    assert float(share[kind]) == 1.0


def cut(x: torch.Tensor) -> torch.Tensor:
    return (x.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *, factor: torch.dtype) -> torch.Tensor:
    x, mean = x.float(), x.float().mean(-1, keepdim=True)
    scale = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5).to(factor).float()
    return (x - mean) * scale * w.float() + b.float()


def test_bits_that_are_cut_off_and_factors_of_rows_in_16_bits_show() -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(128, 512).bfloat16(), (1 + torch.randn(512) / 8).bfloat16(), torch.randn(512).bfloat16()
    own, exact = F.layer_norm(x, (512,), w, b), F.layer_norm(x.double(), (512,), w.double(), b.double())
    right = layer_norm(x, w, b, factor=torch.float32)
    assert rounding_fault(right.bfloat16(), own, exact) == ""
    assert "leans towards zero" in rounding_fault(cut(right), own, exact)
    assert "go together" in rounding_fault(layer_norm(x, w, b, factor=torch.bfloat16).bfloat16(), own, exact)
    assert rounding_fault(cut(right)[:1], own[:1], exact[:1]) == ""  # too few to tell
    assert "in the last 5 columns" in rounding_fault(
        torch.cat([right.bfloat16()[:, :496], cut(right)[:, 496:501]], 1), own[:, :501], exact[:, :501]
    )
    assert rounding_fault(right.bfloat16()[:, :501], own[:, :501], exact[:, :501]) == ""
    twice = ((right - b.float()).bfloat16().float() + b.float()).bfloat16()
    assert "go together with further roundings" in rounding_fault(twice, own, exact)


def test_a_single_rounding_is_to_nearest() -> None:
    a, b = (torch.randn(512, 256, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (1, 2))
    exact, right = a.double() + b.double(), a + b
    bits = (a.float() + b.float()).view(torch.int32)
    hashed = (bits.long() * 2654435761 >> 13) & 0xFFFF
    dithered = (bits + hashed.int() & ~0xFFFF).view(torch.float32).bfloat16()
    assert "is not to nearest" in rounding_fault(dithered, right, exact)
    assert rounding_fault((a.float() + b.float()).bfloat16(), right, exact) == ""


def test_what_is_off_throughout_shows_in_fp32_where_sums_one_by_one_do_not() -> None:
    x = torch.randn(128, 512, generator=torch.Generator().manual_seed(3))
    square = x.double().square().mean(-1, keepdim=True)
    exact, own = x.double() * square.rsqrt(), x * x.square().mean(-1, keepdim=True).rsqrt()
    one_by_one = torch.zeros(128)
    for column in x.unbind(1):
        one_by_one += column * column
    assert rounding_fault(x * (one_by_one[:, None] / 512).rsqrt(), own, exact) == ""
    assert "throughout" in rounding_fault(own * 1.000002, own, exact)
    assert rounding_fault(own * 1.000002, own, exact, longest=1 << 16) == "", "as sums of so many are, one by one"
    sums = x.bfloat16().float() + x.bfloat16().roll(1).float()
    away = ((sums.view(torch.int32) + 0x8000) & ~0xFFFF).view(torch.float32).bfloat16()
    assert "leans away from zero" in rounding_fault(away, sums.bfloat16(), sums.double())


def test_what_pytorch_rounds_in_between_too_is_no_fault() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(128, 512).bfloat16(), torch.randn(512).bfloat16()

    def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w

    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).bfloat16().float()
    mine = (x.float() * scale * w.float()).bfloat16()
    assert rounding_fault(mine, norm(x, w), norm(x.double(), w.double())) == ""


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("#if defined(__SANITIZE_ADDRESS__)", "__SANITIZE_ADDRESS__"),
        ("#if __has_feature(thread_sanitizer)", "thread_sanitizer"),
        ("extern void __tsan_acquire(void*);", "__tsan_acquire"),
        ('__attribute__((no_sanitize("thread"))) void f();', 'no_sanitize("thread'),
        ("// under __SANITIZE_THREAD__ nothing changes\n/* __asan_x */ int sanitize = 1;", ""),
    ],
)
def test_sources_that_ask_for_sanitizers(source: str, word: str) -> None:
    assert asks_for_sanitizers(source) == word


def test_libraries_that_refer_to_sanitizers() -> None:
    assert looks_for_sanitizers(b"\x7fELF\0printf\0__tsan_init\0") == "__tsan_init"
    assert looks_for_sanitizers(b"\x7fELF\0printf\0my__tsan_init\0__sans\0") == ""


def test_what_needs_contents_to_come_again_shows_in_pairs_on_others() -> None:
    rng = random.Random(1)
    fresh = [i in {1, 5, 9, 14, 20, 27} for i in range(30)]
    for slower, told in ((1.0, False), (1.18, False), (3.0, True)):
        eager = [1e-3 * rng.uniform(0.95, 1.05) for _ in range(30)]
        mine = [5e-4 * rng.uniform(0.95, 1.05) * (slower if new else 1) for new in fresh]
        times = Times({"eager": eager, "candidate": mine}, rule=TimingRule(), fresh=fresh)
        times.orders = [["eager", "candidate"]] * 30
        assert bool(depends_on_recurrence(times)) is told, statistics.median(mine)
        assert needs_no_recurrence(times) is (slower == 1.0)


def test_bounds_of_buckets_stay_in_order() -> None:
    assert nudged(plain(0, 1), [ROWS], [True], random.Random(1)) == plain(0, 1)
    bounds = torch.linspace(-2, 2, 17)
    assert is_sorted(bounds) and is_structured(bounds)
    assert not any(map(is_sorted, (bounds.flip(0), torch.zeros(17), torch.arange(17), torch.randn(17))))


def test_constants_are_met_exactly_and_from_both_sides() -> None:
    x = at_constants(torch.zeros(64, 128), [0.5], torch.Generator().manual_seed(3))
    near = sorted(set(x[(x - 0.5).abs() < 1e-6].tolist()))
    assert len(near) == 3 and near[1] == 0.5
    assert (x == 1.5).any() and torch.signbit(x[x == 0]).any()


def test_few_integers_come_again_the_least_and_the_greatest_among_them() -> None:
    own = torch.randint(-128, 128, (64, 64), dtype=torch.int8)
    few = repeated(own, torch.Generator().manual_seed(4))
    assert len(few.unique()) <= 3 and few.min() == own.min() and few.max() == own.max()
    ids = torch.arange(100)
    assert (repeated(ids, torch.Generator().manual_seed(4)).diff() >= 0).all()


def test_a_parameter_is_never_what_it_was() -> None:
    rng, before = random.Random(6), plain(0, 2)
    draw = np.arange(240, dtype=np.float32).reshape(40, 6)
    changed = [with_parameters_changed(before, [ROWS, ROWS], [True, False], rng) for _ in range(20)]
    assert all(recipe[1] == before[1] for recipe in changed)
    assert {int((composed((recipe[0],), [draw]) != draw).sum()) for recipe in changed} == {1}
