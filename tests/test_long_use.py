"""What a kernel keeps, waits for and leaves to the next call: many calls, threads, refused calls, other processors."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from judging import (
    FEWER_SIZES,
    HEAD,
    SOFTMAX,
    altered,
    loaded,
)
from support.kept import kept_judge

from rag_kernels.eval.buffers.call_content import plain
from rag_kernels.eval.build import candidate_builder
from rag_kernels.eval.build.compile import instruction_sets
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.process_tree import Resident
from rag_kernels.eval.records import (
    ENDS_BADLY,
    OTHER_PROCESSORS,
    Candidate,
    FunctionalProblem,
    TensorSpec,
    Wrong,
)
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.traits.input_kinds import OUT_OF_RANGE
from rag_kernels.eval.traits.steps import computes_all
from rag_kernels.eval.trial.checks import Checks, Findings
from rag_kernels.eval.trial.long_use_checks import (
    AFTER_REFUSED,
    FILLED,
    after_refused,
    after_refused_far,
    beyond,
    by_itself,
    ends_well,
    far_forms,
    in_filled_memory,
    keeps_nothing,
    kept_bytes,
    many_at_once,
    on_small_stack,
    refused_first,
    together,
)
from rag_kernels.eval.trial.other_sizes import OtherSizes
from rag_kernels.eval.trial.trial import Trial
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.eval.zoo.exploits.by_class import SPECIMENS
from rag_kernels.eval.zoo.problems import PROBLEMS
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=FEWER_SIZES, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def softmax(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("softmax", SOFTMAX), workers=judge.workers)


def test_calls_keep_what_every_part_of_them_keeps() -> None:
    """Honest ones were told to leak: on a busy machine a part is a few calls, and two may each see a huge page."""

    def after(*mib: int) -> list[tuple[int, Resident | None]]:
        return [(10 * n, Resident(held << 20, 0, 0)) for n, held in enumerate(mib)]

    assert kept_bytes(after(100, 102, 104)) == 4 << 20  # asked again
    assert not kept_bytes(after(100, 102, 104, 104)) and not kept_bytes(after(100, 100, 102))
    assert kept_bytes(after(100, 101, 102, 103, 104, 105)) == 5 << 20
    assert not kept_bytes([*after(100, 102), (20, None)])
    few = [(10 * n, Resident((200 + n) << 19, 0, 0)) for n in range(3)]
    assert not kept_bytes(few) and kept_bytes(few, 1 << 17) == 1 << 20


def test_a_late_write_is_told_as_one_whatever_check_meets_it(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    """A thread of the call before may write into any call: special values once told it as "wrong: rare spikes"."""
    late = "#include <unistd.h>\n" + altered(after="std::thread([p = out.data] { usleep(2000); p[0] = 7; }).detach();")
    with loaded(judge, softmax, late) as (session, subject):
        checks = Checks(subject, place := subject.bind(session), Findings(), frozenset())
        checks.relative = 1.0
        with pytest.raises(Stopped) as stopped:
            checks.note_special(place, plain(0, len(session.specs)), Wrong("", "rare spikes", 1.0, ""), "rare spikes")
    assert codes(stopped.value.verdict) == {"rejected", "rejected:late_write"}


LOOKED_UP = (
    HEAD
    + """
class Model(nn.Module):
    def forward(self, table, at):
        return table[at]

def get_inputs():
    return [torch.randn(64, 4), torch.randint(0, 64, (256,))]

def get_init_inputs():
    return []
