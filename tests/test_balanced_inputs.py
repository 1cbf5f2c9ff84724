"""Inputs that make up for each other: in range in the module's order alone, as large as their weights are small."""

from __future__ import annotations

import math

import torch

from rag_kernels.eval.numerics.balanced_inputs import (
    any_size,
    outweigh,
    put_below_zero,
    put_beside,
    put_cancelling,
    put_fading_scores,
    put_far_together,
    put_outweighing,
)
from rag_kernels.eval.numerics.searched_inputs import search
from rag_kernels.eval.traits.input_kinds import FIRST_FAINT, LAST_FAINT, NEARLY_ALIKE, NEXT_TO_ZERO


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_factors_are_in_range_in_turn_alone() -> None:
    sides = set()
    for seed in range(6):
        x, a, b = torch.randn(20, 30), torch.rand(30) + 0.5, torch.rand(30) + 0.5
        put_far_together((x, a, b), generator(seed))
        assert bool(torch.isfinite(x * a * b).all()) and bool((x * a * b != 0).all())
        sides |= set((a * b).tolist())
    assert sides == {0.0, math.inf}, "both sides are drawn"


def test_the_first_operand_cancels_the_one_that_the_module_adds_to_it() -> None:
    x, a, b = torch.randn(20, 30), torch.randn(30), torch.randn(30)
    own = b.clone()

    def own_error() -> float:
        return float((x + a + b - (x.double() + a.double() + b.double())).abs().mean())

    put_cancelling((x, a, b), generator(), own_error)
    assert torch.equal(x + a + b, own.expand(20, 30)) and torch.equal(b, own)
    assert float(a.abs().min()) >= 1e4 and not torch.equal(x + (a + b), x + a + b)


def test_one_operand_is_zero_or_next_to_it_and_the_others_far_below() -> None:
    values = torch.randn(2, 40, 50).unbind()
    put_below_zero(values, generator())
    least, most = torch.minimum(*values), torch.maximum(*values)
    assert float(most.min()) == 0 < float(most.max()) < 1e-8
    assert float(least.min()) >= -80 and float(least.max()) <= -8


def test_what_is_weighed_is_as_large_as_its_weight_is_small() -> None:
    query, key, value = torch.randn(3, 16, 8), torch.randn(3, 32, 8), torch.randn(3, 32, 8)
    put_fading_scores(query, key, 8**-0.5, generator())
    weights = torch.softmax(query.double() @ key.double().mT * 8**-0.5, -1)
    assert 1e-27 < float(weights.min()) < 1e-20 and float(weights.max()) > 0.99
    weight = weights.sum(1).unsqueeze(-1).expand(value.shape)
    outweigh(value, weight, generator())
    terms = (value * weight).abs()
    assert float(terms.min() / weight.max()) > 0.49 and float(terms.max() / weight.max()) < 1.51


def test_what_a_logarithm_of_a_softmax_weighs_counts_alike() -> None:
    weight, value = torch.randn(16, 64), torch.randn(16, 64)
    least = put_outweighing(weight, value, generator())
    terms = -torch.softmax(weight.double(), 1) * torch.log_softmax(value.double(), 1)
    assert 4 < int(least[0].sum()) < 60
    part = terms.where(least, 0.0).sum(1) / terms.sum(1)
    assert float(part.min()) > 0.1 and float(part.max()) < 0.9


def test_lines_have_any_size_that_there_are_numbers_of() -> None:
    for dtype, most in ((torch.float32, 37.0), (torch.float64, 307.0)):
        own = torch.randn(500, 8, dtype=dtype)
        lines = any_size(own, generator(), least=-most, most=most)
        power = lines.abs().log10()
        assert float((power.amax(1) - power.amin(1))[::2].max()) < 0.01
        assert float((power.amax(1) - power.amin(1))[1::2].min()) > 0.8 * most
        assert float(power.min()) < -0.9 * most and float(power.max()) > 0.9 * most
        assert torch.equal(lines.sign(), own.sign())


def test_one_input_is_faint_beside_zeros_or_all_lines_are_nearly_one() -> None:
    for kind, faint in ((FIRST_FAINT, 0), (LAST_FAINT, 1)):
        values = torch.rand(2, 9, 4).unbind()
        put_beside(kind, values, generator())
        assert float(values[faint].min()) >= 1e-9 and float(values[faint].max()) < 1e-6
        assert not values[1 - faint].any()
    x, y = torch.randn(9, 4), torch.randn(5, 4)
    put_beside(NEARLY_ALIKE, (x, y), generator())
    apart = (x.unsqueeze(1) - y).abs() / x[:1].abs()
    assert 0 < float(apart.mean()) < 2**-18


def test_a_tail_that_fades_has_no_root() -> None:
    for function in (torch.erfc, torch.sigmoid):
        x = torch.rand(40, 50) + 0.5
        own = x.clone()
        search(NEXT_TO_ZERO, [x], [0], lambda v, f=function: f(v[0].double()), generator())
        assert torch.equal(x, own), function


def test_inputs_are_found_as_near_to_a_root_as_numbers_come() -> None:
    for function, roots in ((torch.lgamma, {1.0, 2.0}), (torch.acos, {1.0}), (torch.log, {1.0})):
        x = torch.rand(40, 50) + 0.5
        search(NEXT_TO_ZERO, [x], [0], lambda v, f=function: f(v[0].double()), generator())
        positive = x[x > 0]
        assert float((function(positive.double()) != 0).double().mean()) > 0.6
        near = torch.stack([(positive - root).abs() for root in roots]).amin(0)
        assert float(near.median()) <= 8 * 2**-23, function
