"""Reading replies, planning rounds, replaying scripts."""

from __future__ import annotations

import factories
import pytest

from rag_kernels.llm import reply as llm_reply
from rag_kernels.llm.plan import Explore, Rework, plan
from rag_kernels.llm.request import prompt_text
from rag_kernels.records import Brief, WriterError
from rag_kernels.scripted import Scripted, ScriptedLLM, ScriptedWriter

KERNEL = '#include "rag_kernel.h"\nvoid f(rk::Tensor<float> out) {}\nRK_EXPORT(forward, f)\n'
COMPOSED = "KERNELS = r'''\n" + KERNEL + "'''\n\ndef forward(x):\n    return x\n"


@pytest.mark.parametrize(
    ("reply", "ideas"),
    [
        ("1. one\n2. two\n3. three", ["one", "two"]),
        ("Sure:\n\n1) **Fuse**: do it\n   in one pass.\n\n2) Tile.\n", ["Fuse: do it in one pass.", "Tile."]),
        ("**1. Fuse.** now\n\n**2. Tile.** then", ["Fuse. now", "Tile. then"]),
        ("1. Load by __ldg, as `__restrict__` allows", ["Load by __ldg, as `__restrict__` allows"]),
        ("<think>1. bad\n2. worse</think>\n1. good", ["good"]),
        ("Just fuse the loops.", ["Just fuse the loops."]),
        ("", []),
        ("```cpp\nint x;\n```", []),
    ],
)
def test_ideas(reply: str, ideas: list[str]) -> None:
    assert llm_reply.ideas(reply, 2) == ideas


@pytest.mark.parametrize(
    ("reply", "source", "tier"),
    [
        (f"```cpp\n{KERNEL}```", KERNEL, "kernel"),
        (f"text\n```\n{KERNEL}```\nmore", KERNEL, "kernel"),
        (f"~~~c++\n{KERNEL}~~~", KERNEL, "kernel"),
        (f"```cpp\nfloat s = 0;\n```\nthe whole:\n```cpp\n{KERNEL}```", KERNEL, "kernel"),
        (f"<think>```cpp\nint bad;\n```</think>```cpp\n{KERNEL}```", KERNEL, "kernel"),
        (f"```cpp\n{KERNEL}", KERNEL, "kernel"),
        (f"```cpp\n{KERNEL}```\n```cpp\n// RK_EXPORT(second)\n```", KERNEL, "kernel"),
        (f"```python\n{COMPOSED}```", COMPOSED, "composed"),
        (f"```\n{COMPOSED}```", COMPOSED, "composed"),
        ("```python\nclass ModelNew(nn.Module): ...\n```", "class ModelNew(nn.Module): ...\n", "module"),
        ("````cpp\nint a; // ``` inside\n````", "int a; // ``` inside\n", "kernel"),
    ],
)
def test_code(reply: str, source: str, tier: str) -> None:
    found = llm_reply.candidate(reply, "cpu")
    assert found is not None and (found.source, found.tier, found.backend) == (source, tier, "cpu")


@pytest.mark.parametrize("reply", ["", "no code at all", "inline `code` only", "```cpp\n```", "```"])
def test_no_code(reply: str) -> None:
    assert llm_reply.candidate(reply, "cpu") is None


def test_stated_idea() -> None:
    assert (
        llm_reply.stated_idea("**Idea:** use `float4` loads.\n```cpp\n// Idea: not this\n```") == "use `float4` loads."
    )
    assert llm_reply.stated_idea("```cpp\n// Idea: not this\n```") == ""


def test_the_first_round_is_all_new() -> None:
    assert plan((), 3) == [Explore(), Explore(), Explore()]


def test_a_round_after_failures_only_repairs_and_explores() -> None:
    lost = [factories.attempt(number=i, variant=i, verdict=factories.wrong()) for i in (1, 2)]
    repair = [Rework("repair", (a,)) for a in reversed(lost)]
    assert plan(lost, 3) == [repair[0], Explore(), repair[1]]
    assert plan(lost, 6) == [repair[0], Explore(), repair[1], Explore(), Explore(), Explore()]


def test_what_only_lacked_a_gpu_is_not_repaired() -> None:
    assert plan([factories.attempt(verdict=factories.compiled())], 2) == [Explore(), Explore()]


def test_a_parent_that_was_improved_often_gives_way() -> None:
    best = factories.attempt(number=1, variant=1, verdict=factories.passed(2.0))
    second = factories.attempt(number=2, variant=2, verdict=factories.passed(1.9))
    assert plan([best, second], 1) == [Rework("improve", (best,))]
    child = factories.attempt(number=3, variant=3, verdict=factories.passed(1.0), parents=(best.candidate.id,))
    assert plan([best, second, child], 1) == [Rework("improve", (second,))]


