"""The seam to language models: `complete`, with retries, a ledger, and a record of every request.

Comes in: a model name, messages, a purpose. Goes out: a `Reply`, or a `WriterError` whose sentence names the next
step. Every request, failed ones too, is handed to `record_call` before its reply is used, without keys. Knows
nothing of kernels and prompts.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from rag_kernels.archive.records import GIVEN_UP, LLMCall
from rag_kernels.budget import Hold, Ledger
from rag_kernels.llm.request import (
    PROGRAM_PREFIX,
    Message,
    ModelAnswer,
    RequestError,
    price,
    prompt_text,
)
from rag_kernels.llm.request import request as ask_once
from rag_kernels.records import Budget, WriterError
from rag_kernels.text.redact import redact
from rag_kernels.text.tokens import estimate_tokens

log = logging.getLogger(__name__)

UNKNOWN_COMPLETION_TOKENS = 2048  # what a reply is taken to need until the first ones have come
MAX_WAIT_S = 120.0  # a provider that asks for a longer pause is given up


@dataclass(frozen=True, slots=True)
class Reply:
    """Hold a model's whole answer with what it cost; `call_ids` are the recorded requests, failed tries included.

    `cost_usd` and the tokens cover those tries too; a cost of `None` means that the price is unknown.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    seconds: float
    call_ids: tuple[str, ...] = ()
    estimated: bool = False
    truncated: bool = False


class Completer(Protocol):
    """Define what the LLM writer asks of a model: `LLM` is the real one, tests have a scripted one."""

    def complete(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        run_id: str,
        purpose: str,
        temperature: float | None,
        timeout_s: float,
    ) -> Reply: ...


