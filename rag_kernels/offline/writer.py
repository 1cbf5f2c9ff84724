"""The offline writer: it reuses, fuses, transplants, rewrites and tunes.

It needs no key and no network, and never presents itself as an LLM.
Comes in: a Brief. Goes out: Drafts, in this order: archived kernels proven here on the same graph and sizes, the fused
candidate (products as in the most similar archived kernels), archived kernels in parts of the graph, other choices of
what is fused, other archived kernels of the same graph, rewritten graphs; from the second round on, the best so far
with one tuning parameter changed. A source that was tried is never drafted again; an empty list says that no draft is
left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rag_kernels.archive.records import Attempt, Relation
from rag_kernels.eval.records import FunctionalProblem, Passed, TensorSpec
from rag_kernels.offline.compose import Plan, choices, first_plans, stopped_at, write
from rag_kernels.offline.foreign_kernel import MARK, Foreign
from rag_kernels.offline.graph.rewrites import rewrites, simplified
from rag_kernels.offline.product_choice import advised
from rag_kernels.offline.transplant import transplants
from rag_kernels.offline.tuning import Parameters, describe, has_effect, neighbours, parameters_in, starting_parameters
from rag_kernels.records import TUNE, Brief, Draft, Shown


class OfflineWriter:
    """Implements `rag_kernels.records.Writer`."""

    name = "offline"

    def propose(self, brief: Brief) -> Sequence[Draft]:
        """Return up to `width` drafts that this run has not judged yet."""
        seen = {a.candidate.id for a in brief.attempts}
        drafts: list[Draft] = []
        for draft in self._ideas(brief):
            if len(drafts) == brief.width:
                break
            if draft.candidate.id not in seen:
                seen.add(draft.candidate.id)
                drafts.append(draft)
        return drafts

    def why_not(self, fp: FunctionalProblem) -> str:
        """Return a sentence on what of a problem stays with the library, and why; empty where nothing does."""
        left = stopped_at(simplified(fp)[0], starting_parameters("cpu"))
        return f"It leaves to PyTorch: {', '.join(left)}." if left else ""

    def _ideas(self, brief: Brief) -> Iterator[Draft]:
        reused = list(_reused(brief))
        yield from (draft for proven, draft in reused if proven)
        start = starting_parameters(brief.device.backend, brief.device.arch, brief.precision)
        start = replace(start, short=0) if brief.also else start  # no size is a number that need not be
        fp, done = simplified(brief.problem)
        plain = Variant(fp, note=_rewritten(*done))
        planted, rewritten = list(_transplanted(brief, plain)), list(_rewrites(plain))
        plans, followed = advised(list(first_plans(fp, start)), brief.exemplars, brief.device.backend)
        fused = [plain.draft(plan, follows=followed if plan is plans[0] else ()) for plan in plans]
        yield from fused[:1]
        for variant in planted:
            yield from variant.drafts(choices(start)[0])
        yield from fused[1:]
        yield from (draft for proven, draft in reused if not proven)
        for variant in rewritten:
            yield from variant.drafts(replace(start, products=0, attention=0))
        if brief.round > 1:
            yield from _tuned(brief, [plain, *planted, *rewritten], fused)


@dataclass(frozen=True, slots=True)
class Variant:
    """A form of the problem's graph for which candidates are written."""

    problem: FunctionalProblem
    foreign: tuple[Foreign, ...] = ()
    around: str = ""  # the operator that the library must keep for the form to make a difference
    idea: str = ""
    note: str = ""
    shown: tuple[Shown, ...] = ()

    def write(self, parameters: Parameters) -> Plan | None:
        """Return the plan for these parameters, or None when the form makes no difference to it."""
        plan = write(self.problem, parameters, foreign=self.foreign, bare=bool(self.around))
        return plan if plan and (not self.around or self.around in plan.library) else None

    def drafts(self, parameters: Parameters) -> Iterator[Draft]:
        """Yield the draft for these parameters, if there is a plan."""
        plan = self.write(parameters)
        if plan is not None:
            yield self.draft(plan)

    def draft(self, plan: Plan, idea: str = "", parent: str = "", follows: Sequence[Shown] = ()) -> Draft:
        """Return the plan as a draft; `follows` are the archived kernels after which the plan was chosen."""
        chosen = f"Products as in {', '.join(s.kernel.id for s in follows)}." if follows else ""
        idea = idea or " ".join(text for text in (self.idea, _idea(plan), chosen) if text)
        parents: list[tuple[str, Relation]] = [(s.kernel.id, "transplanted") for s in self.shown]
        note = "; ".join(text for text in (self.note, _note(plan)) if text)
        return Draft(
            plan.candidate,
            idea=idea,
            parents=((parent, "parent"), *parents) if parent else tuple(parents),
            exemplars=tuple(s.exemplar for s in (*self.shown, *follows)),
            note=note,
        )


