"""Candidates written in one place and judged in another: what arrives, and what a kill in between costs."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cli_home
import pytest
from factories import attempt, device, problem, run
from killed_run import RELU, REPLIES, session

from rag_kernels.archive.audit import verify
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Exemplar
from rag_kernels.budget import Ledger
from rag_kernels.eval.machine.device import known_devices, read_device
from rag_kernels.eval.machine.hardware import told_hardware
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import MachineError, Passed, ProblemError
from rag_kernels.ingest.functional.functionalize import functionalize_as
from rag_kernels.long_runs.sampling import (
    Sampler,
    built_ahead,
    judge_sampled,
    judge_side_by_side,
    judge_what_fits,
    mend,
    read_baselines,
    read_lines,
    read_verdicts,
    told_where,
    write_line,
    write_verdicts,
)
from rag_kernels.options import Options
from rag_kernels.records import Budget, Gained, Learnt, Shown, WriterError
from rag_kernels.scripted import ScriptedJudge
from rag_kernels.wiring import device_for, open_sampler, open_session, open_writer


def sampler(folder: Path, archive: MemoryArchive, **changes: object) -> Sampler:
    """With an exemplar of another problem in its archive, and the real LLM writer."""
    known = attempt("earlier", 1)
    archive.start_run(run("earlier"))
    archive.record_attempt(known)
    kernel = archive.kernel(known.candidate.id)
    assert kernel is not None
    made = session(folder, 0.0)
    values = {
        "options": made.options,
        "archive": archive,
        "device": device(),
        "functionalize": made.functionalize,
        "retrieve": lambda functional, attempts: (Shown(Exemplar(kernel.id, 1, 0.9, ("similar",)), kernel),),
        "make_writer": partial(open_writer, made.options, archive),
    }
    return Sampler(**{**values, **changes})  # type: ignore[arg-type]


def test_what_was_sampled_is_judged_elsewhere_with_its_whole_lineage(tmp_path: Path) -> None:
    here, there, file = MemoryArchive(), MemoryArchive(), tmp_path / "candidates.jsonl"
    write_line(file, sampler(tmp_path, here).sample(RELU.problem, 3, Ledger(Budget())))
    assert json.loads(file.read_text())["candidates"] == 3

    [sampled] = read_lines(file)

    def never(*_: object) -> list[Shown]:
        raise AssertionError("nobody writes here, so nothing is to be retrieved")

    elsewhere = replace(session(tmp_path, 0.0), archive=there, retrieve=never)
    judged = list(judge_sampled(sampled, elsewhere))
    assert len({a.candidate.id for a in judged}) == 3 and judged[-1].note.startswith("confirmation")
    assert all(a.writer == "llm" and a.model and a.call_ids for a in judged[:3])
    assert {e.relation for a in judged for e in a.parents} == {"retrieved"}
    assert there.calls(sampled.run.id) == list(sampled.calls) and len(sampled.calls) == 4
    shown = there.kernel(judged[0].exemplars[0].kernel_id)
    assert shown is not None and shown.trust == "claimed"
    assert verify(there) == []
    assert list(judge_sampled(sampled, elsewhere)) == []  # the same file again
    assert there.runs()[0].status == "finished"


def test_later_problems_of_a_batch_are_examined_and_built_ahead(tmp_path: Path) -> None:
    made, judge = sampler(tmp_path, MemoryArchive()), ScriptedJudge()
    problems = [replace(RELU.problem, source=f"{RELU.problem.source}# {number}\n") for number in range(3)]
    sampled = [made.sample(one, 2, Ledger(Budget())) for one in problems]
    with built_ahead(sampled, judge):
        pass
    later = {d.candidate.id for one in sampled[1:] for told in one.told for d in told.drafts or ()}
    assert later and set(judge.built) <= later
    with built_ahead(sampled, judge):
        end = time.monotonic() + 60
        while (set(judge.built) != later or len(set(judge.examined)) < 2) and time.monotonic() < end:
            time.sleep(0.01)
    assert set(judge.built) == later
    assert set(judge.examined) == {one.problem.id for one in sampled[1:]}


def test_several_runs_of_a_batch_are_judged_side_by_side(tmp_path: Path) -> None:
    there, made = MemoryArchive(), sampler(tmp_path, MemoryArchive())
    problems = [RELU.problem, replace(RELU.problem, source=RELU.problem.source + "# another\n")]
    sampled = [made.sample(one, 2, Ledger(Budget())) for one in problems]
    at_once = threading.Barrier(2)  # a candidate of each is under the judge before the next of any
    calls = count()
    judge = ScriptedJudge(before=lambda c: next(calls) < 2 and at_once.wait(60))
    elsewhere = replace(session(tmp_path, 0.0), archive=there, judge=judge, at_once=2)
    judged = list(judge_side_by_side(sampled, elsewhere, confirm=False))
    assert {a.run_id for a in judged} == {one.run.id for one in sampled} and len(judged) == 4
    assert {r.status for r in there.runs()} == {"finished"}


def test_a_killed_sampling_goes_on_with_the_replies_that_it_has(tmp_path: Path) -> None:
    class Broken:
        name = "llm"

        def propose(self, brief: object) -> list[object]:
            made.make_writer(Ledger(Budget())).propose(brief)  # type: ignore[arg-type]
            raise KeyboardInterrupt

    made = session(tmp_path, 0.0)
    archive = made.archive
    broken = sampler(tmp_path, archive, make_writer=lambda ledger: Broken())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        broken.sample(RELU.problem, 3, Ledger(Budget()))
    asked = len((tmp_path / REPLIES).read_text().splitlines())
    sampled = replace(broken, make_writer=made.make_writer).sample(RELU.problem, 3, Ledger(Budget()))
    assert len(sampled.drafts) == 3 and len((tmp_path / REPLIES).read_text().splitlines()) == asked == 4


def test_a_line_that_was_cut_short_is_left_out_and_written_over(tmp_path: Path) -> None:
    file = tmp_path / "candidates.jsonl"
    write_line(file, sampler(tmp_path, MemoryArchive()).sample(RELU.problem, 1, Ledger(Budget())))
    whole = file.read_text()
    file.write_text(whole + whole[:100])
    assert len(read_lines(file)) == 1 and len(mend(file)) == 1 and file.read_text() == whole
    file.write_text('{"problem": "p"}\n')
    with pytest.raises(ProblemError, match="is not what `rag-kernels sample`"):
        read_lines(file)


@pytest.mark.parametrize("content", [b"my notes", b"\xff\xfe", b"my notes\n"])
def test_a_file_of_somebody_elses_is_no_line_that_was_cut_short(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_bytes(content)
    for read in (read_lines, mend, read_verdicts):
        with pytest.raises(ProblemError, match=r"Line 1 of .*notes is not what"):
            read(file)
    assert file.read_bytes() == content


def test_no_candidate_is_an_error_and_nothing_is_finished(tmp_path: Path) -> None:
    archive = MemoryArchive()
    spent = Ledger(Budget(tokens=1))
    with pytest.raises(WriterError, match="budget of 1 tokens"):
        sampler(tmp_path, archive).sample(RELU.problem, 1, spent)
    assert next(r for r in archive.runs() if r.command == "sample").status == "interrupted"


def test_a_device_that_is_not_here_is_described_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "d_1.json"
    file.write_text(json.dumps({"backend": "cuda", "name": "H", "arch": "sm_90", "bandwidth_gbs": 1, "fp32_gflops": 1}))
    workers: Workers = None  # type: ignore[assignment]  # nothing is measured
    device = device_for(Options(device="cuda"), file, workers)
    assert device.name == "H" and told_hardware(device, tmp_path) == ()
    (tmp_path / f"{device.key}.hardware.json").write_text('{"multi_processor_count": 132, "warp_size": 32}')
    assert told_hardware(device, tmp_path) == ("132 SMs", "warps of 32")
    with pytest.raises(MachineError, match="describes a cuda device, but"):
        device_for(Options(device="cpu"), file, workers)
    file.write_text("{}")
    with pytest.raises(MachineError, match="describes no device"):
        device_for(Options(device="cuda"), file, workers)


WIDE = """
import torch

