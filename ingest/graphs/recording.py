"""Run a problem's forward once on fake tensors and record the ATen calls that it makes.

Comes in: a `Problem`. Goes out: a `Trace`: the recorded graph and what each of its arguments is. Runs inside a
child process, because it executes the problem's code. Nothing is materialised: parameters and inputs are fake,
unless the module reads a tensor's value while it is built. Knows nothing of Python source, features or numbers.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import eager_transforms, vmap
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from rag_kernels.eval.buffers.shared_arena import ITEM_BYTES
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.problem import load_module, problem_from_source
from rag_kernels.eval.records import (
    Argument,
    Problem,
    ProblemError,
    Role,
    ScalarArgument,
    TensorArgument,
    TensorSpec,
    TrainingStep,
)
from rag_kernels.ingest.graphs.recurrent import shape_only_recurrence
from rag_kernels.ingest.graphs.stand_ins import (
    Calls,
    assertions_hold,
    bincount_of_minlength,
    of_backward,
    replaced_parameters,
    windows_at_once,
)

_VALUE_READS = (DataDependentOutputException, DynamicOutputShapeException)

# Failures are reported by our own sentences.
for _name in ("torch.fx.experimental.proxy_tensor", "torch._subclasses.fake_tensor"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded forward. `placeholders` are the argument names of the graph's placeholders, in order."""

    graph: fx.GraphModule
    arguments: tuple[Argument, ...]
    placeholders: tuple[str, ...]
    reassigned: tuple[str, ...]  # names of the buffers that the forward replaced by a new tensor
    attributes: dict[str, float]  # the module's own numbers: names for constants
    calls: int  # of PyTorch's functions, in the forward
    step: TrainingStep | None = None


@dataclass(frozen=True, slots=True)
class State:
    """One tensor that the module owns. Tied tensors appear once."""

    path: str
    role: Role
    tensor: Tensor


def execute(problem: Problem) -> ModuleType:
    """Execute the problem's source as a module.

    Raises ProblemError when it imports what is not installed, or fails.
    """
    checked = problem_from_source(problem.name, problem.source)
    try:
        return load_module(checked.name, checked.source, device="cpu")
    except ModuleNotFoundError as error:
        raise ProblemError(
            f"{problem.name} imports {error.name!r}, which cannot be found here; a problem is one file, so copy what "
            "it needs of a file of your own into it, or install the package that you mean beside rag-kernels."
        ) from error
    except Exception as error:
        raise ProblemError(f"{problem.name} fails when it is imported: {error_line(error)}.") from error


