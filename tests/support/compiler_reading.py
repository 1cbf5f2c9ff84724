"""Sources read by the judge's C++ compiler and not built, which takes a tenth of the time: for many of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from rag_kernels.eval.build.compile import header_options, toolchain


def refusals(sources: Iterable[str], folder: Path) -> dict[str, str]:
    """Return what the compiler says of each source that it does not take."""
    tools, file = toolchain(), folder / "kernel.cpp"
    command = (
        tools.command("cpu")
        .partition(" && ")[0]
        .replace(" $in ", f" -fsyntax-only {header_options('cpu', tools, folder)} $in ")
    )
    words = command.replace("$in", str(file)).replace("$out", str(folder / "none")).split()
    refused = {}
    for source in sources:
        file.write_text(source)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            refused[source] = done.stderr
    return refused
