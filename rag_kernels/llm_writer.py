"""The LLM writer: an idea in plain English first, then code; what the judge said goes back.

Comes in: a `Brief`. Goes out: drafts, each as soon as its reply is there. New ideas are asked for in one call and
implemented in parallel branches; as soon as there are attempts, other branches repair, improve, recombine or look
again at them. What repeats an earlier idea or kernel is dropped before it is paid for again, and the models are told.
Knows nothing of the judge, and of models only the seam `Completer`. `stream` may be called from several threads.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rag_kernels import describe, llm_branch, llm_reply
from rag_kernels.bandit import Trial, choose, trials
from rag_kernels.budget import BudgetExhaustedError
from rag_kernels.llm import Completer, Reply
from rag_kernels.llm_branch import Branch, NewIdea, NoCode
from rag_kernels.llm_plan import Rework, plan
from rag_kernels.llm_request import Message
from rag_kernels.novelty import Embed, repeated_idea, repeated_source
from rag_kernels.prompts import render
from rag_kernels.records import Brief, Draft, Learnt, Shown, WriterError

log = logging.getLogger(__name__)

REPEATS_TOLD = 4


@dataclass(frozen=True, slots=True)
class Style:
    """How an LLM writes. `temperatures` go round the branches; none leaves it to the provider. `implementations` are
    written of each new idea. `exemplar_tokens` bounds the sources of exemplars in one prompt. `hardware` are facts of
    the device for the prompt. `embed` compares ideas; without it only sources are compared."""

    temperatures: tuple[float, ...] = ()
    timeout_s: float = 600.0
    exemplar_tokens: int = 6000
    implementations: int = 1
    hardware: tuple[str, ...] = ()
    embed: Embed | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a branch."""

    branch: Branch
    result: Draft | NoCode | BaseException


