"""What a writer is shown: by function, by bottleneck, and only what was proved on this device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories import attempt, candidate, device, judged, linear_problem, measurement, passed, problem, run, wrong

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.eval.records import Candidate, Counters, Device, FunctionalProblem, Passed, Problem, ProblemError
from rag_kernels.feedback.bottleneck import Bottleneck, bottleneck_of
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import index_attempt
from rag_kernels.llm.prompt_values import exemplar_values
from rag_kernels.llm.templates import render
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.options import Options
from rag_kernels.records import Brief
from rag_kernels.report.json_rows import hit_row
from rag_kernels.report.search_hits import hit_text
from rag_kernels.retrieval.retriever import RetrievalLimits, Retriever
from rag_kernels.run.exemplars import Exemplars, Prover, holding_back
from rag_kernels.run.lessons import lesson_of
from rag_kernels.scripted import ScriptedJudge

EMBEDDER = load_embedder()
ELSEWHERE = device(name="Another CPU (64 threads)")
OPTIONS = Options(examples=2)
MEMORY = Bottleneck("memory", "memory bandwidth", ridge=5.0)


class Shop:
    def __init__(self) -> None:
        self.archive = MemoryArchive()
        self.archive.start_run(run("run1"))
        self.retriever = Retriever(self.archive, EMBEDDER, device_key=device().key)
        self.number = 0

    def add(self, fp: FunctionalProblem, *, speedup: float = 2.0, on: Device | None = None, **changes: object) -> str:
        self.number += 1
        made = Candidate(f"// kernel {self.number}\nvoid f();\n", "kernel", "cpu")
        changes.setdefault("judged", judged(passed(speedup), on=on))
        tried = attempt("run1", self.number, fp, candidate=made, **changes)  # type: ignore[arg-type]
        self.archive.record_attempt(tried)
        index_attempt(self.archive, tried, EMBEDDER)
        return made.id

    def prover(self, judge: ScriptedJudge) -> Prover:
        return Prover(self.archive, judge, self.functionalize, judge_version="1")

    def functionalize(self, asked: Problem) -> FunctionalProblem:
        fp = problem("tanh")
        if asked.id != fp.problem.id:
            raise ProblemError(f"{asked.name} is too large.")
        return fp


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_the_judge_and_the_profiler_say_what_holds_a_kernel_back() -> None:
    fp, on = problem("tanh"), device()
    assert bottleneck_of(passed(), fp.features, on).kind == "memory"
    busy = replace(fp.features, flops=10**9)
    assert bottleneck_of(passed(), busy, on).kind == "arithmetic"
    library = replace(passed(label="fused + library"), own_share=0.12)
    found = bottleneck_of(library, fp.features, on)
    assert found.kind == "library" and found.told.startswith("12% of the time in its own code")
    short = replace(passed(), measurement=replace(measurement(candidate_us=8.0), floor_us=0.5))
    assert bottleneck_of(short, fp.features, on).kind == "overhead"


def test_drafts_are_by_function_and_optimising_is_by_what_holds_back(shop: Shop) -> None:
    plain = shop.add(problem("sigmoid"), idea="write it as one expression", speedup=3.0)
    slow = shop.add(problem("exp"), idea="a loop", speedup=1.1)
    remedy = shop.add(
        problem("exp"),
        parents=(slow,),
        idea="vectorized float4 loads, a single pass without temporaries",
        judged=judged(replace(passed(2.2), measurement=measurement(2.2, candidate_us=50.0))),
    )
    asked = problem("tanh")
    drafted = [h.kernel.id for h in shop.retriever.search(asked)]
    optimised = shop.retriever.search(asked, bottleneck=MEMORY)
    assert drafted[0] == plain and optimised[0].kernel.id == remedy
    assert "2.0x as fast as its parent" in optimised[0].reasons and "also bound by memory" in optimised[0].reasons
    assert any(reason.startswith("remedy rank 1") for reason in optimised[0].reasons)
    assert any(reason.startswith("reached 50% of its floor") for reason in optimised[0].reasons)


def test_every_number_of_a_score_is_explained(shop: Shop) -> None:
    shop.add(problem("sigmoid"))
    [hit] = shop.retriever.search(problem("tanh"))
    product = sum(signal.share for signal in hit.why.signals)
    for factor in hit.why.factors:
        product *= factor.weight
    assert hit.score == pytest.approx(product / 1.27)
    assert [signal.name for signal in hit.why.signals] == ["bm25", "dense", "graph"]
    text = hit_text(hit_row(hit), explain=True)
    assert "graph" in text and "x 1.00    also activation" in text and "= relevance x all weights / 1.27" in text
    assert len(hit_text(hit_row(hit)).splitlines()) == 2
    narrow = hit_text(hit_row(hit), explain=True, width=60)
    assert max(map(len, narrow.splitlines())) <= 60 and narrow.split() == text.split()


def test_a_run_asks_by_function_first_and_is_not_shown_its_own_kernels(shop: Shop) -> None:
    other, own = shop.add(problem("sigmoid")), candidate(problem("tanh"))
    tried = attempt("run2", 1, problem("tanh"), candidate=own)
    shop.archive.start_run(run("run2"))
    shop.archive.record_attempt(tried)
    find = Exemplars(shop.retriever, OPTIONS, device())
    assert holding_back([], problem("tanh")) is None
    first, second = find(problem("tanh"), []), find(problem("tanh"), [tried])
    assert [s.kernel.id for s in first] == [own.id, other] and [s.kernel.id for s in second] == [other]
    assert not any("of its floor" in r for s in first for r in s.exemplar.reasons)
    assert any("of its floor" in r for s in second for r in s.exemplar.reasons)


def test_what_was_measured_elsewhere_is_judged_here_before_it_is_shown(shop: Shop) -> None:
    foreign = shop.add(problem("tanh"), on=ELSEWHERE, speedup=9.0)
    judge = ScriptedJudge()
    find = Exemplars(shop.retriever, OPTIONS, judge.device, shop.prover(judge))
    [shown] = find(problem("sigmoid"), [])
    assert judge.asked == [foreign] and shown.kernel.id == foreign
    assert shown.kernel.device_name == judge.device.name and shown.kernel.speedup_eager == 2.0
    find(problem("sigmoid"), [])
    assert judge.asked == [foreign]  # once is enough
    [told] = [r for r in shop.archive.runs() if r.command == "reverify"]
    assert told.status == "finished" and len(shop.archive.attempts(told.id)) == 2  # and its confirmation


def test_a_request_waits_for_no_further_proof_after_half_a_minute(shop: Shop) -> None:
    kernels = [shop.add(problem(name), on=ELSEWHERE, speedup=9.0) for name in ("tanh", "relu")]
    judge, seconds = ScriptedJudge(), iter(range(0, 10_000, 20))  # 20 s from one look at the clock to the next
    prover = replace(shop.prover(judge), functionalize=lambda asked: problem(asked.name.removeprefix("scaled_")))
    find = Exemplars(shop.retriever, OPTIONS, judge.device, prover, clock=lambda: next(seconds))
    first = [shown.kernel.id for shown in find(problem("sigmoid"), [])]
    assert len(first) == 1 and judge.asked == first
    second = [shown.kernel.id for shown in find(problem("sigmoid"), [])]
    assert sorted(second) == sorted(judge.asked) == sorted(kernels)


def test_a_proof_is_seen_at_once_also_where_the_archive_is_looked_at_now_and_then(shop: Shop) -> None:
    shop.retriever = Retriever(shop.archive, EMBEDDER, device_key=device().key, stale_s=1000.0)
    foreign = shop.add(problem("tanh"), on=ELSEWHERE, speedup=9.0)
    judge = ScriptedJudge()
    find = Exemplars(shop.retriever, OPTIONS, judge.device, shop.prover(judge))
    assert [s.kernel.id for s in find(problem("sigmoid"), [])] == [foreign]
    later = shop.add(problem("relu"))
    assert [s.kernel.id for s in find(problem("sigmoid"), [])] == [foreign]
    shop.retriever.look_again()
    assert [s.kernel.id for s in find(problem("sigmoid"), [])] == [foreign, later]


def test_the_offline_writer_gets_what_a_kernel_was_proven_on(shop: Shop) -> None:
    """So that what it reuses comes first at its own sizes, and after its own work at others."""
    asked, other = problem("tanh"), problem("tanh", shape=(8, 96))
    assert asked.graph_key == other.graph_key and asked.arguments != other.arguments
    for known, first in ((asked, True), (other, False)):
        kept, place = shop.add(known, speedup=3.0), Exemplars(shop.retriever, OPTIONS, device())
        (shown, *_) = [s for s in place(asked, []) if s.kernel.id == kept]
        assert shown.problem == known
        drafts = OfflineWriter().propose(Brief("r", asked, device(), (shown,), (), "", 1, 2))
        assert [draft.candidate.id == kept for draft in drafts] == [first, not first]


def test_claims_are_handed_over_with_what_they_were_written_for(shop: Shop) -> None:
    """As the kernels of the starter archive are, which may be transplanted too."""
    kept = shop.add(problem("tanh"))
    with shop.archive.database.write() as con:
        con.execute("UPDATE evaluations SET trust = 'claimed' WHERE kernel_id = ?", [kept])
    (shown,) = Exemplars(shop.retriever, OPTIONS, device())(problem("sigmoid"), [])
    assert shown.kernel.trust == "claimed" and shown.problem == problem("tanh")
    brief = Brief("r", problem("tanh"), device(), (shown,), (), "", 1, 2)
    own, claimed = OfflineWriter().propose(brief)  # nobody has proven it here, at whatever sizes
    assert claimed.candidate.id == kept and own.candidate.id != kept


def test_what_fails_here_makes_room_for_the_next_and_is_not_tried_again(shop: Shop) -> None:
    foreign = shop.add(problem("tanh"), on=ELSEWHERE, speedup=9.0)
    here = shop.add(problem("relu"))
    judge = ScriptedJudge({foreign: wrong()})
    options = replace(OPTIONS, examples=1)
    find = Exemplars(shop.retriever, options, judge.device, shop.prover(judge))
    assert [s.kernel.id for s in find(problem("sigmoid"), [])] == [here]
    again = Exemplars(shop.retriever, options, judge.device, shop.prover(judge))
    assert [s.kernel.id for s in again(problem("sigmoid"), [])] == [here] and judge.asked == [foreign]


def test_what_cannot_be_judged_here_is_not_shown_as_an_example(shop: Shop) -> None:
    shop.add(linear_problem(), on=ELSEWHERE)
    judge = ScriptedJudge()
    assert Exemplars(shop.retriever, OPTIONS, judge.device, shop.prover(judge))(problem("sigmoid"), []) == []
    assert judge.asked == []


def test_of_several_devices_the_measurement_made_here_counts(shop: Shop) -> None:
    kernel = shop.add(problem("tanh"), on=ELSEWHERE, speedup=9.0)
    tried = attempt("run1", 50, problem("tanh"), candidate=Candidate("// kernel 1\nvoid f();\n", "kernel", "cpu"))
    shop.archive.record_attempt(tried)
    [hit] = shop.retriever.search(problem("sigmoid"), limits=RetrievalLimits())
    assert hit.kernel.id == kernel and hit.kernel.speedup_eager == 2.0
    assert "won 1.6x on Test CPU (2 threads)" in hit.reasons


def test_a_reader_is_told_what_a_kernel_gained_and_by_which_change(shop: Shop) -> None:
    fp, text = problem("tanh"), candidate(problem("tanh")).source
    parent = Candidate(text, "kernel", "cpu")
    child = Candidate(text.replace("#pragma omp parallel for", "#pragma omp parallel for simd"), "kernel", "cpu")
    assert child != parent
    for number, (made, us, parents) in enumerate(((parent, 200.0, ()), (child, 100.0, (parent.id,))), start=1):
        verdict = replace(passed(), measurement=measurement(400.0 / us, candidate_us=us))
        shop.archive.record_attempt(
            attempt("run1", number, fp, candidate=made, judged=judged(verdict), parents=parents)
        )
    [seen] = Exemplars(shop.retriever, replace(OPTIONS, examples=4), device())(fp, [])  # of near-copies the better one
    lesson = seen.lesson
    assert (
        seen.kernel.id == child.id
        and lesson is not None
        and (lesson.parent_id, lesson.gain) == (parent.id, pytest.approx(2.0))
    )
    assert "+  #pragma omp parallel for simd" in lesson.change and "-  #pragma omp parallel for\n" in lesson.change
    first = shop.archive.kernel(parent.id)
    assert first is not None and lesson_of(first, shop.archive) is None
    told = render("exemplars", exemplars=exemplar_values([seen]))
    assert "It is 2 times as fast as the kernel that it was made from, by this change:" in told
    assert "right by this judge, twice: " in told and "Verified" not in told and "ncu" not in told


def test_a_reader_is_told_what_the_gpu_counted_before_and_after(shop: Shop) -> None:
    parent = shop.add(problem("tanh"), judged=judged(replace(timed(200.0), counters=counters(dram=0.41, sm=0.2))))
    child = shop.add(
        problem("tanh"),
        parents=(parent,),
        judged=judged(replace(timed(100.0), counters=counters(dram=0.88, sm=0.3))),
    )
    shown = Exemplars(shop.retriever, replace(OPTIONS, examples=4), device())(problem("tanh"), [])
    told = render("exemplars", exemplars=exemplar_values([s for s in shown if s.kernel.id == child]))
    assert "ncu counted 88% of DRAM throughput (41% of DRAM throughput, 20% of SM throughput" in told


def timed(us: float) -> Passed:
    return replace(passed(), measurement=measurement(400.0 / us, candidate_us=us))


def counters(*, dram: float, sm: float) -> Counters:
    return Counters("k", 1, 1.0, dram, sm, 0.9, "registers", 32, 0.0, 4.0, "long scoreboard", 0.6)
