"""Is a candidate right? One function a check, cheapest first; each ends the trial if it finds something.

Comes in: a LoadedCandidate bound to buffers of a ProblemSession. Goes out: labels ("fragile: large") and what was
checked. Whether a call is checked, and how, is decided here after the call, in secret.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, pairwise
from typing import NoReturn

import numpy as np

from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot
from rag_kernels.eval.input_kinds import (
    ALIKE,
    BEGUN,
    BRINK,
    CONSTANT_ROWS,
    DISORDER,
    FADING,
    FAR_APART,
    HUGE,
    INFINITE,
    INTEGER_KINDS,
    LOWERED,
    MASKED,
    MOVED,
    MULTIPLES,
    NON_FINITE,
    OUT_OF_RANGE,
    OVERFLOW,
    PADDED,
    PEAKS,
    PROBES,
    RAISED,
    REPEATED,
    ROOTS,
    SPECIAL,
    TWICE,
    WHOLE,
    WIDE,
)
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.messages.to_candidate import Instead
from rag_kernels.eval.process.process_tree import Resident
from rag_kernels.eval.records import LEAKS, SETTINGS, Crashed, Rejected, Wrong
from rag_kernels.eval.sessions.candidate_session import BoundBuffers, LoadedCandidate, Stopped
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.steps import alike_inputs, multiplies_spread
from rag_kernels.eval.timing.race import Kept

# Relative errors that are no matter of accuracy any more; larger where most digits cancel.
GROSS = {"shifted": 0.5, "far": 0.5, "constant rows": 0.5, RAISED: 0.5, LOWERED: 0.5}
GROSS_ELSE = 0.05
RARE = "rare spikes"
SOFT = frozenset(
    {"tiny", BRINK, DISORDER, FADING, FAR_APART, HUGE, MASKED, PEAKS, ROOTS, WHOLE, *TWICE}
)  # kinds on which even a gross error is only a label
LEAST_LOOKED_AT = 4
FEW_THREADS, MANY_THREADS = 17, 40  # between these one number is drawn
MOST_THREADS = range(130, 160)  # and one of these: machines have as many
MANY_CALLS, MANY_S = 70_000, 4.0  # more than 16 bits count to, and how long they may take
WARM_CALLS, WARM_S = 3000, 0.5  # of these, in which a process takes what it then keeps
LEAK_BYTES, LEAK_A_CALL = 1 << 20, 16  # in the calls after these, and in each: the least that an allocation takes
# Reads of a process's memory, at least and most: a leak grows between any two, others by huge pages now and then.
LEAK_PARTS, LEAK_READS = 3, 6
# Threads that call it once each, and numbers of lines, in a part of them; and how long a part may take.
FEW_CALLERS, MANY_CALLERS, LEAST_LINES, MOST_LINES, KEEPS_S = 24, 500, 8, 32, 0.3
TOGETHER = 48  # calls of each of two callers, in MANY_S at most
BESIDE = 0.25  # of a call's time, or by tier: what honest ones took, at work with others, was 130 and 160 us
BESIDE_KERNEL_S, BESIDE_PYTHON_S = 200e-6, 300e-6
DECOYS: dict[Instead, str] = {
    "nothing": "without them",
    "the first": "with copies of an argument in their place",
    "the last": "with copies of an argument in their place",
}
AFTER_REFUSED = "after a call that it refused"
HALVES = "another forward before the backward"
FINITE_ONLY = "finite-only"  # one honest kernel in four, by its comparisons
# Words of `numerics.rounding_faults`.
LEANS, IN_COMMON, THROUGHOUT, PLAINLY = "leans", "go together", "throughout", "plainly"
MOST_LATE = 4  # arguments that come last, one a call
READS_EARLY = "It reads parameters before the kernel before it has ended: right where that one does not write them."
IDLE_S = 0.01  # how long a worker is watched after a call
LATE_TRIES = 3  # calls that are watched for a late write when one was wrong
LITTLE_S = 150e-6
TRIES = 9  # with five an honest module was rejected once, beside a test suite
ALLOWED = {"strict": ("strict", "split-precision"), "tf32": ("strict", "split-precision", "tf32")}


def _kept(held: Sequence[tuple[int, Resident | None]]) -> int:
    """Return how many bytes calls keep that keep some in each part of them; 0 where one part keeps none to speak of.

    `held` says after how many calls a process had how much in memory. In one part an honest kernel grows by a huge page
    that the system makes of small ones (2 MiB); on a busy machine, where a part is a few calls, in two.
    """
    known = [(made, resident.own) for made, resident in held if resident is not None]
    if len(known) < len(held) or len(known) < 2 or known[-1][0] == known[0][0]:
        return 0
    calls = known[-1][0] - known[0][0]
    grown = int(min((b - a) / max(1, until - made) for (made, a), (until, b) in pairwise(known)) * calls)
    return grown if grown > max(LEAK_BYTES, LEAK_A_CALL * calls) else 0


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
        wrong = self._compare(place.session, outputs, recipe, input_class)
        if wrong is not None:
            self._stop(place, recipe, wrong)

    def _stop(self, place: BoundBuffers, recipe: Recipe, wrong: Wrong) -> NoReturn:
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
        wrong = self._compare(kept.place.session, kept.outputs, kept.recipe, kept.kind, noisy=True)
        self._note_special(kept.place, kept.recipe, wrong, kept.kind)

    def _note_special(self, place: BoundBuffers, recipe: Recipe, wrong: Wrong | None, kind: str) -> None:
        """End the trial for a gross error on special values, and label a loss of accuracy."""
        if wrong is None:
            return
        if kind in (NON_FINITE, OVERFLOW):
            self.found.label(FINITE_ONLY)
            what = "inputs are NaN or infinite" if kind == NON_FINITE else "results exceed half precision"
            self.found.notes.append(f"differs from PyTorch where {what}: {wrong.where}")
            return
        if self.relative > GROSS.get(kind, GROSS_ELSE) and kind not in SOFT:
            self._stop(place, recipe, wrong)
        self.found.label(f"fragile: {kind}")
        self.found.notes.append(f"less exact on inputs of the kind `{kind}`: {wrong.where}")

    def _compare(
        self, session: ProblemSession, outputs: OutputSnapshot, recipe: Recipe, input_class: str, *, noisy: bool = False
    ) -> Wrong | None:
        results = session.check(outputs, recipe, noisy=noisy)
        for number, result in enumerate(results):
            if result.ok and result.rounding:
                self.found.rounding.append(result.rounding)
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
            self._call_and_compare(self.place, recipe, input_class)
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
        """Label outputs of 16 bits whose errors lean, or that rows have in common, in two draws at least; what is off
        throughout in fp32 is none of it.
        """
        for kind in (LEANS, IN_COMMON):
            seen = [text for text in self.found.rounding if kind in text]
            if len(seen) > 1:
                self.found.label("suspicious: rounding leans" if kind == LEANS else "rounds in between")
                self.found.notes.append(seen[0])
        off = [text for text in self.found.rounding if THROUGHOUT in text]
        if (len(off) > 1 or any(PLAINLY in text for text in off)) and self.found.precision == "strict":
            self.found.precision = "split-precision"
            self.found.notes.append(off[0])

    def own_draws(self) -> None:
        """Check only the problem's own kind of inputs; nothing is noted."""
        for draw in range(self.place.session.own_draws):
            self._call_and_compare(self.place, plain(draw, len(self.place.session.specs)), "own draw")

    def beyond(self) -> None:
        """Check at larger sizes what adds up there: one integer throughout, and a few large numbers anywhere."""
        session = self.place.session
        for kind in (ALIKE, RARE):
            draw = session.special(kind)
            if draw is None:
                continue
            recipe = plain(draw, len(session.specs))
            self.subject.prepare(self.place, recipe)
            self.subject.call(self.place)
            wrong = self._compare(session, self.subject.outputs(self.place), recipe, kind)
            if wrong is not None and (kind == ALIKE or self.relative > GROSS_ELSE):
                self._stop(self.place, recipe, wrong)

    def first_draw(self, layout: str) -> None:
        """Check one call on what was there when it was bound; nothing is noted."""
        self._call_and_compare(self.place, plain(0, len(self.place.session.specs)), layout)

    def _call_and_compare(self, place: BoundBuffers, recipe: Recipe, input_class: str) -> None:
        subject, session = self.subject, place.session
        session.require_answer(recipe)
        subject.prepare(place, recipe)
        before = subject.input_hash(place)
        subject.call(place)
        image, outputs = subject.fingerprint(place), subject.outputs(place)
        self.compare(place, outputs, recipe, input_class)
        if before != subject.input_hash(place):
            raise Stopped(Rejected("input_mutated", "The candidate changed its inputs."))
        self._require_unchanged(place, outputs, image)

    def _require_unchanged(self, place: BoundBuffers, outputs: OutputSnapshot, image: bytes) -> None:
        """Require that what was there when the call returned still is: in full on a CPU, by a fingerprint on a GPU."""
        if "late-write check" in self.without:
            return
        if not self.subject.handed_over(place, outputs, image):
            raise Stopped(Rejected("late_write", "The outputs are not those that were there when the call returned."))
        on_gpu = place.session.on_gpu
        if image != self.subject.fingerprint(place) or (not on_gpu and not self.subject.still_has(place, outputs)):
            raise Stopped(Rejected("late_write", "The outputs changed after the call had returned."))
        place.seen = image

    def waits_for_its_inputs(self) -> None:
        """Require on a GPU that inputs are read that come on the stream of the call, behind what is queued there.

        Parameters may be read before: what a forward never writes no kernel before it has to bring. That is told.
        Nothing may be written as long as a kernel before may read what stands there.
        """
        session = self.place.session
        if not session.on_gpu or "late-write check" in self.without:
            return
        recipe, numbers = session.random_recipe(), range(len(session.specs))
        awaited = session.comes_from_before or list(numbers)
        for last in session.rng.sample(awaited, min(MOST_LATE, len(awaited))):
            if self._is_right_early(recipe, last):
                continue
            why = (
                "It does not wait for the stream that it is called on: inputs that come there before it were not read. "
                "Launch on that stream, join others to it, and let a programmatic dependent launch wait "
                "(griddepcontrol.wait) before it reads."
            )
            raise Stopped(Rejected("early_read", why))
        self.found.checks.append("inputs that come late")
        kept = [i for i in numbers if i not in awaited]
        if any(not self._is_right_early(recipe, i) for i in session.rng.sample(kept, min(MOST_LATE, len(kept)))):
            self.found.notes.append(READS_EARLY)
        for _ in range(2):  # over two poisons, one of which is none of zeros
            self.subject.call_watched(self.place, recipe)
            self.compare(self.place, self.subject.outputs(self.place), recipe, "own draw")
        self.found.checks.append("outputs that are still read")

    def _is_right_early(self, recipe: Recipe, last: int) -> bool:
        """Return whether a call is right whose arguments are still to come, this one last.

        Where it is not, it has to be right on the same content when that is there: else it is wrong whenever it comes.
        """
        self.subject.call_early(self.place, recipe, last)
        outputs = self.subject.outputs(self.place)
        if self._compare(self.place.session, outputs, recipe, "late inputs") is None:
            return True
        self._call_and_compare(self.place, recipe, "own draw")
        return False

    def nothing_came_later(self) -> None:
        """Require that what the last call at every other place left is there at the end.

        No thread has slept that long.
        """
        for place in self.subject.places:
            if place.seen and place.seen != self.subject.fingerprint(place):
                raise Stopped(Rejected("late_write", "The outputs changed long after the call had returned."))

    def nothing_beside(self) -> None:
        """Require that what is computed for a call is computed within its time.

        Neither before it, nor after its answer.

        By the CPU's clocks of the calls that were looked at closely. Most have to show it: a call that does so now and
        then gains nothing by it, and a machine at work disturbs some.
        """
        accounts = [a for a in self.subject.accounts if a.is_exact]
        if "activity check" in self.without or len(accounts) < LEAST_LOOKED_AT:
            return
        beside = sorted(a.beside_s for a in accounts)
        beside_s, call_s = beside[2 * len(beside) // 5], statistics.median(a.call_s for a in accounts)
        kernel = self.subject.candidate.tier == "kernel"
        little_s = max(BESIDE_KERNEL_S if kernel else BESIDE_PYTHON_S, BESIDE * call_s)
        why = f"It computes beside its calls: {beside_s * 1e6:.0f} us of CPU time before they begin or after they end."
        if beside_s > 2 * little_s:
            raise Stopped(Rejected("background_work", why))
        if beside_s > little_s:
            self.found.label("suspicious: works outside its time")
            self.found.notes.append(why)
        self.found.checks.append("nothing beside the calls")

    def done_means_done(self) -> None:
        """Require that once a call has returned nothing is written or computed, nor when its outputs are collected.

        Two clean tries out of a few will do, since other work on the machine disturbs one now and then.
        """
        busy: list[float] = []
        late: list[float] = []
        for _ in range(TRIES):
            spent, collecting = self._after_a_call()
            busy = sorted([*busy, spent])
            late = sorted([*late, collecting])
            if len(busy) > 1 and max(busy[1], late[1]) <= self._little_s:
                break
        why = ""
        if "activity check" not in self.without and busy[1] > self._little_s:
            why = f"It computes on after its call has returned: {busy[1] * 1e6:.0f} us of CPU time."
        if "activity check" not in self.without and late[1] > self._little_s:
            why = f"It computes when its outputs are collected: {late[1] * 1e6:.0f} us of CPU time more than later."
        if why:
            raise Stopped(Rejected("background_work", why))
        if "idle after the call" not in self.found.checks:
            self.found.checks.append("idle after the call")

    @property
    def _little_s(self) -> float:
        """CPU seconds that a worker may use after its answer: some for waking up, little beside the problem's own."""
        return max(LITTLE_S, 0.3 * min(self.place.session.call_s, IDLE_S))

    def _after_a_call(self) -> tuple[float, float]:
        """Make one call; return CPU seconds used after it, and by how many the first collection of outputs took more
        than another.
        """
        session = self.place.session
        self.subject.prepare(self.place, plain(0, len(session.specs)))
        self.subject.call(self.place, stand=False)
        if session.on_gpu:  # outputs of the calls that are compared are collected, which is not timed
            return self.subject.busy_s(IDLE_S), 0.0
        kernel = self.subject.candidate.tier == "kernel"
        image = self.subject.fingerprint(self.place) if kernel else b""  # elsewhere looking would be collecting
        busy_s = self.subject.busy_s(IDLE_S)
        image = image or self.subject.fingerprint(self.place)
        before_s = self.subject.used_s()
        outputs = self.subject.outputs(self.place)
        first_s = self.subject.used_s() - before_s
        time.sleep(IDLE_S)  # as long as before the first collection
        self._require_unchanged(self.place, outputs, image)
        if kernel:
            return busy_s, 0.0
        before_s = self.subject.used_s()
        self.subject.outputs(self.place)
        return busy_s, first_s - (self.subject.used_s() - before_s)

    def probe(self, place: BoundBuffers) -> None:
        """Find the precision class from products that are exact in fp32, and from the errors of others."""
        session = place.session
        self.found.precision = session.limits.precision if session.fp.features.flops > 0 else "strict"
        tried = [] if "exactness probe" in self.without else [session.special(kind) for kind in PROBES]
        shown = [self._precision(place, draw) for draw in tried if draw is not None]
        self.found.checks += ["exactness probe"] * bool(shown)
        if found := self._kept_bits(place):
            shown.append(found)
        if shown:
            self._take_precision(session, shown)

    def factors(self) -> None:
        """Require at the problem's own sizes too that no factors of products are cut."""
        if found := self._kept_bits(self.place):
            self._take_precision(self.place.session, [found])

    def _kept_bits(self, place: BoundBuffers) -> tuple[str, float] | None:
        """Return a lower precision that errors on an ordinary draw tell of, and its relative error."""
        session = place.session
        multiplies = session.fp.features.flops or multiplies_spread(session.fp)
        if "exactness probe" in self.without or not multiplies or not session.room_for_draws:
            return None
        draw = 0 if session.normal is None else session.normal
        session.require_answer(plain(draw, len(session.specs)))
        name, error = self._precision(place, draw, ordinary=True)
        self.found.checks += ["factors of products"] * bool(name)  # else there was no memory for it
        return (name, error) if error else None

    def _take_precision(self, session: ProblemSession, shown: Sequence[tuple[str, float]]) -> None:
        """Take the lowest precision that was shown; end the trial where that is lower than allowed."""
        limits = session.limits
        allowed = ALLOWED.get(limits.precision)
        if lower := [one for one in shown if allowed is not None and one[0] not in allowed and one[1] < 0.1]:
            precision, error = max(lower, key=lambda found: found[1])
            raise Stopped(
                Rejected(
                    "lower_precision",
                    f"Products are computed in {precision}: they show a relative error of {error:.1e}. "
                    f"Compute in {'fp32' if limits.precision == 'strict' else 'TF32 or fp32'}.",
                )
            )
        name, error = max(shown, key=lambda found: np.nan_to_num(found[1], nan=np.inf))
        if error >= self.found.precision_error:
            self.found.precision, self.found.precision_error = name, error

    def _precision(self, place: BoundBuffers, draw: int, *, ordinary: bool = False) -> tuple[str, float]:
        """Return the precision class that products show on a probe's draw or an ordinary one, and its error."""
        self.subject.prepare(place, plain(draw, len(place.session.specs)))
        self.subject.call(place)
        return place.session.precision(self.subject.outputs(place), draw, ordinary=ordinary)

    def special_values(self, place: BoundBuffers, kinds: Sequence[str] = (*SPECIAL, NON_FINITE, OVERFLOW)) -> None:
        """Try unusual inputs on which the problem itself is sound, with every tensor ending at a guard page."""
        if "special values" in self.without:
            return
        tried = []
        for kind in place.session.rng.sample(kinds, len(kinds)):
            draw = place.session.special(kind)
            if draw is None:
                continue
            recipe = plain(draw, len(place.session.specs))
            self.subject.prepare(place, recipe)
            self.subject.call(place)
            wrong = self._compare(place.session, self.subject.outputs(place), recipe, kind)
            self._note_special(place, recipe, wrong, kind)
            tried.append(kind)
        if tried:
            self.found.checks.append(f"{len(tried)} kinds of special values")

    def stale_lines(self, place: BoundBuffers) -> None:
        """Require that what is made of a content is made anew where the same lines of it come in another order."""
        if "special values" in self.without:
            return
        session, subject = place.session, self.subject
        for kind in MOVED:
            moved = session.special(kind)
            draws = [moved if moved is None else session.special(BEGUN), moved]
            if None in draws:
                continue
            for draw in draws:
                assert draw is not None
                recipe = plain(draw, len(session.specs))
                subject.prepare(place, recipe)
                subject.call(place)
            wrong = self._compare(session, subject.outputs(place), recipe, kind)
            self._note_special(place, recipe, wrong, kind)
            self.found.checks.append(kind)

    def one_twice(self, place: BoundBuffers) -> None:
        """Require that one tensor given for two arguments is as good as two with the same content (CPU).

        What is wrong for two of them as well is a label.
        """
        session, subject = place.session, self.subject
        if "special values" in self.without:
            return
        kinds = [(kind, draw) for kind in TWICE if (draw := session.special(kind)) is not None]
        one = subject.bind(session, tight=True, same=alike_inputs(session.fp)) if kinds and not session.on_gpu else None
        for kind, draw in kinds:
            recipe = plain(draw, len(session.specs))
            for at in (place, one):
                if at is None:
                    continue
                subject.prepare(at, recipe)
                subject.call(at)
                wrong = self._compare(session, subject.outputs(at), recipe, kind)
                if wrong is not None and at is one:
                    self._stop(at, recipe, wrong)
                self._note_special(at, recipe, wrong, kind)
                if wrong is not None:
                    break
            self.found.checks.append(kind)

    def integers(self, place: BoundBuffers) -> bool:
        """Try integers of other kinds than the problem draws; False if the worker is lost.

        Few values that come again are such as it might draw: what is wrong there is wrong. What is beyond is a label.
        """
        if "special values" in self.without:
            return True
        session = place.session
        for kind in INTEGER_KINDS:
            draw = session.special(kind)
            if draw is None:
                continue
            recipe = plain(draw, len(session.specs))
            try:
                self._call_and_compare(place, recipe, kind)
            except Stopped as stopped:
                if isinstance(stopped.verdict, Rejected) or kind in (REPEATED, MULTIPLES, ALIKE, PADDED):
                    raise
                self.found.label(f"fragile: {kind}")
                why = getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", "")
                beyond = f"not for {session.wide if kind == WIDE else kind}"
                self.found.notes.append(f"right for integers as the problem draws them, {beyond}: {why}")
                if not stopped.alive:
                    return False
                continue
            self.found.checks.append(kind)
        return True

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
        if not session.on_gpu:
            subject.use_threads(threads())
        if len(seen) > 1:
            self.found.label("nondeterministic")
        self.found.checks.append(f"{len(counts)} repeats")

    def elsewhere(self, place: BoundBuffers) -> None:
        """Check one call on tensors that lie in memory as PyTorch's do, and neither begin nor end at a page."""
        self._call_and_compare(place, place.session.random_recipe(), "elsewhere in memory")
        self.found.checks.append("elsewhere in memory")

    def teams(self, place: BoundBuffers) -> None:
        """Check a call that gets fewer threads than it is told of, and one with more than most machines have."""
        session, subject = place.session, self.subject
        if session.on_gpu or "repeats" in self.without:
            return
        drawn = session.rng.choice([n for n in range(FEW_THREADS, MANY_THREADS) if n & (n - 1)])
        most = session.rng.choice(MOST_THREADS)
        for count, alone in ((max(2, threads()), True), (most, False), (drawn, False)):
            subject.use_threads(count, alone=alone)
            told = f"one thread where {count} are told of" if alone else f"{count} threads"
            self._call_and_compare(place, session.random_recipe(), told)
        subject.use_threads(threads())
        self.found.checks.append("other teams of threads")

    def leaves_nothing(self) -> None:
        """Require that threads compute after calls as before them, and label settings of OpenMP that are others."""
        if self.place.session.on_gpu or "activity check" in self.without:
            return
        left = self.subject.state()
        if not left.arithmetic:
            why = (
                "The candidate left threads of OpenMP flushing subnormals, rounding otherwise, or without long double."
            )
            raise Stopped(Rejected("floating_point_state", why))
        if not left.settings:
            self.found.label(SETTINGS)
            return
        self.found.checks.append("nothing left behind")

    def infinities(self) -> None:
        """Make a call on nothing but infinities: a later one may find nothing of it."""
        draw = self.place.session.special(INFINITE)
        if draw is not None and "special values" not in self.without:
            self.subject.prepare(self.place, plain(draw, len(self.place.session.specs)))
            self.subject.call(self.place)

    def after_refused(self, place: BoundBuffers) -> None:
        """Require that it is right after a call whose indices it refused; one that takes such is asked no more."""
        draw = None if "special values" in self.without else place.session.special(OUT_OF_RANGE)
        if draw is None:
            return
        self.subject.prepare(place, plain(draw, len(place.session.specs)))
        try:
            self.subject.call(place)
        except Stopped as stopped:
            if not stopped.alive or not (isinstance(stopped.verdict, Crashed) and stopped.verdict.raised):
                return
            self._call_and_compare(place, place.session.random_recipe(), AFTER_REFUSED)
            self.found.checks.append(AFTER_REFUSED)

    def many_calls(self, place: BoundBuffers) -> None:
        """Check that it is right after many calls, on contents of which it has seen others before."""
        session, subject = place.session, self.subject
        subject.use_threads(1)
        draws = [draw for kind in (REPEATED, CONSTANT_ROWS) if (draw := session.special(kind)) is not None]
        recipe, made = plain(draws[0] if draws else 0, len(session.specs)), 0
        subject.prepare(place, recipe)
        held: list[tuple[int, Resident | None]] = []  # after how many calls, and what is in memory then
        half = (MANY_CALLS - WARM_CALLS) // 2, (MANY_S - WARM_S) / 2
        while len(held) < LEAK_PARTS or (_kept(held) and len(held) < LEAK_READS):
            most, limit_s = half if held else (WARM_CALLS, WARM_S)
            ends, until = time.monotonic() + limit_s, made + most
            for _ in range(TRIES if held else 1):
                called = subject.call_on(place, until - made, max(0.0, ends - time.monotonic()))
                made += called.times
                wrong = self._compare(session, subject.outputs(place), recipe, f"after {made} calls", noisy=bool(draws))
                if wrong is not None:
                    self._stop(place, recipe, wrong)
                if not called.differs or made >= until or time.monotonic() >= ends:
                    break
            held.append((made, subject.worker.resident()))
        self._note_leak(held)
        subject.use_threads(threads())
        self.found.checks.append(f"{made} calls in a row")

    def _note_leak(self, held: Sequence[tuple[int, Resident | None]]) -> None:
        """Label a kernel each of whose calls keeps memory."""
        if grown := _kept(held):
            calls = held[-1][0] - held[0][0]
            self.found.label(LEAKS)
            self.found.notes.append(f"{calls} calls keep {grown / 2**20:.1f} MiB, {grown // calls} bytes each")

    def keeps_nothing(self, place: BoundBuffers, sized: BoundBuffers | None) -> None:
        """Label a kernel that keeps memory for each thread that has called it, or for each number of lines that it was
        called on where there is room for many (`sized`). It may keep what its largest call needs.
        """

        def by_threads(times: int) -> int:
            return self.subject.call_by_threads(place, times, KEEPS_S).times

        def on_first(where: BoundBuffers, counts: Iterator[int], times: int) -> int:
            return self.subject.call_on_first(where, list(islice(counts, times)), KEEPS_S).times

        if LEAKS in self.found.labels:  # what each call keeps would be told again
            return
        for times in FEW_CALLERS, MANY_CALLERS:
            if self._keeps_for_each("thread that calls it", partial(by_threads, times)):
                return
        lines = next(iter(sized.session.fp.outputs[0].shape), 0) if sized else 0
        if sized and (each := min(MOST_LINES, lines // LEAK_READS)) >= LEAST_LINES:
            counts = chain([lines], sized.session.rng.sample(range(1, lines), lines - 1))
            if self._keeps_for_each("number of lines", partial(on_first, sized, counts, each)):
                return
        self.found.checks.append("other threads and sizes keep nothing")

    def _keeps_for_each(self, what: str, call: Callable[[], int]) -> bool:
        """Label a kernel that keeps memory for each of what parts of its calls differ in; return whether it does."""
        held: list[tuple[int, Resident | None]] = []
        try:
            while len(held) < LEAK_PARTS or (_kept(held) and len(held) < LEAK_READS):
                made = call()
                held.append((made + (held[-1][0] if held else 0), self.subject.worker.resident()))
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            reason = getattr(stopped.verdict, "reason", "")
            self.found.notes.append(f"not seen to keep nothing for each {what}: {reason}"[:300])
            return True
        if grown := _kept(held):
            self.found.label(LEAKS)
            calls = held[-1][0] - held[0][0]
            self.found.notes.append(f"{calls} calls keep {grown / 2**20:.1f} MiB, some for each {what}")
        return bool(grown)

    def together(self, first: BoundBuffers, second: BoundBuffers, call_s: float) -> str:
        """Return what goes wrong where two threads call it at once, or nothing; a call takes so long."""
        times = max(2, min(TOGETHER, int(MANY_S / max(call_s, 1e-9))))
        places = first, second
        recipes = [place.session.random_recipe() for place in places]
        for place, recipe in zip(places, recipes, strict=True):
            place.session.require_answer(recipe)
            self.subject.prepare(place, recipe)
        try:
            for _ in range(TRIES):
                called = self.subject.call_together(first, second, times)
                for place, recipe in zip(places, recipes, strict=True):
                    self.compare(place, self.subject.outputs(place), recipe, "two callers at once")
                if not called.differs:
                    break
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            return str(getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", ""))
        self.found.checks.append("two callers at once")
        return ""

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
            return self._compare(session, self.subject.outputs(self.place), recipe, "without kernels") is None
        return False
