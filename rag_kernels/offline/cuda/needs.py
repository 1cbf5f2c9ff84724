"""What the kernels of one source need of the fixed texts: noted by each kernel when it is printed.

Comes in: notes. Goes out: the fixed texts of products and of attention; `function.py` adds the others. Nothing reads
what was printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.cuda import hopper
from rag_kernels.offline.cuda.attention_hopper import FIXED as HOPPER_ATTENTION
from rag_kernels.offline.cuda.attention_text import HEAD as ATTENTION
from rag_kernels.offline.cuda.attention_text import INSTRUCTIONS
from rag_kernels.offline.cuda.gemm import few_rows_text, tensor_core_text, text, wgmma_text, window_text


@dataclass(slots=True)
class Needs:
    """Notes of kernels.

    `ranks` are of tensor maps, `windows` of those that are read through a window; `warpgroup` has columns and number
    format of products of a warpgroup, and whether their left factor lies in registers; `passes` are the number formats
    of tensor-core products in one pass, `few` those of products of few rows.
    """

    tiles: bool = False
    tensor_cores: bool = False
    teams: bool = False
    scans: bool = False
    order: bool = False
    attention: bool = False
    hopper_attention: bool = False
    ranks: set[int] = field(default_factory=set)
    windows: set[int] = field(default_factory=set)
    warpgroup: set[tuple[int, str, bool]] = field(default_factory=set)
    passes: set[str] = field(default_factory=set)
    few: set[str] = field(default_factory=set)

    def products(self) -> str:
        """Return the fixed texts of products."""
        parts = []
        if self.ranks:
            parts += [hopper.device_text(tuple(sorted(self.ranks)), tuple(sorted(self.windows)))]
            parts += [hopper.HOST, wgmma_text.HOST, window_text.HOST if self.windows else ""]
            parts += [hopper.wgmma_text(n, kind, left_in_registers=held) for n, kind, held in sorted(self.warpgroup)]
        parts += [tensor_core_text.HEAD] if self.tensor_cores else []
        parts += [tensor_core_text.one_instruction(numbers) for numbers in sorted(self.passes | self.few)]
        parts += [tensor_core_text.one_product(numbers) for numbers in sorted(self.passes)]
        parts += [few_rows_text.HOST] if self.few else []
        parts += [few_rows_text.device_text(numbers) for numbers in sorted(self.few)]
        return (text.HEAD if self.tiles else "") + "".join(parts)

    def attentions(self) -> str:
        """Return the fixed texts of attention."""
        found = INSTRUCTIONS + ATTENTION if self.attention else ""
        return found + (HOPPER_ATTENTION if self.hopper_attention else "")
