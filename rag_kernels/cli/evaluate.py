"""`rag-kernels eval`: judge a kernel from outside, or a batch of candidates that were sampled elsewhere."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rag_kernels.cli.generate import show_result, show_served, show_total, watch
from rag_kernels.cli.shared.busy import busy
from rag_kernels.cli.shared.common import (
    ArchivePlace,
    Backward,
    Cluster,
    DeviceChoice,
    Json,
    JudgeCpus,
    MaxAutotune,
    Precision,
    Shapes,
    Training,
    columns,
    emit,
    end_politely,
    read_options,
)
from rag_kernels.text.wording import broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rag_kernels.archive.records import Attempt
    from rag_kernels.eval.records import Judged, Problem
    from rag_kernels.eval.sizes.workloads import Workload
    from rag_kernels.options import Options
    from rag_kernels.run.session import Session
    from rag_kernels.run.workloads import Served


def evaluate(
    problem: Annotated[Path | None, typer.Argument(metavar="PROBLEM", help="A KernelBench file.")] = None,
    kernel: Annotated[
        Path | None, typer.Argument(metavar="KERNEL", help="A candidate of any tier: .cpp, .cu, or .py.")
    ] = None,
    batch: Annotated[
        Path | None, typer.Option("--batch", metavar="FILE", help="Judge what `rag-kernels sample` wrote, instead.")
    ] = None,
    verdicts: Annotated[
        Path | None,
        typer.Option("--verdicts", metavar="FILE", help="With --batch: write what came of it, for `sample --after`."),
    ] = None,
    device: DeviceChoice = None,
    confirm: Annotated[
        bool, typer.Option(help="Judge a passed kernel once more in a fresh process, as the archive's top tier asks.")
    ] = True,
    asm: Annotated[
        bool, typer.Option("--asm", help="Show what a .cpp or .cu kernel was compiled to, after the verdict.")
    ] = False,
    precision: Precision = "strict",
    max_autotune: MaxAutotune = False,
    backward: Backward = False,
    training: Training = False,
    shapes: Shapes = "",
    archive: ArchivePlace = None,
    cluster: Cluster = "",
    judge_cpus: JudgeCpus = 0,
    as_json: Json = False,
) -> None:
    """Judge a kernel: is it right, how fast is it, and how far from the physical floor. Or judge a batch of them.

    Example: rag-kernels eval examples/softmax_scale.py my_softmax.cpp

    Example: rag-kernels eval --batch candidates.jsonl
    """
    from rag_kernels.eval.sizes.workloads import read_shapes, workloads_of
    from rag_kernels.ingest.functional.passes import load_pass, pass_of

    options = read_options(
        device=device,
        archive=archive,
        precision=precision,
        max_autotune=max_autotune,
        cluster=cluster,
        judge_cpus=judge_cpus,
    )
    if batch is not None:
        if problem is not None:
            raise typer.BadParameter("--batch brings its problems along: name no PROBLEM beside it.")
        judge_batch(batch, options, confirm=confirm, as_json=as_json, verdicts=verdicts)
    if verdicts is not None:
        raise typer.BadParameter("--verdicts goes with --batch.")
    if problem is None or kernel is None:
        raise typer.BadParameter("Name a PROBLEM and a KERNEL, or a file with --batch.")
    with busy(f"reading {problem}"):
        loaded = load_pass(problem, pass_of(backward=backward, training=training))
    if workloads := read_shapes(shapes) if shapes else workloads_of(loaded):
        judge_all(loaded, workloads, kernel, options, confirm=confirm, as_json=as_json)
    judge_one(loaded, kernel, options, device, confirm=confirm, asm=asm, as_json=as_json)


def judge_one(
    loaded: Problem,
    kernel: Path,
    options: Options,
    device: str | None,
    *,
    confirm: bool,
    asm: bool,
    as_json: bool,
) -> NoReturn:
    """Judge one kernel. Messages of the compiler name the user's file, whose lines they count.

    `device` is what the command line says; what settings say is no reason to refuse a kernel of another backend.
    """
    with ExitStack() as opened:
        with busy(f"reading {kernel}"):
            from rag_kernels.eval.build.candidate_form import candidate_from_file
            from rag_kernels.llm.prompt_values import signature
            from rag_kernels.report.console import archived_line
            from rag_kernels.report.json_rows import result_row
            from rag_kernels.report.verdict import print_verdict
            from rag_kernels.run.standings import winner
            from rag_kernels.wiring import open_session, target_backend

            candidate = candidate_from_file(kernel, target_backend(options))
            if device not in (None, "auto", candidate.backend):
                raise typer.BadParameter(f"{kernel} is {candidate.backend} code, but --device says {device}.")
            if asm and candidate.tier != "kernel":
                raise typer.BadParameter("--asm shows .cpp and .cu kernels; this is a Python file.")
            end_politely()
            session = opened.enter_context(open_session(options, backend=candidate.backend))
        judging = session.evaluate(loaded, candidate, confirm=confirm)
        attempts, finished = watch(judging, loaded.name, as_json=as_json, brief=True)
        with busy("looking for the line that crashed"):
            site = crash_site(session, attempts)
    run_id = attempts[0].run_id if attempts else None
    row = result_row(attempts, run_id=run_id, problem=loaded.name)
    if site:
        row |= {"reason": f"{row['reason'].rstrip('.')}. {site}"}
    if candidate.tier == "kernel":
        row |= {key: naming(row[key], kernel) for key in ("reason", "log") if key in row}
    listing = assembly_of(attempts, options) if asm else ""
    if as_json:
        emit("result", row | ({"assembly": listing} if listing else {}))
    elif attempts:
        judged = attempts[-1].judged
        of_ours = candidate.tier == "kernel"
        call = signature(attempts[-1].problem, candidate.backend) if of_ours else ""
        print_verdict(judged_as(judged, kernel, site) if of_ours else judged, call, row["step"])
        print(broken(archived_line(row), columns(sys.stdout), hang=12))
        print(f"\n{listing}" if listing else "", end="\n" if listing else "")
    raise typer.Exit(130 if not finished else 0 if winner(attempts) else 1)


def naming(text: str, kernel: Path) -> str:
    """Return a compiler's message with the user's file in place of the copy that was compiled."""
    return re.sub(r"\bkernel\d*\.(?:cpp|cu)\b", str(kernel), text)


def judged_as(judged: Judged, kernel: Path, site: str) -> Judged:
    """Return a judgement whose messages name the user's file; of a crash, where in it that was."""
    from rag_kernels.eval.records import BuildFailed, Crashed

    verdict = judged.verdict
    if isinstance(verdict, BuildFailed):
        told = replace(verdict, reason=naming(verdict.reason, kernel), log=naming(verdict.log, kernel))
        return replace(judged, verdict=told)
    if isinstance(verdict, Crashed) and site:
        return replace(judged, verdict=replace(verdict, log=naming(site, kernel)))
    return judged


