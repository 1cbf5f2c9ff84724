"""What stands behind the sums of Hopper's products: operators and stores, of results in a warp's part of shared memory.

Comes in: a Contraction. Goes out: the text for one column, of which a thread goes down the rows, and for as many
neighbouring columns as are stored with sixteen bytes. Knows nothing of how the sums came about.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.loop_nest import Access
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm.gemm import Kernel
from rag_kernels.offline.cuda.gemm.hopper import text
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF, ITEMSIZE


@dataclass(slots=True)
class TailKernel(Kernel):
    """A kernel whose sums go through shared memory, warp by warp, before anything is made of them."""

    def tails(self, *, several_too: bool = True) -> list[str]:
        """Return the operators behind the sum, and the stores, of what a warp has in its part of shared memory.

        They are for results that are stored one by one, and for several at a time unless these leave otherwise.
        """
        c, kind, second = self.contraction, self.kind, self.contraction.second
        rows = self.of_rows()
        head = [*c.unflatten(c.rows, "row", kind), *rows.lines]
        columns = c.unflatten(c.columns, "column", kind)
        if inside := self.inside():
            columns.append(f"if (!({inside})) continue;")
        places, scope = self.early(), Scope(rows)
        scope.known |= {place: f"ahead[{i}]" for i, place in enumerate(places)}
        tail = "\n".join(indent(indent([*head, *self.tail_of_one(scope)])))
        one = self.rows_of_one(places).replace("OTHER\n", text.OTHER_ONE if second else "")
        one = one.replace("COLUMN_OF_LANE", self.column_at("lane % ACROSS"))
        one = one.replace("COLUMN", "\n".join(indent(columns))).replace("TAIL", tail)
        if not self.wide_tail() or not several_too:
            return one.splitlines()
        several = text.SEVERAL.replace("OTHER\n", text.OTHER if second else "")
        several = several.replace("TAIL", "\n".join(indent([*head, *self.tail_of_several(Scope(rows))])))
        several = several.replace("COLUMN_OF_VECTOR", self.column_at("e % (ACROSS / NEXT) * NEXT"))
        several = several.replace("ALL_INSIDE", self.all_inside()).replace("NEXT", str(self.next))
        return ["if (wide_tail) {", *indent(several.splitlines()), "} else {", *indent(one.splitlines()), "}"]

    def of_rows(self) -> Scope:
        """Return what stands behind the sum and is the same for all columns."""
        c, rows = self.contraction, Scope()
        for v in ir.walk(*c.nest.region.stores.values(), enter=lambda v: v not in c.totals):
            if self.is_of_row(v):
                self.printer.emit(v, rows)
        return rows

    def column_at(self, lane: str) -> str:
        """Return which column of the result a lane of a strip is, as C: `columns` or more where there is none."""
        return f"from + {lane}"

    def all_inside(self) -> str:
        """Return when all columns of a strip are the result's, as C."""
        return "from + ACROSS <= columns"

    @property
    def next(self) -> int:
        """Return how many neighbouring columns a thread takes: as many as are stored with sixteen bytes."""
        stored = [self.printer.storage[b] for b in self.whole_stores()]
        loaded = [v.storage for v in self.tail_loads() if self.lies_in_eights(self.contraction.nest.accesses[v])]
        return 4 if {ITEMSIZE[one] for one in (*stored, *loaded)} == {4} else 8

    def early(self) -> list[str]:
        """Return the elements behind the sum that lie where results do, as C."""
        stores = [self.contraction.nest.stores[b] for b in self.contraction.nest.region.stores]
        where = [(access.steps, access.constant) for access in stores]
        found: dict[str, None] = {}
        for v in self.tail_loads():
            access = self.contraction.nest.accesses[v]
            if v.storage in {*HALF, "float32"} and not access.values and (access.steps, access.constant) in where:
                found[self.address(v)] = None
        return list(found)

    def rows_of_one(self, places: list[str]) -> str:
        """Return the text for one column, which loads these elements of several rows early."""
        if not places:
            lines = text.ONE.replace("EARLY\n", "").replace("AHEAD", "").replace("WHOLE", text.ROWS_OF_ONE)
            return lines.replace("PART_OF_ONE", "one(e);")
        loads = [f"to[{i}] = {place};" for i, place in enumerate(places)]
        rows = self.contraction.unflatten(self.contraction.rows, "row", self.kind)
        early = text.EARLY.replace("LOADS", "\n".join(indent(indent([*rows, *loads]))))
        lines = text.ONE.replace("EARLY", early).replace("AHEAD", ", const float* ahead")
        lines = lines.replace("WHOLE", text.ROWS_WITH_EARLY).replace("PART_OF_ONE", text.ROW_WITH_EARLY)
        return lines.replace("COUNT", str(len(places)))

    def inside(self) -> str:
        """Return when a column of a phase is one of the result's, as C; "" where all are."""
        found = [(loop, self.contraction.phase_of(loop)) for loop in self.contraction.columns]
        return " && ".join(f"{loop.var} < {loop.size}" for loop, phase in found if phase)

    def tail_of_several(self, scope: Scope) -> list[str]:
        """Return the operators and stores of neighbouring columns."""
        c, kind, stores = self.contraction, self.kind, self.contraction.nest.region.stores
        inner = c.columns[-1]
        vectors = self.vectors(self.next)
        scope.known |= {place: f"float({name}.x[u])" for place, (name, _, _) in vectors.items()}
        scope.known |= dict(zip(c.totals, ("sum[u]", "other[u]"), strict=False))
        values = {b: self.printer.emit_stored(b, v, scope) for b, v in stores.items()}
        names = {b: f"{self.printer.pointers[b][:-2]}_v" for b in stores}
        types = {b: f"Pack<{stored_type(self.printer.storage[b], 'cuda')}, {self.next}>" for b in stores}
        return [
            *c.unflatten(c.columns, "column", kind),
            *[
                *vector_loads(vectors),
                *(f"{types[b]} {names[b]};" for b in stores),
                f"const {kind} inner = {inner.var};",
            ],
            "#pragma unroll",
            f"for (int u = 0; u < {self.next}; ++u) {{",
            f"  const {kind} {inner.var} = inner + u;",
            *indent([*scope.lines, *(f"{names[b]}.x[u] = {v};" for b, v in values.items())]),
            "}",
            *(f"*reinterpret_cast<{types[b]}*>(&{self.place(b)}) = {names[b]};" for b in stores),
        ]

    def tail_of_one(self, scope: Scope) -> list[str]:
        """Return the operators and stores of one column."""
        stores = self.contraction.nest.region.stores
        scope.known |= dict(zip(self.contraction.totals, ("sum", "other"), strict=False))
        values = {b: self.printer.emit_stored(b, v, scope) for b, v in stores.items()}
        return [*scope.lines, *(f"{self.place(b)} = {v};" for b, v in values.items())]

    def is_of_row(self, value: ir.Value) -> bool:
        """Return whether a value behind the sum is the same for all columns, and takes a load or an operator."""
        if isinstance(value, ir.Const | ir.Size) or any(v in self.contraction.totals for v in ir.walk(value)):
            return False
        columns = {leaf for loop in self.contraction.columns for leaf in loop.leaves}
        return not ir.tree_atoms(value) & columns

    def tail_loads(self) -> list[ir.Load]:
        """Return the loads behind the sum."""
        c = self.contraction
        found = ir.walk(*c.nest.region.stores.values(), enter=lambda v: v not in c.totals)
        return [v for v in found if isinstance(v, ir.Load)]

    def vectors(self, each: int) -> dict[str, tuple[str, str, Access]]:
        """Return the loads behind the sum that so many neighbours share: by place a name, its type, and the address."""
        out: dict[str, tuple[str, str, Access]] = {}
        for v in self.tail_loads():
            access = self.contraction.nest.accesses[v]
            if v.storage in ITEMSIZE.keys() - {"bool"} and self.lies_in_eights(access):
                place = self.address(v)
                name = f"{self.printer.pointers[v.buffer][:-2]}_v{len(out) + 1}"
                known = f"Pack<{stored_type(v.storage, 'cuda')}, {each}>"
                out.setdefault(place, (name, known, access))
        return out

    def lies_in_eights(self, access: Access) -> bool:
        """Return whether eight neighbouring columns lie side by side, at a multiple of eight."""
        inner = self.contraction.columns[-1]
        others = [leaf for leaf in access.steps if leaf not in inner.leaves]
        if self.contraction.phase_of(inner):
            return False
        plain = not access.values and all(not mono and n % 8 == 0 for mono, n in access.constant.items())
        even = inner.count % 8 == 0 and all(access.stride(leaf) % 8 == 0 for leaf in others)
        return plain and even and access.steps.get(inner.leaves[-1]) == {(): 1}

    def wide_tail(self) -> bool:
        """Return whether results may be stored eight at a time."""
        stores = self.contraction.nest.stores
        return all(self.lies_in_eights(stores[b]) for b in self.contraction.nest.region.stores)

    def widths(self, pointers: dict[str, str]) -> dict[str, str]:
        return {"wide_tail": self.in_eights(pointers)} if self.wide_tail() else {}

    def whole_stores(self) -> dict[str, Access]:
        """Return the stores that have an element for each of the results."""
        return {b: self.contraction.nest.stores[b] for b in self.contraction.nest.region.stores}

    def in_eights(self, pointers: dict[str, str]) -> str:
        """Return when what is stored and loaded behind the sum can be taken eight columns at a time, as C."""
        c, stores = self.contraction, self.whole_stores()
        loads = {v.buffer: c.nest.accesses[v] for v in self.tail_loads() if self.lies_in_eights(c.nest.accesses[v])}
        every = [*stores.values(), *loads.values()]
        places = list(dict.fromkeys(pointers[b] for b in (*stores, *loads)))
        return self.multiples(c.columns[-1], every, places, of=8)


def vector_loads(vectors: dict[str, tuple[str, str, Access]]) -> list[str]:
    """Return the statements that load what neighbours share."""
    return [
        f"const {kind} {name} = *reinterpret_cast<const {kind}*>(&{place});"
        for place, (name, kind, _) in vectors.items()
    ]
