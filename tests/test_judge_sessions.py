"""What trials on one problem share: sessions, sizes and workers that were made before, or had to be made again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from judging import BRIEF, SOFTMAX, altered, loaded
from support.kept import kept_judge

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.parallel_copy import CHUNK, PIECE, copied, copy_bytes, same_bytes
from rag_kernels.eval.build.candidate_builder import Builder
from rag_kernels.eval.build.products import Programs
from rag_kernels.eval.children.reference.right_answers import RightAnswers
from rag_kernels.eval.instruments.sanitizers import Report
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Worker, WorkerFailed
from rag_kernels.eval.records import Candidate, FunctionalProblem, Passed
from rag_kernels.eval.sessions import compiler_warm_up
from rag_kernels.eval.sessions.compiler_warm_up import CompilerWarmUp
from rag_kernels.eval.sessions.problem_knowledge import FoundSizes
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.sessions.session_pool import Sessions
from rag_kernels.eval.trial import under_sanitizers
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=BRIEF, at_other_sizes=at_other_sizes) as opened:
        yield opened


def test_sizes_that_another_process_found_are_not_looked_for_again(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp = functionalize(problem_from_source("rows", SOFTMAX.replace("128, 256", "8192, 256")), workers=judge.workers)
    found = judge.sessions.find_sizes(fp, thorough=True)
    again = codec.loads(codec.dumps(found))
    other = judge.by_other_limits(judge.limits)  # without a way to find any
    assert other.sessions.find_sizes(fp, thorough=False) == (None,)
    other.sessions.know_sizes(fp, again, thorough=True)
    small, odd, *_ = other.sessions.find_sizes(fp, thorough=True)
    assert small is not None and odd is not None and small.problem.source != odd.problem.source
    assert tuple(found) == other.sessions.find_sizes(fp, thorough=True)


def test_what_was_prepared_is_prepared_again_when_an_input_kills_the_reference(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = "(__import__('os').kill(__import__('os').getpid(), 9) if x.abs().max() > 50 else None)"
    source = SOFTMAX.replace("return ", f"{dies}\n        return ", 1)
    fp = functionalize(problem_from_source("lives", SOFTMAX), workers=judge.workers)
    fp = replace(fp, problem=problem_from_source("dies", source))
    prepared: list[str] = []

    def prepare(times: ReferenceTimes, variant: str) -> str:
        prepared.append(variant)
        times.variants.append(variant)
        return ""

    monkeypatch.setattr(ReferenceTimes, "_prepare", prepare)
    with judge.sessions.new(fp) as session:
        times = ReferenceTimes(session)
        times.variants = ["compile"]
        assert session.specials.draw("spikes") is None and session.restarts == 1
        assert prepared == ["compile"] == times.variants
        assert session.specials.draw("shifted") is not None and session.normal is not None  # the content is given up
        assert session.specials.draw("far") is None and session.specials.draw("large") is None and session.restarts == 3
        assert session.specials.draw("negative") is None  # each costs a new process: none is tried any more
        assert [kind for kind, _ in session.specials.own] == []
        assert times.call("eager") > 0


def test_a_small_session_is_opened_beside_the_own_one(judge: LocalJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU's host."""
    problem = problem_from_source("rows", SOFTMAX.replace("128, 256", "16384, 256"))
    fp = functionalize(problem, workers=judge.workers)
    judge.sessions.examine_ahead(fp)
    with ExitStack() as opened:
        own, small = judge.sessions._open_beside(fp, opened)
        assert small is not None and small.device_lock is own.device_lock and small.content_bytes < own.content_bytes
    closed: list[ProblemSession] = []
    close = ProblemSession.close
    monkeypatch.setattr(ProblemSession, "close", lambda session: closed.append(session) or close(session))
    monkeypatch.setattr(ProblemSession, "_accepts_normal", lambda session: 1 / (session.fp is not fp))
    with pytest.raises(ZeroDivisionError), ExitStack() as opened:  # the own one cannot be opened
        judge.sessions._open_beside(fp, opened)
    assert {session.fp is fp for session in closed} == {True, False}  # both


