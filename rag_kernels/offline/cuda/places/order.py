"""Sorts in CUDA: keys with their places, in registers where a lane fits into a block's, else digit by digit.

Comes in: an OrderRegion of a Function. Goes out: its kernels and their launches. Threads have neighbours of short lanes
in registers, several lanes a block. Long lanes are moved once for each byte of their keys, from the lowest on: all
digits are counted first, then tiles find where each digit of theirs goes by looking back at the tiles before them; a
byte that all keys share moves nothing. Where few are wanted of a long lane, a block goes through it once and keeps what
may be among them; of few lanes many blocks do so, each with a part (`ranks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.order_keys import pair_of
from rag_kernels.offline.codegen.own_text import apart, nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.kernel_text import arguments_of, constexprs, declared
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.cuda.places.ranks import OrderKernels, in_parts, is_few, ranks_text, shared_text
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import OrderRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import c_name

MOVERS = 256  # threads of a tile of a long lane, one for each digit, as in the text
CHUNK_BYTES = 32 << 10  # of shared memory: what a block sorts at once
EACH = {8: (8, 16), 16: (4, 4)}  # elements that a thread has in registers, by the bytes of a pair:
FEW = 128  # of lanes of at most so many where a kernel is written, and of longer ones
SMALL_BLOCK = 256  # threads for lanes that leave some to others


def order_text(
    name: str, region: OrderRegion, function: Function, sizes: Sizes, parameters: CudaParameters, needs: Needs
) -> tuple[list[str], list[str]]:
    """Return the kernels of a sort, and the statements that launch them; what they call is noted."""
    kernels = kernels_of(name, region, function, sizes, parameters)
    step, names = region.ordered, sizes.names
    lanes = names.product(tuple(leaf for group in step.dims if group != step.over for leaf in ir.leaves(group)))
    note = f"// {step.elements}: {lanes} lanes of {names.product(step.over)} in order"
    counts = [f"const int64_t lanes = small({lanes}), n = {names.product(step.over)};"]
    text = [note, f"using {kernels.pair} = {kernels.pair_type};"]
    needs.order |= (
        {"pick", "pair_of_rank", "finish"} if step.ranks else {"sort_lanes", "move_tile", "first_of", "finish"}
    )
    needs.order |= {"pick_alone"} if is_few(step) else set()
    if step.ranks:
        more, launch = ranks_text(kernels, region, function, sizes)
    else:
        more, launch = _sort_text(kernels, ir.size_of(step.over))
        counts.append(f"const int64_t wanted = {names.product(step.taken)};")
    return [*text, *more], ["{", *indent([*counts, *launch]), "}"]


def kernels_of(
    name: str, region: OrderRegion, function: Function, sizes: Sizes, parameters: CudaParameters
) -> OrderKernels:
    """Return what the kernels of a sort have in common."""
    step, names = region.ordered, sizes.names
    lanes = [leaf for group in step.dims if group != step.over for leaf in ir.leaves(group)]
    over, taken = ir.leaves(step.over), ir.leaves(step.taken)
    nest = nest_of(region, [*lanes, *over, *(leaf for leaf in taken if leaf not in over)], names)
    printer = Printer(nest, function.pointers, function.storage, on_gpu(near=function.near))
    scratch = tuple(c_name(b) for b in function.scratch)
    kernel = CudaRegion(nest, printer, {}, parameters=parameters, constants=sizes.constants, scratch=scratch)
    scope = Scope()
    element = printer.emit(step.value, scope)
    indices = partial(apart, nest, ctype="uint32_t")
    wanted = {step.elements: "element(lane, from)", step.places: "from"}
    value = [
        f"const auto element = [&](int64_t lane, int64_t j) -> {CTYPES[step.value.dtype]} {{",
        *indent([*indices("lane", lanes), *indices("j", over), *scope.lines, f"return {element};"]),
        "};",
    ]
    put = [
        "const auto put = [&](int64_t lane, int64_t j, int64_t from) {",
        *indent([*indices("lane", lanes), *indices("j", taken)]),
        f"  const int64_t at = {nest.offset(next(iter(nest.stores.values()))) or '0'};",
        *(f"  {printer.pointers[b]}[at] = {wanted[b]};" for b in region.stores),
        "};",
    ]
    down = str(step.descending).lower()
    key = [f"const auto key = [&](int64_t lane, int64_t j) {{ return order::key<{down}>(element(lane, j)); }};"]
    body = [*value, *put]
    given = kernel.parameters_of(body, function)
    body = [*constexprs(kernel.constants_in(body)), *body, *key]
    pair = pair_of(step.value.dtype)
    return OrderKernels(name, f"{name}_pair", pair, tuple(body), declared(given), ", ".join(arguments_of(given)))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How many pairs a block sorts at most, and how many of them a thread has."""

    most: int
    each: int

    @classmethod
    def of(cls, kernels: OrderKernels, length: int) -> _Sizes:
        return cls(CHUNK_BYTES // kernels.bytes, EACH[kernels.bytes][length > FEW])

    @property
    def threads(self) -> int:
        """Return the threads of a block with one lane, the longest."""
        return self.most // self.each


def _sort_text(kernels: OrderKernels, length: int) -> tuple[list[str], list[str]]:
    """Return the kernels of a sort of all or of the first few of lanes, and the statements that launch them."""
    of, name, size = kernels.pair, kernels.name, _Sizes.of(kernels, length)
    s = f"__shared__ {of} s[{size.most}];"
    text = [
        *kernels.kernel(
            f"void __launch_bounds__({max(size.threads, SMALL_BLOCK)}) {name}",
            "int64_t lanes_, int64_t n_, int64_t wanted_, unsigned bits",
            [
                "extern __shared__ float shared[];",
                f"order::sort_lanes<{size.each}>(({of}*)shared, lanes_, n_, wanted_, bits, key, put);",
            ],
        ),
        *kernels.kernel(
            f"void {name}_count",
            "int64_t lanes_, int64_t n_, unsigned* board_",
            [f"order::count_digits<{of}>(lanes_, n_, board_, key);"],
        ),
        f"__global__ void {name}_start(int64_t lanes, int64_t n, unsigned* board) {{",
        f"  order::start_digits<{of}>(lanes, n, board);",
        "}",
        *kernels.kernel(
            f"void __launch_bounds__(order::MOVERS) {name}_move",
            f"int64_t lanes_, int64_t n_, int64_t wanted_, unsigned pass, unsigned* board_, {of}* one_, {of}* two_",
            [s, "order::move_tile(s, lanes_, n_, wanted_, pass, board_, one_, two_, key, put);"],
        ),
        *kernels.kernel(
            f"void __launch_bounds__(512) {name}_first",
            "int64_t n_, unsigned wanted_",
            [
                s,
                "__shared__ unsigned count;",
                "const int64_t lane = blockIdx.x;",
                f"order::first_of(s, count, {size.most}, n_, wanted_,",
                "                [&](int64_t j) { return order::placed(key(lane, j), uint32_t(j)); },",
                f"                [&](int64_t j, const {of}& found) {{ put(lane, j, order::place_of(found)); }});",
            ],
        ),
        *shared_text(kernels),
    ]
    return text, _launch(kernels, size)


def _launch(kernels: OrderKernels, size: _Sizes) -> list[str]:
    """Return the statements that launch: a choice for few wanted elements, lanes in registers, or digit by digit."""
    of, name, most = kernels.pair, kernels.name, size.most
    return [
        'RK_CHECK(n < (int64_t(1) << 30), "this kernel sorts fewer than 2^30 elements of a lane");',
        'RK_CHECK(wanted <= n, "this kernel is asked for more elements than a lane has");',
        f"if (lanes > 0 && wanted > 0 && n > {most} && wanted <= {most // 4}) {{",
        "  const int64_t all = lanes;",
        *indent(
            in_parts(
                kernels,
                "unsigned(wanted - 1)",
                [f"{name}_first<<<blocks(lanes), 512, 0, stream>>>({kernels.given('n, unsigned(wanted)')});"],
            )
        ),
        f"}} else if (lanes > 0 && wanted > 0 && n <= {most}) {{",
        f"  unsigned bits = {size.each.bit_length() - 1};",
        "  while ((int64_t(1) << bits) < n) ++bits;",
        f"  const unsigned of_lane = (1u << bits) / {size.each};",
        f"  const unsigned threads = of_lane > {SMALL_BLOCK} ? of_lane : {SMALL_BLOCK}, across = threads / of_lane;",
        f"  const size_t bytes = threads * {size.each + 1} * sizeof({of});",
        f"  {name}<<<blocks((lanes + across - 1) / across), threads, bytes, stream>>>"
        f"({kernels.given('lanes, n, wanted, bits')});",
        "} else if (lanes > 0 && wanted > 0) {",
        f"  const int64_t tiles = (n + {most - 1}) / {most}, room = order::Board::room<{of}>(lanes, tiles);",
        f"  {of}* one = scratch<{of}>(lanes * n, stream);",
        f"  {of}* two = scratch<{of}>(lanes * n, stream);",
        "  unsigned* board = scratch<unsigned>(room, stream);",
        "  cudaMemsetAsync(board, 0, room * sizeof(unsigned), stream);",
        f"  {name}_count<<<blocks(lanes * tiles), {MOVERS}, 0, stream>>>({kernels.given('lanes, n, board')});",
        f"  {name}_start<<<blocks(lanes), {MOVERS}, 0, stream>>>(lanes, n, board);",
        f"  for (unsigned pass = 0; pass < unsigned(order::Moved<{of}>::PASSES); ++pass)",
        f"    {name}_move<<<blocks(lanes * tiles), {MOVERS}, 0, stream>>>"
        f"({kernels.given('lanes, n, wanted, pass, board, one, two')});",
        "  cudaFreeAsync(one, stream);",
        "  cudaFreeAsync(two, stream);",
        "  cudaFreeAsync(board, stream);",
        "}",
    ]
