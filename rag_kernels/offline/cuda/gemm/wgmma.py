"""Contractions of sixteen-bit numbers, and of fp32 as TF32, on Hopper: tiles come by TMA, wgmma multiplies them.

Comes in: a Contraction whose factors are tensors that the copy engine (TMA) can read: lanes, terms, and batches; those
of fp32 are rounded to TF32 on their way. Goes out: the kernel and its launch, as in `gemm.py`, with the condition on
sizes and addresses under which it may run; the kernel of `tensor_core.py` serves all other calls. One warpgroup
loads tiles into a ring in shared memory, two multiply. wgmma takes TF32 with terms side by side alone, but for its left
factor from registers: the factor with lanes side by side is the left one then, if need be with rows and columns
exchanged. Blocks stay and take tile after tile; where tiles do not fill the device, the depth is split among blocks,
and the last of a tile adds the parts up in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.contraction import Contraction
from rag_kernels.offline.codegen.loop_nest import Access, Loop, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm import wgmma_text as text
from rag_kernels.offline.cuda.gemm.gemm import Kernel
from rag_kernels.offline.cuda.gemm.tensor_core import TensorKernel
from rag_kernels.offline.cuda.gemm.tma_matrix import Matrix, matrix_of, start_of_matrix
from rag_kernels.offline.cuda.gemm.wgmma_shape import PLAIN, Shape, best_shape, shape_of
from rag_kernels.offline.cuda.kernel_text import PARTS, KernelText, Parameter
from rag_kernels.offline.cuda.needs import SHORT_NAMES, Needs
from rag_kernels.offline.fusion.stored_first import is_costly
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF, ITEMSIZE

SHARED = 227 * 1024  # bytes of a block at most
STRIP, NARROW = 32, 16  # columns that a warp stores at once, and where rows and columns are exchanged
STAGED = 8 * 16 * (STRIP + 8) * 4  # bytes through which eight warps store
COPIED = 128  # lanes of each factor from which on copies that the copy engine can read are worth their while
LINE = 128  # bytes of a swizzled line: one step of the depth, or 64 lanes of sixteen bits


def shape_for(contraction: Contraction, right: Matrix, itemsize: int, *, turned: bool, registers: bool) -> Shape:
    """Return how to cut a product of these sizes."""
    c = contraction
    rows, columns, batches, depth = map(c.count, (c.rows, c.columns, c.batches, c.depth))
    columns *= len(c.totals)
    rows, columns = (columns, rows) if turned else (rows, columns)
    depth = depth * itemsize // 2  # a term of fp32 takes the time of two of sixteen bits
    slab = 0 if c.second else LINE // itemsize if right.lanes_inside else STRIP // 2
    return best_shape(rows, columns, batches, depth, registers=registers, slab=slab, tail=has_tail(c))


def has_tail(contraction: Contraction) -> bool:
    """Return whether much stands behind the sum: a function of each result, or a tensor as large."""
    c = contraction
    results = {leaf for loop in (*c.rows, *c.columns) for leaf in loop.leaves}
    behind = ir.walk(*c.nest.region.stores.values(), enter=lambda v: v not in c.totals)
    return any(is_costly(v) or (isinstance(v, ir.Load) and ir.tree_atoms(v) >= results) for v in behind)


@dataclass(slots=True)
class WgmmaKernel(Kernel):
    """A kernel for a contraction that the copy engine can feed."""

    numbers: str = "bfloat16"
    left: Matrix | None = None
    right: Matrix | None = None
    shape: Shape = PLAIN
    turned: bool = False  # the left factor of wgmma is the right one of the contraction
    second: Matrix | None = None  # right factor of another product of the same left one; each has half of a tile

    def __post_init__(self) -> None:
        """Do nothing: the shape takes the place of a tile."""

    def note(self, needs: Needs) -> None:
        needs.tiles = True
        needs.copy_engine = needs.copies = True
        needs.columns.add(self.shape.columns)

    @property
    def itemsize(self) -> int:
        return 4 if self.numbers == "tf32" else 2

    @property
    def depth(self) -> int:
        """Return the terms of one step: a line."""
        return LINE // self.itemsize

    @property
    def line(self) -> int:
        """Return the bytes of a lane's terms that lie side by side in shared memory."""
        return LINE

    @property
    def terms(self) -> str:
        """Return how many terms there are, as C."""
        return self.contraction.extents(self.contraction.depth)

    @property
    def slab(self) -> int:
        """Return how many lanes lie side by side in a line."""
        return LINE // self.itemsize

    @property
    def by_registers(self) -> bool:
        """Return whether the left factor goes through registers."""
        return self.numbers == "tf32" and self.left is not None and self.left.lanes_inside

    @property
    def lanes(self) -> tuple[list[Loop], list[Loop]]:
        """Return the loops of the lanes of wgmma's factors."""
        c = self.contraction
        return (c.columns, c.rows) if self.turned else (c.rows, c.columns)

    @property
    def wide(self) -> int:
        """Return the columns of the result that a tile has."""
        return self.shape.columns // (2 if self.second else 1)

    @property
    def tall(self) -> int:
        """Return the rows of the result that a tile has."""
        return self.shape.rows

    def right_lanes(self, lanes: str) -> str:
        """Return of how many lanes of the right factor tiles are made, as C."""
        return lanes

    def tiles_along(self, lanes: str) -> str:
        """Return how many tiles lie along so many lanes of the right factor, as C."""
        return f"tiles({lanes}, {self.wide})"

    @property
    def maps(self) -> dict[str, Matrix]:
        """Return the factors by the names of their maps."""
        assert self.left and self.right
        return {"left": self.left, "right": self.right} | ({"second": self.second} if self.second else {})

    @property
    def stage(self) -> int:
        """Return the bytes of a stage of the ring."""
        return LINE * (self.shape.rows + self.shape.columns)

    @property
    def stages(self) -> int:
        return min(8, (SHARED - 2048 - STAGED) // self.stage)

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage + STAGED + 1024

    def constants(self) -> str:
        """Return the declarations of the kernel's constants."""
        s, steps = self.shape, {}
        for name, matrix in (("LEFT", self.left), ("RIGHT", self.right)):
            assert matrix
            inside = matrix.lanes_inside
            steps[name] = f"{name}_STEP = {16 * LINE if inside else 32}"
            steps[name] += f", {name}_LEADING = {self.depth * LINE if inside else 16}"
        values = [
            f"ROWS = {s.rows}, COLUMNS = {s.columns}, DEPTH = {self.depth}, STAGES = {self.stages}",
            f"CLUSTER = {s.cluster}, BLOCKS = {s.blocks}, BAND = {s.band}, GROUPS = {1 if s.alternate else 2}",
            f"LINE = {self.line}, FOLLOW = {self.line // 32}, HIGH = {64 * self.line}",
            f"LEFT_BYTES = {s.rows * LINE}, STAGE = {self.stage}, STRIP = {STRIP}, SKEW = {STRIP + 8}",
            f"WIDE = {self.wide}, PART = {STRIP * self.wide // s.columns}, PHASES = {self.phases}",
            *steps.values(),
        ]
        return f"constexpr int {', '.join(values)};"

    def body(self) -> list[str]:
        c, kind = self.contraction, self.kind
        of_left, of_right = map(c.extents, self.lanes)
        assert self.left and self.right
        multiply = f"rk::wgmma_{SHORT_NAMES[self.numbers]}"
        if self.numbers in HALF:
            multiply += f"<{int(self.left.lanes_inside)}, {int(self.right.lanes_inside)}>"
        walk = text.WALK_IN_PAIRS if self.by_registers else text.WALK
        consumer = text.CONSUMER.replace("WALK", walk).replace("STEP", self.step()).replace("MULTIPLY", multiply)
        strips = self.strips().replace("TAILS", "\n".join(indent(self.tails())))
        producer = text.PRODUCER.replace("BATCHES", "\n".join(indent(indent(indent(self.before_loads())))))
        producer = producer.replace("LOADS", "\n".join(indent(indent(indent(indent(self.loads()))))))
        maps = [given for _, given in self.factors() if given in ("left_map", "right_map")]
        prefetch = ", ".join(f"rk::tma_prefetch(&{one})" for one in maps)
        producer = producer.replace("PREFETCH", f"{prefetch};").replace("BROUGHT", self.bytes_brought())
        inside = [
            *text.RELEASE.splitlines(),
            *consumer.splitlines(),
            *indent(text.PARTS.splitlines()),
            *indent(c.unflatten(c.batches, "z", kind)),
            *indent(strips.splitlines()),
            "}",
        ]
        lines = [
            "#ifdef RK_ON_HOPPER",
            self.constants(),
            f"constexpr bool ALTERNATE = {str(self.shape.alternate).lower()};",
            f"const int rows = {c.extents(c.rows)}, columns = {c.extents(c.columns)}, depth = {self.terms};",
            f"const int batches = {c.extents(c.batches)};",
            f"const int of_left = {of_left}, of_right = {self.right_lanes(of_right)};",
            *self.begin().replace("KIND", kind).splitlines(),
            *producer.splitlines(),
            *indent([line.replace("KIND", kind) for line in inside]),
            "}",
            "if (CLUSTER > 1) {",
            "  __syncwarp();",
            "  rk::cluster_sync();  // no block ends while others use its memory",
            "}",
            "#endif",
        ]
        return lines

    def step(self) -> str:
        """Return the products of a step."""
        return text.FROM_REGISTERS if self.by_registers else text.FROM_SHARED

    def strips(self) -> str:
        """Return the loop over the parts of a tile that go through shared memory."""
        return text.STRIPS_TURNED if self.turned else text.STRIPS

    def bytes_brought(self) -> str:
        """Return the bytes that the loads of a step bring, as C."""
        return "STAGE"

    def begin(self) -> str:
        """Return the statements by which blocks find their tiles."""
        return text.BEGIN.replace("ITEM\n", text.ITEM)

    def before_loads(self) -> list[str]:
        """Return the statements before the loads of a tile."""
        places = [line for name, m in self.maps.items() for line in m.place_lines(name, self.printer)]
        return [*self.contraction.unflatten(self.contraction.batches, "z", self.kind), *places]

    def loads(self) -> list[str]:
        """Return the statements that fill a stage: of what a cluster shares each block loads its part for all."""
        assert self.left and self.right
        s = self.shape
        shared = s.cluster > 1
        left = self.boxes(self.left, "left", "row0", s.rows, "")
        share = s.columns // s.cluster
        part, offset = (f" + rank * {share}", f" + rank * {share * LINE}") if shared else ("", "")
        right = self.boxes(self.right, "right", f"column0{part}", share, offset)
        if self.second and shared:  # each block brings one of the two
            either = "rank ? &second_map : &right_map"
            right = self.boxes(self.right, "right", "column0", share, offset, either)
        elif self.second:
            right = self.boxes(self.right, "right", "column0", self.wide, "")
            right += self.boxes(self.second, "second", "column0", self.wide, f" + {self.wide * LINE}")
        return [*left, *right]

    def boxes(self, matrix: Matrix, name: str, start: str, lanes: int, offset: str, from_map: str = "") -> list[str]:
        """Return the loads of so many lanes of a factor; lanes that lie side by side come in slabs of a line.

        Those of the right factor go to all blocks of a cluster.
        """
        shared = name == "right" and self.shape.cluster > 1
        load, mask = ("tma_load_all", f"{(1 << self.shape.cluster) - 1}, ") if shared else ("tma_load", "")
        base = "left" if name == "left" else "right"
        slabs = range(0, lanes, self.slab) if matrix.lanes_inside else [0]
        out = []
        for slab in slabs:
            where = {"lane": f"{start} + {slab}" if slab else start, "term": "k * DEPTH"}
            where |= {f"place{n}": f"{name}_place{n}" for n in range(len(matrix.places))}
            places = ", ".join(where.get(by, f"int({by})") for by in matrix.by)
            to = f"{base}{offset}" + (f" + {slab * LINE}" if slab else "")
            out.append(f"rk::{load}({from_map or f'&{name}_map'}, {to}, bar, {mask}{places});")
        return out

    # The tail ---------------------------------------------------------------------------------------------------

    def tails(self) -> list[str]:
        """Return the operators behind the sum, and the stores, of what a warp has in its part of shared memory."""
        c, kind, second = self.contraction, self.kind, self.second
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
        if not self.wide_tail():
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

    # The launch -------------------------------------------------------------------------------------------------

    def condition(self, pointers: dict[str, str]) -> str:
        """Return when the copy engine can read all factors, or copies of them are worth their while, as C."""
        sizes = ", ".join(dict.fromkeys(f"int64_t({size})" for m in self.maps.values() for size in m.sizes))
        large = " && ".join(f"{text} >= {COPIED}" for text in map(self.contraction.extents, self.lanes))
        reads = " && ".join(self.reads(matrix, pointers) for matrix in self.maps.values())
        return f"(({reads}) || ({large} && tma_counts({{{sizes}}})))"

    def reads(self, matrix: Matrix, pointers: dict[str, str]) -> str:
        """Return when the copy engine can read a factor, as C."""
        if matrix.steps[0] != {(): 1}:
            return "false"
        steps = ", ".join(f"int64_t({text_of(step)})" for step in matrix.steps[1:])
        sizes = ", ".join(f"int64_t({size})" for size in matrix.sizes)
        return f"rk::tma_reads({start_of_matrix(matrix, pointers)}, {{{sizes}}}, {{{steps}}})"

    @property
    def phases(self) -> int:
        """Return how many phases there are, each with as many tiles."""
        return 1

    @property
    def least_terms(self) -> str:
        """Return the terms of the phase that has fewest, as C."""
        return self.terms

    def map(self, matrix: Matrix, name: str, lanes: int, pointers: dict[str, str]) -> list[str]:
        """Return the statements that describe a factor, or a copy of it, to the copy engine."""
        rank = len(matrix.by)
        box = {"lane": self.slab if matrix.lanes_inside else lanes, "term": self.depth}
        sizes = ", ".join(f"int64_t({size})" for size in matrix.sizes)
        steps = ", ".join(f"int64_t({text_of(step)})" for step in matrix.steps)
        boxes = ", ".join(str(box.get(by, 1)) for by in matrix.by)
        place, factor = start_of_matrix(matrix, pointers), f"{name}_factor"
        return [
            f"const auto {factor} = tma_factor<{rank}>({place}, {{{sizes}}}, {{{steps}}}, "
            f"{self.reads(matrix, pointers)}, stream);",
            f"const CUtensorMap {name}_map = rk::tma_map<{rank}>({factor}.data, {{{sizes}}}, {factor}.strides, "
            f"{{{boxes}}}{self.rounded(', 128')});",
        ]

    def rounded(self, before: str = "") -> str:
        """Return the arguments by which the copy engine rounds to TF32, behind others that this takes; or nothing."""
        return f"{before}, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32" if self.numbers == "tf32" else ""

    def text(self, name: str, parameters: list[Parameter], body: list[str], widths: dict[str, str]) -> KernelText:
        factors = [parameter for parameter, _ in self.factors()]
        every = [*factors, *parameters, *(Parameter("bool", flag) for flag in widths), *PARTS]
        return KernelText((self.contraction.note(),), "__global__ void __launch_bounds__(384, 1) ", name, every, body)

    def factors(self) -> list[tuple[Parameter, str]]:
        """Return the parameters by which the kernel knows its factors, and what is given for them, as C."""
        kind = "const __grid_constant__ CUtensorMap"
        return [(Parameter(kind, f"{side}_map"), f"{side}_map") for side in self.maps]

    def hopper_launch(
        self, name: str, arguments: list[str], widths: dict[str, str], pointers: dict[str, str]
    ) -> list[str]:
        """Return the statements that launch the kernel, with memory for the parts of a split depth."""
        c, s = self.contraction, self.shape
        of_left, of_right = map(c.extents, self.lanes)
        assert self.left and self.right
        each = s.blocks * s.columns // 2 * 128
        groups = 1 if s.alternate else 2
        every = ", ".join([*(given for _, given in self.factors()), *arguments, *widths, "parts", "partial", "arrived"])
        lanes = self.wide if self.second else s.columns // s.cluster
        return [
            *(
                line
                for n, m in self.maps.items()
                for line in self.map(m, n, self.tall if n == "left" else lanes, pointers)
            ),
            *(f"const bool {flag} = {condition};" for flag, condition in widths.items()),
            f"const int64_t across = tiles({of_left}, {self.tall * s.cluster}) * {self.phases};",
            f"const int64_t all = ({c.extents(c.batches)}) * across * {self.tiles_along(of_right)};",
            "const int64_t places = by_device([] {",
            f"  return rk::cluster_places({name}, 384, {s.cluster}, {self.shared_bytes});",
            "});",
            f"const int parts = tma_parts(all, tiles({self.least_terms}, {self.depth}), places);",
            f"const int64_t slots = all * {s.cluster * groups};",
            f"float* partial = parts > 1 ? scratch<float>(slots * parts * {each}, stream) : nullptr;",
            "int* arrived = parts > 1 ? scratch<int>(slots, stream) : nullptr;",
            "if (parts > 1) cudaMemsetAsync(arrived, 0, sizeof(int) * slots, stream);",
            f"const unsigned grid = blocks((all * parts < places ? all * parts : places) * {s.cluster});",
            f"rk::launch_clusters({name}, grid, 384, {s.cluster}, {self.shared_bytes}, stream, {every});",
            "if (parts > 1) {",
            "  cudaFreeAsync(partial, stream);",
            "  cudaFreeAsync(arrived, stream);",
            "}",
            *(f"if ({n}_factor.copy) cudaFreeAsync({n}_factor.copy, stream);" for n in self.maps),
        ]


def vector_loads(vectors: dict[str, tuple[str, str, Access]]) -> list[str]:
    """Return the statements that load what neighbours share."""
    return [
        f"const {kind} {name} = *reinterpret_cast<const {kind}*>(&{place});"
        for place, (name, kind, _) in vectors.items()
    ]


def wgmma_kernel(
    kernel: TensorKernel, wanted: tuple[int, int, int], of: type[WgmmaKernel] = WgmmaKernel
) -> WgmmaKernel | None:
    """Return the kernel (one `of` these) for a contraction in one pass that the copy engine can feed, or None.

    `wanted` has the shape of tiles, blocks of a cluster and whether groups take turns, as tuning parameters say them.
    """
    c, numbers = kernel.contraction, kernel.numbers
    left, right = matrix_of(c, c.left), matrix_of(c, c.right)
    if not numbers or left is None or right is None:
        return None
    if {left.load.storage, right.load.storage} != {"float32" if numbers == "tf32" else numbers}:
        return None
    turned, second = False, matrix_of(c, c.second) if c.second else None
    if c.second and (second is None or second.by != right.by or right.places):
        return None
    if numbers == "tf32":
        turned = right.lanes_inside and not left.lanes_inside and c.grouped <= NARROW
        left, right = (right, left) if turned else (left, right)
        right = right.turned() if right.lanes_inside else right
        if c.second and (turned or right.steps[0] != {(): 1}):
            return None
    itemsize, registers = 2 if numbers in HALF else 4, numbers == "tf32" and left.lanes_inside
    shape = shape_of(wanted, shape_for(c, right, itemsize, turned=turned, registers=registers))
    return of(c, kernel.printer, kernel.kind, 0, kernel.tile, numbers, left, right, shape, turned, second)
