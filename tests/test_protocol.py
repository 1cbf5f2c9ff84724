"""What the judge and its workers say to each other, and that no text which a candidate wrote decides anything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from factories import passed
from judging import verdict
from support.kept import kept_judge, kept_workers

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import plain
from rag_kernels.eval.buffers.shared_arena import Arena, ArenaLayout
from rag_kernels.eval.children.candidate.bound_buffers import laid_otherwise
from rag_kernels.eval.children.gpu.shared_memory import NotShared
from rag_kernels.eval.children.reference import worker as reference
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.full_memory import ran_out_of_memory
from rag_kernels.eval.messages.protocol import (
    UnknownRequest,
    candidate_opening,
    candidate_request,
    module_call,
    numbered,
    reference_opening,
    reference_request,
    reply_to,
)
from rag_kernels.eval.messages.to_both import Done, MemoryTaken, Settle, Shared, TellMemory, TellShared, Unsupported
from rag_kernels.eval.messages.to_candidate import (
    Bind,
    Binding,
    Burst,
    Call,
    CallByThreads,
    CallCounted,
    CallCrossed,
    Called,
    CallFirst,
    CallHalves,
    CallHeldUp,
    CallInTurn,
    CallOn,
    CallOnFirst,
    CallOnForms,
    CallTogether,
    CallWithin,
    CandidateCode,
    CandidateReply,
    CandidateRequest,
    ComposeContents,
    Counted,
    DeviceMemory,
    EndProcess,
    GivenTensor,
    Hashed,
    HashInputs,
    HashOutputs,
    Held,
    HoldDraw,
    InContent,
    JoinExchange,
    LaunchGraph,
    ModuleCall,
    Mute,
    OpenCandidate,
    Profile,
    ProfileCall,
    Pull,
    Pulled,
    Ready,
    RecordCalls,
    Recorded,
    RecordGraph,
    RefusedCalls,
    StateLeft,
    Strided,
    TellDeviceMemory,
    TellState,
    UseThreads,
)
from rag_kernels.eval.messages.to_reference import (
    Answered,
    AskForProbes,
    BringDraw,
    CallVariant,
    Checked,
    CheckOutputs,
    Comparison,
    CompileAhead,
    ComputeAnswer,
    Drawn,
    EmptyExchange,
    Exchanged,
    MakeDraw,
    OfferDraw,
    Opened,
    OpenReference,
    PrecisionShown,
    PrepareVariant,
    Probes,
    ReadyVariant,
    ReferenceReply,
    ReferenceRequest,
    ShowPrecision,
    TakeOutputs,
    Timed,
    TookOutputs,
    WriteContent,
)
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.channel import Failed, failure_in
from rag_kernels.eval.process.workers import Worker, WorkerFailed
from rag_kernels.eval.records import Candidate, Crashed, FunctionalProblem, Passed, TensorSpec
from rag_kernels.eval.sessions.candidate_failure import failure_verdict, room_is_ours
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.timing.baseline import NOT_ASKED
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.trial.trial import Trial
from rag_kernels.ingest.functional.functionalize import functionalize

PROBLEM = """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(sizes[0]))

    def forward(self, x):
        return torch.relu(x * self.weight)

def get_inputs():
    return [torch.randn(ROWS, 64)]

def get_init_inputs():
    return [[64]]
"""
MODULE = """import os
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        assert type(sizes) is list, "constructor inputs come as they are"
        self.weight = nn.Parameter(torch.ones(sizes[0]))

    def forward(self, x):
        BEFORE
        return (x * self.weight).clamp(min=0)
