"""The LLM writer: an idea in plain English first, then code; what the judge said goes back.

Comes in: a `Brief`. Goes out: drafts, each as soon as its reply is there. New ideas are asked for in one call and
implemented in parallel branches; as soon as there are attempts, other branches repair, improve, recombine or look
again at them. What repeats an earlier idea or kernel (`memory`) is dropped before it is paid for again, and the models
are told. Knows nothing of the judge, and of models only the seam `Completer`. `stream` may be called from several
threads.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from rag_kernels.budget import BudgetExhaustedError
from rag_kernels.llm import branch as llm_branch
from rag_kernels.llm import prompt_values
from rag_kernels.llm import reply as llm_reply
from rag_kernels.llm.branch import Branch, NewIdea, NoCode
from rag_kernels.llm.client import Completer, Reply
from rag_kernels.llm.model_choice import choose, trials
from rag_kernels.llm.novelty import Embed
from rag_kernels.llm.plan import Rework, plan
from rag_kernels.llm.recorded import Recorded
from rag_kernels.llm.request import Message
from rag_kernels.llm.run_memory import RunMemory
from rag_kernels.llm.templates import render
from rag_kernels.records import Brief, Draft, Gained, Learnt, NoDraftError, Past, Shown, Trial, WriterError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Style:
    """Configure how an LLM writes.

    `temperatures` are taken in turn by the branches; none leaves it to the provider. `exemplar_tokens` bounds the
    sources of exemplars in one prompt. `hardware` are facts of the device for the prompt. `embed` compares ideas;
    without it only sources are compared. `precision` is the lowest that products may be computed in.
    """

    temperatures: tuple[float, ...] = ()
    timeout_s: float = 600.0
    exemplar_tokens: int = 6000
    hardware: tuple[str, ...] = ()
    embed: Embed | None = None
    seed: int = 0
    precision: str = "strict"


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """Hold the result of one branch: a draft, no code, or an error."""

    branch: Branch
    result: Draft | NoCode | BaseException


class LLMWriter:
    """Write kernels with one or several models, chosen by what they win per dollar.

    What it asks follows from the brief alone. A run that goes on gets the replies that are there first, in the order
    in which they came, so that what is dropped as a repeat is what was dropped before.
    """

    name = "llm"

    def __init__(self, llm: Completer, models: Sequence[str], style: Style | None = None) -> None:
        if not models:
            raise WriterError("The LLM writer needs a model: name one with --model, or use the offline writer.")
        self._llm, self._models, self._style = llm, tuple(models), style or Style()
        self._memory, self._recorded = RunMemory(self._style.embed), Recorded()

    @property
    def learnt(self) -> Learnt:
        return self._memory.learnt

    def gained(self, brief: Brief) -> Gained:
        return self._memory.gained(brief)

    def go_on(self, past: Past) -> None:
        self._memory.go_on(past)
        self._recorded = Recorded(past.calls)

    def propose(self, brief: Brief) -> list[Draft]:
        """Return all drafts of a round, in the order of their tasks, whichever reply came first. Raises WriterError."""
        return [draft for _, draft in sorted(self._drafts(brief), key=lambda pair: pair[0])]

    def stream(self, brief: Brief) -> Iterator[Draft]:
        """Yield drafts as their replies arrive. Raises WriterError when nothing came but faults."""
        for _, draft in self._drafts(brief):
            yield draft

    def _drafts(self, brief: Brief) -> Iterator[tuple[int, Draft]]:
        """Yield drafts with their numbers. One branch that fails costs that branch; no code at all is a
        `WriterError`.
        """
        outcomes: queue.SimpleQueue[BranchOutcome] = queue.SimpleQueue()
        tasks = plan(brief.attempts, brief.width, brief.asked)
        reworks = [task for task in tasks if isinstance(task, Rework)]
        there = self._start(brief, reworks, brief.asked, outcomes)
        errors: list[WriterError] = []
        ideas: list[NewIdea] = []
        try:
            ideas = self._ideas_for(brief, len(tasks) - len(reworks), reworks)
        except WriterError as error:
            errors.append(error)
        there += self._start(brief, ideas, brief.asked + len(reworks), outcomes)
        there.sort(key=itemgetter(0))
        drafted = 0
        empty: list[NoCode] = []
        for number in range(len(reworks) + len(ideas)):
            outcome = there[number][1] if number < len(there) else outcomes.get()
            match outcome.result:
                case Draft() as draft:
                    drafted += 1
                    if self._memory.takes_draft(brief, draft):
                        yield outcome.branch.number, draft
                case NoCode() as nothing:
                    self._memory.lose(brief, Trial(nothing.model, 0.0, nothing.cost_usd))
                    empty.append(nothing)
                case WriterError() as refusal:
                    self._memory.lose(brief, Trial(outcome.branch.model, 0.0, None, answered=False))
                    errors.append(refusal)
                case fault:
                    raise fault
        self._account(drafted, errors, empty)

    def _account(self, drafted: int, errors: Sequence[WriterError], empty: Sequence[NoCode]) -> None:
        """Note what was lost; raise when nothing but faults came."""
        if not drafted and errors:
            raise next((e for e in errors if not isinstance(e, BudgetExhaustedError)), errors[0])
        if not drafted and empty:
            raise NoDraftError(llm_branch.no_code(empty))
        for message in dict.fromkeys([*map(str, errors), *(llm_branch.no_code([e]) for e in empty)]):
            log.warning("%s", message)

    def _start(
        self, brief: Brief, tasks: Sequence[NewIdea | Rework], first: int, outcomes: queue.SimpleQueue[BranchOutcome]
    ) -> list[tuple[int, BranchOutcome]]:
        """Begin a branch for each task, as numbers `first` and following of the run. Return the outcomes of those
        that were answered before a kill, each with its position in the order of answers.
        """
        temperatures = self._style.temperatures or (None,)
        there = []
        for number, task in enumerate(tasks, start=first):
            temperature = temperatures[number % len(temperatures)]
            branch = Branch(number, task, self._model(brief, number), temperature, self._exemplars(brief, number))
            messages = self._messages(
                brief, llm_branch.prompt(brief, branch, self._style.hardware, self._style.precision)
            )
            place = self._recorded.place(branch.model, messages)
            if place is not None:
                there.append((place, self._outcome(brief, branch, messages)))
                continue
            # A daemon: unlike a pool's thread, it does not hold up Ctrl-C until the slowest model has answered.
            asked = (brief, branch, messages, outcomes)
            threading.Thread(target=self._run, args=asked, daemon=True, name="llm-branch").start()
        return there

    def _run(
        self, brief: Brief, branch: Branch, messages: list[Message], outcomes: queue.SimpleQueue[BranchOutcome]
    ) -> None:
        outcomes.put(self._outcome(brief, branch, messages))

    def _outcome(self, brief: Brief, branch: Branch, messages: list[Message]) -> BranchOutcome:
        try:
            reply = self._ask(brief, branch.model, messages, branch.purpose, branch.temperature)
            return BranchOutcome(branch, llm_branch.read(brief, branch, reply))
        except BaseException as error:  # raised again by the thread that asked
            return BranchOutcome(branch, error)

    def _model(self, brief: Brief, number: int) -> str:
        known = [*trials(brief.attempts), *self._so_far(brief).learnt.lost]
        return choose(self._models, known, number=number, seed=self._style.seed)

    def _so_far(self, brief: Brief) -> Brief:
        """Return the brief with what has come of its call for ideas."""
        return replace(brief, learnt=brief.learnt.plus(self._memory.gained(brief).learnt))

    def _exemplars(self, brief: Brief, number: int) -> tuple[Shown, ...]:
        """Return half of the exemplars (at least one), another half for each neighbouring branch; a draft that is
        asked for alone sees all.
        """
        shown = brief.exemplars
        if not shown:
            return ()
        count = len(shown) if brief.width == 1 else (len(shown) + 1) // 2
        turned = [shown[(number + i) % len(shown)] for i in range(count)]
        return prompt_values.within(turned, self._style.exemplar_tokens)

    def _messages(self, brief: Brief, prompt: str) -> list[Message]:
        contract = render("system", **prompt_values.contract_values(brief.device, self._style.precision))
        return [{"role": "system", "content": contract}, {"role": "user", "content": prompt}]

    def _ask(self, brief: Brief, model: str, messages: list[Message], purpose: str, temperature: float | None) -> Reply:
        """Return the recorded reply, if nothing was made of it yet, else the model's."""
        reply = self._recorded.take(model, messages) or self._llm.complete(
            model,
            messages,
            run_id=brief.run_id,
            purpose=purpose,
            temperature=temperature,
            timeout_s=self._style.timeout_s,
        )
        self._memory.hear(brief, reply.call_ids, llm_reply.lessons(reply.text) if purpose == "ideas" else "")
        return reply

    def _ideas_for(self, brief: Brief, branches: int, reworks: Sequence[Rework]) -> list[NewIdea]:
        """Return an idea for each of so many branches. A run of one draft has its plan and its code in one reply."""
        if branches == 1 and not reworks and not brief.asked:
            return [NewIdea("", (), 0.0)]
        return self._new_ideas(brief, branches, reworks) if branches else []

    def _new_ideas(self, brief: Brief, branches: int, reworks: Sequence[Rework]) -> list[NewIdea]:
        """Return a new idea for each of so many branches; a model that has fewer has each implemented several times.

        When all were heard before, they are asked for once more.
        """
        for _ in range(2):
            texts, reply = self._call_for_ideas(brief, branches, reworks)
            new = [text for text in texts if self._memory.takes_idea(brief, text)]
            if new:
                break
        share = None if reply.cost_usd is None else reply.cost_usd / branches
        each = -(-branches // len(texts))
        dealt = [NewIdea(text, reply.call_ids, share, number, each) for number in range(1, each + 1) for text in new]
        return dealt[:branches]

    def _call_for_ideas(self, brief: Brief, count: int, reworks: Sequence[Rework]) -> tuple[list[str], Reply]:
        values = prompt_values.problem_values(self._so_far(brief), self._style.hardware, self._style.precision)
        values["elsewhere"] = [llm_branch.told(task) for task in reworks]
        prompt = render("ideas", **values, count=count, exemplars=prompt_values.exemplar_values(brief.exemplars))
        reply = self._first_reply(brief, self._messages(brief, prompt))
        texts = llm_reply.ideas(reply.text, count)
        if not texts:
            raise WriterError("The model answered the request for ideas with nothing; try another model with --model.")
        return texts, reply

    def _first_reply(self, brief: Brief, messages: list[Message]) -> Reply:
        """Return the reply of the first model that answers."""
        first = self._model(brief, brief.asked)
        errors: list[WriterError] = []
        for model in [first, *(m for m in self._models if m != first)]:
            try:
                return self._ask(brief, model, messages, "ideas", self._warmest)
            except BudgetExhaustedError:
                raise
            except WriterError as error:
                errors.append(error)
                self._memory.lose(brief, Trial(model, 0.0, None, answered=False))
        for other in errors[1:]:
            log.warning("%s", other)
        raise errors[0]

    @property
    def _warmest(self) -> float | None:
        return max(self._style.temperatures, default=None)
