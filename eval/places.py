"""Where the installed package lies, and the cache folder of this user.

`eval/` stands at the top of the repository and is imported as `rag_kernels.eval`: through a link in a checkout, as a
folder inside `rag_kernels/` where the wheel is installed. Nothing else works out a place from `__file__` but for files
that lie beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

# The folder to put on `sys.path` so that `import rag_kernels` finds this package.
ROOT = Path(__file__).absolute().parents[2].resolve()
PACKAGE = ROOT / "rag_kernels"
EVAL = Path(__file__).resolve().parent
INCLUDE = EVAL / "include"  # the kernel contract's header, and what checked programs are made of
LIGHT_HEADERS = EVAL / "light_headers"  # in place of torch's, for extensions
# What a child process needs of it to import `rag_kernels.eval`, and nothing more.
IMPORTED_BY_CHILDREN = (str(PACKAGE / "__init__.py"), str((PACKAGE / "eval").resolve()), str(PACKAGE / "eval"))


def default_cache() -> Path:
    """Return the folder of builds, baselines and device figures: `RAG_KERNELS_CACHE`, or one in the user's home."""
    base = os.environ.get("RAG_KERNELS_CACHE") or Path.home() / ".cache" / "rag-kernels"
    return Path(base).resolve()
