"""How many heads a width is split into, as a number of the problem wherever the length of a head is one.

Comes in: regions that become one function, of which some read what others store. Goes out: nothing; loops are marked.
Knows nothing of languages.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.offline.fusion.regions import Region, dims_stored, loads_of, loops_named, loops_read_back
from rag_kernels.offline.ir import values as ir


def fix_heads(regions: Sequence[Region]) -> None:
    """Make numbers of how many heads a width is split into, as the length of a head is one for attention's kernels.

    Told the length alone, a kernel would cut another width into more or fewer heads than its module, which has as many
    at each. (A form does not tell whether its module names the number of heads or their length; the kernel refuses
    other widths of both.)
    """
    stored, loads = dims_stored(regions), [load for region in regions for load in loads_of(region)]
    groups = [pair for load in loads for pair in loops_read_back(load, stored)]
    pairs = [pair for one, other in groups for pair in zip(ir.leaves(one), ir.leaves(other), strict=False)]
    pairs = [(a, b) for a, b in pairs if a.size == b.size]
    while found := [(a, b) for a, b in pairs if a.head != b.head]:
        for a, b in found:
            a.head = b.head = a.fixed = b.fixed = True
    loops = {leaf for region in regions for leaf in ir.leaves(loops_named(region))}
    for part in (leaf for leaf in loops if leaf.head):
        whole = part.whole
        for beside in whole.parts[0].leaves() if whole and whole.parts and part in whole.parts[1].leaves() else ():
            beside.fixed = True