def crash_site(session: Session, attempts: Sequence[Attempt]) -> str:
    """Return where in the source a kernel crashed, as the address sanitizer says it; empty for anything else."""
    from rag_kernels.eval.judge import LocalJudge
    from rag_kernels.eval.records import Crashed

    if not attempts or not isinstance(session.judge, LocalJudge):
        return ""
    last = attempts[-1]
    verdict = last.judged.verdict
    if not isinstance(verdict, Crashed) or verdict.raised:
        return ""
    return session.judge.crash_site(last.problem, last.candidate)


def assembly_of(attempts: list[Attempt], options: Options) -> str:
    """Return the assembly of the kernel that was judged; empty where it did not build."""
    from rag_kernels.eval.instruments.assembly import assembly
    from rag_kernels.eval.places import default_cache
    from rag_kernels.eval.records import BuildFailed

    if not attempts or isinstance(attempts[-1].judged.verdict, BuildFailed):
        return ""
    candidate = attempts[-1].candidate
    return assembly(candidate.source, candidate.backend, Path(options.cache) if options.cache else default_cache())


def judge_all(
    problem: Problem,
    workloads: Sequence[Workload],
    kernel: Path,
    options: Options,
    *,
    confirm: bool,
    as_json: bool,
) -> NoReturn:
    """Judge one kernel at several sizes of a problem: a line each, and a total weighted by how often each comes.

    Exit code: 0 when it passed at all of them, 1 when not.
    """
    served: list[Served] = []
    with busy(f"reading {kernel}"), ExitStack() as opened:
        from rag_kernels.eval.build.candidate_form import candidate_from_file
        from rag_kernels.run.workloads import judge_workloads
        from rag_kernels.wiring import open_session, target_backend

        candidate = candidate_from_file(kernel, target_backend(options))
        end_politely()
        session = opened.enter_context(open_session(options, backend=candidate.backend))
        for one in judge_workloads(session, problem, workloads, candidate, confirm=confirm):
            served.append(one)
            show_served(one, as_json=as_json)
    passed = show_total(served, workloads=len(workloads), as_json=as_json)
    raise typer.Exit(0 if passed == len(workloads) else 1)


def judge_batch(
    batch: Path, options: Options, *, confirm: bool, as_json: bool, verdicts: Path | None = None
) -> NoReturn:
    """Judge the candidates of a file, problem after problem, or as many at once as there are judges.

    Each run is merged into the archive first, and what was judged before is not judged again. Sizes are those that the
    writer was told; a problem that is too large for this machine is passed over with a warning. What came of each run
    is written to `verdicts`, with what holds a kernel back where a model will read it.
    """
    from rag_kernels.long_runs.sampling import (
        built_ahead,
        judge_side_by_side,
        judge_what_fits,
        read_lines,
        write_verdicts,
    )
    from rag_kernels.report.json_rows import result_row
    from rag_kernels.run.session import run_setting
    from rag_kernels.run.standings import winner
    from rag_kernels.wiring import open_session

    sampled = read_lines(batch)
    read = verdicts is not None and any(run_setting(one.run, "models") for one in sampled)
    solved, done, finished = 0, 0, True
    if verdicts is not None:
        verdicts.write_text("")
    end_politely()
    with open_session(options, counters=read) as session, built_ahead(sampled, session.judge):
        if session.at_once > 1:
            together = judge_side_by_side(sampled, session, confirm=confirm)
            _, finished = watch(together, f"{len(sampled)} problems", as_json=as_json)
        for one in sampled:
            if session.at_once == 1:
                judging = judge_what_fits(one, session, confirm=confirm)
                _, finished = watch(judging, one.problem.name, as_json=as_json)
            attempts = session.archive.attempts(one.run.id)
            if verdicts is not None:
                write_verdicts(verdicts, one, attempts)
            show_result(result_row(attempts, run_id=one.run.id, problem=one.problem.name), as_json=as_json)
            solved += winner(attempts) is not None
            done += 1
            if not finished:
                print("Interrupted; the same command goes on.", file=sys.stderr)
                break
    if as_json:
        emit("summary", {"problems": len(sampled), "done": done, "verified": solved})
    else:
        print(f"{solved} of {len(sampled)} problems have a verified kernel.")
    raise typer.Exit(130 if not finished else 0 if solved else 1)
