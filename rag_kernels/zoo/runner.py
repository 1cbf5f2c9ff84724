"""Run the zoo: cheating kernels, their honest twins and the honest corpus, through an ordinary judge.

Comes in: a judge, specimens, honest kernels. Goes out: a `Seen` for each text, as soon as it is judged. A text whose
judgement raises (a fault of the judge, which a specimen may well be after) is recorded as `judge fault`. Formatting
is in `rag_kernels.zoo.report`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal

from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import (
    MORE_MEMORY,
    NO_GRAPH,
    UNCHECKED,
    Backend,
    Candidate,
    FunctionalProblem,
    Passed,
    Ratio,
    Verdict,
)
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.eval.zoo.bodies.task import Task
from rag_kernels.eval.zoo.cuda_tasks import cuda
from rag_kernels.eval.zoo.exploits.catalogue import SPECIMENS
from rag_kernels.eval.zoo.honest.corpus import Honest
from rag_kernels.eval.zoo.specimen import VOID, Specimen
from rag_kernels.eval.zoo.tasks import TASKS, cpp
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

log = logging.getLogger(__name__)

FAST = Limits(
    load_s=30,
    module_load_s=60,
    call_s=6,
    memory_bytes=2 << 30,
    measure_compile=False,
    thorough=True,
    repeats=24,
    timing=TimingRule(pairs=12, max_pairs=12, few_pairs=7, timed_s=0.02, max_timed_s=3, warm_pairs=5, self_pairs=5),
)
FAULT = "judge fault"
NOT_RUN = "compiled"  # no device here: compiled, and not judged
# Labels that say how it was measured, or what few kernels and no problem promise: not what it is.
BLAND = frozenset({"burst-timed", "noisy machine", "finite-only", MORE_MEMORY, NO_GRAPH})
GAIN = 1.5  # an exploit that gains less over its twin than noise might is void
GAIN_REPEATS = 2  # a noisy moment is no gain: it has to show again

Kind = Literal["specimen", "twin", "honest"]
Known = dict[Candidate, tuple[Verdict | str, dict[str, float]]]


def is_bland(label: str) -> bool:
    """Return whether a label says nothing against a kernel."""
    return label in BLAND or label.partition(":")[0] == UNCHECKED


@dataclass(frozen=True, slots=True)
class Text:
    """Hold one text to judge, with what is known of it beforehand."""

    kind: Kind
    name: str
    family: str
    candidate: Candidate
    specimen: Specimen | None = None
    allowed: tuple[str, ...] = ()  # labels that an honest kernel may carry


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold one text after its judgement. `codes` are the verdict's, `void` among them where the exploit gained
    nothing.
    """

    text: Text
    codes: frozenset[str]
    reason: str
    stage_s: dict[str, float]

    @property
    def judged(self) -> bool:
        return NOT_RUN not in self.codes

    @property
    def right(self) -> bool:
        """Return whether a specimen was caught with an expected code; the tier's own label alone is never a catch."""
        return self.text.specimen is not None and bool(self.codes & set(self.text.specimen.expect))

    @property
    def caught(self) -> bool:
        """Return whether it is no win without reservation: refused, in lower precision, or labelled beyond its tier.

        To be void is a catch only where that is expected: a wrong kernel that passes is missed, fast or slow.
        """
        return self.right or not self.codes & {"passed", FAULT} or "labelled" in self.codes

    @property
    def rejected(self) -> bool:
        """Return whether an honest text did not pass."""
        return self.text.kind != "specimen" and "passed" not in self.codes

    @property
    def flagged(self) -> bool:
        """Return whether an honest text is under suspicion, or has a label that it does not deserve."""
        return self.text.kind != "specimen" and "label:suspicious" in self.codes


def chosen(backend: Backend, *, only: Sequence[str] = (), family: str = "") -> tuple[Specimen, ...]:
    """Return the specimens of a backend, by words of their ideas and by family; a whole idea means that one alone."""
    ideas = {s.idea.lower() for s in SPECIMENS}

    def is_meant(idea: str, word: str) -> bool:
        return word == idea if word in ideas else word in idea

    return tuple(
        s
        for s in SPECIMENS
        if s.backend == backend
        and (not family or s.family == family)
        and (not only or any(is_meant(s.idea.lower(), word.lower()) for word in only))
    )


def run(
    judge: LocalJudge, specimens: Sequence[Specimen], honest: Sequence[Honest] = (), *, quick: bool = False
) -> Iterator[Seen]:
    """Judge everything: task by task, twins before the specimens they are compared with. `quick`: a variant each."""
    yield from judge_texts(judge, texts_of(specimens, honest, judge.device.backend, quick=quick))


def texts_of(
    specimens: Sequence[Specimen], honest: Sequence[Honest], backend: Backend, *, quick: bool = False
) -> dict[str, list[Text]]:
    """Return what is to be judged, by the source of its problem; the plain body of a task comes first."""
    tasks = {s.task: TASKS[s.task] for s in specimens}
    texts = {task.problem: [_plain(task, backend)] for task in tasks.values()}
    for specimen in specimens:
        texts[TASKS[specimen.task].problem] += _texts(specimen, quick=quick)
    for h in honest:
        own = Text("honest", h.name, h.family, h.candidate, allowed=h.allowed_labels)
        texts.setdefault(h.task_source, []).append(own)
    return texts


def judge_texts(judge: LocalJudge, texts: dict[str, list[Text]]) -> Iterator[Seen]:
    """Build all, then judge problem by problem."""
    build_s = _build([text.candidate for group in texts.values() for text in group], judge)
    for source, group in texts.items():
        yield from _judge_task(judge, source, sorted(group, key=lambda t: t.kind == "specimen"), build_s)


