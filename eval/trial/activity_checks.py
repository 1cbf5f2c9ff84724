"""Is a call's work done within the call: its inputs awaited, nothing computed or written before it or after it?

Comes in: the Checks of a loaded candidate. Goes out: what was checked; the trial ends where work is done elsewhere.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.records import Rejected, Tier
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import Account
from rag_kernels.eval.trial.checks import IDLE_S, TRIES, Checks

LEAST_LOOKED_AT = 4
BESIDE = 0.25  # of a call's time, or by tier: what honest ones took, at work with others, was 130 and 160 us
BESIDE_KERNEL_S, BESIDE_PYTHON_S = 200e-6, 300e-6
LEFT = 0.05  # the same for what threads go on with, each of which takes some time to fall asleep
LEFT_S, LEFT_BY_EACH_S = 50e-6, 5e-6
BESIDE_THEM = "before they begin or after they end"
LOOKS_AGAIN = 4
APART_S = 0.2  # between the second such look and the first, and so much more before each further one
MOST_LATE = 4  # arguments that come last, one a call
READS_EARLY = "It reads parameters before the kernel before it has ended: right where that one does not write them."
LITTLE_S = 150e-6


def waits_for_its_inputs(checks: Checks) -> None:
    """Require on a GPU that inputs are read that come on the stream of the call, behind what is queued there.

    Parameters may be read before: what a forward never writes no kernel before it has to bring. That is told.
    Nothing may be written as long as a kernel before may read what stands there.
    """
    session = checks.place.session
    if not session.on_gpu or "late-write check" in checks.without:
        return
    recipe, numbers = session.random_recipe(), range(len(session.specs))
    awaited = session.comes_from_before or list(numbers)
    for last in session.rng.sample(awaited, min(MOST_LATE, len(awaited))):
        if _is_right_early(checks, recipe, last):
            continue
        why = (
            "It does not wait for the stream that it is called on: inputs that come there before it were not read. "
            "Launch on that stream, join others to it, and let a programmatic dependent launch wait "
            "(griddepcontrol.wait) before it reads."
        )
        raise Stopped(Rejected("early_read", why))
    checks.found.checks.append("inputs that come late")
    kept = [i for i in numbers if i not in awaited]
    if any(not _is_right_early(checks, recipe, i) for i in session.rng.sample(kept, min(MOST_LATE, len(kept)))):
        checks.found.notes.append(READS_EARLY)
    for _ in range(2):  # over two poisons, one of which is none of zeros
        checks.subject.call_watched(checks.place, recipe)
        checks.compare(checks.place, checks.subject.outputs(checks.place), recipe, "own draw")
    checks.found.checks.append("outputs that are still read")


def _is_right_early(checks: Checks, recipe: Recipe, last: int) -> bool:
    """Return whether a call is right whose arguments are still to come, this one last.

    Where it is not, it has to be right on the same content when that is there: else it is wrong whenever it comes.
    """
    checks.subject.call_early(checks.place, recipe, last)
    outputs = checks.subject.outputs(checks.place)
    if checks.compared(checks.place.session, outputs, recipe, "late inputs") is None:
        return True
    checks.call_and_compare(checks.place, recipe, "own draw")
    return False


def nothing_came_later(checks: Checks) -> None:
    """Require that what the last call at every other place left is there at the end.

    No thread has slept that long.
    """
    for place in checks.subject.places:
        if place.seen and place.seen != checks.subject.fingerprint(place):
            raise Stopped(Rejected("late_write", "The outputs changed long after the call had returned."))


def nothing_beside(checks: Checks, look_again: Callable[[int], None]) -> None:
    """Require that what is computed for a call is computed within its time.

    Neither before it, nor after its answer.

    By the CPU's clocks of the calls that were looked at closely. Most have to show it: a call that does so now and
    then gains nothing by it, and a machine at work disturbs some. So have those that are looked at again, farther and
    farther apart: caches that other programs have taken cost CPU time, too, for as long as these are at work.
    """
    accounts = [a for a in checks.subject.accounts if a.is_exact]
    if "activity check" in checks.without or len(accounts) < LEAST_LOOKED_AT:
        return
    tier = checks.subject.candidate.tier
    found = beside(tier, accounts)
    for look in range(LOOKS_AGAIN):
        if found.share <= 1:
            break
        time.sleep(look * APART_S)
        known = len(checks.subject.accounts)
        look_again(len(accounts))
        again = [a for a in checks.subject.accounts[known:] if a.is_exact]
        found = min(found, beside(tier, again), key=lambda one: one.share)
    why = f"It computes beside its calls: {found.spent_s * 1e6:.0f} us of CPU time {found.when}."
    if found.share > 2:
        raise Stopped(Rejected("background_work", why))
    if found.share > 1:
        checks.found.label("suspicious: works outside its time")
        checks.found.notes.append(why)
    checks.found.checks.append("nothing beside the calls")


@dataclass(frozen=True, slots=True)
class Beside:
    """CPU seconds that most calls took at some other time than theirs, and how many of them are too many to say."""

    spent_s: float
    most_s: float
    when: str

    @property
    def share(self) -> float:
        return self.spent_s / self.most_s


def beside(tier: Tier, accounts: Sequence[Account]) -> Beside:
    """Return what was spent beside a candidate's calls: of all of it, and of what threads go on with, what is more of
    what it may be.
    """
    call_s = statistics.median(a.call_s for a in accounts)
    least_s = BESIDE_KERNEL_S if tier == "kernel" else BESIDE_PYTHON_S
    left_s = LEFT_S + LEFT_BY_EACH_S * threads()
    found = (
        Beside(_of_most([a.beside_s for a in accounts]), max(least_s, BESIDE * call_s), BESIDE_THEM),
        Beside(_of_most([a.left_s for a in accounts]), max(left_s, LEFT * call_s), "by other threads, which go on"),
    )
    return max(found, key=lambda one: one.share)


def _of_most(seconds: Sequence[float]) -> float:
    """Return what most of these are no less than."""
    return sorted(seconds)[2 * len(seconds) // 5]


def done_means_done(checks: Checks) -> None:
    """Require that once a call has returned nothing is written or computed, nor when its outputs are collected.

    Two clean tries out of a few will do, since other work on the machine disturbs one now and then.
    """
    busy: list[float] = []
    late: list[float] = []
    for _ in range(TRIES):
        spent, collecting = _after_a_call(checks)
        busy = sorted([*busy, spent])
        late = sorted([*late, collecting])
        if len(busy) > 1 and max(busy[1], late[1]) <= _little_s(checks):
            break
    why = ""
    if "activity check" not in checks.without and busy[1] > _little_s(checks):
        why = f"It computes on after its call has returned: {busy[1] * 1e6:.0f} us of CPU time."
    if "activity check" not in checks.without and late[1] > _little_s(checks):
        why = f"It computes when its outputs are collected: {late[1] * 1e6:.0f} us of CPU time more than later."
    if why:
        raise Stopped(Rejected("background_work", why))
    if "idle after the call" not in checks.found.checks:
        checks.found.checks.append("idle after the call")


def _little_s(checks: Checks) -> float:
    """CPU seconds that a worker may use after its answer: some for waking up, little beside the problem's own."""
    return max(LITTLE_S, 0.3 * min(checks.place.session.call_s, IDLE_S))


def _after_a_call(checks: Checks) -> tuple[float, float]:
    """Make one call; return CPU seconds used after it, and by how many the first collection of outputs took more
    than another.
    """
    session = checks.place.session
    checks.subject.prepare(checks.place, plain(0, len(session.specs)))
    checks.subject.call(checks.place, stand=False)
    if session.on_gpu:  # outputs of the calls that are compared are collected, which is not timed
        return checks.subject.busy_s(IDLE_S), 0.0
    kernel = checks.subject.candidate.tier == "kernel"
    image = checks.subject.fingerprint(checks.place) if kernel else b""  # elsewhere looking would be collecting
    busy_s = checks.subject.busy_s(IDLE_S)
    image = image or checks.subject.fingerprint(checks.place)
    before_s = checks.subject.used_s()
    outputs = checks.subject.outputs(checks.place)
    first_s = checks.subject.used_s() - before_s
    time.sleep(IDLE_S)  # as long as before the first collection
    checks.require_unchanged(checks.place, outputs, image)
    if kernel:
        return busy_s, 0.0
    before_s = checks.subject.used_s()
    checks.subject.outputs(checks.place)
    return busy_s, first_s - (checks.subject.used_s() - before_s)
