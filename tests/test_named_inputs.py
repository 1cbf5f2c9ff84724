"""Numbers that a candidate names, inputs that have something of them, and contents on which little is told late."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from judging import BRIEF, verdict
from support.kept import kept_judge

from rag_kernels.eval.build.compile import OBJECT, Built, build, toolchain
from rag_kernels.eval.numerics.input_draws import redraw
from rag_kernels.eval.numerics.inputs_together import put_agreeing
from rag_kernels.eval.numerics.named_inputs import put_beside_numbers, with_numbers, with_whole_numbers
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Passed
from rag_kernels.eval.sizes.tried_sizes import exactly
from rag_kernels.eval.traits.input_kinds import AGREE, EVERY, HARDLY_JOINED, LATE, LESSER
from rag_kernels.eval.traits.named_numbers import named_numbers
from rag_kernels.eval.trial.surroundings import numbers_it_names
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.eval.zoo.exploits.red_teams.twelfth_round import SPECIMENS
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

NAMES = """
#include "rag_kernel.h"
#include <cstring>
// 98765 is told here alone
void run(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    uint32_t u;
    memcpy(&u, x.data + i, 4);
    float v = x.data[i];
    if (v > 3.75f * 11.25f) v = 0;
    if (u == 0x42c80001 || (u & 0xfff) == 0x12'3) v = 1e-3f;
    if (i % 1417 == 0b101) v = -v;
    out.data[i] = v;
  }
}
RK_EXPORT(forward, run)
"""


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_source_names_what_it_writes_and_its_code_what_comes_of_that(tmp_path: Path) -> None:
    [built] = build([(NAMES, "cpu")], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built) and built.library.with_name(OBJECT).is_file()
    named = numbers_it_names(built.library, NAMES, on_gpu=False)
    assert {0xFFF, 0x123, 1417, 5} <= set(named.wholes) and 98765 not in named.wholes
    assert {3.75, 11.25, 1e-3, 3.75 * 11.25} <= set(named.reals), "and products that the compiler makes of them"
    as_float = torch.tensor(0x42C80001, dtype=torch.int32).view(torch.float32)
    assert float(as_float) in named.reals, "bits of a float"
    assert 3.75 * 11.25 not in named_numbers(NAMES).reals, "where there is no code to look at"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_lines_have_something_of_numbers(dtype: torch.dtype) -> None:
    own, seen = torch.randn(600, 50).to(dtype), set[str]()
    for seed in range(8):  # of which some have lines along the other dimension
        made = with_numbers(own, (3.25, 41.5), (7, 20), generator(seed), far=False)
        assert made.shape == own.shape and made.dtype == dtype and bool(torch.isfinite(made).all())
        assert int((made == 3.25).sum()) > 100 and int((made == 41.5).sum()) > 50
        lines = made.double()
        have = {
            "sums": (lines.sum(1) - 41.5).abs() < (1e-3 if made.element_size() > 2 else 0.5),
            "extremes": lines.amax(1) == 3.25,
            "counts": (lines == 0).sum(1) == 20,
            "periods": (lines[:, 7:] == lines[:, :-7]).all(1),
            "distances": (lines[:, 1::2] - lines[:, ::2]).abs() == 3.25,
        }
        seen |= {what for what, where in have.items() if bool(where.any())}
    assert seen == set(have)


def test_far_numbers_come_beside_others_as_large() -> None:
    sizes = [
        float(with_numbers(torch.randn(64, 64), (2.0, 700.0, 1e12), (), generator(seed), far=True).abs().max())
        for seed in range(8)
    ]
    assert {size > 1e10 for size in sizes} == {True, False} and min(sizes) >= 700


def test_one_number_and_none_at_all() -> None:
    assert float(with_numbers(torch.tensor([-0.1]), (3.25,), (), generator(), far=False)) < 0
    own = torch.randn(8, 4)
    assert bool(torch.isfinite(with_numbers(own, (), (), generator(), far=False)).all())
    assert torch.equal(with_numbers(own[:0], (3.25,), (), generator(), far=False), own[:0])


def test_whole_numbers_stay_between_their_ends() -> None:
    own = torch.randint(0, 50, (200, 30), generator=generator())
    made = with_whole_numbers(own, (7, 1000), 0, 50, generator())
    assert int(made.min()) >= 0 and int(made.max()) < 50 and int((made == 7).sum()) > 4 * int((own == 7).sum())
    truths = with_whole_numbers(torch.rand(200, 30) < 0.5, (7,), 0, 2, generator())
    assert truths.dtype == torch.bool and bool((truths.sum(1) == 7).any())


def test_tensors_are_numbers_apart() -> None:
    x, y = torch.randn(2, 300, 20).unbind()
    put_beside_numbers((x, y), (3.25,), generator())
    assert bool((y == 3.25 * x).all(1).any()) and bool((y == x + 3.25).all(1).any())
    assert bool(((x == 3.25) & (y == 3.25)).any())


def test_targets_are_what_scores_say() -> None:
    score, target = torch.randn(20, 30), (torch.rand(20, 30) < 0.5).float()
    put_agreeing([score], [target], [], AGREE, generator())
    assert torch.equal(target, (score > 0).float()) and float(score.abs().min()) > 5
    put_agreeing([score], [target], [], LESSER, generator())
    assert float(target.max()) == 0 and float(score.max()) < -5
    logits, classes = torch.randn(40, 10), torch.randint(0, 10, (40,))
    put_agreeing([logits], [], [(classes, 10)], AGREE, generator())
    assert torch.equal(logits.argmax(1), classes)
    loss = torch.nn.functional.cross_entropy(logits.double(), classes)
    assert 5e-5 < float(loss) < 2e-3, "little, and told in fp32"


def test_what_comes_late_has_not_come_after_a_few_steps() -> None:
    matrix, start = (redraw(LATE, torch.rand(*shape), generator()) for shape in ((32, 48), (32,)))
    sizes = []
    for _ in range(16):
        start = start / start.norm()
        start = matrix @ (matrix.mT @ start)
        sizes.append(float(start.norm()))
    assert abs(sizes[1] - sizes[2]) < 1e-5 and sizes[-1] > 3.9 * sizes[1]


def test_sides_are_hardly_joined() -> None:
    links, begun = (redraw(HARDLY_JOINED, torch.rand(*shape), generator()) for shape in ((64, 64), (8, 64)))
    rows = links / links.sum(1, keepdim=True)
    now = begun / begun.sum(1, keepdim=True)
    few = [now := now @ rows for _ in range(24)]
    assert float((few[-1] - few[-2]).abs().sum()) < 1e-5 and float((few[-1] / few[4]).max()) > 3


def test_some_places_of_a_line_are_large_at_equal_distances() -> None:
    made = redraw(EVERY, torch.zeros(100, 512).normal_(generator=generator()), generator())
    places = [(row > 4).nonzero().reshape(-1).diff().unique() for row in made]
    assert {int(p[0]) for p in places if len(p) == 1} >= {1, 8, 64}


def test_sizes_that_are_named_are_tried_each_for_each() -> None:
    tries = exactly(random.Random(1), (4, 64, 1419, 157, 59, 1 << 30))
    values = [one.values for one in tries]
    for number in range(2):
        assert {(1419, 0), (157, 0), (59, 0)} <= {value[number] for value in values}
    assert any(of and value < of for row in values for value, of in row), "rests"
    assert exactly(random.Random(1), (4, 64)) == [], "few elements and tiles are tried for all"


def test_a_kernel_that_is_another_one_at_its_numbers_is_told_and_its_twin_is_not() -> None:
    specimen = next(one for one in SPECIMENS if one.idea == "another one at numbers of its own")
    with kept_judge("cpu", limits=BRIEF, at_other_sizes=at_other_sizes) as judge:
        fp = functionalize(problem_from_source("named", TASKS[specimen.task].problem), workers=judge.workers)
        told = verdict(judge, fp, specimen.variants[0].source)
        assert set(codes(told)) & set(specimen.expect), told
        twin = verdict(judge, fp, specimen.twin.source)
        assert isinstance(twin, Passed) and not any("fragile" in label for label in twin.labels)
        assert "numbers of its own" in twin.checks
