"""Loop-level values: what a fused region computes, as expressions over named loop dimensions.

Comes in: nothing of ATen. Goes out: `Value` trees (loads, pointwise operators, reductions, scans) whose dimensions
are groups of atoms. An atom is one loop; a merged dimension is a group of several, a dimension of size one is an
empty group. Reshapes regroup atoms (and split them), broadcasting unifies them, slices and pooling windows replace
an atom by an affine form. Pointwise operators are members of an enum (`ir/operators.py`). This module knows nothing of
C++, CUDA or graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod

from rag_kernels.eval.errors import Internal
from rag_kernels.offline.ir.dtypes import arithmetic
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.reductions import Kind

_serial = count()


class Unfusable(Internal):
    """These values cannot share loops; the message names why. The planner then stores one of them."""


@dataclass(eq=False, slots=True)
class Atom:
    """One loop of `size` steps. It may be unified with another (`alias`) or split in two (`parts`, outer first)."""

    size: int
    fixed: bool = False  # a number of the problem (heads, groups), not a size that varies with the input
    head: bool = False  # a number by what kernels of attention need, and so is into how many of it a width is split
    window: bool = False  # runs inside a pooling window
    most: int = 0  # steps that a kernel serves, at least one; 0: any number
    along: Along | None = None  # how long it is by what it runs along, whatever the size of that
    also: tuple[Along, ...] = ()  # by what else, where it is one loop with others: a kernel has to check these
    within: tuple[Part, ...] = ()  # of what it takes parts by numbers: where that is a number, it is one
    alias: Atom | None = None
    parts: tuple[Atom, Atom] | None = None
    whole: Atom | None = None  # of which this is a part
    serial: int = field(default_factory=lambda: next(_serial))  # gives sets of atoms an order

    def leaves(self) -> tuple[Atom, ...]:
        """Return the loops that this one has become: itself, those of its alias, or those of its parts."""
        if self.alias:
            while self.alias.alias:  # a state that goes through many steps unifies its loops at each of them
                self.alias = self.alias.alias
            return self.alias.leaves()
        if self.parts:
            return self.parts[0].leaves() + self.parts[1].leaves()
        return (self,)

    def split(self, outer: int, *, fixed: bool = False) -> None:
        """Split the loop in two, of which the outer one has `outer` steps."""
        self.parts = (Atom(outer, fixed, whole=self), Atom(self.size // outer, whole=self))


Group = tuple[Atom, ...]
FEW_PARTS = 8  # steps of a part of a dimension that may become a number, such as the two of a pair


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a group: every `step`th element from `start`; no `step` says that it is another part by numbers.

    Of one that `grows` the length is another number at other sizes.
    """

    group: Group
    start: int = 0
    step: int = 0
    grows: bool = False

    def fits(self, size: str, whole: str) -> str:
        """Return the condition that so many elements of it are there, as C."""
        last = size if self.step == 1 else f"{self.step} * ({size} - 1) + 1"
        return f"{last}{f' + {self.start}' if self.start else ''} <= {whole}"


@dataclass(frozen=True, slots=True)
class Along:
    """As many steps as groups have together, `inside` more, divided into `parts` and rounded down, and `beside` more.

    Of `equal` parts nothing is left over.
    """

    groups: tuple[Group, ...]
    inside: int = 0
    parts: int = 1
    beside: int = 0
    equal: bool = False

    def leaves(self) -> tuple[Atom, ...]:
        """Return the loops whose sizes it takes."""
        return leaves(atom for group in self.groups for atom in group)

    def text(self, sizes: Iterable[str], divided: str) -> str:
        """Return the number of steps, in a language that divides by `divided`, by the numbers of steps of groups."""
        total = " + ".join([*sizes, *([str(self.inside)] if self.inside else [])]).replace("+ -", "- ")
        if self.parts > 1:
            total = f"{f'({total})' if ' ' in total else total} {divided} {self.parts}"
        return f"{total} + {self.beside}".replace("+ -", "- ") if self.beside else total