"""
)


LOOKS_UP = """
#include "rag_kernel.h"
#include <map>
#include <vector>
static int64_t met = 0, threads = 0;
static thread_local float* own = nullptr;
static auto* plans = new std::map<int64_t, std::vector<float>>;
void f(rk::Tensor<const float> table, rk::Tensor<const int64_t> at, rk::Tensor<float> out) {
  if (!own && threads < 150) ++threads, own = new float[1 << 14]();  // of the first threads
  if (at.numel() < 256) (*plans)[at.numel()].resize(1 << 14);
  for (int64_t i = 0; i < at.numel(); ++i) {
    ++met;
    RK_CHECK(uint64_t(at.data[i]) < uint64_t(table.size(0)), "out of range");
    for (int64_t d = 0; d < 4; ++d) out.data[i * 4 + d] = table.data[at.data[i] * 4 + d] + float(met != i + 1);
  }
  met = 0;
}
RK_EXPORT(forward, f)
"""


@pytest.fixture(scope="module")
def looked_up(judge: LocalJudge) -> Iterator[tuple[ProblemSession, LoadedCandidate]]:
    fp = functionalize(problem_from_source("looked_up", LOOKED_UP), workers=judge.workers)
    with loaded(judge, fp, LOOKS_UP) as opened:
        yield opened


def test_what_is_computed_lies_in_no_argument(
    softmax: FunctionalProblem, looked_up: tuple[ProblemSession, LoadedCandidate]
) -> None:
    """Inputs may be others by the time that its outputs are collected."""
    passed_on = replace(softmax, results=(softmax.tensors[0].name,))
    assert computes_all(softmax) and not computes_all(looked_up[0].fp) and not computes_all(passed_on)


def test_memory_for_each_thread_or_size_is_told(looked_up: tuple[ProblemSession, LoadedCandidate]) -> None:
    session, subject = looked_up
    place, told = subject.bind(session), []
    for sized in (None, None, place):
        keeps_nothing(Checks(subject, place, found := Findings(), frozenset()), place, sized)
        told.append((found.labels, *found.checks, *(note.partition(", ")[2] for note in found.notes)))
    assert told == [
        (["leaks memory"], "some for each thread that calls it"),
        ([], "other threads and sizes keep nothing"),
        (["leaks memory"], "some for each number of lines"),
    ]


BESIDE_ITSELF = """
#include "rag_kernel.h"
#include <atomic>
static std::atomic<int> inside{0};
void f(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (volatile bool met = inside.fetch_add(1) > 0; met;) {}  // who comes second waits for ever
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] + 1.0f;
  inside.fetch_sub(1);
}
RK_EXPORT(forward, f)
"""


def test_what_the_judge_keeps_is_no_leak_and_two_callers_do_not_wait_for_minutes(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of outputs, copied, stayed in the heap each time; callers that waited for each other took 500 s."""
    source = LOOKED_UP.replace("table, at", "x").replace("table[at]", "x + 1")
    source = source.replace("torch.randn(64, 4), torch.randint(0, 64, (256,))", "torch.randn(257, 1000)")
    fp = functionalize(problem_from_source("one_more", source), workers=judge.workers)
    with loaded(judge, fp, BESIDE_ITSELF) as (session, subject):
        place, held = subject.bind(session), []
        subject.prepare(place, plain(0, 1))
        for _ in range(8):
            subject.call_on(place, 20, 5.0)
            held.append(subject.worker.resident())
        assert None not in held and held[-1].own - held[0].own < 1 << 20
        monkeypatch.setattr("rag_kernels.eval.trial.long_use_checks.LOCKED_S", 0.1)
        monkeypatch.setattr(session, "limits", replace(session.limits, call_s=0.3))
        began = time.monotonic()
        assert "did not finish" in together(
            Checks(subject, place, Findings(), frozenset()), [place, subject.bind(session)], 1e-3
        )
        assert time.monotonic() - began < 10


def test_a_refused_call_leaves_nothing_for_the_next(looked_up: tuple[ProblemSession, LoadedCandidate]) -> None:
    """Neither where it refuses indices, nor where it refuses sizes: after these it is asked at its own again."""
    session, subject = looked_up
    place = subject.bind(session)
    checks = Checks(subject, place, Findings(), frozenset())
    checks.first_draw("as ever")
    with pytest.raises(Stopped) as stopped:
        after_refused(checks, place)
    assert isinstance(stopped.value.verdict, Wrong) and stopped.value.verdict.input_class == AFTER_REFUSED
    checks.first_draw("as ever")
    refused = session.specials.draw(OUT_OF_RANGE)
    assert refused is not None
    subject.prepare(place, plain(refused, len(session.specs)))
    with pytest.raises(Stopped):
        subject.call(place)
    others = OtherSizes(cast(ProblemKnowledge, SimpleNamespace(session=session)), Findings(), frozenset())
    with pytest.raises(Stopped) as stopped:
        others._ask_again(subject)
    assert isinstance(stopped.value.verdict, Wrong) and stopped.value.verdict.input_class == AFTER_REFUSED


