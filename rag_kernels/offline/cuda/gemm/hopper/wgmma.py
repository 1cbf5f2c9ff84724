"""Contractions of sixteen-bit numbers, and of fp32 as TF32, on Hopper: tiles come by TMA, wgmma multiplies them.

Comes in: a Contraction whose factors are tensors that the copy engine (TMA) can read: lanes, terms, and batches; those
of fp32 are rounded to TF32 on their way. Goes out: the kernel and its launch, as in `gemm.py`, with the condition on
sizes and addresses under which it may run; the kernel of `tensor_core.py` serves all other calls. One warpgroup
loads tiles into a ring in shared memory, two multiply. wgmma takes TF32 with terms side by side alone, but for its left
factor from registers: the factor with lanes side by side is the left one then, if need be with rows and columns
exchanged. Blocks stay and take tile after tile; where tiles do not fill the device, the depth is split among the blocks
of a cluster, which add the parts up in their order, or stored, and a second launch of the kernel does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.loop_nest import Loop, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm.hopper import text
from rag_kernels.offline.cuda.gemm.hopper.leave import ROOM, Results, leave, pieces_for
from rag_kernels.offline.cuda.gemm.hopper.shape import (
    HALF_OF_WAVE,
    LINE,
    PLAIN,
    SHARED,
    SMALL,
    STAGED,
    Product,
    Shape,
    adding,
    joins,
    step_time,
    waves_of,
)
from rag_kernels.offline.cuda.gemm.hopper.tail import TailKernel, vector_loads
from rag_kernels.offline.cuda.gemm.hopper.tma_matrix import Matrix, start_of_matrix
from rag_kernels.offline.cuda.kernel_text import KernelText, Parameter
from rag_kernels.offline.cuda.needs import SHORT_NAMES, Needs
from rag_kernels.offline.ir.dtypes import HALF

STRIP = 32  # columns that a warp stores at once
COPIED = 128  # lanes of each factor from which on copies that the copy engine can read are worth their while
DEEP, CHAINED = 8192, 4096  # terms of TF32 from which on tensor cores add up so many at a time, and fp32 the rest
MOST_ASIDE = 128  # columns of 64 rows of which a group may have the sums twice


@dataclass(slots=True)
class WgmmaKernel(TailKernel):
    """A kernel for a contraction that the copy engine can feed."""

    numbers: str = "bfloat16"
    left: Matrix | None = None
    right: Matrix | None = None
    shape: Shape = PLAIN
    turned: bool = False  # the left factor of wgmma is the right one of the contraction
    second: Matrix | None = None  # right factor of another product of the same left one; each has half of a tile
    results: Results | None = None  # where they can leave by the copy engine
    adds: Literal["", "in memory", "in clusters"] = "in memory"  # parts of a depth, where it may be split
    chain: int = 0  # steps after which sums are put aside; 0: never
    product: Product = SMALL  # what the shape was chosen for

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
    def copied(self) -> list[str]:
        """Return the factors that may be copied, by the names of their maps."""
        return [*self.maps]

    @property
    def stage(self) -> int:
        """Return the bytes of a stage of the ring."""
        return self.shape.stage

    def way_to_add(self) -> Literal["", "in memory", "in clusters"]:
        """Return how parts of a depth are added up; "" where two of each tile would find no room, and none is split."""
        if waves_of(self.shape, self.product) > HALF_OF_WAVE:
            return ""
        return "in clusters" if joins(self.shape, self.product) else "in memory"

    def steps_of_chain(self) -> int:
        """Return after how many steps sums are put aside: of a long depth in TF32, where there are registers."""
        deep = self.numbers == "tf32" and self.contraction.count(self.contraction.depth) > DEEP
        return CHAINED // self.depth if deep and self.shape.blocks * self.shape.columns <= MOST_ASIDE else 0

    @property
    def joins(self) -> bool:
        """Return whether the blocks of a cluster have parts of a depth."""
        return self.adds == "in clusters"

    @property
    def warps(self) -> int:
        """Return how many warps multiply."""
        return 4 * self.shape.groups

    @property
    def stages(self) -> int:
        return min(8, (SHARED - 2048 - self.warps * STAGED) // self.stage)

    @property
    def pieces(self) -> tuple[int, int]:
        """Return in pieces of how many columns results leave, and for how many a warp has room."""
        room = (SHARED - 2048 - self.stages * self.stage) // self.warps
        return pieces_for(self.wide, self.shape.blocks, room)

    @property
    def part(self) -> int:
        """Return the columns of the result that a strip has."""
        return STRIP * self.wide // self.shape.columns

    @property
    def shared_bytes(self) -> int:
        piece, rooms = self.pieces if self.results else (0, 0)
        return self.stages * self.stage + self.warps * max(STAGED, rooms * piece * 32) + 1024

    @property
    def threads(self) -> int:
        return 128 * (1 + self.shape.groups)

    def constants(self) -> str:
        """Return the declarations of the kernel's constants."""
        s, part, steps = self.shape, self.part, {}
        for name, matrix in (("LEFT", self.left), ("RIGHT", self.right)):
            assert matrix
            inside = matrix.lanes_inside
            steps[name] = f"{name}_STEP = {16 * LINE if inside else 32}"
            steps[name] += f", {name}_LEADING = {self.depth * LINE if inside else 16}"
        values = [
            f"ROWS = {s.rows}, COLUMNS = {s.columns}, DEPTH = {self.depth}, STAGES = {self.stages}",
            f"CLUSTER = {s.cluster}, BLOCKS = {s.blocks}, BAND = {s.band}, GROUPS = {1 if s.alternate else s.groups}",
            f"LINE = {self.line}, FOLLOW = {self.line // 32}, HIGH = {64 * self.line}",
            f"LEFT_BYTES = {s.rows * LINE}, STAGE = {self.stage}, STRIP = {STRIP}, SKEW = {STRIP + 8}",
            f"WIDE = {self.wide}, PART = {part}, PHASES = {self.phases}",
            *steps.values(),
        ]
        piece, rooms = self.pieces if self.results else (part, 0)
        values += [f"SHARE = {piece // part}"] if self.adds else ["parts = 1"]
        values += [] if self.adds == "in memory" else ["given = 0"]
        values += [f"PIECE = {piece}, ROOMS = {rooms}"] if self.results else []
        values += [f"CHAIN = {self.chain}"] if self.chain else []
        return f"constexpr int {', '.join(values)};"

    def body(self) -> list[str]:
        c, kind = self.contraction, self.kind
        of_left, of_right = map(c.extents, self.lanes)
        assert self.left and self.right
        multiply = f"rk::wgmma_{SHORT_NAMES[self.numbers]}"
        if self.numbers in HALF:
            multiply += f"<{int(self.left.lanes_inside)}, {int(self.right.lanes_inside)}>"
        fewer, more = (40, 232) if self.shape.groups == 2 else (32, 160)
        consumer = text.CONSUMER.replace("WALK", self.walk()).replace("STEP", self.step()).replace("MULTIPLY", multiply)
        consumer = consumer.replace("MORE", str(more)).replace("ROOM\n", f"{ROOM}\n" if self.results else "")
        consumer = consumer.replace("TWICE\n", text.TWICE if self.chain else "") + (text.TOGETHER if self.chain else "")
        strips = (
            self.strips()
            .replace("TAILS", "\n".join(indent(self.tails(several_too=not self.results))))
            .replace("OWNED\n", self.owned("strip"))
        )
        producer = text.PRODUCER.replace("BATCHES", "\n".join(indent(indent(indent(self.before_loads())))))
        producer = producer.replace("LOADS", "\n".join(indent(indent(indent(indent(self.loads()))))))
        maps = [given for _, given in self.factors() if given in ("left_map", "right_map")]
        prefetch = ", ".join(f"rk::tma_prefetch(&{one})" for one in maps)
        producer = producer.replace("PREFETCH", f"{prefetch};").replace("BROUGHT", self.bytes_brought())
        producer = producer.replace("FEWER", str(fewer)).replace("JOINED\n", self.meet("parts > 1"))
        inside = [
            *text.RELEASE.splitlines(),
            *consumer.splitlines(),
            *indent(ADDING[self.adds].splitlines()),
            *indent(c.unflatten(c.batches, "z", kind)),
            *indent(self.leaving(strips.splitlines())),
            "}",
            *(["if (lane == 0) rk::store_wait_read<0>();"] if self.results else []),
            *(line[2:] for line in self.meet("parts > 1 && !taken").splitlines()),
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
            f"if (CLUSTER > 1{' || parts > 1' if self.joins else ''}) {{",
            "  __syncwarp();",
            "  rk::cluster_sync();  // no block ends while others use its memory",
            "}",
            "#endif",
        ]
        return lines

    def walk(self) -> str:
        """Return how a group goes through a tile's steps."""
        return text.WALK_IN_PAIRS if self.by_registers else text.WALK

    def step(self) -> str:
        """Return the products of a step."""
        step = text.FROM_REGISTERS if self.by_registers else text.FROM_SHARED
        aside, first = (text.ASIDE, "k % CHAIN") if self.chain else ("", "k")
        return step.replace("ASIDE\n", aside).replace("FIRST", first)

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
            for place in (f"place{n}" for n in range(len(matrix.places))):
                where[place] = f"(rank ? second_{place} : right_{place})" if from_map else f"{name}_{place}"
            places = ", ".join(where.get(by, f"int({by})") for by in matrix.by)
            to = f"{base}{offset}" + (f" + {slab * LINE}" if slab else "")
            out.append(f"rk::{load}({from_map or f'&{name}_map'}, {to}, bar, {mask}{places});")
        return out

    def meet(self, condition: str) -> str:
        """Return the statement by which those that have no sums come to the meeting of a cluster."""
        lines = indent(text.MEET.replace("CONDITION", condition).splitlines()) if self.joins else []
        return "".join(f"{line}\n" for line in lines)

    def owned(self, piece: str) -> str:
        """Return the statement by which a block passes over what others finish of its tile."""
        number = f"{piece} / SHARE" if piece == "strip" else piece
        return f"  if (parts > 1 && {number} % parts != own) continue;\n" if self.adds else ""

    def leaving(self, strips: list[str]) -> list[str]:
        """Return the statements by which results leave: in strips, or by the copy engine where it can write them."""
        if not self.results:
            return strips
        c, scope, kind = self.contraction, Scope(), self.kind
        ((buffer, value),) = c.nest.region.stores.items()
        vectors = self.vectors(2)
        scope.known |= {place: f"float({name}.x[e])" for place, (name, _, _) in vectors.items()} | dict(
            zip(c.totals, ("sum", "other"), strict=False)
        )
        made = self.printer.emit_stored(buffer, value, scope)
        loads = vector_loads(vectors)
        rows, columns = (c.unflatten(loops, name, kind) for loops, name in ((c.rows, "row"), (c.columns, "column")))
        if scope.lines:
            inner = c.columns[-1].var
            loads = [*rows, *columns, *loads, f"const {kind} inner = {inner};"]
            scope.lines.insert(0, f"const {kind} {inner} = inner + e;")
        stored = stored_type(self.printer.storage[buffer], "cuda")
        tail = [*scope.lines, f"pair.x[e] = {made};"]
        lines = leave(self.results, stored, kind, loads if scope.lines else [], tail, totals=len(c.totals))
        lines = "\n".join(lines).replace("OWNED\n", self.owned("piece")).splitlines()
        return ["if (wide_tail) {", *indent(lines), "} else {", *indent(strips), "}"]

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
        parts = SPLIT[: PASSED[self.adds]]
        every = [*factors, *parameters, *(Parameter("bool", flag) for flag in widths), *parts]
        return KernelText(
            (self.contraction.note(),), f"__global__ void __launch_bounds__({self.threads}, 1) ", name, every, body
        )

    def factors(self) -> list[tuple[Parameter, str]]:
        """Return the parameters by which the kernel knows its factors, and what is given for them, as C."""
        kind = "const __grid_constant__ CUtensorMap"
        names = [*(f"{side}_map" for side in self.maps), *(["map_out"] if self.results else [])]
        return [(Parameter(kind, name), name) for name in names]

    def hopper_launch(
        self, name: str, arguments: list[str], widths: dict[str, str], pointers: dict[str, str]
    ) -> list[str]:
        """Return the statements that launch the kernel, with memory for the parts of a split depth."""
        c, s = self.contraction, self.shape
        of_left, of_right = map(c.extents, self.lanes)
        given = [*(given for _, given in self.factors()), *arguments, *widths]
        given += {"": [], "in clusters": ["parts"], "in memory": ["parts", "0", "partial"]}[self.adds]
        lanes = self.wide if self.second else s.columns // s.cluster
        cluster = "parts" if self.joins else str(s.cluster)
        grid, shared = f"blocks((all * parts < places ? all * parts : places) * {s.cluster})", self.shared_bytes
        return [
            *(
                line
                for n, m in self.maps.items()
                for line in self.map(m, n, self.tall if n == "left" else lanes, pointers)
            ),
            *(f"const bool {flag} = {condition};" for flag, condition in widths.items()),
            *(self.results.map(pointers, self.pieces[0]) if self.results else []),
            f"const int64_t across = tiles({of_left}, {self.tall * s.cluster}) * {self.phases};",
            f"const int64_t all = ({c.extents(c.batches)}) * across * {self.tiles_along(of_right)};",
            *self.parts(name),
            f"const unsigned grid = {grid};",
            f"rk::launch_clusters({name}, grid, {self.threads}, {cluster}, {shared}, stream, {', '.join(given)});",
            *(self.second_launch(name, given) if self.adds == "in memory" else []),
            *(f"if ({n}_factor.copy) cudaFreeAsync({n}_factor.copy, stream);" for n in self.copied),
        ]

    def parts(self, name: str) -> list[str]:
        """Return the statements that say into how many parts a depth is cut, and for how many clusters is room."""
        s, step = self.shape, step_time(self.shape, self.product)
        cut = f"const int parts = tma_parts(tiles({self.least_terms}, {self.depth}), "
        cut += f"{adding(s, self.joins) / step:.1f}"
        if self.joins:
            return [
                "const int64_t room = by_device([] {",
                f"  return tma_room({name}, {self.threads}, {self.shared_bytes});",
                "});",
                f"{cut}, 8, [&](int64_t p) {{ return tma_turns(all, room, p); }});",
                "const int64_t places = room & 255;",
            ]
        places = [
            "const int64_t places = by_device([] {",
            f"  return rk::cluster_places({name}, {self.threads}, {s.cluster}, {self.shared_bytes});",
            "});",
        ]
        if not self.adds:
            return [*places, "const int parts = 1;"]
        floats = s.blocks * s.columns // 2 * 128
        return [
            *places,
            f"{cut}, places / all, [&](int64_t p) {{ return tiles(all * p, places); }});",
            f"const int64_t step = all * {s.cluster * (1 if s.alternate else s.groups) * floats};",
            "float* partial = parts > 1 ? scratch<float>(step * parts, stream) : nullptr;",
        ]

    def second_launch(self, name: str, given: list[str]) -> list[str]:
        """Return the statements that add parts up, if there are some: blocks have some strips of a tile each."""
        s, piece = self.shape, self.pieces[0] if self.results else self.part
        most = 1 if self.contraction.grouped > 1 else s.blocks * self.wide // piece
        arguments = ", ".join([*given[:-3], "shares", "left", "partial"])
        return [
            "if (parts > 1) {",
            f"  const int shares = int(places / all < {most} ? places / all : {most}), left = parts > 8 ? 1 : parts;",
            "  if (left == 1) tma_sum<8><<<blocks(step / 128), 256, 0, stream>>>((float4*)partial, step / 4, parts);",
            f"  rk::launch_clusters({name}, blocks(all * shares * {s.cluster}), {self.threads}, {s.cluster}, "
            f"{self.shared_bytes}, stream, {arguments});",
            "  cudaFreeAsync(partial, stream);",
            "}",
        ]


SPLIT = (
    Parameter("int", "parts"),
    Parameter("int", "given"),
    Parameter("float* __restrict__", "partial"),
)
PASSED = {"": 0, "in clusters": 1, "in memory": len(SPLIT)}
ADDING = {"": "", "in clusters": text.JOIN, "in memory": text.PARTS}