def slices(leaf: Atom | None) -> Iterator[tuple[Atom, Part]]:
    """Yield what a loop, or one of which it is a part, takes parts of, each with that loop."""
    while leaf:
        yield from ((leaf, part) for part in leaf.within)
        leaf = leaf.whole


def leaves(group: Iterable[Atom]) -> tuple[Atom, ...]:
    """Return the leaves of all atoms in order."""
    return tuple(leaf for atom in group for leaf in atom.leaves())


def size_of(group: Iterable[Atom]) -> int:
    """Return the number of elements of a group: the product of its atoms' sizes."""
    return prod(atom.size for atom in group)


def hold(groups: Iterable[Group]) -> None:
    """Make the sizes of dimensions numbers of the problem."""
    for leaf in leaves(atom for group in groups for atom in group):
        leaf.fixed = True


@dataclass(frozen=True, slots=True)
class Form:
    """An index into one stored dimension: the sum of `coefficient * atom` over the terms, plus an offset.

    `terms` are pairs (atom, coefficient); the empty tuple is the constant `offset`. `sizes` are pairs (group,
    coefficient): numbers of elements that are added, for what is counted from a dimension's end.
    """

    terms: tuple[tuple[Atom, int], ...]
    offset: int = 0
    sizes: tuple[tuple[Group, int], ...] = ()

    def substitute(self, mapping: dict[Atom, Form]) -> Form:
        """Return the form with atoms replaced by forms.

        Of an atom that has been split parts can be replaced that have few steps, which become numbers of the problem;
        others raise Unfusable.
        """
        terms: dict[Atom, int] = {}
        offset, sizes = self.offset, list(self.sizes)
        for leaf, factor in (pair for term in self.terms for pair in _apart(*term, mapping)):
            form = mapping.get(leaf) or Form(((leaf, 1),))
            offset += factor * form.offset
            sizes += [(group, factor * coefficient) for group, coefficient in form.sizes]
            for inner, coefficient in form.terms:
                terms[inner] = terms.get(inner, 0) + factor * coefficient
        return Form(tuple(terms.items()), offset, tuple(sizes))


def _apart(atom: Atom, factor: int, mapping: dict[Atom, Form]) -> list[tuple[Atom, int]]:
    """Return an atom of a form as its parts with their factors, where one of these is to be replaced."""
    parts = atom.leaves()
    hit = next((place for place, leaf in enumerate(parts) if leaf in mapping), None)
    if hit is None or len(parts) == 1:
        return [(atom if hit is None else parts[0], factor)]
    if size_of(parts[max(hit, 1) :]) > FEW_PARTS or any(leaf.along for leaf in parts):
        raise Unfusable("a split dimension is indexed again")
    for leaf in parts[1:]:
        leaf.fixed = True
    return [(leaf, factor * size_of(parts[place + 1 :])) for place, leaf in enumerate(parts)]


