"""Whether values are well-formed: dtypes, shapes and loops, checked between the stages of the offline compiler.

Comes in: the values that a stage made. Goes out: nothing, or an `IllFormed` error that names the first that is not. So
a fault of ours is found where it was made, and not as a wrong number in a kernel. Every value is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from rag_kernels.eval.errors import Internal
from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import INTEGERS, arithmetic
from rag_kernels.offline.ir.operators import type_fault


class IllFormed(Internal):
    """A stage of the offline compiler made a value that is not well-formed; the message names both."""


@dataclass(slots=True)
class Checker:
    """Looks at every value once, however many stages keep it. `buffers` has what loads may read."""

    buffers: dict[str, TensorSpec]
    right: set[ir.Value] = field(default_factory=set)

    def check(self, roots: Iterable[ir.Value], stage: str) -> None:
        """Raise IllFormed when a value below these roots is not well-formed, or a root lacks a loop that it needs.

        `stage` is named in the message.
        """
        fresh = [root for root in roots if root not in self.right]
        for value in ir.walk(*fresh, enter=lambda v: v not in self.right):
            if value not in self.right:
                fault = _fault(value, self.buffers)
                if fault:
                    raise IllFormed(f"{stage} made {told(value)}: {fault}.")
                self.right.add(value)
        for root in fresh:
            lost = ir.tree_atoms(root) - {leaf for group in root.dims for leaf in ir.leaves(group)}
            if lost:
                sizes = ", ".join(str(atom.size) for atom in lost)
                raise IllFormed(f"{stage} made {told(root)}: it has no dimension for loops of {sizes} that it needs.")


def told(value: ir.Value) -> str:
    """Return a value in words: what it is, of what dtype and shape."""
    match value:
        case ir.Op():
            what = value.operator.name
        case ir.Load():
            what = f"load of {value.buffer}"
        case ir.Reduce() | ir.Scan():
            what = f"{type(value).__name__.lower()} ({value.kind})"
        case _:
            what = type(value).__name__.lower()
    return f"a {what}, {value.dtype} of {value.shape}"


def _fault(value: ir.Value, buffers: Mapping[str, TensorSpec]) -> str:
    """Return what is wrong with a value itself, or the empty string."""
    loops = [leaf for group in value.dims for leaf in ir.leaves(group)]
    if len(set(loops)) < len(loops):
        return "one loop serves two dimensions"
    match value:
        case ir.Op():
            return type_fault(value.operator, [arg.dtype for arg in value.args], value.dtype)
        case ir.Load():
            return _load_fault(value, buffers)
        case ir.Reduce():
            return _reduce_fault(value)
        case ir.Scan() if value.arg.dtype != value.dtype:
            return f"it scans {value.arg.dtype}"
        case ir.Scan() if not set(value.over.leaves()) <= set(loops):
            return "it runs along a loop that none of its dimensions has"
    return ""


def _load_fault(value: ir.Load, buffers: Mapping[str, TensorSpec]) -> str:
    if value.dtype != arithmetic(value.storage):
        return f"an element stored as {value.storage} is widened to another dtype"
    if len(value.index) != len(value.stored):
        return f"{len(value.index)} indices into {len(value.stored)} dimensions"
    if any(isinstance(i, ir.Value) and i.dtype not in INTEGERS for i in value.index):
        return "an index is no integer"
    spec = buffers.get(value.buffer)
    if spec is None:
        return "nothing stores that buffer"
    elements = ir.size_of(leaf for group in value.stored for leaf in ir.leaves(group))
    if spec.dtype != value.storage or prod(spec.shape) != elements:
        return f"the buffer has {spec.dtype} of {spec.shape}, the load wants {elements} elements of {value.storage}"
    return ""


def _reduce_fault(value: ir.Reduce) -> str:
    gives = value.kind.dtype or value.arg.dtype
    if value.dtype != gives or not value.kind.takes(value.arg.dtype):
        return f"it reduces {value.arg.dtype}"
    over = ir.leaves(value.over)
    if len(set(over)) < len(over) or set(over) & {leaf for group in value.dims for leaf in ir.leaves(group)}:
        return "a loop that it reduces is reduced twice, or left"
    if any(guard.limit is None or guard.dtype != "bool" for guard in value.guards):
        return "a guard without a limit"
    return ""
