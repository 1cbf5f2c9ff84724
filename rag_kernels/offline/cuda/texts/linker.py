"""The fixed part of generated CUDA texts in pieces: how a team of threads reduces and scans, how kernels are launched.

Comes in: a generated text. Goes out: the pieces that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.offline.codegen.symbols import symbols
from rag_kernels.offline.cuda.texts.joins import JOINS
from rag_kernels.offline.cuda.texts.launches import LAUNCHES
from rag_kernels.offline.cuda.texts.piece import Piece
from rag_kernels.offline.cuda.texts.teams import TEAMS
from rag_kernels.offline.cuda.texts.vectors import VECTORS

HEAD = """#include <cuda_runtime.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include "rag_kernel.h"
"""


PIECES = (*JOINS, *VECTORS, *TEAMS, *LAUNCHES)


def linked(text: str, pieces: Sequence[Piece] = PIECES) -> list[Piece]:
    """Return the pieces that a text uses, and those that these use, in order.

    It reads the text, as a linker does: `symbols.py` says why.
    """
    named, kept = symbols([text]), list[Piece]()
    for piece in reversed(pieces):
        if piece.name in named and (not piece.of or piece.of in named):
            kept.append(piece)
            named |= symbols([piece.text])
    return kept[::-1]
