"""Contents of inputs: new for every call, as the problem's own where they must be, else where kernels go wrong."""

import math
import random
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from rag_kernels.eval.buffers.call_content import Recipe, Splice, compose, random_recipe, rows_of
from rag_kernels.eval.numerics.arranged_inputs import (
    disordered,
    in_runs,
    irregular,
    is_mask,
    is_structured,
    lines_moved,
    nearly_as_kept,
    nearly_in_order,
    some_lines_zero,
    uneven,
    with_few_huge,
    with_one_other,
    with_other_digits,
)
from rag_kernels.eval.numerics.compare import compare
from rag_kernels.eval.numerics.input_draws import (
    at_ends,
    far_parameter,
    on_side_of,
    parameter_of,
    redraw,
)
from rag_kernels.eval.numerics.inputs_together import beside_others, put_far_apart, put_far_under, put_same_sums
from rag_kernels.eval.numerics.integer_draws import next_to_multiples, out_of_range, widest
from rag_kernels.eval.numerics.searched_inputs import search
from rag_kernels.eval.records import IndexBound, TensorSpec
from rag_kernels.eval.sessions.remembered_contents import RememberedContents
from rag_kernels.eval.traits.input_kinds import (
    CLIMB,
    FAR_ANGLES,
    LARGE_PARAMETERS,
    LOWERED,
    MASKED_SPIKES,
    MIXED,
    NON_FINITE,
    ONE_END,
    PEAKS,
    POWERS,
    RAISED,
    ROOTS,
    SIDES,
    SMALL_WHOLE,
    TWINS,
    WHOLE,
)

RNG = np.random.default_rng(0)


GEN = torch.Generator().manual_seed(0)


