"""Results beside right answers, and pairs of times: what passes, what does not, and when there are enough."""

import math
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
import torch

from rag_kernels.eval.build.composed_forward import Kernels
from rag_kernels.eval.children.candidate.thread_state import other_team, team_settings, use_team
from rag_kernels.eval.messages.to_reference import Comparison
from rag_kernels.eval.numerics.blocks import BLOCK
from rag_kernels.eval.numerics.common_elements import in_common
from rag_kernels.eval.numerics.compare import compare
from rag_kernels.eval.numerics.oracle import right_answer
from rag_kernels.eval.numerics.rounding_noise import Chance
from rag_kernels.eval.timing.paired_ratio import Paired, orders, pairs_for, ratio_of
from rag_kernels.eval.timing_rule import TimingRule

GEN = torch.Generator().manual_seed(0)


def matmul_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = torch.randn(64, 512, generator=GEN), torch.randn(512, 64, generator=GEN)
    return a, b, a @ b, a.double() @ b.double()


def judged(got: torch.Tensor, exact: torch.Tensor) -> Comparison:
    return compare(got, exact.to(got.dtype), exact)


def test_another_order_of_summation_passes() -> None:
    a, b, reference, oracle = matmul_case()
    blocked = torch.stack([a[:, i : i + 64] @ b[i : i + 64] for i in range(0, 512, 64)]).sum(0)
    assert compare(blocked, reference, oracle).ok


def test_one_element_that_is_off_is_told_by_the_largest_error() -> None:
    oracle = torch.randn(1 << 18, generator=GEN, dtype=torch.float64)
    got = oracle.float()
    got[7] += 1e-4
    found = compare(got, oracle.float(), oracle)
    assert not found.ok and found.ratio < 64
    assert "worst at [7]" in found.where and "largest error of a row" in found.where and "limit 256" in found.where


def test_half_precision_operands_fail_even_where_allclose_at_1e_2_would_pass() -> None:
    a, b, reference, oracle = matmul_case()
    cheat = a.half().float() @ b.half().float()
    assert torch.allclose(cheat.double(), oracle, rtol=1e-2, atol=1e-1)
    result = compare(cheat, reference, oracle)
    assert not result.ok
    assert result.ratio > 64


def test_one_wrong_row_cannot_hide() -> None:
    oracle = torch.randn(1000, 512, dtype=torch.float64, generator=GEN)
    got = oracle.float()
    assert judged(got, oracle).ok
    got[700] *= 1.0001
    result = judged(got, oracle)
    assert not result.ok
    assert "[700," in result.where


