"""Inputs whose lines hang together, and whole numbers at both ends or far apart in their bits."""

from __future__ import annotations

import pytest
import torch

from rag_kernels.eval.numerics.input_draws import redraw
from rag_kernels.eval.numerics.inputs_together import put_same_sums
from rag_kernels.eval.numerics.integer_draws import at_both_ends, multiples_of_two, one_apart
from rag_kernels.eval.numerics.shaped_noise import bad_for_pivots
from rag_kernels.eval.numerics.structured_noise import put_next_to_lines
from rag_kernels.eval.records import IndexBound
from rag_kernels.eval.traits.input_kinds import ALOFT, LEVELS, LONG_CHAIN, LONG_WAYS, ORTHONORMAL, SORTED_ROWS, STEEP


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rows_are_steep_in_order_and_in_none() -> None:
    rows = redraw(STEEP, torch.randn(200, 256), generator()).double().abs()
    assert bool(torch.isfinite(rows).all()) and float((rows.amax(1) / rows.median(1).values).median()) > 10
    ordered = (rows.diff(dim=1) >= 0).all(1)
    assert 0.3 < float(ordered.double().mean()) < 0.7


@pytest.mark.parametrize(("kind", "little"), ORTHONORMAL.items())
def test_rows_or_columns_are_nearly_orthonormal(kind: str, little: float) -> None:
    for shape in ((20, 50), (50, 20), (3, 20, 50)):
        made = redraw(kind, torch.randn(*shape), generator()).double()
        wide = made if shape[-1] > shape[-2] else made.mT
        off = (wide @ wide.mT - torch.eye(20)).abs().max()
        assert 0.1 * little < float(off) < 20 * little


def test_one_of_a_row_is_far_above_the_others() -> None:
    rows = redraw(ALOFT, torch.randn(400, 64), generator()).sort(1).values
    above = rows[:, -1] - rows[:, -2]
    assert float(above.min()) > 10 and 50 < float(above.max()) < 62
    unseen = (rows[:, -1] > -69) & (rows[:, -2] < -88)  # the sum of exponentials is no less than 1e-30
    assert float(unseen.double().mean()) > 0.1


def test_rows_lie_at_many_levels() -> None:
    level = redraw(LEVELS, torch.randn(400, 512), generator()).mean(1)
    assert 3 < float(level.abs().min()) < 10 and 100 < float(level.abs().max()) < 330
    assert 0.4 < float((level > 0).double().mean()) < 0.6


def test_a_long_way_takes_as_many_steps_as_there_are_places() -> None:
    links, now = (redraw(LONG_WAYS, torch.rand(*shape), generator()) for shape in ((24, 24), (1, 24)))
    for step in range(24):
        later = torch.minimum(now, (now.unsqueeze(2) + links).amin(1))
        assert (step == 23) == torch.equal(later, now)
        now = later
    chain, first = (redraw(LONG_CHAIN, torch.rand(*shape), generator()) for shape in ((6, 6), (6,)))
    reached = [int((first @ torch.linalg.matrix_power(chain, steps)).argmax()) for steps in range(7)]
    assert reached == [0, 1, 2, 3, 4, 5, 5]


def test_lines_are_next_to_those_of_the_smallest() -> None:
    x, y, z = torch.randn(300, 16), torch.randn(20, 16), torch.randn(5, 7)
    kept = z.clone(), y.clone()
    put_next_to_lines((x, y, z), generator())
    assert torch.equal(z, kept[0]) and torch.equal(y, kept[1])
    least = torch.cdist(x.double(), y.double()).amin(1)
    assert float(least.min()) > 0 and float(least.max()) < 0.02


