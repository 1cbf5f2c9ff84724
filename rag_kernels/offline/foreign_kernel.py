"""Kernels that this writer did not generate, inside a composed source: their texts, and how they are called.

Comes in: the text of a kernel-tier source and a name for it. Goes out: a `Foreign` whose text can stand in the same
translation unit as other kernels: in a namespace of its own, exported by its own name, without macros that outlive it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rag_kernels.eval.records import Node

PREFIX = "archived."  # of operators that are calls of such kernels: no rule covers them, so they end a fusion
MARK = "// of another hand: "  # the first line of each of their texts

_EXPORT = re.compile(r"RK_EXPORT\s*\(\s*(\w+)\s*,")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*\n?", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_SECTION = re.compile(r"^#if RK_(?:DEVICE|HOST)\b", re.MULTILINE)
_OWN_RK = re.compile(r"^\s*namespace\s+rk\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A kernel that a composed source calls by the kernel contract."""

    function: str
    text: str

    @property
    def op(self) -> str:
        """Return the name of the operator that stands for this kernel in a graph."""
        return PREFIX + self.function


def is_foreign(node: Node) -> bool:
    """Return whether a node calls a foreign kernel."""
    return node.op.startswith(PREFIX)


def foreign(source: str, function: str, kernel_id: str) -> Foreign | None:
    """Return a kernel-tier source under another name, or None for a text that cannot be renamed.

    Includes go before the namespace. The sections of a split source, which NVRTC would compile on their own, become
    ordinary ones: the generated kernels beside them are not split.
    """
    exports = _EXPORT.findall(source)
    if exports != ["forward"] or _OWN_RK.search(source) or "'''" in source or "__tvm_ffi_" in source:
        return None
    includes = dict.fromkeys(line.strip() for line in _INCLUDE.findall(source))
    undo = "".join(f"#undef {name}\n" for name in dict.fromkeys(_MACRO.findall(source)) if not name.startswith("RK_"))
    body = _EXPORT.sub(f"RK_EXPORT({function},", _INCLUDE.sub("", source)).strip()
    body = _SECTION.sub("#if 1", body).replace('extern "C" __global__', "__global__")
    head = "\n".join(includes)
    return Foreign(
        function,
        f"{MARK}{kernel_id}\n{head}\n{undo}namespace {function} {{\n{body}\n}}  // namespace {function}\n{undo}",
    )