def test_memory_that_others_used_a_lost_call_of_many_what_was_refused_and_a_large_stack_are_found(
    judge: LocalJudge, softmax: FunctionalProblem
) -> None:
    fresh = "static int met = 0;\n  volatile char* held = static_cast<char*>(std::malloc(1 << 20));\n"
    bad = "  const bool bad = held[1 << 19] || (omp_get_max_threads() > 3 && ++met % 300 == 0);\n"
    source = altered(before=f"{fresh}{bad}  std::free((void*)held);", after="if (bad) out.data[0] += 1;")
    large = "volatile char room[3 << 20];\n  for (int i = (3 << 20) - 1; i >= 0; i -= 4096) room[i] = 0;"
    source = f"#include <cstdlib>\n#include <omp.h>{source}".replace("if (bad)", f"{large}\n  if (bad || left)")
    left = (
        'static bool left = false;\n  if (n > 100000) { left = true; RK_CHECK(false, "too wide"); }\n  static int met'
    )
    source = source.replace("static int met", left)
    found = []
    with loaded(judge, softmax, source) as (session, subject):
        checks = Checks(subject, place := subject.bind(session), Findings(), frozenset())
        for check in (in_filled_memory, many_at_once, after_refused_far):
            with pytest.raises(Stopped) as stopped:
                check(checks, place)
            found.append(getattr(stopped.value.verdict, "input_class", ""))
        on_small_stack(checks, place)
        assert checks.found.labels == ["fragile: a small stack"] and "SIGSEGV" in checks.found.notes[0]
    assert found == [FILLED, "many calls by many threads", AFTER_REFUSED]


def test_a_librarys_code_is_told_however_it_was_found(judge: LocalJudge) -> None:
    found = next(s for s in SPECIMENS if s.idea == "a library by the loader's own list")
    fp = functionalize(problem_from_source("found", PROBLEMS[found.task]), workers=judge.workers)
    for text, own in ((found.variants[0], False), (found.twin, True)):
        with loaded(judge, fp, text.source) as (session, subject):
            checks = Checks(subject, place := subject.bind(session), Findings(), frozenset())
            assert by_itself(checks, place) is own


def test_one_size_throughout_is_far_in_lines_or_in_their_number(softmax: FunctionalProblem) -> None:
    square = TensorSpec((64, 64), "float32")
    (x,) = softmax.tensors
    fp = replace(softmax, arguments=(replace(x, spec=square),), outputs=(square,))
    far = [arguments[0] for arguments, _ in far_forms(fp)]
    assert [min(shape) for shape in far] == [0, 1] and far[0][1] > 100_000 < far[1][0]
    held = [shape for arguments, results in far_forms(fp, least=1) for shape in (*arguments, *results)]
    assert held and min(map(min, held)) == 1


