"""CUDA for neighbouring small pointwise nests that need nothing of each other: one kernel, each with blocks of its own.

Comes in: regions and their printers. Goes out: which regions go together, and one kernel for several. Pieces of a `cat`
that are of other sizes, and the parameters that an optimizer steps, cost one launch then and not one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_kernels.offline.codegen.kernel_function import Function
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.kernel_text import KernelText, Parameter, arguments_of, constexprs
from rag_kernels.offline.cuda.region import CudaRegion, Launch, bounds_of
from rag_kernels.offline.fusion.regions import Region, reads_of
from rag_kernels.offline.ir import values as ir

SMALL = 1 << 21  # elements of a nest that does not fill the device for long
MOST = 16  # nests of one kernel, which has the registers of the largest


def together(regions: Sequence[Region]) -> list[tuple[Region, ...]]:
    """Return the regions in order, neighbours that one kernel could serve in one tuple."""
    groups: list[tuple[Region, ...]] = []
    for region in regions:
        last = groups[-1] if groups else ()
        if last and len(last) < MOST and all(_is_small(r) and _are_apart(r, region) for r in (*last, region)):
            groups[-1] = (*last, region)
        else:
            groups.append((region,))
    return groups


def _is_small(region: Region) -> bool:
    return type(region) is Region and not region.reduced and ir.size_of(region.outer) <= SMALL


def _are_apart(one: Region, other: Region) -> bool:
    """Return whether neither reads what the other writes; pieces of one buffer are apart."""
    if one is other:
        return True
    return not (one.written.keys() & reads_of(other) or other.written.keys() & reads_of(one))


@dataclass(frozen=True, slots=True)
class JoinedPoints:
    """The printers of several nests of points."""

    parts: tuple[CudaRegion, ...]

    def text(self, name: str, function: Function) -> tuple[KernelText, Launch] | None:
        """Return the `__global__` function, and what makes the statements that launch it by a name; None where parts
        give one name to two numbers.
        """
        ends = [f"end{i}" for i in range(len(self.parts))]
        given: dict[str, Parameter] = {}
        body, notes, counts, constants = list[str](), list[str](), list[str](), list[str]()
        for i, part in enumerate(self.parts):
            before = f" - {ends[i - 1]}" if i else ""
            part.block = f"(blockIdx.x{before})" if i else part.block
            lines = part.point()
            for parameter in part.parameters_of(lines, function):
                if given.setdefault(parameter.name, parameter) != parameter:
                    return None
            head = f"if (blockIdx.x < {ends[i]}) {{" if i + 1 < len(ends) else "{"
            sizes = part.constants_in(lines)
            constants += sizes
            body += [f"{'} else ' if i else ''}{head}", *indent([*constexprs(sizes), *lines])]
            blocks = f"blocks(({part.point_threads()} + THREADS - 1) / THREADS)"
            counts.append(f"{ends[i]} = {f'{ends[i - 1]} + ' if i else ''}{blocks}")
            notes.append(f"// {part.told}: {part.point_threads()} threads")
        parameters = [*given.values(), *(Parameter("unsigned", end, end) for end in ends[:-1])]
        arguments = ", ".join(arguments_of(parameters))

        def launch(name: str) -> list[str]:
            call = f"{name}<<<{ends[-1]}, THREADS, 0, stream>>>({arguments});"
            return ["{", f"  const unsigned {', '.join(counts)};", f"  {call}", "}"]

        head = f"__global__ void {bounds_of(self.parts[0].parameters.threads)}"
        return KernelText(tuple(notes), head, name, parameters, [*body, "}"], constants), launch
