"""Replies that are paid for already: recorded calls in the place of a model, or in front of one.

Comes in: the calls that an archive recorded. Goes out: their replies, each once, to the very prompt that they answered.
Knows nothing of rounds and kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from archive.records import LLMCall
from rag_kernels.llm import Completer, Reply
from rag_kernels.llm_request import Message, prompt_text
from rag_kernels.redact import redact


class Recorded:
    """Recorded calls, each handed out once. Thread-safe."""

    def __init__(self, calls: Iterable[LLMCall] = ()) -> None:
        self._left = list(calls)
        self._lock = threading.Lock()

    def take(self, model: str, messages: Sequence[Message]) -> Reply | None:
        """The oldest reply to this prompt by this model that is left, with the tries that failed before it."""
        with self._lock:
            same = [call for call in self._left if _is_for(call, model, messages)]
            answered = next((n for n, call in enumerate(same) if not call.error), None)
            if answered is None:
                return None
            used = same[: answered + 1]
            self._left = [call for call in self._left if call not in used]
        return _reply(used)

    def take_next(self, model: str, purpose: str) -> Reply | None:
        """The oldest reply of this model for a purpose that is left, whatever its prompt was."""
        with self._lock:
            for call in self._left:
                if (call.model, call.purpose, call.error) == (redact(model), purpose, ""):
                    self._left.remove(call)
                    return _reply([call])
        return None

    def failed(self, model: str, messages: Sequence[Message]) -> bool:
        """Whether this prompt was asked, and what is left of its tries all failed."""
        with self._lock:
            return any(_is_for(call, model, messages) for call in self._left)


class Recalling:
    """A model that is asked only for what the archive does not hold. `at_hand` gives a run's unused calls."""

    def __init__(self, model: Completer, at_hand: Callable[[str], Iterable[LLMCall]]) -> None:
        self._model = model
        self._at_hand = at_hand
        self._recorded: dict[str, Recorded] = {}
        self._lock = threading.Lock()

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
            if run_id not in self._recorded:  # before the first call of this process, so none of its own is in it
                self._recorded[run_id] = Recorded(self._at_hand(run_id))
            recorded = self._recorded[run_id]
        return recorded.take(model, messages) or self._model.complete(
            model, messages, run_id=run_id, purpose=purpose, temperature=temperature, timeout_s=timeout_s
        )


def _is_for(call: LLMCall, model: str, messages: Sequence[Message]) -> bool:
    safe = [{**message, "content": redact(message["content"])} for message in messages]
    return call.model == redact(model) and call.prompt == prompt_text(safe, model)


def _reply(calls: Sequence[LLMCall]) -> Reply:
    """The reply with what it cost when it was asked for; no ledger is charged again."""
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
