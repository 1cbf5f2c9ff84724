"""What the texts of attention have in common: which loop plays which part, addresses, and the score of one key.

Comes in: an AttentionRegion and the names of its sizes. Goes out: C, which both languages use: declarations of indices,
offsets of the rows of tensors, and the statements that turn a product into a score. Knows nothing of tiles and threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.loop_nest import Access, Loop, Names, Nest, access_of, store_access, text_of
from rag_kernels.offline.codegen.operator_texts import Form
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.fusion.attention.bands import Band, Limit, bound_text, split_bands
from rag_kernels.offline.fusion.attention.operands import peeled
from rag_kernels.offline.fusion.regions import AttentionRegion, OwnText
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator


@dataclass(slots=True)
class TileNest:
    """Loops by their parts, of which each has an index in C: that of its part taken apart.

    Rows stay in place, keys are walked along; outside of `bands` and `limits` a key is nothing to a row.
    """

    region: OwnText
    names: Names
    batch: tuple[ir.Atom, ...] = ()
    rows: tuple[ir.Atom, ...] = ()
    keys: tuple[ir.Atom, ...] = ()
    bands: tuple[Band, ...] = ()
    limits: tuple[Limit, ...] = ()

    def index(self, leaf: ir.Atom) -> str:
        """Return the name of a loop's index in C."""
        for letter, part in (("b", self.batch), ("r", self.rows), ("k", self.keys)):
            if leaf in part:
                return f"{letter}{part.index(leaf)}"
        raise AssertionError("a loop of no part")

    def apart(self, whole: str, part: tuple[ir.Atom, ...], ctype: str = "const int64_t") -> list[str]:
        """Return declarations of the indices of a part, of which `whole` runs through all together.

        They are divided in 32 bits, each score's anew: a division of 64 takes as long as all else that a score does.
        """
        number = f"uint32_t({whole})" if len(part) > 1 else whole
        lines = []
        for i, leaf in enumerate(part):
            inner = self.names.product(part[i + 1 :])
            text = f"{number} / uint32_t({inner})" if i + 1 < len(part) else number
            lines.append(f"{ctype} {self.index(leaf)} = {text}{f' % uint32_t({self.names[leaf]})' if i else ''};")
        return lines

    def offset(self, access: Access, *parts: tuple[ir.Atom, ...]) -> str:
        """Return what these parts add to an element's offset, as C; the constant comes with the batch."""
        terms = []
        for leaf in (leaf for part in parts for leaf in part):
            step = access.steps.get(leaf)
            if step:
                text = text_of(step)
                factor = f"({text})" if "+" in text else text
                terms.append(self.index(leaf) if text == "1" else f"{self.index(leaf)} * {factor}")
        if access.constant and self.batch in parts:
            terms.append(text_of(access.constant))
        return " + ".join(terms) or "0"

    def stride(self, access: Access, part: tuple[ir.Atom, ...]) -> str | None:
        """Return by how many elements a step of a part moves on, as C; None where its loops are not one in memory."""
        if not part:
            return "0"
        last = access.steps.get(part[-1], {})
        for i, leaf in enumerate(part[:-1]):
            inner = tuple(self.names[a] for a in part[i + 1 :])
            step = {tuple(sorted((*mono, *inner), key=lambda n: (len(n), n))): c for mono, c in last.items()}
            if access.steps.get(leaf, {}) != step:
                return None
        return text_of(last)

    def limit_values(self, printer: Printer, most: str) -> list[str]:
        """Return for each limit, as C, the first key that it forbids, or the first that it allows: `most` keeps it from
        being below 0."""
        out = []
        for limit in self.limits:
            scope = Scope()
            value = printer.emit(limit.value, scope)
            more = f" + {limit.bound}" if limit.bound else ""
            out.append(f"[&] {{ {' '.join(scope.lines)} return {most}(int64_t({value}){more}, int64_t(0)); }}()")
        return out

    def limited(self, text: str, *, after: bool, least: str, most: str) -> str:
        """Return the text of a bound joined with the limits behind, or before, as `limit0`... in C."""
        for number, limit in enumerate(self.limits):
            if limit.after == after:
                text = f"{least if after else most}(limit{number}, {text})"
        return text

    def bounds(self, row: list[str]) -> list[str]:
        """Return the functions of CUDA that say which keys a row may see; `row` takes a row's index apart."""
        lines = list[str]()
        for name, after, start in (("first", False, "0"), ("end", True, self.names.product(self.keys))):
            text = f"int64_t({start})"
            for band in self.bands:
                if band.after == after:
                    edge = f"{self.index(band.row)} + {self.band_bound(band)} + 1"
                    edge = edge if after else f"{self.index(band.row)} - ({self.band_bound(band)})"
                    text = f"{'attend::least' if after else 'attend::most'}_of(int64_t({edge}), {text})"
            text = self.limited(text, after=after, least="attend::least_of", most="attend::most_of")
            lines.append(
                f"const auto of_{name} = [&](int64_t i) {{ {' '.join(row) if self.bands else ''} return {text}; }};"
            )
        return lines

    def band_bound(self, band: Band) -> str:
        """Return a band's bound as C."""
        return bound_text(band.names, band.bound)


