"""What the kernels of one source need of the fixed texts: noted by each kernel when it is printed.

Comes in: notes. Goes out: the lines that include headers; `fixed_texts.py` has the texts. Nothing reads what was
printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SHORT_NAMES = {"bfloat16": "bf16", "float16": "f16", "tf32": "tf32"}
"""By number format: its name in the functions of `rag_mma.h`."""

DECLARED = {16, 32, 64, 128, 192, 256}
"""Columns of a warpgroup's products that `rag_mma.h` declares without being told."""


@dataclass(slots=True)
class Needs:
    """Notes of kernels.

    `splits` is of products on plain cores whose depth is split. `copy_engine` is of kernels that it feeds, with a
    warpgroup's products of so many `columns`; `copies` is of those whose factors may be copied for it, `windows` of
    those that read through a window, `patches` of those over pieces of images, `pixel_sums` of those that join all
    pixels; `passes` are the number formats of tensor-core products in one pass, `few` those of products of few rows;
    `order` has the functions that sorts call, `calls` the mathematical ones.
    """

    tiles: bool = False
    splits: bool = False
    tensor_cores: bool = False
    teams: bool = False
    scans: bool = False
    order: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    segments: bool = False
    recurrence: bool = False
    attention: bool = False
    copy_engine: bool = False
    columns: set[int] = field(default_factory=set)
    copies: bool = False
    windows: bool = False
    patches: bool = False
    pixel_sums: bool = False
    passes: set[str] = field(default_factory=set)
    few: set[str] = field(default_factory=set)

    def headers(self) -> str:
        """Return the lines that include the instructions, behind the contract's."""
        lines = ['#include "rag_tma.h"', '#include "rag_mma.h"'] if self.copy_engine or self.tensor_cores else []
        lines += [f"RK_WGMMA_COLUMNS({n})" for n in sorted(self.columns - DECLARED)]
        return "".join(f"{line}\n" for line in lines)
