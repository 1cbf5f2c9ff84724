"""Judges on a Ray cluster, behind the same seam as the one on this machine.

Comes in: an address (`ray` starts a Ray here, or joins the one that RAY_ADDRESS names) and what the judges are to be.
Goes out: a `ClusterJudge`, which judges as many candidates at once as the cluster has GPUs, or shares of cores. Every
judge is an actor that opens a `LocalJudge` on its host. Nothing of an archive, and no key, goes to them.

Ray is imported when a cluster is opened, and not before.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any

from rag_kernels.cluster.dispatcher import AHEAD, Dispatcher
from rag_kernels.cluster.records import Job, LostError
from rag_kernels.cluster.remote_judge import About, Fault, JudgeSpec, RemoteJudge
from rag_kernels.eval.build.compile import COMPILER_ENV
from rag_kernels.eval.judge import More, nothing_more
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import gpu_count, threads
from rag_kernels.eval.places import ROOT
from rag_kernels.eval.process.sandbox import allowed_env
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend, Candidate, FunctionalProblem, Judged, MachineError
from rag_kernels.ingest.functional.functionalize import open_workers

log = logging.getLogger(__name__)

POLL_S = 0.1
CLOSE_S = 10.0
LINE_CHARS = 400
OBJECT_STORE_BYTES = 100 << 20  # sources and verdicts are small
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is told to anybody
    "RAY_memory_monitor_refresh_ms": "0",  # the judge limits memory itself, and says who took it
    "RAY_worker_niceness": "0",  # by default 15: whatever else runs on the host would come before what is timed
    "RAY_prestart_worker_first_driver": "0",  # there are as many processes as judges
}


HOST_GONE = ("node has died", "node was")  # in Ray's words


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to Ray and return the module. For `ray` without RAY_ADDRESS a Ray is started here, and stopped at the
    end.

    Raises MachineError when Ray is not installed or cannot be reached.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    try:
        ray = import_module("ray")
    except ImportError:
        why = "--cluster needs Ray: run `pip install 'rag-kernels[ray]'`, here and on all hosts."
        raise MachineError(why) from None
    if ray.is_initialized():  # by the caller, who ends it too
        yield ray
        return
    named = _named(address)
    folder = "" if named else tempfile.mkdtemp(prefix="ray-")
    ours: dict[str, Any] = {
        "num_cpus": threads(),
        "num_gpus": gpu_count(),
        "include_dashboard": False,
        "_temp_dir": folder,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",  # nobody else can reach it
    }
    try:
        with _bare_environment():
            ray.init(named or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if named else ours))
    except Exception as error:
        raise MachineError(f"Ray cannot be reached at {named or 'this host'}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _named(address: str) -> str:
    """Return the address of the cluster to join; empty for one that is to be started here."""
    return os.environ.get("RAY_ADDRESS", "") if address == "ray" else address


@contextmanager
def _bare_environment() -> Iterator[None]:
    """Set what a Ray that is started here inherits: no keys, and the way to our packages."""
    before = dict(os.environ)
    kept = [name for name in before if name in COMPILER_ENV or name.startswith("RAY_") or name == "RAG_KERNELS_CACHE"]
    path = [str(ROOT), *filter(None, before.get("PYTHONPATH", "").split(os.pathsep))]
    bare = allowed_env() | {name: before[name] for name in kept}
    os.environ.clear()
    os.environ.update(bare | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path))})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class RayJudgePool:
    """Start actors: one for each GPU of the cluster, or for each share of `cpus` cores, `most` of them at most."""

    def __init__(self, ray: Any, wanted: JudgeSpec, *, most: int | None = None) -> None:
        self._ray, self._most = ray, most
        self._gpus = 1 if wanted.backend == "cuda" else 0
        if wanted.cpus <= 0:  # an equal share for each GPU of a host, or a host's all
            shares = [cpus // (gpus if self._gpus else 1) for cpus, gpus in self._hosts()]
            wanted = replace(wanted, cpus=max(1, min(shares, default=1)))
        self._wanted = wanted

    def _hosts(self) -> list[tuple[int, int]]:
        """Return (cores, GPUs) of each host that can have a judge."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        counts = [(int(host.get("CPU", 0)), int(host.get("GPU", 0))) for host in alive]
        return [(cpus, gpus) for cpus, gpus in counts if gpus or not self._gpus]

    def wanted(self) -> int:
        each = self._wanted.cpus
        room = sum(min(gpus, cpus // each) if self._gpus else cpus // each for cpus, gpus in self._hosts())
        return room if self._most is None else min(room, self._most)

    def start(self) -> RayJudgeHandle:
        remote = self._ray.remote(RemoteJudge).options(
            num_cpus=self._wanted.cpus,
            num_gpus=self._gpus,
            max_concurrency=AHEAD + 2,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        return RayJudgeHandle(self._ray, remote.remote(self._wanted))


class RayJudgeHandle:
    """Control one actor, with its answers as futures of ours."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def open(self) -> Future[About | Fault]:
        return self._future(self._actor.open.remote())

    def build(self, candidate: Candidate) -> None:
        self._actor.build.remote(candidate)

    def judge(self, problem: FunctionalProblem, candidate: Candidate, confirm: bool) -> Future[Judged | Fault]:
        return self._future(self._actor.judge.remote(problem, candidate, confirm))

    def end(self) -> None:
        with suppress(Exception):  # it is gone already
            self._ray.kill(self._actor)

    def close(self) -> None:
        with suppress(Exception):  # it hangs, or is gone
            self._ray.get(self._actor.close.remote(), timeout=CLOSE_S)
        self.end()

    def _future(self, reference: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        reference.future().add_done_callback(partial(self._pass_on, answer))
        return answer

    def _pass_on(self, answer: Future[Any], said: Future[Any]) -> None:
        error, errors = said.exception(), self._ray.exceptions
        if error is None:
            answer.set_result(said.result())
        elif isinstance(error, errors.RayTaskError):
            answer.set_result(Fault("other", str(error.cause)))
        elif isinstance(error, errors.ActorUnavailableError):  # process, host or network: Ray knows when it has looked
            self._actor.here.remote().future().add_done_callback(partial(self._explain, answer, error))
        else:
            answer.set_exception(_lost(error))

    def _explain(self, answer: Future[Any], first: BaseException, said: Future[Any]) -> None:
        error = said.exception()
        if isinstance(error, self._ray.exceptions.ActorDiedError):
            answer.set_exception(_lost(error))
        else:  # it is there again, or cannot be reached: what became of the judgement nobody knows
            answer.set_exception(LostError(_line(first), host_too=True))


def _lost(error: BaseException) -> LostError:
    words = _line(error)
    return LostError(words, host_too=getattr(error, "preempted", False) or any(sign in words for sign in HOST_GONE))


def _line(error: BaseException) -> str:
    """Return Ray's message on one line, without the numbers of its processes and its advice."""
    said = [line.strip() for line in str(error).splitlines() if not line.startswith("\t")]
    return " ".join(said).split(" Some common causes")[0][:LINE_CHARS]


class ClusterJudge:
    """Judge on all hosts. `workers` are of this host, for what a search does besides: functionalizing."""

    def __init__(self, dispatcher: Dispatcher, about: About, workers: Workers, *, expected: int = 1) -> None:
        self._dispatcher = dispatcher
        self.expected = expected  # how many judges there is room for
        self.device, self.can_run = about.device, about.can_run
        self.facts, self.room_bytes = about.facts, about.room_bytes
        self.workers = workers

    @property
    def places(self) -> int:
        """Return how many candidates are judged at once now."""
        return max(1, self._dispatcher.judges)

    def judge(
        self, fp: FunctionalProblem, candidates: Sequence[Candidate], more: More = nothing_more
    ) -> Iterator[tuple[Candidate, Judged]]:
        """Judge all at once; yield each verdict when it is there. `more` is asked for others ten times a second."""
        finished: SimpleQueue[Job] = SimpleQueue()
        open_jobs: set[Job] = set()

        def end(job: Job, _: Future[Judged]) -> None:
            finished.put(job)

        def begin(new: Sequence[Candidate]) -> None:
            for candidate in new:
                job = self._dispatcher.submit(fp, candidate)
                open_jobs.add(job)
                job.answer.add_done_callback(partial(end, job))

        begin(candidates)
        try:
            while open_jobs:
                with suppress(Empty):
                    job = finished.get(timeout=POLL_S)
                    open_jobs.remove(job)
                    yield job.candidate, job.answer.result()
                begin(more())
        finally:
            for job in open_jobs:
                job.answer.cancel()

    def build_ahead(self, candidate: Candidate) -> None:
        """Do nothing: what is to be judged is queued at once, and built where it is judged."""

    def examine_ahead(self, fp: FunctionalProblem) -> None:
        """Do nothing, for the same reason."""

    def confirm(self, fp: FunctionalProblem, candidate: Candidate) -> Judged:
        return self._dispatcher.submit(fp, candidate, confirm=True).answer.result()


@contextmanager
def open_cluster(
    address: str,
    *,
    backend: Backend | None = None,
    limits: Limits | None = None,
    cache: str = "",
    cpus: int = 0,
    most: int | None = None,
) -> Iterator[ClusterJudge]:
    """Connect, start judges, and wait for the first. `backend` None: CUDA if any host of the cluster has a GPU.

    Raises MachineError when the cluster cannot be reached, or has no GPU for CUDA.
    """
    with connected(address) as ray:
        chosen = backend or ("cuda" if ray.cluster_resources().get("GPU") else "cpu")
        if chosen == "cuda" and not ray.cluster_resources().get("GPU"):
            if not _named(address):
                raise MachineError("There is no NVIDIA GPU here: name a cluster that has some, or use --device cpu.")
            log.warning("No host of the cluster has a GPU that Ray knows of (`ray status`): waiting for one.")
        pool = RayJudgePool(ray, JudgeSpec(chosen, limits or Limits(), cpus, cache), most=most)
        dispatcher = Dispatcher(pool, build_ahead=chosen == "cuda")
        try:
            log.info("Waiting for the first of %d judges.", pool.wanted())
            about = dispatcher.ready.result()
            with open_workers() as workers:
                yield ClusterJudge(dispatcher, about, workers, expected=max(1, pool.wanted()))
        finally:
            dispatcher.close()