def error_line(error: BaseException) -> str:
    """Return an error as one line of text without a full stop, for the middle of a sentence."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300].rstrip('.')}" if text else type(error).__name__


def build(problem: Problem, module: ModuleType) -> nn.Module:
    """Return `Model(*get_init_inputs())`, in train mode as it comes.

    Raises ProblemError when that fails or is no torch.nn.Module.
    """
    init = _step(problem, "get_init_inputs", module.get_init_inputs)
    model = _step(problem, "Model(*get_init_inputs())", lambda: module.Model(*init))
    if not isinstance(model, nn.Module):
        raise ProblemError(f"{problem.name}: `Model` is not a torch.nn.Module; derive it from nn.Module.")
    return model


def make_inputs(problem: Problem, module: ModuleType) -> list[Any]:
    """Return what `get_inputs()` returns.

    Raises ProblemError when these are not positional arguments.
    """
    inputs = _step(problem, "get_inputs()", module.get_inputs)
    if not isinstance(inputs, list | tuple):
        raise ProblemError(
            f"{problem.name}: get_inputs() returns a {type(inputs).__name__}; return a list of the forward's arguments."
        )
    return list(inputs)


def _step(problem: Problem, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (*_VALUE_READS, MemoryError):
        raise
    except Exception as error:
        if "allocate memory" in str(error):
            raise MemoryError(str(error)) from error
        raise ProblemError(f"{problem.name}: {what} fails: {error_line(error)}.") from error


@dataclass(frozen=True, slots=True)
class Known:
    """The same problem at sizes that were recorded; another recording is then given up where it cannot be alike.

    `module` says that the module is of the same sizes, so that it may be made with data where that one was.
    """

    calls: int
    module: bool


def trace(problem: Problem, *, known: Known | None = None) -> Trace:
    """Return the recorded forward of a problem, run on fake tensors.

    Raises ProblemError when it cannot be recorded, or not as what is `known`: without data, by as many calls.
    """
    module = execute(problem)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = _fake_or_real(mode, lambda: build(problem, module), may_be_real=known is None or known.module)
    inputs = _fake_or_real(mode, lambda: make_inputs(problem, module), may_be_real=known is None)
    leaves, spec = pytree.tree_flatten(inputs)
    state = collect_state(model)
    _refuse_unusual(problem, [s.tensor for s in state], leaves)
    names = _names(model, inputs, state)
    attributes = _numbers(model)
    tensors = [s.tensor for s in state] + [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    reassigned: list[str] = []

    def forward(*values: Tensor) -> Any:
        owned, given = values[: len(state)], iter(values[len(state) :])
        arguments = pytree.tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in leaves], spec)
        swap(model, {id(s.tensor): v for s, v in zip(state, owned, strict=True)})
        result = model(*arguments)
        reassigned.extend(_replaced(model, state, owned))
        return tensors_of(problem, result)

    with (
        mode,
        torch.no_grad(),
        shape_only_recurrence(),
        bincount_of_minlength(),
        windows_at_once(),
        assertions_hold(),
        replaced_parameters(),
        Calls(known.calls if known else None) as calls,
    ):
        fakes = [mode.from_tensor(t) if not _is_fake(t, mode) else t for t in tensors]
        graph = _record(problem, forward, fakes)
    owned_names = names[len(leaves) :]
    arguments = _arguments(leaves, names[: len(leaves)], state, owned_names)
    placeholders = (*owned_names, *(n for n, x in zip(names, leaves, strict=False) if isinstance(x, Tensor)))
    return Trace(graph, arguments, placeholders, tuple(reassigned), attributes, calls.made, _step_of(module))


def _step_of(module: ModuleType) -> TrainingStep | None:
    """Return what the text of a training step (`ingest.gradients`) told of itself when it ran; None for others."""
    told = getattr(module, "TRAINING_STEP", None)
    if not told:
        return None
    named = (tuple(map(str, told[what])) for what in ("gradients", "fixed"))
    return TrainingStep(int(told["outputs"]), tuple(map(int, told["pulled"])), *named)


def _refuse_unusual(problem: Problem, owned: list[Tensor], leaves: list[Any]) -> None:
    """Raise ProblemError for arguments that cannot be handed to a kernel."""
    for tensor in (*owned, *(leaf for leaf in leaves if isinstance(leaf, Tensor))):
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise ProblemError(
                f"{problem.name}: a tensor of the inputs or the module is {kind}, and kernels take dense ones; pass "
                "its parts (values and indices) as dense tensors and build it in the forward, or make it dense."
            )
        refuse_dtype(problem, spec_of(tensor))
    for leaf in leaves:
        if not isinstance(leaf, Tensor | bool | int | float | str | None):
            raise ProblemError(
                f"{problem.name}: get_inputs() returns a {type(leaf).__name__}; return tensors, numbers, strings and "
                "None, and give other objects to the module in get_init_inputs()."
            )


def refuse_dtype(problem: Problem, spec: TensorSpec) -> None:
    """Raise ProblemError for a type that kernels and the judge do not know."""
    if spec.dtype not in ITEM_BYTES:
        raise ProblemError(
            f"{problem.name}: there is a tensor of {spec.dtype}, which kernels cannot be given here; use one of "
            f"{', '.join(ITEM_BYTES)}."
        )


def _fake_or_real(mode: FakeTensorMode, call: Callable[[], Any], *, may_be_real: bool) -> Any:
    """Call under fake tensors; for real when the code reads a tensor's value, or converts a module to another dtype."""
    try:
        with mode, replaced_parameters():
            return call()
    except _VALUE_READS as error:
        if not may_be_real:
            raise ProblemError(f"A tensor's value is read: {error_line(error)}.") from error
        return call()
    except ProblemError as error:
        swaps = "Couldn't swap" not in str(error)  # else PyTorch cannot exchange parameters for other fake ones
        if not may_be_real or swaps:
            raise
        return call()


