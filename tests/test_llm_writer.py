"""The LLM writer: ideas, branches and feedback, through litellm and a real server or a scripted model."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import factories
import pytest
from fake_openai import Answer, Body, FakeOpenAI, Say, Status

from rag_kernels.archive.records import ArchivedKernel, Attempt, Exemplar, LLMCall
from rag_kernels.budget import BudgetExhaustedError, Ledger
from rag_kernels.eval.records import BuildFailed, FunctionalProblem
from rag_kernels.llm.branch import IDEA_ONLY
from rag_kernels.llm.client import LLM
from rag_kernels.llm.writer import LLMWriter
from rag_kernels.records import Brief, Budget, Shown, WriterError
from rag_kernels.scripted import ScriptedLLM

IDEAS = (
    "1. **Fuse** both loops into one pass.\n2. Use streaming stores,\n   so that caches stay clean.\n3. Unroll by four."
)


def code(variant: int, language: str = "cpp") -> str:
    return f"Here it is.\n\n```{language}\n{factories.candidate(variant=variant).source}```\nDone."


def brief(*attempts: Attempt, exemplars: tuple[Shown, ...] = (), width: int = 3, hint: str = "") -> Brief:
    round_ = max((a.round for a in attempts), default=0) + 1
    return Brief("run1", factories.problem(), factories.device(), exemplars, attempts, hint, round_, width)


def shown(name: str, source: str = "") -> Shown:
    values = {
        "id": f"k_{name}",
        "problem_id": f"p_{name}",
        "problem_name": name,
        "idea": f"the idea of {name}",
        "source": source or f"// source of {name}",
        "functional_source": "",
        "tier": "kernel",
        "backend": "cpu",
        "trust": "confirmed",
        "retracted": "",
        "label": "custom kernel",
        "precision": "strict",
        "writer": "offline",
        "model": "",
        "graph_key": "g",
        "operators": ("relu",),
        "ranks": (2,),
        "dtypes": ("float32",),
        "shapes": ((4, 4),),
        "device_name": "Some CPU",
        "device_arch": "x86-64-v3",
        "candidate_us": 10.0,
        "eager_us": 20.0,
        "compile_us": 15.0,
        "speedup_eager": 2.0,
        "speedup_compile": 1.5,
        "floor_fraction": 0.5,
        "licence": "",
        "attribution": "",
        "created_at": "",
    }
    kernel = ArchivedKernel(**values)  # type: ignore[arg-type]
    return Shown(Exemplar(kernel.id, 1, 0.9, ("same operators",)), kernel)


def scripted(ideas: str, *implementations: str) -> ScriptedLLM:
    return ScriptedLLM(texts={"ideas": [ideas], "implement": implementations})


def user_prompt(prompt: str) -> str:
    return str(json.loads(prompt)[1]["content"])


def answer_by_purpose(body: Body) -> Answer:
    """Ideas for the ideas prompt, and one distinct kernel for each idea."""
    text = body["messages"][1]["content"]
    if "numbered list" in text:
        return Say(IDEAS, 100, 30)
    number = next(
        i for i, word in enumerate(("Fuse", "streaming", "Unroll")) if f"{word}" in text.split("# Your task")[1]
    )
    return Say(code(number), 200, 50)


def test_a_first_round_asks_for_ideas_and_writes_one_branch_each() -> None:
    calls: list[LLMCall] = []
    ledger = Ledger(Budget())
    with FakeOpenAI(answer_by_purpose) as server:
        writer = LLMWriter(LLM(calls.append, ledger=ledger, api_base=server.url), ["openai/gpt-4o-mini"])
        drafts = writer.propose(brief())
    assert [d.idea for d in drafts] == [
        "Fuse both loops into one pass.",
        "Use streaming stores, so that caches stay clean.",
        "Unroll by four.",
    ]
    assert [d.candidate for d in drafts] == [factories.candidate(variant=i) for i in range(3)]
    assert [c.purpose for c in calls] == ["ideas", "implement", "implement", "implement"]
    assert {c.run_id for c in calls} == {"run1"} and {d.model for d in drafts} == {"openai/gpt-4o-mini"}
    ideas_call = calls[0].id
    assert all(d.call_ids[0] == ideas_call and len(d.call_ids) == 2 for d in drafts)
    paid = sum(c.cost_usd or 0.0 for c in calls)
    assert sum(d.cost_usd or 0.0 for d in drafts) == pytest.approx(paid) == pytest.approx(ledger.spent().usd)
    assert ledger.spent().tokens == 130 + 3 * 250


def test_the_prompt_holds_the_problem_the_machine_and_the_hint() -> None:
    llm = ScriptedLLM(texts={"implement": [code(0)]})
    LLMWriter(llm, ["m/x"]).propose(brief(width=1, hint="keep rows in registers"))
    system, user = (json.loads(llm.prompts[0])[i]["content"] for i in (0, 1))
    assert "rk::Tensor" in system and "softmax" in system and "KERNELS" in system and "__global__" not in system
    assert "return torch.relu(x) * factor" in user and "keep rows in registers" in user
    assert "rk::Tensor<const float> x,\n            double factor,\n            rk::Tensor<float> out" in user
    assert "| 2 | factor | constant | `double` | 2.0 |" in user and "(64, 1024)" in user
    assert "20.0 GB/s" in user and "26.2 us" in user and "memory bandwidth" in user


def test_a_run_of_one_draft_has_its_plan_and_its_code_in_one_reply() -> None:
    known = (shown("a"), shown("b"), shown("c"))
    llm = ScriptedLLM(texts={"implement": ["Idea: keep the row in registers\n" + code(0)]})
    [draft] = LLMWriter(llm, ["m/x"]).propose(brief(width=1, exemplars=known))
    [prompt] = [user_prompt(p) for p in llm.prompts]
    assert "begins with `Idea:`" in prompt and all(f"source of {n}" in prompt for n in "abc")
    assert draft.idea == "keep the row in registers"


def test_branches_see_different_exemplars_within_the_budget_and_drafts_say_which() -> None:
    many = (shown("a"), shown("b"), shown("c"), shown("huge", source="x" * 40_000))
    llm = scripted("1. i1\n2. i2\n3. i3", code(0), code(1), code(2))
    drafts = LLMWriter(llm, ["m/x"]).propose(brief(exemplars=many))
    prompts = [user_prompt(p) for p in llm.prompts]
    assert all(f"the idea of {n}" in prompts[0] and f"source of {n}" not in prompts[0] for n in "abc")
    seen = [tuple(n for n in "abc" if f"source of {n}" in p) for p in prompts[1:]]
    assert sorted(seen) == [("a", "b"), ("b", "c"), ("c",)]
    assert not any("xxxx" in p for p in prompts)
    for draft in drafts:
        by_source = [e.kernel_id for e in draft.exemplars if IDEA_ONLY not in e.reasons]
        assert len(draft.exemplars) == 4 and "k_huge" not in by_source
        assert tuple(k.removeprefix("k_") for k in sorted(by_source)) in seen


def test_later_rounds_repair_improve_and_recombine_with_feedback() -> None:
    log = "/tmp/x/k.cpp:3:1: error: expected ';' before '}'\n 3 | }\n   | ^\n" + "noise\n" * 500
    attempts = (
        factories.attempt(number=1, variant=1, verdict=factories.passed(2.0), idea="idea one"),
        factories.attempt(number=2, variant=2, verdict=factories.passed(1.2), idea="idea two"),
        factories.attempt(number=3, variant=3, verdict=BuildFailed("the compiler refused it", log), idea="idea three"),
    )
    replies = {kind: [f"Idea: to {kind}\n{code(i)}"] for i, kind in enumerate(("repair", "improve", "recombine"), 10)}
    llm = ScriptedLLM(texts={"ideas": ["1. brand new"], "implement": [code(13)], **replies})
    drafts = LLMWriter(llm, ["m/x"]).propose(brief(*attempts, width=4))
    notes = {d.note: d for d in drafts}
    assert set(notes) == {"improves attempt 1", "repairs attempt 3", "combines attempts 1 and 2", "new idea"}
    ids = [a.candidate.id for a in attempts]
    assert notes["improves attempt 1"].parents == ((ids[0], "parent"),)
    assert notes["combines attempts 1 and 2"].parents == ((ids[0], "crossover"), (ids[1], "crossover"))
    assert notes["new idea"].parents == () and notes["new idea"].idea == "brand new"
    assert notes["repairs attempt 3"].idea == "to repair"
    repair = next(user_prompt(p) for p in llm.prompts if "repair this source" in p)
    assert "k.cpp:3:1: error: expected ';'" in repair and "/tmp/x" not in repair and repair.count("noise") < 5
    improve = next(user_prompt(p) for p in llm.prompts if "Make this kernel faster" in p)
    assert "eager 200 us, torch.compile 160 us" in improve and "Memory bandwidth is the ceiling" in improve
    assert "#1 100 us, 2.00x eager, 1.60x torch.compile" in improve and "#3 build failed" in improve
    ideas = next(user_prompt(p) for p in llm.prompts if "Propose one idea" in p)
    assert "others improve attempt 1; repair attempt 3; recombine attempts 1 and 2." in ideas
    new = next(user_prompt(p) for p in llm.prompts if "Implement this idea" in p)
    assert (
        "# The fastest so far: attempt 1" in new
        and new.count("idea one") == 1
        and attempts[0].candidate.source.strip() in new
    )
    assert attempts[1].candidate.source.strip() not in new and "The fastest so far" not in improve


def test_a_repaired_failure_is_not_repaired_again_and_a_confirmation_keeps_lineage() -> None:
    failed = factories.attempt(number=1, variant=1, verdict=factories.wrong())
    child = factories.attempt(number=2, variant=2, parents=(failed.candidate.id,), idea="fixed")
    confirmation = factories.attempt(number=3, variant=2, idea="fixed")
    llm = ScriptedLLM(texts={"ideas": ["1. new"], "implement": [code(3)], "improve": [code(4)]})
    drafts = LLMWriter(llm, ["m/x"]).propose(brief(failed, child, confirmation, width=2))
    assert [d.note for d in drafts] == ["improves attempt 3", "new idea"]


def test_a_reply_without_code_costs_its_branch_only(caplog: pytest.LogCaptureFixture) -> None:
    llm = scripted("1. a\n2. b", "I would rather not.", code(1))
    with caplog.at_level(logging.WARNING, logger="rag_kernels"):
        drafts = LLMWriter(llm, ["m/x"]).propose(brief(width=2))
    assert len(drafts) == 1
    assert "held no code block" in caplog.text


def test_no_code_at_all_is_a_clear_error_and_on_record() -> None:
    calls: list[LLMCall] = []
    with FakeOpenAI([Say("1. a\n2. b"), Say("no code", finish="length")]) as server:
        writer = LLMWriter(LLM(calls.append, api_base=server.url), ["openai/test"])
        with pytest.raises(WriterError, match=r"None of the 2 replies of openai/test held a code block.*output limit"):
            writer.propose(brief(width=2))
    assert [c.reply for c in calls] == ["1. a\n2. b", "no code", "no code"]


def test_repeated_sources_are_dropped() -> None:
    known = factories.attempt(number=1, variant=7, verdict=factories.wrong(), parents=())
    done = factories.attempt(number=2, variant=8, parents=(known.candidate.id,))
    replies = {"ideas": ["1. a\n2. b"], "implement": [code(7), code(9)], "improve": [code(9)]}
    drafts = LLMWriter(ScriptedLLM(texts=replies), ["m/x"]).propose(brief(known, done, width=3))
    assert [d.candidate.id for d in drafts] == [factories.candidate(variant=9).id]
    replies = {"ideas": ["1. a"], "implement": [code(7)], "improve": [code(8)]}
    assert LLMWriter(ScriptedLLM(texts=replies), ["m/x"]).propose(brief(known, done, width=2)) == []


def test_one_failing_branch_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def script(body: Body) -> Answer:
        answer = answer_by_purpose(body)
        return Status(400, "content filter") if "streaming" in str(body["messages"][1]["content"]) else answer

    with FakeOpenAI(script) as server, caplog.at_level(logging.WARNING, logger="rag_kernels"):
        drafts = LLMWriter(LLM(lambda call: None, api_base=server.url), ["openai/test"]).propose(brief())
    assert len(drafts) == 2 and "content filter" in caplog.text


def test_a_dead_model_hands_over_the_ideas() -> None:
    def script(body: Body) -> Answer:
        return Status(404, "gone") if body["model"] == "dead" else answer_by_purpose(body)

    with FakeOpenAI(script) as server:
        llm = LLM(lambda call: None, api_base=server.url)
        drafts = LLMWriter(llm, ["openai/dead", "openai/alive"]).propose(brief())
    assert len(drafts) >= 2 and {d.model for d in drafts} == {"openai/alive"}
    assert {r.body["model"] for r in server.requests} == {"dead", "alive"}


def test_a_refused_key_ends_the_round_with_the_variable_to_set() -> None:
    with FakeOpenAI([Status(401, "no")]) as server:
        writer = LLMWriter(LLM(lambda call: None, api_base=server.url), ["openai/test"])
        with pytest.raises(WriterError, match="Set OPENAI_API_KEY"):
            writer.propose(brief())
    assert len(server.requests) == 1


def test_a_spent_budget_ends_the_round_with_what_there_is() -> None:
    ledger = Ledger(Budget(tokens=9000))
    with FakeOpenAI([Say(code(1), 4100, 4030), Say(code(2))]) as server:
        writer = LLMWriter(LLM(lambda call: None, ledger=ledger, api_base=server.url), ["openai/test"])
        drafts = writer.propose(brief(width=1))
        assert len(drafts) == 1 and ledger.exhausted() is None
        with pytest.raises(BudgetExhaustedError, match="9000 tokens"):
            writer.propose(brief(width=1))
    assert ledger.exhausted() is not None


def test_a_fault_of_our_own_in_a_branch_is_raised() -> None:
    def record(call: LLMCall) -> None:
        if call.purpose == "implement":
            raise OSError("disk full")

    with FakeOpenAI(answer_by_purpose) as server, pytest.raises(OSError, match="disk full"):
        LLMWriter(LLM(record, api_base=server.url), ["openai/test"]).propose(brief())


def test_no_model_is_said_at_once() -> None:
    with pytest.raises(WriterError, match="--model"):
        LLMWriter(ScriptedLLM(), [])


@pytest.mark.parametrize("p", [factories.problem(), factories.linear_problem()])
def test_every_template_renders_for_cuda_too(p: FunctionalProblem) -> None:
    passed = factories.attempt(p=p, verdict=factories.passed(), parents=())
    llm = ScriptedLLM(
        texts={"ideas": ["1. new"], "improve": ["Idea: x\n" + code(5, "cuda")], "implement": [code(6, "")]}
    )
    at = Brief("run1", p, factories.device("cuda"), (shown("a"),), (passed,), "", 2, 2)
    drafts = LLMWriter(llm, ["m/x"]).propose(at)
    assert {d.candidate.backend for d in drafts} == {"cuda"} and {d.candidate.tier for d in drafts} == {"kernel"}
    system = json.loads(llm.prompts[0])[0]["content"]
    assert "cudaStream_t" in system and "sm_90" in system and "openmp" not in system.lower()


def test_a_program_can_be_the_model(tmp_path: Path) -> None:
    source = factories.candidate().source
    script = tmp_path / "assistant.sh"
    script.write_text(
        f"if grep -q 'numbered list'; then echo '1. fuse'; else cat <<'EOF'\n```cpp\n{source}```\nEOF\nfi\n"
    )
    calls: list[LLMCall] = []
    drafts = LLMWriter(LLM(calls.append), [f"cmd:sh {script}"]).propose(brief(width=1))
    assert [d.candidate for d in drafts] == [factories.candidate()] and drafts[0].cost_usd is None
    assert len(calls) == 1 and all(c.cost_usd is None and c.prompt_tokens > 0 for c in calls)
