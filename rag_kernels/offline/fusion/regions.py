"""Regions: one region is one loop nest, that is one kernel.

Comes in: values that are stored, by buffer. Goes out: a `Region` with outer loops and reduced loops, which all of its
reductions share; or one whose text is its own (a scatter, a sort, segments, attention, a recurrent layer). Knows
nothing of languages, and nothing of how values are divided among regions (`planner`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rag_kernels.offline.fusion.loops import key_of, loops_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.parameters import whole_of
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.ir.wellformed import Checker, IllFormed, told
from rag_kernels.offline.lowering.steps import Attended, Chained, Ordered, Recurrent, Scattered, Segmented, values_of

Dims = tuple[ir.Group, ...]
SCANNED_PART = 4096  # elements of a part of a long scan at least


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """One loop nest: independent loops `outer`, loops `reduced`, and the values that it stores, by buffer.

    `slots` has the part that is written of each buffer of which the region writes only a part. Of several parts of one
    buffer the first has its name, and the others names that stand for it (`parameters.whole_of`).
    """

    stores: dict[str, ir.Value]
    outer: tuple[ir.Atom, ...]
    reduced: tuple[ir.Atom, ...]
    slots: dict[str, ir.Slot] = field(default_factory=dict)  # of buffers of which the region writes a part

    def check(self, checker: Checker) -> None:
        """Raise IllFormed when a value is not well-formed, or runs over loops that the nest does not have."""
        checker.check(self.stores.values(), "The planner")
        reduced = set(self.reduced)
        for value in ir.walk(*self.stores.values()):
            if isinstance(value, ir.Reduce | ir.Scan) and not key_of(value)[1] <= reduced:
                raise IllFormed(f"The planner put {told(value)} into a nest that does not have its loops.")
        for value in self.stores.values():
            stored = {leaf for group in value.dims for leaf in ir.leaves(group)}
            if not stored <= reduced.union(self.outer):
                raise IllFormed(f"The planner stores {told(value)} from a nest that does not have its loops.")
            if not stored >= set(self.outer):
                raise IllFormed(
                    f"The planner stores {told(value)} over and over, from a nest that has other loops too."
                )

    @property
    def written(self) -> dict[str, None]:
        """Return the buffers that the region writes, each once."""
        return dict.fromkeys(map(whole_of, self.stores))

    def dims(self, buffer: str) -> tuple[ir.Group, ...]:
        """Return one group of atoms for each dimension of a buffer that the region writes."""
        dims, slot = self.stores[buffer].dims, self.slots.get(buffer)
        return (*dims[: slot.dim], (slot.total,), *dims[slot.dim + 1 :]) if slot else dims


@dataclass(frozen=True, slots=True, eq=False)
class OwnText(Region):
    """A region that is written by a text of its own; its loops stand in `outer` to be given sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class ScatterRegion(OwnText):
    """Elements that join a buffer at computed places. It stores a value that names all that is read.

    Of several scatters of the same loops into one buffer `also` has the others: they are one nest.
    """

    scattered: Scattered = field(kw_only=True)
    also: tuple[Scattered, ...] = ()

    @property
    def every(self) -> tuple[Scattered, ...]:
        """Return all scatters of the nest."""
        return (self.scattered, *self.also)

    def check(self, checker: Checker) -> None:
        """Raise IllFormed when an element or a place is not well-formed."""
        checker.check([value for step in self.every for value in values_of(step)], "The planner")

    def dims(self, buffer: str) -> tuple[ir.Group, ...]:
        """Return one group of atoms for each dimension of the buffer, of which no loop need run through any."""
        return self.scattered.dims

    @classmethod
    def of(cls, step: Scattered, *also: Scattered) -> ScatterRegion:
        """Return the region of scatters, whose values are pointwise."""
        values = tuple(value for one in (step, *also) for value in values_of(one))
        read = ir.Op(step.value.dims, step.value.dtype, Operator.READ, values)
        return cls({step.buffer: read}, loops_of(step.value), (), scattered=step, also=also)