def _is_fake(tensor: Tensor, mode: FakeTensorMode) -> bool:
    return getattr(tensor, "fake_mode", None) is mode


class Transforms(Internal):
    """The forward computes gradients, or maps a function over a dimension."""


_TRANSFORMS: tuple[tuple[Any, str], ...] = (
    (torch.autograd, "_engine_run_backward"),  # both `grad` and `backward` look this name up there
    (vmap, "vmap_increment_nesting"),
    (eager_transforms, "grad_increment_nesting"),
    (eager_transforms, "jvp_increment_nesting"),
)


@contextmanager
def _without_transforms() -> Iterator[None]:
    """Raise Transforms inside the block where gradients or maps are computed, by whatever function."""
    before = [getattr(module, name) for module, name in _TRANSFORMS]

    def refuse(*_: Any, **__: Any) -> Any:
        raise Transforms

    for module, name in _TRANSFORMS:
        setattr(module, name, refuse)
    try:
        yield
    finally:
        for (module, name), function in zip(_TRANSFORMS, before, strict=True):
            setattr(module, name, function)


def _recorded(forward: Callable[..., Any], fakes: list[Tensor]) -> fx.GraphModule:
    """Record a forward as it is written, or below autograd where it computes gradients or maps functions."""
    try:
        with _without_transforms():
            return make_fx(forward, pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)
    except Transforms:
        with sdpa_kernel(SDPBackend.MATH):  # as products and a softmax: the others are of one device, in one piece
            return make_fx(forward, decomposition_table=of_backward(), _allow_non_fake_inputs=True)(*fakes)


def _record(problem: Problem, forward: Callable[..., Any], fakes: list[Tensor]) -> fx.GraphModule:
    try:
        return _recorded(forward, fakes)
    except DynamicOutputShapeException as error:
        raise ProblemError(
            f"{problem.name}: the forward calls {_operator_of(error)}, whose result's shape depends on the data, and a "
            "kernel's outputs have fixed shapes; write it with an operator of fixed shape (a mask instead of nonzero "
            "or masked_select, bincount with a minlength that is above all values)."
        ) from error
    except DataDependentOutputException as error:
        raise ProblemError(
            f"{problem.name}: the forward reads a tensor's value ({error_line(error)}), so its graph depends on "
            "the data; write that branch with tensor operators such as torch.where."
        ) from error
    except (ProblemError, MemoryError):
        raise
    except Exception as error:
        if "does not require grad" in str(error):
            raise ProblemError(
                f"{problem.name}: the forward asks for gradients of what was computed without them, since modules run "
                "under torch.no_grad() here; write `with torch.enable_grad():` around it."
            ) from error
        raise ProblemError(f"{problem.name}: the forward cannot be recorded: {error_line(error)}.") from error


def _operator_of(error: DynamicOutputShapeException) -> str:
    return str(error.func).removesuffix(".default")


def untangled(graph: fx.GraphModule) -> fx.GraphModule:
    """Return the same graph without writes through views, by torch's own functionalization.

    What it leaves in its arguments is written at the end, as a copy.
    """
    fakes = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    mode = next(fake.fake_mode for fake in fakes)

    def with_arguments(*values: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        return graph(*values), values

    def forward(*values: Tensor) -> Any:
        pure = dispatch_functionalize(with_arguments, FunctionalTensorMode(pre_dispatch=True, export=True))
        results, left = pure(*values)
        for value, new in zip(values, left, strict=True):
            if new is not value:
                value.copy_(new)
        return results

    with mode, torch.no_grad():
        return make_fx(forward, pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)


def tensors_of(problem: Problem, result: Any) -> list[Tensor]:
    """Return the output tensors of a forward, in order.

    Raises ProblemError for an output that is no tensor.
    """
    outputs = [x for x in pytree.tree_leaves(result) if x is not None]
    if not outputs or not all(isinstance(x, Tensor) for x in outputs):
        kinds = ", ".join(type(x).__name__ for x in outputs) or "nothing"
        raise ProblemError(f"{problem.name}: the forward returns {kinds}; it must return tensors.")
    return outputs


def collect_state(model: nn.Module) -> list[State]:
    """Return parameters, buffers and plain tensor attributes (also in lists) with their dotted paths."""
    found: dict[int, State] = {}
    for prefix, module in model.named_modules():
        for path, role, tensor in _owned(module):
            dotted = f"{prefix}.{path}" if prefix else path
            found.setdefault(id(tensor), State(dotted, role, tensor))
    return list(found.values())


def _owned(module: nn.Module) -> Iterator[tuple[str, Role, Tensor]]:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, "parameter", parameter
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield name, "buffer", buffer
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield name, "buffer", value
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                if isinstance(item, Tensor):
                    yield f"{name}.{i}", "buffer", item


def state_at(model: nn.Module, path: str) -> Any:
    """Return the tensor at a dotted path of `collect_state`."""
    value: Any = model
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list | tuple) else getattr(value, part)
    return value


