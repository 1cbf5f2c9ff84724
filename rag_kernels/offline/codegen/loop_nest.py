"""Loop nests: which loop runs where, and where in memory an element lies.

Comes in: a region. Goes out: a `Nest` with its loops in order (adjacent loops merged where every access allows it),
the schedule, and index expressions as C text. Sizes are read from tensors at run time, so that a kernel serves other
shapes. Knows nothing of statements or threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir

LONG_WINDOW = 64  # elements of a window that is read as a row is, by neighbouring threads
Poly = dict[tuple[str, ...], int]  # monomials over size names -> coefficient


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names with n9 before n10, so that kernels alike have their sizes in one order."""
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def times(poly: Poly, names: tuple[str, ...], factor: int = 1) -> Poly:
    """Return the polynomial times a monomial."""
    return {in_order(mono + names): c * factor for mono, c in poly.items()}


def plus(a: Poly, b: Poly) -> Poly:
    """Return the sum of two polynomials."""
    out = dict(a)
    for mono, c in b.items():
        out[mono] = out.get(mono, 0) + c
    return {m: c for m, c in out.items() if c}


def text_of(poly: Poly) -> str:
    """Return a polynomial as C."""
    terms = [" * ".join([*([str(c)] if c != 1 or not mono else []), *mono]) for mono, c in poly.items()]
    return " + ".join(terms) if terms else "0"


@dataclass(slots=True)
class Names:
    """Size names of leaves, given out in order of use."""

    of: dict[ir.Atom, str] = field(default_factory=dict)
    leaf: dict[str, ir.Atom] = field(default_factory=dict)  # by name

    def __getitem__(self, leaf: ir.Atom) -> str:
        if leaf not in self.of:
            name = f"n{len(self.of)}"
            self.of[leaf], self.leaf[name] = name, leaf
        return self.of[leaf]

    def product(self, group: tuple[ir.Atom, ...]) -> str:
        """Return the size of a group as C: the product of its leaves' names."""
        return " * ".join(self[a] for a in ir.leaves(group)) or "1"


@dataclass(slots=True)
class Access:
    """The address of a load or store in its buffer, in elements.

    `steps` maps each leaf to its coefficient, a polynomial over size names; `constant` is a polynomial; `values` pairs
    computed indices with their strides.
    """

    steps: dict[ir.Atom, Poly]
    constant: Poly
    values: list[tuple[ir.Value, Poly]]

    def stride(self, leaf: ir.Atom) -> float:
        """Return a leaf's stride in elements at this problem's sizes; 0 when the access does not depend on it."""
        return self._numeric.get(leaf, 0)

    _numeric: dict[ir.Atom, int] = field(default_factory=dict)
    led: dict[ir.Atom, int] = field(default_factory=dict)  # strides of computed indices, by the loops they depend on


def access_of(stored: tuple[ir.Group, ...], index: tuple[ir.Form | ir.Value, ...], names: Names) -> Access:
    """Return the address of an element, given one size group and one index for each stored dimension."""
    out = Access({}, {}, [])
    for d, item in enumerate(index):
        inner = ir.leaves(a for group in stored[d + 1 :] for a in group)
        stride: Poly = {in_order(names[a] for a in inner): 1}
        if isinstance(item, ir.Value):
            out.values.append((item, stride))
            for leaf in ir.tree_atoms(item):
                out.led[leaf] = max(out.led.get(leaf, 0), ir.size_of(inner))
            continue
        if item.offset:
            out.constant = plus(out.constant, times(stride, (), item.offset))
        for group, factor in item.sizes:
            out.constant = plus(out.constant, times(stride, tuple(names[a] for a in ir.leaves(group)), factor))
        for atom, factor in item.terms:
            parts = atom.leaves()
            for i, leaf in enumerate(parts):
                step = times(stride, tuple(names[a] for a in parts[i + 1 :]), factor)
                out.steps[leaf] = plus(out.steps.get(leaf, {}), step)
                numeric = factor * ir.size_of(inner) * ir.size_of(parts[i + 1 :])
                out._numeric[leaf] = out._numeric.get(leaf, 0) + numeric
    return out


def store_access(region: Region, buffer: str, names: Names) -> Access:
    """Return the address at which a region stores a buffer's element."""
    slot = region.slots.get(buffer)
    stored: list[ir.Group] = []
    index: list[ir.Form] = []
    for d, group in enumerate(region.stores[buffer].dims):
        if slot and d == slot.dim:
            stored.append((slot.total,))
            before = tuple((one, 1) for one in slot.after)
            leaves = ir.leaves(group)
            steps = tuple((a, ir.size_of(leaves[i + 1 :])) for i, a in enumerate(leaves))
            index.append(ir.Form(steps, slot.start, before))
        else:
            stored += [(a,) for a in ir.leaves(group)]
            index += [ir.Form(((a, 1),)) for a in ir.leaves(group)]
    return access_of(tuple(stored), tuple(index), names)


@dataclass(frozen=True, slots=True)
class Loop:
    """One printed loop over one or several merged leaves (outer first)."""

    leaves: tuple[ir.Atom, ...]
    var: str
    size: str  # C text
    count: int  # the number that `size` has for this problem


Schedule = Literal["point", "row", "column", "product"]