@dataclass(eq=False, slots=True)
class Value:
    """An expression with its dtype and dimensions.

    `dims` has one group of atoms for each dimension, outermost first: `((i,), (j, k), ())` is a tensor of the shape
    `(i, j * k, 1)`.
    """

    dims: tuple[Group, ...]
    dtype: str
    _free: frozenset[Atom] | None = field(init=False, default=None, repr=False)  # `tree_atoms`, as they were when asked
    _outer: tuple[Reduce | Scan, ...] | None = field(init=False, default=None, repr=False)  # `outermost`, once asked

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of elements along each dimension."""
        return tuple(size_of(group) for group in self.dims)


@dataclass(eq=False, slots=True)
class Const(Value):
    """A number, by value or by the name of the argument that carries it."""

    number: bool | int | float
    name: str = ""  # of the keyword constant or scalar argument that carries it, if one does


@dataclass(eq=False, slots=True)
class Size(Value):
    """The number of elements of a group, such as the divisor of a mean."""

    group: Group


@dataclass(eq=False, slots=True)
class Load(Value):
    """An element of a stored tensor.

    `stored` has one group of atoms for each dimension of the buffer and gives its sizes; `index` has one entry for each
    of these dimensions: an affine form, or an integer value that is computed. The element has the dtype `storage` in
    memory and is widened to `dtype`.
    """

    buffer: str
    stored: tuple[Group, ...]
    index: tuple[Form | Value, ...]
    storage: str


@dataclass(eq=False, slots=True)
class Op(Value):
    """A pointwise operator over its arguments."""

    operator: Operator
    args: tuple[Value, ...]


@dataclass(eq=False, slots=True)
class Index(Value):
    """The value of a form, or with `limit` a guard.

    The guard holds where 0 <= form < size of `limit` * `every` and the form is a multiple of `every`.
    """

    form: Form
    limit: Group | None = None
    every: int = 1


@dataclass(eq=False, slots=True)
class Reduce(Value):
    """A reduction by `kind` over the atoms `over`.

    Positions at which one of the guards is false do not take part.
    """

    kind: Kind
    arg: Value
    over: Group
    guards: tuple[Index, ...] = ()
    rounded: str = ""  # of a product: the dtype of sixteen bits to which the graph rounds it
    grouped: bool = False  # of neighbouring columns of a product, in whose nest it is taken
    apart: bool = False  # of all pixels or filters of a convolution, behind which it has a nest of its own


@dataclass(eq=False, slots=True)
class Scan(Value):
    """An inclusive scan by `kind` along the loop `over`."""

    kind: Kind  # sum, prod, max, min
    arg: Value
    over: Atom


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """The part of a longer dimension that a stored value fills; `cat` writes each operand to its slot.

    `dim` is the dimension, `start` the first element of the slot, and `total` the loop over the whole dimension. Where
    sizes are free it stands `after` these groups instead.
    """

    dim: int
    start: int
    total: Atom  # the whole dimension
    after: tuple[Group, ...] = ()


def children(value: Value) -> tuple[Value, ...]:
    """Return the values that a value is computed from directly."""
    match value:
        case Op():
            return value.args
        case Reduce():
            return (value.arg, *value.guards)
        case Scan():
            return (value.arg,)
        case Load():
            return tuple(i for i in value.index if isinstance(i, Value))
        case _:
            return ()


def walk(*roots: Value, enter: Callable[[Value], bool] = lambda _: True) -> Iterator[Value]:
    """Yield every value of the trees once, arguments before users.

    Values below one that `enter` refuses are not visited.
    """
    seen: set[Value] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(children(root) if enter(root) else ()))]  # no recursion: chains of steps are deep
        while path:
            value, below = path[-1]
            for child in below:
                if child not in seen:
                    seen.add(child)
                    path.append((child, iter(children(child) if enter(child) else ())))
                    break
            else:
                path.pop()
                yield value


DEEPEST = 160  # operators one behind another of a value that is not stored: a module may unroll a loop of any length


def depth(value: Value, known: dict[Value, int]) -> int:
    """Return how many operators stand one behind another in a value, and add that of each to `known`."""
    for v in walk(value, enter=lambda v: v not in known):
        if v not in known:
            known[v] = 1 + max((known[child] for child in children(v)), default=0)
    return known[value]


def forms(value: Value) -> list[Form]:
    """Return the affine indices that a value itself has."""
    if isinstance(value, Load):
        return [i for i in value.index if isinstance(i, Form)]
    return [value.form] if isinstance(value, Index) else []


def named(value: Value) -> Iterator[Atom]:
    """Yield the atoms that a value itself names, as they were when it was made."""
    for group in value.dims:
        yield from group
    for form in forms(value):
        yield from (atom for atom, _ in form.terms)
    if isinstance(value, Reduce):
        yield from value.over
    if isinstance(value, Scan):
        yield value.over


def own_atoms(value: Value) -> Iterator[Atom]:
    """Yield the leaves that a value itself names."""
    yield from leaves(named(value))


def tree_atoms(value: Value) -> set[Atom]:
    """Return the loops on which the value depends: free ones only, without those that a reduction inside consumes.

    They are found once for each value; atoms that were unified or split since stand for their leaves.
    """
    for v in walk(value, enter=lambda v: v._free is None):
        if v._free is None:
            found = {leaf for child in children(v) for atom in child._free or () for leaf in atom.leaves()}
            if isinstance(v, Reduce):
                found -= set(leaves(v.over))
            elif isinstance(v, Load | Index | Scan):
                found |= set(own_atoms(v))
            v._free = frozenset(found)
    return set(leaves(value._free or ()))


def outermost(value: Value) -> tuple[Reduce | Scan, ...]:
    """Return the reductions and scans of a value that are inside of no other: what they reduce is theirs.

    They are found once for each value.
    """
    for v in walk(value, enter=lambda v: v._outer is None and not isinstance(v, Reduce | Scan)):
        if isinstance(v, Reduce | Scan):
            v._outer = (v,)
        elif v._outer is None:
            v._outer = tuple(dict.fromkeys(found for child in children(v) for found in child._outer or ()))
    return value._outer or ()


def tensor_dims(shape: Iterable[int]) -> tuple[Group, ...]:
    """Return dimensions of fresh atoms for a stored tensor of this shape."""
    return tuple(() if size == 1 else (Atom(size),) for size in shape)


def load(buffer: str, shape: Iterable[int], storage: str) -> Load:
    """Return a load of the whole stored tensor, element by element."""
    dims = tensor_dims(shape)
    index = tuple(Form(tuple((a, 1) for a in group)) for group in dims)
    return Load(dims, arithmetic(storage), buffer, dims, index, storage)


def load_again(stored: Load) -> Load:
    """Return a load of the same whole tensor on loops of its own, numbers where those of the first are."""
    again = load(stored.buffer, map(size_of, stored.stored), stored.storage)
    for old, new in zip(stored.stored, again.stored, strict=True):
        for atom in new:
            atom.fixed = all(leaf.fixed for leaf in leaves(old))
    return again


FEW_TAPS = 16  # elements of a window that may as well be added up where a part of the sums is taken


def rebuild(value: Value, mapping: dict[Atom, Form], dims: tuple[Group, ...], *, windows: bool = False) -> Value:
    """Return the same value with atoms replaced by affine forms.

    Raises Unfusable when a reduction or scan depends on one of these atoms, unless it is a short window and `windows`
    may be: no element is read at more places than before.
    """
    memo: dict[Value, Value] = {}

    def visit(v: Value, new_dims: tuple[Group, ...] | None) -> Value:
        if v in memo:
            return memo[v]
        if isinstance(v, Reduce | Scan) and not tree_atoms(v) & mapping.keys():
            return v
        out: Value
        match v:
            case Reduce(over=over) if windows and is_short_window(over):
                guards = tuple(replace(g, form=g.form.substitute(mapping)) for g in v.guards)
                out = Reduce(v.dims, v.dtype, v.kind, visit(v.arg, None), over, guards, v.rounded)
            case Reduce() | Scan():
                raise Unfusable("a reduction is indexed again")
            case Load():
                index = tuple(i.substitute(mapping) if isinstance(i, Form) else visit(i, None) for i in v.index)
                out = Load(v.dims, v.dtype, v.buffer, v.stored, index, v.storage)
            case Index():
                out = Index(v.dims, v.dtype, v.form.substitute(mapping), v.limit, v.every)
            case Op():
                out = Op(v.dims, v.dtype, v.operator, tuple(visit(a, None) for a in v.args))
            case _:
                return v
        out.dims = new_dims if new_dims is not None else tuple(_renamed(group, mapping) for group in v.dims)
        memo[v] = out
        return out

    return visit(value, dims)


def is_short_window(group: Group) -> bool:
    """Return whether loops run inside a window of few elements."""
    return all(leaf.window for leaf in leaves(group)) and size_of(group) <= FEW_TAPS


def _renamed(group: Group, mapping: dict[Atom, Form]) -> Group:
    """Return dims of inner values after a substitution: only atoms matter, so a form's atoms stand for it."""
    new = {leaf: [atom for atom, _ in form.terms] for leaf, form in mapping.items()}
    return tuple(atom for leaf in leaves(group) for atom in new.get(leaf, [leaf]))


