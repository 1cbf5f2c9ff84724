"""A verdict as a set of short codes, for tables and for the zoo: `wrong`, `rejected:input_mutated`, `label:fragile`.

Comes in: a verdict. Goes out: every code that describes it. A specimen of the zoo names the codes that would be the
right reason to catch it.
"""

from __future__ import annotations

from rag_kernels.eval.records import Passed, Rejected, TimedOut, Verdict, Wrong, verdict_name


def codes(verdict: Verdict) -> frozenset[str]:
    """Return all codes of a verdict.

    Labels lose what follows a colon too (`label:fragile: shifted`, `label:fragile`).
    """
    name = verdict_name(verdict)
    found = {name}
    if isinstance(verdict, Wrong):
        found.add(f"wrong:{verdict.input_class}")
    elif isinstance(verdict, Rejected):
        found.add(f"rejected:{verdict.code}")
    elif isinstance(verdict, TimedOut):
        found.add(f"timed_out:{verdict.stage}")
    elif isinstance(verdict, Passed):
        for label in (verdict.label, *verdict.labels):
            found |= {f"label:{label}", f"label:{label.split(':')[0]}"}
        if verdict.precision != "strict":
            found |= {"label:precision", f"label:precision {verdict.precision}"}
    return frozenset(found)