@dataclass(frozen=True, slots=True, eq=False)
class OrderRegion(OwnText):
    """Lanes of a value in order, and where their elements stood."""

    ordered: Ordered = field(kw_only=True)

    def check(self, checker: Checker) -> None:
        """Raise IllFormed when the value is not well-formed."""
        checker.check(values_of(self.ordered), "The planner")

    @classmethod
    def of(cls, step: Ordered) -> OrderRegion:
        """Return the region of a sort, whose value is pointwise."""
        dtypes = {step.elements: step.value.dtype, step.places: "int64"}
        stores: dict[str, ir.Value] = {
            buffer: ir.Op(step.stored, dtype, Operator.READ, values_of(step)) for buffer, dtype in dtypes.items()
        }
        return cls(stores, tuple(dict.fromkeys((*loops_of(step.value), *ir.leaves(step.taken)))), (), ordered=step)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRegion(OwnText):
    """Rows that join by segments. It stores a value that names all that is read."""

    segmented: Segmented = field(kw_only=True)

    def check(self, checker: Checker) -> None:
        """Raise IllFormed when an element or a bound is not well-formed."""
        checker.check(values_of(self.segmented), "The planner")

    def dims(self, buffer: str) -> tuple[ir.Group, ...]:
        """Return one group of atoms for each dimension of the buffer."""
        return self.segmented.dims

    @classmethod
    def of(cls, step: Segmented) -> SegmentRegion:
        """Return the region of segments, whose values are pointwise."""
        read = ir.Op(step.value.dims, step.value.dtype, Operator.READ, values_of(step))
        loops = (*ir.leaves(step.dims[0]), *loops_of(step.value))
        return cls({step.buffer: read}, loops, (), segmented=step)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRegion(OwnText):
    """Attention, which is written by texts of its own; its loops stand in `outer` to be given sizes."""

    attended: Attended = field(kw_only=True)

    def check(self, checker: Checker) -> None:
        """Raise IllFormed when queries, keys or values are not well-formed; the texts see to the loops of the rest."""
        checker.check((self.attended.q, self.attended.k, self.attended.v), "The planner")

    @classmethod
    def of(cls, step: Attended) -> AttentionRegion:
        """Return the region of an attention: it stores a value that names all that is read."""
        stand_in = ir.Const((), "float32", 0)
        score = rewrite(step.score, lambda v: stand_in if v is step.scores else None)
        read = (step.q, step.k, step.v, score)
        stores: dict[str, ir.Value] = {
            buffer: ir.Op(dims, "float32", Operator.ATTENTION, read) for buffer, dims in step.stored.items()
        }
        return cls(stores, ir.leaves(a for group in step.dims for a in group), (), attended=step)


@dataclass(frozen=True, slots=True, eq=False)
class ChainedRegion(OwnText):
    """Products of which one factor is computed of other products. It stores values that name all that is read."""

    chained: Chained = field(kw_only=True)

    def check(self, checker: Checker) -> None:
        """Raise IllFormed when a factor or a weight is not well-formed."""
        checker.check(values_of(self.chained), "The planner")

    @classmethod
    def of(cls, step: Chained) -> ChainedRegion:
        """Return the region of chained products."""
        read = values_of(step)
        stores: dict[str, ir.Value] = {o.buffer: ir.Op(o.dims, "float32", Operator.READ, read) for o in step.outer}
        loops = dict.fromkeys(leaf for o in step.outer for leaf in ir.leaves(a for group in o.dims for a in group))
        return cls(stores, tuple(loops), (), chained=step)


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentRegion(OwnText):
    """A recurrent layer. It stores values that name all that is read."""

    recurrent: Recurrent = field(kw_only=True)

    def check(self, checker: Checker) -> None:
        """Raise IllFormed when a value is not well-formed."""
        checker.check(values_of(self.recurrent), "The planner")

    @classmethod
    def of(cls, step: Recurrent) -> RecurrentRegion:
        """Return the region of a recurrent layer, which reads whole tensors."""
        read = values_of(step)
        stores: dict[str, ir.Value] = {b: ir.Op(d, "float32", Operator.READ, read) for b, d in step.stored.items()}
        loops = (*step.steps, *step.batch, *step.sides, *step.units, *step.directions[0].gates.dims[2])
        return cls(stores, ir.leaves(loops), (), recurrent=step)


def loads_of(region: Region) -> list[ir.Load]:
    """Return all loads of a region's values."""
    return [v for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Load)]


def reads_of(region: Region) -> set[str]:
    """Return the buffers that a region reads."""
    return {load.buffer for load in loads_of(region)}


def loops_named(region: Region) -> list[ir.Atom]:
    """Return every loop whose size a region asks for, in the order in which they were made."""
    values = list(ir.walk(*region.stores.values()))
    named = {a for v in values for a in ir.own_atoms(v)}
    named |= {a for v in values if isinstance(v, ir.Index) and v.limit for a in ir.leaves(v.limit)}
    named |= {a for v in values if isinstance(v, ir.Size) for a in ir.leaves(v.group)}
    named |= {a for v in values for form in ir.forms(v) for group, _ in form.sizes for a in ir.leaves(group)}
    named |= {*region.outer, *region.reduced} | {slot.total for slot in region.slots.values()}
    named |= {a for slot in region.slots.values() for a in ir.leaves(b for group in slot.after for b in group)}
    return sorted(named, key=lambda a: a.serial)


def dims_stored(regions: Sequence[Region]) -> dict[str, list[Dims]]:
    """Return the loops along which buffers are stored, one group a dimension; several for a concatenation."""
    stored: dict[str, list[Dims]] = {}
    for region in regions:
        for buffer in region.stores:
            stored.setdefault(whole_of(buffer), []).append(region.dims(buffer))
    return stored


def loops_read_back(load: ir.Load, stored: Mapping[str, Sequence[Dims]]) -> list[tuple[ir.Group, ir.Group]]:
    """Return the loops along which a buffer is stored with those along which a load reads it, by dimension."""
    shape = tuple(map(ir.size_of, load.stored))
    same = [dims for dims in stored.get(load.buffer, ()) if tuple(map(ir.size_of, dims)) == shape]
    return [pair for dims in same for pair in zip(dims, load.stored, strict=True)]


def reductions_in(region: Region) -> list[ir.Value]:
    """Return all reductions and scans of a region."""
    return [v for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Reduce | ir.Scan)]
