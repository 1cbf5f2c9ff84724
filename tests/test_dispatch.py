"""Who gets which candidate, and what a lost or failing judge costs: the dispatcher, with judges that obey the test."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from factories import candidate, device, environment, judged, passed, problem

from rag_kernels.cluster.dispatcher import Dispatcher, Rules
from rag_kernels.cluster.ray_judge import ClusterJudge
from rag_kernels.cluster.records import Job, LostError
from rag_kernels.cluster.remote_judge import VERSION, About, Fault
from rag_kernels.eval.records import Candidate, Crashed, FunctionalProblem, Judged, MachineError, ProblemError

LIMIT_S = 30.0
RELU, TANH = problem(), problem("tanh")
RIGHT = judged(passed(2.0, confirmed=False))
ABOUT = About("host", "gpu 0", VERSION, device(), environment(), True, (), 1 << 30)
DIED = LostError("killed", host_too=False)


class ObedientHandle:
    """Opens as it is told to, and hands each judgement to the test."""

    def __init__(self, pool: ObedientPool, about: About | Fault | LostError) -> None:
        self._pool, self._about = pool, about
        self.ended = False

    def open(self) -> Future[Any]:
        return _done(self._about)

    def build(self, candidate: Candidate) -> None:
        self._pool.built.append((self, candidate))

    def judge(self, problem: FunctionalProblem, candidate: Candidate, confirm: bool) -> Future[Any]:
        asked = Asked(self, problem, candidate)
        self._pool.asked.put(asked)
        return asked.answer

    def end(self) -> None:
        self.ended = True

    close = end

    @property
    def unit(self) -> str:
        assert isinstance(self._about, About)
        return self._about.unit


class Asked:
    """A judgement under way."""

    def __init__(self, handle: ObedientHandle, problem: FunctionalProblem, candidate: Candidate) -> None:
        self.handle, self.problem, self.candidate = handle, problem, candidate
        self.answer: Future[Any] = Future()

    def say(self, what: Judged | Fault | LostError) -> None:
        _done(what, self.answer)


class ObedientPool:
    """`units` are the places; `opening` says how the next judges open, where that is not as usual."""

    def __init__(self, units: int, *opening: About | Fault | LostError) -> None:
        self.units, self.opening = units, list(opening)
        self.handles: list[ObedientHandle] = []
        self.built: list[tuple[ObedientHandle, Candidate]] = []
        self.asked: SimpleQueue[Asked] = SimpleQueue()

    def wanted(self) -> int:
        return self.units

    def start(self) -> ObedientHandle:
        taken = {handle.unit for handle in self.handles if not handle.ended and isinstance(handle._about, About)}
        free = next(f"gpu {n}" for n in range(self.units + 1) if f"gpu {n}" not in taken)
        about = self.opening.pop(0) if self.opening else replace(ABOUT, unit=free)
        self.handles.append(ObedientHandle(self, about))
        return self.handles[-1]

    def next(self) -> Asked:
        return self.asked.get(timeout=LIMIT_S)


def _done(what: Any, future: Future[Any] | None = None) -> Future[Any]:
    future = future or Future()
    if isinstance(what, Exception):
        future.set_exception(what)
    else:
        future.set_result(what)
    return future


class Opened:
    """Dispatchers that are closed when the test is over."""

    def __init__(self) -> None:
        self.all: list[Dispatcher] = []

    def __call__(
        self, pool: ObedientPool, *, build_ahead: bool = False, just_now_s: float = 0.0, last_s: float = 0.0
    ) -> Dispatcher:
        rules = Rules(backoff_s=0.0, just_now_s=just_now_s, last_s=last_s)
        self.all.append(Dispatcher(pool, build_ahead=build_ahead, rules=rules))
        return self.all[-1]


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    for dispatcher in made.all:
        dispatcher.close()


def submit(dispatcher: Dispatcher, count: int = 1, fp: FunctionalProblem = RELU) -> list[Job]:
    return [dispatcher.submit(fp, candidate(fp, variant=n)) for n in range(count)]


def test_all_judges_work_at_once_and_keep_the_problem_that_they_have_open(opened: Opened) -> None:
    pool = ObedientPool(2)
    dispatcher = opened(pool)
    submit(dispatcher, 3), submit(dispatcher, 3, TANH)
    first, second = pool.next(), pool.next()
    assert first.handle is not second.handle and first.problem != second.problem
    for _ in range(2):
        first.say(RIGHT)
        again = pool.next()
        assert again.handle is first.handle and again.problem == first.problem
        first = again
    first.say(RIGHT)
    over = pool.next()
    assert over.handle is first.handle and over.problem == second.problem  # nothing else waits


def test_judges_wait_for_other_problems_that_come_with_the_first(opened: Opened) -> None:
    pool = ObedientPool(2)
    dispatcher = opened(pool, just_now_s=LIMIT_S)
    submit(dispatcher, 3)
    first = pool.next()
    with pytest.raises(Empty):
        pool.asked.get(timeout=0.3)
    submit(dispatcher, 1, TANH)
    second = pool.next()
    assert (first.problem, second.problem) == (RELU, TANH) and second.handle is not first.handle


def test_the_last_of_a_problem_is_left_to_the_judge_that_has_it_open(opened: Opened) -> None:
    pool = ObedientPool(2)
    submit(opened(pool, last_s=LIMIT_S), 2)
    first = pool.next()
    with pytest.raises(Empty):
        pool.asked.get(timeout=0.3)
    first.say(RIGHT)
    assert pool.next().handle is first.handle


def test_candidates_are_built_where_they_will_be_judged(opened: Opened) -> None:
    pool = ObedientPool(1)
    submit(opened(pool, build_ahead=True), 3)
    first = pool.next()
    first.say(RIGHT)
    pool.next().say(RIGHT)
    last = pool.next()
    assert (last.handle, last.candidate) in pool.built and (first.handle, first.candidate) not in pool.built[2:]


def test_a_lost_judge_costs_a_retry_on_another_one(opened: Opened) -> None:
    pool = ObedientPool(2)
    [job] = submit(opened(pool))
    lost = pool.next()
    lost.say(DIED)
    retried = pool.next()
    assert retried.handle.unit != lost.handle.unit and lost.handle.ended
    retried.say(RIGHT)
    assert job.answer.result(LIMIT_S) == RIGHT


def test_a_lost_host_says_nothing_of_the_candidate(opened: Opened) -> None:
    pool = ObedientPool(1)
    [job] = submit(opened(pool))
    for _ in range(7):
        pool.next().say(LostError("its node has died", host_too=True))
    pool.next().say(RIGHT)
    assert job.answer.result(LIMIT_S) == RIGHT


def test_a_candidate_under_which_three_judges_died_has_crashed_and_the_next_one_is_judged(opened: Opened) -> None:
    pool = ObedientPool(1)
    bad, good = submit(opened(pool), 2)
    for _ in range(3):
        asked = pool.next()
        assert asked.candidate == bad.candidate
        asked.say(DIED)
    verdict = bad.answer.result(LIMIT_S).verdict
    assert isinstance(verdict, Crashed) and "3 judges" in verdict.reason and verdict.log.count("killed") == 3
    pool.next().say(RIGHT)
    assert good.answer.result(LIMIT_S) == RIGHT


def test_what_two_judges_say_of_the_problem_is_raised_as_a_local_one_would(opened: Opened) -> None:
    pool = ObedientPool(2)
    [job] = submit(opened(pool))
    first = pool.next()
    first.say(Fault("problem", "it draws random numbers"))
    second = pool.next()
    assert second.handle is not first.handle
    second.say(Fault("problem", "it draws random numbers"))
    with pytest.raises(ProblemError, match="random"):
        job.answer.result(LIMIT_S)


def test_a_gpu_that_fails_every_time_gets_no_more_work(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    pool = ObedientPool(2)
    jobs = submit(opened(pool), 12)
    held, failed = list[Asked](), 0
    while failed < 5:  # the other one is at its first job meanwhile
        asked = pool.next()
        if asked.handle.unit == "gpu 0":
            asked.say(Fault("other", "CUDA error: device lost"))
            failed += 1
        else:
            held.append(asked)
    held += [pool.next()] if not held else []
    held[0].say(RIGHT)
    for _ in jobs[1:]:
        (asked := pool.next()).say(RIGHT)
        assert asked.handle.unit == "gpu 1"
    assert [job.answer.result(LIMIT_S) for job in jobs] == [RIGHT] * 12
    assert "The judge on host (gpu 0) gets no work: it failed 5 times in a row." in caplog.text


def test_judges_that_cannot_be_opened_end_it_with_their_reason(opened: Opened) -> None:
    dispatcher = opened(ObedientPool(1, *[Fault("machine", "No C++ compiler was found.")] * 3))
    [job] = submit(dispatcher)
    for failed in (dispatcher.ready, job.answer):
        with pytest.raises(MachineError, match="No judge could be opened on the cluster: No C\\+\\+ compiler"):
            failed.result(LIMIT_S)


def test_judges_of_another_device_or_version_get_no_work(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    other = replace(ABOUT, unit="gpu 1", device=replace(device(), name="another GPU"))
    old = replace(ABOUT, unit="gpu 2", version="0.0.1 (judge 1)")
    pool = ObedientPool(3, ABOUT, other, old)
    jobs = submit(opened(pool), 4)
    for _ in jobs:
        asked = pool.next()
        assert asked.handle.unit == "gpu 0"
        asked.say(RIGHT)
    assert [job.answer.result(LIMIT_S) for job in jobs] == [RIGHT] * 4
    assert "another GPU" in caplog.text and "install the same" in caplog.text


def test_what_comes_while_others_are_judged_is_judged_too_and_yielded_as_it_is_done(opened: Opened) -> None:
    pool = ObedientPool(2)
    dispatcher = opened(pool)
    first, second, third = (candidate(RELU, variant=n) for n in range(3))
    come = [[second], [third]]
    judging = ClusterJudge(dispatcher, dispatcher.ready.result(LIMIT_S), None).judge(  # type: ignore[arg-type]
        RELU, [first], lambda: come.pop(0) if come else ()
    )
    results: SimpleQueue[Candidate] = SimpleQueue()

    def work() -> None:
        slow = pool.next()
        for _ in range(2):
            pool.next().say(RIGHT)
        assert results.get(timeout=LIMIT_S) == second and results.get(timeout=LIMIT_S) == third
        slow.say(RIGHT)

    with ThreadPoolExecutor(max_workers=1) as threads:
        done = threads.submit(work)
        order = []
        for judged_candidate, _ in judging:
            order.append(judged_candidate)
            results.put(judged_candidate)
        done.result(LIMIT_S)
    assert order == [second, third, first]


def test_what_nobody_waits_for_any_more_is_not_judged(opened: Opened) -> None:
    pool = ObedientPool(1)
    dispatcher = opened(pool)
    jobs = submit(dispatcher, 3)
    under_way = pool.next()
    assert all(job.answer.cancel() for job in jobs)
    [later] = submit(dispatcher, 1, TANH)
    under_way.say(RIGHT)
    asked = pool.next()
    assert asked.problem == TANH
    asked.say(RIGHT)
    assert later.answer.result(LIMIT_S) == RIGHT