def regroup(group: Iterable[Atom], sizes: Iterable[int], *, fixed: Iterable[int] = ()) -> tuple[Group, ...]:
    """Return the leaves as dimensions of the given sizes, splitting atoms where that is exact.

    The outer part of an atom that is split at a position in `fixed` is a number of the problem. Raises Unfusable when
    the sizes cut across dimensions or give another number of elements.
    """
    pending = list(leaves(group))
    fixed = set(fixed)
    out: list[Group] = []
    for position, size in enumerate(sizes):
        taken: list[Atom] = []
        while (missing := size // size_of(taken)) > 1:
            if not pending:
                raise Unfusable("a reshape of another size")
            atom = pending.pop(0)
            if missing % atom.size and atom.size % missing == 0:
                atom.split(missing, fixed=position in fixed)
                atom, rest = atom.leaves()
                pending.insert(0, rest)
            if missing % atom.size:
                raise Unfusable("a reshape that cuts across dimensions")
            taken.append(atom)
        out.append(tuple(taken))
    if pending:
        raise Unfusable("a reshape of another size")
    return tuple(out)


@dataclass(slots=True)
class Loops:
    """Unification of atoms, with the rule that no value may come to use one loop for two of its dimensions."""

    values: set[Value] = field(default_factory=set)
    users: dict[Atom, list[Value]] = field(default_factory=dict)  # values that name an atom

    def track(self, value: Value) -> None:
        """Record a value and all below it as users of their atoms."""
        for node in walk(value, enter=lambda v: v not in self.values):
            if node not in self.values:
                self.values.add(node)
                for atom in {*named(node), *(named(node.arg) if isinstance(node, Reduce | Scan) else ())}:
                    while atom.alias:
                        atom = atom.alias
                    self.users.setdefault(atom, []).append(node)

    def users_of(self, atom: Atom | None) -> Iterator[Value]:
        """Yield the values that may use a leaf: those that name it, or an atom of which it is a part."""
        while atom:
            yield from self.users.get(atom, ())
            atom = atom.whole

    def unify(self, left: Group, right: Group) -> None:
        """Make two dimensions of equal size the same loops.

        Raises Unfusable when their sizes do not divide, or when one value would use a loop for two of its dimensions.
        """
        a, b = list(leaves(left)), list(leaves(right))
        while a and b:
            if a[0] is b[0]:
                a.pop(0), b.pop(0)
            elif a[0].size == b[0].size:
                self._merge(a.pop(0), b.pop(0))
            else:
                long, short = (a, b) if a[0].size > b[0].size else (b, a)
                if long[0].size % short[0].size:
                    raise Unfusable("dimensions that do not divide")
                atom = long.pop(0)
                atom.split(short[0].size)
                long[:0] = atom.leaves()
        if a or b:
            raise Unfusable("dimensions of other sizes")

    def _merge(self, a: Atom, b: Atom) -> None:
        users = list(self.users_of(b))
        for value in min(users, list(self.users_of(a)), key=len):  # one that uses both is among either's
            used = set(own_atoms(value)) | (set(own_atoms(value.arg)) if isinstance(value, Reduce | Scan) else set())
            if a in used and b in used:
                raise Unfusable("one loop would serve two dimensions")
        self.users.setdefault(a, []).extend(users)
        b.alias = a
        a.fixed, a.head = a.fixed or b.fixed, a.head or b.head
        a.also += (*([b.along] if a.along and b.along else []), *b.also)
        a.along, a.within = a.along or b.along, a.within + b.within
        a.most = min(a.most or b.most, b.most or a.most)