def test_whole_numbers_are_at_both_ends_in_parts() -> None:
    x, y = (at_both_ends(torch.randint(0, 256, (64, 30), dtype=torch.uint8), generator(seed)) for seed in (3, 4))
    both = {(int(a), int(b)) for a, b in zip(x[1::2, 0], y[1::2, 0], strict=True)}
    assert len(both) == 4 and bool((x[1::2] == x[1::2, :1]).all())
    least, greatest = int(x.min()), int(x.max())
    apart = torch.minimum(x - least, greatest - x)[::2]
    assert apart.sum(1).tolist() == [1] * 32, "all but one element, which is the next number"


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_in_order_or_but_for_two_neighbours(seed: int) -> None:
    rows = redraw(SORTED_ROWS, torch.randn(48, 64), generator(seed))
    steps = (rows.diff(dim=1) > 0).sum(1)
    assert sorted(steps[steps.remainder(62) < 2].tolist()) == [0] * 8 + [1] * 8 + [62] * 8 + [63] * 8


def steps_to_the_median(row: list[int]) -> int:
    """Return how many exchanges and looks a selection in place takes whose pivots are medians of ends and middle."""
    seen, low, high, wanted = 0, 0, len(row) - 1, len(row) // 2
    while high > low:
        pivot = sorted((row[low], row[low + (high - low) // 2], row[high]))[1]
        i, j = low, high
        while i <= j:
            while row[i] < pivot:
                i, seen = i + 1, seen + 1
            while row[j] > pivot:
                j, seen = j - 1, seen + 1
            if i <= j:
                row[i], row[j] = row[j], row[i]
                i, j, seen = i + 1, j - 1, seen + 1
        low, high = (low, j) if wanted <= j else (i, high) if wanted >= i else (low, low)
    return seen


def test_an_order_is_bad_for_pivots() -> None:
    for n in (1, 2, 3, 5, 8, 511, 512):
        assert sorted(bad_for_pivots(n)) == list(range(n))
        shuffled = torch.randperm(n, generator=generator()).tolist()
        assert n < 99 or steps_to_the_median(bad_for_pivots(n)) > 10 * steps_to_the_median(shuffled)


@pytest.mark.parametrize("bound", [None, IndexBound("0", 0, 9000, wraps=False)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8])
def test_one_integer_of_a_line_is_far_from_the_others(dtype: torch.dtype, bound: IndexBound | None) -> None:
    own = torch.randint(0, 250 if dtype == torch.uint8 else 9000, (40, 64), generator=generator(1)).to(dtype)
    made = one_apart(own, bound, generator())
    assert made.dtype == dtype
    lines = made.long().sort(dim=1).values
    assert bool(((lines[:, 1:-1].amax(1) - lines[:, 1:-1].amin(1)) < 251).all())
    in_order = (made.long().diff(dim=1) < 0).sum(1) <= 2  # but for the one, wherever it lies
    assert 20 <= int(in_order.sum()) <= 22
    if bound is not None:
        assert own.min() <= made.min() and made.max() == own.max()
    elif dtype == torch.int64:
        assert bool((lines.abs().amax(1) >= 512).all()) and int(made.abs().max()) > 1 << 20


def test_whole_numbers_have_the_same_low_bits() -> None:
    own = torch.randint(0, 1000, (50,))
    for seed in range(4):
        made = multiples_of_two(own, generator(seed))
        assert bool((made % 256 == 0).all()) and torch.equal(made // (made[own > 0][0] // own[own > 0][0]), own)
    small = torch.randint(0, 100, (50,), dtype=torch.uint8)
    assert torch.equal(multiples_of_two(small, generator()), small), "no room"


def test_some_lines_have_every_polynomial_in_common() -> None:
    lines = torch.randint(0, 1000, (64, 2048), generator=generator())
    put_same_sums([lines], generator())
    base, known = 1000003, [0] * 64
    for column in lines.T.tolist():
        known = [(k * base + v) % 2**64 for k, v in zip(known, column, strict=True)]
    alike = {k: {tuple(lines[i].tolist()) for i in range(64) if known[i] == k} for k in set(known)}
    assert max(map(len, alike.values())) == 2, "two lines that differ"
