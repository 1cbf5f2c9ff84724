"""The loops of chained products by their parts, and what is read of each tensor.

Comes in: a ChainedRegion and the names of its sizes. Goes out: a nest with C for rows of tensors and for the weights of
a pair of rows. Knows nothing of tiles and threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rag_kernels.offline.codegen.attention import TileNest
from rag_kernels.offline.codegen.loop_nest import Access, Loop, Names, Nest, access_of, store_access
from rag_kernels.offline.codegen.operator_texts import Form
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.fusion.attention.bands import Band, Limit, split_weights
from rag_kernels.offline.fusion.regions import ChainedRegion
from rag_kernels.offline.ir import values as ir


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor, of so many elements that lie side by side."""

    load: ir.Load
    access: Access
    inner: tuple[ir.Atom, ...]

    @property
    def width(self) -> int:
        """Return how many elements a row has."""
        return ir.size_of(self.inner)

    def key(self) -> object:
        """Return what is equal for rows that lie at the same places: of one buffer, so that indices tell."""
        inner = {leaf: place for place, leaf in enumerate(self.inner)}
        forms = [form for form in self.load.index if isinstance(form, ir.Form)]
        terms = [[([inner.get(x, x) for x in atom.leaves()], factor) for atom, factor in f.terms] for f in forms]
        return self.load.buffer, self.width, terms, [(f.offset, f.sizes) for f in forms]


@dataclass(slots=True)
class ChainNest(TileNest):
    """The loops of chained products. `tiles` are rows that are walked along; products and results name theirs."""

    kept: list[Rows] = field(default_factory=list)  # of each inner product
    tiles: list[Rows] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)  # the place in `tiles` of what each inner product walks along
    outer: list[int] = field(default_factory=list)  # and of each factor
    out: list[Access] = field(default_factory=list)
    weights: tuple[ir.Value, ...] = ()

    @classmethod
    def of(cls, region: ChainedRegion, names: Names) -> ChainNest:
        """Return the nest of a region. A row of a band is the outermost of the rows, so that neighbours see alike."""
        step, nest = region.chained, cls(region, names)
        rows, nest.keys = ir.leaves(step.rows), ir.leaves(step.walked)
        columns = {a for o in step.outer for a in ir.leaves(o.columns)}
        every = ir.leaves(a for group in step.outer[0].dims for a in group)
        nest.batch = tuple(a for a in every if a not in columns and a not in rows)
        found, nest.weights = split_weights([o.weight for o in step.outer], set(rows), set(nest.keys))
        nest.bands = tuple(band for band in found if isinstance(band, Band))
        nest.limits = tuple(limit for limit in found if isinstance(limit, Limit))
        if len({(band.row, band.key) for band in nest.bands}) > 1 or len(nest.keys) > 1:
            nest.bands, nest.limits, nest.weights = (), (), tuple(o.weight for o in step.outer)
        first = {band.row for band in nest.bands}
        nest.rows = tuple(sorted(rows, key=lambda a: a not in first))
        nest.kept = [nest.read(i.kept, i.depth) for i in step.inner]
        nest.inner = [nest.place(nest.read(i.walked, i.depth)) for i in step.inner]
        nest.outer = [nest.place(nest.read(o.factor, o.columns)) for o in step.outer]
        nest.out = [store_access(region, o.buffer, names) for o in step.outer]
        return nest

    def read(self, load: ir.Load, inner: ir.Group) -> Rows:
        """Return the rows that a load reads."""
        return Rows(load, access_of(load.stored, load.index, self.names), ir.leaves(inner))

    def place(self, rows: Rows) -> int:
        """Return the place of rows among those that are walked along, where each stand once."""
        same = [n for n, other in enumerate(self.tiles) if other.key() == rows.key()]
        if not same:
            self.tiles.append(rows)
        return same[0] if same else len(self.tiles) - 1

    @property
    def expressions(self) -> list[ir.Value]:
        """Return what is computed beside the products: the weights, and what limits the rows."""
        return [*self.weights, *(limit.value for limit in self.limits)]

    def printer(self, pointers: dict[str, str], storage: dict[str, str], form: Form) -> Printer:
        """Return a printer of expressions over the indices of all parts."""
        leaves, products = (*self.batch, *self.rows, *self.keys), self.products
        loops = [Loop((leaf,), self.index(leaf), self.names[leaf], leaf.size) for leaf in leaves]
        loads = [v for v in ir.walk(*self.expressions) if isinstance(v, ir.Load) and v not in products]
        accesses = {v: access_of(v.stored, v.index, self.names) for v in loads}
        nest = Nest(self.region, "point", loops, [], None, self.names, accesses, {})
        return Printer(nest, pointers, storage, form, near_places=form is not Form.C)

    @property
    def products(self) -> list[ir.Load]:
        """Return the stand-ins for the inner products."""
        assert isinstance(self.region, ChainedRegion)
        return [i.product for i in self.region.chained.inner]

    def weighed(
        self, printer: Printer, products: Sequence[str], known: Mapping[ir.Value, str] | None = None
    ) -> tuple[list[str], list[str]]:
        """Return the statements that make weights of the inner products of these names, and the weights' names; other
        values may have names, too."""
        scope = Scope()
        scope.known |= dict(zip(self.products, products, strict=True))
        scope.known |= {value: name for value, name in (known or {}).items()}
        names = [printer.emit(weight, scope) for weight in self.weights]
        return scope.lines, names
