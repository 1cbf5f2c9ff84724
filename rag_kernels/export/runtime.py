"""A verified kernel as the forward of a module: what the files written by `--out best.py` import.

Comes in: the kernel's source and the parameterized call it was verified for. Goes out: tensors. Builds on first use,
from the cache when it can. Says when a call is not the one that was verified, so that the caller can fall back.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.build.compile import BuildError, build, toolchain
from rag_kernels.eval.build.composed_forward import Kernels, composed_forward
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.records import Backend, MachineError, Tier
from rag_kernels.export.torch_operator import operator_of

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class CompiledForward:
    """`arguments` are (role, path, shape, dtype) in the order of the call; scalars have role "scalar"."""

    source: str
    tier: Tier
    backend: Backend
    arguments: Sequence[tuple[str, str, Shape, str]]
    constants: dict[str, Any]
    outputs: Sequence[tuple[Shape, str]]
    train_mode_only: bool = False
    name: str = ""  # of the torch operator; empty in files written before there was one
    functional: str = ""  # text with `module_fn`, whose gradients are the operator's

    def fits(self, module: torch.nn.Module, inputs: Sequence[Any]) -> bool:
        """Whether this is the call that was verified: shapes, dtypes, device, and no gradients wanted."""
        import torch

        values = self._values(module, inputs)
        reason = ""
        if values is None or (self.train_mode_only and not module.training):
            reason = "other inputs or another mode than it was verified for"
        elif torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values):
            reason = "gradients are wanted, and it has none (use torch.no_grad())"
        if reason:
            warnings.warn(f"The compiled kernel is not used: {reason}.", stacklevel=3)
        return not reason

    def __call__(self, module: torch.nn.Module, inputs: Sequence[Any]) -> Any:
        import torch

        given = self._values(module, inputs)
        if given is None:
            raise ValueError("The kernel was verified for other inputs; ask `fits` first.")
        values = [v.detach().contiguous() if isinstance(v, torch.Tensor) else v for v in given]
        if self.tier == "composed":
            return self._forward(*values, **self.constants)
        device = "cuda" if self.backend == "cuda" else "cpu"
        results = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in self.outputs]
        self._forward(*values, *self.constants.values(), *results)
        return results[0] if len(results) == 1 else tuple(results)

    def _values(self, module: torch.nn.Module, inputs: Sequence[Any]) -> list[Any] | None:
        """The arguments of the call, or None when one has another form than was verified."""
        import torch
        from torch.utils import _pytree as pytree

        leaves = pytree.tree_leaves(tuple(inputs))
        taken = {int(path) for role, path, _, _ in self.arguments if role in ("input", "scalar")}
        if any(leaf is not None for i, leaf in enumerate(leaves) if i not in taken):
            return None  # None was recorded there, or a string, which is not known here
        values: list[Any] = []
        for role, path, shape, dtype in self.arguments:
            held = role in ("parameter", "buffer")
            if not held and int(path) >= len(leaves):
                return None
            value = operator.attrgetter(path)(module) if held else leaves[int(path)]
            if role != "scalar" and not (
                isinstance(value, torch.Tensor)
                and (tuple(value.shape), value.dtype, value.device.type) == (shape, getattr(torch, dtype), self.backend)
            ):
                return None
            values.append(value)
        return values

    @cached_property
    def last_leaf(self) -> int:
        """Position of the last input that the kernel reads, of the flattened call."""
        return max((int(path) for role, path, _, _ in self.arguments if role in ("input", "scalar")), default=-1)

    @cached_property
    def _plan(self) -> list[tuple[Callable[[Any], Any] | None, int, str, Shape, Any]]:
        """For each argument: its getter (or None and the leaf's position), its path, shape and type."""
        import torch

        return [
            (getter(path), -1, path, shape, getattr(torch, dtype))
            if role in ("parameter", "buffer")
            else (None, int(path), path, shape, getattr(torch, dtype) if role == "input" else dtype)
            for role, path, shape, dtype in self.arguments
        ]

    def values_or_reason(self, module: torch.nn.Module, leaves: Sequence[Any]) -> tuple[list[Any], str]:
        """Return the arguments of the call, or why it is not the one that was verified."""
        import torch

        if len(leaves) <= self.last_leaf:
            return [], f"it got {len(leaves)} inputs, and was verified with {self.last_leaf + 1}."
        if torch.is_autocast_enabled(self.backend):
            return [], "autocast is on, and it was verified without."
        if torch.jit.is_tracing():
            return [], "torch.jit.trace cannot record it; use torch.export."
        values: list[Any] = []
        device = None
        graded = torch.is_grad_enabled()
        taken = 0
        for get, position, path, shape, dtype in self._plan:
            value = leaves[position] if get is None else get(module)
            taken += get is None
            values.append(value)
            if type(dtype) is str:
                if type(value).__name__ != dtype:
                    return [], f"input {path} is {value!r}, and was verified as {dtype}."
                continue
            kind = type(value)
            if kind is not torch.Tensor and kind is not torch.nn.Parameter:
                return [], f"{told(path)} is a {kind.__name__}, and was verified as a torch.Tensor."
            if value.shape != shape or value.dtype is not dtype:
                has = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
                return [], f"{told(path)} is {has}, and was verified as {str(dtype).removeprefix('torch.')}{list(shape)}."
            if device is None:
                device = value.device
                if device.type != self.backend:
                    return [], f"{told(path)} is on {device}, and the kernel is for {self.backend}."
            elif value.device != device:
                return [], f"{told(path)} is on {value.device}, and others are on {device}."
            if graded and value.requires_grad:
                return [], f"gradients are wanted of {told(path)}, and it has none (use torch.no_grad())."
        if taken != len(leaves) and any(
            leaf is not None and i not in {p for _, p, _, _, _ in self._plan} for i, leaf in enumerate(leaves)
        ):
            return [], "it got an input that was None, or was not read, when it was verified."
        return values, ""

    def run(self, values: Sequence[Any]) -> Any:
        """Call the kernel; raises MachineError when it cannot be built here."""
        import torch

        device = next((v.device for v in values if isinstance(v, torch.Tensor)), torch.device(self.backend))
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.run(values)
        values = [v.detach().contiguous() if isinstance(v, torch.Tensor) else v for v in values]
        if self.tier == "composed":
            with torch.no_grad():
                return self._forward(*values, **self.constants)
        results = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in self.outputs]
        self._forward(*values, *self.constants.values(), *results)
        return results[0] if len(results) == 1 else tuple(results)

    def traced(self, module: torch.nn.Module, leaves: Sequence[Any]) -> Any:
        """Return the operator's result where its contract holds, else None; every condition becomes a guard."""
        import torch

        if len(leaves) != self.last_leaf + 1 or torch.is_autocast_enabled(self.backend) or self.train_mode_only:
            return None
        values = []
        for role, path, shape, dtype in self.arguments:
            value = state_at(module, path) if role in ("parameter", "buffer") else leaves[int(path)]
            if role == "scalar":
                if type(value).__name__ != dtype:
                    return None
            elif (
                not isinstance(value, torch.Tensor)
                or tuple(value.shape) != tuple(shape)
                or value.dtype != getattr(torch, dtype)
                or value.device.type != self.backend
            ):
                return None
            values.append(value)
        return self.op(*values)

    @cached_property
    def op(self) -> Callable[..., Any]:
        """The kernel as a torch operator, registered when the file is imported."""
        return operator_of(self)

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        import tvm_ffi

        text = kernels_text(self.source) if self.tier == "composed" else self.source
        [built] = build([(text, self.backend)], tools=toolchain(self._arch()), cache=default_cache())
        if isinstance(built, BuildError):
            raise MachineError(f"The kernel does not build on this machine: {built.reason}\n{built.log}")
        library = tvm_ffi.load_module(str(built.library))
        if self.tier != "composed":
            return library.get_function("forward")
        return composed_forward(self.source, Kernels(library))

    def _arch(self) -> str:
        import torch

        if self.backend == "cpu":
            return "sm_90"
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"


def state_at(module: Any, path: str) -> Any:
    """Return the tensor at a dotted path of a module; a number is a place in a list."""
    for part in path.split("."):
        module = module[int(part)] if isinstance(module, list | tuple) else getattr(module, part)
    return module


def getter(path: str) -> Callable[[Any], Any]:
    """Return the function that reads a dotted path, the quick one where it has no place in a list."""
    if any(part.isdigit() for part in path.split(".")):
        return lambda module: state_at(module, path)
    return operator.attrgetter(path)


def told(path: str) -> str:
    """Name an argument: an input by its position, a parameter by its path."""
    return f"input {path}" if path.isdigit() else path
