"""The memory of one LLM writer over a run: what would be a repeat, its lessons, and drafts that came to nothing.

Comes in: ideas, drafts and losses, each with the brief that it belongs to, and for a resumed run its past. Goes out:
whether something is new, what the next brief passes on, and what each brief brought, which the journal keeps. Knows
nothing of models and prompts.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict

from rag_kernels.llm.novelty import Embed, repeated_idea, repeated_source
from rag_kernels.records import Brief, Draft, Gained, Learnt, Past, Trial

log = logging.getLogger(__name__)


class RunMemory:
    """Remember one run. Thread-safe. `embed` compares ideas; without it only sources are compared."""

    def __init__(self, embed: Embed | None = None) -> None:
        self._embed = embed
        self._lock = threading.Lock()
        self._all = Gained()
        self._by_brief: defaultdict[int, Gained] = defaultdict(Gained)  # by how many drafts were asked for before
        self._sources: dict[str, str] = {}  # of drafts, by what the models know them as
        self._expected: set[str] = set()  # candidates that were judged, and are drafted again from their replies

    @property
    def learnt(self) -> Learnt:
        return self._all.learnt

    def gained(self, brief: Brief) -> Gained:
        with self._lock:
            return self._by_brief[brief.asked]

    def go_on(self, past: Past) -> None:
        """Take over a resumed run's past: what was judged wins against its repeats, whichever reply is read first."""
        with self._lock:
            self._all = past.gained
            self._sources = {_name(draft.idea): draft.candidate.source for draft in past.drafts}
            self._sources |= {_name(attempt.idea): attempt.candidate.source for attempt in past.judged}
            self._expected = {attempt.candidate.id for attempt in past.judged}

    def hear(self, brief: Brief, calls: tuple[str, ...], lessons: str = "") -> None:
        """Note a reply: its lessons, and the calls that it took."""
        with self._lock:
            self._add(brief, Gained(Learnt(lessons), calls=calls))

    def lose(self, brief: Brief, trial: Trial) -> None:
        """Count a branch that brought nothing against its model."""
        with self._lock:
            self._add(brief, Gained(Learnt(lost=(trial,))))

    def takes_idea(self, brief: Brief, idea: str) -> bool:
        """Return whether an idea is new to the run, and note it; False for one like an earlier one."""
        told = ""
        with self._lock:
            if self._embed is not None:
                earlier = {f"the idea of attempt {a.number}": a.idea for a in brief.attempts if a.idea}
                earlier |= {f"idea {n} of this run": text for n, text in enumerate(self._all.ideas, start=1)}
                told = repeated_idea(idea, earlier, self._embed)
            self._add(brief, _dropped(told) if told else Gained(ideas=(idea,)))
        return not told

    def takes_draft(self, brief: Brief, draft: Draft) -> bool:
        """Return whether the run does not have this kernel yet, under these names or others."""
        with self._lock:
            if draft.candidate.id in self._expected:
                self._expected.remove(draft.candidate.id)
                return True
            judged = {f"attempt {a.number}": a.candidate.source for a in brief.attempts}
            told = repeated_source(draft.candidate.source, judged | self._sources, draft.idea)
            if told:
                self._add(brief, _dropped(told, Trial(draft.model, 0.0, draft.cost_usd)))
            else:
                self._sources[_name(draft.idea)] = draft.candidate.source
        return not told

    def _add(self, brief: Brief, more: Gained) -> None:
        self._all = self._all.plus(more)
        self._by_brief[brief.asked] = self._by_brief[brief.asked].plus(more)


def _dropped(repeat: str, *lost: Trial) -> Gained:
    log.info("%s", repeat)
    return Gained(Learnt(repeats=(repeat,), lost=lost))


def _name(idea: str) -> str:
    return f"a draft of this run ({idea[:60]})"