ROWS = 1 << 20
COLUMNS = 4096

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]

def get_init_inputs():
    return []
"""


def test_the_sizes_that_the_writer_was_told_are_judged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The target is small, the machines that sample and judge are not: both heed the target's sizes, and say so."""
    wide, target, file = problem_from_source("wide", WIDE), tmp_path / "d_1.json", tmp_path / "c.jsonl"
    small = replace(device(), machine="model 1-1-1, 2 cores, 1 MiB of cache, 2 GiB")
    target.write_text(json.dumps(asdict(small)))
    options = Options(archive=str(tmp_path / "here"), device="cpu", examples=0)
    with open_sampler(options, target) as made:
        write_line(file, made.sample(wide, 1, Ledger(Budget())))
    [sampled] = read_lines(file)
    promised = sampled.told[0].brief.problem
    assert sampled.problem_id == wide.id != sampled.problem.id and sampled.notice == promised.notice
    assert (
        promised.notice.startswith("scaled down to fit Test CPU (2 threads): ROWS=") and promised.notice in caplog.text
    )

    judge, there = ScriptedJudge(), MemoryArchive()
    with open_session(options, judge=judge, archive=there) as session:
        [judged, *_] = judge_what_fits(sampled, session)
        assert judged.problem == promised
        assert f"{promised.notice}; it is judged at these sizes." in caplog.text
        cramped = replace(session, functionalize_as=partial(functionalize_as, workers=None, max_bytes=1 << 10))
        assert list(judge_what_fits(replace(sampled, run=replace(sampled.run, id="r_2")), cramped)) == []
        assert "judge it where there is more memory" in caplog.text and there.run_status("r_2") == "interrupted"