@dataclass(slots=True)
class Nest:
    """The loops of a region. `lane` is the outer loop that runs innermost (point and column schedules)."""

    region: Region
    schedule: Schedule
    outer: list[Loop]
    reduced: list[Loop]
    lane: Loop | None
    names: Names
    accesses: dict[ir.Load, Access]
    stores: dict[str, Access]

    def offset(self, access: Access, start: str = "") -> str:
        """Return the element offset as C.

        Indices that are values are left to the caller. `start` replaces the constant part.
        """
        terms = self.terms(access, [*self.outer, *([self.lane] if self.lane else []), *self.reduced])
        if access.constant:
            terms.append(start or text_of(access.constant))
        return " + ".join(terms)

    def terms(self, access: Access, loops: list[Loop]) -> list[str]:
        """Return the terms that these loops add to an element's offset, as C."""
        terms = []
        for loop in loops:
            step = access.steps.get(loop.leaves[-1])
            if step:
                text = text_of(step)
                factor = f"({text})" if "+" in text else text
                terms.append(loop.var if text == "1" else f"{loop.var} * {factor}")
        return terms

    def is_dense(self, access: Access, loops: list[Loop]) -> bool:
        """Return whether the elements of these loops are contiguous."""
        inner: list[str] = []
        for loop in reversed(loops):
            if access.steps.get(loop.leaves[-1]) != {in_order(inner): 1}:
                return False
            inner += [self.names[leaf] for leaf in loop.leaves]
        return True

    def position(self, form: ir.Form) -> str:
        """Return the value of a form as C."""
        terms = [str(form.offset)] if form.offset or not (form.terms or form.sizes) else []
        terms += [f"{factor} * {self.names.product(group)}" for group, factor in form.sizes]
        for atom, factor in form.terms:
            parts = atom.leaves()
            for i, leaf in enumerate(parts):
                scale = " * ".join([*([str(factor)] if factor != 1 else []), *(self.names[a] for a in parts[i + 1 :])])
                terms.append(f"{self.var(leaf)} * {scale}" if scale else self.var(leaf))
        return " + ".join(terms)

    def var(self, leaf: ir.Atom) -> str:
        """Return the name of the variable of the loop over this leaf alone."""
        loops = [*self.outer, *self.reduced, *([self.lane] if self.lane else [])]
        return next(loop.var for loop in loops if loop.leaves == (leaf,))


def build_nest(region: Region, names: Names) -> Nest:
    """Return the loops of a region in order, with its schedule and the address of every access."""
    loads = [v for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Load)]
    accesses = {v: access_of(v.stored, v.index, names) for v in loads}
    stores = {buffer: store_access(region, buffer, names) for buffer in region.stores}
    every = [*stores.values(), *accesses.values()]
    order = loop_order(region, list(stores.values()), list(accesses.values()))
    inner = order[-1] if order else None
    windowed = any(a.window and a.size < LONG_WINDOW for a in region.reduced)
    reduced = [a for a in order if a in region.reduced]
    outer = [a for a in order if a in region.outer]
    schedule: Schedule = "point" if not reduced else "row" if inner in reduced and not windowed else "column"
    if schedule == "column" and not outer:
        schedule = "row"
    pinned = {leaf for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Index) for leaf in ir.own_atoms(v)}
    pinned |= slid_along(loads) if schedule == "column" else set()
    outer_groups = merge(outer, every, pinned, names)
    lane = None
    if schedule != "row" and outer_groups:
        lane = loop_over(outer_groups.pop(), "l", names)
    loops = [loop_over(g, f"i{k}", names) for k, g in enumerate(outer_groups)]
    inner_loops = [loop_over(g, f"r{k}", names) for k, g in enumerate(merge(reduced, every, pinned, names))]
    return Nest(region, schedule, loops, inner_loops, lane, names, accesses, stores)


def slid_along(loads: list[ir.Load]) -> set[ir.Atom]:
    """Return the loops along which windows slide: neighbours share what they read, so that one thread takes several."""
    forms = [f for v in loads for f in v.index if isinstance(f, ir.Form)]
    places = [[leaf for atom, _ in f.terms for leaf in atom.leaves()] for f in forms]
    return {leaf for along in places if any(x.window for x in along) for leaf in along}


def loop_over(group: tuple[ir.Atom, ...], var: str, names: Names) -> Loop:
    """Return one printed loop over a group of leaves."""
    return Loop(group, var, names.product(group), ir.size_of(group))


def loop_order(region: Region, stores: list[Access], loads: list[Access]) -> list[ir.Atom]:
    """Return the atoms outermost first, in the order of memory of a store that runs over most of them, else of a load.

    Where such lie in several ways, it is the way in which most of all do that run over as many. A loop on which a
    computed index depends steps as far as that index does.
    """
    atoms = [*region.outer, *region.reduced]

    def step(access: Access, atom: ir.Atom) -> float:
        return max(abs(access.stride(atom)), access.led.get(atom, 0))

    def stepped(access: Access) -> list[ir.Atom]:
        return sorted((atom for atom in atoms if step(access, atom)), key=partial(step, access))

    most = max(len(stepped(access)) for access in [*stores, *loads])
    first, then = ([a for a in some if len(stepped(a)) == most] for some in (stores, loads))
    votes = Counter(atom for access in [*first, *then] for atom in stepped(access)[:1])
    reference = max(first or then, key=lambda access: sum(votes[atom] for atom in stepped(access)[:1]))
    return sorted(atoms, key=lambda a: (step(reference, a) != 0, -step(reference, a), a.serial))


def merge(
    order: list[ir.Atom], accesses: list[Access], pinned: set[ir.Atom], names: Names
) -> list[tuple[ir.Atom, ...]]:
    """Return the loops in groups: adjacent ones become one where every access steps through them as through one."""
    groups: list[tuple[ir.Atom, ...]] = []
    for atom in order:
        if groups and atom not in pinned and groups[-1][-1] not in pinned:
            last = groups[-1][-1]
            if all(a.steps.get(last, {}) == times(a.steps.get(atom, {}), (names[atom],)) for a in accesses):
                groups[-1] = (*groups[-1], atom)
                continue
        groups.append((atom,))
    return groups
