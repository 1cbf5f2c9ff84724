"""The headers of ours that a kernel includes: the contract's, and the pieces for tensor cores and the copy engine.

Comes in: a source. Goes out: their texts by name, for the key of a build and for packages. Knows nothing of compilers.
"""

from __future__ import annotations

import re

from rag_kernels.eval.places import INCLUDE

CONTRACT = "rag_kernel.h"
PIECES = ("rag_tma.h", "rag_mma.h")
_INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def headers_of(source: str) -> dict[str, str]:
    """Return the texts of all headers of ours that a source includes, and those that these include."""
    found: dict[str, str] = {CONTRACT: (INCLUDE / CONTRACT).read_text()}
    waiting = [source]
    while waiting:
        for name in _INCLUDED.findall(waiting.pop()):
            if name in PIECES and name not in found:
                found[name] = (INCLUDE / name).read_text()
                waiting.append(found[name])
    return found
