"""The offline writer on KernelBench: what it verifies, and how fast that is beside eager and torch.compile.

    python tests/bench/offline_kernelbench.py PATH/level1 PATH/level2 --device cuda --out rows.jsonl [--part 1/4]
    python tests/bench/offline_kernelbench.py --table rows.jsonl [more.jsonl ...]

PATH is the folder KernelBench of a checkout. Every problem goes through the writer and the judge as in
`rag-kernels generate`, without an archive: one fused candidate or several, then --rounds rounds of tuning. Sizes are
the problem's own, or scaled down to --max-mib of tensors (a two-core machine: 256). Rows are appended to --out as they
come, and problems that are in it are left out, so that a run that was cut off goes on. --sample 20 takes twenty
problems of each folder, drawn by --seed; --dtype converts modules and floating inputs; --joint takes the forward and
the gradients of each problem as one. --part 2/4 takes every fourth problem; on a machine with several GPUs run a few
processes for each, with one --cache: they take turns in measuring.

--shuffle takes the problems of all folders in an order drawn by --seed, so that a run that was cut off has a sample of
them. Processes with one --claims FOLDER take the next problem that none of the same dtype and precision has taken.
Those with one --room FILE wait until the GPU has the memory that a problem may need (--room-gib for all of them), and
what met the end of the memory all the same is tried once more with twice the room.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TextIO

from converted import converted
from gpu_room import Room
from offline_tables import BEGUN, Row, read, tables

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.buffers.shared_arena import ITEM_BYTES, tensor_bytes
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import DEFENCES, Limits
from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.eval.records import FunctionalProblem, Judged, Passed, ProblemError, verdict_name
from rag_kernels.eval.sessions.problem_contents import DRAWS_GPU_BYTES, MOST_DRAWS, answer_bytes
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.export.evidence import packed
from rag_kernels.ingest.functional.functionalize import footprint, functionalize_to_fit, room_bytes
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.ingest.functional.training_step import training_step
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief, Draft, WriterError

CONTEXTS = 3 << 30  # bytes of a GPU that the processes of one judgement take before they hold a tensor
OUT_OF_MEMORY = (
    "out of memory",
    "OutOfMemoryError",
    "no room for memory",
    "too little free memory",
    "no device memory",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of problems, one a level")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=2, help="the first writes, the others tune")
    parser.add_argument("--width", type=int, default=4, help="candidates a round")
    parser.add_argument("--enough", type=float, default=1e9, help="no further round once the speed-up is this")
    parser.add_argument("--max-mib", type=int, default=0, help="scale problems down to this many MiB of tensors")
    parser.add_argument("--joint", action="store_true", help="each problem's forward and gradients, as one call")
    parser.add_argument("--dtype", help="convert modules and floating inputs to it")
    parser.add_argument("--sample", type=int, default=0, help="so many problems of each folder")
    parser.add_argument("--seed", type=int, default=1, help="what draws them")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--shuffle", action="store_true", help="all folders' problems in one drawn order")
    parser.add_argument("--claims", type=Path, help="a folder in which processes say what they have taken")
    parser.add_argument("--room", type=Path, help="a file by which processes share the GPU's memory")
    parser.add_argument("--room-gib", type=float, default=60, help="how much there is for all of them")
    parser.add_argument("--only", nargs="*", default=[], help="names that start so")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (to look at kernels)")
    parser.add_argument("--without", nargs="*", default=[], choices=DEFENCES, help="checks to leave out, to be quick")
    parser.add_argument("--pairs", type=int, default=TimingRule().pairs, help="timed pairs, interleaved")
    parser.add_argument("--burst-mib", type=int, default=8192, help="of a side's buffers in a burst of timed calls")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after this many")
    parser.add_argument("--precision", choices=("strict", "tf32", "any"), default="strict", help="for both sides")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("offline_kernelbench.jsonl"))
    parser.add_argument("--table", nargs="+", type=Path, help="print the tables of these files")
    parser.add_argument(
        "--degenerate-from",
        nargs="+",
        type=Path,
        default=[],
        help="rows of a run with admission, whose degenerate problems count so here too",
    )
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if asked.table:
        known = {(r["level"], r["name"]): r.get("degenerate") for r in read(asked.degenerate_from)}
        rows = read(asked.table)
        for row in rows:
            row["degenerate"] = row.get("degenerate") or known.get((row["level"], row["name"])) or ""
        print("\n".join(tables(rows)))
        return
    run(asked)
    print("\n".join(tables(read([asked.out]))))


def run(asked: argparse.Namespace) -> None:
    if asked.rounds < 1:
        raise SystemExit(f"--rounds {asked.rounds} judges nothing: the first round writes, so name 1 or more.")
    if asked.precision != "strict" and "admission" in asked.without:
        raise SystemExit("What an allowed precision may cost is measured by admission: leave it in.")
    started = time.monotonic()
    limits = Limits(
        precision=asked.precision,
        measure_compile=not asked.no_compile,
        without=frozenset(asked.without),
        timing=TimingRule(
            pairs=asked.pairs,
            max_pairs=2 * asked.pairs,
            few_pairs=min(7, asked.pairs),
            burst_bytes=asked.burst_mib << 20,
        ),
    )
    room = Room(asked.room, int(asked.room_gib * 2**30))
    with (
        tempfile.TemporaryDirectory() as folder,
        asked.out.open("a") as out,
        open_judge(asked.device, limits=limits, cache_dir=asked.cache, at_other_sizes=at_other_sizes) as judge,
        ThreadPoolExecutor(max_workers=1) as ahead,
    ):
        files = wanted(asked)
        if asked.dtype:
            files = ((level, converted(file, asked.dtype, Path(folder))) for level, file in files)
        for (level, file), prepared in read_ahead(files, judge, asked, ahead):
            if time.monotonic() - started > asked.seconds:
                break
            row = {"level": level, "name": file.stem, "dtype": asked.dtype, "allowed": asked.precision}
            row |= {"joint": True} if asked.joint else {}
            write_row(out, row | {"outcome": BEGUN})
            row |= one_with_room(judge, prepared, asked, room)
            write_row(out, row)
            print(progress(row), file=sys.stderr, flush=True)


def write_row(out: TextIO, row: Row) -> None:
    out.write(json.dumps(row) + "\n")
    out.flush()


def wanted(asked: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield level and file of each problem that is to be done, in order; those of others are left out."""
    part, parts = (int(n) for n in asked.part.split("/"))
    done = {(r["level"], r["name"]) for r in read([asked.out]) if r["outcome"] != BEGUN}
    files = [(folder.name, f) for folder in asked.folders for f in sampled(find_problems([folder]), asked)]
    if asked.shuffle:
        random.Random(asked.seed).shuffle(files)
    for level, file in files[part - 1 :: parts]:
        if (level, file.stem) in done or (asked.only and not any(file.stem.startswith(o) for o in asked.only)):
            continue
        kind = f"{asked.dtype} {asked.precision}{' joint' if asked.joint else ''}"
        if asked.claims is None or claim(asked.claims, f"{level} {file.stem} {kind}"):
            yield level, file