@pytest.mark.parametrize("shape", [(3, BLOCK + 5), (2 * BLOCK // 300, 300), (2 * BLOCK + 7,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_large_outputs_are_read_to_their_last_element(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    oracle = torch.randn(shape, dtype=torch.float64, generator=GEN)
    got = oracle.to(dtype, copy=True)
    given = got.clone(), oracle.clone()
    assert judged(got, oracle).ok
    assert torch.equal(got, given[0])
    assert torch.equal(oracle, given[1])
    last = tuple(size - 1 for size in shape)
    got[last] = 50
    result = judged(got, oracle)
    assert not result.ok
    assert f"worst at {list(last)}: 50 instead of" in result.where
    got[last] = math.nan
    assert f"not finite, first at {list(last)}" in judged(got, oracle).where


def test_roundings_by_chance_are_as_large_as_said_and_others_in_every_block() -> None:
    chance = Chance(torch.Generator().manual_seed(0))
    moved = chance.move(torch.ones(3 * BLOCK, dtype=torch.float64), 0.5) - 1
    assert abs(float(moved.std()) - 0.5) < 0.01
    assert abs(float(moved.mean())) < 0.01
    parts = moved.reshape(3, -1)
    assert max(abs(float(torch.corrcoef(parts[[a, b]])[0, 1])) for a, b in ((0, 1), (0, 2), (1, 2))) < 0.02
    chances = [Chance(torch.Generator().manual_seed(seed)) for seed in range(40)]
    sums = [float((chance.move(torch.ones(8 * BLOCK), 0.5) - 1).double().sum()) for chance in chances]
    expected = 0.25 * 8 * BLOCK  # of independent numbers: blocks have nothing in common that adds up
    assert 0.4 < sum(s * s for s in sums) / len(sums) / expected < 2.0
    across = torch.ones(64, 8).T
    assert chance.move(across, 0.5) is across
    assert float(across.std()) > 0.3


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_zeros_never_pass_whatever_the_scale(scale: float) -> None:
    oracle = torch.randn(8, 512, dtype=torch.float64, generator=GEN) * scale
    assert not judged(torch.zeros(8, 512), oracle).ok


def test_noise_that_is_not_finite_allows_nothing_and_takes_nothing_away() -> None:
    oracle = torch.randn(4, 512, dtype=torch.float64, generator=GEN)
    oracle[0, 0] = math.inf
    noise = torch.zeros(4, 512)
    noise[0, 1] = math.nan
    assert compare(oracle.float(), oracle.float(), oracle, noise=noise).ok
    assert not compare(oracle.float() * 1.001, oracle.float(), oracle, noise=noise).ok


def test_nan_fails_where_the_reference_is_finite_and_is_asked_for_where_it_is_not() -> None:
    oracle = torch.tensor([1.0, float("nan"), float("inf"), 2.0], dtype=torch.float64)
    assert judged(oracle.float(), oracle).ok
    assert not judged(torch.tensor([1.0, 0.0, float("inf"), 2.0]), oracle).ok
    assert not judged(torch.tensor([float("nan"), float("nan"), float("inf"), 2.0]), oracle).ok


def test_integers_are_exact() -> None:
    values = torch.arange(10)
    assert judged(values, values).ok
    result = judged(values + (values == 7), values)
    assert not result.ok
    assert "[7]" in result.where


def test_16_bit_outputs_are_held_to_their_own_rounding() -> None:
    exact = torch.randn(4, 256, dtype=torch.float64, generator=GEN)
    assert judged(exact.bfloat16(), exact).ok
    assert not judged((exact * 1.05).bfloat16(), exact).ok


def test_the_ratio_is_the_median_of_pairs_with_its_order_statistic_interval() -> None:
    candidate = [1.0] * 30
    baseline = [1.0 + i / 30 for i in range(30)]
    ratio = ratio_of(baseline, candidate, TimingRule())
    assert ratio.low == sorted(baseline)[8]
    assert ratio.high == sorted(baseline)[21]
    assert ratio.low < ratio.median < ratio.high


@pytest.mark.parametrize("pairs", [30, 31])
def test_who_runs_first_does_not_decide(pairs: int) -> None:
    names = ["one", "other", "third"]
    paired = Paired({name: [] for name in names}, orders(names, pairs, Random(3)))
    for order in paired.orders:
        for place, name in enumerate(order):
            paired.seconds[name].append((1.3, 1.0, 0.9)[place])  # alike, but for their place
    assert abs(paired.speedup("one", "other").median - 1) < 0.2
    first = [order.index("one") < order.index("other") for order in paired.orders]
    assert abs(sum(first) - pairs / 2) <= 1
    paired = Paired({"a": [1.3, 1.0] * 15, "b": [1.0, 1.3] * 15}, [["a", "b"], ["b", "a"]] * 15)
    ratio = paired.speedup("a", "b")
    assert ratio.low == pytest.approx(1) and ratio.median == pytest.approx(1) and ratio.high == pytest.approx(1)
    assert [r.median for r in paired.by_order("a", "b")] == pytest.approx([1 / 1.3, 1.3])
    faster = Paired({"a": [0.65, 0.5] * 15, "b": [1.0, 1.3] * 15}, paired.orders)
    assert faster.speedup("a", "b").median == pytest.approx(2)
    few = Paired({"a": [1.0] * 7, "b": [2.0] * 7}, paired.orders[:7])
    assert few.by_order("a", "b") == [ratio_of([2.0] * 7, [1.0] * 7, TimingRule())]


def test_pairs_end_when_the_interval_is_narrow_and_that_makes_no_wins() -> None:
    """Two alike, with noise of each size: stopped by the width alone, they claim a win as seldom as at full length."""
    rng, least, most = Random(5), TimingRule().pairs, TimingRule().max_pairs
    for noise in (0.002, 0.01, 0.05):
        lengths, wins = [], 0
        for _ in range(200):
            paired = Paired({"one": [], "other": []})
            for order in orders(["one", "other"], most, rng):
                paired.orders.append(order)
                for place, name in enumerate(order):
                    paired.seconds[name].append((1.03, 1.0)[place] * rng.lognormvariate(0, noise))
                if len(paired.orders) >= least and paired.is_narrow("one", "other"):
                    break
            found = paired.speedup("one", "other")
            lengths.append(len(paired.orders))
            wins += found.low > 1 and found.median > 1.02
        assert wins <= 1, (noise, wins)
        assert (max(lengths) == least) == (noise < 0.005) and (min(lengths) == most) == (noise > 0.02), (noise, lengths)


def test_slow_pairs_are_fewer() -> None:
    assert pairs_for(0.01, TimingRule()) == 50
    assert pairs_for(1e-5, TimingRule()) == 60
    assert pairs_for(4.0, TimingRule()) == 5


@pytest.mark.parametrize("make", ["torch.zeros(1, 4, dtype=dtype)", "torch.zeros_like(x, dtype=dtype)"])
def test_what_is_added_up_in_a_tensor_of_sixteen_bits_has_a_right_answer_all_the_same(make: str) -> None:
    """Atomics of a GPU count to 256 in bf16, where one more is lost; honest kernels count on."""
    x, at = torch.ones(1, 4), torch.zeros(1, 401, dtype=torch.int64)

    def counts(x: torch.Tensor) -> list[torch.Tensor]:
        dtype = torch.bfloat16
        counted = eval(make, {"torch": torch, "x": x, "dtype": dtype})
        return [counted.scatter_add(1, at, torch.ones_like(at, dtype=dtype))]

    own = counts(x)
    assert float(own[0][0, 0]) != 401
    exact = right_answer(lambda: counts(x.double()), own)
    assert exact is not None and exact[0].dtype == torch.float64 and exact[0][0].tolist() == [401, 0, 0, 0]


def orthogonal_step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps in bf16 by the module's own words, and something in fp32 beside them."""
    y = x.bfloat16()
    y = y / (y.norm() + 1e-7)
    for _ in range(3):
        gram = y @ y.t()
        y = 3.4445 * y + (-4.7750 * gram + 2.0315 * gram @ gram) @ y
    return y, y.float().sum(1)


def test_what_is_right_in_sixteen_bits_is_no_run_in_sixteen_bits() -> None:
    """Casts that a module names round; what it computes between them is exact for outputs of sixteen bits."""
    x = torch.randn(48, 96, generator=torch.Generator().manual_seed(1))
    own = orthogonal_step(x)
    exact = right_answer(lambda: list(orthogonal_step(x.double())), own)
    assert exact is not None
    once = orthogonal_step(x.bfloat16().double())  # no more casts but those that a test cannot leave out
    assert exact[0].dtype == torch.float64
    in_fp32 = x.bfloat16().float()
    in_fp32 = in_fp32 / (in_fp32.norm() + 1e-7)
    for _ in range(3):
        gram = in_fp32 @ in_fp32.t()
        in_fp32 = 3.4445 * in_fp32 + (-4.7750 * gram + 2.0315 * gram @ gram) @ in_fp32
    assert compare(in_fp32.bfloat16(), own[0], exact[0]).ok
    assert not compare((in_fp32 * 1.1).bfloat16(), own[0], exact[0]).ok
    assert not compare(in_fp32.bfloat16(), own[0], once[0].double()).ok  # that run rounds as the module does
    plain = orthogonal_step(x.double())
    assert torch.equal(exact[1], plain[1])  # an output in fp32 is held to what the module says


def test_a_module_that_mixes_its_own_casts_with_new_tensors_has_an_exact_answer() -> None:
    def summed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.zeros(4, 8).index_add(0, torch.tensor([1, 1, 3]), x.float())
        return out.to(x.dtype), torch.tensor([1, 2])

    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = right_answer(lambda: list(summed(x.double())), summed(x))
    assert exact is not None and exact[0].dtype == torch.float64 and torch.equal(exact[1], torch.tensor([1, 2]))
    assert torch.equal(exact[0][1], x[0].double() + x[1].double())


def test_what_a_module_widens_is_right_in_fp64() -> None:
    """Else PyTorch's own sums would be what is right, and honest ones in another order wrong."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(256, 2048, generator=generator).bfloat16() for _ in range(2))
    own = x.float().pow(2).sum(1) - y.float().pow(2).sum(1)
    exact = right_answer(
        lambda: [x.double().float().pow(2).sum(1) - y.double().float().pow(2).sum(1)],
        [own],
    )
    assert exact is not None and torch.equal(exact[0], x.double().pow(2).sum(1) - y.double().pow(2).sum(1))
    sums = torch.zeros(2, 256)
    for pair in torch.stack([x.float().pow(2), y.float().pow(2)]).unbind(2):
        sums += pair
    one_by_one = sums[0] - sums[1]
    assert compare(one_by_one, own, exact[0]).ok and not compare(one_by_one, own, own.double()).ok
    assert not compare(own * (1 + 1e-3), own, exact[0]).ok


def test_results_that_have_elements_in_common_are_told() -> None:
    x, made = torch.randn(8, 6), torch.randn(8, 12)
    halves = made.chunk(2, dim=1)
    assert in_common([made[:, :6].mT, torch.empty(0), *halves[1:]], [x]) == (), "of one piece of memory, and apart"
    assert in_common([x.view(6, 8), torch.randn(6).expand(8, 6)], [x]) == (
        "output 0 and argument 0",
        "output 1 and itself",
    )
    assert in_common([made, halves[1], x[2:4]], [x]) == ("output 1 and output 0", "output 2 and argument 0")


def test_kernels_of_a_composed_source_alone_get_a_team_of_their_own() -> None:
    class Library:
        def get_function(self, name: str) -> Callable[[], tuple[int, ...]]:
            return team_settings

    use_team(torch.get_num_threads())
    kernels, before = Kernels(Library()), team_settings()
    kernels._within = partial(other_team, 3, 0)
    _, team, levels, _ = kernels.settings()
    assert (team, levels) == (3, 0) and team_settings() == before
