"""The search loop over the in-memory archive, the scripted writer and a scripted judge: no compiler, no torch."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from factories import candidate, compiled, llm_call, passed, wrong
from support.search_sessions import RELU, Rounds, draft, run_all, session, verdicts

from rag_kernels.archive.bundle import export
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Exemplar, KernelFilter
from rag_kernels.eval.records import Candidate, Passed, Problem, ProblemError
from rag_kernels.eval.zoo.tasks import cpp
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.options import Options
from rag_kernels.records import Budget, Draft, Shown, WriterError
from rag_kernels.report.json_rows import result_row
from rag_kernels.retrieval.starter import stock
from rag_kernels.run.journal import spent_before
from rag_kernels.run.standings import winner
from rag_kernels.scripted import ScriptedJudge, ScriptedWriter


def test_every_attempt_is_on_disk_before_it_is_yielded() -> None:
    made = session(Rounds([draft(1), draft(2)]), ScriptedJudge(verdicts((1, wrong()))))
    run = made.new_run("generate", RELU.problem)
    for count, attempt in enumerate(made.generate(RELU.problem, run), start=1):
        assert [a.id for a in made.archive.attempts(run.id)][-1] == attempt.id
        assert len(made.archive.attempts(run.id)) == count
    assert made.archive.runs()[0].status == "finished"


def test_the_fastest_is_confirmed_and_wins() -> None:
    judge = ScriptedJudge(verdicts((1, passed(1.5, confirmed=False)), (2, passed(3.0, confirmed=False)), (3, wrong())))
    attempts = run_all(session(Rounds([draft(1), draft(2), draft(3)]), judge))
    best = winner(attempts)
    assert judge.confirmed == [candidate(RELU, variant=2).id]
    assert best is not None and best.candidate.id == judge.confirmed[0]
    assert best.note == "confirmation of attempt 2" and len(attempts) == 4


def test_a_failed_confirmation_is_retracted_and_the_next_one_tried() -> None:
    fast, slow = candidate(RELU, variant=2), candidate(RELU, variant=1)
    judge = ScriptedJudge(
        {fast.id: passed(3.0, confirmed=False), slow.id: passed(1.5, confirmed=False)}, {fast.id: wrong()}
    )
    made = session(Rounds([draft(1), draft(2)]), judge)
    best = winner(run_all(made))
    assert judge.confirmed == [fast.id, slow.id]
    assert best is not None and best.candidate.id == slow.id
    assert [k.id for k in made.archive.kernels(KernelFilter())] == [slow.id]


def test_a_slower_confirmation_hands_the_win_to_a_faster_one() -> None:
    first, second = candidate(RELU, variant=1), candidate(RELU, variant=2)
    judge = ScriptedJudge(
        {first.id: passed(3.0, confirmed=False), second.id: passed(2.5, confirmed=False)},
        {first.id: passed(1.1), second.id: passed(2.4)},
    )
    best = winner(run_all(session(Rounds([draft(1), draft(2)]), judge)))
    assert best is not None and best.candidate.id == second.id


def test_what_is_as_fast_as_a_confirmed_one_is_not_confirmed_too() -> None:
    first, second = candidate(RELU, variant=1), candidate(RELU, variant=2)
    judge = ScriptedJudge(
        {first.id: passed(3.0, confirmed=False), second.id: passed(2.98, confirmed=False)}, {first.id: passed(2.95)}
    )
    best = winner(run_all(session(Rounds([draft(1), draft(2)]), judge)))
    assert judge.confirmed == [first.id]
    assert best is not None and best.candidate.id == first.id


def test_nothing_passed() -> None:
    judge = ScriptedJudge(verdicts((1, wrong()), (2, compiled())))
    attempts = run_all(session(Rounds([draft(2), draft(1)]), judge))
    row = result_row(attempts, run_id="r", problem="p")
    assert winner(attempts) is None and judge.confirmed == []
    assert (row["kernel_id"], row["verdict"], row["attempts"]) == (None, "compiled", 2)


def test_the_best_attempts_and_their_verdicts_reach_the_next_brief() -> None:
    writer = Rounds([draft(1)], [draft(2)])
    run_all(session(writer, hint="use tiles", effort=3, rounds=2))
    assert [len(b.attempts) for b in writer.briefs] == [0, 1]
    assert writer.briefs[1].attempts[0].judged.verdict == passed(2.0, confirmed=False)
    assert (writer.briefs[0].hint, writer.briefs[0].width) == ("use tiles", 6)


def test_rounds_and_width_are_kept() -> None:
    writer = Rounds(*[[draft(10 * r + n) for n in range(9)] for r in range(5)])
    judge = ScriptedJudge()
    run_all(session(writer, judge, effort=2))
    assert len(writer.briefs) == 2 and len(judge.asked) == 2 * 4


def test_the_same_source_is_judged_once() -> None:
    judge = ScriptedJudge()
    run_all(session(Rounds([draft(1), draft(1)], [draft(1), draft(2)]), judge))
    assert judge.asked == [candidate(RELU, variant=v).id for v in (1, 2)]


def test_time_budget_ends_a_round_early_and_still_confirms() -> None:
    judge = ScriptedJudge(before=lambda c: time.sleep(0.15))
    attempts = run_all(session(Rounds([draft(1), draft(2), draft(3)]), judge, budget_seconds=0.1))
    assert len(judge.asked) == 1 and len(judge.confirmed) == 1
    assert attempts[-1].judged.verdict == passed(2.0)


def test_token_budget_of_earlier_calls_counts() -> None:
    made = session(Rounds([draft(1)]), budget_tokens=100)
    run = made.new_run("generate", RELU.problem)
    made.archive.start_run(run)
    made.archive.record_call(llm_call(run.id))
    assert list(made.generate(RELU.problem, run)) == []


def test_stopping_early_loses_nothing_and_resume_judges_nothing_again() -> None:
    archive, rounds = MemoryArchive(), ([draft(1), draft(2), draft(3), draft(4)], [draft(5)])
    first = session(Rounds(*rounds), archive=archive)
    run = first.new_run("generate", RELU.problem)
    attempts = first.generate(RELU.problem, run)
    next(attempts), next(attempts)
    attempts.close()  # type: ignore[attr-defined]  # as Ctrl-C does
    assert archive.runs()[0].status == "interrupted" and len(archive.attempts(run.id)) == 2

    judge = ScriptedJudge()
    second = session(Rounds(*rounds), judge, archive=archive)
    resumed = second.old_run("latest", RELU.problem)
    assert resumed.id == run.id
    list(second.generate(RELU.problem, resumed))
    assert judge.asked == [candidate(RELU, variant=v).id for v in (3, 4, 5)]
    numbers = [a.number for a in archive.attempts(run.id)]
    assert numbers == list(range(1, 7)) and archive.runs()[0].status == "finished"


def test_resume_needs_a_run_of_this_problem() -> None:
    made = session(Rounds([draft(1)]))
    run_all(made)
    with pytest.raises(ProblemError, match="no run 'latest' of other"):
        made.old_run("latest", Problem("other", "class Model: ..."))


def test_what_a_run_had_spent_is_counted_again() -> None:
    made = session(Rounds([draft(1), draft(2), draft(3), draft(4)], [draft(5)]))
    run_all(made)
    run = made.archive.runs()[0]
    made.archive.record_call(llm_call(run.id, cost_usd=None))
    spent = spent_before(made.archive, run.id)
    assert (spent.rounds, spent.tokens, spent.calls, spent.unpriced_calls) == (2, 200, 1, 1)
    assert spent.seconds == pytest.approx(sum(a.seconds for a in made.archive.attempts(run.id)))


def test_lineage_holds_parents_and_what_was_shown() -> None:
    parent = candidate(RELU, variant=1)
    child = draft(2, parents=((parent.id, "parent"),), exemplars=(Exemplar("k_shown", 1, 0.5, ()),))
    attempts = run_all(session(Rounds([draft(1)], [child])))
    edges = {(e.source, e.relation) for e in attempts[1].parents}
    assert edges == {(parent.id, "parent"), ("k_shown", "retrieved")}


def test_a_near_copy_of_what_was_shown_is_labelled_also_in_its_confirmation() -> None:
    first = session(Rounds([draft(1)]), archive=(archive := MemoryArchive()))
    run_all(first)
    (kernel,) = archive.kernels(KernelFilter())
    shown = [Shown(Exemplar(kernel.id, 1, 0.9, ()), kernel)]
    copied = draft(2)
    other = Draft(Candidate(cpp("softmax"), "kernel", "cpu"), "another")
    attempts = run_all(replace(session(Rounds([copied, other])), retrieve=lambda functional, attempts: shown))
    labels = [a.judged.verdict.labels for a in attempts if isinstance(a.judged.verdict, Passed)]
    assert labels == [(f"near-copy: {kernel.id}",), (), (f"near-copy: {kernel.id}",)]


def test_a_writer_that_cannot_start_is_an_error() -> None:
    made = session(Rounds(WriterError("The key is wrong.")))
    with pytest.raises(WriterError, match="key is wrong"):
        run_all(made)
    assert made.archive.runs()[0].status == "failed"


def test_a_writer_that_fails_later_ends_the_run_with_what_there_is() -> None:
    judge = ScriptedJudge()
    best = winner(run_all(session(Rounds([draft(1)], WriterError("Too many requests.")), judge)))
    assert best is not None and judge.confirmed == [best.candidate.id]


def test_a_problem_that_draws_random_numbers_is_refused() -> None:
    made = session(Rounds([draft(1)]), functionalize=lambda p: replace(RELU, uses_random=True))
    with pytest.raises(ProblemError, match="dropout"):
        run_all(made)


def test_a_candidate_from_outside_is_archived_as_an_import() -> None:
    made = session(Rounds())
    attempts = list(made.evaluate(RELU.problem, candidate(RELU), confirm=True))
    assert [a.writer for a in attempts] == ["import", "import"]
    [kernel] = made.archive.kernels(KernelFilter())
    assert kernel.trust == "confirmed"


def test_the_scripted_writer_drives_the_whole_loop() -> None:
    sources = [candidate(RELU, variant=v).source for v in range(3)]
    attempts = run_all(session(ScriptedWriter(sources), effort=1))
    assert len({a.candidate.id for a in attempts}) == 2  # one round of two


def test_effort_is_one_dial() -> None:
    low, high = Options(effort=1), Options(effort=4)
    assert low.budget == Budget(rounds=1) and high.budget == Budget(rounds=4)
    assert low.width < high.width and low.exemplar_count < high.exemplar_count
    assert Options(effort=4, rounds=1, examples=0).budget.rounds == 1
    assert Options(effort=4, examples=0).exemplar_count == 0


def test_a_new_archive_is_stocked_once_with_claims(tmp_path: Path) -> None:
    made, embedder = session(Rounds([draft(1)])), load_embedder()
    run_all(made)
    bundle, fresh = tmp_path / "starter.zip", MemoryArchive()
    export(made.archive, bundle)  # type: ignore[arg-type]
    assert stock(fresh, embedder, bundle=bundle) == 1
    [kernel] = fresh.kernels(KernelFilter())
    assert kernel.trust == "claimed" and not list(fresh.missing_embeddings(embedder.name))
    assert stock(fresh, embedder, bundle=bundle) == 0