def claim(folder: Path, name: str) -> bool:
    """Say that one has taken it; False where another process was first."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def sampled(files: Sequence[Path], asked: argparse.Namespace) -> Sequence[Path]:
    """So many of the files as --sample asks for, in their order; all of them without it."""
    if not asked.sample:
        return files
    return sorted(random.Random(asked.seed).sample(sorted(files), min(asked.sample, len(files))))


def read_ahead(
    files: Iterable[tuple[str, Path]], judge: LocalJudge, asked: argparse.Namespace, pool: ThreadPoolExecutor
) -> Iterator[tuple[tuple[str, Path], Future[FunctionalProblem]]]:
    """The next problem's functional form is made, and its first drafts written and built, while the last one is judged.

    Not on a CPU, whose cores are timed.
    """
    limit = asked.max_mib << 20 if asked.max_mib else room_bytes(asked.device)

    def prepare(file: Path) -> FunctionalProblem:
        problem = load_problem(file)
        wanted = training_step(problem) if asked.joint else problem
        fp = functionalize_to_fit(wanted, workers=judge.workers, max_bytes=limit)
        if asked.device == "cuda":
            with suppress(Exception):  # which comes again when it is judged
                for draft in OfflineWriter().propose(brief(judge, fp, (), 1, asked)):
                    judge.build_ahead(draft.candidate)
        return fp

    if asked.device == "cpu":
        for place in files:
            yield place, pool.submit(prepare, place[1])
        return
    places = iter(files)
    coming = [(place, pool.submit(prepare, place[1])) for place in islice(places, 1)]
    while coming:
        coming += [(place, pool.submit(prepare, place[1])) for place in islice(places, 1)]
        yield coming.pop(0)


def one_with_room(judge: LocalJudge, prepared: Future[FunctionalProblem], asked: argparse.Namespace, room: Room) -> Row:
    """Judge the problem when there is room for it; once more, alone, where there was none all the same."""
    need = room.total
    with suppress(Exception):  # which `one` meets again
        need = gpu_bytes(prepared.result(), asked.burst_mib << 20)
    with room.taken(need):
        row = one(judge, prepared, asked)
        judge.sessions.close()
    if asked.room is None or not ran_out(row):
        return row
    with room.taken(2 * need):
        row = one(judge, prepared, asked)
        judge.sessions.close()
    return row | {"again": "out of memory"}


def gpu_bytes(fp: FunctionalProblem, burst_bytes: int) -> int:
    """Return about what judging a problem takes of a GPU: its tensors, the same in fp64 (twice what fp32 takes, four
    times what 16 bits do) for answers and for noise, draws with their answers, and buffers of both sides' bursts."""
    tensors = [*(a.spec for a in fp.tensors), *fp.outputs]
    least = min((ITEM_BYTES[s.dtype] for s in tensors if "float" in s.dtype), default=8)
    ends = sum(map(tensor_bytes, tensors))
    draws = min(DRAWS_GPU_BYTES, MOST_DRAWS * (ends + answer_bytes(fp)))
    bursts = 2 * min(burst_bytes, TimingRule().burst_calls * ends)
    return CONTEXTS + (1 + 2 * 8 // least) * footprint(fp) + draws + bursts


def ran_out(row: Row) -> bool:
    """Return whether memory was at an end, for the problem itself, a candidate or torch.compile."""
    told = [str(row.get(key, "")) for key in ("why", "refused", "compile_note")]
    return any(words in text for text in told for words in OUT_OF_MEMORY)


def one(judge: LocalJudge, prepared: Future[FunctionalProblem], asked: argparse.Namespace) -> Row:
    started = time.monotonic()
    row: Row = {"gpu": judge.device.name, "torch": judge.environment.torch, "allowed": asked.precision}
    try:
        fp = prepared.result()
        row |= {"notice": fp.notice, "operators": sorted({n.op for n in fp.nodes if n.op != "getitem"})}
        attempts = search(judge, fp, asked)
        row |= summary(attempts)
        row["degenerate"] = "" if "admission" in asked.without else judge.sessions.admission(fp).degenerate
    except (ProblemError, WriterError) as error:
        row |= {"outcome": "problem", "why": str(error)[:300]}
    except Exception:  # our own fault: it is counted and shown, and the night goes on
        row |= {"outcome": "fault", "why": traceback.format_exc()[-1500:]}
    return row | {"seconds": round(time.monotonic() - started, 1)}


def search(judge: LocalJudge, fp: FunctionalProblem, asked: argparse.Namespace) -> list[Attempt]:
    """Rounds of the offline writer, each judged whole."""
    attempts: list[Attempt] = []
    writer = OfflineWriter()
    for number in range(1, asked.rounds + 1):
        if number > 1 and not any(isinstance(a.judged.verdict, Passed) for a in attempts):
            break  # there is nothing to tune
        if (
            max(
                (a.judged.verdict.measurement.speedup for a in attempts if isinstance(a.judged.verdict, Passed)),
                default=0.0,
            )
            >= asked.enough
        ):
            break
        drafts = {d.candidate: d for d in writer.propose(brief(judge, fp, attempts, number, asked))}
        for candidate, judged in judge.judge(fp, list(drafts)):
            attempts.append(attempt(fp, drafts[candidate], judged, len(attempts) + 1, number))
    return attempts


def brief(
    judge: LocalJudge, fp: FunctionalProblem, attempts: Sequence[Attempt], number: int, asked: argparse.Namespace
) -> Brief:
    return Brief("bench", fp, judge.device, (), tuple(attempts), "", number, asked.width, precision=asked.precision)


def attempt(fp: FunctionalProblem, draft: Draft, judged: Judged, number: int, round_: int) -> Attempt:
    return Attempt(
        "bench",
        number,
        round_,
        fp,
        draft.candidate,
        judged,
        "offline",
        "",
        draft.idea,
        (),
        (),
        (),
        0.0,
        sum(judged.stage_s.values()),
        "",
        draft.note,
    )


def summary(attempts: Sequence[Attempt]) -> Row:
    """The fastest that passed with a kernel of its own, or what became of the first."""
    if not attempts:
        return {"outcome": "nothing written", "why": "library calls alone, or random numbers"}
    passed = [(a.judged.verdict, a) for a in attempts if isinstance(a.judged.verdict, Passed)]
    row: Row = {
        "candidates": len(attempts),
        "codes": [" ".join(sorted(codes(a.judged.verdict))) for a in attempts],
        "refused": [repr(v)[:600] for v in (a.judged.verdict for a in attempts) if not isinstance(v, Passed)],
        "stage_s": [{k: round(v, 2) for k, v in a.judged.stage_s.items()} for a in attempts],
    }
    if not passed:
        verdict = attempts[0].judged.verdict
        first = attempts[0]
        why = {"why": repr(verdict)[:1500], "note": first.note, "tier": first.candidate.tier}
        return row | {"outcome": verdict_name(verdict), **why}
    verdict, best = min(passed, key=lambda pair: pair[0].measurement.candidate_us)
    m = verdict.measurement
    return row | {
        "outcome": "passed",
        "label": verdict.label,
        "precision": verdict.precision,
        "labels": list(verdict.labels),
        "claims": verdict.claims_speed,
        "tier": best.candidate.tier,
        "note": best.note,
        "idea": best.idea,
        "candidate_us": m.candidate_us,
        "first_us": passed[0][0].measurement.candidate_us,
        "eager_us": m.eager_us,
        "compile_us": m.compile_us,
        "floor_us": m.floor_us,
        "eager": m.speedup_eager.median,
        "compile": m.speedup_compile.median if m.speedup_compile else None,
        "speedup": m.speedup,
        "compile_note": m.compile_note[:200],
        "source": best.candidate.source,
        "evidence": packed(best),
    }


def progress(row: Row) -> str:
    head = f"{row['level']}/{row['name'][:40]}: {row['outcome']}, {row['seconds']} s"
    if row["outcome"] != "passed":
        return f"{head}: {row.get('why', '')[:300]}"
    compiled = f"{row['compile']:.2f}" if row["compile"] else "none"
    return (
        f"{head}, {row['tier']}, {row['candidate_us'] / 1e3:.3f} ms (first {row['first_us'] / 1e3:.3f}), eager "
        f"{row['eager']:.2f}x, compile {compiled}x, floor {row['floor_us'] / row['candidate_us']:.0%}, "
        f"{' '.join(row['labels'])} {row['note']}"
    )


if __name__ == "__main__":
    main()
