"""The fixed text of sorts in CUDA, in pieces: sorts in registers, digit by digit, the first few, one of a rank.

Comes in: what kernels call. Goes out: the pieces that have it, one namespace. Pairs are a key with its element's place,
of which no two are equal, so that equal elements keep their order however they are moved.
"""

from __future__ import annotations

from collections.abc import Set

from rag_kernels.offline.codegen.order_keys import KEYS
from rag_kernels.offline.cuda.texts.order_digits import DIGITS
from rag_kernels.offline.cuda.texts.order_ranks import OWN, PICK, RANKS, SHARED
from rag_kernels.offline.cuda.texts.order_sorts import FIRST, REGISTERS, RUNS

BASE = (
    "#define RK_INLINE __device__ inline\n"
    + KEYS
    + """RK_INLINE uint64_t last(uint64_t) { return ~uint64_t(0); }
RK_INLINE Wide last(Wide) { return Wide{~uint64_t(0), ~0u}; }
RK_INLINE uint32_t key_of(uint64_t p) { return uint32_t(p >> 32); }
RK_INLINE uint64_t key_of(const Wide& p) { return p.key; }
"""
)


CALLERS = (  # of each piece
    (REGISTERS, ("sort_lanes",)),
    (DIGITS, ("move_tile",)),
    (RUNS, ("first_of", "pair_of_rank", "finish")),
    (FIRST, ("first_of",)),
    (PICK, ("pick",)),
    (OWN, ("pick_alone",)),
    (RANKS, ("pair_of_rank", "finish")),
    (SHARED, ("finish",)),
)


def order_head(called: Set[str]) -> str:
    """Return the fixed text of sorts of which these functions are called."""
    used = [text for text, callers in CALLERS if called & set(callers)]
    return BASE + "".join(used) + "}  // namespace order\n" if called else ""
