"""Many problems through the offline writer and the judge in little time: some processes prepare, others judge.

    python tests/bench/many_kernels.py plan jobs.jsonl PATH/level1 PATH/level2 --classes strict tf32 bfloat16
    python tests/bench/many_kernels.py plan jobs.jsonl PATH/level1 PATH/level2 --joint  # and gradients
    python tests/bench/many_kernels.py plan jobs.jsonl build/forms --confirm --mix
    python tests/bench/many_kernels.py plan jobs.jsonl build/pairs --confirm --tune vector=1 sharing=0 tensor=0
    python tests/bench/many_kernels.py sizes jobs.jsonl --work W --sizes S            # may be done where no GPU is
    python tests/bench/many_kernels.py prepare jobs.jsonl --work W --cache C          # as many as there are cores for
    python tests/bench/many_kernels.py judge jobs.jsonl --work W --cache C --out rows_1.jsonl   # a few a GPU
    python tests/bench/many_kernels.py archive rows_*.jsonl --out gpu.zip             # where duckdb is

What a judgement waits for and needs no turn on the GPU is done by processes of their own: the functional form, the
first draft, what nvcc makes of it and of its program for sanitizers, and torch.compile's cache. Judging processes take
what is prepared, in the order of the plan. Rows are as `offline_kernelbench` writes them, so that its tables and
`three_precisions` read them. A job with `confirm` is judged by a confirmation alone, with every check; `archive` makes
a bundle of what was confirmed. With `--tune` each problem's first draft is followed by the same with one parameter
changed, where that changes its text: a child of it, so that the bundle has pairs that differ in one technique, measured
beside each other. A kernel NAME.cu beside a problem NAME.py is judged in the place of a draft. `sizes` traces the
problems and looks for them at other sizes, which is half of a preparation, and keeps both: `prepare --sizes S` takes
them where its PyTorch is of the same version.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import logging
import os
import random
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from converted import converted
from gpu_room import Room
from offline_kernelbench import attempt, brief, claim, gpu_bytes, one_with_room, progress, summary, write_row
from offline_tables import Row, read, verified

from rag_kernels.archive.records import Edge
from rag_kernels.eval import codec
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import DEFENCES, Limits
from rag_kernels.eval.problem import find_problems
from rag_kernels.eval.records import Candidate, FunctionalProblem, ProblemError, bars
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.ingest.functional.functionalize import footprint, functionalize_to_fit
from rag_kernels.ingest.functional.passes import load_pass
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.offline.compose import write
from rag_kernels.offline.graph.rewrites import simplified
from rag_kernels.offline.tuning import describe, has_effect, parameters_in
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Draft

CLASSES = {"strict": (None, "strict"), "tf32": (None, "tf32"), "bfloat16": ("bfloat16", "strict")}
REFERENCE, SPARES = "rag_kernels.eval.children.reference.worker:serve_cuda", 4
LEAD = 24  # prepared and not taken: beyond it the cores are the judges'
CONTEXT = 700 << 20  # bytes of a GPU that a process takes before it has a tensor
EXAMINED_BYTES = 1 << 30  # of a footprint: what is larger is examined where it is judged
POLL_S = 0.05
SHOWN_TOKENS, AHEAD = 6000, 1.2  # what a prompt has room for; what a longer kernel has to be faster by
Job = dict[str, Any]
OtherSizes = tuple[FunctionalProblem | None, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("plan", "sizes", "prepare", "judge", "archive"))
    parser.add_argument("files", nargs="+", type=Path, help="the jobs, or rows; for a plan then folders of problems")
    parser.add_argument("--classes", nargs="+", choices=CLASSES, default=["strict"])
    parser.add_argument("--confirm", action="store_true", help="plan: by confirmations")
    parser.add_argument("--tune", nargs="*", default=[], metavar="NAME=VALUE", help="plan: children of the first draft")
    parser.add_argument("--joint", action="store_true", help="plan: each problem's forward and gradients, as one call")
    parser.add_argument("--in-order", action="store_true", help="plan: as the folders' order.txt has them")
    parser.add_argument("--mix", action="store_true", help="plan: between the jobs that are there, evenly")
    parser.add_argument("--sample", type=int, default=0, help="plan: so many problems of each folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-mib", type=int, default=3072, help="plan: of a problem's tensors; in 16 bits half of it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--work", type=Path, help="a folder by which processes share the work")
    parser.add_argument("--cache", type=Path)
    parser.add_argument(
        "--sizes", type=Path, help="a folder of functional forms and of other sizes, which `sizes` fills"
    )
    parser.add_argument("--room", type=Path, help="a file by which processes share the GPU's memory")
    parser.add_argument("--room-gib", type=float, default=60)
    parser.add_argument("--preload", nargs="*", default=[], help="modules that children find imported")
    parser.add_argument("--pairs", type=int, default=TimingRule().pairs)
    parser.add_argument("--burst-mib", type=int, default=8192, help="of a side's buffers in a burst of calls")
    parser.add_argument("--without", nargs="*", default=[], choices=DEFENCES, help="checks to leave out, to be quick")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after this many")
    parser.add_argument("--least", type=float, default=0.8, help="archive: speed-up over the better baseline")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    steps = {"plan": plan, "sizes": find_sizes, "prepare": prepare, "judge": judge, "archive": archive}
    steps[asked.step](asked)


# The plan


def plan(asked: argparse.Namespace) -> None:
    """Write the jobs: problems in a drawn order, of each all classes in a row, so that a cut leaves a sample of whole
    problems."""
    file, *folders = asked.files
    if asked.in_order:
        found = [(f.name, f / line) for f in folders for line in (f / "order.txt").read_text().split()]
    else:
        found = [(folder.name, f) for folder in folders for f in drawn(find_problems([folder]), asked)]
        random.Random(asked.seed).shuffle(found)
    new = [
        job(level, path, name, asked) | ({"tune": tune} if tune else {})
        for level, path in found
        for name in asked.classes
        for tune in ("", *asked.tune)
    ]
    old = read_jobs(file) if file.exists() else []
    jobs = evenly(old, new) if asked.mix else [*old, *new]
    file.write_text("".join(json.dumps(one | {"number": n}) + "\n" for n, one in enumerate(jobs)))
    print(f"{len(jobs)} jobs, {len(new)} of them new")


def drawn(files: Sequence[Path], asked: argparse.Namespace) -> Sequence[Path]:
    return random.Random(asked.seed).sample(sorted(files), min(asked.sample or len(files), len(files)))


def job(level: str, path: Path, name: str, asked: argparse.Namespace) -> Job:
    dtype, allowed = CLASSES[name]
    told = {"level": level, "file": str(path), "dtype": dtype, "allowed": allowed, "confirm": asked.confirm}
    told |= {"joint": True} if asked.joint else {}
    return told | {"max_mib": asked.max_mib // 2 if dtype else asked.max_mib}


def evenly(some: Sequence[Job], others: Sequence[Job]) -> list[Job]:
    """Return both in their own orders, one between the other as their numbers are."""
    places = [((i + 0.5) / len(jobs), n, j) for n, jobs in enumerate((some, others)) for i, j in enumerate(jobs)]
    return [j for _, _, j in sorted(places, key=lambda place: place[:2])]


def read_jobs(file: Path) -> list[Job]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# Other sizes


def find_sizes(asked: argparse.Namespace) -> None:
    """Look for other sizes of one problem after another, and keep them, until all are taken or time is up."""
    started = time.monotonic()
    with judges(asked) as known, tempfile.TemporaryDirectory() as folder:
        for one in read_jobs(asked.files[0]):
            if over(started, asked):
                break
            if not claim(asked.work / "claims", str(one["number"])):
                continue
            begun = time.monotonic()
            judge = known[one["allowed"], one["confirm"]]
            try:
                sizes_of(form_of(one, judge, Path(folder), asked.sizes), one, judge, asked.sizes)
            except Exception:  # which comes again when it is prepared
                logging.info("%s", traceback.format_exc()[-500:])
            print(f"{one['number']} {Path(one['file']).stem}: {time.monotonic() - begun:.1f} s", flush=True)


def sizes_of(fp: FunctionalProblem, one: Job, judge: LocalJudge, kept: Path | None) -> OtherSizes:
    """Return the problem at other sizes: those that are kept for this very form, or what is found, which is kept."""
    form = codec.dumps(fp)
    name = hashlib.sha256(f"{one['confirm']} {form}".encode()).hexdigest()[:24]
    if kept is not None and (file := kept / f"{name}.json").is_file():
        return tuple(codec.loads(file.read_text()))
    found = judge.sessions.find_sizes(fp, thorough=one["confirm"])
    if kept is not None:
        put(kept, name, codec.dumps(found))
    return found


# Processes that prepare


def prepare(asked: argparse.Namespace) -> None:
    """Take one job after another, until all are taken or time is up."""
    started = time.monotonic()
    room = Room(asked.room, int(asked.room_gib * 2**30))
    with judges(asked) as known, tempfile.TemporaryDirectory() as folder:
        for one in read_jobs(asked.files[0]):
            if over(started, asked):
                break
            if not claim(asked.work / "claims", str(one["number"])):
                continue
            while len(list((asked.work / "ready").glob("*.json"))) > LEAD and not over(started, asked):
                time.sleep(POLL_S)
            begun = time.monotonic()
            done = prepared(one, known[one["allowed"], one["confirm"]], room, Path(folder), asked)
            put(asked.work / "ready", f"{one['number']:05}", json.dumps(one | done))
            took = time.monotonic() - begun
            print(f"{one['number']} {Path(one['file']).stem}: {took:.1f} s {done['took']}", flush=True)


def over(started: float, asked: argparse.Namespace) -> bool:
    return bool(time.monotonic() - started > asked.seconds)


def form_of(one: Job, judge: LocalJudge, folder: Path, kept: Path | None) -> FunctionalProblem:
    """Return the functional form, at a size that fits: the one that is kept, or one that is traced now, and kept.

    Raises ProblemError where there is none.
    """
    path = converted(Path(one["file"]), one["dtype"], folder) if one["dtype"] else Path(one["file"])
    problem = load_pass(path, "training" if one.get("joint") else "forward")
    told = f"{judge.environment.torch} {one['max_mib']} {problem.source}"
    name = f"form_{hashlib.sha256(told.encode()).hexdigest()[:24]}"
    if kept is not None and (file := kept / f"{name}.json").is_file():
        known = codec.loads(file.read_text())
        assert isinstance(known, FunctionalProblem)
        return known
    found = functionalize_to_fit(problem, workers=judge.workers, max_bytes=one["max_mib"] << 20)
    if kept is not None:
        put(kept, name, codec.dumps(found))
    return found


def prepared(one: Job, judge: LocalJudge, room: Room, folder: Path, asked: argparse.Namespace) -> Job:
    """Return the functional form, or why there is none; what was built lies in the cache then."""
    took: dict[str, float] = {}
    try:
        with timed(took, "form"):
            fp = form_of(one, judge, folder, asked.sizes)
    except ProblemError as error:
        return {"problem": str(error), "took": took}
    except Exception:
        return {"problem": traceback.format_exc()[-1500:], "took": took}
    sizes: OtherSizes | None = None
    try:
        build(one, fp, judge, took)
        with timed(took, "sizes"):
            sizes = sizes_of(fp, one, judge, asked.sizes)
        with timed(took, "compile"), room.taken(CONTEXT + footprint(fp)):
            judge.compile_ahead(fp)
        if "admission" not in asked.without and footprint(fp) <= EXAMINED_BYTES:
            with timed(took, "examine"), room.taken(CONTEXT + 8 * footprint(fp)):
                judge.sessions.admission(fp)
    except Exception:  # which comes again when it is judged
        logging.info("%s", traceback.format_exc()[-500:])
    return {"problem": codec.dumps(fp), "sizes": codec.dumps(sizes), "formed": True, "took": took}


def build(one: Job, fp: FunctionalProblem, judge: LocalJudge, took: dict[str, float]) -> None:
    """Build what a judgement of the first draft will: for a confirmation the whole, and for the sanitizers."""
    with timed(took, "draft"):
        drafts = first_draft(one, fp, judge)
    for draft in drafts:
        with timed(took, "build"):
            if not one["confirm"]:
                judge.build_ahead(draft.candidate)
            elif draft.candidate.tier == "kernel":
                judge.confirm_ahead(draft.candidate)


def first_draft(one: Job, fp: FunctionalProblem, judge: LocalJudge) -> Sequence[Draft]:
    """Return the writer's, or the kernel that lies beside the problem; nothing where there is none."""
    beside = Path(one["file"]).with_suffix(".cu")
    if beside.is_file():
        return [Draft(Candidate(beside.read_text(), "kernel", "cuda"), idea="")]
    drafts = OfflineWriter().propose(brief(judge, fp, (), 1, search_of(one)))
    return drafts if "tune" not in one else [made for draft in drafts if (made := tuned(draft, fp, one["tune"]))]


