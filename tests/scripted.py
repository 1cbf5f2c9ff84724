"""The scripted stand-ins: a writer that replays sources, and a model that replays replies. No network, no cost.

Comes in: a list. Goes out: drafts, or replies, in the order of the list.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rag_kernels.archive.records import LLMCall
from rag_kernels.eval.records import Backend, Candidate
from rag_kernels.eval.source_form import source_form
from rag_kernels.llm import reply as llm_reply
from rag_kernels.llm.client import Reply
from rag_kernels.llm.recorded import Recorded
from rag_kernels.llm.request import Message, prompt_text
from rag_kernels.records import Brief, Draft, WriterError


@dataclass(frozen=True, slots=True)
class Scripted:
    """One recorded draft: a bare `source`, or a model's whole `reply` with the code in a fenced block."""

    source: str = ""
    reply: str = ""
    idea: str = ""
    note: str = ""


class ScriptedWriter:
    """Hands out what was recorded, `brief.width` a round, until nothing is left."""

    name = "scripted"

    def __init__(self, script: Iterable[Scripted | str]) -> None:
        self._left = [Scripted(source=s) if isinstance(s, str) else s for s in script]

    def propose(self, brief: Brief) -> list[Draft]:
        """The next drafts. A recorded reply without code is passed over, as the LLM writer does."""
        drafts: list[Draft] = []
        while self._left and len(drafts) < brief.width:
            scripted = self._left.pop(0)
            candidate = _candidate(scripted, brief.device.backend)
            if candidate is not None:
                idea = scripted.idea or llm_reply.stated_idea(scripted.reply)
                exemplars = tuple(s.exemplar for s in brief.exemplars)
                drafts.append(Draft(candidate, idea, exemplars=exemplars, note=scripted.note))
        return drafts


class ScriptedLLM:
    """Answers with the call recorded for this very prompt and model, else with the next text for the purpose.

    Purposes are "ideas", "implement", "repair", "improve" and "recombine". Each reply is used once. Requests are
    kept in `prompts`.
    """

    def __init__(self, recorded: Iterable[LLMCall] = (), *, texts: Mapping[str, Sequence[str]] | None = None) -> None:
        self._recorded = Recorded(recorded)
        self._texts = {purpose: list(replies) for purpose, replies in (texts or {}).items()}
        self._lock = threading.Lock()
        self.prompts: list[str] = []

    def complete(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        run_id: str,
        purpose: str,
        temperature: float | None,
        timeout_s: float,
    ) -> Reply:
        with self._lock:
            self.prompts.append(prompt_text(messages, model))
            known = self._recorded.take(model, messages)
            if known is not None:
                return known
            if self._texts.get(purpose):
                return Reply(self._texts[purpose].pop(0), 0, 0, 0.0, 0.0)
        raise WriterError(f"The script holds no further reply for {model} ({purpose}); record more, or ask for less.")


def _candidate(scripted: Scripted, backend: Backend) -> Candidate | None:
    if scripted.reply:
        return llm_reply.candidate(scripted.reply, backend)
    return Candidate(scripted.source, source_form(scripted.source).tier, backend)
