"""How results of sixteen bits leave a tile by the copy engine, while tensor cores go on with the next one.

Comes in: a Contraction, and the statements of what stands behind its sum. Goes out: the results as a matrix that the
copy engine writes, or None where it cannot; the pieces in which a warp hands them over; and the text that does so. It
computes what stands behind the sum where the sum is, in registers: what is loaded there is of a row or of a column.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.contraction import Contraction
from rag_kernels.offline.codegen.loop_nest import Poly, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.gemm.hopper.tma_matrix import common_step
from rag_kernels.offline.ir import values as ir

ROWS_OF_WARP = 16
MOST_ROOMS = 4  # pieces of a warp that may be on their way

ROOM = """\
const uint32_t room = base + STAGES * STAGE + (threadIdx.x / 32 - 4) * (ROOMS * 32 * PIECE);
int gone = 0;"""

# A piece is sixteen rows of a warp. It is written, swizzled by its line, where the copy engine has read the one before.
LEAVE = """\
constexpr int PIECES = BLOCKS * WIDE / PIECE;
#pragma unroll UNROLLED
for (int piece = 0; piece < PIECES; ++piece) {
OWNED
  float kept[TOTALS][PIECE / 2];
#pragma unroll
  for (int i = 0; i < PIECES; ++i)
    if (i == piece)
#pragma unroll
      for (int u = 0; u < TOTALS * PIECE / 2; ++u)
        kept[u / (PIECE / 2)][u % (PIECE / 2)] = sums[i / (WIDE / PIECE)]
            [u / (PIECE / 2) * (WIDE / 2) + i % (WIDE / PIECE) * (PIECE / 2) + u % (PIECE / 2)];
  const int block = (ALTERNATE ? 0 : mine * BLOCKS) + piece / (WIDE / PIECE);
  const int top = row0 + block * 64 + threadIdx.x % 128 / 32 * 16, from = column0 + piece % (WIDE / PIECE) * PIECE;
  uint32_t words[PIECE / 16][4];
#pragma unroll
  for (int u = 0; u < PIECE / 4; ++u) {  // two neighbours, of the row of a lane or eight rows below
    KIND row = top + lane / 4 + u % 2 * 8, column = from + u / 2 * 8 + lane % 4 * 2;
LOADS
    Pack<STORED, 2> pair;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float sum = kept[0][2 * u + e]OTHER;
TAIL
    }
    words[u / 4][u % 4] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  const uint32_t to = room + gone * (32 * PIECE);
  if (lane == 0) rk::store_wait_read<ROOMS - 1>();
  __syncwarp();
#pragma unroll
  for (int u = 0; u < PIECE / 16; ++u) {
    const uint32_t at = lane % 16 * (2 * PIECE) + (u * 2 + lane / 16) * 16;
    rk::stmatrix_x4(to + (at ^ (at >> 7) % (PIECE / 8) << 4), words[u]);
  }
  rk::tma_publish();
  __syncwarp();
  if (lane == 0) {
    if (top < rows && from < columns) rk::tma_store(&map_out, to, PLACES);
    rk::store_commit();
  }
  if (++gone == ROOMS) gone = 0;
}"""


@dataclass(frozen=True, slots=True)
class Results:
    """What a product stores, as the copy engine writes it: columns, rows and batches, with sizes and steps as C."""

    buffer: str
    start: Poly
    sizes: tuple[str, ...]
    steps: tuple[Poly, ...]
    batches: tuple[str, ...]

    def map(self, pointers: dict[str, str], piece: int) -> list[str]:
        """Return the statement that describes the results to the copy engine, if they lie so that it can write them."""
        sizes = ", ".join(f"int64_t({size})" for size in self.sizes)
        steps = ", ".join(f"int64_t({text_of(step)})" for step in self.steps)
        boxes = ", ".join(["1"] * len(self.batches))
        box = f"{piece}, {ROWS_OF_WARP}{', ' if boxes else ''}{boxes}"
        place = pointers[self.buffer] + (f" + {text_of(self.start)}" if self.start else "")
        made = f"rk::tma_map<{len(self.sizes)}>({place}, {{{sizes}}}, {{{steps}}}, {{{box}}}, {2 * piece})"
        return [f"const CUtensorMap map_out = wide_tail ? {made} : CUtensorMap{{}};"]


def results_of(contraction: Contraction, loads: list[ir.Load]) -> Results | None:
    """Return the results as the copy engine writes them, or None if it cannot; `loads` are those behind the sum."""
    c = contraction
    if len(c.nest.region.stores) != 1 or c.phases:
        return None
    ((buffer, access),) = ((b, c.nest.stores[b]) for b in c.nest.region.stores)
    row, column = (common_step(access, loops, c.nest.names) for loops in (c.rows, c.columns))
    if access.values or not row or column != {(): 1} or len(c.batches) > 3:
        return None
    if any(c.nest.accesses[load].values for load in loads):
        return None
    sizes = [c.extents(c.columns), c.extents(c.rows), *(c.extent(b) for b in c.batches)]
    steps = [column, row, *(access.steps.get(b.leaves[-1], {}) for b in c.batches)]
    if not all(steps):
        return None
    return Results(buffer, access.constant, tuple(sizes), tuple(steps), tuple(b.var for b in c.batches))


def pieces_for(columns: int, blocks: int, room: int) -> tuple[int, int]:
    """Return the columns of a piece, and how many pieces a warp has room for in so many bytes.

    Pieces of 64 columns are whole lines; smaller ones are taken where there are few or only one would fit.
    """
    for piece in (64, 32):
        rooms = min(MOST_ROOMS, room // (2 * ROWS_OF_WARP * piece))
        if columns % piece == 0 and (piece == 32 or (rooms > 1 and blocks * columns // piece >= 4)):
            return piece, rooms
    raise AssertionError("a tile has whole strips")


def leave(results: Results, stored: str, kind: str, loads: list[str], tail: list[str], *, totals: int = 1) -> list[str]:
    """Return the statements by which a tile's results leave.

    `loads` are those of two neighbours, from `row` and `column` on; `tail` makes `pair.x[e]` of `sum`, of `other` where
    there are two totals, and of these.
    """
    inside = ["row = row < rows ? row : rows - 1, column = column < columns ? column : columns - 2;"]
    places = ", ".join(["from", "top", *(f"int({batch})" for batch in results.batches)])
    text = LEAVE.replace("LOADS", "\n".join(indent(indent([*(inside if loads else []), *loads]))))
    text = text.replace("TAIL", "\n".join(indent(indent(indent(tail)))))
    text = text.replace("OTHER", ", other = kept[1][2 * u + e]" if totals > 1 else "").replace("TOTALS", str(totals))
    text = text.replace("STORED", stored).replace("KIND", kind).replace("PLACES", places)
    return text.replace("unroll UNROLLED", "unroll 1" if len(tail) > 1 else "unroll").splitlines()
