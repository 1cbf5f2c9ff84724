"""Are a candidate's numbers right? One method a check, cheapest first; each ends the trial if it finds something.

Comes in: a LoadedCandidate bound to buffers of a ProblemSession. Goes out: labels ("fragile: large") and what was
checked. Whether a call is checked, and how, is decided here after the call, in secret. Other checks build on these:
`precision_checks.py`, `activity_checks.py`, `long_use_checks.py`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.messages.to_candidate import Instead
from rag_kernels.eval.records import Rejected, Wrong
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.timing.race import Kept
from rag_kernels.eval.traits.input_kinds import (
    AGREEING,
    ALIKE,
    ALOFT,
    BALANCED,
    BESIDE,
    BRINK,
    BURSTS,
    DISORDER,
    EDGES,
    ENDS_TOGETHER,
    FADING,
    FAR_ANGLES,
    FAR_APART,
    FAR_NAMED_NUMBERS,
    FITTED,
    HIDDEN,
    HUGE,
    KEPT,
    LOWERED,
    MASKED,
    MIXED,
    NAMED_NUMBERS,
    NEARLY,
    NEXT_TO_LINES,
    NEXT_TO_ZERO,
    NON_FINITE,
    ORTHONORMAL,
    OVERFLOW,
    PEAKS,
    PIVOTS,
    POWERS,
    RAISED,
    ROOTS,
    SIZES,
    SPECIAL,
    STEEP,
    TAILS,
    TWICE,
    UNEVEN,
    WHOLE,
)

NEAR_LIMIT = 256.0  # times PyTorch's error: what is farther off is so on any draw
# Relative errors that are no matter of accuracy any more; larger where most digits cancel.
GROSS = {"shifted": 0.5, "far": 0.5, "constant rows": 0.5, RAISED: 0.5, LOWERED: 0.5, NAMED_NUMBERS: 0.5}
GROSS_ELSE = 0.05
FLUSHED = "subnormals flushed"
SOFT = frozenset(
    {
        "tiny",
        ALOFT,
        *AGREEING,
        *FITTED,
        *HIDDEN,
        NEXT_TO_LINES,
        *ORTHONORMAL,
        STEEP,
        BRINK,
        *BURSTS,
        DISORDER,
        FADING,
        FAR_ANGLES,
        FAR_APART,
        FAR_NAMED_NUMBERS,
        HUGE,
        KEPT,
        MASKED,
        NEARLY,
        PEAKS,
        POWERS,
        ROOTS,
        UNEVEN,
        WHOLE,
        *BALANCED,
        *BESIDE,
        NEXT_TO_ZERO,
        *SIZES,
        TAILS,
        *TWICE,
    }
)  # kinds on which even a gross error is only a label
FEW_THREADS, MANY_THREADS = 17, 40  # between these one number is drawn
MOST_THREADS = range(258, 290)  # and one of these: machines have as many
DECOYS: dict[Instead, str] = {
    "nothing": "without them",
    "the first": "with copies of an argument in their place",
    "the last": "with copies of an argument in their place",
}
HALVES = "another forward before the backward"
FINITE_ONLY = "finite-only"  # one honest kernel in four, by its comparisons
# Words of `numerics.rounding_faults`.
LEANS, IN_COMMON, THROUGHOUT, PLAINLY, ZEROS = "leans", "go together", "throughout", "plainly", "of the zeros"
SIGNS_OF_ZEROS = "fragile: signs of zeros"
ROUNDING_LEANS = "suspicious: rounding leans"
IDLE_S = 0.01  # how long a worker is watched after a call
LATE_TRIES = 3  # calls that are watched for a late write when one was wrong
MIXED_REPEATS = 4  # of rows of several kinds, beside one for each number of threads
TRIES = 9  # with five an honest module was rejected once, beside a test suite


@dataclass
class Findings:
    """What the checks of one trial have seen."""

    worst_ratio: float = 0.0
    precision: str = "strict"
    precision_error: float = 0.0  # relative, that it was told from
    rounding: list[str] = field(default_factory=list)  # faults of it, one for each output of a call that has some
    labels: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def label(self, text: str) -> None:
        if text not in self.labels:
            self.labels.append(text)


class Checks:
    """The checks of one candidate; `place` is where it is bound to the problem at its own sizes."""

    def __init__(self, subject: LoadedCandidate, place: BoundBuffers, found: Findings, without: frozenset[str]) -> None:
        self.subject, self.place, self.found, self.without = subject, place, found, without
        self.relative = 0.0  # of the last comparison that failed

    def compare(self, place: BoundBuffers, outputs: OutputSnapshot, recipe: Recipe, input_class: str) -> None:
        """Compare all of one call's outputs; the class names the draw in the verdict."""
        wrong = self.compared(place.session, outputs, recipe, input_class)
        if wrong is not None and (self.relative > GROSS_ELSE or not place.session.specials.is_mixed(recipe)):
            self.stop(place, recipe, wrong)

    def stop(self, place: BoundBuffers, recipe: Recipe, wrong: Wrong) -> NoReturn:
        """End the trial for a wrong result: as a late write where one of a few more such calls shows it to be that."""
        try:
            late = place.session.on_gpu or "late-write check" in self.without
            for _ in range(0 if late else LATE_TRIES):
                self.subject.prepare(place, recipe)
                self.subject.call(place, stand=False)
                image = self.subject.fingerprint(place)
                self.subject.busy_s(IDLE_S)
                if image != self.subject.fingerprint(place):
                    raise Stopped(Rejected("late_write", "The outputs changed after the call had returned."))
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            raise Stopped(wrong, alive=stopped.alive) from None
        raise Stopped(wrong, alive=True)

    def compare_kept(self, kept: Kept) -> None:
        """Compare outputs of a call in a race; on special values a loss of accuracy is a label."""
        if not kept.kind:
            self.compare(kept.place, kept.outputs, kept.recipe, "timed call")
            return
        wrong = self.compared(kept.place.session, kept.outputs, kept.recipe, kept.kind, noisy=True)
        self.note_special(kept.place, kept.recipe, wrong, kept.kind)

    def note_special(self, place: BoundBuffers, recipe: Recipe, wrong: Wrong | None, kind: str) -> None:
        """End the trial for a gross error on special values, and label a loss of accuracy.

        What is little beyond a limit has to be so on another draw of the kind, too: which one is drawn is no fault.
        """
        if wrong is not None and kind in SPECIAL and wrong.error_ratio <= NEAR_LIMIT:
            recipe, wrong = self._on_another(place, recipe, wrong, kind)
        if wrong is None:
            return
        if kind in (NON_FINITE, OVERFLOW):
            self.found.label(FINITE_ONLY)
            what = "inputs are NaN or infinite" if kind == NON_FINITE else "results exceed half precision"
            self.found.notes.append(f"differs from PyTorch where {what}: {wrong.where}")
            return
        if self.relative > GROSS.get(kind, GROSS_ELSE) and kind not in SOFT:
            self.stop(place, recipe, wrong)
        if kind in AGREEING and self.relative <= GROSS_ELSE:  # a sum of one and little loses digits in any order
            return
        self.found.label(f"fragile: {kind}")
        self.found.notes.append(f"less exact on inputs of the kind `{kind}`: {wrong.where}")

    def _on_another(self, place: BoundBuffers, recipe: Recipe, wrong: Wrong, kind: str) -> tuple[Recipe, Wrong | None]:
        """Return another draw of a kind, and what is wrong there; what is known where there is no other."""
        if (other := place.session.specials.second(kind)) is None:
            return recipe, wrong
        recipe = plain(other, len(place.session.specs))
        self.subject.prepare(place, recipe)
        self.subject.call(place)
        return recipe, self.compared(place.session, self.subject.outputs(place), recipe, kind)

    def compared(
        self, session: ProblemSession, outputs: OutputSnapshot, recipe: Recipe, input_class: str, *, noisy: bool = False
    ) -> Wrong | None:
        results = session.check(outputs, recipe, noisy=noisy)
        for number, result in enumerate(results):
            if result.ok:
                self.found.rounding += [text for text in (result.rounding, result.zeros) if text]
            self.found.worst_ratio = max(self.found.worst_ratio, result.ratio if result.ok else 0.0)
            if not result.ok:
                self.relative = result.relative
                where = (f"output {number}: " if len(results) > 1 else "") + result.where
                if session.admission and (like := session.admission.explain(result.ratio)):
                    where += f"; {like}"
                return Wrong("Wrong result.", input_class, result.ratio, where)
        return None

    def draws(self) -> None:
        """Check whole draws (zero-mean ones too) and one fresh mixture, in random order, under the poisons in turn."""
        session, specs = self.place.session, len(self.place.session.specs)
        recipes = [(plain(k, specs), "own draw") for k in range(session.own_draws)]
        if session.normal is not None and "zero-mean draw" not in self.without:
            recipes.append((plain(session.normal, specs), "zero-mean draw"))
        recipes.append((session.random_recipe(), "mixed draw"))
        recipes = [r for r in recipes if r[1] not in self.without and f"{r[1]}s" not in self.without] or recipes[:1]
        for recipe, input_class in session.rng.sample(recipes, len(recipes)):
            self.call_and_compare(self.place, recipe, input_class)
        self.halves()
        names = dict.fromkeys(input_class for _, input_class in recipes)
        counts = [f"{sum(r[1] == name for r in recipes)} {name}s" if name == "own draw" else name for name in names]
        self.found.checks += [*counts, "poisoned outputs", "inputs hashed" if session.on_gpu else "inputs read-only"]

    def halves(self) -> None:
        """Require of a training step that its backward needs what was saved alone, and leaves outputs as they are."""
        session = self.place.session
        if session.fp.step is not None:
            recipe = session.random_recipe()
            self.compare(self.place, self.subject.call_halves(self.place, recipe), recipe, HALVES)
            self.found.checks.append(HALVES)

    def rounding(self) -> None:
        """Label outputs of 16 bits whose errors lean, or that rows have in common, and zeros of another sign, in two
        draws at least; what is off throughout in fp32 is none of it.
        """
        self.leaning()
        zeros = [text for text in self.found.rounding if ZEROS in text]
        if len(zeros) > 1:
            self.found.label(SIGNS_OF_ZEROS)
            self.found.notes.append(zeros[0])
        common = [text for text in self.found.rounding if IN_COMMON in text]
        if len(common) > 1:
            self.found.label("rounds in between")
            self.found.notes.append(common[0])
        off = [text for text in self.found.rounding if THROUGHOUT in text]
        if (len(off) > 1 or any(PLAINLY in text for text in off)) and self.found.precision == "strict":
            self.found.precision = "split-precision"
            self.found.notes.append(off[0])

    def leaning(self) -> None:
        """Label outputs of 16 bits whose errors lean in two draws at least, also at other sizes so far."""
        seen = [text for text in self.found.rounding if LEANS in text]
        if len(seen) > 1 and ROUNDING_LEANS not in self.found.labels:
            self.found.label(ROUNDING_LEANS)
            self.found.notes.append(seen[0])

    def own_draws(self) -> None:
        """Check only the problem's own kind of inputs, and rows of several kinds; nothing is noted."""
        session = self.place.session
        for draw in range(session.own_draws):
            self.call_and_compare(self.place, plain(draw, len(session.specs)), "own draw")
        if not self._on_mixed(self.place, MIXED):
            self.call_and_compare(self.place, session.random_recipe(), MIXED)

    def beyond(self) -> None:
        """Check at larger sizes what adds up there: integers, and the errors of long rows of which a look at some
        elements finds those alone that lie far from all others.
        """
        self.greatest_integers()
        if (draw := self.place.session.specials.draw(PIVOTS)) is not None:
            self.subject.prepare(self.place, recipe := plain(draw, len(self.place.session.specs)))
            self.subject.call(self.place)
            wrong = self.compared(self.place.session, self.subject.outputs(self.place), recipe, PIVOTS)
            self.note_special(self.place, recipe, wrong, PIVOTS)

    def greatest_integers(self) -> None:
        """Check sums that are as large as they come: of one integer throughout, and of both ends."""
        for kind in (ALIKE, ENDS_TOGETHER):
            if (draw := self.place.session.specials.draw(kind)) is not None:
                self.call_and_compare(self.place, plain(draw, len(self.place.session.specs)), kind)

    def first_draw(self, layout: str, *, copied: bool = False) -> None:
        """Check one call on what was there when it was bound, and one on rows of several kinds; nothing is noted.

        Copies that were made when it was bound (`copied`) hold the first draw alone.
        """
        draw = plain(0, len(self.place.session.specs))
        if copied:
            self.call_and_compare(self.place, draw, layout)
        else:
            self.on_both(self.place, draw, layout)

    def on_both(self, place: BoundBuffers, recipe: Recipe, told: str) -> None:
        """Check under some circumstance a content and rows of several kinds: a fault may need both."""
        self.call_and_compare(place, recipe, told)
        self._on_mixed(place, told)

    def _on_mixed(self, place: BoundBuffers, told: str) -> bool:
        """Check rows of several kinds, and return whether there are such.

        What is little beyond a limit has to be so on another draw of them, too.
        """
        specials = place.session.specials
        if (mixed := specials.mixed) is None:
            return False
        try:
            self.call_and_compare(place, mixed, told)
        except Stopped as stopped:
            wrong = stopped.verdict
            near = isinstance(wrong, Wrong) and wrong.error_ratio <= NEAR_LIMIT and stopped.alive
            if not near or (other := specials.second_mixed) is None:
                raise
            self.call_and_compare(place, other, told)
        return True

    def call_and_compare(self, place: BoundBuffers, recipe: Recipe, input_class: str) -> None:
        subject, session = self.subject, place.session
        session.require_answer(recipe)
        subject.prepare(place, recipe)
        before = subject.input_hash(place)
        subject.call(place)
        image, outputs = subject.fingerprint(place), subject.outputs(place)
        self.compare(place, outputs, recipe, input_class)
        if before != subject.input_hash(place):
            raise Stopped(Rejected("input_mutated", "The candidate changed its inputs."))
        self.require_unchanged(place, outputs, image)

    def require_unchanged(self, place: BoundBuffers, outputs: OutputSnapshot, image: bytes) -> None:
        """Require that what was there when the call returned still is: in full on a CPU, by a fingerprint on a GPU."""
        if "late-write check" in self.without:
            return
        if not self.subject.handed_over(place, outputs, image):
            raise Stopped(Rejected("late_write", "The outputs are not those that were there when the call returned."))
        on_gpu = place.session.on_gpu
        if image != self.subject.fingerprint(place) or (not on_gpu and not self.subject.still_has(place, outputs)):
            raise Stopped(Rejected("late_write", "The outputs changed after the call had returned."))
        place.seen = image

    def repeats(self, times: int) -> None:
        """Repeat the same content with other numbers of threads: races show as differences."""
        if "repeats" in self.without:
            return
        session, subject = self.place.session, self.subject
        recipe = plain(session.rng.randrange(session.own_draws), len(session.specs))
        counts = [threads()] * times if session.on_gpu else [threads(), 1, 2, 4 * threads(), *[threads()] * (times - 4)]
        seen: dict[bytes, int] = {}
        for count in counts:
            if not session.on_gpu:
                subject.use_threads(count)
            subject.prepare(self.place, recipe)
            subject.call(self.place)
            fingerprint = subject.fingerprint(self.place)
            if fingerprint not in seen:
                seen[fingerprint] = count
                self.compare(self.place, subject.outputs(self.place), recipe, "repeated call")
        unusual = set[bytes]()
        for count in [*dict.fromkeys(counts), *[threads()] * MIXED_REPEATS] if session.specials.mixed else ():
            if not session.on_gpu:
                subject.use_threads(count)
            self._on_mixed(self.place, "repeated call")
            unusual.add(subject.fingerprint(self.place))
        if not session.on_gpu:
            subject.use_threads(threads())
        if max(len(seen), len(unusual)) > 1:
            self.found.label("nondeterministic")
        self.found.checks.append(f"{len(counts)} repeats")

    def elsewhere(self, place: BoundBuffers) -> None:
        """Check one call on tensors that lie in memory as PyTorch's do, and neither begin nor end at a page."""
        self.on_both(place, place.session.random_recipe(), "elsewhere in memory")
        self.found.checks.append("elsewhere in memory")

    def teams(self, place: BoundBuffers) -> None:
        """Check a call that gets fewer threads than it is told of, one whose threads get teams of their own where they
        ask for some, and one with more than most machines have.
        """
        session, subject = place.session, self.subject
        if session.on_gpu or "repeats" in self.without:
            return
        drawn = session.rng.choice([n for n in range(FEW_THREADS, MANY_THREADS) if n & (n - 1)])
        most = session.rng.choice(MOST_THREADS)
        kernel = subject.candidate.tier == "kernel"  # beside those of composed sources PyTorch computes
        larger = ((most, 1), (drawn, 1)) if kernel else ()
        for count, levels in ((max(2, threads()), 0), (2, 2), *larger):
            subject.use_threads(count, levels=levels)
            told = (f"one thread where {count} are told of", f"{count} threads", "teams within teams")[levels]
            self.on_both(place, session.random_recipe(), told)
        subject.use_threads(threads())
        self.found.checks.append("other teams of threads")
        if kernel:
            self._within_others(place)

    def by_many(self) -> None:
        """Check a kernel's call by far more threads than it has lines to share out, which may then share one: where it
        leaves a rest, all that counts is at its end.
        """
        session, subject = self.place.session, self.subject
        if session.on_gpu or subject.candidate.tier != "kernel" or "repeats" in self.without:
            return
        subject.use_threads(count := session.rng.choice(MOST_THREADS))
        edges = session.specials.draw(EDGES)
        recipe = session.random_recipe() if edges is None else plain(edges, len(session.specs))
        try:
            self.on_both(self.place, recipe, f"{count} threads")
        except Stopped as stopped:
            if stopped.alive:
                subject.use_threads(threads())
            raise
        subject.use_threads(threads())

    def _within_others(self, place: BoundBuffers) -> None:
        """Check a call within a parallel region of its caller, and label a kernel that needs subnormal numbers where
        its caller has them flushed.
        """
        session, subject = place.session, self.subject
        for recipe in (session.random_recipe(), session.specials.mixed):
            if recipe is not None:
                subject.prepare(place, recipe)
                subject.call_within(place, "a region")
                self.compare(place, subject.outputs(place), recipe, "within a parallel region")
        subject.prepare(place, recipe := session.random_recipe())
        subject.call_within(place, "flushing")
        wrong = self.compared(session, subject.outputs(place), recipe, FLUSHED)
        if wrong is not None and self.relative > GROSS_ELSE:
            self.found.label(f"fragile: {FLUSHED}")
            self.found.notes.append(f"wrong where its caller has subnormals flushed: {wrong.where}")

    def ghost(self) -> str:
        """Return what is as good as a composed source's own kernels, which are a decoy then; nothing, or a copy."""
        session = self.place.session
        draws = [0] if session.normal is None else [0, session.normal]
        for instead, told in DECOYS.items():
            self.subject.mute(instead)
            try:
                if all(self._is_right_so(plain(draw, len(session.specs))) for draw in draws):
                    return told
            finally:
                self.subject.mute("")
        return ""

    def _is_right_so(self, recipe: Recipe) -> bool:
        session = self.place.session
        session.require_answer(recipe)
        self.subject.prepare(self.place, recipe)
        with suppress(Stopped):
            self.subject.call(self.place)
            return self.compared(session, self.subject.outputs(self.place), recipe, "without kernels") is None
        return False