@dataclass(slots=True)
class AttentionNest(TileNest):
    """The loops of an attention by their parts.

    `factor` has the numbers by which a product becomes a score where that is all, with the operators in front of them;
    None where the score is another expression.
    """

    region: AttentionRegion
    depth: tuple[ir.Atom, ...] = ()
    columns: tuple[ir.Atom, ...] = ()
    score: ir.Value | None = None
    seen: bool = False  # whether each row must have a key
    factor: list[tuple[Operator, ir.Const]] | None = None
    q: Access = field(default_factory=lambda: Access({}, {}, []))
    k: Access = field(default_factory=lambda: Access({}, {}, []))
    v: Access = field(default_factory=lambda: Access({}, {}, []))
    out: Access = field(default_factory=lambda: Access({}, {}, []))

    @classmethod
    def of(cls, region: AttentionRegion, names: Names) -> AttentionNest:
        """Return the nest of a region. A row of a band is the outermost of the rows, so that neighbours see alike."""
        a = region.attended
        nest = cls(region, names)
        every = ir.leaves(atom for group in a.dims for atom in group)
        with_keys = ir.tree_atoms(a.k) | ir.tree_atoms(a.v)
        nest.keys, nest.depth, nest.columns = (ir.leaves(group) for group in (a.keys, a.depth, a.columns))
        nest.batch = tuple(x for x in every if x in with_keys and x not in nest.columns)
        rows = [x for x in every if x not in with_keys]
        found, nest.score, nest.seen = split_bands(a)
        nest.bands = tuple(band for band in found if isinstance(band, Band))
        nest.limits = tuple(limit for limit in found if isinstance(limit, Limit))
        if len({(band.row, band.key) for band in nest.bands}) > 1 or len(nest.keys) > 1:
            nest.bands, nest.limits, nest.score, nest.seen = (), (), a.score, False
        first = {band.row for band in nest.bands}
        nest.rows = tuple(sorted(rows, key=lambda x: x not in first))
        try:
            load, nest.factor = peeled(nest.score)
            nest.factor = nest.factor if load is a.scores else None
        except ir.Unfusable:
            nest.factor = None
        nest.q, nest.k, nest.v = (access_of(x.stored, x.index, names) for x in (a.q, a.k, a.v))
        nest.out = store_access(region, a.buffer, names)
        return nest

    @property
    def expressions(self) -> list[ir.Value]:
        """Return what is computed beside the products: the score, and what limits the keys."""
        return [self.score or self.region.attended.score, *(limit.value for limit in self.limits)]

    def scored(self, printer: Printer, product: str) -> tuple[list[str], str]:
        """Return the statements that make a score of a product, and the name of the result."""
        assert self.score is not None
        scope = Scope()
        scope.known[self.region.attended.scores] = product
        result = printer.emit(self.score, scope)
        return scope.lines, result

    def scale(self) -> str:
        """Return the factor of all products as a C expression of doubles."""
        text = "1.0"
        for operator, number in self.factor or []:
            value = f"double({number.name})" if number.name else repr(float(number.number))
            text += f" {'*' if operator is Operator.MUL else '/'} {value}"
        return text

    def printer(self, pointers: dict[str, str], storage: dict[str, str], form: Form) -> Printer:
        """Return a printer of expressions over the indices of all parts."""
        loops = [
            Loop((leaf,), self.index(leaf), self.names[leaf], leaf.size) for leaf in self.batch + self.rows + self.keys
        ]
        loads = [
            v for v in ir.walk(*self.expressions) if isinstance(v, ir.Load) and v is not self.region.attended.scores
        ]
        accesses = {v: access_of(v.stored, v.index, self.names) for v in loads}
        nest = Nest(self.region, "point", loops, [], None, self.names, accesses, {})
        return Printer(nest, pointers, storage, form, near_places=form is not Form.C)

    def checks(self) -> list[str]:
        """Return what must hold at a call, as C."""
        return [f"{self.names[band.row]} <= {self.names[band.key]}" for band in self.bands[:1] if self.seen]