def tuned(draft: Draft, fp: FunctionalProblem, tune: str) -> Draft | None:
    """Return a child of a draft with one parameter changed; None where that changes nothing in what it says."""
    name, value = tune.split("=")
    base = parameters_in(draft.candidate.source, draft.candidate.backend)
    if base is None:
        return None
    change: dict[str, Any] = {name: int(value)}
    changed = replace(base, **change)
    plan = write(simplified(fp)[0], changed)
    if plan is None or not has_effect(plan.candidate.source, draft.candidate.source):
        return None
    return Draft(plan.candidate, f"Tune: {describe(base, changed)}.", parents=((draft.candidate.id, "parent"),))


@contextlib.contextmanager
def timed(took: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    took[name] = round(took.get(name, 0.0) + time.monotonic() - started, 1)


def put(folder: Path, name: str, text: str) -> None:
    """Write it as one, so that who takes it finds it whole."""
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f"{name}.{os.getpid()}"
    staged.write_text(text)
    staged.rename(folder / f"{name}.json")


# Processes that judge


def judge(asked: argparse.Namespace) -> None:
    """Judge what is prepared, the first of the plan first, until all is judged or time is up."""
    started = time.monotonic()
    room = Room(asked.room, int(asked.room_gib * 2**30))
    jobs = read_jobs(asked.files[0])
    with judges(asked) as known, asked.out.open("a") as out:
        while not over(started, asked) and len(list((asked.work / "taken").glob("*.json"))) < len(jobs):
            if asked.device == "cuda":  # contexts are made while it waits, and while others are judged
                for known_one in itertools.islice(known.values(), 1):
                    known_one.workers.spare(REFERENCE, limit_address_space=False, count=SPARES)
            one = take(asked.work)
            if one is None:
                time.sleep(POLL_S)
                continue
            row: Row = {"level": one["level"], "name": Path(one["file"]).stem, "dtype": one["dtype"]}
            row |= {"allowed": one["allowed"], "confirm": one["confirm"], "number": one["number"]}
            row |= {key: one[key] for key in ("joint", "tune") if key in one}
            write_row(out, row | {"outcome": "begun"})
            row |= judged(known[one["allowed"], one["confirm"]], one, asked, room)
            write_row(out, row)
            print(progress(row), flush=True)


def take(work: Path) -> Job | None:
    """Return the first job that is ready, now this process's; None where there is none."""
    (work / "taken").mkdir(parents=True, exist_ok=True)
    for file in sorted((work / "ready").glob("*.json")):
        mine = work / "taken" / file.name
        with contextlib.suppress(FileNotFoundError):
            file.rename(mine)
            return dict(json.loads(mine.read_text()))
    return None


def judged(judge: LocalJudge, one: Job, asked: argparse.Namespace, room: Room) -> Row:
    formed: Future[FunctionalProblem] = Future()
    if "formed" in one:
        fp, sizes = codec.loads(one["problem"]), codec.loads(one["sizes"])
        if sizes is not None:
            judge.sessions.know_sizes(fp, sizes, thorough=one["confirm"])
        formed.set_result(fp)
    else:
        formed.set_exception(ProblemError(one["problem"]))
    if not one["confirm"]:
        return one_with_room(judge, formed, search_of(one, asked), room)
    started = time.monotonic()
    row: Row = {"gpu": judge.device.name, "torch": judge.environment.torch}
    try:
        fp = formed.result()
        row |= {"notice": fp.notice, "operators": sorted({n.op for n in fp.nodes if n.op != "getitem"})}
        with room.taken(gpu_bytes(fp, asked.burst_mib << 20)):
            row |= confirmed(judge, fp, one)
    except ProblemError as error:
        row |= {"outcome": "problem", "why": str(error)[:300]}
    except Exception:  # our own fault: it is counted and shown
        row |= {"outcome": "fault", "why": traceback.format_exc()[-1500:]}
    return row | {"seconds": round(time.monotonic() - started, 1)}


def confirmed(judge: LocalJudge, fp: FunctionalProblem, one: Job) -> Row:
    """Judge the first draft by a confirmation, if all of it is a kernel."""
    drafts = first_draft(one, fp, judge)
    draft = next((d for d in drafts if d.candidate.tier == "kernel"), None)
    if draft is None:
        why = "a kernel and library calls" if drafts else "no other text" if "tune" in one else "library calls alone"
        return {"outcome": "nothing written", "why": why}
    degenerate = judge.sessions.admission(fp).degenerate
    found = judge.confirm(fp, draft.candidate)
    child = draft.candidate.id
    parents = tuple(Edge(child, source, relation) for source, relation in draft.parents)
    made = replace(attempt(fp, draft, found, 1, 1), parents=parents)
    made = made if draft.idea else replace(made, writer="import")
    return summary([made]) | {"degenerate": degenerate}


def search_of(one: Job, asked: argparse.Namespace | None = None) -> argparse.Namespace:
    """Return one draft's search, as `offline_kernelbench` takes it."""
    known = {"rounds": 1, "width": 1, "enough": 1e9, "precision": one["allowed"], "dtype": one["dtype"]}
    given = {"without": asked.without, "room": asked.room, "burst_mib": asked.burst_mib} if asked else {}
    return argparse.Namespace(**known, **given)


Judges = dict[tuple[str, bool], LocalJudge]  # by the precision that is allowed, and whether by confirmations


@contextlib.contextmanager
def judges(asked: argparse.Namespace) -> Iterator[Judges]:
    """Open one judge for each kind of job; they share the warm parents. Confirmations leave nothing out."""
    cache = asked.cache.resolve() if asked.cache else None
    wanted = sorted({(one["allowed"], one["confirm"]) for one in read_jobs(asked.files[0])})
    found: Judges = {}
    with contextlib.ExitStack() as opened:
        for precision, confirm in wanted:
            limits = limits_of(precision, asked, confirm=confirm)
            if found:
                made = next(iter(found.values())).by_other_limits(limits, at_other_sizes)
            else:
                made = open_judge(asked.device, limits=limits, cache_dir=cache, at_other_sizes=at_other_sizes)
            found[precision, confirm] = opened.enter_context(made)
        for one in itertools.islice(found.values(), 1):
            one.workers.preload(*asked.preload)
        yield found


def limits_of(precision: str, asked: argparse.Namespace, *, confirm: bool) -> Limits:
    burst_bytes = asked.burst_mib << 20
    if confirm:
        timing = TimingRule(pairs=10, max_pairs=12, self_pairs=10, warm_pairs=5, burst_bytes=burst_bytes)
        return Limits(precision=precision, timing=timing, sanitizers_in_turn=False)
    few = min(7, asked.pairs)
    timing = TimingRule(pairs=asked.pairs, max_pairs=2 * asked.pairs, few_pairs=few, burst_bytes=burst_bytes)
    return Limits(precision=precision, without=frozenset(asked.without), timing=timing)


# The bundle


def archive(asked: argparse.Namespace) -> None:
    """Write a bundle of the kernels that were confirmed and are worth showing: near the better baseline at least, and
    where a prompt has no room for them ahead of it; and parents and children, which show what a technique is worth."""
    from rag_kernels.archive.bundle import export
    from rag_kernels.archive.memory import MemoryArchive
    from rag_kernels.archive.records import KernelFilter, Run
    from rag_kernels.export.evidence import unpacked
    from rag_kernels.run.standings import is_confirmed, now
    from rag_kernels.text.called import called_only
    from rag_kernels.text.tokens import estimate_tokens

    kept = MemoryArchive()
    run = Run("many_kernels", "grow", "", "{}", now())
    kept.start_run(run)
    confirmed = []
    for row in sorted(read(asked.files), key=lambda row: "tune" in row):  # parents first
        if not (verified(row) and row.get("confirm")) or row.get("degenerate") or any(map(bars, row["labels"])):
            continue
        found = unpacked(row["evidence"])
        if is_confirmed(found):
            confirmed.append((row, found))
    parents = {edge.source for _, found in confirmed for edge in found.parents}
    known = set[str]()
    for number, (row, found) in enumerate(confirmed, 1):
        fits = estimate_tokens(called_only(found.candidate.source)) <= SHOWN_TOKENS
        child = bool(found.parents) and all(edge.source in known for edge in found.parents)
        related = child or found.candidate.id in parents
        if related or row["speedup"] >= (asked.least if fits else AHEAD):
            found = found if child else replace(found, parents=())
            known.add(found.candidate.id)
            kept.record_attempt(replace(found, run_id=run.id, number=number, created_at=now()))
    kept.finish_run(run.id, "finished")
    print(json.dumps(export(kept, asked.out, KernelFilter(min_trust="confirmed"))))


if __name__ == "__main__":
    main()
