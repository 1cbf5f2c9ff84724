"""The judge: candidates in, verdicts out. It never imports candidate code and never lets it near an answer.

Three roles in separate processes: the judge (here: seeds, clock, expected outputs, verdicts), a reference worker
(`eval.reference`) and a candidate worker (`eval.candidate`), both forked from warm parents. Builds of a round run
together in one ninja graph; judging is one at a time per device, under a lock that other processes respect.
"""

from __future__ import annotations

import contextlib
import fcntl
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

from eval.baseline import baseline_file, open_baseline
from eval.build import BuildError, Built, Toolchain, build, default_cache, toolchain
from eval.device import absent_gpu, gpu_name, open_device, threads
from eval.limits import Limits
from eval.records import (
    Backend,
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
from eval.session import Session
from eval.tiers import Forbidden, check_composed, kernels_text
from eval.trial import Trial
from eval.workers import Workers

JUDGE_VERSION = "1"


class Judge(Protocol):
    """The seam: where candidates are judged."""

    device: Device

    def judge(self, fp: FunctionalProblem, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Judged]]:
        """Build all candidates together, then judge one after the other, yielding each as soon as it is done."""
        ...

    def confirm(self, fp: FunctionalProblem, candidate: Candidate) -> Judged:
        """Judge again in fresh processes with fresh seeds, against live eager and torch.compile."""
        ...


