"""Products on Hopper of which what groups of columns come to is stored, in place of the results.

Comes in: a Contraction whose stores are reductions of groups (`tiles/product_statistics.py`). Goes out: the kernel and
its launch, as in `wgmma.py`, of which it is a case: only what stands behind the sums differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.loop_nest import Access
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm.hopper.column_groups import of_columns
from rag_kernels.offline.cuda.gemm.hopper.tail import vector_loads
from rag_kernels.offline.cuda.gemm.hopper.wgmma import STRIP, WgmmaKernel

# Four lanes have a group of a row in registers, as wgmma leaves it: columns in pairs, eight apart. Lanes beyond the
# last row or column repeat the last that there is. A warp that has not come together shuffles slowly.
FROM_REGISTERS = """\
__syncwarp();
#pragma unroll
for (int part = 0; part < BLOCKS * WIDE / GROUP; ++part) {
  const int block = (ALTERNATE ? 0 : mine * BLOCKS) + part / (WIDE / GROUP);
  const int top = row0 + block * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int from = column0 + part % (WIDE / GROUP) * GROUP;
  const KIND column = (from < columns ? from : columns - GROUP) + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const KIND row = top + h * 8 < rows ? top + h * 8 : rows - 1;
    const bool leader = top + h * 8 < rows && from < columns && lane % 4 == 0;
    float sum[GROUP / 4];
#pragma unroll
    for (int u = 0; u < GROUP / 4; ++u)
      sum[u] = sums[part / (WIDE / GROUP)][part % (WIDE / GROUP) * (GROUP / 2) + u / 2 * 4 + h * 2 + u % 2];
TAILS
  }
}"""

# Narrow ones go through shared memory as strips do; lanes below the last row repeat it.
JOINED = """\
if (top < rows && from < columns) {
#pragma unroll
  for (int i = 0; i < DOWN * ACROSS / NEXT / 32; ++i) {
    const int line = (lane + 32 * i) / (ACROSS / NEXT), in = lane % (ACROSS / NEXT) * NEXT;
    const int down = line < rows - top ? line : rows - top - 1;
    const KIND row = top + down, column = from + in;
    const bool leader = line == down && in % GROUP == 0;
    const float* const at = staged + down * PITCH;
    float sum[NEXT];
#pragma unroll
    for (int u = 0; u < NEXT; u += 4)
      *reinterpret_cast<float4*>(&sum[u]) = *reinterpret_cast<const float4*>(at + (in ^ exchanged(down) ^ u));
TAIL
  }
}"""


@dataclass(slots=True)
class GroupsKernel(WgmmaKernel):
    """A kernel for a contraction of which groups of columns are reduced."""

    @property
    def in_registers(self) -> bool:
        """Return whether groups are taken from registers: those that are as wide as a strip."""
        return self.contraction.grouped >= STRIP and not self.turned

    def strips(self) -> str:
        group = str(self.contraction.grouped)
        return FROM_REGISTERS.replace("GROUP", group) if self.in_registers else WgmmaKernel.strips(self)

    def whole_stores(self) -> dict[str, Access]:
        return {}

    def widths(self, pointers: dict[str, str]) -> dict[str, str]:
        return {}

    def condition(self, pointers: dict[str, str]) -> str:
        return f"{WgmmaKernel.condition(self, pointers)} && {self.in_eights(pointers)}"

    def tails(self, *, several_too: bool = True) -> list[str]:
        """Return the operators behind the sum, what groups of columns come to, and the stores of that."""
        c, rows = self.contraction, self.of_rows()
        scope, stores, inner = Scope(rows), c.nest.region.stores, c.columns[-1].var
        pairs = self.in_registers
        each, at, of = (2, "u / 2 * 8 + u % 2", "[u / 2].x[u % 2]") if pairs else (self.next, "u", ".x[u]")
        vectors = self.vectors(each)
        scope.known |= {place: f"float({name}{of})" for place, (name, _, _) in vectors.items()}
        scope.known |= {c.total: "sum[u]"}
        place = f"const {self.kind} {inner} = inner + {at};"
        groups = of_columns(c, self.printer, scope, c.grouped // 4 if pairs else each, place)
        values = {b: self.printer.emit_stored(b, v, scope) for b, v in stores.items()}
        loads = self.pair_loads(vectors) if pairs else vector_loads(vectors)
        lines = [
            *c.unflatten(c.rows, "row", self.kind),
            *rows.lines,
            *c.unflatten(c.columns, "column", self.kind),
            f"const {self.kind} inner = {inner};",
            *loads,
            *groups,
            "if (leader) {",
            *indent([*scope.lines, *(f"{self.place(b)} = {v};" for b, v in values.items())]),
            "}",
        ]
        if pairs:
            return indent(lines)
        text = JOINED.replace("TAIL", "\n".join(indent(indent(lines))))
        return text.replace("NEXT", str(each)).replace("GROUP", str(c.grouped)).splitlines()

    def pair_loads(self, vectors: dict[str, tuple[str, str, Access]]) -> list[str]:
        """Return the statements that load what pairs of neighbours share: all pairs that a lane has of a group."""
        count, lines = self.contraction.grouped // 8, list[str]()
        at = f"const {self.kind} {self.contraction.columns[-1].var} = inner + q * 8;"
        for place, (name, pair, _) in vectors.items():
            each = [at, f"{name}[q] = *reinterpret_cast<const {pair}*>(&{place});"]
            lines += [f"{pair} {name}[{count}];", "#pragma unroll", f"for (int q = 0; q < {count}; ++q) {{"]
            lines += [*indent(each), "}"]
        return lines