def test_a_run_that_goes_on_draft_by_draft_improves_first_and_gets_all_kinds() -> None:
    first = factories.attempt(number=1, variant=1, idea="a")
    assert plan([first], 1, asked=1) == [Rework("improve", (first,))]
    lost = factories.attempt(number=1, variant=1, verdict=factories.wrong())
    assert plan([lost], 1, asked=1) == [Rework("repair", (lost,))]
    other = factories.attempt(number=2, variant=2, verdict=factories.passed(1.2), idea="b")
    wrong = factories.attempt(number=3, variant=3, verdict=factories.wrong())
    slower = factories.attempt(number=4, variant=4, verdict=factories.passed(0.5), parents=(first.candidate.id,))
    turns = [plan([first, other, wrong, slower], 1, asked=n)[0] for n in range(1, 7)]
    kinds = [turn.kind if isinstance(turn, Rework) else "explore" for turn in turns]
    assert kinds == ["improve", "repair", "recombine", "explore", "improve", "revisit"]


def test_parents_are_crossed_once_and_only_when_their_ideas_differ() -> None:
    a = factories.attempt(number=1, variant=1, idea="a")
    b = factories.attempt(number=2, variant=2, idea="b")
    twin = factories.attempt(number=2, variant=2, idea="a")
    assert Rework("recombine", (a, b)) in plan([a, b], 4)
    assert not any(isinstance(t, Rework) and t.kind == "recombine" for t in plan([a, twin], 4))
    edges = tuple(factories.edge("k_child", p.candidate.id, "crossover") for p in (a, b))
    child = factories.attempt(number=3, variant=3, verdict=factories.rejected(), parents=edges)
    assert not any(isinstance(t, Rework) and t.kind == "recombine" for t in plan([a, b, child], 4))
    repaired = factories.attempt(number=2, variant=2, idea="b", parents=(a.candidate.id,))
    assert not any(isinstance(t, Rework) and t.kind == "recombine" for t in plan([a, repaired], 6))


def test_a_regression_gets_a_second_look_once_with_what_it_came_from() -> None:
    best = factories.attempt(number=1, variant=1, verdict=factories.passed(2.0))
    slower = factories.attempt(number=2, variant=2, verdict=factories.passed(1.5), parents=(best.candidate.id,))
    revisit = Rework("revisit", (slower, best))
    assert revisit in plan([best, slower], 6)
    child = factories.attempt(number=3, variant=3, verdict=factories.wrong(), parents=(slower.candidate.id,))
    assert revisit not in plan([best, slower, child], 6)
    noise = factories.attempt(number=2, variant=2, verdict=factories.passed(1.95), parents=(best.candidate.id,))
    assert not [t for t in plan([best, noise], 6) if isinstance(t, Rework) and t.kind == "revisit"]


def test_a_round_in_parts_goes_round_the_kinds_and_the_parents() -> None:
    good = [factories.attempt(number=n, variant=n, idea="a", verdict=factories.passed(4.0 - n)) for n in (1, 2)]
    lost = factories.attempt(number=3, variant=3, verdict=factories.wrong(), idea="b")
    parts = [task for asked in range(1, 13) for task in plan([*good, lost], 1, asked)]
    improve, repair = [Rework("improve", (a,)) for a in good], Rework("repair", (lost,))
    first = [improve[0], repair, Explore(), Explore(), improve[0], improve[0]]  # nothing to cross or to revisit
    assert parts == [*first, improve[1], repair, Explore(), Explore(), improve[1], improve[1]]


def test_lessons_are_read_apart_from_ideas() -> None:
    reply = "**Lessons:** fusing pays,\ntiles do not.\n\n1. Fuse more.\n2. Unroll."
    assert llm_reply.lessons(reply) == "fusing pays, tiles do not."
    assert llm_reply.ideas(reply, 2) == ["Fuse more.", "Unroll."]
    assert llm_reply.lessons("Lessons: none yet\n1. Fuse.") == "none yet"
    assert llm_reply.ideas("Lessons: none yet\n\nFuse the loops.", 2) == ["Fuse the loops."]
    assert llm_reply.lessons("1. Fuse.") == ""


def brief(width: int) -> Brief:
    return Brief("run1", factories.problem(), factories.device(), (), (), "", 1, width)


def test_plain_sources_make_a_script() -> None:
    drafts = ScriptedWriter([KERNEL, Scripted(source=COMPOSED)]).propose(brief(5))
    assert [d.candidate.tier for d in drafts] == ["kernel", "composed"]


def test_recorded_calls_answer_their_own_prompts() -> None:
    messages = [[{"role": "user", "content": text}] for text in ("one", "two")]
    calls = [
        factories.llm_call(call_id=f"c{i}", model="m/x", prompt=prompt_text(m, "m/x"), reply=f"answer {i}")
        for i, m in enumerate(messages)
    ]
    llm = ScriptedLLM([*calls, factories.llm_call(model="m/x", prompt=calls[0].prompt, error="500")])
    ask = {"run_id": "r", "purpose": "ideas", "temperature": None, "timeout_s": 1.0}
    replies = [llm.complete("m/x", m, **ask) for m in reversed(messages)]  # type: ignore[arg-type]
    assert [(r.text, r.call_ids, r.cost_usd) for r in replies] == [
        ("answer 1", ("c1",), 0.002),
        ("answer 0", ("c0",), 0.002),
    ]
    with pytest.raises(WriterError, match="no further reply"):
        llm.complete("m/x", messages[0], **ask)  # type: ignore[arg-type]