class LLMWriter:
    """Writes with one or several models, chosen by what they win per dollar.

    What it asks follows from the brief; what it keeps in memory is only what was lost and what would be a repeat.
    """

    name = "llm"

    def __init__(self, llm: Completer, models: Sequence[str], style: Style | None = None) -> None:
        if not models:
            raise WriterError("The LLM writer needs a model: name one with --model, or use the offline writer.")
        self._llm, self._models, self._style = llm, tuple(models), style or Style()
        self._lock = threading.Lock()
        self._ideas: dict[str, str] = {}  # that were taken up, by what the models know them as
        self._sources: dict[str, str] = {}  # of drafts, likewise
        self._fruitless: list[Trial] = []
        self._learnt = Learnt()

    @property
    def learnt(self) -> Learnt:
        return self._learnt

    def propose(self, brief: Brief) -> list[Draft]:
        """All drafts of a round at once."""
        return list(self.stream(brief))

    def stream(self, brief: Brief) -> Iterator[Draft]:
        """Yield drafts as they come. One branch that fails costs that branch; no code at all is a `WriterError`."""
        outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        tasks = plan(brief.attempts, brief.width, brief.asked)
        reworks = [task for task in tasks if isinstance(task, Rework)]
        self._start(brief, reworks, brief.asked, outcomes)
        errors: list[WriterError] = []
        ideas: list[NewIdea] = []
        try:
            ideas = self._new_ideas(brief, len(tasks) - len(reworks)) if len(tasks) > len(reworks) else []
        except WriterError as error:
            errors.append(error)
        self._start(brief, ideas, brief.asked + len(reworks), outcomes)
        drafted = 0
        empty: list[NoCode] = []
        for _ in [*reworks, *ideas]:
            outcome = outcomes.get()
            match outcome.result:
                case Draft() as draft:
                    drafted += 1
                    if self._is_new(brief, draft):
                        yield draft
                case NoCode() as nothing:
                    self._lost(Trial(nothing.model, 0.0, nothing.cost_usd))
                    empty.append(nothing)
                case WriterError() as refusal:
                    self._lost(Trial(outcome.branch.model, 0.0, None, answered=False))
                    errors.append(refusal)
                case fault:
                    raise fault
        self._account(drafted, errors, empty)

    def _account(self, drafted: int, errors: Sequence[WriterError], empty: Sequence[NoCode]) -> None:
        """Say what was lost; raise when nothing but faults came."""
        if not drafted and errors:
            raise next((e for e in errors if not isinstance(e, BudgetExhaustedError)), errors[0])
        if not drafted and empty:
            raise WriterError(llm_branch.no_code(empty))
        for message in dict.fromkeys([*map(str, errors), *(llm_branch.no_code([e]) for e in empty)]):
            log.warning("%s", message)

    def _start(
        self, brief: Brief, tasks: Sequence[NewIdea | Rework], first: int, outcomes: queue.SimpleQueue[Outcome]
    ) -> None:
        """Begin a branch for each task, as numbers `first` and following of the run."""
        temperatures = self._style.temperatures or (None,)
        for number, task in enumerate(tasks, start=first):
            temperature = temperatures[number % len(temperatures)]
            branch = Branch(task, self._model(brief, number), temperature, self._exemplars(brief, number))
            # A daemon: unlike a pool's thread, it does not hold up Ctrl-C until the slowest model has answered.
            threading.Thread(target=self._run, args=(brief, branch, outcomes), daemon=True, name="llm-branch").start()

    def _run(self, brief: Brief, branch: Branch, outcomes: queue.SimpleQueue[Outcome]) -> None:
        try:
            outcomes.put(Outcome(branch, self._write(brief, branch)))
        except BaseException as error:  # raised again by the thread that asked
            outcomes.put(Outcome(branch, error))

    def _model(self, brief: Brief, number: int) -> str:
        with self._lock:
            known = [*trials(brief.attempts), *self._fruitless]
        return choose(self._models, known, number=number, seed=self._style.seed)

    def _exemplars(self, brief: Brief, number: int) -> tuple[Shown, ...]:
        """A branch sees half of the exemplars (at least one), another half than its neighbours."""
        shown = brief.exemplars
        if not shown:
            return ()
        count = (len(shown) + 1) // 2
        turned = [shown[(number + i) % len(shown)] for i in range(count)]
        return describe.within(turned, self._style.exemplar_tokens)

    def _write(self, brief: Brief, branch: Branch) -> Draft | NoCode:
        """One branch: prompt, reply, draft."""
        prompt = llm_branch.prompt(brief, branch, self._style.hardware)
        reply = self._ask(brief, branch.model, prompt, purpose=branch.purpose, temperature=branch.temperature)
        return llm_branch.read(brief, branch, reply)

    def _ask(self, brief: Brief, model: str, prompt: str, *, purpose: str, temperature: float | None) -> Reply:
        messages: list[Message] = [
            {"role": "system", "content": render("system", backend=brief.device.backend, device=brief.device)},
            {"role": "user", "content": prompt},
        ]
        return self._llm.complete(
            model,
            messages,
            run_id=brief.run_id,
            purpose=purpose,
            temperature=temperature,
            timeout_s=self._style.timeout_s,
        )

    def _new_ideas(self, brief: Brief, branches: int) -> list[NewIdea]:
        """Ideas dealt out to so many branches. When all were heard before, they are asked for once more."""
        each = min(self._style.implementations, branches)
        count = -(-branches // each)
        for _ in range(2):
            texts, reply = self._call_for_ideas(brief, count)
            new = [text for text in texts if self._is_news(brief, text)]
            brief = replace(brief, learnt=self._learnt)
            if new:
                break
        share = None if reply.cost_usd is None else reply.cost_usd / branches
        dealt = [NewIdea(text, reply.call_ids, share, number, each) for number in range(1, each + 1) for text in new]
        return dealt[:branches]

    def _call_for_ideas(self, brief: Brief, count: int) -> tuple[list[str], Reply]:
        values = describe.problem_values(brief, self._style.hardware)
        prompt = render("ideas", **values, count=count, exemplars=describe.exemplar_values(brief.exemplars))
        reply = self._first_reply(brief, prompt)
        texts = llm_reply.ideas(reply.text, count)
        if not texts:
            raise WriterError("The model answered the request for ideas with nothing; try another model with --model.")
        lessons = llm_reply.lessons(reply.text)
        if lessons:
            with self._lock:
                self._learnt = replace(self._learnt, lessons=lessons)
        return texts, reply

    def _first_reply(self, brief: Brief, prompt: str) -> Reply:
        """A model that cannot answer hands over to the next."""
        first = self._model(brief, brief.asked)
        errors: list[WriterError] = []
        for model in [first, *(m for m in self._models if m != first)]:
            try:
                return self._ask(brief, model, prompt, purpose="ideas", temperature=self._warmest)
            except BudgetExhaustedError:
                raise
            except WriterError as error:
                errors.append(error)
                self._lost(Trial(model, 0.0, None, answered=False))
        for other in errors[1:]:
            log.warning("%s", other)
        raise errors[0]

    @property
    def _warmest(self) -> float | None:
        return max(self._style.temperatures, default=None)

    def _is_news(self, brief: Brief, idea: str) -> bool:
        """Whether nothing like this idea was taken up before; it counts as taken up from now on."""
        told = ""
        with self._lock:
            if self._style.embed is not None:
                earlier = {f"the idea of attempt {a.number}": a.idea for a in brief.attempts if a.idea} | self._ideas
                told = repeated_idea(idea, earlier, self._style.embed)
            if told:
                self._tell(told)
            else:
                self._ideas[f"idea {len(self._ideas) + 1} of this run"] = idea
        return not told

    def _is_new(self, brief: Brief, draft: Draft) -> bool:
        """Whether this run has not had that kernel yet, under other names or the same."""
        with self._lock:
            judged = {f"attempt {a.number}": a.candidate.source for a in brief.attempts}
            told = repeated_source(draft.candidate.source, judged | self._sources, draft.idea)
            if told:
                self._tell(told)
                self._fruitless.append(Trial(draft.model, 0.0, draft.cost_usd))
            else:
                self._sources[f"a draft of this run ({draft.idea[:60]})"] = draft.candidate.source
        return not told

    def _tell(self, repeat: str) -> None:
        log.info("%s", repeat)
        self._learnt = replace(self._learnt, repeats=(*self._learnt.repeats, repeat)[-REPEATS_TOLD:])

    def _lost(self, trial: Trial) -> None:
        """A branch that brought nothing counts against its model."""
        with self._lock:
            self._fruitless.append(trial)
