"""Replies that are paid for already: recorded calls answer in the place of a model.

Comes in: the calls that an archive recorded. Goes out: their replies, each once, to the very prompt that they answered.
Knows nothing of rounds and kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from rag_kernels.archive.records import LLMCall
from rag_kernels.llm.client import Reply
from rag_kernels.llm.request import Message, prompt_text
from rag_kernels.records import WriterError
from rag_kernels.text.redact import redact


class Recorded:
    """Hand out recorded calls in the order in which they came, each once. Thread-safe."""

    def __init__(self, calls: Iterable[LLMCall] = ()) -> None:
        self._left = dict(enumerate(calls))
        self._lock = threading.Lock()

    def place(self, model: str, messages: Sequence[Message]) -> int | None:
        """Return the position of the recorded answer to this prompt (also of one that was given up); None without
        one.
        """
        with self._lock:
            return max(self._asked(model, messages), default=None)

    def take(self, model: str, messages: Sequence[Message]) -> Reply | None:
        """Return the oldest reply to this prompt that is left, with the tries that failed before it.

        Raises WriterError when the request was given up.
        """
        with self._lock:
            used = [self._left.pop(place) for place in self._asked(model, messages)]
        if used and used[-1].given_up:
            raise WriterError(f"{used[-1].model.split()[0]} had given no answer: {used[-1].error}")
        return _reply(used) if used else None

    def take_next(self, model: str, purpose: str) -> Reply | None:
        """Return the oldest reply of this model for a purpose that is left, whatever its prompt was."""
        with self._lock:
            for place, call in self._left.items():
                if (call.model, call.purpose, call.error) == (redact(model), purpose, ""):
                    return _reply([self._left.pop(place)])
        return None

    def failed(self, model: str, messages: Sequence[Message]) -> bool:
        """Return whether this prompt was asked, and every try of it that is left failed."""
        with self._lock:
            prompt = _sent(model, messages)
            return any((call.model, call.prompt) == prompt for call in self._left.values())

    def _asked(self, model: str, messages: Sequence[Message]) -> list[int]:
        """Return the tries of one request, up to the one that ended it; none when it has not ended."""
        tries: list[int] = []
        prompt = _sent(model, messages) if self._left else None
        for place, call in self._left.items():
            if (call.model, call.prompt) == prompt:
                tries.append(place)
                if not call.error or call.given_up:
                    return tries
        return []


def _sent(model: str, messages: Sequence[Message]) -> tuple[str, str]:
    """Return model and prompt as they are recorded."""
    safe = [{**message, "content": redact(message["content"])} for message in messages]
    return redact(model), prompt_text(safe, model)


def _reply(calls: Sequence[LLMCall]) -> Reply:
    """Return the reply with what it cost when it was asked for; no ledger is charged again."""
    costs = [call.cost_usd for call in calls]
    known = [cost for cost in costs if cost is not None]
    return Reply(
        text=calls[-1].reply,
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        cost_usd=sum(known) if len(known) == len(costs) else None,
        seconds=0.0,
        call_ids=tuple(call.id for call in calls),
    )
