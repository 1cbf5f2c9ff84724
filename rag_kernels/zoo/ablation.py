"""Measure what each defence is worth: the zoo's ideas with all defences, then again without each.

Comes in: a backend, specimens. Goes out: a `Without` a defence. One variant of each idea stands for it. Without a
defence only those are judged again whose catch may rest on it, by the codes of the first run: a test that finds
something names itself in the verdict, and what another one found, that one finds again. What shapes a call, and thereby
all tests (fresh content, poison, mapping, sandbox, admission), has a wider net.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import DEFENCES
from rag_kernels.eval.records import Backend
from rag_kernels.eval.traits.input_kinds import SPECIAL
from rag_kernels.eval.zoo.specimen import VOID, Specimen
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.zoo.runner import Seen, Text, judge_texts, open_zoo, texts_of

TIMED = "wrong:timed call"
RESTS_ON: dict[str, frozenset[str]] = {
    defence: frozenset(codes)
    for defence, codes in {
        "fresh content": (TIMED, "wrong:mixed draw", VOID),
        "poison": ("wrong", "crashed", "label:shape-specialised"),
        "own draws": ("wrong:own draw",),
        "zero-mean draw": ("wrong:zero-mean draw",),
        "mixed draw": ("wrong:mixed draw",),
        "special values": ("label:fragile", *(f"wrong:{kind}" for kind in SPECIAL)),
        "guard pages": ("crashed", "rejected:out_of_bounds", "label:shape-specialised"),
        "rechecks": (TIMED,),
        "fingerprints": (TIMED,),
        "late-write check": ("rejected:late_write",),
        "activity check": ("rejected:background_work",),
        "looks": ("rejected:background_work", TIMED, "label:fragile", *(f"wrong:{kind}" for kind in SPECIAL)),
        "unrelated content": ("label:suspicious",),
        "exactness probe": ("rejected:lower_precision", "label:precision"),
        "read-only inputs": ("crashed", "rejected:input_mutated"),
        "sandbox": (VOID, "crashed", "timed_out", "rejected:sandbox_violation"),
        "odd shapes": ("label:shape-specialised",),
        "squares and tiles": ("label:shape-specialised",),
        "strides": ("label:contiguous-only",),
        "sanitizers": ("rejected:sanitizer", "label:fragile", "label:shape-specialised"),
        "repeats": ("label:nondeterministic", "wrong:repeated call", "wrong:within a parallel region", "label:fragile"),
        "physical floor": ("rejected:impossible_time", "label:suspicious", "label:algebraic pruning"),
        "admission": ("wrong", "label:precision", "label:degenerate problem"),
    }.items()
}


@dataclass(frozen=True, slots=True)
class Without:
    """Hold the results without one defence: what was judged again, what is missed, which codes catch the rest."""

    defence: str
    again: int
    missed: tuple[str, ...]
    instead: tuple[tuple[str, int], ...]


def first_run(backend: Backend, specimens: Sequence[Specimen]) -> Iterator[Seen]:
    """Judge one variant of each idea, with every defence; twins are judged where a comparison needs them."""
    texts = texts_of(specimens, (), backend, quick=True).items()
    needed = {source: [t for t in group if t.kind == "specimen" or t.family == "plain"] for source, group in texts}
    with open_zoo(backend) as judge:
        yield from judge_texts(judge, needed)


def ablate(backend: Backend, first: Sequence[Seen]) -> Iterator[Without]:
    """Leave out each defence in turn; one on which no catch can rest needs no run. What is missed is missed twice."""
    with open_zoo(backend) as whole:
        for defence in DEFENCES:
            texts = resting_on(defence, first)
            seen: list[Seen] = []
            if texts:
                with open_zoo(backend, leave_out=defence, beside=whole) as judge:
                    seen = _specimens(judge, texts)
                    if missed := {s.text.name for s in seen if not s.caught}:
                        twice = {source: [g[0], *(t for t in g[1:] if t.name in missed)] for source, g in texts.items()}
                        twice = {source: group for source, group in twice.items() if len(group) > 1}
                        seen = [s for s in seen if s.caught] + _specimens(judge, twice)
            caught = Counter(_catch(s) for s in seen if s.caught)
            missed_names = tuple(s.text.name for s in seen if not s.caught)
            yield Without(defence, len(seen), missed_names, tuple(caught.most_common()))


def _specimens(judge: LocalJudge, texts: dict[str, list[Text]]) -> list[Seen]:
    return [s for s in judge_texts(judge, texts) if s.text.kind == "specimen"]


def resting_on(defence: str, first: Sequence[Seen]) -> dict[str, list[Text]]:
    """Return the caught specimens that might escape without a defence, by problem, and the plain bodies to compare
    with.
    """
    found: dict[str, list[Text]] = {}
    for seen in first:
        specimen = seen.text.specimen
        if specimen is not None and seen.text.kind == "specimen" and seen.caught and seen.codes & RESTS_ON[defence]:
            found.setdefault(TASKS[specimen.task].problem, []).append(seen.text)
    plain = {TASKS[s.text.name.split(",")[0]].problem: s.text for s in first if s.text.family == "plain"}
    return {source: [plain[source], *texts] for source, texts in found.items()}


def _catch(seen: Seen) -> str:
    """Return the code that caught it, an expected one where there is one; the longest says most."""
    expected = set(seen.text.specimen.expect) if seen.text.specimen else set()
    wanted = {c for c in seen.codes if c in expected or c.split(":")[0] in expected & {"wrong", "rejected"}}
    named = wanted or seen.codes - {"passed", "labelled", "label:custom kernel"}
    return max(sorted(named), key=len, default="")
