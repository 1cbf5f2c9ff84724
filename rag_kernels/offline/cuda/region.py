"""One region as a `__global__` function: every thread takes an element at a time, wherever it lies.

Comes in: a region of a Function and tuning parameters. Goes out: the text of the kernel and of its launch. The threads
of a block form teams: a row has a team along threadIdx.x, a column a team along threadIdx.y (so that neighbouring
columns load together); a team reduces through warp shuffles or shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from rag_kernels.offline.codegen.c_types import stored_type, widened
from rag_kernels.offline.codegen.kernel_function import SHORT, Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop, text_of
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.reduction_levels import around
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.codegen.symbols import symbols
from rag_kernels.offline.cuda.kernel_text import KernelText, Parameter, arguments_of, constexprs
from rag_kernels.offline.cuda.reduce_loops import SCANNED, ReduceLoops, count_of
from rag_kernels.offline.cuda.windows import STEPS, groups_of, stepped, stepped_loop
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.graph.training_step import DEAR
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import Number, c_name, start_name
from rag_kernels.offline.ir.patterns import exponentials

KEPT_COLUMN, KEPT_NUMBERS, MANY_COLUMNS = 64, 96, 1 << 17
WARP, EACH = 32, 8  # lanes; elements of a column of few that a thread has at least
LONG, FEW_THREADS = 8, 1 << 15  # pieces of a thread; threads that leave most of a device idle in blocks of 256
SHORT_SCAN, MANY_SCANS = 1024, 1 << 12  # elements of rows, and rows, of which each warp scans one
ANY_REGISTERS = 256  # threads of a block, each of which may have 255 registers, the most there are
SHORT_COLUMN, LONG_WINDOW = 32, 512  # elements that one thread does alone, and where there are many windows
WALKED, WALKERS = 256, 1 << 18  # elements that one thread does alone where columns are so many


@dataclass(frozen=True, slots=True)
class CudaParameters:
    """Tuning parameters of CUDA kernels."""

    threads: int = 256  # of a block, also of a row up to eight times as long
    long_threads: int = 1024  # of a block for longer rows
    team: int = 16  # threads that share a column
    vector: int = 4  # neighbouring elements that a thread takes with one load; 1 turns it off
    tile: int = 0  # rows of a block of a product: 64 or 128, or 0 for what fits
    tensor: int = 1  # products of fp32 on tensor cores: 1 as three TF32 products each, 2 as one; 0 on plain cores
    products: int = 1  # whose products: 0 the library's, 1 ours where that is better, 2 ours
    few: int = 1  # columns of a block of a product of few rows, 1 for what fits, or 0 for no kernel of its own
    shape: int = 0  # of a tile on Hopper: rows * 1000 + columns, or 0 for what fits
    clusters: int = 0  # blocks that share what they load there, or 0 for what fits
    turns: int = 0  # 2: groups take tiles in turn, 1: share one; over images 3: pieces, 4: their pixels; 0: what fits
    attention: int = 2  # attention as one operator of ours: 1 by mma.sync, 2 by wgmma where that serves, 0 not at all
    keys: int = 0  # of a tile of attention by wgmma, or 0 for what fits
    in_turn: int = 1  # whether its warpgroups take turns at multiplying, where there are two
    sharing: int = 1024  # threads of each of the blocks that share a row which none can hold; 0: none is shared
    short: int = SHORT  # innermost reduced loops of so many steps at most are numbers; 0: other sizes are to be served
    saving: int = DEAR  # of a training step's values: 0 none are saved, 1 what is dear to compute again, 2 all

    @property
    def free_sizes(self) -> bool:
        """Return whether sizes that follow from what a loop runs along are computed; numbers divide faster."""
        return not self.short


def bounds_of(threads: int) -> str:
    """Return the launch bounds of a kernel whose blocks have so many threads; none where any registers fit."""
    return f"__launch_bounds__({threads}) " if threads > ANY_REGISTERS else ""


Launch = Callable[[str], list[str]]  # from a kernel's name to the statements that launch it
FEW_SUMS = 6  # of a row: ten took 72 registers, and 1024 threads may have 64 each
FEW_BUFFERS = 12  # that a row reads or writes, and reads of them: each takes registers too


def is_near(region: Region, function: Function, parameters: CudaParameters) -> bool:
    """Return whether functions may be exact to fewer bits than float32 has: also where TF32 products are summed."""
    found = ir.walk(*region.stores.values()) if parameters.tensor == 2 else ()
    return function.near or any(v.dtype == "float32" and tile_of(v) for v in found if isinstance(v, ir.Reduce))


@dataclass(slots=True)
class CudaRegion(ReduceLoops):
    """Prints one region as a kernel in which a thread takes one element at a time."""

    parameters: CudaParameters = CudaParameters()
    constants: dict[str, str] = field(default_factory=dict)  # sizes that are numbers of the problem
    scratch: tuple[str, ...] = ()  # C names of buffers that only this function has
    block: str = "blockIdx.x"  # of a nest of points: the number of the block among its own, as C

    @classmethod
    def of(cls, region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> Self:
        """Return the printer of a region of this function."""
        nest, level = sizes.nest_of(region)
        scratch = tuple(c_name(b) for b in function.scratch)
        constants = sizes.constants
        if nest.schedule == "row":  # how many rows there are is an argument, so that kernels for few and many are alike
            summed = {nest.names[leaf] for loop in nest.reduced for leaf in loop.leaves}
            constants = {name: value for name, value in constants.items() if name in summed}
        form = on_gpu(near=is_near(region, function, parameters))
        printer = Printer(nest, function.pointers, function.storage, form)
        return cls(nest, printer, level, parameters=parameters, constants=constants, scratch=scratch)

    def aligned(self, buffers: Iterable[str]) -> str:
        """Return the C condition that the data of these buffers begins where vectors may."""
        names = dict.fromkeys(map(c_name, buffers))
        return f"aligned({{{', '.join(f'{n}_data' if n in self.scratch else f'{n}.data' for n in names)}}})"

    def buffers(self) -> set[str]:
        """Return the buffers that the region reads or writes."""
        return {v.buffer for v in ir.walk(*self.values) if isinstance(v, ir.Load)} | set(self.nest.region.written)

    def text(self, name: str, function: Function) -> tuple[KernelText, Launch]:
        """Return the `__global__` function, and what makes the statements that launch it by a name."""
        nest = self.nest
        body = {"point": self.point, "row": self.row, "column": self.column}[nest.schedule]()
        parameters, constants = self.parameters_of(body, function), self.constants_in(body)
        body = [*constexprs(constants), *body]
        shape = " x ".join(loop.size for loop in [*nest.outer, *([nest.lane] if nest.lane else [])]) or "1"
        reduced = " x ".join(loop.size for loop in nest.reduced)
        note = f"// {self.told}: {shape} " + (f"{nest.schedule}s of {reduced}" if reduced else "elements")
        head = f"{self.template}__global__ void {self.bounds}"
        text = KernelText((note,), head, name, parameters, body, tuple(constants))
        return text, partial(self.launch, arguments=arguments_of(parameters))

    @property
    def template(self) -> str:
        """Return the kernel's template parameters."""
        return ""

    @property
    def bounds(self) -> str:
        """Return launch bounds: a block whose threads want more registers than there are cannot be launched.

        Rows and columns of many sums, many tensors or many reads of them, each of which takes registers, may have all
        that there are. Other rows have no bounds: their blocks are made to fit (`fitted` in `texts/launches.py`).
        """
        loads = sum(isinstance(v, ir.Load) for v in ir.walk(*self.values))
        many = self.sums() > FEW_SUMS or max(loads, len(self.buffers())) > FEW_BUFFERS
        if many and self.nest.schedule == "row":
            return f"__launch_bounds__({self.row_threads}, 1) "
        if many and self.nest.schedule == "column" and not self.solo():
            return f"__launch_bounds__({self.block_threads()}, 1) "
        return bounds_of(self.block_threads())

    @property
    def row_threads(self) -> str:
        """Return how many threads a block of rows has at most, as C."""
        return "ROW_THREADS"

    def block_threads(self) -> int:
        """Return how many threads a block has; 0 for rows, where their length decides."""
        p, rows = self.parameters, self.nest.schedule == "row"
        if rows:
            return max(p.threads, self.scan_threads(self.scan_width)) if self.has_scan() else 0
        return WARP * p.team if self.nest.schedule == "column" and not self.solo() else p.threads

    @property
    def scan_width(self) -> int:
        """Return how many neighbours a thread takes of a row that is scanned."""
        return SCANNED

    def sums(self) -> int:
        """Return the number of reductions."""
        return sum(isinstance(v, ir.Reduce) for v in ir.walk(*self.values))

    def constants_in(self, body: list[str]) -> dict[str, str]:
        """Return the sizes that are numbers, as far as the body names them."""
        named = symbols(body)
        return {name: value for name, value in self.constants.items() if name in named}

    def parameters_of(self, body: list[str], function: Function, kind: str = "int64_t") -> list[Parameter]:
        """Return the parameters: pointers, then sizes (of this C type) and numbers.

        They are in the order in which the body names them, which is the same for kernels alike.
        """
        named = symbols(body)
        pointers: dict[str, Parameter] = {}
        others: dict[str, Parameter] = {}
        for buffer in (*function.inputs, *function.scratch, *function.outputs):
            name, const = c_name(buffer), "" if buffer in self.stores else "const "
            pointer = f"{name}_p"
            if pointer not in named and buffer not in self.stores:
                continue
            data = f"{name}_data" if buffer in function.scratch else f"{name}.data"
            ctype = f"{const}{stored_type(function.specs[buffer].dtype, 'cuda')}* __restrict__"
            pointers[pointer] = Parameter(ctype, pointer, data)
            if buffer in self.stores:
                start = start_name(pointer)
                others[start] = Parameter("int64_t", start, text_of(self.nest.stores[buffer].constant))
        numbers = [(item.name, item.ctype) for item in function.order if isinstance(item, Number)]
        sizes = [(n, kind) for n in named if n in self.nest.names.leaf and n not in self.constants]
        others |= {text: Parameter(ctype, text, text) for text, ctype in [*sizes, *numbers] if text in named}
        return [known[word] for known in (pointers, others) for word in named if word in known]

    def one_thread_each(self, loops: list[Loop], name: str, arguments: list[str]) -> list[str]:
        """Return the launch of a kernel that has a thread for each step of these loops."""
        count = f"small({self.total(loops)})"
        return [f"{name}<<<blocks(({count} + THREADS - 1) / THREADS), THREADS, 0, stream>>>({', '.join(arguments)});"]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        """Return the statements that launch the kernel."""
        outer, call = self.total(self.nest.outer), f"({', '.join(arguments)});"
        lane = self.nest.lane.size if self.nest.lane else "1"
        depth = f"small({self.total(self.nest.reduced)});  // of a row or column"
        match self.nest.schedule:
            case "point":
                count = f"({outer}) * ({lane})" if not self.nest.outer else f"small(({outer}) * ({lane}))"
                threads = str(WARP) if self.has_few_long_threads() else "THREADS"
                return [f"{name}<<<blocks(({count} + {threads} - 1) / {threads}), {threads}, 0, stream>>>{call}"]
            case "row":
                if self.has_scan():
                    return [depth, self.scan_launch(name, self.scan_width, arguments)]
                block = f"fitted<{name}>(row_block(small({self.total(self.nest.reduced)}), {outer}))"
                return [
                    f"const dim3 block = {block};",
                    f"{name}<<<blocks((small({outer}) + block.y - 1) / block.y), block, 0, stream>>>{call}",
                ]
            case _ if self.solo():
                stepped_ = self.stepped()
                outer = self.total([*self.nest.outer[:-1], groups_of(stepped_)]) if stepped_ else outer
                check = f"{stepped_.size} >= {STEPS}" if stepped_ else ""
                grid = f"blocks((small(({outer}) * ({lane})) + THREADS - 1) / THREADS)"
                checks = [f'RK_CHECK({check}, "this kernel needs {check}");'] if check else []
                return [*checks, f"{name}<<<{grid}, THREADS, 0, stream>>>{call}"]
            case _:
                wide, team = self.column_block()
                grid = f"blocks(({outer}) * (({lane} + {wide - 1}) / {wide}))"
                return [depth, f"{name}<<<{grid}, dim3({wide}, {team}), 0, stream>>>{call}"]

    def column_block(self) -> tuple[int, str]:
        """Return how many neighbouring columns a block has, and how many threads each, as C.

        Where columns are few, threads beside them would be idle: they join the teams, as far as there is work.
        """
        count, team = self.nest.lane.count if self.nest.lane else 1, self.parameters.team
        wide = min(WARP, 1 << max(1, (count - 1).bit_length()))
        if wide == WARP:
            return wide, "TEAM"
        many = WARP // wide * team
        while many // 2 >= max(WARP // wide, -(-self.reduced_count() // EACH)):
            many //= 2
        return wide, str(many)

    def scanned_rows(self) -> int:
        """Return how many rows a block scans: of many short ones each warp has one, and no warp waits for others."""
        short = self.reduced_count() <= SHORT_SCAN and count_of(self.nest.outer) >= MANY_SCANS
        return self.parameters.threads // WARP if short else 1

    def scan_launch(self, name: str, each: int, arguments: list[str]) -> str:
        """Return the launch of a kernel that scans rows."""
        rows, outer, call = self.scanned_rows(), self.total(self.nest.outer), f"({', '.join(arguments)});"
        if rows == 1:
            return f"{name}<<<blocks({outer}), {self.scan_threads(each)}, 0, stream>>>{call}"
        return f"{name}<<<blocks((small({outer}) + {rows - 1}) / {rows}), dim3({WARP}, {rows}), 0, stream>>>{call}"

    def scan_threads(self, each: int) -> int:
        """Return the threads of a row that is scanned, `each` elements a thread: of short rows the rest is idle."""
        if self.scanned_rows() > 1:
            return WARP
        return min(self.parameters.long_threads, WARP * -(-self.reduced_count() // (WARP * each)))

    def solo(self) -> bool:
        """Return whether one thread computes a column alone: scans, and short columns such as pooling windows."""
        return (
            self.has_scan()
            or self.reduced_count() <= SHORT_COLUMN
            or self.has_windows()
            or self.keeps_columns()
            or self.walks_columns()
        )

    def walks_columns(self) -> bool:
        """Return whether columns are so many that threads have one each, and are gone over once: none waits for others.

        More threads a column would have a few elements each, and meet at barriers.
        """
        nest = self.nest
        if nest.schedule != "column" or self.has_scan() or self.inner_stores():
            return False
        paired = self.top == 2 and all(exponentials(v) for v in self.reductions(2))
        if paired and not self.is_dear() and self.keeps_columns():
            return False  # at hand for both passes
        windows = any(leaf.window for loop in nest.reduced for leaf in loop.leaves)
        many = count_of([*nest.outer, *([nest.lane] if nest.lane else [])]) >= WALKERS
        return many and not windows and (self.top == 1 or paired) and self.reduced_count() <= WALKED

    def is_unrolled(self) -> bool:
        return bool(self.known_loads or self.stepped())

    def has_windows(self) -> bool:
        """Return whether columns are windows, and many: a team would gain nothing, as their elements lie together."""
        nest = self.nest
        windows = all(leaf.window for loop in nest.reduced for leaf in loop.leaves)
        many = count_of([*nest.outer, *([nest.lane] if nest.lane else [])]) >= MANY_COLUMNS
        return nest.schedule == "column" and windows and many and self.reduced_count() <= LONG_WINDOW

    def stepped(self) -> Loop | None:
        """Return the outer loop of which a thread takes several steps, for windows (see `windows.py`)."""
        alone = self.has_scan() or self.inner_stores() or self.keeps_columns() or self.reduced_count() > SHORT_COLUMN
        return None if alone else stepped_loop(self.nest)

    def keeps_columns(self) -> bool:
        """Return whether a thread can hold a column in registers: a short one of known length, of many."""
        nest = self.nest
        loops = [*nest.outer, *([nest.lane] if nest.lane else [])]
        fixed = all(nest.names[leaf] in self.constants for loop in nest.reduced for leaf in loop.leaves)
        guarded = any(isinstance(v, ir.Reduce) and v.guards for v in ir.walk(*self.values))
        few = not fixed or guarded or self.has_scan() or nest.schedule != "column"
        passes = self.top + bool(self.inner_stores())
        short = self.reduced_count() <= KEPT_COLUMN and self.reduced_count() * len(self.column_reads()) <= KEPT_NUMBERS
        return not few and passes > 1 and short and count_of(loops) >= MANY_COLUMNS

    # Point ----------------------------------------------------------------------------------------------------

    def point_loops(self) -> list[Loop]:
        """Return the loops that have a thread for each step."""
        return [*self.nest.outer, *([self.nest.lane] if self.nest.lane else [])]

    def has_few_long_threads(self) -> bool:
        """Return whether threads are few and have many pieces each (steps of a loop): blocks of a warp spread them."""
        nest, threads = self.nest, count_of(CudaRegion.point_loops(self))
        return nest.schedule == "point" and len(nest.region.slots) >= LONG and threads < FEW_THREADS

    def point_threads(self) -> str:
        """Return how many threads the point schedule has, as C."""
        return f"small({self.total(self.point_loops())})"

    def point(self) -> list[str]:
        """Return the point schedule: one element a thread."""
        scope, loops = Scope(), self.point_loops()
        stores = [line for buffer in self.stores for line in self.store(buffer, scope)]
        head = [
            f"const int64_t t = int64_t({self.block}) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(loops)}) return;",
        ]
        return [*head, *self.indices(loops, "t"), *scope.lines, *stores]

    # Rows and columns -----------------------------------------------------------------------------------------

    def row(self) -> list[str]:
        """Return the row schedule.

        A team along threadIdx.x takes one pass over the row for every level of reductions, then one that stores.
        """
        outer = self.total(self.nest.outer)
        head = ["const int64_t t = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;", f"if (t >= {outer}) return;"]
        if self.has_scan() and self.scanned_rows() == 1:
            head = ["const int64_t t = blockIdx.x;"]
        return [*head, *self.indices(self.sharing_last(), "t"), *self.passes("row", "true", "threadIdx.x == 0")]

    def sharing_last(self) -> list[Loop]:
        """Return the outer loops, those last along which rows share what they read (a norm's weights).

        Blocks that run together then find it in the cache.
        """
        loads = [v for v in ir.walk(*self.values) if isinstance(v, ir.Load) and self.is_inner(v)]

        def shares(loop: Loop) -> bool:
            return any(not self.nest.accesses[v].stride(leaf) for v in loads for leaf in loop.leaves)

        return sorted(self.nest.outer, key=shares)

    def column(self) -> list[str]:
        """Return the column schedule: neighbouring threads have neighbouring columns, and a team shares each."""
        lane = self.nest.lane
        assert lane
        if self.solo():
            stepped_ = self.stepped()
            loops = [*self.nest.outer[:-1], groups_of(stepped_)] if stepped_ else self.nest.outer
            head = [
                "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
                f"if (t >= {self.total([*loops, lane])}) return;",
                *self.indices([*loops, lane], "t"),
            ]
            body = [*self.keep_columns(), *self.passes("column", "true", "true")]
            return [*head, *(stepped(stepped_, body) if stepped_ else body)]
        head = [
            f"const uint32_t tiles = uint32_t(({lane.size} + blockDim.x - 1) / blockDim.x);",
            "const int64_t l_wanted = int64_t(blockIdx.x % tiles) * blockDim.x + threadIdx.x;",
            f"const bool active = l_wanted < {lane.size};",
            "const int64_t l = active ? l_wanted : 0;  // idle threads take part in the barriers only",
            *self.indices(self.nest.outer, "(blockIdx.x / tiles)"),
        ]
        return [*head, *self.passes("column", "active", "active && threadIdx.y == 0")]

    def keep_columns(self) -> list[str]:
        """Return statements that read a short column once, all of it at a time."""
        if not self.keeps_columns():
            return []
        place = "0"
        for loop in self.nest.reduced:
            place = loop.var if place == "0" else f"({place}) * {loop.size} + {loop.var}"
        declared, loads = [], []
        for text, element in self.column_reads().items():
            name = self.printer.name("kept")
            self.known_loads[text] = f"{name}[{place}]"
            declared.append(f"float {name}[{self.reduced_count()}];")
            loads.append(f"{name}[{place}] = {element};")
        return [*declared, *around(self.nest.reduced, loads, unroll=True)]

    def column_reads(self) -> dict[str, str]:
        """Return the elements of a column that a thread can keep as C, and as what they become floats.

        What all columns read alike is in the cache whenever it is read.
        """
        found: dict[str, str] = {}
        lane = set(self.nest.lane.leaves) if self.nest.lane else set()
        for v in ir.walk(*self.values):
            access = self.nest.accesses.get(v) if isinstance(v, ir.Load) else None
            own = isinstance(v, ir.Load) and self.is_inner(v) and ir.tree_atoms(v) & lane
            if isinstance(v, ir.Load) and access and v.dtype == "float32" and own and not access.values:
                text = f"{self.printer.pointers[v.buffer]}[{self.nest.offset(access)}]"
                found[text] = widened(text, v.storage)
        return found