def swap(model: nn.Module, replacement: dict[int, Tensor]) -> None:
    """Replace the tensors that the model owns, found by identity, wherever it keeps them."""

    def new(value: Any) -> Any:
        if isinstance(value, Tensor):
            return replacement.get(id(value), value)
        return type(value)(map(new, value)) if type(value) in (list, tuple) else value

    for module in model.modules():
        for store in (module._parameters, module._buffers, module.__dict__):
            store.update({name: new(value) for name, value in store.items()})


def _replaced(model: nn.Module, state: list[State], owned: tuple[Tensor, ...]) -> list[str]:
    return [s.path for s, t in zip(state, owned, strict=True) if state_at(model, s.path) is not t]


def _numbers(model: nn.Module) -> dict[str, float]:
    public = {k: v for k, v in vars(model).items() if not k.startswith("_") and k != "training"}
    return {k: v for k, v in public.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _names(model: nn.Module, inputs: list[Any], state: list[State]) -> list[str]:
    """Name the input leaves after the forward's parameters and the state after its paths, all distinct."""
    parameters = [p for p in inspect.signature(model.forward).parameters.values() if p.kind != p.KEYWORD_ONLY]
    wanted: list[str] = []
    for i, value in enumerate(inputs):
        plain = i < len(parameters) and parameters[i].kind != inspect.Parameter.VAR_POSITIONAL
        base = parameters[i].name if plain else f"{parameters[-1].name if parameters else 'input'}_{i}"
        count = len(pytree.tree_leaves(value))
        wanted += [base] if not isinstance(value, list | tuple | dict) else [f"{base}_{j}" for j in range(count)]
    wanted += [re.sub(r"\W", "_", s.path) for s in state]
    return unique(wanted)


RESERVED = frozenset({"torch", "F", "module_fn", "lambda", "in", "is", "if", "for", "not", "and", "or", "None"})


def unique(wanted: list[str]) -> list[str]:
    """Return the names made distinct by numbering repeats, clear of the words that the emitted source needs."""
    taken: set[str] = set(RESERVED)
    result: list[str] = []
    for name in wanted:
        name = name.lstrip("_") or "value"
        name = f"n{name}" if name[0].isdigit() else name
        candidate, number = name, 1
        while candidate in taken:
            candidate, number = f"{name}_{number}", number + 1
        taken.add(candidate)
        result.append(candidate)
    return result


def spec_of(tensor: Tensor) -> TensorSpec:
    """Return the shape and dtype of a tensor."""
    return TensorSpec(tuple(int(n) for n in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _arguments(
    leaves: list[Any], input_names: list[str], state: list[State], state_names: list[str]
) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    for i, (name, leaf) in enumerate(zip(input_names, leaves, strict=True)):
        if isinstance(leaf, Tensor):
            arguments.append(TensorArgument(name, "input", spec_of(leaf), str(i)))
        else:
            value = leaf if isinstance(leaf, bool | int | float | str | None) else repr(leaf)
            arguments.append(ScalarArgument(name, value, str(i)))
    owned = [TensorArgument(n, s.role, spec_of(s.tensor), s.path) for n, s in zip(state_names, state, strict=True)]
    arguments += [a for a in owned if a.role == "parameter"] + [a for a in owned if a.role == "buffer"]
    return tuple(arguments)
