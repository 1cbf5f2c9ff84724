"""Tensors of rows for the copy engine: a row's elements, the rows of a tile, and up to three dimensions around them.

Comes in: the loops around tiles, and how a tensor is read. Goes out: C that describes it, and coordinates of a box.
Knows nothing of what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.attention import TileNest
from rag_kernels.offline.codegen.loop_nest import Access, text_of
from rag_kernels.offline.ir import values as ir

MOST_OUTER = 3  # dimensions around those of a tile


def step(access: Access, leaf: ir.Atom) -> str:
    """Return the stride of a loop in a tensor as C, or nothing where it has none."""
    found = access.steps.get(leaf)
    return text_of(found) if found else ""


@dataclass(frozen=True, slots=True)
class HeadMaps:
    """The loops around tiles: of the batch, and of rows behind the first."""

    nest: TileNest
    outer: tuple[ir.Atom, ...]

    def place(self, access: Access) -> str:
        """Return the three outer coordinates of a tensor."""
        found = [self.nest.index(leaf) if step(access, leaf) else "0" for leaf in self.outer]
        return ", ".join([*found, *["0"] * (MOST_OUTER - len(found))])

    def map(self, name: str, data: str, access: Access, row: ir.Atom, *, box: int, width: int) -> tuple[str, str]:
        """Return the declaration of a tensor's map, and the condition under which it can be made.

        A box has so many rows of `row`, which are so wide.
        """
        names = self.nest.names
        start = f" + {text_of(access.constant)}" if access.constant else ""
        sizes, strides = [str(width), names[row]], ["1", step(access, row) or "8"]
        for other in self.outer:
            found = step(access, other)
            sizes.append(names[other] if found else "1")
            strides.append(found or "8")
        sizes += ["1"] * (5 - len(sizes))
        strides += ["8"] * (5 - len(strides))
        made = (
            f"const CUtensorMap {name} = rk::tma_map<5>(({data}{start}), {{{', '.join(sizes)}}}, "
            f"{{{', '.join(strides)}}}, {{64, {box}, 1, 1, 1}});"
        )
        return made, f"rk::tma_reads(({data}{start}), {{{', '.join(sizes)}}}, {{{', '.join(strides[1:])}}})"
