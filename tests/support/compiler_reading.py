"""Many sources at once: read by the judge's C++ compiler and not built, or as one text, whose headers are read once."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from rag_kernels.eval.build.compile import header_options, toolchain

AT_ONCE = 40
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
FOR_ALL = re.compile(r"#[ \t]*(define|undef)|extern[ \t]*\"C\"")  # what a namespace does not keep to one source
EXPORT = re.compile(r"RK_EXPORT\((\w+)")


def refusals(sources: Iterable[str], folder: Path) -> dict[str, str]:
    """Return what the compiler says of each source that it does not take.

    Sources that include the same files are read as one text; where that is refused, one by one.
    """
    alike = defaultdict[object, list[str]](list)
    for source in sources:
        alike[source if FOR_ALL.search(source) else frozenset(INCLUDE.findall(source))].append(source)
    refused: dict[str, str] = {}
    for group in alike.values():
        for start in range(0, len(group), AT_ONCE):
            some = group[start : start + AT_ONCE]
            if len(some) == 1 or _said(together(some), folder):
                refused |= {source: said for source in some if (said := _said(source, folder))}
    return refused


def together(sources: Sequence[str]) -> str:
    """Return one text of sources, with the includes of all, each in a namespace, with its own names for exports.

    Headers of ours come last: what is there before them decides what they declare.
    """
    parts = sorted(
        dict.fromkeys(line for source in sources for line in INCLUDE.findall(source)), key=lambda line: '"' in line
    )
    for number, source in enumerate(sources):
        exports = [f"__tvm_ffi_{name}" for name in EXPORT.findall(source)]
        parts += [f"#define {name} {name}_{number}" for name in exports]
        parts += [f"namespace source{number} {{", INCLUDE.sub("", source), "}", *(f"#undef {name}" for name in exports)]
    return "\n".join(parts)


def _said(text: str, folder: Path) -> str:
    """Return what the compiler says of a text that it does not take, or nothing."""
    tools, file = toolchain(), folder / "kernel.cpp"
    command = (
        tools.command("cpu")
        .partition(" && ")[0]
        .replace(" $in ", f" -fsyntax-only {header_options('cpu', tools, folder)} $in ")
    )
    file.write_text(text)
    words = command.replace("$in", str(file)).replace("$out", str(folder / "none")).split()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stderr or "it was refused" if done.returncode != 0 else ""
