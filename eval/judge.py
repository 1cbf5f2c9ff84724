"""The judge: candidates in, verdicts out. It never imports candidate code and never lets it near an answer.

Three roles in separate processes: the judge (here: seeds, clock, verdicts), a reference worker (`children/reference`),
which alone has what is right, and a candidate worker (`children/candidate`), both forked from warm parents. Builds of a
round run together in one ninja graph. Judges of other processes may use the device meanwhile, but not while one of them
times.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from rag_kernels.eval.build.candidate_builder import Builder, kernels_of
from rag_kernels.eval.build.candidate_form import Forbidden, asks_for_sanitizers, check_composed, looks_for_sanitizers
from rag_kernels.eval.build.compile import BuildError, Toolchain, builds_boxed, toolchain
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.build.step_form import TOLD, fault, is_step
from rag_kernels.eval.instruments.nsight_compute import Profiler
from rag_kernels.eval.instruments.sanitizers import as_site, call_file, sanitize, takes
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import absent_gpu, gpu_name, open_device, own_gpu, threads, units
from rag_kernels.eval.machine.device_lock import DeviceLock, locks
from rag_kernels.eval.machine.hardware import hardware
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.process.sandbox import Sandbox, layers
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.progress import doing
from rag_kernels.eval.records import (
    Backend,
    BaselineTimes,
    BuildFailed,
    Candidate,
    Compiled,
    Device,
    Environment,
    FunctionalProblem,
    Judged,
    Rejected,
    Verdict,
)
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.compiler_warm_up import CompilerWarmUp
from rag_kernels.eval.sessions.reference_times import BaselineFailed
from rag_kernels.eval.sessions.session_pool import AtOtherSizes, Sessions
from rag_kernels.eval.timing.baseline import NOT_ASKED, Baseline, baseline_file, open_baseline
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.trial.trial import Trial

CRASH_BYTES = 1 << 22  # of a tensor, when a crash is looked for: the rest repeats them
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"  # torch's own variable; 1 starts no pool of compilers
CHECKS_VERSION = "97"  # of what is checked and how; raise it with every change of a check


def judge_version(rule: TimingRule) -> str:
    """Return the version of judgements by this rule: results of two versions are not compared with each other."""
    return f"{CHECKS_VERSION}-{rule.version}"


JUDGE_VERSION = judge_version(TimingRule())
# What all children of the judge import, done once: seconds for dynamo, a tenth of one for our own.
PRELOAD = (
    "torch._dynamo",
    "rag_kernels.eval.children.reference.worker",
    "rag_kernels.eval.children.examination.examine",
)


More = Callable[[], Sequence[Candidate]]


def nothing_more() -> Sequence[Candidate]:
    return ()


class Judge(Protocol):
    """The seam: where candidates are judged."""

    device: Device

    def judge(
        self, fp: FunctionalProblem, candidates: Sequence[Candidate], more: More = nothing_more
    ) -> Iterator[tuple[Candidate, Judged]]:
        """Build all candidates together, then judge one after the other, yielding each as soon as it is done.

        A judge that judges several at once asks `more` for what has come meanwhile, so that none of them is idle.
        """
        ...

    def build_ahead(self, candidate: Candidate) -> None:
        """Build what will be judged soon, where that disturbs no measurement; from any thread."""
        ...

    def examine_ahead(self, fp: FunctionalProblem) -> None:
        """Examine a problem that will be judged on soon, where that disturbs no measurement; from any thread."""
        ...

    def confirm(self, fp: FunctionalProblem, candidate: Candidate) -> Judged:
        """Judge again in fresh processes with fresh seeds, against live eager and torch.compile."""
        ...


class LocalJudge:
    """Judges on this machine. Use `open_judge`; a context manager. One problem's session is kept warm."""

    def __init__(
        self,
        device: Device,
        workers: Workers,
        candidate_workers: Workers,
        tools: Toolchain,
        limits: Limits,
        cache: Path,
        at_other_sizes: AtOtherSizes | None,
    ) -> None:
        self.workers, self.limits, self.cache = workers, limits, cache
        self._candidate_workers, self._tools = candidate_workers, tools
        self._parents_are_lent = False
        self._warm_up: CompilerWarmUp | None = None
        self._loading: dict[Candidate, Future[LoadedCandidate]] = {}
        self._turns = DeviceLock(units(device.backend), locks(device.backend, cache))
        self.sessions = Sessions(device, limits, workers, candidate_workers, cache, self._turns, at_other_sizes)
        self._finders = {} if at_other_sizes is None else {at_other_sizes: self.sessions}  # whose sizes others know too
        self._builder = Builder(
            tools,
            candidate_workers,
            cache,
            thorough=limits.thorough,
            can_run=self.can_run,
            on_gpu=device.backend == "cuda",
        )
        self._profiler = Profiler(self._builder.checked, wanted=limits.ncu and device.backend == "cuda")
        self.environment = Environment(
            python=platform.python_version(),
            torch=_torch_version(),
            compiler=tools.version,
            threads=threads(),
            sandbox=layers() + (("builds in bwrap",) if builds_boxed(tools) else ()),
            judge_version=judge_version(limits.timing),
        )

    @property
    def device(self) -> Device:
        """The device, with the greatest ceilings that were seen of it."""
        return self.sessions.device

    @device.setter
    def device(self, device: Device) -> None:
        self.sessions.take(device)

    @property
    def can_run(self) -> bool:
        """False on a machine that has a CUDA compiler but no GPU: candidates are compiled, never verified."""
        return self.device.backend == "cpu" or self.device.name != absent_gpu().name

    def by_other_limits(self, limits: Limits, at_other_sizes: AtOtherSizes | None = None) -> LocalJudge:
        """Return a judge that uses this one's warm parents, whose start takes seconds; to be closed before this one.

        Raises ValueError where one has a sandbox, or a GPU of its own, and the other has not.
        """
        sandboxed = ["sandbox" not in one.without for one in (limits, self.limits)]
        if sandboxed[0] != sandboxed[1] or limits.every_gpu != self.limits.every_gpu:
            raise ValueError("A judge without the sandbox needs a warm parent of its own: use open_judge.")
        other = LocalJudge(
            self.device, self.workers, self._candidate_workers, self._tools, limits, self.cache, at_other_sizes
        )
        other._parents_are_lent = True
        if at_other_sizes is not None:
            other.sessions.share_sizes(self._finders.setdefault(at_other_sizes, other.sessions))
        return other

    def judge(
        self, fp: FunctionalProblem, candidates: Sequence[Candidate], more: More = nothing_more
    ) -> Iterator[tuple[Candidate, Judged]]:
        triaged = [(candidate, self._static_verdict(candidate, fp)) for candidate in candidates]
        if self.can_run and self.limits.measure_compile and not self._baseline_file(fp).is_file():
            self._load_compiler()  # while the candidates are built
        to_build = [c for c, verdict in triaged if verdict is None and kernels_of(c)]
        if self.device.backend == "cuda":
            yield from self._judge_while_building(fp, triaged, to_build)
            return
        started = perf_counter()
        doing(f"building {len(to_build)} candidate{'' if len(to_build) == 1 else 's'}")
        built = self._builder.build(to_build)
        build_s = perf_counter() - started
        for candidate, verdict in triaged:
            yield candidate, self._judged(fp, candidate, verdict, built.get(candidate), build_s)

    def _judge_while_building(
        self, fp: FunctionalProblem, triaged: Sequence[tuple[Candidate, Verdict | None]], to_build: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Judged]]:
        """Judge on a GPU while compilers run on the CPU's cores (on a CPU they would disturb)."""
        with ThreadPoolExecutor(max_workers=threads()) as pool:
            started = perf_counter()
            running = {c: pool.submit(self._builder.build, [c]) for c in to_build}
            if self.can_run:
                with self._turns.shared():
                    session = self.sessions.open(fp).session  # meanwhile
                # Modules compile themselves when they are loaded: that is done ahead, each in its own worker.
                modules = [c for c, verdict in triaged if verdict is None and c.tier == "module"]
                self._loading = {c: pool.submit(LoadedCandidate, session, c, None) for c in modules}
            for candidate, verdict in triaged:
                built = running[candidate].result()[candidate] if candidate in running else None
                yield candidate, self._judged(fp, candidate, verdict, built, perf_counter() - started)
                started = perf_counter()

    def confirm(self, fp: FunctionalProblem, candidate: Candidate) -> Judged:
        failed: list[BaselineFailed] = []
        while True:
            try:
                return self._confirmed(fp, candidate, failed)
            except BaselineFailed as one:  # in a race: what was seen until then is of no use
                failed.append(one)

    def _confirmed(self, fp: FunctionalProblem, candidate: Candidate, failed: Sequence[BaselineFailed]) -> Judged:
        """Confirm it beside the baselines that have not failed."""
        started = perf_counter()
        self._wait_for_compiler()
        doing("confirming: eager and torch.compile anew")
        with ExitStack() as opened:
            pool = opened.enter_context(ThreadPoolExecutor(max_workers=1))  # compilers run meanwhile
            without = self.limits.without
            programs = pool.submit(self._builder.checked, candidate) if "sanitizers" not in without else None
            older = pool.submit(self._builder.older, candidate) if "repeats" not in without else None
            library = self._builder.whole(candidate)
            self._load_compiler()
            opened.enter_context(self._turns.shared())
            known = opened.enter_context(self.sessions.open_fresh(fp))
            known.times.expect()
            for one in failed:
                known.times.leave_out(one)

            def prepare_timing() -> None:
                """Prepare baselines, once; no compiler may have a core any more."""
                building: list[Future[Any] | None] = [programs, older]
                wait([build for build in building if build is not None])
                if self.limits.measure_compile:
                    known.times.prepare_once()

            trial = Trial(
                known,
                candidate,
                library,
                thorough=True,
                checked=None if programs is None else programs.result,
                older=dict if older is None else older.result,
                baselines=prepare_timing,
            )
            verdict = self._profiler.look(trial.run(None), known, candidate)
        return Judged(verdict, self.device, self.environment, trial.stage_s | {"confirm": perf_counter() - started})

    def _static_verdict(self, candidate: Candidate, fp: FunctionalProblem | None = None) -> Verdict | None:
        """Return what can be said before anything is built."""
        if candidate.backend != self.device.backend:
            why = f"This is {candidate.backend} code, judged with --device {self.device.backend}."
            return Rejected("wrong_backend", why)
        if word := asks_for_sanitizers(candidate.source):
            return _hides(f"The source asks for `{word}`")
        step = fp.step is not None if fp is not None else is_step(candidate)
        if step and candidate.tier != "composed":
            return Rejected("outside_subset", f"It is of the {candidate.tier} tier: {TOLD}.")
        if candidate.tier == "composed":
            try:
                check_composed(candidate.source, step=step)
            except Forbidden as forbidden:
                return Rejected("outside_subset", str(forbidden))
        if step and fp is not None and (why := fault(candidate.source, fp)):
            return Rejected("outside_subset", why)
        if candidate.tier == "module" and not self.can_run:
            return Compiled("There is no GPU here; a module candidate is built when it runs.")
        return None

    def _judged(
        self,
        fp: FunctionalProblem,
        candidate: Candidate,
        verdict: Verdict | None,
        built: Library | BuildError | None,
        build_s: float,
    ) -> Judged:
        stages = {"build": build_s}
        if verdict is None and isinstance(built, BuildError):
            verdict = BuildFailed(built.reason, built.log)
        if verdict is None and isinstance(built, Library) and (word := looks_for_sanitizers(built.path.read_bytes())):
            verdict = _hides(f"What was built of it refers to `{word}`")
        if verdict is None and not self.can_run:
            verdict = Compiled("It compiles; there is no GPU here to verify it on.")
        if verdict is None:
            library = built if isinstance(built, Library) else None
            with self._turns.shared():
                started = perf_counter()
                doing("answers of the problem in fp64, and its own times")
                known = self.sessions.open(fp)
                baseline = self._baseline(fp)
                known.times.eager_estimate_s()
                stages["prepare"] = perf_counter() - started
                loading = self._loading.pop(candidate, None)
                trial = Trial(
                    known,
                    candidate,
                    library,
                    checked=lambda: self._builder.checked(candidate),
                    older=partial(self._builder.older, candidate),
                    loaded=loading.result if loading else None,
                )
                verdict = trial.run(baseline)
                prepare_s = stages["prepare"] + trial.stage_s.get("prepare", 0.0)
                stages |= trial.stage_s | {"prepare": prepare_s}
                started = perf_counter()
                verdict = self._profiler.look(verdict, known, candidate)
                stages |= {"counters": perf_counter() - started} if self.limits.ncu else {}
        return Judged(verdict, self.device, self.environment, stages)

    def crash_site(self, fp: FunctionalProblem, candidate: Candidate) -> str:
        """Return where in its source a kernel crashes, "kernel.cpp:3: ... in reach()"; empty where that is not known.

        It is built once more with debug information under the address sanitizer, and called on the inputs once.
        """
        if candidate.tier != "kernel" or self.device.backend != "cpu" or not takes(fp):
            return ""
        doing("looking for the line that crashed, under the address sanitizer")
        programs, workers = self._builder.checked(candidate)
        if not programs.checked:
            return ""
        with self._turns.shared():
            call = call_file(self.sessions.open(fp).session, CRASH_BYTES)
        alone = replace(programs, raced=None)
        reports = sanitize(alone, workers, [call], on_gpu=False, recorded=False)
        return next((as_site(what) for report in reports for _, what in report.found), "")

    def baseline_times(self, fp: FunctionalProblem) -> BaselineTimes | None:
        """Return what a kernel has to beat, before there is one; None where nothing can be timed here.

        It is what the first judgement would measure, and it is not measured again for that.
        """
        if not self.can_run:
            return None
        with self._turns.shared():
            doing("timing eager and torch.compile")
            known, baseline = self.sessions.open(fp), self._baseline(fp)
            eager_us = known.times.eager_estimate_s() * 1e6
        over = baseline.compile_over_eager
        if baseline.compile_us is not None and over is not None:
            eager_us = baseline.compile_us / over.median  # of pairs, where the other is the best of three calls
        return BaselineTimes(eager_us, baseline.compile_us, baseline.note)

    def _baseline(self, fp: FunctionalProblem) -> Baseline:
        if not self.limits.measure_compile:
            return NOT_ASKED
        self._wait_for_compiler()
        if not self._baseline_file(fp).is_file():
            doing("timing torch.compile")
            self._load_compiler()
        return open_baseline(self._baseline_file(fp), lambda: self.sessions.for_baselines(fp))

    def _baseline_file(self, fp: FunctionalProblem) -> Path:
        limits = self.limits
        asked = f"{limits.measure_compile}"
        asked += f" {limits.precision}" if limits.precision != "strict" else ""
        asked += " autotune" if limits.max_autotune else ""
        environment = f"{self.environment.torch} {threads()} {asked}"
        return baseline_file(fp, self.device, environment=environment, rule=limits.timing, cache=self.cache)

    def _load_compiler(self) -> None:
        """Let the warm parent import torch.compile's machinery too (a second), if that has not been done.

        Not on a GPU, where it has not been tried, nor where torch.compile is not measured.
        """
        if self.device.backend == "cpu" and self.limits.measure_compile:
            self.workers.preload("torch._inductor.compile_fx")

    def warm_up(self) -> None:
        """Let torch.compile build what it needs once on a machine, beside what comes before the first judgement."""
        if self._warm_up is None and self.device.backend == "cpu" and self.limits.measure_compile:
            self._load_compiler()
            self._warm_up = CompilerWarmUp(self.workers, self.cache)

    def _wait_for_compiler(self) -> None:
        if self._warm_up is not None:
            doing("building what torch.compile needs, once")
            self._warm_up.wait()

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Build many candidates ahead, in one go; a judgement then finds them in the cache."""
        self._builder.build([c for c in candidates if self._static_verdict(c) is None and kernels_of(c)])

    def build_ahead(self, candidate: Candidate) -> None:
        """Build ahead on a GPU's host; on a CPU, compilers would take the cores from what is being timed."""
        if self.device.backend == "cuda":
            self.prepare([candidate])

    def confirm_ahead(self, candidate: Candidate) -> None:
        """Build on a GPU's host what a confirmation will: the whole by one compiler, and a program for sanitizers."""
        if self.device.backend == "cuda":
            self._builder.whole(candidate)
            self._builder.checked(candidate)

    def examine_ahead(self, fp: FunctionalProblem) -> None:
        """Examine ahead on a GPU's host, as above; the GPU is computed on only while nobody times."""
        if self.device.backend == "cuda" and self.can_run:
            self.sessions.examine_ahead(fp)
            self.compile_ahead(fp)

    def compile_ahead(self, fp: FunctionalProblem) -> None:
        """Let torch.compile compile a problem ahead on a GPU's host, if its baseline is not known."""
        if not (self.device.backend == "cuda" and self.can_run and self.limits.measure_compile):
            return
        if not self._baseline_file(fp).is_file():
            self.sessions.compile_ahead(fp)

    def close(self) -> None:
        if self._warm_up is not None:
            self._warm_up.close()
        self.sessions.close()
        self._builder.close()
        if not self._parents_are_lent:
            self.workers.close()
            self._candidate_workers.close()

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_judge(
    backend: Backend,
    *,
    limits: Limits | None = None,
    cache_dir: Path | None = None,
    at_other_sizes: AtOtherSizes | None = None,
) -> LocalJudge:
    """Start the warm parents and look at the device. Raises MachineError (no compiler, no GPU and no nvcc).

    `at_other_sizes` finds the same problem at other sizes (`functional.sizes`); without it those checks are left out.
    """
    doing("starting the judge")
    cache = (cache_dir or default_cache()).resolve()  # children have another working folder
    gpu = gpu_name() if backend == "cuda" else None
    tools = toolchain(f"sm_{gpu.split(',')[1].strip().replace('.', '')}" if gpu else "sm_90")
    builds = cache / "builds"
    builds.mkdir(parents=True, exist_ok=True)
    own = own_gpu() if gpu and not (limits and limits.every_gpu) else None
    workers = Workers(inductor_env(cache), preload=PRELOAD, own_gpu=own)
    boxed = limits is None or "sandbox" not in limits.without
    box = Sandbox((builds,), gpu=backend == "cuda", own_gpu=own) if boxed else None
    candidate_workers = Workers(preload=("rag_kernels.eval.children.candidate.worker",), sandbox=box, own_gpu=own)
    try:
        if backend == "cuda" and gpu is None and tools.nvcc is not None:
            device = absent_gpu()
        else:
            device = open_device(backend, workers, cache)
            if backend == "cuda":
                hardware(device, workers, cache)  # kept beside it, for `sample --target` elsewhere
    except BaseException:
        workers.close()
        candidate_workers.close()
        raise
    return LocalJudge(device, workers, candidate_workers, tools, limits or Limits(), cache, at_other_sizes)


def _hides(what: str) -> Rejected:
    why = f"{what}: code that is another one under sanitizers cannot be checked by them."
    return Rejected("hides_from_checks", why)


def inductor_env(cache: Path) -> dict[str, str]:
    """Return variables by which torch.compile keeps what it compiles under our cache.

    Candidates' workers do not get them.

    Torch looks for GPUs by NVML, which leaves the warm parent fit to be forked.
    """
    env = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    asked = os.environ.get(COMPILE_THREADS)
    return env | ({COMPILE_THREADS: asked} if asked else {})


def _torch_version() -> str:
    """Return Torch's version without importing it."""
    from importlib.metadata import version

    return version("torch")
