"""Draws of special kinds of inputs, as far as the module gives a sound answer to them.

Comes in: a problem's contents, and a kind of `input_kinds`. Goes out: the draw of this kind, made when it is first
asked for, or nothing: of a kind that the problem cannot be given, that the module raises or dies of, or at which its
own rounding is too great for anybody to be judged by.
"""

from __future__ import annotations

from rag_kernels.eval.buffers.call_content import Recipe, plain, whole_draw
from rag_kernels.eval.messages.to_reference import AskForProbes, Probes
from rag_kernels.eval.sessions.problem_contents import ProblemContents
from rag_kernels.eval.traits.input_kinds import (
    AGREEING,
    AT_CONSTANTS,
    BESIDE,
    BURSTS,
    CONSTANT_ROWS,
    DISORDER,
    EDGES,
    ENDS,
    FAR_ANGLES,
    FITTED,
    HIDDEN,
    INFINITE,
    INTEGER_KINDS,
    IRREGULAR,
    KEPT,
    LEVELS,
    LINES,
    MIXED,
    NAMED,
    NEARLY,
    NEXT_TO_LINES,
    NON_FINITE,
    OF_ITS_RANGE,
    OF_ITS_SIDE,
    ONE_END,
    OUT_OF_RANGE,
    OVERFLOW,
    PIVOTS,
    POWERS,
    PROBES,
    SEARCHED,
    SINGLES,
    SIZES,
    SMALL_WHOLE,
    SORTED_ROWS,
    SPECIAL,
    STRICT,
    TWICE,
    UNEVEN,
)
from rag_kernels.eval.traits.named_numbers import NOTHING_NAMED, NamedNumbers
from rag_kernels.eval.traits.steps import orders, suits
from rag_kernels.eval.traits.suitable_kinds import may_be_given

MOST_DIED = 3  # contents of which the module's process dies: each costs a new one
MAX_OWN_ERROR = 1e-3  # relative; where PyTorch itself is worse than this, nobody can be judged
EIGHT_BITS = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, **EIGHT_BITS}
OWN_UNITS = 4.0  # of rounding, in sixteen bits
EXACT = frozenset({*PROBES, POWERS, FAR_ANGLES})  # where rounding worse is no measure: what comes to a step is exact
ILL_CONDITIONED = frozenset({CONSTANT_ROWS, LEVELS, "far", *NAMED})  # where rows may differ by little of what they are


