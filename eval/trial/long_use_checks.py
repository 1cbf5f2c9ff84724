"""Is a candidate right as programs use it, by many calls and callers, after one that failed; what does it leave behind?

Comes in: the Checks of a loaded candidate, in a worker of its own. Goes out: labels and what was checked; the trial
ends where it is wrong.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, cycle, islice, pairwise

from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.messages.to_both import Shared, TellShared
from rag_kernels.eval.messages.to_candidate import Called
from rag_kernels.eval.process.process_tree import Resident
from rag_kernels.eval.records import (
    ENDS_BADLY,
    GENERATOR,
    GPU_SETTINGS,
    KEEPS_CACHE,
    LEAKS,
    ONE_CALLER,
    SETTINGS,
    SHARED,
    Crashed,
    FunctionalProblem,
    Rejected,
)
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate, Shapes
from rag_kernels.eval.traits.input_kinds import CONSTANT_ROWS, INFINITE, OUT_OF_RANGE, REPEATED
from rag_kernels.eval.trial.checks import TRIES, Checks

MANY_CALLS, MANY_S = 70_000, 4.0  # more than 16 bits count to, and how long they may take
COMPOSED_S = 1.5  # of what Python calls: for these, which are fewer
WARM_CALLS, WARM_S = 3000, 0.5  # of these, in which a process takes what it then keeps
LEAK_BYTES, LEAK_A_CALL = 1 << 20, 16  # in the calls after these, and in each: the least that an allocation takes
# Reads of a process's memory, at least and most: a leak grows between any two, others by huge pages now and then.
LEAK_PARTS, LEAK_READS = 3, 6
# Threads that call it once each, and numbers of lines, in a part of them; and how long a part may take.
FEW_CALLERS, MANY_CALLERS, LEAST_LINES, MOST_LINES, KEEPS_S = 24, 500, 8, 32, 0.2
TURNS, TURNS_BYTES = 400, 1 << 17  # from all lines to one or back in a part of such calls, and what they may keep
RUSH_S, RUSHES = 0.25, (2, 4)  # of calls by so many times the threads
# Calls of each of two callers, or as many of more in all, in so long at most if each were alone: on contents one of
# which is unusual, and on unusual ones alone. How many callers there are beside two: at the own sizes up to so many
# bytes, else at the least.
TOGETHER, USUAL_S, UNUSUAL_S, CALLERS, CALLERS_BYTES = 48, 2.0, 1.0, 8, 8 << 20
ENDING_CALLS = 20  # by each of two threads, before a process ends another time
LOCKED_S, LOCKED_TIMES = 12.0, 10  # after which, and so many times as long as they take alone, they wait for each other
# What a GPU's memory holds is told for all programs together, whose own comes and goes: how often again, and how far
# apart, calls have to keep some there while no other judge computes, and by how much what they keep may differ.
GPU_LEAKS, GPU_LEAKS_APART_S, GPU_LEAKS_ALIKE, GPU_CALLS, GPU_CALLS_S = 3, 0.7, 4.0, 4000, 0.2
AFTER_REFUSED = "after a call that it refused"
FILLED = "memory that others used"
SMALL_STACK = "a small stack"
# Sizes that a kernel may refuse, while another one is zero or one: as far as so many bytes have room, three at most.
FAR, LEAST_FAR, MOST_FAR, FAR_BYTES, FAR_S = 1 << 24, 16, 3, 32 << 20, 1.0
REFUSED, REFUSED_S = 2000, 0.1  # further calls of a form that it refuses


def kept_bytes(held: Sequence[tuple[int, Resident | None]], least: int = LEAK_BYTES) -> int:
    """Return how many bytes calls keep that keep some in each part of them; 0 where one part keeps none to speak of.

    `held` says after how many calls a process had how much in memory. In one part an honest kernel grows by a huge page
    that the system makes of small ones (2 MiB); on a busy machine, where a part is a few calls, in two.
    """
    known = [(made, resident.own) for made, resident in held if resident is not None]
    if len(known) < len(held) or len(known) < 2 or known[-1][0] == known[0][0]:
        return 0
    calls = known[-1][0] - known[0][0]
    grown = int(min((b - a) / max(1, until - made) for (made, a), (until, b) in pairwise(known)) * calls)
    return grown if grown > max(least, LEAK_A_CALL * calls) else 0


def leaves_nothing(checks: Checks) -> None:
    """Require that threads compute after calls as before them, and label settings of OpenMP, or of a GPU, that are
    others.
    """
    if "activity check" in checks.without:
        return
    left = checks.subject.state()
    if not left.arithmetic:
        why = "The candidate left threads of OpenMP flushing subnormals, rounding otherwise, or without long double."
        raise Stopped(Rejected("floating_point_state", why))
    if not left.generator and not checks.place.session.fp.uses_random:
        checks.found.label(GENERATOR)
    if not left.settings:
        checks.found.label(GPU_SETTINGS if checks.place.session.on_gpu else SETTINGS)
        return
    if not left.cache:
        checks.found.label(KEEPS_CACHE)
        return
    if "nothing left behind" not in checks.found.checks:
        checks.found.checks.append("nothing left behind")


def keeps_results_apart(checks: Checks) -> None:
    """Label a candidate that returns what is an argument, or lies in one, or elements twice, where the module's results
    are their own: who changes one of two such changes the other. A kernel's results are given to it.
    """
    session, subject = checks.place.session, checks.subject
    if subject.candidate.tier == "kernel":
        return
    subject.prepare(checks.place, session.random_recipe())
    subject.call(checks.place)
    theirs = session.ask(TellShared(), Shared).found
    if more := [pair for pair in subject.shared(checks.place) if pair not in theirs]:
        checks.found.label(SHARED)
        checks.found.notes.append(f"has elements in common where the module's has none: {'; '.join(more)}"[:300])
        return
    checks.found.checks.append("results of their own")


def infinities(checks: Checks) -> None:
    """Make a call on nothing but infinities: a later one may find nothing of it."""
    draw = checks.place.session.specials.draw(INFINITE)
    if draw is not None and "special values" not in checks.without:
        checks.subject.prepare(checks.place, plain(draw, len(checks.place.session.specs)))
        checks.subject.call(checks.place)


def in_filled_memory(checks: Checks, place: BoundBuffers) -> None:
    """Require in a worker's first call that it takes no memory from the heap for zero: fresh pages alone are."""
    checks.subject.prepare(place, recipe := place.session.random_recipe())
    checks.subject.call_within(place, "filled memory")
    checks.compare(place, checks.subject.outputs(place), recipe, FILLED)
    checks.found.checks.append(FILLED)