def _reused(brief: Brief) -> Iterator[tuple[bool, Draft]]:
    """Yield archived kernels of the very same graph as drafts, each with whether it was proven at these very
    sizes.

    A claim is no proof. The judge proves them on this problem again; at other sizes a kernel may refuse to work, which
    costs its draft.
    """
    wanted = (brief.problem.graph_key, brief.device.backend)
    for shown in brief.exemplars:
        kernel = shown.kernel
        same = shown.problem is not None and _sizes(shown.problem) == _sizes(brief.problem)
        if (kernel.graph_key, kernel.backend) != wanted or kernel.retracted:
            continue
        if same or shown.serves(_sizes(brief.problem)):
            yield (
                same and kernel.trust != "claimed",
                Draft(
                    kernel.candidate,
                    idea=f"Reuse {kernel.id}, archived for {kernel.problem_name}, which has the same graph.",
                    parents=((kernel.id, "retrieved"),),
                    exemplars=(shown.exemplar,),
                ),
            )


def _sizes(fp: FunctionalProblem) -> list[TensorSpec]:
    return [argument.spec for argument in fp.tensors]


def _transplanted(brief: Brief, plain: Variant) -> Iterator[Variant]:
    """Yield forms in which archived kernels compute parts of the problem."""
    for made in transplants(plain.problem, brief.exemplars, brief.device.backend):
        yield replace(plain, problem=made.problem, foreign=made.kernels, idea=made.idea, shown=made.shown)


def _rewrites(plain: Variant) -> Iterator[Variant]:
    for made in rewrites(plain.problem):
        note = "; ".join(text for text in (plain.note, _rewritten(made.label)) if text)
        yield replace(plain, problem=made.problem, around=made.around, idea=f"Rewrite: {made.label}.", note=note)


def _tuned(brief: Brief, variants: Sequence[Variant], fused: Sequence[Draft]) -> Iterator[Draft]:
    """Yield the fastest candidate so far with one parameter changed, in the form of the graph that it was
    written for.
    """
    best, backend = _best(brief.attempts), brief.device.backend
    if best is None:
        return
    base = parameters_in(best.candidate.source.partition(MARK)[0], backend)
    if base is None:  # a foreign kernel leads: its parameters are unknown, so tune our own
        ours = {draft.candidate.id for draft in fused}
        own = _best([a for a in brief.attempts if a.candidate.id in ours])
        best, base = (own or best), starting_parameters(backend, brief.device.arch, brief.precision)
        base = (own and parameters_in(own.candidate.source, backend)) or base
    written = [(variant, variant.write(base)) for variant in variants]
    same = [(variant, plan) for variant, plan in written if plan and plan.candidate.id == best.candidate.id]
    variant, leading = (same or written)[0]
    for parameters in neighbours(base, leading.schedules if leading else ()):
        plan = variant.write(parameters)
        if plan and (leading is None or has_effect(plan.candidate.source, leading.candidate.source)):
            yield variant.draft(plan, f"{TUNE}{describe(base, parameters)}.", best.candidate.id)


def _best(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the fastest attempt that passed, or None."""
    passed = [(a.judged.verdict.measurement.candidate_us, a) for a in attempts if isinstance(a.judged.verdict, Passed)]
    return min(passed, key=lambda pair: pair[0])[1] if passed else None


def _idea(plan: Plan) -> str:
    kernels = f"{plan.regions} loop nest{'s' if plan.regions > 1 else ''} of our own"
    if not plan.regions:
        return "No loop nest of our own is left."
    if plan.library:
        return f"Fuse everything around {', '.join(dict.fromkeys(plan.library))} into {kernels}."
    return f"Fuse the whole graph into {kernels}, without temporaries where one pass can do."


def _rewritten(*labels: str) -> str:
    return f"rewritten: {', '.join(labels)}" if labels else ""


def _note(plan: Plan) -> str:
    return f"fusion stopped at: {', '.join(plan.stopped)}" if plan.stopped else ""