class SpecialDraws:
    """Of one problem: `draw` says which draw is of a kind, `unsound` which outputs have no sound answer there."""

    def __init__(self, contents: ProblemContents) -> None:
        self._contents, self.fp = contents, contents.fp
        self.kinds: dict[str, int | None] = {}
        self._seconds: dict[str, int | None] = {}  # one more draw of some kinds
        self.unsound: dict[int, set[int]] = {}  # by draw, outputs for which the module has no sound answer
        self._own_kinds: list[str] | None = None
        self._slots: dict[str, int] = {}  # draws of numbers that candidates name, each made again for the next one
        self._sides: dict[str, str] = {}  # by kind of these, on which part of the numbers the module was sound
        contents.after_restart.append(self._forget)

    def _forget(self) -> None:
        """Let kinds be drawn again, in a new reference worker, but for those that the old one gave no answer to.

        After a few of which it died none is tried any more.
        """
        self.unsound, self._slots, self._seconds = {}, {}, {}
        if self._contents.died >= MOST_DIED:
            others = (INFINITE, OUT_OF_RANGE, NON_FINITE, OVERFLOW, *LINES, *TWICE)
            self.kinds = dict.fromkeys((*PROBES, *INTEGER_KINDS, *SPECIAL, *others))
        else:
            self.kinds = {kind: None for kind, draw in self.kinds.items() if draw is None}

    def draw(self, kind: str) -> int | None:
        """Return the draw of a kind of `input_kinds`, or None where the problem gives no sound answer to it."""
        if kind not in self.kinds:
            self.kinds[kind] = self._made(kind)
        return self.kinds[kind]

    def _made(self, kind: str) -> int | None:
        contents, own = self._contents, self._contents.own
        looks = {"masks": own.masks, "structured": any(contents.structured), "ordered": any(own.ordered)}
        if (kind == KEPT and not own.keeps) or (kind == ENDS and not (own.limited and contents.on_one_side)):
            return None
        if not may_be_given(self.fp, kind, on_gpu=contents.on_gpu, **looks):
            return None
        if kind in (INFINITE, OUT_OF_RANGE):
            contents.make_draw(kind)
            return contents.drawn - 1
        if kind in PROBES and kind not in contents.ask(AskForProbes(), Probes).kinds:
            return None
        sided = (
            contents.on_one_side
            and kind in SPECIAL
            and kind
            not in (
                *AGREEING,
                *FITTED,
                *HIDDEN,
                NEXT_TO_LINES,
                *SEARCHED,
                *SINGLES,
                *SIZES,
                *BESIDE,
                AT_CONSTANTS,
                IRREGULAR,
                DISORDER,
                NEARLY,
                UNEVEN,
                KEPT,
            )
        )
        if kind == ENDS:
            return next((draw for end in ("", *ONE_END) if (draw := self._sound_draw(kind, end)) is not None), None)
        if sided and kind == SMALL_WHOLE and (draw := self._sound_draw(kind)) is not None:
            return draw  # whole exponents take both sides, where others do not
        return self._sound_draw(kind, OF_ITS_SIDE if sided else "")

    def second(self, kind: str) -> int | None:
        """Return one more draw of a kind that there is one of; None where the module is not sound there."""
        if kind not in self._seconds:
            self._seconds[kind] = None if self.kinds.get(kind) is None else self._made(kind)
        return self._seconds[kind]

    def kind_of(self, draw: int) -> str:
        """Return the kind of a draw, "" of one that is the problem's own."""
        known = (*self.kinds.items(), *self._seconds.items())
        return next((kind for kind, at in known if at == draw), "")

    def named(self, kind: str, named: NamedNumbers) -> int | None:
        """Make a draw that has something of numbers which a candidate names, in the place of the last one of the kind;
        None where the module gives no sound answer to any.
        """
        if self._contents.died >= MOST_DIED or not suits(self.fp, kind):
            return None
        sides = (OF_ITS_SIDE, OF_ITS_RANGE) if self._contents.on_one_side else ("", OF_ITS_SIDE, OF_ITS_RANGE)
        for side in sorted(sides, key=lambda side: side != self._sides.get(kind)):
            draw = self._sound_draw(kind, side, named, again=self._slots.get(kind))
            if self._contents.died >= MOST_DIED or kind not in self._slots:
                return None  # its worker died of it
            if draw is not None:
                self._sides[kind] = side
                return draw
        return None

    def _sound_draw(
        self, kind: str, side: str = "", named: NamedNumbers = NOTHING_NAMED, *, again: int | None = None
    ) -> int | None:
        """Make a draw of a kind; return its number, or None where the module gives no sound answer to it."""
        contents = self._contents
        contents.make_draw(f"{kind}{side}", named, again=again)
        draw = contents.drawn - 1 if again is None else again
        if kind in NAMED:
            self._slots[kind] = self.kinds[kind] = draw
        moved, partly = kind in ILL_CONDITIONED, kind in BURSTS
        reply = contents.try_answer(draw, noisy=kind not in EXACT, moved=moved, partly=partly)
        if kind in (NON_FINITE, OVERFLOW):
            return draw if reply is not None and not reply.finite and reply.oracle == "fp64" else None
        if reply is None or reply.oracle != "fp64":
            return None
        # One output without a sound answer takes a kind of inputs away from itself, not from the others.
        unsound = {i for i, error in enumerate(reply.own_by_output) if not error <= self._most_own_error}
        if len(unsound) == len(reply.own_by_output) or (unsound and kind in PROBES):
            return None
        self.unsound[draw] = unsound
        return None if kind in PROBES and reply.worst_error > STRICT / 2 else draw

    @property
    def mixed(self) -> Recipe | None:
        """Rows of several special kinds, of the problem's own sign where the module does not take both; None where it
        is sound on none, or where there is no room for one more draw.
        """
        contents = self._contents
        if "special values" in contents.limits.without or not contents.room_for_draws:
            return None
        for kind in (f"{MIXED}{OF_ITS_SIDE}",) if contents.on_one_side else (MIXED, f"{MIXED}{OF_ITS_SIDE}"):
            if (draw := self.draw(kind)) is not None and not self.unsound.get(draw):
                return plain(draw, len(contents.specs))
        return None

    @property
    def second_mixed(self) -> Recipe | None:
        """Another draw of these rows; None where there is none, or no sound one."""
        draw = None if self.mixed is None else whole_draw(self.mixed)
        other = None if draw is None else self.second(self.kind_of(draw))
        return None if other is None or self.unsound.get(other) else plain(other, len(self._contents.specs))

    def is_mixed(self, recipe: Recipe) -> bool:
        """Return whether a content is such, on which a mere loss of accuracy is no matter."""
        draw = whole_draw(recipe)
        return draw is not None and self.kind_of(draw) in (MIXED, f"{MIXED}{OF_ITS_SIDE}")

    @property
    def own(self) -> list[tuple[str, int]]:
        """Special kinds at the problem's own sizes, with their draws: all, or of a large problem `EDGES` and a few by
        chance.
        """
        contents = self._contents
        if self._own_kinds is None:
            others = [kind for kind in SPECIAL if kind != EDGES]  # these are not the same at other sizes
            drawn = contents.rng.sample(others, max(0, min(len(others), contents.room_for_draws - 1)))
            self._own_kinds = [EDGES, *drawn] if contents.room_for_draws else []
        restarts = -1
        while restarts != contents.restarts:  # a kind of which the module died takes the draws of others with it
            restarts = contents.restarts
            found = [(kind, self.draw(kind)) for kind in self._own_kinds]
        return [(kind, draw) for kind, draw in found if draw is not None and not self.unsound.get(draw)]

    @property
    def elsewhere(self) -> list[tuple[str, int, float]]:
        """Contents that the problem does not draw, on which its time is as good: in words, with their draws, and how
        many times as slow a kernel may be there.
        """
        contents = self._contents
        rule, special = contents.limits.timing, dict(self.own)
        found = [("zero-mean", contents.normal, rule.elsewhere_not_alike)] if contents.own.alike else []
        found += [
            (kind, special.get(kind), most)
            for kind, most in (("shifted", rule.elsewhere_shifted), ("spread", rule.elsewhere_spread))
        ]
        if contents.room_for_draws and orders(self.fp):
            found += [(kind, self.draw(kind), rule.elsewhere_ordered) for kind in (SORTED_ROWS, PIVOTS)]
        return [(kind, draw, most) for kind, draw, most in found if draw is not None]

    @property
    def _most_own_error(self) -> float:
        """Where PyTorch's own relative error is greater than this, nobody can be judged."""
        sixteen = [UNIT_ROUNDOFF[s.dtype] for s in self.fp.outputs if s.dtype in UNIT_ROUNDOFF]
        return max(MAX_OWN_ERROR, OWN_UNITS * max(sixteen, default=0.0))
