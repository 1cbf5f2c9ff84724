"""One branch of the LLM writer: a task, the model that has it, and the exemplars in its view.

Comes in: a branch, the brief, and the reply to its prompt. Goes out: the prompt, and the draft's idea, lineage and
note. Knows nothing of threads, budgets and which model is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_kernels.archive.records import Attempt, Exemplar, Relation
from rag_kernels.feedback import explain
from rag_kernels.llm import prompt_values
from rag_kernels.llm import reply as llm_reply
from rag_kernels.llm.client import Reply
from rag_kernels.llm.plan import Kind, Rework
from rag_kernels.llm.templates import render
from rag_kernels.records import Brief, Draft, Shown

IDEA_ONLY = "only its idea was shown"
VERBS: dict[Kind, str] = {
    "repair": "repairs",
    "improve": "improves",
    "recombine": "combines",
    "revisit": "takes another look at",
}


@dataclass(frozen=True, slots=True)
class NewIdea:
    """Hold an idea with its share of the call that brought it; implementation `number` of `of`.

    Without a text the idea is the implementation's own, stated in its reply.
    """

    text: str
    call_ids: tuple[str, ...]
    cost_usd: float | None
    number: int = 1
    of: int = 1


@dataclass(frozen=True, slots=True)
class Branch:
    """Describe one implementation call: what to write, by which model, at which temperature, with which exemplars."""

    number: int
    task: NewIdea | Rework
    model: str
    temperature: float | None
    shown: tuple[Shown, ...]

    @property
    def purpose(self) -> str:
        return self.task.kind if isinstance(self.task, Rework) else "implement"


@dataclass(frozen=True, slots=True)
class NoCode:
    """Report a reply that held no code block. It is on record; there is nothing to judge."""

    model: str
    truncated: bool
    cost_usd: float | None


def prompt(brief: Brief, branch: Branch, hardware: Sequence[str], precision: str) -> str:
    values = prompt_values.problem_values(brief, hardware, precision)
    values["exemplars"] = prompt_values.exemplar_values(branch.shown)
    task = branch.task
    if isinstance(task, NewIdea):
        fastest = prompt_values.fastest(brief)
        if fastest is not None:
            values |= _below(brief, (fastest,))
            values["fastest"] = prompt_values.parent_values(fastest, brief, precision)
        return render("implement", **values, idea=task.text, share={"number": task.number, "of": task.of})
    parents = [prompt_values.parent_values(p, brief, precision) for p in task.parents]
    values |= _below(brief, task.parents)
    return render("improve", **values, task=task.kind, parents=parents)


def _below(brief: Brief, shown: Sequence[Attempt]) -> dict[str, list[str]]:
    """Return the history of a prompt that has these attempts with their ideas and sources, too."""
    return {"history": explain.history(brief.attempts, {attempt.candidate.id for attempt in shown})}


def read(brief: Brief, branch: Branch, reply: Reply) -> Draft | NoCode:
    """Return the draft that a reply holds, or a `NoCode`."""
    found = llm_reply.candidate(reply.text, brief.device.backend)
    if found is None:
        return NoCode(branch.model, reply.truncated, reply.cost_usd)
    task = branch.task
    new = task if isinstance(task, NewIdea) else None
    costs = [reply.cost_usd, new.cost_usd if new else 0.0]
    known = [c for c in costs if c is not None]
    return Draft(
        candidate=found,
        idea=_idea(task, reply.text),
        parents=_parents(task),
        exemplars=_seen(brief, branch),
        techniques=tuple(card.id for card in brief.cards),
        model=branch.model,
        call_ids=(*(new.call_ids if new else ()), *reply.call_ids),
        cost_usd=sum(known) if len(known) == len(costs) else None,
        note=_note(task, truncated=reply.truncated),
    )


def no_code(replies: Sequence[NoCode]) -> str:
    models = ", ".join(dict.fromkeys(r.model for r in replies))
    count = "The reply" if len(replies) == 1 else f"None of the {len(replies)} replies"
    held = "held no code block" if len(replies) == 1 else "held a code block"
    if any(r.truncated for r in replies):
        return f"{count} of {models} {held}, and the model stopped at its output limit: choose one with a larger limit."
    return f"{count} of {models} {held}; the archive keeps what was said. Try again, or another model with --model."


def _idea(task: NewIdea | Rework, text: str) -> str:
    if isinstance(task, NewIdea):
        return task.text or llm_reply.stated_idea(text)
    return llm_reply.stated_idea(text) or task.parents[0].idea


def told(task: Rework) -> str:
    """Return what a rework does, for those who are asked at the same time: "improve attempt 2"."""
    return (
        f"{task.kind.replace('revisit', 'look again at')} attempt{'s' if len(task.parents) > 1 else ''} "
        + " and ".join(str(parent.number) for parent in task.parents)
    )


def _parents(task: NewIdea | Rework) -> tuple[tuple[str, Relation], ...]:
    if isinstance(task, NewIdea):
        return ()
    relation: Relation = "parent" if len(task.parents) == 1 else "crossover"
    return tuple((p.candidate.id, relation) for p in task.parents)


def _seen(brief: Brief, branch: Branch) -> tuple[Exemplar, ...]:
    """Return the exemplars whose source this branch saw, and those of which the call for ideas told a line."""
    sources = tuple(s.exemplar for s in branch.shown)
    if isinstance(branch.task, Rework):
        return sources
    ids = {e.kernel_id for e in sources}
    told = [s.exemplar for s in brief.exemplars if s.exemplar.kernel_id not in ids]
    return (*sources, *(replace(e, reasons=(*e.reasons, IDEA_ONLY)) for e in told))


def _note(task: NewIdea | Rework, *, truncated: bool) -> str:
    cut = "; the reply was cut at the model's output limit" if truncated else ""
    if isinstance(task, NewIdea):
        return f"new idea{f', implementation {task.number} of {task.of}' if task.of > 1 else ''}{cut}"
    numbers = [str(p.number) for p in task.parents]
    return f"{VERBS[task.kind]} attempt{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}{cut}"
