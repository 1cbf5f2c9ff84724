"""From a live `nn.Module` and its inputs to a Problem: text that stands for itself, as a file would.

Comes in: a module and the tensors that it is called with. Goes out: a Problem whose `Model` computes the same by ATen
operators, with parameters and buffers under their own names and of their own shapes, dtypes and spread. Their values
stay where they are: a kernel is given them at each call. Buffers that no state_dict has are written out where they are
small. Runs the module's forward once, to trace it.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Problem, ProblemError

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputSpec

FEW = 1024  # elements of a tensor that is written out

SOURCE = """\
from math import inf, nan  # noqa: F401

import torch
from torch import device  # noqa: F401


def graph({names}):
{body}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
{held}

    def forward(self, {inputs}):
        return {returned}


def get_inputs():
    return [{drawn}]


def get_init_inputs():
    return []


RECORDED_FOR = {recorded!r}  # inputs at which `graph` is what was recorded; it may be another at others
"""


@dataclass(frozen=True, slots=True)
class Drawn:
    """How an input is drawn where its own shape does not say: names of sizes, and the order of memory."""

    shape: tuple[str, ...] = ()
    layout: tuple[int, ...] = ()  # dimensions from the outermost in memory; none where they lie in order


def problem_of_module(module: torch.nn.Module, example_inputs: Sequence[torch.Tensor], name: str = "") -> Problem:
    """Return the problem that a module is for these inputs; `train` or `eval` is as the module stands.

    Raises ProblemError where it cannot be traced, or is called with something else than tensors.
    """
    import torch

    name = name or name_of(module)
    if not example_inputs or not all(isinstance(value, torch.Tensor) for value in example_inputs):
        raise ProblemError(f"{name}: example_inputs must be a list of tensors, one for each argument of forward.")
    refuse_changes(name, module, example_inputs)
    return problem_from_source(name, source_of(name, module, example_inputs))


def refuse_changes(name: str, module: torch.nn.Module, inputs: Sequence[torch.Tensor], *, prefix: str = "") -> None:
    """Raise ProblemError for a module in training mode that changes its buffers in a call."""
    if changed := [path.removeprefix(prefix) for path in _changed_buffers(module, inputs)]:
        raise ProblemError(
            f"{name} changes {', '.join(changed)} when it is called, which a kernel does not: put the parts that do so "
            "into eval mode first (`.eval()`)."
        )


def _changed_buffers(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[str]:
    """Return the buffers that a call writes to or replaces, as batch norm does in training; tried on a copy."""
    import torch

    if not module.training or not any(True for _ in module.buffers()):
        return []
    tried = copy.deepcopy(module)
    before = {name: (buffer, buffer.clone()) for name, buffer in tried.named_buffers()}
    with torch.no_grad():
        try:
            tried(*inputs)
        except Exception:  # whatever a forward raises: told when it is traced
            return []
    after = dict(tried.named_buffers())
    return [name for name, (own, held) in before.items() if after.get(name) is not own or not _same(own, held)]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def name_of(module: torch.nn.Module) -> str:
    """Return the problem's name that the module's class suggests."""
    return re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", type(module).__name__).lower()


def source_of(
    name: str,
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    drawn: Sequence[Drawn] = (),
    prefix: str = "",
    free_sizes: tuple[Any, ...] | None = None,
) -> str:
    """Return the text of the problem that a module is for these tensors.

    `drawn` says how inputs are drawn, `prefix` is left out of the names of what the module holds, and `free_sizes` are
    torch.export's dynamic shapes. Raises ProblemError where it cannot be traced.
    """
    import torch

    try:
        with _untold(), torch.no_grad():
            traced = torch.export.export(module, tuple(inputs), dynamic_shapes=free_sizes)
    except Exception as error:  # whatever a forward raises, and what export cannot follow
        if own := _fails(module, inputs):
            raise ProblemError(
                f"{name} does not run with these inputs ({own}): give what it is called with."
            ) from error
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ProblemError(
            f"{name} cannot be traced by torch.export ({first}); take a submodule without control flow over values."
        ) from error
    drawn = drawn or [Drawn()] * len(inputs)
    return _source(name, traced, inputs, drawn, prefix, recorded_for(module, inputs, drawn))


@contextmanager
def _untold() -> Iterator[None]:
    """Keep torch from logging tracebacks of a trace that fails, which is told in a sentence."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _fails(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> str:
    """Return what a copy of the module raises for these inputs, or ""."""
    import torch

    try:
        with torch.no_grad():
            copy.deepcopy(module)(*inputs)
    except Exception as error:  # whatever a forward raises
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return ""