class LocalJudge:
    """Judges on this machine. Use `open_judge`; a context manager. One problem's session is kept warm."""

    def __init__(self, device: Device, workers: Workers, candidate_workers: Workers, tools: Toolchain,
                 limits: Limits, cache: Path) -> None:  # fmt: skip
        self.device, self.workers, self.limits, self.cache = device, workers, limits, cache
        self._candidate_workers, self._tools = candidate_workers, tools
        self._with_inductor: Workers | None = None
        self._session: Session | None = None
        self.environment = Environment(
            python=platform.python_version(), torch=_torch_version(), compiler=tools.version, threads=threads(),
            sandbox=("processes", "rlimits", "watchdog"), judge_version=JUDGE_VERSION,
        )  # fmt: skip

    @property
    def can_run(self) -> bool:
        """False on a machine that has a CUDA compiler but no GPU: candidates are compiled, never verified."""
        return self.device.backend == "cpu" or self.device.name != absent_gpu().name

    def judge(self, fp: FunctionalProblem, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Judged]]:
        checked = [(candidate, self._static_verdict(candidate)) for candidate in candidates]
        if self.can_run and self.limits.measure_compile and not self._baseline_file(fp).is_file():
            self._compile_workers()  # they start while the candidates are built
        started = perf_counter()
        to_build = [c for c, verdict in checked if verdict is None and _kernels(c)]
        sources = [(_kernels(c), c.backend) for c in to_build]
        results = dict(zip(to_build, build(sources, tools=self._tools, cache=self.cache), strict=True))
        build_s = perf_counter() - started
        for candidate, verdict in checked:
            yield candidate, self._judged(fp, candidate, verdict, results.get(candidate), build_s)

    def confirm(self, fp: FunctionalProblem, candidate: Candidate) -> Judged:
        started = perf_counter()
        source = _kernels(candidate)
        built = build([(source, candidate.backend)], tools=self._tools, cache=self.cache)[0] if source else None
        library = built.library if isinstance(built, Built) else None
        with self._device_lock(), self._new_session(fp, self._compile_workers()) as session:
            if self.limits.measure_compile:
                session.prepare_compile()
            with Trial(session, candidate, library) as trial:
                verdict = trial.run(None)
        return Judged(verdict, self.device, self.environment, {"confirm": perf_counter() - started})

    def _static_verdict(self, candidate: Candidate) -> Verdict | None:
        """What can be said before anything is built."""
        if candidate.backend != self.device.backend:
            why = f"This is {candidate.backend} code, judged with --device {self.device.backend}."
            return Rejected("wrong_backend", why)
        if candidate.tier == "composed":
            try:
                check_composed(candidate.source)
            except Forbidden as forbidden:
                return Rejected("outside_subset", str(forbidden))
        if candidate.tier == "module" and not self.can_run:
            return Compiled("There is no GPU here; a module candidate is built when it runs.")
        return None

    def _judged(self, fp: FunctionalProblem, candidate: Candidate, verdict: Verdict | None,
                built: Built | BuildError | None, build_s: float) -> Judged:  # fmt: skip
        stages = {"build": build_s}
        if verdict is None and isinstance(built, BuildError):
            verdict = BuildFailed(built.reason, built.log)
        if verdict is None and not self.can_run:
            verdict = Compiled("It compiles; there is no GPU here to verify it on.")
        if verdict is None:
            library = built.library if built is not None and isinstance(built, Built) else None
            with self._device_lock():
                started = perf_counter()
                session = self._open_session(fp)
                baseline = open_baseline(
                    self._baseline_file(fp), lambda: self._new_session(fp, self._compile_workers())
                )
                session.eager_estimate_s()
                stages["prepare"] = perf_counter() - started
                with Trial(session, candidate, library) as trial:
                    verdict = trial.run(baseline)
                stages |= trial.stage_s
        return Judged(verdict, self.device, self.environment, stages)

    def _baseline_file(self, fp: FunctionalProblem) -> Path:
        environment = f"{self.environment.torch} {threads()} {self.limits.measure_compile}"
        return baseline_file(fp, self.device, environment=environment, cache=self.cache)

    def _new_session(self, fp: FunctionalProblem, reference_workers: Workers) -> Session:
        ours, theirs = reference_workers, self._candidate_workers
        return Session(fp, workers=ours, candidate_workers=theirs, device=self.device, limits=self.limits)

    def _compile_workers(self) -> Workers:
        """A warm parent that has imported torch.compile's machinery too (seconds), started when first needed.

        Not on a GPU: those imports look for devices, and a process that has touched CUDA cannot be forked.
        """
        if self.device.backend == "cuda":
            return self.workers
        if self._with_inductor is None:
            heavy = ("torch._dynamo", "torch._inductor.compile_fx")
            self._with_inductor = Workers(inductor_env(self.cache), preload=heavy)
        return self._with_inductor

    def _open_session(self, fp: FunctionalProblem) -> Session:
        """The session for this problem, kept from the last candidate if it was for the same one."""
        if self._session is not None and self._session.fp.problem.id != fp.problem.id:
            self._session.close()
            self._session = None
        if self._session is None:
            self._session = self._new_session(fp, self.workers)
        return self._session

    @contextlib.contextmanager
    def _device_lock(self) -> Iterator[None]:
        """One timing at a time on a device, across processes."""
        folder = self.cache / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{self.device.key}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        for workers in (self.workers, self._candidate_workers, self._with_inductor):
            if workers is not None:
                workers.close()

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_judge(backend: Backend, *, limits: Limits | None = None, cache_dir: Path | None = None) -> LocalJudge:
    """Start the warm parents and look at the device. Raises MachineError (no compiler, no GPU and no nvcc)."""
    cache = cache_dir or default_cache()
    gpu = gpu_name() if backend == "cuda" else None
    tools = toolchain(f"sm_{gpu.split(',')[1].strip().replace('.', '')}" if gpu else "sm_90")
    tracer = ("torch._dynamo",) if backend == "cpu" else ()  # most problems need it; it may touch a GPU
    workers, candidate_workers = Workers(inductor_env(cache), preload=tracer), Workers()
    try:
        if backend == "cuda" and gpu is None and tools.nvcc is not None:
            device = absent_gpu()
        else:
            device = open_device(backend, workers, cache)
    except BaseException:
        workers.close()
        candidate_workers.close()
        raise
    return LocalJudge(device, workers, candidate_workers, tools, limits or Limits(), cache)


def inductor_env(cache: Path) -> dict[str, str]:
    """torch.compile keeps what it has compiled under our cache; candidates' workers do not hear of it."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}


def _kernels(candidate: Candidate) -> str:
    """The text that the compiler gets: the whole source, the KERNELS of a composed one, nothing for a module."""
    if candidate.tier == "kernel":
        return candidate.source
    return kernels_text(candidate.source) if candidate.tier == "composed" else ""


def _torch_version() -> str:
    """Torch's version without importing it."""
    from importlib.metadata import version

    return version("torch")