def test_a_bare_name_is_a_target_and_measured_baselines_stand_in_the_first_prompt(tmp_path: Path) -> None:
    """Neither needs the GPU here: what is known of it came with the package, and times from the machine that judges."""
    wide = problem_from_source("wide", WIDE)
    rows = [{"problem_id": wide.id, "eager_us": 200.0, "compile_us": 100.0}, {"problem_id": "p", "eager_us": None}]
    (tmp_path / "times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    times = read_baselines(tmp_path / "times.jsonl")
    assert list(times) == [wide.id]
    program = tmp_path / "assistant.sh"
    program.write_text("cat > /dev/null; printf 'Idea: one pass\n```cuda\n// k\n```\n'\n")
    options = Options(models=(f"cmd:sh {program}",), archive=str(tmp_path / "a"), device="cuda", examples=0)
    with open_sampler(options, Path("H200"), times) as made:
        sampled = made.sample(wide, 1, Ledger(Budget(rounds=1)))
    [call] = sampled.calls
    for told in ("NVIDIA H200 (sm_90a)", "132 SMs", "eager 200 us, torch.compile 100 us", "4226.4 GB/s"):
        assert told in call.prompt, told
    assert sampled.drafts[0].idea == "one pass" and sampled.drafts[0].candidate.backend == "cuda"
    with pytest.raises(MachineError, match="h200"), open_sampler(options, Path("h900")):
        pass


def test_a_run_goes_on_at_the_sizes_that_it_began_with(tmp_path: Path) -> None:
    made = session(tmp_path, 0.0, rounds=1)
    run = made.new_run("generate", RELU.problem)
    list(made.generate(RELU.problem, run))
    other = replace(made, functionalize=lambda given: problem("tanh"), functionalize_as=lambda told: told)
    more = replace(other, options=replace(made.options, rounds=2))
    assert {a.problem for a in more.generate(RELU.problem, run)} == {RELU}


def test_a_run_goes_on_from_verdicts_made_elsewhere(tmp_path: Path) -> None:
    """Two round-trips between a machine with the model and one with the judge: parents and history go along."""
    here, there, made = MemoryArchive(), MemoryArchive(), session(tmp_path, 0.0)
    written = sampler(tmp_path, here).sample(RELU.problem, 4, Ledger(Budget()))
    judge = replace(made, archive=there)
    first = list(judge_sampled(written, judge))
    file = tmp_path / "verdicts.jsonl"
    write_verdicts(file, written, there.attempts(written.run.id))

    [verdicts] = read_verdicts(file)
    other = sampler(tmp_path, MemoryArchive())  # which has never seen the run
    more = other.go_on(verdicts, 4, Ledger(Budget()))
    assert more.run == written.run and [t.brief.round for t in more.told] == [1, 2] and more.told[0] == written.told[0]
    assert [a.candidate.id for a in more.told[1].brief.attempts] == [a.candidate.id for a in first]
    notes = {d.note.split()[0] for d in more.told[1].drafts or ()}
    assert notes & {"improves", "repairs", "combines"} and any(d.parents for d in more.told[1].drafts or ())
    again = other.go_on(verdicts, 4, Ledger(Budget()))
    assert again.drafts == more.drafts  # what nobody has judged is not asked for again
    told = [replace(one, gained=Gained(Learnt("wider loads pay"))) for one in written.told]
    here_too = told_where(Learnt("wider loads pay"), told, other.device)
    elsewhere = told_where(Learnt("wider loads pay"), told, replace(other.device, name="Another"))
    assert [here_too.lessons, elsewhere.lessons] == ["wider loads pay", f"(on {other.device.name}) wider loads pay"]

    second = list(judge_sampled(more, judge))
    assert {a.round for a in second} == {2} and len({a.candidate.id for a in second}) == len(more.told[1].drafts or ())
    assert [a.number for a in there.attempts(written.run.id)] == list(range(1, len(first) + len(second) + 1))
    assert verify(there) == []


def test_a_file_of_verdicts_is_told_from_others(tmp_path: Path) -> None:
    file = tmp_path / "candidates.jsonl"
    write_line(file, sampler(tmp_path, MemoryArchive()).sample(RELU.problem, 1, Ledger(Budget())))
    with pytest.raises(ProblemError, match=r"not what `rag-kernels eval --batch --verdicts`"):
        read_verdicts(file)


def test_the_round_trip_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(cli_home.RELU.problem.source)
    sources = (cli_home.RIGHT, cli_home.WRONG, cli_home.SLOW)
    named = cli_home.model(tmp_path / "m", *sources)
    asked = ("--model", named, "--samples", "2", "--retrieval", "off", "--archive", tmp_path / "a", "--json")
    judged = ("--archive", tmp_path / "b", "--no-confirm", "--json")

    def rows(*command: str | Path, kind: str) -> list[dict[str, Any]]:
        done = cli_home.inside(tmp_path, *command, quick=True)
        return [row for row in done.rows if row["type"] == kind]

    assert rows("sample", "relu.py", *asked, "--out", "c.jsonl", kind="sampled")[0]["candidates"] == 2
    first = rows("eval", "--batch", "c.jsonl", *judged, "--verdicts", "v.jsonl", kind="attempt")
    assert {row["verdict"] for row in first} == {"passed", "wrong"}
    [told] = read_verdicts(tmp_path / "v.jsonl")  # for a model: a GPU's counters are asked for
    assert all("counters" in a.judged.stage_s for a in told.attempts if isinstance(a.judged.verdict, Passed))
    text = (tmp_path / "v.jsonl").read_text()
    (tmp_path / "v.jsonl").write_text(
        text + text
    )  # files of several judges put together: the last line of a run counts
    [more] = rows("sample", "--after", "v.jsonl", *asked, "--out", "d.jsonl", kind="sampled")
    assert more["state"] == "sampled" and more["candidates"]
    [again] = rows("sample", "--after", "v.jsonl", *asked, "--out", "d.jsonl", kind="sampled")
    assert again["state"] == "there already" and again["candidates"] == more["candidates"]
    second = rows("eval", "--batch", "d.jsonl", *judged, kind="attempt")
    assert [row["round"] for row in second] == [2] and second[0]["run_id"] == first[0]["run_id"]
    for wrong in (("sample", "--out", "x"), ("sample", "relu.py", "--after", "v.jsonl", "--out", "x")):
        assert cli_home.inside(tmp_path, *wrong).code == 2
    silent = ("--model", "cmd:true", *asked[2:-1], "--out", "e.jsonl")
    done = cli_home.inside(tmp_path, "sample", "relu.py", *silent)
    assert (
        done.code == 1
        and "relu: failed, 0 candidates\n  The model answered the request for ideas with nothing" in done.out
    )
    assert "0 candidates in e.jsonl: there is nothing to judge yet" in done.out


@pytest.mark.parametrize("name", known_devices())
def test_devices_that_came_with_the_package_bring_their_rates_and_facts(name: str) -> None:
    device = read_device(known_devices()[name])
    assert name.upper() in device.name and min(device.bandwidth_gbs, device.fp16_gflops, device.fp8_gflops) > 1000
    assert "132 SMs" in " ".join(told_hardware(device, known_devices()[name].parent))