def first_at_once(checks: Checks, first: BoundBuffers, second: BoundBuffers, call_s: float) -> str:
    """Return what goes wrong where a worker's first calls are made by two threads at once, or nothing; one alone takes
    so long. Neither may take memory from the heap for zero.
    """
    places = first, second
    recipes = [first.session.random_recipe(), second.session.random_recipe()]
    for place, recipe in zip(places, recipes, strict=True):
        checks.subject.prepare(place, recipe)
    try:
        checks.subject.call_first(first, second, LOCKED_S + LOCKED_TIMES * call_s)
        for place, recipe in zip(places, recipes, strict=True):
            checks.compare(place, checks.subject.outputs(place), recipe, "two first calls at once")
    except Stopped as stopped:
        if isinstance(stopped.verdict, Rejected):
            raise
        return str(getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", "")) or "it ended"
    checks.found.checks += [FILLED, "two first calls at once"]
    return ""


def on_small_stack(checks: Checks, place: BoundBuffers) -> bool:
    """Label a kernel that ends where the thread that calls it has a stack of a megabyte; return False if its worker is
    lost.
    """
    recipe = place.session.specials.mixed or place.session.random_recipe()
    checks.subject.prepare(place, recipe)
    try:
        checks.subject.call_within(place, "a small stack")
        checks.compare(place, checks.subject.outputs(place), recipe, SMALL_STACK)
    except Stopped as stopped:
        if isinstance(stopped.verdict, Rejected):
            raise
        checks.found.label(f"fragile: {SMALL_STACK}")
        reason = getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", "")
        checks.found.notes.append(f"not by a thread with a stack of a megabyte: {reason}"[:300])
        return stopped.alive
    checks.found.checks.append(SMALL_STACK)
    return True


def by_itself(checks: Checks, place: BoundBuffers) -> bool:
    """Return whether a kernel makes a call where no code of numerical libraries can be run, however it has found it."""
    checks.subject.prepare(place, place.session.random_recipe())
    try:
        checks.subject.call_within(place, "no libraries")
    except Stopped as stopped:
        if isinstance(stopped.verdict, Rejected):
            raise
        return stopped.alive
    checks.found.checks.append("by its own code")
    return True


def ends_well(checks: Checks, opened: Callable[[], LoadedCandidate]) -> None:
    """Label a candidate whose process does not end as it is told to, after calls: what ends then is the program's.

    One ends after many calls, by several threads, and another one (`opened`) after a plain call of the main thread:
    what they free stands on different heaps. What failed has to fail another time: of a busy machine's processes one
    was aborted.
    """
    many, one = checks.subject.end(), _ends_after(checks, opened, 1)
    calls = ENDING_CALLS if many and ONE_CALLER not in checks.found.labels else 1
    if (many or one) and (why := _ends_after(checks, opened, calls)):
        checks.found.label(ENDS_BADLY)
        checks.found.notes.append(f"its process does not end as it should: {why}"[:300])
        return
    checks.found.checks.append("its process's end")


def _ends_after(checks: Checks, opened: Callable[[], LoadedCandidate], calls: int) -> str:
    """Return what goes wrong as another process of the candidate ends, after so many calls, or nothing."""
    session = checks.place.session
    with opened() as other:
        first, second = other.bind(session), other.bind(session)
        for place in (first, second):
            other.prepare(place, session.random_recipe())
        other.call(first)
        if calls > 1:
            other.call_together((first, second), calls, LOCKED_S + LOCKED_TIMES * calls * other.accounts[-1].call_s)
        return other.end()


def after_refused(checks: Checks, place: BoundBuffers) -> None:
    """Require that it is right after a call whose indices it refused; one that takes such is asked no more."""
    draw = None if "special values" in checks.without else place.session.specials.draw(OUT_OF_RANGE)
    if draw is None:
        return
    checks.subject.prepare(place, plain(draw, len(place.session.specs)))
    try:
        checks.subject.call(place)
    except Stopped as stopped:
        if not stopped.alive or not (isinstance(stopped.verdict, Crashed) and stopped.verdict.raised):
            return
        checks.on_both(place, place.session.random_recipe(), AFTER_REFUSED)
        checks.found.checks.append(AFTER_REFUSED)


def after_refused_far(checks: Checks, place: BoundBuffers) -> bool:
    """Require that it is right after calls that it refused for their sizes, far beyond all that are tried otherwise;
    return False if its worker is lost.

    Hardly an element is there, so that who takes them has nothing to do; who ends at them is asked no more. What is
    refused is refused many times: who does not come back from one, or from the right call behind them, ends the trial.
    """
    subject = checks.subject
    on_gpu = place.session.on_gpu
    for arguments, results in far_forms(most_distinct([p.session.fp for p in subject.places]), least=int(on_gpu)):
        try:
            subject.call_on_forms(place, arguments, results, FAR_S)
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            if not stopped.alive:
                return False
            if on_gpu:
                _keeps_for_each(checks, "call that it refuses", partial(_refusals, checks, place, arguments, results))
            else:
                _refused_often(checks, place, arguments, results)
            checks.on_both(place, place.session.random_recipe(), AFTER_REFUSED)
            checks.found.checks.append(AFTER_REFUSED)
    return True


def _refusals(checks: Checks, place: BoundBuffers, arguments: Shapes, results: Shapes) -> int:
    """Have it refuse so many calls."""
    checks.subject.call_refused(place, arguments, results, REFUSED, REFUSED_S)
    return REFUSED


def _refused_often(checks: Checks, place: BoundBuffers, arguments: Shapes, results: Shapes) -> None:
    """Have it refuse many such calls; label it where each keeps memory."""
    each = checks.subject.call_refused(place, arguments, results, REFUSED, REFUSED_S)
    if each >= LEAK_A_CALL and LEAKS not in checks.found.labels:
        checks.found.label(LEAKS)
        checks.found.notes.append(f"calls that it refuses keep {each} bytes each")


def refused_first(checks: Checks, place: BoundBuffers, refused: Sequence[FunctionalProblem]) -> None:
    """Require that it is right after the first call of its process, as far above its own sizes as one that it has
    refused elsewhere is below them; who takes that, or ends at it, is asked no more.
    """
    own = place.session.fp
    if (larger := beyond(own, refused[-1])) is None:
        return
    try:
        checks.subject.call_on_forms(place, *larger, place.session.call_limit_s)
    except Stopped as stopped:
        if isinstance(stopped.verdict, Rejected):
            raise
        if stopped.alive:
            checks.on_both(place, place.session.random_recipe(), AFTER_REFUSED)
            _refused_often(checks, place, *larger)
            checks.found.checks.append(AFTER_REFUSED)


def beyond(own: FunctionalProblem, other: FunctionalProblem) -> tuple[Shapes, Shapes] | None:
    """Return shapes of arguments and results as far above the own ones as others are beside them, if there is room."""
    forms = ([[s.shape for s in specs] for specs in ([a.spec for a in fp.tensors], fp.outputs)] for fp in (own, other))
    arguments, results = (
        tuple(tuple(n + abs(n - m) for n, m in zip(*both, strict=True)) for both in zip(*shapes, strict=True))
        for shapes in zip(*forms, strict=True)
    )
    room = 8 * sum(map(math.prod, (*arguments, *results))) <= FAR_BYTES
    return (arguments, results) if room else None


def most_distinct(problems: Sequence[FunctionalProblem]) -> FunctionalProblem:
    """Return the one that tells most sizes apart."""
    return max(problems, key=lambda fp: len(_sizes(fp)))


def far_forms(fp: FunctionalProblem, least: int = 0) -> Iterator[tuple[Shapes, Shapes]]:
    """Yield shapes of arguments and results in which one size is far beyond its own and another one `least` or one."""
    forms = [[s.shape for s in specs] for specs in ([a.spec for a in fp.tensors], fp.outputs)]
    if len(_sizes(fp)) == 1:  # what stands before the last place is told apart by a sign
        forms = [[(*(-n for n in shape[:-1]), *shape[-1:]) for shape in shapes] for shapes in forms]
    sizes = {n for shape in (*forms[0], *forms[1]) for n in shape if abs(n) > 1}
    for far in sorted(sizes, key=lambda n: (abs(n), n), reverse=True)[:MOST_FAR]:
        found = [form for none in sizes - {far} if (form := _far(forms, far, none, least)) is not None]
        if found:
            yield max(found, key=lambda form: form[0])[1:]


def _sizes(fp: FunctionalProblem) -> set[int]:
    return {size for spec in (*(a.spec for a in fp.tensors), *fp.outputs) for size in spec.shape if size > 1}


def _far(
    forms: Sequence[Sequence[tuple[int, ...]]], far: int, none: int, least: int
) -> tuple[int, Shapes, Shapes] | None:
    """Return how many times as large one size may be where another is `least`, with the shapes; None if hardly.

    What is some tensor's last dimension is one: numbers of lines are divided by it.
    """
    times, last = FAR // abs(far), {shape[-1] for shapes in forms for shape in shapes if shape}
    while times >= LEAST_FAR:
        sizes = {far: abs(far) * times, none: max(least, int(none in last))}
        arguments, results = (tuple(tuple(sizes.get(n, abs(n)) for n in shape) for shape in shapes) for shapes in forms)
        if 8 * sum(map(math.prod, (*arguments, *results))) <= FAR_BYTES:
            return times, arguments, results
        times //= 2
    return None


def many_calls(checks: Checks, place: BoundBuffers, limit_s: float = MANY_S) -> None:
    """Check that it is right after many calls, on contents of which it has seen others before."""
    session, subject = place.session, checks.subject
    subject.use_threads(1)
    draws = [draw for kind in (REPEATED, CONSTANT_ROWS) if (draw := session.specials.draw(kind)) is not None]
    recipe, made = plain(draws[0] if draws else 0, len(session.specs)), 0
    subject.prepare(place, recipe)
    held: list[tuple[int, Resident | None]] = []  # after how many calls, and what is in memory then
    half = (MANY_CALLS - WARM_CALLS) // 2, (limit_s - WARM_S) / 2
    while len(held) < LEAK_PARTS or (kept_bytes(held) and len(held) < LEAK_READS):
        most, part_s = half if held else (WARM_CALLS, WARM_S)
        ends, until = time.monotonic() + part_s, made + most
        for _ in range(TRIES if held else 1):
            called = subject.call_on(place, until - made, max(0.0, ends - time.monotonic()))
            made += called.times
            wrong = checks.compared(session, subject.outputs(place), recipe, f"after {made} calls", noisy=bool(draws))
            if wrong is not None:
                checks.stop(place, recipe, wrong)
            if not called.differs or made >= until or time.monotonic() >= ends:
                break
        held.append((made, subject.memory_now()))
    if session.on_gpu and kept_bytes(held):
        _keeps_for_each(checks, "call", lambda: subject.call_on(place, GPU_CALLS, GPU_CALLS_S).times)
    else:
        _note_leak(checks, held)
    subject.use_threads(threads())
    checks.found.checks.append(f"{made} calls in a row")


def after_so_many(checks: Checks, small: BoundBuffers, times: Sequence[int], limit_s: float) -> None:
    """Require that a call is right where so many of few elements came since one of another content: what it numbers
    its calls by has come round to the same number.
    """
    place, ends = checks.place, time.monotonic() + limit_s
    checks.subject.prepare(small, small.session.random_recipe())
    for count in times:
        checks.subject.call_on(small, count - 2, max(0.0, ends - time.monotonic()))  # and two more: its first, and
        checks.call_and_compare(place, place.session.random_recipe(), f"{count} calls after another")


def many_at_once(checks: Checks, place: BoundBuffers) -> None:
    """Require that it is right in each of many calls by more threads than there are cores: what they lose between them
    shows where one is stopped in between.
    """
    place.session.require_answer(recipe := place.session.random_recipe())
    for times in RUSHES:
        checks.subject.use_threads(times * threads())
        checks.subject.prepare(place, recipe)
        ends = time.monotonic() + RUSH_S
        for _ in range(TRIES):
            called = checks.subject.call_on(place, MANY_CALLS, max(0.0, ends - time.monotonic()))
            checks.compare(place, checks.subject.outputs(place), recipe, "many calls by many threads")
            if not called.differs:
                break
    checks.subject.use_threads(threads())


def _note_leak(checks: Checks, held: Sequence[tuple[int, Resident | None]]) -> None:
    """Label a kernel each of whose calls keeps memory."""
    if grown := kept_bytes(held):
        calls = held[-1][0] - held[0][0]
        checks.found.label(LEAKS)
        checks.found.notes.append(f"{calls} calls keep {grown / 2**20:.1f} MiB, {grown // calls} bytes each")


def keeps_nothing(checks: Checks, place: BoundBuffers, sized: BoundBuffers | None) -> None:
    """Label a kernel that keeps memory for each thread that has called it, at small sizes and, on unusual content, at
    the problem's own, or for each number of lines that it was called on where there is room for many (`sized`). It may
    keep what its largest call needs.
    """

    def by_threads(times: int, where: BoundBuffers = place) -> int:
        return checks.subject.call_by_threads(where, times, KEEPS_S).times

    def on_first(where: BoundBuffers, counts: Iterator[int], times: int) -> int:
        return checks.subject.call_on_first(where, list(islice(counts, times)), KEEPS_S).times

    if LEAKS in checks.found.labels:  # what each call keeps would be told again
        return
    at_least = () if checks.place.session.on_gpu else (FEW_CALLERS, MANY_CALLERS)  # there it shows from 2 MiB on
    for times in at_least:
        if _keeps_for_each(checks, "thread that calls it", partial(by_threads, times)):
            return
    own = checks.place
    checks.subject.prepare(own, own.session.specials.mixed or own.session.random_recipe())
    if _keeps_for_each(checks, "thread that calls it on rows of all kinds", partial(by_threads, MANY_CALLERS, own)):
        return
    lines = next(iter(sized.session.fp.outputs[0].shape), 0) if sized else 0
    if sized and (each := min(MOST_LINES, lines // LEAK_READS)) >= LEAST_LINES:
        counts = chain([lines], sized.session.rng.sample(range(1, lines), lines - 1))
        if _keeps_for_each(checks, "number of lines", partial(on_first, sized, counts, each)):
            return
        turns = partial(on_first, sized, cycle([lines, 1]), TURNS)
        if _keeps_for_each(checks, "turn from one number of lines to another", turns, TURNS_BYTES):
            return
    checks.found.checks.append("other threads and sizes keep nothing")


def _keeps_for_each(checks: Checks, what: str, call: Callable[[], int], least: int = LEAK_BYTES) -> bool:
    """Label a kernel that keeps memory for each of what parts of its calls differ in; return whether it does."""
    held: list[tuple[int, Resident | None]] = []
    try:
        held = _held_after(checks, call, least)
        if checks.place.session.on_gpu and kept_bytes(held, least):
            held = _held_alone(checks, call, least)
    except Stopped as stopped:
        if isinstance(stopped.verdict, Rejected) or not stopped.alive:
            raise
        reason = getattr(stopped.verdict, "reason", "")
        checks.found.notes.append(f"not seen to keep nothing for each {what}: {reason}"[:300])
        return True
    if grown := kept_bytes(held, least):
        checks.found.label(LEAKS)
        calls = held[-1][0] - held[0][0]
        checks.found.notes.append(f"{calls} calls keep {grown / 2**20:.1f} MiB, some for each {what}")
    return bool(grown)


def _held_after(checks: Checks, call: Callable[[], int], least: int) -> list[tuple[int, Resident | None]]:
    """Return what is in memory after some parts of calls, and after more where they seem to keep some."""
    held: list[tuple[int, Resident | None]] = []
    while len(held) < LEAK_PARTS or (kept_bytes(held, least) and len(held) < LEAK_READS):
        made = call()
        held.append((made + (held[-1][0] if held else 0), checks.subject.memory_now()))
    return held


def _held_alone(checks: Checks, call: Callable[[], int], least: int) -> list[tuple[int, Resident | None]]:
    """Return the same while no other judge computes, of the last of several looks; nothing where one of them shows that
    these calls do not keep it.
    """
    held: list[tuple[int, Resident | None]] = []
    with checks.place.session.device_lock.alone():
        for _ in range(GPU_LEAKS):
            time.sleep(GPU_LEAKS_APART_S)
            held = _held_after(checks, call, least)
            if not kept_bytes(held, least) or not _grows_alike(held):
                return []
    return held


def _grows_alike(held: Sequence[tuple[int, Resident | None]]) -> bool:
    """Return whether all parts of calls keep about as much for each."""
    known = [(made, resident.own) for made, resident in held if resident is not None]
    each = [(b - a) / max(1, until - made) for (made, a), (until, b) in pairwise(known)]
    return max(each) <= GPU_LEAKS_ALIKE * min(each)


def together(checks: Checks, places: Sequence[BoundBuffers], call_s: float, locked_s: float = 0.0) -> str:
    """Return what goes wrong where a thread for each place calls it at once, or nothing; a call takes so long, and who
    waits for others longer than `locked_s` does so for ever.

    On ordinary contents beside unusual ones, then on unusual ones alone: some kernels take another path there, in which
    only calls of the same path meet.
    """
    pair_s = max(call_s, 1e-9) * len(places) / 2
    most = TOGETHER * 2 // len(places)
    usual, unusual = (max(2, min(most, int(limit_s / pair_s))) for limit_s in (USUAL_S, UNUSUAL_S))
    what = "two callers at once" if len(places) == 2 else f"{len(places)} callers at once"
    mixed = [recipe for p in places if (recipe := p.session.specials.mixed) is not None]
    recipes = _in_turn(places)
    passes = [(usual, [*recipes[:-1], mixed[-1] if len(mixed) == len(places) else recipes[-1]])]
    if len(mixed) == len(places):
        passes.append((unusual, [places[0].session.specials.second_mixed or mixed[0], *mixed[1:]]))
    try:
        for times, contents in passes:
            limit_s = (locked_s or LOCKED_S) + LOCKED_TIMES * times * pair_s
            at_once(checks, places, contents, partial(checks.subject.call_together, places, times, limit_s), what)
    except Stopped as stopped:
        if isinstance(stopped.verdict, Rejected):
            raise
        return str(getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", ""))
    checks.found.checks.append(what)
    return ""


def _in_turn(places: Sequence[BoundBuffers]) -> list[Recipe]:
    """Return a content for each place, of two by chance that places of one size have in turn."""
    by_session = {p.session: (p.session.random_recipe(), p.session.random_recipe()) for p in places}
    return [by_session[place.session][number % 2] for number, place in enumerate(places)]


def at_once(
    checks: Checks, places: Sequence[BoundBuffers], recipes: Sequence[Recipe], call: Callable[[], Called], what: str
) -> None:
    """Require that it is right at all places in many calls; where one left other results, which may be as good, in some
    more.
    """
    for place, recipe in zip(places, recipes, strict=True):
        place.session.require_answer(recipe)
        checks.subject.prepare(place, recipe)
    for _ in range(TRIES):
        called = call()
        if called.writes_inputs:
            raise Stopped(Rejected("input_mutated", "The candidate changed its inputs while its calls ran."))
        for place, recipe in zip(places, recipes, strict=True):
            checks.compare(place, checks.subject.outputs(place), recipe, what)
        if not called.differs:
            break