def raw(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def test_contents_come_again_but_not_to_those_who_met_them() -> None:
    numbers = iter(range(100))
    made = RememberedContents(Random(0), 6)

    def content(met: set[Recipe], most: int = 4) -> Recipe:
        return made.content("plain", most, met, lambda: (Splice(next(numbers), 0, 0, 0, 0, 0),))

    first: set[Recipe] = set()
    assert len({content(first) for _ in range(5)}) == 5
    assert sum(made.number(recipe) is not None for recipe in first) == 4
    second: set[Recipe] = set()
    assert all(content(second) in first for _ in range(4))
    assert content(second) not in first
    assert len({made.number(recipe) for recipe in first}) == 5  # four numbers, and none


def test_content_is_new_for_every_recipe_and_keeps_the_values_of_the_draws() -> None:
    spec = TensorSpec((32, 8), "float32")
    draws = [RNG.standard_normal((32, 8)).astype(np.float32) for _ in range(2)]
    rows, row_bytes = rows_of(spec)
    assert (rows, row_bytes) == (32, 32)
    made = []
    for seed in range(5):
        target = np.empty((32, 8), np.float32)
        part = random_recipe([spec], [True], range(2), random.Random(seed))[0]
        compose(raw(target), [raw(d) for d in draws], part, spec)
        assert np.isin(target, np.concatenate(draws)).all()
        made.append(target)
    assert all(not np.array_equal(a, b) for i, a in enumerate(made) for b in made[:i])
    plain = np.empty((32, 8), np.float32)
    compose(raw(plain), [raw(d) for d in draws], Splice(1, 0, 1, 0, 0, 0), spec)
    assert np.array_equal(plain, draws[1])


@pytest.mark.parametrize("shape", [(64, 1), (8, 16, 1, 1), (100,)])
def test_content_of_one_column_is_new_too(shape: tuple[int, ...]) -> None:
    spec, rng = TensorSpec(shape, "float32"), random.Random(3)
    draws = [RNG.standard_normal(shape).astype(np.float32) for _ in range(2)]
    made = set()
    for _ in range(200):
        target = np.empty(shape, np.float32)
        compose(raw(target), [raw(d) for d in draws], random_recipe([spec], [True], range(2), rng)[0], spec)
        made.add(target.tobytes())
    assert len(made) > 30 and made.isdisjoint(d.tobytes() for d in draws)


def test_structured_inputs_are_left_in_place() -> None:
    dense = torch.randn(64, 64)
    assert not is_structured(dense) and not is_structured(dense.bfloat16())
    assert is_structured(torch.triu(dense)) and is_structured(torch.triu(dense).bfloat16())
    assert is_structured(dense + dense.T)
    assert is_structured(torch.full((8, 8), float("nan")))
    assert is_structured(torch.tensor([0, 3, 7, 9]))
    assert is_structured(torch.tensor([0, 3, 7, 9], dtype=torch.uint16))
    assert not is_structured(torch.randint(0, 9, (100,))) and not is_structured(torch.tensor([True, False, True]))


@pytest.mark.parametrize(
    ("function", "kind", "inputs"),
    [
        (torch.log, ROOTS, (0.98, 1.02)),
        (torch.nn.functional.gelu, ROOTS, (-5.0, -2.3)),
        (torch.exp, PEAKS, (86.8, 88.3)),
        (torch.sigmoid, PEAKS, None),
        (torch.tanh, ROOTS, None),
    ],
)
def test_inputs_are_found_by_what_comes_of_them(function: Any, kind: str, inputs: tuple[float, float] | None) -> None:
    generator = torch.Generator().manual_seed(5)
    own = torch.rand(64, 64, generator=generator)
    found = [own.clone()]
    search(kind, found, [0], lambda values: function(values[0].double()), generator)
    if inputs is None:
        assert torch.equal(found[0], own)
        return
    low, high = inputs
    assert bool(((found[0] > low) & (found[0] < high)).all()) and found[0].unique().numel() > 1000
    sizes = function(found[0].double()).abs()
    assert bool(((sizes > 4e37) & (sizes < 2.1e38) if kind == PEAKS else (sizes > 9e-5) & (sizes < 2.1e-2)).all())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_the_widest_integers_are_of_every_length_and_pairs_of_them_in_range(dtype: torch.dtype) -> None:
    drawn = widest(torch.zeros(4096, dtype=dtype), torch.Generator().manual_seed(1))
    most = torch.iinfo(dtype).max // 2
    assert drawn.dtype == dtype and -most <= int(drawn.min()) < -most // 2 < most // 2 < int(drawn.max()) <= most
    assert int((drawn.abs() < 1 << 16).sum()) > 500
    assert int((drawn.sort().values.diff() == 1).sum()) > 100, "pairs that a float does not tell apart"


def test_what_a_sample_takes_is_large_and_nothing_else() -> None:
    drawn = redraw("pivots", torch.zeros(64, 1024), torch.Generator().manual_seed(1))
    large = drawn.abs() > 100
    assert bool((large[1::4].sum(1) == 7).all()) and bool(large[1::4, 0].all()) and bool(large[1::4, -1].all())
    assert bool((large[3::4].sum(1) == 3).all()) and bool(large[3::4, 1024 // 2].all())
    assert set(large[::2].sum(1).tolist()) == {1, 2, 3} and bool(large[::2, 1024 // 8].any())
    assert drawn[large].unique().numel() == int(large.sum())  # no ties


def test_numbers_that_are_all_different_are_left_in_place() -> None:
    generator = torch.Generator().manual_seed(1)
    slots = torch.randperm(16384, generator=generator)[:2000]
    assert is_structured(slots) and is_structured(torch.randperm(40, generator=generator))
    assert not is_structured(torch.randint(0, 16384, (2000,), generator=generator))
    assert not is_structured(torch.randperm(1 << 20, generator=generator)[:1000].int() % 999)
    assert not is_structured(torch.randint(0, 1 << 60, (2000,), generator=generator))  # different by chance


def test_a_truth_value_is_zero_or_one_in_its_byte() -> None:
    right = torch.tensor([True, False, True])
    assert compare(right.clone(), right, right).ok
    got = torch.tensor([1, 0, 0xFF], dtype=torch.uint8).view(torch.bool)
    result = compare(got, right, right)
    assert not result.ok and "neither 0 nor 1" in result.where


def test_nans_are_of_other_bits_too() -> None:
    drawn = redraw(NON_FINITE, torch.zeros(64, 1024), torch.Generator().manual_seed(1))
    bits = set(drawn[drawn.isnan()].view(torch.int32).tolist())
    assert {-1, 0x7FFFFFFF, 0x7FC00000} <= bits and any(b < -1 for b in bits)
    half = redraw(NON_FINITE, torch.zeros(64, 1024, dtype=torch.bfloat16), torch.Generator().manual_seed(1))
    assert half.isnan().any() and half.dtype == torch.bfloat16


def test_what_is_regular_has_a_few_other_elements() -> None:
    generator = torch.Generator().manual_seed(1)
    for regular in (torch.ones(512), torch.arange(512), torch.full((512,), 9), torch.ones(512, dtype=torch.bool)):
        other = irregular(regular, None, generator)
        assert other.dtype == regular.dtype and 0 < int((other != regular).sum()) <= 2
        assert regular.dtype != torch.int64 or 0 <= int(other.min()) <= int(other.max()) <= int(regular.max())
    for kept in (torch.randn(512), torch.tensor([3, 1, 2, 0]), torch.zeros(512, dtype=torch.int64)):
        assert bool((irregular(kept, None, generator) == kept).all())


def test_inputs_lie_on_the_side_of_the_problems_own() -> None:
    own, drawn = torch.rand(64) * 9 + 1, torch.randn(64)
    assert float(on_side_of(own, drawn).min()) >= float(own.min()) and float(on_side_of(-own, drawn).max()) < 0
    assert bool((on_side_of(drawn, own) == own).all())


def test_contents_are_drawn_beside_inputs_that_have_nan() -> None:
    """A problem that fills missing values draws NaN: no whole number is their least, and they lie on no side."""
    own = torch.rand(40, 30) + 1
    own[::7, 3], own[1, 1] = torch.nan, torch.inf
    drawn = torch.randn(40, 30)
    assert float(on_side_of(own, drawn).min()) >= 1
    assert bool((redraw(WHOLE, own, torch.Generator().manual_seed(3)) >= 0).all())
    put_same_sums([own], torch.Generator().manual_seed(3))
    assert bool(((own >= 66) & (own <= 334)).all())


def test_inputs_meet_other_tensors_and_their_multiples() -> None:
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(64)
    met = beside_others(torch.randn(32, 64), [torch.randn(7), bias, torch.arange(64)], generator)
    assert 0.1 < float((met == bias).float().mean()) < 0.5
    assert 0.1 < float(((met != bias) & ((met - bias).abs() < 1e-6)).float().mean()) < 0.5
    own, divisor = torch.randint(0, 10**15, (32, 64)), torch.randint(10**9, 10**10, (64,))
    rests = next_to_multiples(own, [divisor], [], generator) % divisor
    near = torch.minimum(rests, divisor - rests)
    assert {0, 1} <= set(near.tolist()[0]) and float((near < 2).float().mean()) > 0.99  # but at the ends of the range
    assert bool((next_to_multiples(own, [], [1], generator) == own).all())


def test_rows_are_alike_but_for_one_element() -> None:
    rows = redraw(TWINS, torch.zeros(9, 64), torch.Generator().manual_seed(3))
    differ = (rows[1::2] != rows[:8:2]).sum(-1)
    assert differ.tolist() == [1, 1, 1, 1] and float((rows[1::2] - rows[:8:2]).amax()) > 3


def test_parameters_leave_where_they_begin_and_operands_are_far_apart() -> None:
    generator = torch.Generator().manual_seed(3)
    slopes, matrix = torch.full((64,), 0.25), torch.ones(8, 8)
    large = far_parameter(LARGE_PARAMETERS, slopes, generator)
    assert bool((large.abs() > 1.2).all()) and 8 < int((large < 0).sum()) < 56
    assert float(far_parameter(LARGE_PARAMETERS, torch.tensor([0.25]), generator)) > 1.2, "a lone one keeps its sign"
    assert (
        float(far_parameter(RAISED, slopes, generator).min()) > 2
        and float(far_parameter(LOWERED, slopes, generator).max()) < -1
    )
    assert torch.equal(far_parameter(RAISED, matrix, generator), matrix)
    assert sorted(redraw(SMALL_WHOLE, torch.randn(999), generator).unique().tolist()) == [-4, -3, -2, -1, 1, 2, 3, 4]
    operands = [torch.randn(64, 8, generator=generator) for _ in range(3)]
    put_far_apart(operands, generator, sided=False)
    far = torch.stack([(o.abs() > 1000).all(1) for o in operands])
    few = torch.stack([(o == o[:, :1]).all(1) for o in operands])
    uneven = few.sum(0) == 1
    assert bool((far.sum(0)[uneven] == 1).all()) and 24 < int(uneven.sum()) < 60, "in most rows one is, and another"
    even = torch.stack([o[~uneven].double().abs().log10() for o in operands]).abs()
    assert bool(((even - even[0]).abs() < 1e-3).all()), "in the others all are as far from one"
    put_far_apart(one_sided := [torch.rand(64, 8) for _ in range(2)], generator, sided=True)
    assert all(bool((o >= 0).all()) for o in one_sided)


@pytest.mark.parametrize("where", [True, False])
def test_what_a_mask_hides_is_far(where: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.rand(16, 8, generator=generator) < 0.3
    tokens, scores, other = torch.randn(16, 8, 4), torch.randn(16, 8), torch.randn(5)
    put_far_under([tokens, scores, other], [hidden], where, generator)
    assert torch.equal((tokens.abs() > 1e17).all(-1), hidden == where) and float(other.abs().max()) < 10
    assert torch.equal(tokens.abs() > 1e17, (hidden == where).unsqueeze(-1).expand(tokens.shape))
    assert torch.equal(scores.abs() > 1e17, hidden == where)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (1, 10)])
def test_what_lies_between_ends_is_put_on_them(low: int, high: int) -> None:
    generator = torch.Generator().manual_seed(3)
    own = low + (high - low) * torch.rand(4096, generator=generator)
    for which, wanted in zip(("", *ONE_END), ((True, True), (True, False), (False, True)), strict=True):
        value = at_ends(own, which, generator)
        assert bool((value >= low).all()) and bool((value <= high).all())
        assert tuple(float((value == end).float().mean()) > 0.2 for end in (low, high)) == wanted
    assert torch.equal(at_ends(normal := torch.randn(4096, generator=generator), "", generator), normal)


def test_rows_climb_once_by_what_an_exponential_takes_and_a_sum_of_some_does_not() -> None:
    rows = redraw(CLIMB, torch.randn(64, 512), torch.Generator().manual_seed(3))
    rise = rows.max(1).values - rows.min(1).values
    assert bool((rise > 79).all()) and bool((rise < 89).all())
    assert bool(torch.isfinite((rows - rows.min(1, keepdim=True).values).exp()).all())
    sums = (rows - rows.min(1, keepdim=True).values).exp().sum(1)
    assert 0.2 < float(torch.isinf(sums).float().mean()) < 0.9
    assert {bool(row[0] < row[-1]) for row in rows} == {True, False}, "up, and down"


def test_what_is_exact_in_parts_and_far_from_zero_has_few_digits() -> None:
    generator = torch.Generator().manual_seed(3)
    own = torch.randn(64, 128, generator=generator)
    for kind, digits, most in ((POWERS, 1, 4), (FAR_ANGLES, 3, 2.0**62)):
        value, one = redraw(kind, own, generator), parameter_of(kind, own, generator)
        for made in (value, one):
            mantissa = torch.frexp(made)[0] * 2**digits
            assert torch.equal(mantissa, mantissa.round()) and float(made.abs().max()) <= most
        assert float((value * one).abs().max()) > 1
    rows = redraw(POWERS, own, generator)
    assert bool((rows[::2] == rows[::2, :1]).all()) and not bool((rows[1::2] == rows[1::2, :1]).all())
    assert len(parameter_of(POWERS, own, generator).unique()) == 1


def test_a_few_indices_are_beyond_what_they_index() -> None:
    own, bound = torch.randint(0, 64, (512,), dtype=torch.int32), IndexBound("at", 0, 64, wraps=False)
    beyond = out_of_range(own, bound, torch.Generator().manual_seed(3))
    assert beyond.dtype == own.dtype and int(beyond[-1]) >= 64 and 1 <= int((beyond >= 64).sum()) < 40


def test_lines_of_the_same_sums_are_others() -> None:
    lines = [torch.randint(0, 50000, (count, 24)) for count in (96, 128)]
    put_same_sums(lines, torch.Generator().manual_seed(3))
    equal = (lines[0][:, None] == lines[1][None]).all(-1)
    assert bool(equal.any()) and all(int(v.min()) >= 0 and int(v.max()) < 50000 for v in lines)
    for base in (0, 1, 31, 33):
        weights = (
            torch.tensor([pow(base, i, 1 << 20) for i in range(24)]).flip(0) if base else torch.ones(24).long() * 7
        )
        left, right = ((v * weights).sum(-1) for v in lines)
        assert bool(((left[:, None] == right[None]) & ~equal).any()), base


def test_a_mask_of_ones_gets_zeros_and_lengths_do_not() -> None:
    generator = torch.Generator().manual_seed(3)
    assert sorted(irregular(torch.ones(4096, dtype=torch.int64), None, generator).unique().tolist()) == [0, 1]
    assert 0 not in irregular(torch.full((4096,), 5), None, generator)


@pytest.mark.parametrize("mask", [torch.rand(256, 64) < 0.7, torch.ones(256, 64).long(), torch.zeros(256, 64).double()])
def test_masks_begin_with_runs_of_either_value(mask: torch.Tensor) -> None:
    if mask.is_floating_point():
        mask[:, ::3] = -torch.inf
    runs = in_runs(mask, torch.Generator().manual_seed(3))
    assert is_mask(mask) and runs.dtype == mask.dtype and len(runs.unique()) == 2 == len(runs[7].unique())
    first = (runs == runs[:, :1]).long().cumprod(-1).sum(-1)
    assert bool((first < 64).all()) and int(first.max()) > 48 and 64 < int((runs[:, 0] == runs.min()).sum()) < 192
    assert not any(map(is_mask, (torch.randn(64, 8), torch.arange(9), torch.zeros(9).long(), torch.ones(9))))


def test_two_sides_are_the_same_in_all_inputs_of_a_call() -> None:
    links, begun = (redraw(SIDES, torch.randn(n, 64), torch.Generator().manual_seed(3)) for n in (64, 4))
    side = links[0].sign()
    assert torch.equal(links.sign(), side[:, None] * side) and 8 < int((side < 0).sum()) < 56
    assert all(torch.equal(row.sign() * row[0].sign(), side) for row in begun)
    walk = torch.softmax(links.tanh(), -1)
    assert float(torch.linalg.eigvals(walk).abs().sort().values[-2]) > 0.6, "what goes on for many steps"


def test_an_order_is_broken_by_a_few_and_distances_are_uneven() -> None:
    generator = torch.Generator().manual_seed(3)
    ids, bound = torch.arange(1024) // 16, IndexBound("ids", 0, 64, wraps=False)
    other = disordered(ids, bound, generator)
    assert 0 < int((other != ids).sum()) <= 4 and int(other.min()) >= 0 and int(other.max()) < 64
    assert torch.equal(disordered(ids, None, generator), ids), "nobody knows what these mean"
    edges = torch.linspace(-3, 3, 65)
    apart = disordered(edges, None, generator)
    assert bool((apart.diff() > 0).all()) and float(apart.diff().std()) > 0.01
    assert torch.allclose(apart[[0, -1]], edges[[0, -1]], atol=1e-5)
    for ends in ((torch.arange(64) + 1) * 16, ids, torch.full((64,), 9)):
        other = uneven(ends, generator)
        assert int((other != ends).sum()) == (2 if ends[0] == 9 else 1) and other.dtype == ends.dtype
        assert int(other.sum()) == 576 if ends[0] == 9 else torch.equal(other[[0, -1]], ends[[0, -1]])
        assert ends[0] == 9 or bool((other.diff() >= int(ends[1] > ends[0])).all())
    for kept in (torch.arange(64), torch.randint(0, 9, (64,)), torch.ones(64, dtype=torch.int64), edges):
        assert torch.equal(uneven(kept, generator), kept), "there is no other with the same ends, or it is not in order"
    moved = disordered(edges.expand(3, 65), None, generator, ascends=False)
    assert torch.equal(moved.sort(-1).values, edges.expand(3, 65)) and bool((moved.diff() < 0).any(-1).all())


def test_places_nearly_in_order_are_all_there_but_for_a_few_neighbours() -> None:
    generator, bound = torch.Generator().manual_seed(3), IndexBound("x", -64, 64, wraps=True)
    own = torch.randint(0, 64, (4, 1024))
    line = nearly_in_order(own, bound, generator).reshape(-1)
    wrong = line != torch.arange(4096) % 64
    assert 0 < int(wrong.sum()) <= 32 and line.dtype == own.dtype
    assert all(sorted(part) == list(range(64)) for part in line.reshape(-1, 64).tolist())
    assert torch.equal(nearly_in_order(own, None, generator), own), "nobody knows what these mean"


def test_what_is_kept_is_another_in_a_part_and_a_mask_stays_a_mask() -> None:
    tril = torch.ones(64, 64).tril()
    for mask in (tril.bool(), tril, tril.long(), torch.where(tril > 0, 0.0, -math.inf), tril.bool()[None, None]):
        holed = nearly_as_kept(mask, torch.Generator().manual_seed(3))
        assert set(holed.reshape(-1).tolist()) == set(mask.reshape(-1).tolist()) and holed.dtype == mask.dtype
        changed = (holed != mask).reshape(64, 64)
        assert 32 < int(changed.sum()) <= 256 and not changed[0].any() and not changed[:, -1].any()
        lines = (holed != holed.max()).reshape(64, 64)
        assert bool(lines[:-1].any(1).all()) and not bool(lines.all(1).any()), "no line is hidden as a whole"
    places, table = torch.arange(256).reshape(16, 16).flip(0), torch.randn(128)
    for own in (places, table, torch.tensor([0, 4, 8, 20, 32])):
        other = nearly_as_kept(own, torch.Generator().manual_seed(3))
        assert 0 < int((other != own).sum()) <= 2
    for own in (torch.ones(16), torch.linspace(0, 1, 16), torch.tensor(3)):
        assert nearly_as_kept(own, GEN) is own
    assert nearly_as_kept(torch.tensor(3.0), GEN) == 1.5


def test_rows_have_spikes_that_are_alike_beside_masked_places() -> None:
    for dtype in (torch.float32, torch.float16):
        x = redraw(MASKED_SPIKES, torch.randn(64, 128, dtype=dtype), torch.Generator().manual_seed(3)).float()
        spikes, masked = x > 80, x < -9e3
        assert bool(torch.isfinite(x).all()) and bool(masked.any(-1).all()) and int(spikes.sum(-1).max()) == 2
        assert all(float(row.max() - row.min()) <= 2.2 for row in (r[s] for r, s in zip(x, spikes, strict=True)))


@pytest.mark.parametrize("rows", [1, 3, 24])
def test_one_row_at_least_has_spikes_that_are_alike(rows: int) -> None:
    """Two of them: where exponentials stop at a largest number, one alone is right without a maximum."""
    for seed in range(20):
        drawn = redraw(MIXED, torch.zeros(rows, 300), torch.Generator().manual_seed(seed))
        top = drawn.topk(2).values
        spiked = (top[:, 1] > 87) & (top[:, 0] - top[:, 1] < 3)
        assert spiked.any() and (rows < 24 or int(spiked.sum()) >= rows // 6)
        assert rows < 24 or bool((drawn.amax(1) < 10).any()), "ordinary rows beside them"


def test_some_lines_are_zero_and_the_others_stay() -> None:
    drawn = some_lines_zero(torch.ones(64, 8), torch.Generator().manual_seed(1)).sum(1)
    assert drawn[1] == 0 and set(drawn.tolist()) == {0.0, 8.0} and 4 < int((drawn == 0).sum()) < 32


def test_numbers_come_again_with_other_digits() -> None:
    value = torch.randn(40, 50)
    value[0, 0], value[1, 1] = 0.0, math.inf
    apart = []
    for less in range(3):
        other = with_other_digits(value, less, torch.Generator().manual_seed(5))
        assert torch.equal(other.view(torch.int32) >> 16, value.view(torch.int32) >> 16)
        assert other[0, 0] == 0 and other[1, 1] == math.inf
        apart.append(float(((other - value) / value).nan_to_num().abs().max()))
    assert 2**-9 < apart[0] < 2**-8 and apart[0] > 4 * apart[1] and apart[1] > 4 * apart[2] > 0, apart


@pytest.mark.parametrize("value", [torch.randn(40, 50), torch.randn(50, 40).t()])
def test_a_content_comes_again_but_for_one_number(value: torch.Tensor) -> None:
    other = with_one_other(value, torch.Generator().manual_seed(5))
    assert int((other != value).sum()) == 1 and torch.equal(other[other != value], 0.5 * value[other != value])


@pytest.mark.parametrize("turned", [False, True])
def test_sums_lose_what_is_beside_a_few_huge_numbers(turned: bool) -> None:
    value = torch.randn(40, 50, generator=torch.Generator().manual_seed(6))
    value = value.t() if turned else value
    few, beside = (with_few_huge(value, torch.Generator().manual_seed(7), others=others) for others in (False, True))
    assert float((few != beside).double().mean()) > 0.9
    for of in (few.double, beside.double), (few.double().square, beside.double().square):
        assert of[0]().sum() == of[1]().sum()


def test_lines_of_a_parameter_change_places() -> None:
    weight = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    for dim in (0, -1):
        moved = lines_moved(weight, dim, torch.Generator().manual_seed(4))
        assert not torch.equal(moved, weight)
        assert torch.allclose(moved.sum(dim), weight.sum(dim), atol=1e-5)
