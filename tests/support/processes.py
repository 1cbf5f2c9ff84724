"""Code that runs in a process of its own, where some packages cannot be imported and nothing was built before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def alone(code: str, *paths: Path, hidden: Sequence[str] = ("rag_kernels",)) -> str:
    """Run code where the hidden packages cannot be imported; return what it printed."""
    hide = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in hidden)
    with tempfile.TemporaryDirectory() as built:
        places = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "TORCH_EXTENSIONS_DIR": built,
            "RAG_KERNELS_CACHE": built,
        }
        command = [sys.executable, "-c", hide + code]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places}, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout
