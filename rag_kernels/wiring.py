"""The wiring: a writer, a judge, an archive and retrieval put together as the options say, or as they are handed in.

Comes in: `Options`, and what takes the place of a part. Goes out: a `Session`, or a part of one. What is opened here is
closed here. Knows nothing of terminals and environment variables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.store import open_archive
from rag_kernels.budget import Ledger
from rag_kernels.cluster.ray_judge import open_cluster
from rag_kernels.eval.judge import Judge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import gpu_name, known_devices, open_device, read_device
from rag_kernels.eval.machine.hardware import hardware, told_hardware
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.progress import doing
from rag_kernels.eval.records import Backend, BaselineTimes, Device, FunctionalProblem, MachineError, Problem
from rag_kernels.ingest.description.embedder import Embedder, load_embedder
from rag_kernels.ingest.description.pipeline import index_attempt
from rag_kernels.ingest.functional.functionalize import (
    PRELOAD,
    functionalize_as,
    functionalize_to_fit,
    open_workers,
    room_bytes,
    room_on,
)
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.llm.client import LLM, Completer
from rag_kernels.llm.novelty import Embed
from rag_kernels.llm.writer import LLMWriter, Style
from rag_kernels.long_runs.sampling import Sampler
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.options import OptionError, Options
from rag_kernels.records import Writer
from rag_kernels.retrieval.retriever import Retriever
from rag_kernels.retrieval.starter import stock
from rag_kernels.run.exemplars import Exemplars, Prover
from rag_kernels.run.session import Session
from rag_kernels.run.technique_cards import TechniqueCards

log = logging.getLogger(__name__)

HERE = "this machine"
STALE_S = 60.0  # a run hides its own kernels from retrieval, and those of others may come a little later


@contextmanager
def open_session(
    options: Options,
    *,
    writer: Writer | None = None,
    judge: Judge | None = None,
    archive: Archive | None = None,
    model: Completer | None = None,
    backend: Backend | None = None,
    counters: bool = False,
) -> Iterator[Session]:
    """Open what runs with these options share, and close it at the end.

    A `writer`, a `judge` or an `archive` that is handed in takes the place of the one that the options ask for. It
    belongs to the caller: it is not closed here, and an archive is taken as it is, without the kernels that a new one
    is stocked with. One writer serves all runs of the session; `Session.make_writer` may be replaced to make one for
    each. A judge keeps to limits of its own: precision and the cluster in the options are for the judge opened here.

    `model` stands in for all models of the LLM writer, and `backend` overrides the device that the options ask for.
    With `counters` verdicts tell what holds a kernel back, though no writer here reads it.
    """
    doing("opening the archive")
    embedder = load_embedder(options.embedder)
    mine = open_archive(options.archive or None) if archive is None else archive
    reads_feedback = bool(options.models) or writer is not None
    bench_for = (
        hand_in(judge) if judge is not None else open_bench(options, backend, counters=reads_feedback or counters)
    )
    with bench_for as bench:
        if archive is None:
            stock(mine, embedder)
        judge, archive = bench.judge, mine
        functionalize = partial(fitted, workers=bench.workers, max_bytes=bench.room_bytes)
        prove = None  # the offline writer only takes kernels over, and all that it takes over is judged
        if reads_feedback and bench.can_run:
            prove = Prover(archive, judge, functionalize)
        retriever = Retriever(archive, embedder, device_key=judge.device.key, stale_s=STALE_S)
        facts = bench.facts() if options.models and writer is None else ()
        tell_writer = cache(partial(_tell_writer, options))  # once, however many runs there are

        def make_writer(ledger: Ledger) -> Writer:
            if writer is not None:
                return writer
            if model is None:
                tell_writer()
            return open_writer(options, archive, ledger, facts=facts, embed=embedder.embed, model=model)

        yield Session(
            options=options,
            archive=archive,
            judge=judge,
            functionalize=functionalize,
            retrieve=Exemplars(retriever, options, judge.device, prove, reads_feedback),
            techniques=TechniqueCards(archive, options, judge.device),
            index=lambda attempt: index_attempt(archive, attempt, embedder),
            make_writer=make_writer,
            functionalize_as=partial(functionalize_as, workers=bench.workers, max_bytes=bench.room_bytes),
            at_once=bench.at_once,
        )


def stocked(options: Options, embedder: Embedder) -> Archive:
    """Open the archive that the options name, with the starter's kernels where it is new."""
    archive = open_archive(options.archive or None)
    stock(archive, embedder)
    return archive


def place_of(archive: Archive | str | Path | None) -> tuple[str, Archive | None]:
    """Return an archive that is named, and one that is open. Raises OptionError for what is neither."""
    if archive is None or isinstance(archive, str | Path):
        return str(archive or ""), None
    if not hasattr(archive, "record_attempt"):
        raise OptionError(f"archive={archive!r} is neither a folder, an address, ':memory:' nor an open archive.")
    return "", archive


def fitted(problem: Problem, *, workers: Workers, max_bytes: int, where: str = HERE) -> FunctionalProblem:
    """Return the functional form of a problem at sizes for which there is room, and say so where they are smaller."""
    form = functionalize_to_fit(problem, workers=workers, max_bytes=max_bytes, where=where)
    if form.problem.id != problem.id:
        log.warning("%s is %s.", problem.name, form.notice)
    return form


@dataclass(frozen=True, slots=True)
class Bench:
    """A judge, here or on a cluster, with what goes with it. `workers` are of this host."""

    judge: Judge
    workers: Workers
    can_run: bool
    room_bytes: int  # for the tensors of a problem
    facts: Callable[[], tuple[str, ...]]  # of its device
    at_once: int = 1  # candidates that it judges at once


@contextmanager
def hand_in(judge: Judge) -> Iterator[Bench]:
    """Open the bench of a judge that was handed in; nothing is known of its device but what the judge says."""
    with open_workers() as workers:
        yield Bench(judge, workers, True, room_bytes(judge.device.backend), lambda: ())


@contextmanager
def open_bench(options: Options, backend: Backend | None = None, *, counters: bool) -> Iterator[Bench]:
    """Open the judge that the options ask for; with `counters` it tells what holds a kernel back.

    `backend` overrides their device.
    """
    limits = Limits(precision=options.precision, max_autotune=options.max_autotune, ncu=counters)
    if options.cluster:
        chosen = backend or (None if options.device == "auto" else options.device)
        with open_cluster(
            options.cluster, backend=chosen, limits=limits, cache=options.cache, cpus=options.judge_cpus
        ) as far:
            yield Bench(far, far.workers, far.can_run, far.room_bytes, lambda: far.facts, far.expected)
        return
    device = backend or target_backend(options)
    room, cache_dir = room_bytes(device), Path(options.cache) if options.cache else None
    with open_judge(device, limits=limits, cache_dir=cache_dir, at_other_sizes=at_other_sizes) as judge:
        judge.workers.preload(*PRELOAD)
        judge.warm_up()
        facts = partial(hardware, judge.device, judge.workers, judge.cache)
        yield Bench(judge, judge.workers, judge.can_run, room, facts)


@contextmanager
def open_sampler(
    options: Options, target: Path | None = None, baselines: Mapping[str, BaselineTimes] | None = None
) -> Iterator[Sampler]:
    """Open what writing candidates takes, without a judge. `target` describes a device that is not here; `baselines`
    are times that were measured there, by the problem's id.
    """
    _tell_writer(options)
    embedder = load_embedder(options.embedder)
    archive = stocked(options, embedder)
    with open_workers() as workers:
        device = device_for(options, target, workers)
        room = room_on(device) if target else room_bytes(device.backend)  # of where it is judged
        here = Path(options.cache) if options.cache else default_cache()
        facts = told_hardware(device, known_devices().get(str(target).lower(), target).parent) if target else ()
        if options.models and target is None:
            facts = hardware(device, workers, here)
        retriever = Retriever(archive, embedder, device_key=device.key)
        yield Sampler(
            options=options,
            archive=archive,
            device=device,
            functionalize=partial(fitted, workers=workers, max_bytes=room, where=device.name if target else HERE),
            retrieve=Exemplars(retriever, options, device, for_reading=bool(options.models)),
            techniques=TechniqueCards(archive, options, device),
            make_writer=lambda ledger: open_writer(options, archive, ledger, facts=facts, embed=embedder.embed),
            baselines=baselines or {},
        )


