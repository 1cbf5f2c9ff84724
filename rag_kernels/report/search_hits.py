"""A kernel that a search found, as text: apart from `report.console`, whose imports a search need not wait for.

Comes in: a row of `report.json_rows.hit_row`. Goes out: lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_kernels.retrieval.weights import MOST
from rag_kernels.text.wording import broken, times

if TYPE_CHECKING:
    from rag_kernels.report.json_rows import Row


def hit_text(row: Row, *, explain: bool = False, width: int = 0) -> str:
    """Return a kernel that was found, and why; explained, with every number that the score is made of.

    A `width` breaks the lines that are longer between words, each beneath the text that it goes on.
    """
    return broken(_lines(row, explain=explain), width)


def _lines(row: Row, *, explain: bool) -> str:
    over_eager, over_compile = (
        times(row[key], at_least=row["at_least"]) for key in ("speedup_eager", "speedup_compile")
    )
    speed = f"{over_eager} eager, {over_compile} compile"
    head = f"{row['kernel_id']}  {row['problem']}: {speed}, {row['trust']}, {row['backend']}"
    head += f"\n    {row['score']:.3f}  {'; '.join(row['reasons'])}"
    if not explain:
        return head
    relevance = sum(signal["share"] for signal in row["signals"])
    lines = [
        f"        {signal['name']:<10} {signal['score']:8.3f}  place {signal['place'] or '-':<4} +{signal['share']:.3f}"
        for signal in row["signals"]
    ]
    lines.append(f"        {'relevance':<10} {relevance:8.3f}")
    lines += [f"        {f['name']:<10} x {f['weight']:.2f}    {f['told']}".rstrip() for f in row["factors"]]
    exact = " + 1 for the same graph" if "same graph" in row["reasons"] else ""
    exact += f" + {row['named']:.3g} for what is named" if row["named"] else ""
    scaled = f"        {'score':<10} {row['score']:8.3f}  = relevance x all weights / {MOST}{exact}"
    return "\n".join([head, *lines, scaled])
