"""The fixed text that the kernels of one source use: products, rows shared by blocks, scans, attention, order,
recurrent layers.

Comes in: what the kernels noted in `Needs`, and their text, for the pieces that it names. Goes out: the CUDA text that
stands before them, with no piece that nobody uses.
"""

from __future__ import annotations

from rag_kernels.offline.cuda.gemm import few_rows_text, tensor_core_text, text
from rag_kernels.offline.cuda.gemm.convolutions import patch_text, pixels_text, window_text
from rag_kernels.offline.cuda.gemm.hopper import host_text as wgmma_host_text
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.cuda.places.segments import HEAD as SEGMENTS
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.cuda.scans.tiled_scans import HEAD as SCANS
from rag_kernels.offline.cuda.texts.attention import HEAD as ATTENTION
from rag_kernels.offline.cuda.texts.attention import INSTRUCTIONS
from rag_kernels.offline.cuda.texts.linker import PIECES, linked
from rag_kernels.offline.cuda.texts.multi_block_rows import COPIES, EXCHANGE, MULTI_BLOCK_HEAD
from rag_kernels.offline.cuda.texts.order import order_head
from rag_kernels.offline.cuda.texts.piece import Piece
from rag_kernels.offline.cuda.texts.recurrence import HEAD as RECURRENCE


def fixed_text(p: CudaParameters, bodies: str, needs: Needs) -> str:
    """Return the fixed text that these functions use, and no other; `needs` is what their kernels noted.

    What its pieces call is noted there, too.
    """
    parts = parts_of(needs)
    most = f"constexpr int ROW_THREADS = {max(p.threads, p.long_threads, 512)};  // of a row's block at most\n"
    pieces = linked(parts + bodies, (Piece("ROW_THREADS", most), *PIECES))
    needs.calls |= {piece.calls for piece in pieces}
    return "".join(piece.text for piece in pieces) + parts


def parts_of(needs: Needs) -> str:
    """Return the fixed text of what was noted."""
    shared = COPIES if needs.teams or needs.few or needs.scans else ""
    shared += EXCHANGE if needs.teams or needs.scans or needs.recurrence else ""
    shared += (SCANS if needs.scans else "") + (MULTI_BLOCK_HEAD if needs.teams else "")
    attention = INSTRUCTIONS + ATTENTION if needs.attention else ""
    own = (SEGMENTS if needs.segments else "") + (RECURRENCE if needs.recurrence else "")
    return products(needs) + shared + attention + order_head(needs.order) + own


def products(needs: Needs) -> str:
    """Return the fixed texts of products."""
    parts = [text.HEAD] if needs.tiles else []
    parts += [text.SPLIT] if needs.splits else []
    parts += [wgmma_host_text.HOST] if needs.copies else []
    parts += [window_text.HOST] if needs.windows else []
    parts += [patch_text.HOST] if needs.patches else []
    parts += [pixels_text.HOST] if needs.pixel_sums else []
    parts += [tensor_core_text.HEAD] if needs.tensor_cores else []
    parts += [tensor_core_text.one_instruction(numbers) for numbers in sorted(needs.passes | needs.few)]
    parts += [tensor_core_text.one_product(numbers) for numbers in sorted(needs.passes)]
    parts += [few_rows_text.HOST] if needs.few else []
    parts += [few_rows_text.device_text(numbers) for numbers in sorted(needs.few)]
    return "".join(parts)