def _texts(specimen: Specimen, *, quick: bool) -> list[Text]:
    variants = specimen.candidates()[: 1 if quick else None]
    return [
        Text("twin", f"{specimen.idea}, twin", specimen.family, specimen.honest, specimen),
        *(
            Text("specimen", f"{specimen.idea}, {number}", specimen.family, candidate, specimen)
            for number, candidate in enumerate(variants, 1)
        ),
    ]


def _plain(task: Task, backend: Backend) -> Text:
    """Return the task's honest body: twin of what has no twin of its own tier."""
    make = cpp if backend == "cpu" else cuda
    return Text("twin", f"{task.name}, plain", "plain", Candidate(make(task.name), "kernel", backend))


def _build(candidates: Sequence[Candidate], judge: LocalJudge) -> float:
    """Compile all together, so that the judge finds them in its cache; returns seconds a text that has any."""
    started = perf_counter()
    chosen = list(dict.fromkeys(candidates))
    log.info("Building %d kernels.", sum(c.tier != "module" for c in chosen))
    judge.prepare(chosen)
    return (perf_counter() - started) / max(1, sum(c.tier != "module" for c in chosen))


def _judge_task(judge: LocalJudge, source: str, texts: Sequence[Text], build_s: float) -> Iterator[Seen]:
    """Yield all texts of one problem, in one session. A twin that several specimens share is judged once."""
    name = next((t.name for t in TASKS.values() if t.problem == source), "honest_task")
    fp = functionalize(problem_from_source(name, source), workers=judge.workers)
    known: Known = {}
    for text in texts:
        if text.candidate in known and text.kind == "twin":
            continue
        verdict, stage_s = known[text.candidate] = _verdict(judge, fp, text.candidate)
        void = text.kind == "specimen" and _is_void(judge, fp, text, texts[0].candidate, known)
        yield Seen(text, _codes(verdict, void=void), _reason(verdict), stage_s | {"build": build_s})


def _is_void(judge: LocalJudge, fp: FunctionalProblem, text: Text, plain: Candidate, known: Known) -> bool:
    """Return whether a passed specimen is no faster than an honest kernel: its twin or the plain body.

    A gain has to show again, twice.
    """
    assert text.specimen is not None
    exploit = known[text.candidate][0]
    if not isinstance(exploit, Passed):
        return False
    fair = [c for c in (text.specimen.honest, plain) if c.tier == text.candidate.tier]
    against_eager = not fair
    for candidate in fair or [plain]:
        if candidate not in known:
            known[candidate] = _verdict(judge, fp, candidate)
    honest = max(fair or [plain], key=lambda c: _median(known[c][0]))
    twin = known[honest][0]
    for attempt in range(1 + GAIN_REPEATS):
        if attempt:
            exploit, twin = (_verdict(judge, fp, c)[0] for c in (text.candidate, honest))
        ours, theirs = _speed(exploit), Ratio(1.0, 1.0, 1.0) if against_eager else _speed(twin)
        if ours is None or theirs is None:
            return False
        if not gains(ours, theirs):
            return True
        if VOID not in text.specimen.expect:
            return False
    return False


def _median(verdict: Verdict | str) -> float:
    speed = _speed(verdict)
    return speed.median if speed else 0.0


def _speed(verdict: Verdict | str) -> Ratio | None:
    return verdict.measurement.speedup_eager if isinstance(verdict, Passed) else None


def _verdict(judge: LocalJudge, fp: FunctionalProblem, candidate: Candidate) -> tuple[Verdict | str, dict[str, float]]:
    """Return the verdict, or the text of an exception of the judge, after which its session is opened anew."""
    started = perf_counter()
    try:
        ((_, judged),) = judge.judge(fp, [candidate])
        return judged.verdict, dict(judged.stage_s)
    except Exception as fault:  # the zoo goes on: that a candidate can bring the judge down is a finding
        judge.sessions.close()
        return f"{type(fault).__name__}: {fault}", {"fault": perf_counter() - started}


def _codes(verdict: Verdict | str, *, void: bool) -> frozenset[str]:
    if isinstance(verdict, str):
        return frozenset({FAULT})
    found = set(codes(verdict))
    if isinstance(verdict, Passed) and (not all(map(is_bland, verdict.labels)) or verdict.precision != "strict"):
        found.add("labelled")
    if void:
        found.add(VOID)
    return frozenset(found)


def gains(exploit: Ratio, honest: Ratio) -> bool:
    """Return whether it is faster than its twin: beyond both intervals, or by more than half."""
    return exploit.low > honest.high or exploit.median > GAIN * honest.median


def _reason(verdict: Verdict | str) -> str:
    if isinstance(verdict, str):
        return verdict
    if isinstance(verdict, Passed):
        labels = ", ".join((verdict.label, *verdict.labels))
        return f"{verdict.measurement.speedup_eager.median:.2f}x eager, {labels}"
    return verdict.reason


def open_zoo(
    backend: Backend, *, quick: bool = False, leave_out: str = "", beside: LocalJudge | None = None
) -> LocalJudge:
    """Open a judge with every check, but few repeats; `quick` leaves sanitizers, odd sizes and repeats to a full
    run.

    It takes over the warm parents of the one `beside` it where it can.
    """
    limits = replace(FAST, thorough=not quick, without=frozenset({leave_out} - {""}))
    if beside is not None and leave_out != "sandbox":
        return beside.by_other_limits(limits, at_other_sizes)
    return open_judge(backend, limits=limits, at_other_sizes=at_other_sizes)
