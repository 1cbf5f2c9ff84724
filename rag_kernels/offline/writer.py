"""The offline writer: reuse, fuse, tune. It needs no key and no network, and never presents itself as an LLM.

Comes in: a Brief. Goes out: Drafts. Round one offers archived kernels of the same graph and the fused candidate;
later rounds turn one tuning parameter of the best candidate so far at a time. A source that was tried is never
drafted again, and an empty list says that nothing new is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archive.records import Attempt
from eval.records import Candidate, Passed
from rag_kernels.offline.compose import Plan, first_plans, write
from rag_kernels.offline.tune import Parameters, describe, neighbours, parameters_in, starting_parameters
from rag_kernels.records import Brief, Draft


class OfflineWriter:
    """Implements `rag_kernels.records.Writer`."""

    name = "offline"

    def propose(self, brief: Brief) -> Sequence[Draft]:
        """Up to `width` drafts that this run has not judged yet."""
        seen = {a.candidate.id for a in brief.attempts}
        drafts: list[Draft] = []
        for draft in self._ideas(brief):
            if len(drafts) == brief.width:
                break
            if draft.candidate.id not in seen:
                seen.add(draft.candidate.id)
                drafts.append(draft)
        return drafts

    def _ideas(self, brief: Brief) -> Iterator[Draft]:
        yield from _reused(brief)
        backend = brief.device.backend
        plans = list(first_plans(brief.problem, starting_parameters(backend)))
        for plan in plans:
            yield Draft(plan.candidate, idea=_idea(plan), note=_note(plan))
        best = _best(brief.attempts)
        if best is None or brief.round == 1 or not plans:
            return
        base = parameters_in(best.candidate.source, backend)
        if base is None:  # a kernel of another hand leads: its parameters are unknown, so tune our own
            ours = {plan.candidate.id for plan in plans}
            own = _best([a for a in brief.attempts if a.candidate.id in ours])
            best, base = (own or best), starting_parameters(backend)
            base = (own and parameters_in(own.candidate.source, backend)) or base
        leading = write(brief.problem, base)
        for parameters in neighbours(base, leading.schedules if leading else ()):
            yield from _tuned(brief, best, base, parameters)


def _reused(brief: Brief) -> Iterator[Draft]:
    """Archived kernels of the very same graph, as they are; the judge proves them on this problem again."""
    wanted = (brief.problem.graph_key, brief.device.backend)
    for shown in brief.exemplars:
        kernel = shown.kernel
        if (kernel.graph_key, kernel.backend) == wanted and not kernel.retracted:
            yield Draft(
                Candidate(kernel.source, kernel.tier, kernel.backend),
                idea=f"Reuse {kernel.id}, archived for {kernel.problem_name}, which has the same graph.",
                parents=((kernel.id, "retrieved"),),
                exemplars=(shown.exemplar,),
            )


def _tuned(brief: Brief, best: Attempt, base: Parameters, parameters: Parameters) -> Iterator[Draft]:
    plan = write(brief.problem, parameters)
    if plan is not None:
        yield Draft(
            plan.candidate,
            idea=f"Tune: {describe(base, parameters)}.",
            parents=((best.candidate.id, "parent"),),
            note=_note(plan),
        )


def _best(attempts: Sequence[Attempt]) -> Attempt | None:
    """The fastest attempt that passed."""
    passed = [(a.judged.verdict.measurement.candidate_us, a) for a in attempts if isinstance(a.judged.verdict, Passed)]
    return min(passed, key=lambda pair: pair[0])[1] if passed else None


def _idea(plan: Plan) -> str:
    kernels = f"{plan.regions} loop nest{'s' if plan.regions > 1 else ''} of our own"
    if plan.library:
        return f"Fuse everything around {', '.join(dict.fromkeys(plan.library))} into {kernels}."
    return f"Fuse the whole graph into {kernels}, without temporaries where one pass can do."


def _note(plan: Plan) -> str:
    return f"fusion stopped at: {', '.join(plan.stopped)}" if plan.stopped else ""