"""
QUICK = Limits(
    load_s=30,
    call_s=8,
    memory_bytes=1 << 30,
    measure_compile=False,
    timing=TimingRule(pairs=5, max_pairs=5, timed_s=0.01),
)
ROWS = TensorSpec((96, 64), "float32")
LAYOUT = ArenaLayout((ROWS, TensorSpec((64,), "float32")), tight=True)
TOLD = Binding(
    arguments=(InContent(0), 2.5, None),
    constants=(1, 0.5, True),
    keywords=(("dim", -1), ("stride", (2, 2))),
    leaves=(InContent(0), Unsupported("tensor")),
    init_inputs="[[64]]",
    held=(Held(1, "weight", "parameter"),),
    seed=7,
    beside=0,
)
TO_CANDIDATE: tuple[CandidateRequest, ...] = (
    Call(0),
    CallCounted(0),
    Ready((0,)),
    Burst((0, 0)),
    Bind(TOLD, LAYOUT, LAYOUT, writable=False, strided="exchanged", like=0, shared_bytes=4096),
    HoldDraw(0, 1),
    JoinExchange(0, 4096),
    ComposeContents((0,), (plain(0, 2),), (255,), cold=True),
    ComposeContents((0,), (plain(0, 2),), (255,), cold=False, late=1, watched=True),
    Pull(0),
    HashOutputs(0),
    HashInputs(0),
    UseThreads(1),
    CallHalves(0),
    CallOnForms(0, ((4, 0),), ((4,),)),
    CallWithin(0, "flushing"),
    CallOn(0, 2, 1.0),
    CallTogether((0, 0), 2),
    CallInTurn((0, 0), 2),
    CallHeldUp(0, 0),
    CallCrossed(0, 0, 0),
    RecordGraph(0),
    LaunchGraph(),
    CallFirst(0, 0),
    CallByThreads(0, 500, 0.3),
    CallOnFirst(0, (0, 2), (0,), (64, 7, 31), 0.3),
    Mute("the first"),
    RecordCalls(0),
    ProfileCall(0),
    Settle(),
    TellMemory(),
    TellState(),
    TellDeviceMemory(),
    TellShared(0),
    EndProcess(7),
)
TO_REFERENCE: tuple[ReferenceRequest, ...] = (
    MakeDraw(3, "own", LAYOUT),
    MakeDraw(3, "numbers of its own", LAYOUT, 2, (0.5,), (7, 100)),
    BringDraw(0, LAYOUT),
    EmptyExchange(),
    OfferDraw(0),
    TakeOutputs(keep=True),
    WriteContent(plain(0, 2)),
    ReadyVariant(cold=False, calls=2),
    CallVariant("eager", 2),
    PrepareVariant("eager"),
    CompileAhead(),
    ComputeAnswer(0, noisy=True),
    CheckOutputs(0, None, (64.0, 256.0)),
    ShowPrecision(0, None),
    AskForProbes(),
    Settle(),
    TellMemory(),
    TellShared(),
)
REPLIES: tuple[CandidateReply | ReferenceReply | Opened, ...] = (
    Done(),
    Opened("[[64], 0.1]", (1, None, "same", Unsupported("tensor of shape (3,)"))),
    Drawn((True, False)),
    Exchanged(4096),
    TookOutputs(3, "ab"),
    Answered("own dtype", True, float("inf"), (1e-9, float("inf"))),
    Checked((Comparison(True, 1.0, "", 0.5), Comparison(False, float("inf"), "at 0"))),
    PrecisionShown("tf32", 1e-4),
    Probes(("exact products",)),
    Timed(1e-3, 1e-5, late=True),
    Pulled((((3, 4), "float32", "cpu"), ((), "int64", "cpu")), True, False),
    Hashed("ab"),
    DeviceMemory(4096),
    Recorded("", "too much"),
    Profile({"aten::mul": 3.5}, ("a.so",), ()),
    MemoryTaken(4096),
    StateLeft(True, False, True),
    Shared(("output 0 and itself",)),
    Called(2, False),
    RefusedCalls(16),
    Counted(1e-3),
)


def sent(value: Any) -> Any:
    return json.loads(json.dumps(codec.encode(value)))


def test_the_samples_are_all_that_there_are() -> None:
    assert {type(r) for r in TO_CANDIDATE} == set(get_args(CandidateRequest))
    assert {type(r) for r in TO_REFERENCE} == set(get_args(ReferenceRequest))
    assert {type(r) for r in REPLIES} == {Opened, *get_args(CandidateReply), *get_args(ReferenceReply)}
    for request in (*TO_CANDIDATE, *TO_REFERENCE):
        assert "`" in (type(request).__doc__ or ""), "a request says what comes back"
        assert "number" not in codec.encode(request), "a candidate's messages bear one"


@pytest.mark.parametrize("request_", TO_CANDIDATE, ids=lambda r: type(r).__name__)
def test_a_request_to_a_candidate_comes_as_it_was_sent(request_: CandidateRequest) -> None:
    assert candidate_request(json.loads(json.dumps(numbered(request_, 7)))) == (7, request_)


@pytest.mark.parametrize("request_", TO_REFERENCE, ids=lambda r: type(r).__name__)
def test_a_request_to_the_reference_comes_as_it_was_sent(request_: ReferenceRequest) -> None:
    assert reference_request(sent(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda r: type(r).__name__)
def test_a_reply_is_read_as_what_was_asked_for(reply: CandidateReply) -> None:
    assert reply_to(3, type(reply), sent(reply) | {"number": 3}) == reply
    other = Hashed if type(reply) is Done else Done
    for bad in (sent(reply), sent(reply) | {"number": 4}, sent(reply) | {"number": 3, "more": 1}):
        with pytest.raises(codec.Malformed):
            reply_to(3, type(reply), bad)
    with pytest.raises(codec.Malformed):
        reply_to(3, other, sent(reply) | {"number": 3})


def test_openings_come_as_they_were_sent() -> None:
    code = CandidateCode("kernel", "source", "/a.so", "")
    opening = OpenCandidate("cpu", 2, code, True)
    assert candidate_opening(json.loads(json.dumps(numbered(opening, 0)))) == opening
    call = ModuleCall("cpu", code, TOLD, (GivenTensor(ROWS, "AAAA"),))
    assert module_call(codec.dumps(call)) == call


@pytest.mark.parametrize(
    "reply",
    [
        5,
        None,
        [None] * 9,
        {},
        {"_": "Pulled", "number": 1, "form": None, "intact": True, "arithmetic": True},
        {"_": "Pulled", "number": 1, "form": [[["3"], "float32", "cpu"]], "intact": True, "arithmetic": True},
        {"_": "Pulled", "number": 1, "form": [], "intact": 1, "arithmetic": True},
        {"_": "Pulled", "number": 1, "form": [{"_": "Candidate"}], "intact": True, "arithmetic": True},
        {"_": "Passed", "number": 1},
        {"_": ["Pulled"], "number": 1},
    ],
    ids=str,
)
def test_what_a_candidate_sends_instead_is_no_reply(reply: Any) -> None:
    assert failure_in(reply) is None
    with pytest.raises(codec.Malformed):
        reply_to(1, Pulled, reply)


def test_a_failure_is_one_of_those_that_a_worker_may_tell() -> None:
    assert failure_in(sent(Failed("raised", "no", alive=True))) == Failed("raised", "no", alive=True)
    for bad in ({"kind": "timed_out"}, {"text": 5}, {"alive": "yes"}, {"signal": 31}):
        assert failure_in(sent(Failed("raised", "no", alive=True)) | bad) is None


# Real workers


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=QUICK) as opened:
        yield opened


@pytest.fixture(scope="module")
def problem(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("scale", PROBLEM.replace("ROWS", "96")), workers=judge.workers)


def module(before: str = "pass") -> Candidate:
    return Candidate(MODULE.replace("BEFORE", before), "module", "cpu")


ON_GPU_ALONE = (
    *(HoldDraw, JoinExchange, ComposeContents, EmptyExchange, OfferDraw, TakeOutputs, BringDraw),
    *(CallInTurn, CallHeldUp, RecordGraph, LaunchGraph, TellDeviceMemory),
)


def answered(worker: Worker, message: Any, fds: tuple[int, ...]) -> Any:
    """The reply, or a failure of a worker that goes on."""
    try:
        return worker.request(message, deadline_s=60, fds=fds)
    except WorkerFailed as failure:
        assert failure.alive and failure.kind == "raised", failure
        assert "unreachable" not in failure.message and "UnknownRequest" not in failure.message
        return None


AFTER_ALL = [request for request in TO_CANDIDATE if not isinstance(request, EndProcess)]


@pytest.mark.parametrize("first", AFTER_ALL, ids=lambda r: type(r).__name__)
def test_a_candidates_worker_has_an_answer_for_every_request(
    judge: LocalJudge, problem: FunctionalProblem, first: CandidateRequest
) -> None:
    """Beside what only a GPU's can do, and what its tier has not."""
    with judge.sessions.new(problem) as session, LoadedCandidate(session, module(), None) as subject:
        place = subject.bind(session)
        subject.prepare(place, session.random_recipe())
        subject.call(place)
        fds: tuple[int, ...] = ()
        if isinstance(first, Bind):
            content, outputs = session.content.describe(), ArenaLayout(problem.outputs)
            told = replace(TOLD, leaves=(InContent(0),))
            first = replace(first, binding=told, content=content, outputs=outputs, shared_bytes=None)
            fds = (session.content.fd, Arena(problem.outputs).fd)
        reply = answered(subject.worker, numbered(first, 99), fds)
        assert (reply is None) == isinstance(first, (*ON_GPU_ALONE, Mute, RecordCalls, CallHalves, CallOnForms))
        assert reply is None or reply["number"] == 99
        assert subject.call(place) > 0


