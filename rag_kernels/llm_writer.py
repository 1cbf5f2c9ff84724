"""The LLM writer: an idea in plain English first, then code; what the judge said goes back.

Comes in: a `Brief`. Goes out: drafts. New ideas are asked for in one call and implemented in parallel branches;
from the second round on, some branches repair, improve or recombine earlier attempts. Knows nothing of the judge,
and of models only the seam `Completer`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from archive.records import Exemplar, Relation
from rag_kernels import describe, llm_reply
from rag_kernels.budget import BudgetExhaustedError
from rag_kernels.llm import Completer, Reply
from rag_kernels.llm_plan import Explore, Rework, plan_round
from rag_kernels.llm_request import Message
from rag_kernels.prompts import render
from rag_kernels.records import Brief, Draft, Shown, WriterError

T = TypeVar("T")

log = logging.getLogger(__name__)

IDEA_ONLY = "only its idea was shown"


@dataclass(frozen=True, slots=True)
class NewIdea:
    """An idea with its share of the call that brought it."""

    text: str
    call_ids: tuple[str, ...]
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class Branch:
    """One implementation call of a round: what to write, by which model, with which exemplars in view."""

    task: NewIdea | Rework
    model: str
    shown: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class NoCode:
    """A reply that held no code block. It is on record; there is nothing to judge."""

    model: str
    truncated: bool


class LLMWriter:
    """Writes with one or several models, which take turns.

    `exemplar_tokens` bounds the sources of exemplars in one prompt. `branches_per_idea` implementations are
    written of each new idea.
    """

    name = "llm"

    def __init__(
        self,
        llm: Completer,
        models: Sequence[str],
        *,
        temperature: float | None = None,
        timeout_s: float = 600.0,
        exemplar_tokens: int = 6000,
        branches_per_idea: int = 1,
    ) -> None:
        if not models:
            raise WriterError("The LLM writer needs a model: name one with --model, or use the offline writer.")
        self._llm = llm
        self._models = tuple(models)
        self._temperature = temperature
        self._timeout_s = timeout_s
        self._exemplar_tokens = exemplar_tokens
        self._branches_per_idea = branches_per_idea

    def propose(self, brief: Brief) -> list[Draft]:
        """Draft a round. One branch that fails costs that branch; a round without any code is a `WriterError`."""
        tasks = plan_round(brief.attempts, brief.width)
        reworks = [t for t in tasks if isinstance(t, Rework)]
        futures = [self._start(brief, number, task) for number, task in enumerate(reworks)]
        explored = sum(isinstance(t, Explore) for t in tasks)
        outcomes: list[Draft | NoCode | WriterError] = []
        if explored:
            try:
                new = self._new_ideas(brief, explored)
                futures += [self._start(brief, len(reworks) + number, idea) for number, idea in enumerate(new)]
            except WriterError as error:
                outcomes.append(error)
        outcomes += [future.result() for future in futures]
        return self._fresh(brief, outcomes)

    def _start(self, brief: Brief, number: int, task: NewIdea | Rework) -> Future[Draft | NoCode | WriterError]:
        model = self._models[(brief.round - 1 + number) % len(self._models)]
        branch = Branch(task, model, self._exemplars(brief, number))
        return _in_thread(lambda: self._write(brief, branch))

    def _exemplars(self, brief: Brief, number: int) -> tuple[Shown, ...]:
        """A branch sees half of the exemplars (at least one), another half than its neighbours."""
        shown = brief.exemplars
        if not shown:
            return ()
        count = (len(shown) + 1) // 2
        turned = [shown[(number + i) % len(shown)] for i in range(count)]
        return describe.within(turned, self._exemplar_tokens)

    def _new_ideas(self, brief: Brief, branches: int) -> list[NewIdea]:
        """Ask for ideas, and deal them out to the branches; a model that cannot answer hands over to the next."""
        count = -(-branches // self._branches_per_idea)
        values = describe.problem_values(brief)
        prompt = render("ideas", **values, count=count, exemplars=describe.exemplar_values(brief.exemplars))
        reply = self._first_reply(brief, prompt)
        texts = llm_reply.ideas(reply.text, count)
        if not texts:
            raise WriterError("The model answered the request for ideas with nothing; try another model with --model.")
        share = None if reply.cost_usd is None else reply.cost_usd / branches
        return [NewIdea(texts[i % len(texts)], reply.call_ids, share) for i in range(branches)]

    def _first_reply(self, brief: Brief, prompt: str) -> Reply:
        first = (brief.round - 1) % len(self._models)
        errors: list[WriterError] = []
        for model in self._models[first:] + self._models[:first]:
            try:
                return self._ask(brief, model, prompt, purpose="ideas")
            except BudgetExhaustedError:
                raise
            except WriterError as error:
                errors.append(error)
        for other in errors[1:]:
            log.warning("%s", other)
        raise errors[0]

    def _ask(self, brief: Brief, model: str, prompt: str, *, purpose: str) -> Reply:
        messages: list[Message] = [
            {"role": "system", "content": render("system", backend=brief.device.backend, device=brief.device)},
            {"role": "user", "content": prompt},
        ]
        return self._llm.complete(
            model,
            messages,
            run_id=brief.run_id,
            purpose=purpose,
            temperature=self._temperature,
            timeout_s=self._timeout_s,
        )

    def _write(self, brief: Brief, branch: Branch) -> Draft | NoCode | WriterError:
        """One branch: prompt, reply, draft."""
        purpose = branch.task.kind if isinstance(branch.task, Rework) else "implement"
        try:
            reply = self._ask(brief, branch.model, _prompt(brief, branch), purpose=purpose)
        except WriterError as error:
            return error
        found = llm_reply.candidate(reply.text, brief.device.backend)
        if found is None:
            return NoCode(branch.model, reply.truncated)
        task = branch.task
        new = task if isinstance(task, NewIdea) else None
        costs = [reply.cost_usd, new.cost_usd if new else 0.0]
        known = [c for c in costs if c is not None]
        return Draft(
            candidate=found,
            idea=_idea(task, reply.text),
            parents=_parents(task),
            exemplars=_seen(brief, branch),
            model=branch.model,
            call_ids=(*(new.call_ids if new else ()), *reply.call_ids),
            cost_usd=sum(known) if len(known) == len(costs) else None,
            note=_note(task, truncated=reply.truncated),
        )

    def _fresh(self, brief: Brief, outcomes: Sequence[Draft | NoCode | WriterError]) -> list[Draft]:
        """The drafts that are new to this run; says what was lost, and raises when nothing but faults came."""
        errors = [o for o in outcomes if isinstance(o, WriterError)]
        empty = [o for o in outcomes if isinstance(o, NoCode)]
        drafts = [o for o in outcomes if isinstance(o, Draft)]
        if not drafts and errors:
            raise next((e for e in errors if not isinstance(e, BudgetExhaustedError)), errors[0])
        if not drafts and empty:
            raise WriterError(_no_code(empty))
        for message in dict.fromkeys([*map(str, errors), *(_no_code([e]) for e in empty)]):
            log.warning("%s", message)
        known = {a.candidate.id for a in brief.attempts}
        fresh = {d.candidate.id: d for d in reversed(drafts) if d.candidate.id not in known}
        if len(fresh) < len(drafts):
            log.info("Dropped %d of %d drafts that repeat earlier sources.", len(drafts) - len(fresh), len(drafts))
        return list(reversed(fresh.values()))


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Run in a daemon thread: unlike a pool's, it does not hold up Ctrl-C until the slowest model has answered."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="llm-branch").start()
    return future


def _prompt(brief: Brief, branch: Branch) -> str:
    values = describe.problem_values(brief) | {"exemplars": describe.exemplar_values(branch.shown)}
    if isinstance(branch.task, NewIdea):
        return render("implement", **values, idea=branch.task.text)
    parents = [describe.parent_values(p, brief) for p in branch.task.parents]
    return render("improve", **values, task=branch.task.kind, parents=parents)


def _idea(task: NewIdea | Rework, text: str) -> str:
    if isinstance(task, NewIdea):
        return task.text
    return llm_reply.stated_idea(text) or task.parents[0].idea


def _parents(task: NewIdea | Rework) -> tuple[tuple[str, Relation], ...]:
    if isinstance(task, NewIdea):
        return ()
    relation: Relation = "crossover" if task.kind == "recombine" else "parent"
    return tuple((p.candidate.id, relation) for p in task.parents)


def _seen(brief: Brief, branch: Branch) -> tuple[Exemplar, ...]:
    """The exemplars whose source this branch saw, and those of which the call for ideas told a line."""
    sources = tuple(s.exemplar for s in branch.shown)
    if isinstance(branch.task, Rework):
        return sources
    ids = {e.kernel_id for e in sources}
    told = [s.exemplar for s in brief.exemplars if s.exemplar.kernel_id not in ids]
    return (*sources, *(replace(e, reasons=(*e.reasons, IDEA_ONLY)) for e in told))


def _note(task: NewIdea | Rework, *, truncated: bool) -> str:
    cut = "; the reply was cut at the model's output limit" if truncated else ""
    if isinstance(task, NewIdea):
        return f"new idea{cut}"
    verb = {"repair": "repairs", "improve": "improves", "recombine": "combines"}[task.kind]
    numbers = [str(p.number) for p in task.parents]
    return f"{verb} attempt{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}{cut}"


def _no_code(replies: Sequence[NoCode]) -> str:
    models = ", ".join(dict.fromkeys(r.model for r in replies))
    count = "The reply" if len(replies) == 1 else f"None of the {len(replies)} replies"
    held = "held no code block" if len(replies) == 1 else "held a code block"
    if any(r.truncated for r in replies):
        return f"{count} of {models} {held}, and the model stopped at its output limit: choose one with a larger limit."
    return f"{count} of {models} {held}; the archive keeps what was said. Try again, or another model with --model."