class LLM:
    """Ask any model that litellm reaches, or any program (`cmd:PROGRAM ARGS`).

    `record_call` is called under a lock, so it need not be thread-safe. `retries` counts further tries after the
    first; the pause doubles from `backoff_s` unless the provider asks for another one.
    """

    def __init__(
        self,
        record_call: Callable[[LLMCall], None],
        *,
        ledger: Ledger | None = None,
        api_base: str | None = None,
        reasoning_effort: str | None = None,
        retries: int = 4,
        backoff_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._record_call = record_call
        self._ledger = ledger or Ledger(Budget())
        self._api_base = api_base
        self._reasoning_effort = reasoning_effort
        self._retries = retries
        self._backoff_s = backoff_s
        self._sleep = sleep
        self._lock = threading.Lock()
        self._unpriced: set[str] = set()
        self._completions: list[int] = []

    def require_prices(self, models: Sequence[str]) -> None:
        """Raise WriterError for a dollar budget that cannot be kept because a model's price is unknown."""
        if self._ledger.budget.usd is None:
            return
        unknown = [m for m in models if price(m, 1, 1) is None]
        if unknown:
            raise WriterError(
                f"The price of {', '.join(map(_shown, unknown))} is unknown, so a budget in dollars cannot be kept. "
                "Leave --budget-usd out and limit tokens, rounds or time instead, or choose a model with a known price."
            )

    def complete(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        run_id: str,
        purpose: str,
        temperature: float | None = None,
        timeout_s: float = 600.0,
    ) -> Reply:
        """Ask until there is an answer, a fault that no retry mends, or no try left.

        Raises WriterError in the last two cases, and BudgetExhaustedError when the budget has no room for the call.
        """
        self.require_prices([model])
        safe = [{**m, "content": redact(m["content"])} for m in messages]
        prompt = prompt_text(safe, model)
        started = time.monotonic()
        calls: list[LLMCall] = []
        while True:
            limit_s = min(timeout_s, self._seconds_left(timeout_s))
            tokens = estimate_tokens(prompt)
            with self._ledger.hold(*self._estimate(model, tokens)) as hold:
                outcome, call, pause_s = self._try(
                    model,
                    safe,
                    prompt,
                    run_id=run_id,
                    purpose=purpose,
                    temperature=temperature,
                    timeout_s=limit_s,
                    tries=len(calls) + 1,
                )
                self._settle(hold, call, outcome)
            calls.append(call)
            if isinstance(outcome, ModelAnswer):
                return _reply(outcome, calls, time.monotonic() - started)
            if pause_s is None:
                times = f" after {len(calls)} tries" if len(calls) > 1 else ""
                reason = outcome.reason.rstrip(".")
                raise WriterError(f"{_shown(model)} gave no answer{times}: {reason}. {outcome.advice}")
            if pause_s:
                log.info("%s: %s; trying again in %.1f s.", _shown(model), outcome.reason, pause_s)
                self._sleep(pause_s)

    def _try(
        self,
        model: str,
        messages: Sequence[Message],
        prompt: str,
        *,
        run_id: str,
        purpose: str,
        temperature: float | None,
        timeout_s: float,
        tries: int,
    ) -> tuple[ModelAnswer | RequestError, LLMCall, float | None]:
        """Send and record one request; return result, record, and the seconds to wait before the next try, if any."""
        created_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        started = time.monotonic()
        outcome: ModelAnswer | RequestError
        try:
            outcome = ask_once(
                model,
                messages,
                temperature=temperature,
                reasoning_effort=self._reasoning_effort,
                timeout_s=timeout_s,
                api_base=self._api_base,
            )
        except RequestError as error:
            outcome = error
        answer = outcome if isinstance(outcome, ModelAnswer) else None
        reason = ""
        pause_s: float | None = None
        if isinstance(outcome, RequestError):
            pause_s = self._pause_s(outcome, tries)
            reason = outcome.reason + (GIVEN_UP if pause_s is None else "")
        call = LLMCall(
            id=f"c_{uuid.uuid4().hex[:20]}",
            run_id=run_id,
            model=redact(model),
            purpose=purpose,
            prompt=prompt,
            reply=answer.text if answer else "",
            prompt_tokens=answer.prompt_tokens if answer else 0,
            completion_tokens=answer.completion_tokens if answer else 0,
            cost_usd=_cost(outcome),
            seconds=time.monotonic() - started,
            error=reason,
            created_at=created_at,
        )
        with self._lock:
            self._record_call(call)
        return outcome, call, pause_s

    def _settle(self, hold: Hold, call: LLMCall, outcome: ModelAnswer | RequestError) -> None:
        hold.charge(call.prompt_tokens + call.completion_tokens, call.cost_usd)
        if not isinstance(outcome, ModelAnswer):
            return
        with self._lock:
            self._completions.append(call.completion_tokens)
            said = call.cost_usd is not None or call.model in self._unpriced
            self._unpriced.add(call.model)
        if not said:
            log.warning("The price of %s is unknown: costs of this run are shown as unknown.", _shown(call.model))

    def _pause_s(self, error: RequestError, tries: int) -> float | None:
        """Return the seconds to wait before the next try; None when there is to be none."""
        wait_s = self._backoff_s * 2 ** (tries - 1) * random.uniform(0.75, 1.25)
        if error.retry_after_s is not None:
            wait_s = error.retry_after_s
        left_s = self._ledger.seconds_left()
        if left_s == 0:
            return 0.0  # the ledger refuses the next try, with its own reason
        in_time = wait_s <= MAX_WAIT_S and (left_s is None or wait_s < left_s)
        return wait_s if error.retry and tries <= self._retries and in_time else None

    def _estimate(self, model: str, prompt_tokens: int) -> tuple[int, float | None]:
        """Return the tokens and dollars that the next call is expected to take."""
        with self._lock:
            done = self._completions
            completion = sum(done) // len(done) if done else UNKNOWN_COMPLETION_TOKENS
        usd = price(model, prompt_tokens, completion) if self._ledger.budget.usd is not None else None
        return prompt_tokens + completion, usd

    def _seconds_left(self, otherwise: float) -> float:
        left_s = self._ledger.seconds_left()
        return otherwise if left_s is None else max(left_s, 0.001)


def _cost(outcome: ModelAnswer | RequestError) -> float | None:
    """Return the dollars of a request: nothing for a refused one, None (unknown) for a broken one."""
    if isinstance(outcome, ModelAnswer):
        return outcome.cost_usd
    return None if outcome.billed else 0.0


def _reply(answer: ModelAnswer, calls: Sequence[LLMCall], seconds: float) -> Reply:
    costs = [c.cost_usd for c in calls]
    known = [c for c in costs if c is not None]
    return Reply(
        text=answer.text,
        prompt_tokens=sum(c.prompt_tokens for c in calls),
        completion_tokens=sum(c.completion_tokens for c in calls),
        cost_usd=sum(known) if len(known) == len(costs) else None,
        seconds=seconds,
        call_ids=tuple(c.id for c in calls),
        estimated=answer.estimated,
        truncated=answer.truncated,
    )


def _shown(model: str) -> str:
    """Return the model's name for messages, without a program's arguments, which may hold a key."""
    return redact(model.split()[0]) if model.startswith(PROGRAM_PREFIX) and model.split() else redact(model)
