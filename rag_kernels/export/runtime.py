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