def device_for(options: Options, target: Path | None, workers: Workers) -> Device:
    """Return the device that `target` describes, or the one here."""
    backend = target_backend(options)
    if target is None:
        if backend == "cuda" and gpu_name() is None:
            raise MachineError(
                "There is no GPU here to describe to the writer: name one with --target "
                f"({', '.join(known_devices())}), or copy devices/ from the cache of the machine that judges "
                "(~/.cache/rag-kernels there), and name its d_....json."
            )
        return open_device(backend, workers, Path(options.cache) if options.cache else default_cache())
    target = known_devices().get(str(target).lower(), target)
    try:
        device = read_device(target)
    except (OSError, ValueError, TypeError):
        known = ", ".join(known_devices())
        raise MachineError(
            f"{target} describes no device: name {known} or devices/d_....json of a judge's cache."
        ) from None
    if options.device not in ("auto", device.backend):
        raise MachineError(f"{target} describes a {device.backend} device, but --device says {options.device}.")
    return device


@contextmanager
def open_arms(options: Options, results: Path) -> Iterator[tuple[Archive, Callable[[Options], Session]]]:
    """Open the archive to retrieve from, as it is now, and return a maker of sessions over it that differ in retrieval.

    What they judge goes into the archive `results`; none of them sees what another wrote.
    """
    _tell_writer(options)
    embedder, device = load_embedder(options.embedder), target_backend(options)
    source, archive = stocked(options, embedder), open_archive(results)
    cache_dir, room = Path(options.cache) if options.cache else None, room_bytes(device)
    limits = Limits(precision=options.precision, max_autotune=options.max_autotune, ncu=bool(options.models))
    with open_judge(device, limits=limits, cache_dir=cache_dir, at_other_sizes=at_other_sizes) as judge:
        judge.workers.preload(*PRELOAD)
        functionalize = cache(partial(fitted, workers=judge.workers, max_bytes=room))
        retriever = Retriever(source, embedder, device_key=judge.device.key, fixed=True)
        facts = hardware(judge.device, judge.workers, judge.cache) if options.models else ()
        yield (
            source,
            lambda arm: Session(
                options=arm,
                archive=archive,
                judge=judge,
                functionalize=functionalize,
                retrieve=Exemplars(retriever, arm, judge.device, for_reading=bool(arm.models)),
                techniques=TechniqueCards(source, arm, judge.device),
                index=lambda attempt: None,
                make_writer=lambda ledger: open_writer(arm, archive, ledger, facts=facts, embed=embedder.embed),
            ),
        )


def open_writer(
    options: Options,
    archive: Archive,
    ledger: Ledger,
    *,
    facts: tuple[str, ...] = (),
    embed: Embed | None = None,
    model: Completer | None = None,
) -> Writer:
    """Return the LLM writer when models are named, else the offline writer.

    `facts` of the device are for prompts; `model` stands in for all models.
    """
    if not options.models:
        return OfflineWriter()
    style = Style(
        temperatures=options.temperatures,
        timeout_s=options.reply_seconds,
        hardware=facts,
        embed=embed,
        seed=options.seed,
        precision=options.precision,
    )
    if model is not None:
        return LLMWriter(model, options.models, style)
    llm = LLM(
        archive.record_call,
        ledger=ledger,
        api_base=options.api_base or None,
        reasoning_effort=options.reasoning_effort,
    )
    llm.require_prices(options.models)
    return LLMWriter(llm, options.models, style)


def _tell_writer(options: Options) -> None:
    """Say that no model writes, where none is named."""
    if not options.models:
        log.info("No model is configured: the offline writer works (--model or RAG_KERNELS_MODEL names an LLM).")


def target_backend(options: Options) -> Backend:
    """Return the device that the options ask for; `auto` is CUDA where there is a GPU."""
    if options.device == "auto":
        return "cuda" if gpu_name() else "cpu"
    return options.device


def possible_backends(options: Options) -> tuple[Backend, ...]:
    """Return the backends that kernels may be for; what a cluster runs is not known beforehand."""
    if options.device == "auto" and options.cluster:
        return ("cpu", "cuda")
    return (target_backend(options),)
