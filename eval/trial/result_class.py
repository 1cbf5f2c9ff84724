"""What kind of result a right and timed candidate is: by what it links, and by what a profiler saw run.

Comes in: a built library, microseconds by kernel or operator. Goes out: a label and a note with the evidence.
"""

from __future__ import annotations

import ast
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from rag_kernels.eval.build.compile import taken_names
from rag_kernels.eval.kernel_names import is_compiled, is_library
from rag_kernels.eval.messages.to_candidate import Profile
from rag_kernels.eval.records import FunctionalProblem, Tier
from rag_kernels.eval.traits.aten import operator

OWN_SHARE = 0.8  # of the time: more than this in own kernels is a custom kernel
DECOY_SHARE = 0.02


NUMERICAL = (
    "cublas",
    "cudnn",
    "cusolver",
    "cusparse",
    "cufft",
    "mkl_",
    "MKL_",
    "dnnl_",
    "cblas_",
    "LAPACKE_",
    "_ZN2at",
    "_ZNK2at",
    "_ZN3c10",
    "_ZNK3c10",
    "_ZN5torch",
    "Py",  # whose functions reach everything above
    "_Py",
)
LOADERS = (
    "dlopen",
    "dlsym",
    "dlmopen",
    "dl_iterate_phdr",
)  # nvcc's own runtime imports them too: there the source has to name them


@dataclass(frozen=True, slots=True)
class ResultClass:
    """The label, a note with the evidence, and the share of the time in its own code where it is known."""

    label: str
    note: str = ""
    own_share: float | None = None


def links_library(library: Path, source: str, *, on_gpu: bool) -> str:
    """Return names of numerical library functions that a kernel-tier library imports, or of ways to find them.

    Or "".
    """
    names = taken_names(library)
    found = [n for n in names if n.startswith(NUMERICAL) or (n.endswith("gemm_") and len(n) < 9)]
    found += [n for n in names if n in LOADERS and (not on_gpu or n in source)]
    found += ["/proc/self"] * ("/proc/" in source)  # where libraries can be found without asking the loader
    return ", ".join(sorted(found)[:5])


def fuses_nothing(source: str, fp: FunctionalProblem) -> bool:
    """Return whether a composed forward calls no kernel of its own, or the library as often as the problem itself does.

    Signs and arithmetic call it where a tensor is among the operands: `x.transpose(-1, -2)` and `n // 2` do not.
    """
    forward = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef))
    if not any(isinstance(n, ast.Name) and n.id == "kernels" for n in ast.walk(forward)):
        return True
    numbers = {argument.arg for argument in forward.args.kwonlyargs}  # the problem's constants
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and _is_number(node.value, numbers):
            numbers |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    arithmetic = [n for n in ast.walk(forward) if isinstance(n, ast.BinOp | ast.UnaryOp | ast.Compare)]
    calls = sum(not _is_number(n, numbers) for n in arithmetic)
    for node in ast.walk(forward):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            root = node.func.value
            calls += isinstance(root, ast.Name) and root.id in {"torch", "F"} and not operator(node.func.attr).free
    needed = sum(not operator(n.op).free for n in fp.nodes)
    return calls >= needed


def _is_number(node: ast.expr, numbers: Container[str]) -> bool:
    """Return whether an expression is made of literals, sizes of tensors and names that are known to be numbers."""
    match node:
        case ast.Constant() | ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size" | "numel" | "dim")):
            return True
        case ast.Name(id=name):
            return name in numbers
        case ast.Subscript(value=value):
            return _is_number(value, numbers)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand, numbers)
        case ast.BinOp(left=left, right=right):
            return _is_number(left, numbers) and _is_number(right, numbers)
        case ast.Compare(left=left, comparators=others):
            return all(_is_number(operand, numbers) for operand in [left, *others])
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return all(_is_number(element, numbers) for element in elements)
        case _:
            return False


def classify(tier: Tier, profile: Profile | None, *, decoy: str, on_gpu: bool) -> ResultClass:
    """Return the kind of result. `profile` is None where nothing was profiled; then the tier speaks.

    `decoy` says what is as good as its own kernels.
    """
    if decoy:
        return ResultClass("library rewrite", f"its own kernels are a decoy: {decoy} the result is the same")
    if profile is None or not sum(profile.kernels.values()):
        return ResultClass({"kernel": "custom kernel", "composed": "fused + library", "module": "unclassified"}[tier])
    spent = profile.kernels
    whole = sum(spent.values())
    library = sum(us for name, us in spent.items() if is_library(name, on_gpu=on_gpu))
    compiled = sum(us for name, us in spent.items() if is_compiled(name))
    own_share = max(0.0, whole - library - compiled) / whole
    top = ", ".join(name[:40] for name in sorted(spent, key=lambda n: -spent[n])[:3])
    note = f"{own_share:.0%} of the time in its own code; most time in {top}"
    native = profile.native
    if compiled > 0.5 * whole or (not on_gpu and native and all("inductor" in path for path in native)):
        return ResultClass("compile or graph only", note, own_share)
    if (not on_gpu and not native) or own_share < DECOY_SHARE:
        if profile.flags:
            return ResultClass("flags only", f"no code of its own, but other settings: {', '.join(profile.flags)}")
        if native or on_gpu:
            return ResultClass("library rewrite", note, own_share)
        return ResultClass("library rewrite", "no native code of its own")
    return ResultClass("custom kernel" if own_share >= OWN_SHARE else "fused + library", note, own_share)
