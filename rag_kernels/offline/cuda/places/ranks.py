"""The elements of some ranks of a lane in CUDA, without a sort; and the first few of long lanes, which end at a rank.

Comes in: an OrderRegion, with what its kernels have in common. Goes out: kernels and launches. A few elements, such as
a window's, are compared each with each by one thread. A short lane lies in the registers of a warp, which halves the
range of keys that may hold the rank. Of a longer one a block counts a digit of
all keys, then the next one of those that have the right first digit. Where lanes are few, many blocks do so, each with
a part of a lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.own_text import nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.fusion.regions import OrderRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.lowering.steps import Ordered

BLOCKS, LEAST_PART = 264, 8192  # that fill a GPU; elements of a lane that are worth a block, many more than are wanted
THREADS = 512  # of a block that goes through a lane
OF_A_WARP = 1024  # elements that a warp has in registers at most
OF_A_THREAD = 16  # elements that a thread compares, each with each
ROOM = 1024  # pairs that a block sorts rather than count another digit


@dataclass(frozen=True, slots=True)
class OrderKernels:
    """What the kernels of one sort have in common: `body` declares `key`, and `put`, which stores an element."""

    name: str
    pair: str  # C name of the type
    pair_type: str
    body: tuple[str, ...]
    parameters: str
    arguments: str

    @property
    def bytes(self) -> int:
        """Return the bytes of a pair."""
        return 8 if self.pair_type == "uint64_t" else 16

    @property
    def key_type(self) -> str:
        """Return the C type of what is compared."""
        return "uint32_t" if self.bytes == 8 else "uint64_t"

    def kernel(self, head: str, more: str, body: list[str]) -> list[str]:
        """Return a kernel with the parameters of all and more of its own."""
        both = ", ".join(text for text in (self.parameters, more) if text)
        return [f"__global__ {head}({both}) {{", *indent([*self.body, *body]), "}"]

    def given(self, more: str) -> str:
        """Return the arguments of such a kernel."""
        return ", ".join(text for text in (self.arguments, more) if text)


def ranks_text(
    kernels: OrderKernels, region: OrderRegion, function: Function, sizes: Sizes
) -> tuple[list[str], list[str]]:
    """Return the kernels for the elements of some ranks, and the statements that launch them."""
    step, name = region.ordered, kernels.name
    count, nans = len(step.ranks), str(step.nans).lower()
    ranks = ", ".join(f"unsigned rank{i}" for i in range(count))
    chosen = [*(f"which == {i} ? rank{i}" for i in range(count - 1)), f"rank{count - 1}"]
    rank = " : ".join(chosen)  # the one of the block
    each = min(OF_A_WARP // 32, 1 << (max(1, -(-ir.size_of(step.over) // 32)) - 1).bit_length())
    alone = is_few(step)
    text = [
        *_of_a_warp(kernels, step, each, ranks),
        *_of_a_block(kernels, step, ranks, rank),
        *_shared_kernels(kernels, ranks, f"{{own}} / {count}", f"{{own}} % {count}", rank, nans),
        *(_alone(kernels, step, ranks) if alone else []),
    ]
    given = ", ".join(f"unsigned(rank{i})" for i in range(count))
    launch = [
        *_host_ranks(region, function, sizes),
        'RK_CHECK(n < (int64_t(1) << 30), "this kernel orders fewer than 2^30 elements of a lane");',
        *([f"if (lanes > 0 && n <= {ir.size_of(step.over)}) {{", *_alone_launch(kernels, given)] if alone else []),
        f"{'} else ' if alone else ''}if (lanes > 0 && n <= {32 * each}) {{",
        f"  {name}_pick<<<blocks((lanes + 7) / 8), 256, 0, stream>>>({kernels.given(f'lanes, unsigned(n), {given}')});",
        "} else if (lanes > 0) {",
        f"  const int64_t all = lanes * {count};",
        *indent(
            in_parts(
                kernels,
                given,
                [f"{name}_rank<<<blocks(all), {THREADS}, 0, stream>>>({kernels.given(f'unsigned(n), {given}')});"],
            )
        ),
        "}",
    ]
    return text, launch


def _of_a_warp(kernels: OrderKernels, step: Ordered, each: int, ranks: str) -> list[str]:
    """Return the kernel of which each warp has a lane, and each thread so many of its elements."""
    key, nans = kernels.key_type, str(step.nans).lower()
    return kernels.kernel(
        f"void {kernels.name}_pick",
        f"int64_t lanes_, unsigned n_, {ranks}",
        [
            "const int64_t lane = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;",
            "if (lane >= lanes_) return;",
            f"{key} mine[{each}];",
            "#pragma unroll",
            f"for (unsigned e = 0; e < {each}; ++e) {{",
            "  const unsigned j = e * 32 + threadIdx.x % 32;",
            f"  mine[e] = j < n_ ? key(lane, j) : {key}(~{key}(0));",
            "}",
            *(
                f"order::pick(mine, n_, rank{i}, {nans}, [&](unsigned from) {{ put(lane, {i}, from); }});"
                for i in range(len(step.ranks))
            ),
        ],
    )


def _of_a_block(kernels: OrderKernels, step: Ordered, ranks: str, rank: str) -> list[str]:
    """Return the kernel of which each block finds one rank of a lane."""
    of, count, nans = kernels.pair, len(step.ranks), str(step.nans).lower()
    return kernels.kernel(
        f"void __launch_bounds__({THREADS}) {kernels.name}_rank",
        f"unsigned n_, {ranks}",
        [
            f"__shared__ {of} s[{ROOM}];",
            "__shared__ unsigned counts[order::PLACES];",
            "__shared__ order::Found found;",
            f"const int64_t lane = blockIdx.x / {count}, which = blockIdx.x % {count};",
            f"const {of} it = order::pair_of_rank(s, counts, found, {ROOM}u, n_, {rank}, {nans}, {of}(), 0u,",
            "    [&](int64_t j) { return order::placed(key(lane, j), uint32_t(j)); });",
            "if (threadIdx.x == 0) put(lane, which, order::place_of(it));",
        ],
    )


def is_few(step: Ordered) -> bool:
    """Return whether a thread finds the ranks of a lane alone, at the size for which a kernel is written."""
    return bool(step.ranks) and ir.size_of(step.over) <= OF_A_THREAD


def _alone(kernels: OrderKernels, step: Ordered, ranks: str) -> list[str]:
    """Return the kernel of which each thread has a lane."""
    size, count, key = ir.size_of(step.over), len(step.ranks), kernels.key_type
    return kernels.kernel(
        f"void {kernels.name}_alone",
        f"int64_t lanes_, unsigned n_, {ranks}",
        [
            "const int64_t lane = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            "if (lane >= lanes_) return;",
            f"{key} mine[{size}];",
            "#pragma unroll",
            f"for (unsigned j = 0; j < {size}; ++j) mine[j] = j < n_ ? key(lane, j) : {key}(~{key}(0));",
            f"const unsigned ranks[{count}] = {{{', '.join(f'rank{i}' for i in range(count))}}};",
            f"order::pick_alone(mine, n_, ranks, {str(step.nans).lower()},",
            "                  [&](unsigned r, unsigned from) { put(lane, r, from); });",
        ],
    )


def _alone_launch(kernels: OrderKernels, ranks: str) -> list[str]:
    given = kernels.given(f"lanes, unsigned(n), {ranks}")
    return [f"  {kernels.name}_alone<<<blocks((lanes + 255) / 256), 256, 0, stream>>>({given});"]


def _host_ranks(region: OrderRegion, function: Function, sizes: Sizes) -> list[str]:
    """Return the statements that compute the ranks of a call."""
    printer = Printer(nest_of(region, [], sizes.names), function.pointers, function.storage, on_gpu(near=function.near))
    scope, lines = Scope(), []
    for i, value in enumerate(region.ordered.ranks):
        text = printer.emit(value, scope)
        lines.append(f"const int64_t rank{i} = {text};")
        lines.append(f'RK_CHECK(rank{i} >= 0 && rank{i} < n, "this kernel is asked for an element beyond a lane");')
    return [*scope.lines, *lines]


def in_parts(kernels: OrderKernels, ranks: str, whole: list[str]) -> list[str]:
    """Return the launches for lanes, of which there are `all`, in parts by many blocks, or else `whole`."""
    name, of = kernels.name, kernels.pair

    def launched(what: str, more: str, blocks: str = "all * parts") -> str:
        return f"{name}_{what}<<<blocks({blocks}), {THREADS}, 0, stream>>>({kernels.given(more)});"

    return [
        f"const int64_t fill = ({BLOCKS} + all - 1) / all, most = n / {LEAST_PART};",
        "const int64_t parts = fill < most ? fill : most;",
        "if (parts > 1) {",
        "  const int64_t room = order::Choice::room(all);",
        "  unsigned* board = scratch<unsigned>(room, stream);",
        f"  {of}* kept = scratch<{of}>(all * {_room(kernels)}, stream);",
        "  cudaMemsetAsync(board, 0, room * sizeof(unsigned), stream);",
        "  for (unsigned pass = 0; pass < 2; ++pass)",
        "    " + launched("digit", f"n, all, parts, pass, board, {ranks}"),
        "  " + launched("gather", f"n, all, parts, board, kept, {ranks}"),
        "  " + launched("finish", f"n, all, board, kept, {ranks}", "all"),
        "  cudaFreeAsync(kept, stream);",
        "  cudaFreeAsync(board, stream);",
        "} else {",
        *indent(whole),
        "}",
    ]


def _room(kernels: OrderKernels) -> int:
    """Return how many pairs are gathered of a lane at most."""
    return (32 << 10) // kernels.bytes


def _shared_kernels(kernels: OrderKernels, ranks: str, lane: str, which: str, rank: str, nans: str) -> list[str]:
    """Return the kernels of blocks that share lanes; with no `which` all up to the rank are wanted.

    In `lane` and `which`, `{own}` stands for the number of what some blocks share.
    """
    name, of, room = kernels.name, kernels.pair, _room(kernels)
    every = str(not which).lower()
    shared = "blockIdx.x / parts_"
    part = [
        f"const int64_t lane = {lane.format(own=shared)}, own = {shared}, part = blockIdx.x % parts_;",
        *([f"const int64_t which = {which.format(own=shared)};"] if which and rank != "rank0" else []),
        "const int64_t step = (n_ + parts_ - 1) / parts_, begin = part * step;",
        "const int64_t end = begin + step < n_ ? begin + step : n_;",
        "const order::Choice choice = order::Choice::at(board_, all_, own);",
    ]
    pair = "[&](int64_t j) { return order::placed(key(lane, j), uint32_t(j)); }"
    found = "__shared__ order::Found found;"
    counts = "__shared__ unsigned counts[order::PLACES];"
    index = "which" if which else "j"
    last = [f"const int64_t lane = {lane.format(own='blockIdx.x')};"]
    if which:
        ranked = f"const int64_t which = {which.format(own='blockIdx.x')};"
        last.append("constexpr int64_t which = 0;" if rank == "rank0" else ranked)
    return [
        *kernels.kernel(
            f"void __launch_bounds__({THREADS}) {name}_digit",
            f"int64_t n_, int64_t all_, int64_t parts_, unsigned pass, unsigned* board_, {ranks}",
            [
                counts,
                found,
                *part,
                f"order::count_digit<{of}>(counts, found, choice, n_, {rank}, {nans}, pass, begin, end, {pair});",
            ],
        ),
        *kernels.kernel(
            f"void __launch_bounds__({THREADS}) {name}_gather",
            f"int64_t n_, int64_t all_, int64_t parts_, unsigned* board_, {of}* kept_, {ranks}",
            [
                found,
                *part,
                f"order::gather(found, choice, kept_ + own * {room}, {room}u, n_, {rank}, {every}, begin, end,",
                f"              {pair});",
            ],
        ),
        *kernels.kernel(
            f"void __launch_bounds__({THREADS}) {name}_finish",
            f"int64_t n_, int64_t all_, unsigned* board_, const {of}* kept_, {ranks}",
            [
                f"__shared__ {of} s[{room}];",
                counts,
                found,
                *last,
                "const order::Choice choice = order::Choice::at(board_, all_, blockIdx.x);",
                f"const {of}* const from = kept_ + int64_t(blockIdx.x) * {room};",
                f"order::finish(s, counts, found, choice, from, {room}u, n_, {rank}, {every}, {pair},",
                f"              [&](int64_t j, const {of}& it) {{ put(lane, {index}, order::place_of(it)); }});",
            ],
        ),
    ]


def shared_text(kernels: OrderKernels) -> list[str]:
    """Return the kernels by which many blocks find the first few of few long lanes."""
    return _shared_kernels(kernels, "unsigned rank0", "{own}", "", "rank0", "false")
