"""How the judge times: bursts, baselines that are compiled ahead, whose turn it is, ceilings that were too low."""

import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judging import BRIEF, SOFTMAX, altered, loaded, verdict
from support.kept import kept_judge

from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import device_file, read_device
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.messages.to_reference import CallVariant, CompileAhead, PrepareVariant, Timed
from rag_kernels.eval.problem import load_module, problem_from_source
from rag_kernels.eval.process.workers import WorkerFailed
from rag_kernels.eval.records import SLOWER_ELSEWHERE, Candidate, FunctionalProblem, Passed
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.timing.baseline import Baseline, _measure
from rag_kernels.eval.timing.looks import checked_pairs
from rag_kernels.eval.timing.race import Race, Times
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.trial.checks import Findings
from rag_kernels.eval.trial.timed import Timing
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=BRIEF, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def softmax(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("softmax", SOFTMAX), workers=judge.workers)


def test_a_burst_is_timed_without_the_way_there_and_back(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    """And a candidate that is slow to answer is not the faster for it. (Bursts are for GPUs; here one asks.)"""
    with loaded(judge, softmax, altered()) as (session, subject):
        reference = ReferenceTimes(session)
        assert reference.call("eager", calls=8) > 0 and len(reference.round_trips) == 1
        places = [subject.bind(session) for _ in range(8)]
        recipe = session.random_recipe()
        subject.prepare_all(places, [recipe] * 8)
        honest = min(subject.call_all(places, reference) for _ in range(5))
        assert len(subject.round_trips) == 5
        for place in places:
            assert all(row.ok for row in session.check(subject.outputs(place), recipe))
        reference.round_trips, subject.round_trips = [1e-6] * 9, [honest] * 99
        assert min(subject.call_all(places, reference) for _ in range(5)) > honest / 2


def test_a_burst_grows_until_asking_for_it_takes_little_of_it(
    judge: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a candidate that is very slow is called less often than the reference."""
    with loaded(judge, softmax, altered(), replace(judge.limits, timing=TimingRule())) as (session, subject):
        reference = ReferenceTimes(session)
        race = Race(subject, subject.bind(session), reference, ["eager"], best_speedup=1e6)
        assert race.calls == 1
        race.burst = race._places(4)
        subject.round_trips = [1e-9] * 9
        assert race._missing() < 0
        subject.round_trips = [1.0] * 9
        assert race._missing() == session.limits.timing.most_burst - 4
        monkeypatch.setattr(reference, "calls_for", lambda seconds: 16)
        monkeypatch.setattr(Race, "_first_s", lambda race: 0.1)
        slow = Race(subject, race.place, reference, ["eager"])  # 16 calls of it would take 1.6 s
        assert (len(slow.burst), slow.calls) == (2, 16)
        shown = Times({"eager": [1e-3], "candidate": [0.1]})
        reference.round_trips = [0.004] * 9
        assert slow.asking(shown) == 0.25  # of the reference's burst, which is the shorter one
        race.burst = []
        for _ in range(9):
            chosen = checked_pairs(session, 60)
            assert [sum(a <= n < b for n in chosen) for a, b in ((0, 7), (7, 30), (30, 60))] == [1, 1, 2]
            assert len(checked_pairs(session, 7)) == 2
        times = race.run()
        assert times.kept  # one of the few pairs is always checked
        assert times.stopped_early and len(times.seconds["eager"]) == session.limits.timing.few_pairs


def test_what_is_compiled_ahead_is_found_in_the_cache_and_nothing_of_it_ran(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    import torch
    from torch._dynamo.utils import counters

    from rag_kernels.eval.children.reference.baseline_variants import compile_ahead, make

    class Product(torch.nn.Module):  # without a kernel of Inductor's own, for which a compiler would run
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x.T, out=written)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))  # with what it found out of this CPU
    columns = random.randrange(9, 9999)  # of which nothing is in it yet, when this is tried once more, too
    x, written = torch.rand(8, columns), torch.zeros(8, 8)
    with torch.no_grad():
        counters.clear()
        compile_ahead(Product(), [x])
        assert counters["inductor"]["fxgraph_cache_hit"] == 0 and not written.any()
        counters.clear()
        make("compile", Product(), [x])(x)
    assert counters["inductor"]["fxgraph_cache_hit"] == 1 and written.any()


def test_what_a_compilation_left_on_of_tracing_is_taken_off() -> None:
    """As one that ends within a module's own `torch.inference_mode` does in PyTorch 2.11."""
    import torch

    from rag_kernels.eval.children.reference.baseline_variants import TRACING, dispatch_plainly

    keys = [getattr(torch._C.DispatchKey, name) for name in TRACING]
    for key in keys:
        torch._C._dispatch_tls_set_dispatch_key_included(key, True)
    dispatch_plainly()
    assert not any(map(torch._C._dispatch_tls_is_dispatch_key_included, keys))
    assert float(torch.ones(2).sum()) == 2.0


def test_what_a_probe_of_the_cpu_found_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, VecAVX512VNNI, VecISA, invalid_vec_isa

    from rag_kernels.eval.children.reference.baseline_variants import _keep_probes

    asked: list[str] = []
    monkeypatch.setattr(VecISA, "_probe_load", lambda isa, library: asked.append(library) or "good" in library)
    built: list[VecISA] = []
    monkeypatch.setattr(VecISA, "check_build", lambda isa, code: built.append(isa) or str(isa) == "avx512")
    _keep_probes.__wrapped__()
    good, bad = str(tmp_path / "good.so"), str(tmp_path / "bad.so")
    found = [invalid_vec_isa._probe_load(library) for library in (good, bad, good, bad)]
    assert found == [True, False, True, False] and asked == [good, bad, bad], "what failed is tried again"
    kinds = [VecAVX512VNNI(), VecAVX512(), VecAVX2()]
    assert [kind.check_build("") for kind in kinds] == [False, True, True]
    assert built == kinds[:2], "what is narrower than one that works is not built"


PRODUCT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.mm(x, x.T)

def get_inputs():
    return [torch.rand(8, 8)]

def get_init_inputs():
    return []
"""


def test_a_problem_is_compiled_ahead_by_a_child_as_a_judgement_will(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the judge's cache, where a process that comes later finds it; a failure is logged."""
    import torch
    from torch._dynamo.utils import counters

    from rag_kernels.eval.children.reference.baseline_variants import make
    from rag_kernels.eval.numerics.oracle import strict_precision

    fp = functionalize(problem_from_source("product", PRODUCT), workers=judge.workers)
    judge.sessions.compile_ahead(fp)
    judge.compile_ahead(fp)  # on a CPU compilers would take the cores from what is being timed
    judge.sessions.compile_ahead(replace(fp, problem=problem_from_source("none", PRODUCT.replace("mm(", "mn("))))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(judge.cache / "inductor"))
    counters.clear()
    module = load_module("product", fp.problem.source)
    strict_precision()
    with torch.no_grad():
        make("compile", module.Model(), module.get_inputs())(*module.get_inputs())
    assert counters["inductor"]["fxgraph_cache_hit"] == 1


WRITTEN = (
    PRODUCT.replace("self, x", "self, x, y").replace("x.T)", "x.T, out=y)").replace("8)]", "8), torch.zeros(8, 8)]")
)


def test_an_input_that_is_written_in_place_is_a_copy_for_torch_compile_too(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is mapped read-only in a worker: a compiled module that wrote to it died, and was blamed for it."""
    import torch

    from rag_kernels.eval.children.reference.baseline_variants import make
    from rag_kernels.eval.children.reference.bound_module import BoundModule

    fp = functionalize(problem_from_source("written", WRITTEN), workers=judge.workers)
    assert fp.written == ("1",)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(judge.cache / "inductor"))
    content = [torch.rand(8, 8), torch.zeros(8, 8)]
    bound = BoundModule(fp, torch.device("cpu"), content, seed=0)
    with torch.no_grad():
        compiled = make("compile", bound.model, bound.inputs())
        for _ in range(2):
            bound.restore()
            assert not bound.inputs()[1].any()
            torch.testing.assert_close(compiled(*bound.inputs()), content[0] @ content[0].T)
    assert not content[1].any()


def test_a_worker_that_died_while_others_timed_is_not_torch_compiles_fault() -> None:
    asked: list[str] = []

    def send(request: object, *_: object, **__: object) -> None:
        asked.append(type(request).__name__)
        if isinstance(request, CompileAhead):
            raise WorkerFailed("crashed", "an assertion on the device")

    session: Any = SimpleNamespace(
        on_gpu=True, device_lock=SimpleNamespace(away=nullcontext), send=send, limits=Limits(), specs=[],
        after_restart=[],
        restart=lambda by_content: asked.append("restart"), write=lambda recipe: asked.append("write"),
    )  # fmt: skip
    times = ReferenceTimes(session)
    times.prepare_baselines()
    prepared = ["write", "PrepareVariant"]
    assert asked == ["write", "CompileAhead", "restart", *prepared, *prepared]
    assert times.variants == ["compile", "graph"] and not times.compile_note


def test_a_gpus_reference_is_timed_behind_delays_that_its_host_is_in_time_for() -> None:
    """Of a deep module a burst has as many calls as can be launched behind a delay; one that came late is repeated."""
    host_s, asked = 1e-3, list[tuple[int, float]]()

    def ask(request: object, *_: object, **__: object) -> Timed | None:
        if not isinstance(request, CallVariant):
            return None
        delay_s = request.begin_s - time.monotonic()
        asked.append((request.calls, delay_s))
        late = request.calls * host_s > delay_s
        return Timed(request.calls * (2e-3 if late else 5e-4), request.calls * host_s, late)

    session: Any = SimpleNamespace(on_gpu=True, ask=ask, limits=Limits(), after_restart=[], call_limit_s=1.0)
    times, rule = ReferenceTimes(session), TimingRule()
    assert times.call("eager") == 5e-4 and times.host_s == {"eager": host_s}
    assert [calls for calls, _ in asked] == [1, 1] and asked[1][1] > host_s > asked[0][1]
    del asked[:]
    assert times.call("eager", calls=64) == 5e-4 and asked[0][0] == 7
    host_s = 2 * rule.most_delay_s
    del asked[:]
    assert times.call("eager") == 2e-3 and len(asked) == 2  # no delay is long enough


def test_what_fails_when_it_is_prepared_again_is_told() -> None:
    fails: list[str] = []

    def send(request: object, *_: object, **__: object) -> None:
        if isinstance(request, PrepareVariant) and request.variant in fails:
            raise WorkerFailed("raised", f"no memory for {request.variant}", alive=True)

    session: Any = SimpleNamespace(
        on_gpu=True, device_lock=SimpleNamespace(away=nullcontext), send=send, limits=Limits(), specs=[],
        after_restart=[],
        write=lambda recipe: None,
    )  # fmt: skip
    times = ReferenceTimes(session)
    times.prepare_baselines()
    fails.append("compile")
    times.prepare_again()
    assert times.variants == ["graph"] and times.compile_note == "torch.compile failed: no memory for compile"
    fails.append("graph")
    times.prepare_again()
    assert not times.variants and times.compile_note.endswith("; compared with eager alone")


DIES = "(__import__('os').abort() if torch.compiler.is_compiling() else None)"  # before anything is compiled


def test_a_baseline_that_dies_is_a_note_and_costs_no_kind_of_inputs(
    judge: LocalJudge, softmax: FunctionalProblem
) -> None:
    source = SOFTMAX.replace("return ", f"{DIES}\n        return ", 1)
    fp = replace(softmax, problem=problem_from_source("dies", source))
    told = "torch.compile died: it was killed by SIGABRT; compared with eager alone"
    with judge.sessions.new(fp) as session:
        assert session.normal is not None and session.specials.draw("shifted") is not None
        session.specials.kinds["spikes"] = None
        times = ReferenceTimes(session)
        times.prepare_baselines()
        assert times.compile_note == told and not times.variants and session.restarts == 1
        assert session.normal is not None and session.specials.draw("shifted") is not None
        assert session.specials.draw("spikes") is None and times.call("eager") > 0
    alone = judge.by_other_limits(replace(judge.limits, measure_compile=True)).baseline_times(fp)
    assert alone is not None and alone.eager_us > 0 and (alone.compile_us, alone.note) == (None, told)


def test_a_baseline_that_fails_while_it_is_timed_is_left_out(
    judge: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only seems to be prepared: the worker knows none of that name."""
    monkeypatch.setattr(ReferenceTimes, "_prepare", lambda times, variant: times.variants.append(variant) or "")
    limits = replace(judge.limits, measure_compile=True, without=judge.limits.without | {"repeats", "sanitizers"})
    told = "torch.compile failed: KeyError: 'compile'; compared with eager alone"
    with judge.sessions.new(softmax) as session:
        assert _measure(session, ReferenceTimes(session)) == Baseline(None, None, told)
    confirmed = judge.by_other_limits(limits).confirm(softmax, Candidate(altered(), "kernel", "cpu")).verdict
    assert isinstance(confirmed, Passed) and confirmed.measurement.compile_note == told


def test_baselines_are_prepared_on_a_draw_of_the_problems_own(judge: LocalJudge) -> None:
    """Zeros of new memory would be places before the first here, and so is what a special kind may have left."""
    picked = "x.gather(1, (lengths - 1)[:, None])"
    source = SOFTMAX.replace("self, x", "self, x, lengths").replace("torch.softmax(x, -1)", picked)
    source = source.replace("256)]", "256), torch.randint(1, 257, (128,))]")
    fp = functionalize(problem_from_source("last", source), workers=judge.workers)
    least: list[int] = []
    with judge.sessions.for_baselines(fp) as session:
        send = session.send

        def at(request: Any, *given: Any, **how: Any) -> Any:
            if isinstance(request, PrepareVariant):
                least.append(int(session.content.bytes(1).view("int64").min()))
                raise WorkerFailed("raised", "not today", alive=True)
            return send(request, *given, **how)

        session.send = at  # type: ignore[method-assign]
        times = ReferenceTimes(session)
        times.prepare_baselines()
        session.content.bytes(1)[:] = 0
        times.prepare_baselines()
    assert len(least) == 2 and min(least) >= 1


def test_what_is_shorter_than_asking_for_it_is_timed_in_bursts(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a burst at most a quarter counts as the asking (tests/test_timing_rule.py): short ones may claim the rest."""
    monkeypatch.setattr(ReferenceTimes, "calls_for", lambda times, call_s: 2)
    limits = replace(judge.limits, without=judge.limits.without | {"fresh content"})  # places share it on a CPU
    monkeypatch.setattr(judge.sessions, "limits", limits)
    for rows in (3, 8192):
        problem = problem_from_source(f"rows_{rows}", SOFTMAX.replace("128, 256", f"{rows}, 256"))
        found = verdict(judge, functionalize(problem, workers=judge.workers), altered())
        assert isinstance(found, Passed) and "burst-timed" in found.labels
        assert found.claims_speed, (found.labels, found.measurement)


def test_a_verdict_times_in_one_turn_and_draws_before_it(
    judge: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for a turn lets all others wait until he has it: eager's estimate is one, all of a race another."""
    turns: list[str] = []
    take, draw = DeviceLock._take, ProblemSession.make_draw

    def took(lock: DeviceLock, turn: Any) -> None:
        turns.append(turn)
        take(lock, turn)

    def drew(session: ProblemSession, *given: Any, **named: Any) -> list[bool]:
        turns.append("draw")
        return draw(session, *given, **named)

    judge.sessions.close()
    monkeypatch.setattr(DeviceLock, "_take", took)
    monkeypatch.setattr(ProblemSession, "make_draw", drew)
    assert isinstance(verdict(judge, softmax, altered()), Passed)
    assert turns.count("alone") == 2 and "draw" in turns
    assert ("alone", "draw") not in pairwise(turns)


def test_a_right_kernel_is_not_accused_of_beating_a_ceiling_of_a_busy_machine(
    judge: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are measured again first, and the new ones are kept for the next judge."""
    monkeypatch.setattr(ProblemSession, "exceeds_cache", True)
    monkeypatch.setattr(judge.sessions, "device", replace(judge.device, bandwidth_gbs=0.001))
    judge.sessions.close()
    found = verdict(judge, softmax, altered())
    assert isinstance(found, Passed) and found.claims_speed, found
    assert found.measurement.floor_fraction < 1.25 and judge.device.bandwidth_gbs > 0.1
    assert read_device(device_file(judge.device, judge.cache)).bandwidth_gbs >= judge.device.bandwidth_gbs
    judge.sessions.close()


@pytest.mark.parametrize(
    ("own", "there", "eager", "told"),
    [
        ([1.0, 9.0], [3.0, 9.0], [2.0, 2.0], True),
        ([9.0, 9.0], [3.0, 9.0], [2.0, 2.0], False),  # disturbed in both races of the own contents
        ([1.0, 9.0], [9.0, 1.1], [2.0, 2.0], False),  # and there in one
        ([1.0, 9.0], [3.0, 3.0], [2.0, 6.0], False),  # eager is as much slower there
        ([1.0, 1.0], [3.0, 3.0], [8.0, 2.0], True),  # that it is faster there says nothing
    ],
)
def test_who_is_slower_on_other_contents_is_told_by_least_times(
    own: list[float], there: list[float], eager: list[float], told: bool
) -> None:
    races = {0: iter([*own, *own]), 1: iter([*there, *there])}

    def run(*, cold: bool, pairs: int, draws: list[int]) -> Any:
        return SimpleNamespace(seconds={"candidate": [next(races[bool(draws)]), 9.0], "eager": [eager[bool(draws)]]})

    timing = object.__new__(Timing)
    timing.rule, timing.found = TimingRule(elsewhere_races=2), Findings()
    session: Any = SimpleNamespace(specials=SimpleNamespace(elsewhere=[("spread", 3, 2.0)]))
    timing.session = session
    race: Any = SimpleNamespace(run=run)
    timing._elsewhere(race)
    assert (SLOWER_ELSEWHERE in timing.found.labels) is told


@pytest.mark.parametrize(
    ("waits", "tier", "told"),
    [
        ([25e-6], "kernel", False),
        ([90e-6, 80e-6, 25e-6], "kernel", False),  # other programs had the cores in two of three stretches
        ([90e-6, 80e-6, 85e-6], "kernel", True),
        ([90e-6], "module", False),
    ],
)
def test_a_host_that_launches_late_is_no_work_outside_of_its_time(waits: list[float], tier: str, told: bool) -> None:
    races = iter(waits)

    def run(*, cold: bool, pairs: int, with_host: bool) -> Any:
        return Times({"candidate": [next(races)] * 5, "eager": [30e-6] * 5}, rule=TimingRule())

    timing = object.__new__(Timing)
    timing.rule, timing.found = TimingRule(elsewhere_races=3), Findings()
    subject: Any = SimpleNamespace(candidate=SimpleNamespace(tier=tier))
    timing.subject = subject
    race: Any = SimpleNamespace(run=run)
    host = timing._seen_by_a_program(Times({"candidate": [10e-6] * 5}, rule=timing.rule), race)
    assert host.seconds["candidate"][0] == min(waits)
    assert ("suspicious: works outside its time" in timing.found.labels) is told and next(races, None) is None
