"""The choice between generated and library products, made as archived kernels of similar problems made it.

Comes in: the plans for a problem, and the exemplars that retrieval chose for it, most similar first. Goes out: the
plans, those first that treat products and convolutions as the exemplars do, with the exemplars that were followed.
Which is faster depends on sizes and on the machine. The exemplars were fast there; a fixed rule would guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rag_kernels.eval.records import Backend
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.compose import Plan
from rag_kernels.offline.foreign_kernel import MARK
from rag_kernels.offline.tuning import parameters_in
from rag_kernels.records import Shown

CALL = re.compile(r"\btorch\.ops\.aten\.(\w+)")


def advised(plans: Sequence[Plan], shown: Sequence[Shown], backend: Backend) -> tuple[list[Plan], list[Shown]]:
    """Return the plans, best advised first, and the exemplars that the first one follows.

    The second list is empty when the advice changes nothing.
    """
    disputed = {name for plan in plans for name in plan.library if any(name not in other.library for other in plans)}
    advice: dict[str, tuple[bool, Shown]] = {}  # operator -> whether it is computed by the kernel itself
    for exemplar in shown:
        for name, itself in _treatment(exemplar, backend).items():
            if name in disputed:
                advice.setdefault(name, (itself, exemplar))

    def agrees(plan: Plan) -> int:
        return sum((name not in plan.library) == itself for name, (itself, _) in advice.items())

    better = sorted(plans, key=agrees, reverse=True)
    if not better or better[0] is plans[0]:
        return better, []
    followed = [e for name, (itself, e) in advice.items() if (name not in better[0].library) == itself]
    return better, list({e.kernel.id: e for e in followed}.values())


def _treatment(shown: Shown, backend: Backend) -> dict[str, bool]:
    """Return by operator whether a kernel of this writer's computes it itself.

    It names the operators that the kernel calls, or if it calls none all of its problem's.
    """
    kernel = shown.kernel
    if kernel.backend != backend or kernel.retracted or parameters_in(kernel.source, backend) is None:
        return {}
    if kernel.tier == "composed":
        return dict.fromkeys(CALL.findall(kernel.source.partition(MARK)[0]), False)
    nodes = shown.problem.nodes if shown.problem is not None else ()
    return {base_name(node.op): True for node in nodes}