def test_a_worker_serves_the_problem_at_one_size_after_the_other(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many sizes of a confirmation: the problem at its own sizes has a worker to itself, and at small ones."""
    fp = functionalize(problem_from_source("rows", SOFTMAX), workers=judge.workers)
    served: list[tuple[bool, int]] = []  # whether its own size, and by which worker
    plain = Sessions.new

    def new(sessions: Sessions, one: FunctionalProblem, **more: Any) -> ProblemSession:
        session = plain(sessions, one, **more)
        served.append((one is fp, session.worker.pid))
        return session

    monkeypatch.setattr(Sessions, "new", new)
    candidate = Candidate(altered(), "kernel", "cpu")
    limits = replace(BRIEF, without=BRIEF.without - {"odd shapes"} | {"repeats", "sanitizers"})
    with judge.by_other_limits(limits, at_other_sizes) as other:
        found = other.confirm(fp, candidate).verdict
    assert isinstance(found, Passed) and {"odd sizes", "larger sizes"} <= {*found.checks}, found
    (own,), others = [pid for is_own, pid in served if is_own], [pid for is_own, pid in served if not is_own]
    assert len(others) > 2 and {*others} != {own} and len({*others}) == 1, served


def test_sizes_are_found_before_they_are_opened_and_one_that_rests_is_opened_anew(judge: LocalJudge) -> None:
    fp = functionalize(problem_from_source("rows", SOFTMAX), workers=judge.workers)
    found: list[FunctionalProblem | None] = []
    idle: list[Worker] = []

    def find() -> Iterator[FunctionalProblem | None]:
        for one in (None, fp):
            found.append(one)
            yield one

    sizes = FoundSizes(find(), lambda one: judge.sessions.new(one, idle=idle))
    assert sizes.find_next() and found == [None]
    assert sizes.find_next() and not sizes.find_next() and found == [None, fp]
    with closing(sizes):
        first = sizes.first()
        assert first is not None and sizes.first() is first
        first.rest()
        again = sizes.first()
        assert again is not None and again is not first and again.worker is first.worker and not idle
        assert again.try_answer(0, noisy=False) is not None
        assert list(sizes) == [again]


def test_what_the_compiler_needs_is_built_ahead_once_and_ends_with_the_judge(judge: LocalJudge, tmp_path: Path) -> None:
    note = tmp_path / compiler_warm_up.NOTE
    ended = CompilerWarmUp(judge.workers, tmp_path)
    while ended._worker is None:
        sleep(0.01)
    ended.close()
    assert not note.exists()
    whole = CompilerWarmUp(judge.workers, tmp_path)
    whole.wait()
    assert note.is_file() and whole._worker is not None
    again = CompilerWarmUp(judge.workers, tmp_path)
    again.wait()
    assert again._worker is None
    for one in (whole, again):
        one.close()


@pytest.mark.parametrize("in_turn", [False, True])
def test_baselines_are_prepared_once_and_beside_sanitizers_where_others_may_time(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch, in_turn: bool
) -> None:
    running, prepared = Event(), Event()
    times: list[bool] = []

    def sanitize(*_: object, **__: object) -> list[Report]:
        running.set()
        assert in_turn or prepared.wait(60)
        return []

    def prepare(_: ReferenceTimes) -> None:
        assert running.wait(60)
        times.append(prepared.is_set())
        prepared.set()

    monkeypatch.setattr(under_sanitizers, "sanitize", sanitize)
    monkeypatch.setattr(ReferenceTimes, "prepare_baselines", prepare)
    monkeypatch.setattr(Builder, "checked", lambda *_: (Programs(Path("program")), judge.workers))
    limits = replace(
        BRIEF, measure_compile=True, sanitizers_in_turn=in_turn, without=frozenset({"repeats", "odd shapes"})
    )
    fp = functionalize(problem_from_source("rows", SOFTMAX), workers=judge.workers)
    with judge.by_other_limits(limits) as other:
        found = other.confirm(fp, Candidate(altered(), "kernel", "cpu")).verdict
    assert isinstance(found, Passed) and times == [False], found


def test_a_problem_is_examined_once_by_threads_that_ask_together(judge: LocalJudge) -> None:
    problem = problem_from_source("rows", SOFTMAX.replace("128, 256", "96, 256"))
    fp = functionalize(problem, workers=judge.workers)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(judge.sessions.admission, [fp] * 4))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_a_worker_that_found_no_gpu_while_it_waited_still_answers(judge: LocalJudge, role: str) -> None:
    """And says when it is ready, as often as it is asked, before it hears of its work."""
    workers = judge.workers if role == "reference" else judge.sessions.candidate_workers
    workers.spare(f"rag_kernels.eval.children.{role}.worker:serve_cuda", limit_address_space=False)
    with workers.spawn(f"rag_kernels.eval.children.{role}.worker:serve_cuda", limit_address_space=False) as worker:
        for _ in range(2):
            worker.wait_until_ready(deadline_s=60)
        with pytest.raises(WorkerFailed) as failed:
            worker.request({}, deadline_s=60)
    assert failed.value.kind == "raised"


def test_large_copies_are_whole() -> None:
    source = np.arange(2 * CHUNK + 5, dtype=np.uint32).view(np.uint8)[: 2 * CHUNK + 5]
    assert np.array_equal(copied(source), source)
    target = np.zeros_like(source)
    copy_bytes(target, source[::-1])
    assert np.array_equal(target, source[::-1])


@pytest.mark.parametrize(("free_gib", "emptied"), [(64, 0), (16, 1)])
def test_temporaries_on_a_gpu_are_given_back_where_they_are_much_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, free_gib: int, emptied: int
) -> None:
    """Two of three GiB are free in the process itself."""
    given_back: list[bool] = []
    cuda = {"memory_reserved": 3 << 30, "memory_allocated": 1 << 30, "mem_get_info": (free_gib << 30, 80 << 30)}
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(True))
    answers: Any = object.__new__(RightAnswers)
    answers.module = SimpleNamespace(device=torch.device("cuda"))
    answers._release()
    assert len(given_back) == emptied


def test_a_byte_that_differs_is_seen_wherever_it_is() -> None:
    one = np.zeros(2 * PIECE + 5, np.uint8)
    assert same_bytes(one, one.copy()) and not same_bytes(one, one[:-1])
    for place in (0, PIECE - 1, PIECE, len(one) - 1):
        other = one.copy()
        other[place] = 1
        assert not same_bytes(one, other)


def test_outputs_lie_where_the_reference_reads_them_unless_they_are_kept(judge: LocalJudge) -> None:
    softmax = functionalize(problem_from_source("softmax", SOFTMAX), workers=judge.workers)
    with loaded(judge, softmax, altered()) as (session, subject):
        place = subject.bind(session)
        first, second = session.random_recipe(), session.random_recipe()
        seen = []
        for recipe in (first, second):
            subject.prepare(place, recipe)
            subject.call(place)
            seen.append((subject.outputs(place, keep=True), subject.outputs(place)))
        (kept, early), (_, late) = seen
        assert subject.still_has(place, late) and not subject.still_has(place, kept)
        assert session.check(late, second)[0].ok and session.check(kept, first)[0].ok
        assert not session.check(kept, second)[0].ok
        with pytest.raises(RuntimeError, match="should have been kept"):
            session.check(early, first)


def test_inputs_and_updated_buffers_may_have_been_written_right_before_a_call(judge: LocalJudge) -> None:
    source = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.weight = nn.Parameter(torch.rand(5))\n"
        "        self.register_buffer('mean', torch.zeros(5))\n        self.register_buffer('far', torch.ones(5))\n\n"
        "    def forward(self, x):\n        self.mean.mul_(0.9).add_(x.mean(0))\n"
        "        return x * self.weight - self.mean * self.far\n\n\n"
        "def get_inputs():\n    return [torch.randn(7, 5)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    fp = functionalize(problem_from_source("norm", source), workers=judge.workers)
    with judge.sessions.new(fp) as session:
        assert {fp.tensors[i].path for i in session.comes_from_before} == {"0", "mean"}
        assert {a.path for a in fp.tensors} == {"0", "weight", "mean", "far"}
