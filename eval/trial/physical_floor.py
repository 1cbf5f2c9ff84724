"""What a time is held against: the device's ceilings, measured again before anyone is accused of beating them.

Comes in: a ProblemSession, the precision shown, and times of a candidate and of the baselines. Goes out: the
floor that is told, and a `Finding` where a time is beyond belief. Bytes cannot be left out; products can, by algebra.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.eval.machine.ceilings import product_gflops, raised
from rag_kernels.eval.machine.device import bytes_us, floor_us
from rag_kernels.eval.sessions.problem_session import ProblemSession


@dataclass(frozen=True, slots=True)
class Finding:
    """`impossible` is a reason to reject the candidate, or empty; the others are grounds for labels."""

    impossible: str = ""
    pruned: bool = False
    suspicious: bool = False


def settled_floor_us(session: ProblemSession, candidate_us: float, baseline_us: float, *, strict: bool) -> float:
    """Return the floor to tell, after ceilings that a baseline or the candidate seems to beat were measured again."""
    rule, precision = session.limits.timing, session.limits.precision
    if _told(session) > baseline_us or finding(session, candidate_us, baseline_us, strict=strict) != Finding():
        session.measure_again()
    features, memory = session.fp.features, _needs_memory(session)
    shown = raised(session.device, features, baseline_us * 1e-6, precision=precision, by=rule.suspicious, memory=memory)
    session.raise_ceilings(shown)
    floor = floor_us(features, session.device, precision)
    kept_in_cache = not memory and bytes_us(features, session.device) >= floor
    return floor if kept_in_cache else min(floor, baseline_us)  # what a baseline beats is no floor


def finding(session: ProblemSession, candidate_us: float, baseline_us: float, *, strict: bool) -> Finding:
    """Return what is wrong with a time, if anything: nobody is held against a bound that a baseline beats.

    What must be read must be read, but products may be right and not there: a sum of a product's columns needs none.
    """
    rule, features = session.limits.timing, session.fp.features
    gflops = product_gflops(features, session.device, session.limits.precision, generous=True)
    products_us = min(features.flops / (gflops * 1e3), baseline_us) if strict else 0.0
    memory_us = min(bytes_us(features, session.device), baseline_us) if _needs_memory(session) else 0.0
    why = ""
    if memory_us > rule.impossible * candidate_us:
        why = f"It takes {candidate_us:.1f} us where memory alone needs {memory_us:.1f} us."
    return Finding(why, products_us > rule.pruned * candidate_us, memory_us > rule.suspicious * candidate_us)


def _told(session: ProblemSession) -> float:
    """Return the part of the floor that a baseline cannot beat by leaving its data in the cache."""
    features, device, precision = session.fp.features, session.device, session.limits.precision
    if _needs_memory(session):
        return floor_us(features, device, precision)
    return features.flops / (product_gflops(features, device, precision) * 1e3)


def _needs_memory(session: ProblemSession) -> bool:
    return session.exceeds_cache and not session.reads_in_part