@pytest.mark.parametrize(("fault", "told"), [("pass", ""), ("ctypes.string_at(0)", "it was killed by SIGSEGV")])
def test_a_candidates_process_ends_as_a_programs_does(
    judge: LocalJudge, problem: FunctionalProblem, fault: str, told: str
) -> None:
    late = f"import ctypes; ended = ctypes.CFUNCTYPE(None)(lambda: {fault if told else 'None'})"
    before = f"{late}; ModelNew.ended = ended; ctypes.CDLL(None)['__cxa_atexit'](ended, None, None)"
    with judge.sessions.new(problem) as session, LoadedCandidate(session, module(before), None) as subject:
        subject.prepare(place := subject.bind(session), session.random_recipe())
        subject.call(place)
        assert subject.end() == told


LEFT_FOR_THE_END = """
#include <stdlib.h>
#include <unistd.h>
static void say(const char* what) { (void)!write(1, what, 1); }
static void registered(void) { say("r"); }
__attribute__((destructor)) static void last(void) { say("l"); }
void leave(void) { atexit(registered); }
"""


def test_a_process_ends_with_what_a_library_left_and_nothing_that_was_there_before(tmp_path: Path) -> None:
    library = str(tmp_path / "left.so")
    subprocess.run(["cc", "-xc", "-shared", "-fPIC", "-", "-o", library], input=LEFT_FOR_THE_END.encode(), check=True)
    others = "others = ctypes.CFUNCTYPE(None)(lambda: os.write(1, b'o')); libc['__cxa_atexit'](others, None, None)"
    code = (
        "import ctypes, os; libc = ctypes.CDLL(None); "
        "from rag_kernels.eval.children.candidate.process_end import end_after; "
        f"{others}; end_after({library!r}); ctypes.CDLL({library!r}).leave(); libc.exit(7)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("rl", 7), ended.stderr


@pytest.mark.parametrize("draws", [False, True])
def test_numbers_that_calls_take_of_the_generator_are_seen(
    judge: LocalJudge, problem: FunctionalProblem, draws: bool
) -> None:
    before = "torch.rand(1)" if draws else "pass"
    with judge.sessions.new(problem) as session, LoadedCandidate(session, module(before), None) as subject:
        subject.prepare(place := subject.bind(session), session.random_recipe())
        subject.call(place)
        subject.bind(session)  # which draws parameters itself
        assert subject.state().generator is not draws


@pytest.mark.parametrize("how", [how for how in get_args(Strided) if how])
def test_elements_lie_otherwise_in_memory(how: Strided) -> None:
    tensor = torch.randn(3, 4, 6)
    other = laid_otherwise(tensor, how)
    assert torch.equal(other, tensor) and not other.is_contiguous()
    assert (other.stride(-1) == 1) is (how == "with gaps")


def test_a_candidates_worker_stands_from_its_answer_until_it_is_asked_again(
    judge: LocalJudge, problem: FunctionalProblem
) -> None:
    with judge.sessions.new(problem) as session, LoadedCandidate(session, module(), None) as subject:
        place = subject.bind(session)
        subject.watched(place, session.random_recipe())
        account = subject.accounts[-1]
        assert account.is_exact and account.call_s > 0 and abs(account.beside_s) < 0.1
        subject.prepare(place, session.random_recipe())
        assert not subject.worker.stands
        subject.call(place)
        assert subject.worker.stands
        used_s = subject.worker.cpu_s()
        time.sleep(0.02)
        assert subject.worker.cpu_s() == used_s
        subject.fingerprint(place)
        assert not subject.worker.stands and subject.worker.cpu_s() > used_s


def test_the_reference_worker_has_an_answer_for_every_request(judge: LocalJudge, problem: FunctionalProblem) -> None:
    with judge.sessions.new(problem) as session:
        for request in TO_REFERENCE:
            fds: tuple[int, ...] = ()
            if isinstance(request, MakeDraw):
                request, fds = replace(request, layout=session.draws[0].describe()), (session.draws[0].fd,)
            if isinstance(request, BringDraw):
                fds = (session.draws[0].fd,)
            reply = answered(session.worker, codec.encode(request), fds)
            assert reply is not None or isinstance(request, (*ON_GPU_ALONE, WriteContent))


@pytest.mark.parametrize("name", ["Explode", "CallVariant", "Passed", "OpenCandidate", "__class__", None])
def test_an_unknown_request_is_refused_with_a_sentence(
    judge: LocalJudge, problem: FunctionalProblem, name: str | None
) -> None:
    with judge.sessions.new(problem) as session, LoadedCandidate(session, module(), None) as subject:
        with pytest.raises(
            WorkerFailed, match=f"`{name}` is no request to a candidate's worker: .* start it again"
        ) as e:
            subject.worker.request({"_": name, "number": 1, "at": 0}, deadline_s=60)
        assert e.value.alive and e.value.kind == "raised"
        other = "Explode" if name == "CallVariant" else name
        with pytest.raises(WorkerFailed, match=f"`{other}` is no request to the reference worker"):
            session.worker.request({"_": other, "variant": "eager", "calls": 1}, deadline_s=60)
        assert ReferenceTimes(session).call("eager") > 0


def test_the_reference_is_opened_by_its_record_alone() -> None:
    with kept_workers() as workers, workers.spawn("rag_kernels.eval.children.reference.worker:serve") as worker:
        with pytest.raises(WorkerFailed, match="`None` is no request") as failed:
            worker.request({}, deadline_s=60)
        assert not failed.value.alive
    with pytest.raises(UnknownRequest, match="is no request"):
        reference_opening(sent(AskForProbes()))
    assert "problem" in OpenReference.__dataclass_fields__


# Texts of a candidate

EVERYTHING = "ValueError Error: SIGSYS SIGSEGV SIGILL OutOfMemoryError, the GPU's driver does not share memory"


def test_the_text_of_an_exception_is_a_text(judge: LocalJudge, problem: FunctionalProblem) -> None:
    found = verdict(judge, problem, module(f"raise RuntimeError({EVERYTHING!r})").source, "module")
    assert isinstance(found, Crashed) and found.raised, found
    assert found.reason == f"The candidate failed during a call: RuntimeError: {EVERYTHING}"
    found = verdict(judge, problem, module(f"print({EVERYTHING!r}, flush=True); os._exit(3)").source, "module")
    assert isinstance(found, Crashed) and not found.raised and EVERYTHING in found.log
    assert found.reason.endswith("it exited with code 3 before it answered")


@pytest.mark.parametrize(
    "does,opened",
    [
        ("raise RuntimeError('ValueError')", 1),
        (f"print({EVERYTHING!r}, flush=True); os._exit(3)", 2),
    ],
)
def test_whether_a_worker_goes_on_is_seen_and_not_read(
    judge: LocalJudge, problem: FunctionalProblem, monkeypatch: pytest.MonkeyPatch, does: str, opened: int
) -> None:
    """At small sizes it fails; a new worker is opened only where it ended."""
    smaller = functionalize(problem_from_source("small", PROBLEM.replace("ROWS", "32")), workers=judge.workers)
    subjects: list[LoadedCandidate] = []

    def opening(trial: Trial) -> LoadedCandidate:
        subjects.append(LoadedCandidate(trial.session, trial.candidate, trial.library))
        return subjects[-1]

    monkeypatch.setattr(Trial, "_open", opening)
    with judge.sessions.new(problem) as session, judge.sessions.new(smaller) as small:
        known = ProblemKnowledge(session, ReferenceTimes(session), small=small)
        found = Trial(known, module(f"if len(x) == 32: {does}"), None).run(NOT_ASKED)
    assert isinstance(found, Passed) and "shape-specialised" in found.labels, found
    assert len(subjects) == opened


def test_a_signal_is_a_field() -> None:
    def reason(message: str, number: int | None) -> str:
        failure = WorkerFailed("crashed", message, signal=number)
        found = failure_verdict(failure, "call", 1.0)
        return getattr(found, "code", "") or getattr(found, "reason", "")

    assert reason("it was killed", signal.SIGSYS) == "sandbox_violation"
    assert "out of bounds" in reason("it was killed", signal.SIGBUS)
    assert "instruction" in reason("it was killed", signal.SIGILL)
    assert reason(EVERYTHING, None) == f"The candidate's process ended during a call: {EVERYTHING}"


def test_what_failed_in_the_reference_is_a_kind() -> None:
    def compiled() -> None:
        try:
            raise torch.OutOfMemoryError("full")
        except RuntimeError:
            raise ValueError("the compiler failed") from None  # as torch's Inductor does

    with pytest.raises(ValueError, match="the compiler") as failed:
        compiled()
    assert ran_out_of_memory(failed.value) and not ran_out_of_memory(ValueError("OutOfMemoryError"))
    kinds = {
        "memory": failed.value,
        "not_shared": NotShared("no"),
        "raised": RuntimeError(EVERYTHING),
    }
    for kind, error in kinds.items():
        assert reference._failed(error, alive=True).kind == kind


def test_verdicts_of_old_archives_have_no_share_of_their_own_code() -> None:
    old = codec.dumps(passed())
    assert "own_share" not in old and codec.loads(old) == passed()
    new = replace(passed(), own_share=0.25)
    assert codec.loads(codec.dumps(new)) == new
    assert codec.loads('{"_": "Crashed", "log": "", "reason": "no"}') == Crashed("no", "")


def test_a_kernel_is_not_blamed_for_memory_that_the_judge_lacks() -> None:
    full = WorkerFailed("memory", "OutOfMemoryError: CUDA out of memory")
    assert room_is_ours(full, "load", "kernel") and room_is_ours(full, "load", "composed")
    assert not room_is_ours(full, "call", "kernel") and not room_is_ours(full, "load", "module")
    assert not room_is_ours(WorkerFailed("raised", "no"), "load", "kernel")
