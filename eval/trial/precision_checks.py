"""Which precision do a candidate's products show, by probes that are exact in fp32 and by errors of ordinary draws?

Comes in: the Checks of a loaded candidate. Goes out: the precision class that it has found; the trial ends where that
is lower than allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag_kernels.eval.buffers.call_content import plain
from rag_kernels.eval.records import Rejected
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.traits.input_kinds import PROBES
from rag_kernels.eval.traits.steps import multiplies_spread
from rag_kernels.eval.trial.checks import Checks

ALLOWED = {"strict": ("strict", "split-precision"), "tf32": ("strict", "split-precision", "tf32")}


def probe(checks: Checks, place: BoundBuffers) -> None:
    """Find the precision class from products that are exact in fp32, and from the errors of others."""
    session = place.session
    checks.found.precision = session.limits.precision if session.fp.features.flops > 0 else "strict"
    tried = [] if "exactness probe" in checks.without else [session.specials.draw(kind) for kind in PROBES]
    shown = [_precision(checks, place, draw) for draw in tried if draw is not None]
    checks.found.checks += ["exactness probe"] * bool(shown)
    if found := _kept_bits(checks, place):
        shown.append(found)
    if shown:
        _take_precision(checks, session, shown)


def products(checks: Checks) -> None:
    """Find at other sizes whether products are of a lower precision there."""
    session = checks.place.session
    if session.fp.features.flops <= 0 or "exactness probe" in checks.without:
        return
    tried = [draw for kind in PROBES if (draw := session.specials.draw(kind)) is not None]
    if shown := [_precision(checks, checks.place, draw) for draw in tried]:
        _take_precision(checks, session, shown)


def factors(checks: Checks) -> None:
    """Require at the problem's own sizes too that no factors of products are cut."""
    if found := _kept_bits(checks, checks.place):
        _take_precision(checks, checks.place.session, [found])


def _kept_bits(checks: Checks, place: BoundBuffers) -> tuple[str, float] | None:
    """Return a lower precision that errors on an ordinary draw tell of, and its relative error."""
    session = place.session
    multiplies = session.fp.features.flops or multiplies_spread(session.fp)
    if "exactness probe" in checks.without or not multiplies or not session.room_for_draws:
        return None
    draw = 0 if session.normal is None else session.normal
    session.require_answer(plain(draw, len(session.specs)))
    name, error = _precision(checks, place, draw, ordinary=True)
    checks.found.checks += ["factors of products"] * bool(name)  # else there was no memory for it
    return (name, error) if error else None


def _take_precision(checks: Checks, session: ProblemSession, shown: Sequence[tuple[str, float]]) -> None:
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
    if error >= checks.found.precision_error:
        checks.found.precision, checks.found.precision_error = name, error


def _precision(checks: Checks, place: BoundBuffers, draw: int, *, ordinary: bool = False) -> tuple[str, float]:
    """Return the precision class that products show on a probe's draw or an ordinary one, and its error."""
    checks.subject.prepare(place, plain(draw, len(place.session.specs)))
    checks.subject.call(place)
    return place.session.precision(checks.subject.outputs(place), draw, ordinary=ordinary)