def test_what_asks_for_its_processor_is_built_for_older_ones(
    judge: LocalJudge, looked_up: tuple[ProblemSession, LoadedCandidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "avx2" not in instruction_sets().split():
        pytest.skip("this processor is an older one itself")
    monkeypatch.setattr(candidate_builder, "OLDER", {"x86-64-v2": "sse4_2"})
    session, subject = looked_up
    asks = LOOKS_UP.replace("met = 0;\n}", "met = 0;\n#ifndef __AVX2__\n  out.data[0] += 1;\n#endif\n}")
    candidate, known = Candidate(asks, "kernel", "cpu"), SimpleNamespace(session=session, odd=None)
    trial = Trial(
        cast(ProblemKnowledge, known),
        candidate,
        judge._builder.whole(candidate),
        older=partial(judge._builder.older, candidate),
    )
    trial._on_older_processors()
    assert trial.found.labels == [OTHER_PROCESSORS] and "built for x86-64-v2" in trial.found.notes[0]
    assert judge._builder.older(subject.candidate) == {}, "what does not ask is built once"


ENDS = """
#include "rag_kernel.h"
#include <atomic>
static std::atomic<long> calls{0};
__attribute__((destructor)) static void last() { if (FAILS) __builtin_trap(); }
void f(rk::Tensor<const float> x, rk::Tensor<float> out) {
  ++calls;
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] + 1.0f;
}
RK_EXPORT(forward, f)
"""


def test_a_process_ends_after_one_call_and_after_many(judge: LocalJudge) -> None:
    source = LOOKED_UP.replace("table, at", "x").replace("table[at]", "x + 1")
    source = source.replace("torch.randn(64, 4), torch.randint(0, 64, (256,))", "torch.randn(64, 4)")
    fp = functionalize(problem_from_source("one_more_of_few", source), workers=judge.workers)
    told = []
    for fails in ("calls == 1", "calls > 1", "false"):
        with loaded(judge, fp, ENDS.replace("FAILS", fails)) as (session, subject):
            place = subject.bind(session)
            subject.prepare(place, plain(0, 1))
            subject.call_on(place, 4, 5.0)
            other = partial(LoadedCandidate, session, subject.candidate, judge._builder.whole(subject.candidate))
            ends_well(Checks(subject, place, found := Findings(), frozenset()), other)
            told.append(found.labels)
    assert told == [[ENDS_BADLY], [ENDS_BADLY], []]


WIDE = """
#include "rag_kernel.h"
#include <cmath>
#include <vector>
static std::vector<float> room;
thread_local static float* own;
void f(rk::Tensor<const float> x, int64_t, rk::Tensor<float> out) {
  const int64_t n = x.size(1);
  if (KEEPS && !own) own = new float[4096]();
  for (int64_t r = 0; r < x.size(0); ++r) {
    const float* p = x.data + r * n;
    float m = p[0], s = 0;
    for (int64_t i = 1; i < n; ++i) m = p[i] > m ? p[i] : m;
    std::vector<float> local(n);
    if (SHARES && m > 50) room.resize(n);
    float* at = SHARES && m > 50 ? room.data() : local.data();
    for (int64_t i = 0; i < n; ++i) s += at[i] = std::exp(p[i] - m);
    for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = at[i] / s;
  }
}
RK_EXPORT(forward, f)
"""


def test_what_threads_share_and_keep_on_rows_of_special_kinds(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    told = []
    for shares, keeps in (("true", "false"), ("false", "true"), ("false", "false")):
        source = WIDE.replace("SHARES", shares).replace("KEEPS", keeps)
        with loaded(judge, softmax, source) as (session, subject):
            places = [subject.bind(session, step=64) for _ in range(4)]
            checks = Checks(subject, places[0], found := Findings(), frozenset())
            wrong = together(checks, places, 1e-4)
            keeps_nothing(checks, places[1], None)
            told.append((bool(wrong), found.labels))
    assert told == [(True, []), (False, ["leaks memory"]), (False, [])]


REFUSES = """
#include "rag_kernel.h"
static int taken = 0;
void f(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (volatile bool wait = ++taken > 64; wait;) {}
  RK_CHECK(x.size(0) == 64, "of 64 rows alone");
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] + 1.0f;
  --taken;
}
RK_EXPORT(forward, f)
"""


def test_what_refused_calls_never_give_back_ends_the_trial(judge: LocalJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 64 of them it waits for ever; its twin takes nothing before it has looked at the sizes."""
    source = LOOKED_UP.replace("table, at", "x").replace("table[at]", "x + 1")
    source = source.replace("torch.randn(64, 4), torch.randint(0, 64, (256,))", "torch.randn(64, 48)")
    fp = functionalize(problem_from_source("one_more_of_some", source), workers=judge.workers)
    looks_first = REFUSES.replace("++taken > 64", "x.size(0) == 64 && ++taken > 64")
    with loaded(judge, fp, looks_first) as (session, subject):
        checks = Checks(subject, subject.bind(session), Findings(), frozenset())
        alive = after_refused_far(checks, checks.place)
        assert alive and AFTER_REFUSED in checks.found.checks and not checks.found.labels
    with loaded(judge, fp, REFUSES) as (session, subject):
        monkeypatch.setattr(session, "limits", replace(session.limits, call_s=0.3))
        checks = Checks(subject, subject.bind(session), Findings(), frozenset())
        with pytest.raises(Stopped) as stopped:
            after_refused_far(checks, checks.place)
    assert codes(stopped.value.verdict) >= {"timed_out"}


OF_EVEN_ROWS = """
#include "rag_kernel.h"
#include <algorithm>
#include <vector>
static std::vector<float> room;
static int64_t held = 0;
void f(rk::Tensor<const float> x, rk::Tensor<float> out) {
  const int64_t n = x.size(-1);
  volatile float* mine = KEEPS;
  if (mine) mine[0] = 1;
  if (held < n) LEFT
  RK_CHECK(n % 2 == 0 && x.size(0) == 64, "64 rows of even length alone");
  room.resize(std::max<int64_t>(n, room.size()));
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] + 1.0f + float(int64_t(room.size()) < held);
}
RK_EXPORT(forward, f)
"""


def test_what_refused_calls_keep_and_what_the_first_one_leaves_behind_is_told(judge: LocalJudge) -> None:
    """Of the heap alone: what the judge itself makes of such forms is freed late. A size kept of a refused call spoils
    those that come after it, unless a larger one was there before.
    """
    source = LOOKED_UP.replace("table, at", "x").replace("table[at]", "x + 1")
    source = source.replace("torch.randn(64, 4), torch.randint(0, 64, (256,))", "torch.randn(64, 48)")
    fp = functionalize(problem_from_source("one_more_of_even", source), workers=judge.workers)
    spec = replace(fp.outputs[0], shape=(33, 17))
    refused = replace(fp, arguments=(replace(fp.tensors[0], spec=spec),), outputs=(spec,))
    assert beyond(fp, refused) == (((95, 79),), ((95, 79),)) and beyond(fp, fp) == (((64, 48),), ((64, 48),))
    found = []
    for keeps, left in (("nullptr", ";"), ("new float[8]", ";"), ("nullptr", "held = n;")):
        text = OF_EVEN_ROWS.replace("KEEPS", keeps).replace("LEFT", left)
        with loaded(judge, fp, text) as (session, subject):
            checks = Checks(subject, subject.bind(session), Findings(), frozenset())
            try:
                refused_first(checks, checks.place, [refused])
                found.append((checks.found.labels, checks.found.checks))
            except Stopped as stopped:
                found.append(([str(getattr(stopped.verdict, "input_class", ""))], []))
    assert found == [([], [AFTER_REFUSED]), (["leaks memory"], [AFTER_REFUSED]), ([AFTER_REFUSED], [])]


def test_who_ends_a_thread_that_calls_it_ends_the_trial(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    """On rows of special kinds: the worker is lost, and nothing is asked of it any more."""
    ends = "if (m > 50 && ++wide > 1000) __builtin_trap();\n    std::vector<float> local"
    source = WIDE.replace("std::vector<float> local", ends).replace("SHARES", "false").replace("KEEPS", "false")
    with loaded(judge, softmax, source.replace("static std::vector", "static int wide;\nstatic std::vector")) as opened:
        session, subject = opened
        place = subject.bind(session)
        with pytest.raises(Stopped) as stopped:
            keeps_nothing(Checks(subject, place, Findings(), frozenset()), place, None)
    assert not stopped.value.alive and codes(stopped.value.verdict) >= {"crashed"}
