"""Read candidates from files, and check that a composed one keeps to its subset of Python.

Comes in: source text. Goes out: a Candidate; `check_composed` raises `Forbidden` with the line.
Static checks are for form and safety of the timed path, never the ground of a verdict on correctness.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rag_kernels.eval.errors import Internal
from rag_kernels.eval.records import Backend, Candidate, ProblemError
from rag_kernels.eval.source_form import is_whole, source_form

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_SANITIZERS = re.compile(
    r"__SANITIZE\w*|\b(?:address|hwaddress|thread|memory|undefined_behavior|leak)_sanitizer\b"
    r"|\bno_sanitize_\w+|\bno_sanitize\s*\(\s*\"[^\"]*(?:thread|address|memory)|\b__(?:[auhlm]|t)s?an_\w+|\b__ubsan_\w+"
    r"|\b__sanitizer_\w+|\bRUNNING_ON_VALGRIND|\b[ATU]+SAN_OPTIONS"
)
_SANITIZER_SYMBOLS = re.compile(rb"\0(__(?:asan|hwasan|lsan|msan|tsan|ubsan|sanitizer)_\w+)(?=[\0@])")

# Methods of tensors that only look or re-shape; everything that computes is written as torch.* or F.*.
TENSOR_METHODS = frozenset(
    "view reshape permute transpose contiguous flatten unflatten unsqueeze squeeze expand expand_as size t T mT shape "
    "dtype device numel dim ndim to float double half bfloat16 long int bool unbind chunk split narrow select movedim "
    "new_empty stride is_contiguous".split()
)
FORBIDDEN_TORCH = frozenset(
    "load save compile jit utils cuda cpu backends hub multiprocessing distributed package library classes _C "
    "set_num_threads set_default_dtype set_default_device manual_seed seed use_deterministic_algorithms from_file "
    "set_float32_matmul_precision set_flush_denormal set_grad_enabled overrides autograd func fx export onnx "
    "profiler monitor random storage serialization futures sys os".split()
)
ALLOWED_NODES = (
    ast.arguments,
    ast.arg,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Return,
    ast.Expr,
    ast.Name,
    ast.Load,
    ast.Store,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Subscript,
    ast.Slice,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.IfExp,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.Call,
    ast.keyword,
    ast.Attribute,
    ast.Starred,
    ast.FunctionDef,
)
SUFFIXES = (".cpp", ".cc", ".cxx", ".cu", ".py")
BUILTINS = frozenset({"int", "float", "bool", "len", "max", "min", "tuple"})


class Forbidden(Internal):
    """The composed forward uses something outside the subset; the message has the line and what to do."""


def candidate_from_file(path: Path, default: Backend) -> Candidate:
    """Read a candidate of any tier: `.cpp`, `.cu`, or `.py` (composed or `ModelNew`)."""
    if not path.is_file():
        hint = "it is a folder: name a file in it" if path.is_dir() else "check the path"
        raise ProblemError(f"There is no candidate file {path}; {hint}.")
    if path.suffix not in SUFFIXES:
        raise ProblemError(f"{path} is no kernel by its name: it must end in {', '.join(SUFFIXES)}.")
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"{path} cannot be read as text ({error}).") from error
    if not source.strip():
        raise ProblemError(f"{path} is empty; docs/contract.md has the form of a kernel.")
    form = source_form(source, suffix=path.suffix, default=default)
    if form.language == "python" and not is_whole(source):
        raise ProblemError(f"{path} defines neither `ModelNew` nor `KERNELS` with `forward`; see docs/contract.md.")
    return Candidate(source=source, tier=form.tier, backend=form.backend)


def asks_for_sanitizers(source: str) -> str:
    """Return the first word of a source by which code tells that a sanitizer looks at it, or hides from it; or ""."""
    found = _SANITIZERS.search(_COMMENTS.sub(" ", source))
    return found.group(0) if found else ""


def looks_for_sanitizers(library: bytes) -> str:
    """Return the first symbol of a sanitizer's run time that a library built without one refers to, or "".

    A weak one is there only under the sanitizer, and its name need not stand in the source in one piece.
    """
    found = _SANITIZER_SYMBOLS.search(library)
    return found.group(1).decode() if found else ""


def kernels_text(source: str) -> str:
    """Return the C++ or CUDA part of a composed source."""
    for node in _parse(source).body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["KERNELS"]:
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                return node.value.value
            raise Forbidden("KERNELS must be a plain string literal.")
    raise Forbidden("A composed source needs `KERNELS = r'''...'''` with the C++ or CUDA text.")


def called_kernels(source: str) -> list[str]:
    """Return names of the functions of its KERNELS that a composed source calls."""
    calls = [n.func for n in ast.walk(_parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return sorted({f.attr for f in calls if isinstance(f.value, ast.Name) and f.value.id == "kernels"})


def check_composed(source: str, *, step: bool = False) -> None:
    """Raise Forbidden unless the text is `KERNELS = "..."` and one `forward` within the subset.

    The source of a training `step` has a `backward` as well.
    """
    kernels_text(source)
    functions = []
    for node in _parse(source).body:
        if isinstance(node, ast.FunctionDef):
            functions.append(node)
        elif not isinstance(node, ast.Assign) and not _is_docstring(node):
            raise Forbidden(f"Line {node.lineno}: only KERNELS and `def forward` may stand at the top level.")
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
            raise Forbidden(f"Line {node.lineno}: only constants may be assigned at the top level.")
    names = [f.name for f in functions]
    if not step and names != ["forward"]:
        raise Forbidden("A composed source defines exactly one function, `forward`.")
    if step and sorted(names) != ["backward", "forward"]:
        raise Forbidden("A composed source of a training step defines two functions, `forward` and `backward`.")
    for function in functions:
        _check_function(function)


def _check_function(function: ast.FunctionDef) -> None:
    if function.decorator_list:
        raise Forbidden(f"Line {function.lineno}: `{function.name}` may not be decorated.")
    calls = [n.func for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    called = {id(function.value) for function in calls}
    for child in ast.walk(function):
        _check_node(child)
        if isinstance(child, ast.Name) and child.id == "kernels" and id(child) not in called:
            raise Forbidden(f"Line {child.lineno}: functions of `kernels` may be called; nothing else is done with it.")


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise Forbidden(f"Line {error.lineno}: syntax error, {error.msg}.") from error


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _check_node(node: ast.AST) -> None:
    line = getattr(node, "lineno", 0)
    if not isinstance(node, ALLOWED_NODES):
        raise Forbidden(f"Line {line}: {type(node).__name__} is outside the subset of composed sources.")
    if isinstance(node, ast.Name) and node.id.startswith("_"):
        raise Forbidden(f"Line {line}: names may not start with an underscore.")
    if isinstance(node, ast.Attribute):
        _check_attribute(node, line)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in BUILTINS:
        raise Forbidden(f"Line {line}: call of `{node.func.id}`; only torch.*, F.*, kernels.* and tensor methods.")
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute):
        raise Forbidden(f"Line {line}: only named functions may be called.")


def _check_attribute(node: ast.Attribute, line: int) -> None:
    if not isinstance(node.ctx, ast.Load):
        raise Forbidden(f"Line {line}: attributes may not be assigned.")
    if node.attr.startswith("_"):
        raise Forbidden(f"Line {line}: attributes may not start with an underscore.")
    root: ast.expr = node
    names: list[str] = []
    while isinstance(root, ast.Attribute):
        names.insert(0, root.attr)
        root = root.value
    if isinstance(root, ast.Name) and root.id == "torch":
        if names[0] in FORBIDDEN_TORCH or (names[0] == "ops" and len(names) > 1 and names[1] != "aten"):
            raise Forbidden(f"Line {line}: torch.{'.'.join(names)} may not be used.")
    elif isinstance(root, ast.Name) and root.id in {"F", "kernels"}:
        if len(names) > 1:
            raise Forbidden(f"Line {line}: {root.id}.{'.'.join(names)} is not a plain operator.")
    elif node.attr not in TENSOR_METHODS:
        raise Forbidden(f"Line {line}: tensor attribute `.{node.attr}`; write torch.{node.attr}(...) if there is one.")
