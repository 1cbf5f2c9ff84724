"""Integer inputs index something: at other sizes they stay in its range, whatever the text draws them from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.kept import kept_judge, kept_workers

from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError
from rag_kernels.eval.sizes.tried_sizes import NARROWER, OF_THESE, Between, Rest, Sizes, Within
from rag_kernels.eval.traits.input_kinds import ALIKE, WIDE
from rag_kernels.eval.traits.suitable_kinds import wide_in_words
from rag_kernels.ingest.functional.folding import unfolded
from rag_kernels.ingest.functional.functionalize import functionalize, functionalize_each, functionalize_to_fit
from rag_kernels.ingest.functional.sizes import at_other_sizes

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def problem(
    forward: str, inputs: str, *, given: str, constants: str = "", init: str = "pass", args: str = "", values: str = ""
) -> Problem:
    return Problem(
        "case",
        f"{HEAD}{constants}\n\nclass Model(nn.Module):\n    def __init__(self{', ' + args if args else ''}):\n"
        f"        super().__init__()\n        {init}\n\n    def forward(self, {given}):\n        {forward}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return [{values or args}]\n",
    )


TABLE = "self.table = nn.Embedding(v, d); self.norm = nn.RMSNorm(d)"
CASES = {
    "a loss over a vocabulary of literals": problem(
        "return F.cross_entropy(x, t)", "torch.randn(4096, 128256), torch.randint(0, 128256, (4096,))", given="x, t"
    ),
    "a loss over named classes, some ignored": problem(
        "return F.cross_entropy(x, t, ignore_index=255)",
        "torch.randn(B, C, 64, 64), torch.where(torch.rand(B, 64, 64) < 0.1, 255, torch.randint(C, (B, 64, 64)))",
        given="x, t",
        constants="B, C = 512, 151",
    ),
    "a negative log likelihood": problem(
        "return F.nll_loss(F.log_softmax(x.view(-1, x.size(-1)), -1), t.view(-1) - 1)",
        "torch.randn(32, 256, 50304), torch.randint(1, 50305, (32, 256))",
        given="x, t",
    ),
    "an embedding and a norm": problem(
        "return self.norm(self.table(t))",
        "torch.randint(0, 128256, (16, 512))",
        given="t",
        init=TABLE,
        args="v, d",
        values="128256, 256",
    ),
    "an embedding by names and expressions": problem(
        "return self.norm(self.table(t))",
        "torch.randint(0, 2 * HALF - 1, (BATCH, 512))",
        given="t",
        constants="HALF = 64128\nVOCAB = 128256\nBATCH = 64",
        init=TABLE,
        args="v, d",
        values="VOCAB, 256",
    ),
    "two tables": problem(
        "return self.a(i.flatten()) * self.b(j).flatten(0, 1)",
        "torch.randint(0, 1000000, (128, 64)), torch.randint(0, 200000, (128, 64))",
        given="i, j",
        init="self.a = nn.Embedding(m, d); self.b = nn.Embedding(n, d)",
        args="m, n, d",
        values="1000000, 200000, 64",
    ),
    "gather": problem(
        "return torch.gather(x, 1, i).exp()",
        "torch.randn(8192, 32768), torch.randint(0, 32768, (8192, 512))",
        given="x, i",
    ),
    "index_add": problem(
        "return x.index_add(0, i, y)",
        "torch.zeros(100000, 128), torch.randint(0, 100000, (400000,)), torch.randn(400000, 128)",
        given="x, i, y",
    ),
    "rows from both ends": problem(
        "return x[:, i] * 2",
        "torch.randn(4096, 65536), torch.randint(-65536, 65536, (256,))",
        given="x, i",
    ),
    "places of a plane": problem(
        "return x.flatten()[row * 64 + column].exp()",
        "torch.randn(H, 64), torch.randint(0, H, (4194304,)), torch.randint(0, 64, (4194304,))",
        given="x, row, column",
        constants="H = 1 << 20",
    ),
    "every second row, from the first": problem(
        "return self.table(t * 2 - 1)",
        "torch.randint(1, 50000, (2048, 64))",
        given="t",
        init="self.table = nn.Embedding(v, d)",
        args="v, d",
        values="100000, 128",
    ),
    "scatter": problem(
        "return torch.zeros_like(x).scatter_add(1, i, y)",
        "torch.randn(4096, 32768), torch.randint(0, 32768, (4096, 8192)), torch.randn(4096, 8192)",
        given="x, i, y",
    ),
}


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as started:
        yield started


def runs(form: FunctionalProblem) -> list[torch.Tensor]:
    module = load_module("case", form.problem.source)
    torch.manual_seed(1)
    inputs = module.get_inputs()
    module.Model(*module.get_init_inputs())(*inputs)
    return [i for i in inputs if not i.is_floating_point()]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_indices_stay_in_range_at_other_sizes(workers: Workers, case: Problem) -> None:
    full = functionalize(case, workers=workers)
    assert full.verified and full.problem == case, full.notice
    both: tuple[Sizes, ...] = ("small", "odd")
    for other in at_other_sizes(full, both, workers):
        assert other is not None and other.verified and other.graph_key == full.graph_key
        assert all(len(set(i.flatten().tolist())) > 1 for i in runs(other))


def test_a_problem_made_to_fit_is_in_range_and_can_be_made_smaller(workers: Workers) -> None:
    fitted = functionalize_to_fit(CASES["an embedding and a norm"], workers=workers, max_bytes=64 << 20)
    assert "scaled down" in fitted.notice
    runs(fitted)
    (small,) = at_other_sizes(fitted, ["small"], workers)
    assert small is not None and small.problem.source.count("_drawn_inputs = get_inputs") == 1
    runs(small)


PICKS = {  # what is known of `i`, drawn from 5 to 15: a range, that what is drawn will do, or nothing
    "(i - 1)": (1, 17),
    "(2 * i - 10)": (5, 13),
    "(16 - i)": "as drawn",
    "(i // 2)": "as drawn",
    "i % 16": None,
    "i.clamp(0, 15)": None,
    "i.clamp(min=0).clamp(max=15)": None,
    "(i.clamp(min=0).clamp(max=15) - i)": "as drawn",
    "perm[i]": (0, 16),
}


def test_what_is_computed_with_before_it_is_a_place_is_drawn_within_what_the_text_draws(workers: Workers) -> None:
    for place, known in PICKS.items():
        high = 13 if "2 *" in place else 16
        case = problem(
            f"return x.gather(1, ({place})[:, None])",
            f"torch.randn(8, 16), torch.randint(5, {high}, (8,)), torch.randint(0, 16, (16,))",
            given="x, i, perm",
        )
        found = functionalize(case, workers=workers)
        bounds = {b.path: (b.low, b.high) for b in found.bounds} | dict.fromkeys(found.as_drawn, "as drawn")
        assert bounds.get("1") == known, place


def test_wide_integers_of_places_that_were_computed_stay_within_what_is_drawn(workers: Workers) -> None:
    inputs = "torch.randn(64, 16), torch.randint(1, 17, (64,))"
    case = problem("return x.gather(1, (16 - i)[:, None])", inputs, given="x, i")
    found = functionalize(case, workers=workers)
    limits = Limits(measure_compile=False)
    with (
        kept_judge("cpu", limits=limits) as judge,
        judge.sessions.new(found) as session,
    ):
        draw = session.specials.draw(WIDE)
        assert draw is not None, "the module does not take it"
        drawn = session.draws[draw].bytes(1).view("int64")
        assert set(drawn.tolist()) <= set(range(1, 17)) and "the least" in wide_in_words(found)


@pytest.mark.parametrize("shape", ["(64,)", "(64, 1)"])
def test_places_that_are_computed_of_two_inputs_are_those_of_one_draw(workers: Workers, shape: str) -> None:
    """Of one shape they move together, of several they stay."""
    case = problem(
        "return x.gather(1, (ends.view(64) - starts - 1)[:, None])",
        "torch.randn(64, 16), S, (S + torch.randint(1, 9, (64,))).view(SHAPE)".replace("SHAPE", shape),
        given="x, starts, ends",
    )
    source = case.source.replace(
        "    return [torch.randn", "    S = torch.randint(0, 9, (64,))\n    return [torch.randn"
    )
    found = functionalize(Problem("case", source), workers=workers)
    assert found.as_drawn == ("1", "2")
    limits = Limits(measure_compile=False)
    with (
        kept_judge("cpu", limits=limits) as judge,
        judge.sessions.new(found) as session,
    ):
        moved = False
        for _ in range(12):
            session.write(session.random_recipe())
            starts, ends = (session.content.bytes(i).view("int64") for i in (1, 2))
            assert (ends > starts).all()
            moved |= starts.tobytes() not in {draw.bytes(1).tobytes() for draw in session.draws}
        assert moved == (shape == "(64,)")


def test_a_mask_whose_running_count_is_a_place_stays_as_it_is_drawn(workers: Workers) -> None:
    inputs = "torch.randn(32, 8), torch.randn(64, 8), torch.arange(64) % 2 == 1"
    body = "return torch.where(m[:, None], x[(m.long().cumsum(0) - 1).clamp(min=0)], y)"
    found = functionalize(problem(body, inputs, given="x, y, m"), workers=workers)
    assert found.as_drawn == ("2",)
    other = problem("return torch.where(m[:, None], x[m.long()], y)", inputs, given="x, y, m")
    assert functionalize(other, workers=workers).as_drawn == ()
    with (
        kept_judge("cpu", limits=Limits(measure_compile=False)) as judge,
        judge.sessions.new(found) as session,
    ):
        for _ in range(12):
            session.write(session.random_recipe())
            assert session.content.bytes(2).sum() == 32
        draw = session.specials.draw(ALIKE)
        assert draw is None or session.draws[draw].bytes(2).sum() == 32


def test_sentinels_stay(workers: Workers) -> None:
    full = functionalize(CASES["a loss over named classes, some ignored"], workers=workers)
    (small,) = at_other_sizes(full, ["small"], workers)
    assert small is not None
    (targets,) = runs(small)
    assert (targets == 255).any() and unfolded(small.problem) != small.problem


def test_a_module_that_fails_at_smaller_sizes_is_not_told_of_the_functional_form(workers: Workers) -> None:
    case = problem(
        "return self.table(t * t)",  # what is read is no sum of inputs: nobody can know the range
        "torch.randint(480, 490, (1 << 16, 64))",
        given="t",
        init="self.table = nn.Embedding(v, d)",
        args="v, d",
        values="240000, 512",
    )
    form = functionalize(case, workers=workers)
    assert not form.verified and form.notice.startswith("not verified against the module")


def test_a_module_that_fails_by_itself_says_so(workers: Workers) -> None:
    case = problem("return F.cross_entropy(x, t)", "torch.randn(8, 10), torch.randint(10, 20, (8,))", given="x, t")
    with pytest.raises(ProblemError, match=r"the module fails on the inputs that get_inputs\(\) draws: .*IndexError"):
        functionalize(case, workers=workers)


def test_sizes_that_are_looked_for_together_are_traced_by_one_child_a_round(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = functionalize(
        problem(
            "return x.softmax(-1) * y", "torch.randn(R, 2048), torch.randn(2048)", given="x, y", constants="R = 64"
        ),
        workers=workers,
    )
    asked: list[str] = []
    call = workers.call
    monkeypatch.setattr(workers, "call", lambda target, *a, **k: asked.append(target) or call(target, *a, **k))
    wanted: tuple[Sizes, ...] = ("odd", "large", "tiny", Between(3, 2))
    together = at_other_sizes(full, wanted, workers)
    assert len(asked) == 1 and None not in together
    assert together == [at_other_sizes(full, [one], workers)[0] for one in wanted]
    tiny, *rests = together[2], *at_other_sizes(full, [Rest(1, 16), Rest(7, 16)], workers, small=together[2])
    lengths = [one.tensors[1].spec.shape[0] for one in (tiny, *rests) if one is not None]
    assert lengths == [lengths[0], lengths[0] + 1, lengths[0] + 7]


def test_sizes_of_the_inputs_alone_leave_what_the_module_was_made_with(workers: Workers) -> None:
    full = functionalize(
        problem(
            "return self.linear(x)",
            "torch.randn(B, 24, 64)",
            given="x",
            init="self.linear = nn.Linear(width, 48)",
            args="width",
            values="64",
            constants="B = 20",
        ),
        workers=workers,
    )
    wanted: list[Sizes] = [Within(reach, sizes) for reach in NARROWER for sizes in OF_THESE]
    found = [one for one in at_other_sizes(full, wanted, workers) if one is not None]
    rows, weights = {one.tensors[0].spec.shape[:2] for one in found}, {one.tensors[1].spec.shape for one in found}
    assert weights == {(48, 64)}
    assert {(21, 25), (30, 36), (41, 49), (20, 192), (160, 24)} <= rows, rows  # of the inputs
    assert {(21, 24), (30, 24), (41, 24)} <= rows, rows  # of the batch alone
    alone = functionalize(problem("return x * 2", "torch.randn(20, 24)", given="x"), workers=workers)
    inputs = [Within("inputs", sizes) for sizes in OF_THESE]
    assert at_other_sizes(alone, inputs, workers) == [None] * 5  # no others than those of all


def test_forms_at_other_sizes_have_the_constants_of_the_problem(workers: Workers) -> None:
    """A `layer_norm` that is told of cuDNN has no spelling in Python: its overload is called, with a number as eps."""
    body = "return torch.layer_norm(x, (24,), eps=1e-3, cudnn_enable=False)"
    full = functionalize(problem(body, "torch.randn(B, 24)", given="x", constants="B = 20"), workers=workers)
    wanted: tuple[Sizes, ...] = ("odd", "large", Within("batch", "odd"))
    found = at_other_sizes(full, wanted, workers)
    assert [one and one.constants for one in found] == [full.constants] * 3


def test_one_that_ends_the_child_leaves_the_others_their_forms(workers: Workers) -> None:
    ends = "__import__('os').kill(__import__('os').getpid(), 9) if x.shape[0] == 7 else None\n        return x * 2"
    seven, nine = (problem(ends, f"torch.randn({rows}, 8)", given="x") for rows in (7, 9))
    found = functionalize_each([seven, nine], workers=workers)
    assert found[0] is None and found[1] is not None and found[1].problem == nine
