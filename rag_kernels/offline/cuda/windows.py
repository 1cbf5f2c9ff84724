"""Windows on a GPU (pooling, depthwise convolutions): a thread computes several neighbouring rows of outputs.

Comes in: a region whose columns are short windows. Goes out: the outer loop of which a thread takes several steps, and
the loops that remain. Neighbouring outputs share inputs and the work of computing indices; the lanes stay neighbours,
so every load is still contiguous.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.codegen.loop_nest import Loop, Nest
from rag_kernels.offline.ir import values as ir

STEPS = 4  # outputs of a thread


def stepped_loop(nest: Nest) -> Loop | None:
    """Return the last outer loop if windows slide along it and it is long enough, or None."""
    loop = nest.outer[-1] if nest.outer else None
    if loop is None or len(loop.leaves) != 1 or loop.count < 2 * STEPS or nest.lane is None:
        return None
    windows = {a for a in nest.region.reduced if a.window}
    values = list(ir.walk(*nest.region.stores.values()))
    forms = [f for v in values if isinstance(v, ir.Load) for f in v.index if isinstance(f, ir.Form)]
    atoms = [set(ir.leaves(atom for atom, _ in form.terms)) for form in forms]
    return loop if any(loop.leaves[0] in used and used & windows for used in atoms) else None


def groups_of(loop: Loop) -> Loop:
    """Return the loop over groups of steps."""
    return replace(loop, var=f"{loop.var}_group", size=f"({loop.size} + {STEPS - 1}) / {STEPS}")


def stepped(loop: Loop, body: list[str]) -> list[str]:
    """Return the body for each step of a group.

    The last group overlaps the one before it, so that none is incomplete.
    """
    start = f"{loop.var}_group * {STEPS}"
    return [
        f"const int64_t {loop.var}_0 = {start} < {loop.size} - {STEPS} ? {start} : {loop.size} - {STEPS};",
        "#pragma unroll",
        f"for (int step = 0; step < {STEPS}; ++step) {{",
        f"  const int64_t {loop.var} = {loop.var}_0 + step;",
        *("  " + line for line in body),
        "}",
    ]