def recorded_for(module: torch.nn.Module, inputs: Sequence[torch.Tensor], drawn: Sequence[Drawn]) -> list[str]:
    """Return the inputs for which a graph is the module's: dtypes, and sizes, "?" where any size makes the same graph.

    These are the sizes that have a name, and those that torch.export finds free and reads nowhere.
    """
    free = _unread(module, inputs)
    return [
        f"{str(x.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"
        for i, (x, how) in enumerate(zip(inputs, drawn, strict=True))
        for sizes in [
            [
                "?" if (i, d) in free or (how.shape and not how.shape[d].isdigit()) else str(n)
                for d, n in enumerate(x.shape)
            ]
        ]
    ]


def _unread(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> set[tuple[int, int]]:
    """Return the inputs' dimensions of which the graph is the same whatever they are, as that of most batches is."""
    import torch

    auto = ({d: torch.export.Dim.AUTO for d in range(x.dim())} for x in inputs)
    try:
        shapes = dict(inspect.signature(module.forward).bind(*auto).arguments)
        with _untold(), torch.no_grad():
            traced = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    except Exception:  # whatever export cannot follow: then every size counts
        return set()
    nodes = {node.name: node for node in traced.graph.nodes}
    sizes = [node for node in nodes.values() if isinstance(node.meta.get("val"), torch.SymInt)]
    read = {symbol for node in sizes for symbol in node.meta["val"].node.expr.free_symbols}
    bounded = {
        symbol for symbol, values in traced.range_constraints.items() if values.lower > 2 or values.upper < 2**31
    }
    return {
        (i, d)
        for i, name in enumerate(traced.graph_signature.user_inputs)
        for d, size in enumerate(nodes[str(name)].meta["val"].shape)
        if isinstance(size, torch.SymInt) and size.node.expr.is_symbol and size.node.expr not in read | bounded
    }


def _source(
    name: str,
    traced: ExportedProgram,
    example_inputs: Sequence[torch.Tensor],
    drawn: Sequence[Drawn],
    prefix: str,
    recorded: list[str],
) -> str:
    specs = traced.graph_signature.input_specs
    body = re.match(r".*?def forward\([^)]*\):\n(.*)", traced.graph_module.code, re.DOTALL)
    if body is None:
        raise ProblemError(f"{name} was traced to something that is no function; take a submodule of it.")
    names = [spec.arg.name for spec in specs]
    inputs = [spec.arg.name for spec in specs if spec.kind.name == "USER_INPUT"]
    if len(inputs) != len(example_inputs):
        raise ProblemError(f"{name} has arguments that are no tensors: give it tensors alone.")
    call = ", ".join(
        spec.arg.name if spec.kind.name == "USER_INPUT" else _read(str(spec.target).removeprefix(prefix))
        for spec in specs
    )
    single = len(traced.graph_signature.user_outputs) == 1
    lines = _written(body.group(1), {x.device: name for x, name in zip(example_inputs, inputs, strict=True)})
    if not re.search(r"\btorch\.(bfloat16|float\d+|complex\d+)", lines):
        recorded = [re.sub(r"^b?float\d+", "float", one) for one in recorded]
    return SOURCE.format(
        names=", ".join(names),
        body=lines,
        held="\n".join(f"        {line}" for line in _held(name, specs, traced, prefix)) or "        pass",
        inputs=", ".join(inputs),
        returned=f"graph({call})[0]" if single else f"graph({call})",
        drawn=", ".join(_laid_out(value, how) for value, how in zip(example_inputs, drawn, strict=True)),
        recorded=recorded,
    )


def _written(body: str, devices: Mapping[torch.device, str]) -> str:
    """Return the graph's lines without what only holds where it was recorded: devices are those of the inputs.

    What export asserts of tensors is left out too: it names a device, and dtypes that autocast changes.
    """
    body = re.sub(r";  \w+(?: = \w+)* = None\b", "", body)
    body = re.sub(r"^.*\baten\._assert_tensor_metadata\..*\n?", "", body, flags=re.MULTILINE)
    for place, name in devices.items():
        body = body.replace(f"device = {place!r}", f"device = {name}.device")
    return body.rstrip()


def _read(path: str) -> str:
    """Return an expression for what the module holds under a dotted name."""
    found = "self"
    for part in path.split("."):
        found = f"{found}.{part}" if part.isidentifier() else f"getattr({found}, {part!r})"
    return found


def _held(name: str, specs: Sequence[InputSpec], traced: ExportedProgram, prefix: str) -> Iterator[str]:
    """Yield the lines that make parameters, buffers and constants, and the modules that hold them."""
    made: set[str] = set()
    for spec in specs:
        kind, path = spec.kind.name, str(spec.target)
        if kind == "USER_INPUT":
            continue
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise ProblemError(f"{name} needs {path}, which is no tensor: take a submodule without it.")
        if any(part.isdigit() for part in path.split(".")[-1:]):
            raise ProblemError(f"{name} holds a tensor under the number {path}: give it a name.")
        *outer, last = path.removeprefix(prefix).split(".")
        for depth in range(1, len(outer) + 1):
            place = ".".join(outer[:depth])
            if place not in made:
                made.add(place)
                yield f"{_owner(outer[: depth - 1])}.add_module({outer[depth - 1]!r}, torch.nn.Module())"
        value = traced.constants[path] if path in traced.constants else traced.state_dict[path]
        # A buffer that no state_dict has keeps its contents, since nothing else gives them back. A larger one is made
        # one of the state_dict, whose loading says that it is missing.
        kept = kind == "BUFFER" and spec.persistent is False and value.numel() <= FEW
        known = kept or kind == "CONSTANT_TENSOR"
        text = _constant(name, path, value) if known else _drawn(value)
        if kind == "PARAMETER":
            frozen = "" if value.requires_grad else ", requires_grad=False"
            yield f"{_owner(outer)}.register_parameter({last!r}, torch.nn.Parameter({text}{frozen}))"
        else:
            yield f"{_owner(outer)}.register_buffer({last!r}, {text}{', persistent=False' if known else ''})"


def _owner(parts: Sequence[str]) -> str:
    return f"self.get_submodule({'.'.join(parts)!r})" if parts else "self"


def _constant(name: str, path: str, value: torch.Tensor) -> str:
    if value.numel() > FEW:
        raise ProblemError(f"{name} computes with a constant of {value.numel()} elements ({path}): make it a buffer.")
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"


def _laid_out(value: torch.Tensor, how: Drawn) -> str:
    """Return an expression that draws an input with its order of memory."""
    if not how.layout:
        return _drawn(value, how.shape)
    back = tuple(how.layout.index(d) for d in range(value.dim()))
    names = how.shape or tuple(str(n) for n in value.shape)
    return f"({_drawn(value, tuple(names[d] for d in how.layout))}).permute({back})"


def _drawn(value: torch.Tensor, sizes: Sequence[str] = ()) -> str:
    """Return an expression that draws a tensor of this shape, dtype and spread; `sizes` are the shape's names."""
    import torch

    shape: Any = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})" if sizes else tuple(value.shape)
    if value.dtype == torch.bool:
        return f"torch.rand({shape}) < {float(value.float().mean()):.3g}"
    if value.is_floating_point():
        flat = value.detach().float()
        spread = float(flat.std()) if value.numel() > 1 else 0.0
        middle = float(flat.mean()) if value.numel() else 0.0
        spread, middle = spread or 0.1, 0.0 if abs(middle) < 0.1 * (spread or 0.1) else middle
        return f"(torch.randn({shape}) * {spread:.3g} + {middle:.3g}).to({value.dtype})"
    if value.is_complex():
        raise ProblemError("Complex tensors are not supported; split them into real and imaginary parts.")
    low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
    return f"torch.randint({low}, {high + 1}, {shape}, dtype={value.dtype})"


def without_gradient(inputs: Sequence[torch.Tensor]) -> list[int]:
    """Return the numbers of inputs of which no gradient is wanted: where some want one, of the others."""
    some = any(value.requires_grad for value in inputs)
    return [i for i, value in enumerate(inputs) if some and not value.requires_grad]
