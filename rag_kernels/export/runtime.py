"""A verified kernel as the forward of a module: what the files written by `--out best.py` import.

Comes in: the kernel's source and the parameterized call it was verified for. Goes out: tensors. Builds on first use,
from the cache when it can. Says when a call is not one that was verified, so that the caller can fall back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rag_kernels.export.serving.built import forward_of
from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.launch import KernelRefused, Launch, refused
from rag_kernels.export.serving.served import NONE, Argument, Output, Reason, Served, Sizes, placed
from rag_kernels.export.serving.torch_operator import Backward, operator_of

if TYPE_CHECKING:
    import torch

    from rag_kernels.eval.records import Backend, Tier

Agreed = Callable[[tuple[Sizes, ...]], Reason]


@dataclass(frozen=True)
class CompiledForward:
    """`arguments` and `outputs` are as `served.Argument` and `served.Output`, in the order of the call."""

    source: str
    tier: Tier
    backend: Backend
    arguments: Sequence[tuple[Any, ...]]
    constants: dict[str, Any]
    outputs: Sequence[tuple[Any, ...]]
    train_mode_only: bool = False
    name: str = ""  # of the torch operator; empty in files written before there was one
    any_alignment: bool = False  # of the contract: tensors may begin at any element
    functional: str = ""  # text with `module_fn`, whose gradients are the operator's
    not_written: tuple[str, ...] = ()  # what the module's own forward writes to, and the kernel does not
    backward: Backward | None = None  # a kernel for the gradients; without one they are the functional form's
    only: Sequence[dict[str, int]] = ()  # what the free sizes may be together; empty: anything

    @cached_property
    def served(self) -> Served:
        """The calls that it serves."""
        arguments = [Argument(*argument) for argument in self.arguments]
        return Served(arguments, [Output(*output) for output in self.outputs], self.backend, self.only)

    @property
    def state_paths(self) -> list[str]:
        """Where in the module the tensors are that the kernel is given."""
        return [a.path for a in self.served.arguments if a.role in ("parameter", "buffer")]

    def result_or_reason(self, module: torch.nn.Module, leaves: Sequence[Any], agreed: Agreed) -> tuple[Any, Reason]:
        """Return the kernel's result, or why the call is not one that it serves. Raises MachineError: no build.

        `agreed` is asked about the outputs' sizes when a call is the first with its sizes.
        """
        served = self.served
        reason = served.mode()
        if reason.text:
            return None, reason
        if self.train_mode_only and not module.training:
            return None, Reason("training", "training is False, and it was verified in train mode.")
        values = served.values(module, leaves)
        if isinstance(values, Reason):
            return None, values
        sizes, reason = served.outputs_of(values, agreed)
        graded = NONE
        if not reason.text and served.torch.is_grad_enabled():
            graded = served.graded(values)
            if graded.text and (self.backward is None or not served.as_verified(values)):
                reason = graded
        if reason.text:
            return None, reason
        return self.result(values, None if graded.text else sizes)

    def guarded(self, lines: Lines, names: Sequence[str]) -> str:
        """Add what `result_or_reason` asks of arguments of these names; return the text of what `result` is given."""
        served = self.served
        served.guarded_mode(lines)
        sizes = lines.let(served.guarded(lines, names))
        tensors = [names[i] for i in served.tensors]
        wanted = " or ".join(f"{name}.requires_grad" for name in tensors)
        graded = f"{lines.name(served.torch.is_grad_enabled)}() and ({wanted or False})"
        values = f"[{', '.join(names)}]"
        if self.backward is None:
            lines.refuse(graded)
            return f"{values}, {sizes}"
        verified = [f"{names[i]}.shape == {lines.name(tuple(served.arguments[i].shape))}" for i in served.moving]
        lines.refuse(f"{graded} and not ({' and '.join(verified) or True})")
        return f"{values}, None if {graded} else {sizes}"

    def result(self, values: Sequence[Any], sizes: Sequence[Sizes] | None) -> tuple[Any, Reason]:
        """Return the kernel's result for a call that it serves, or why its own checks refuse it.

        By the operator, which has gradients, where the outputs' sizes are None.
        """
        try:
            return self.op(*values) if sizes is None else self.run(values, sizes), NONE
        except KernelRefused as error:
            return None, Reason("kernel", f"{error} ({self.served.told(values)})")

    def run(self, values: Sequence[Any], sizes: Sequence[Sizes]) -> Any:
        """Call the kernel on the device of its tensors.

        Raises MachineError when it cannot be built here, and KernelRefused for what its own checks raise.
        """
        if self.tier != "composed":
            return self._launch.run(values, sizes)
        import torch

        device = values[self.served.tensors[0]].device
        with torch.no_grad(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            given = [placed(v, self.any_alignment).detach() if isinstance(v, torch.Tensor) else v for v in values]
            forward = self._forward
            try:
                return forward(*given, **self.constants)
            except Exception as error:
                raise refused(error, self.backend) from error

    def traced(self, module: torch.nn.Module, leaves: Sequence[Any]) -> tuple[Any, str]:
        """Return the operator's result where its contract holds, else why it does not; conditions become guards.

        Where sizes are symbols of an exported program, which has no guards, only what holds for all of them does.
        """
        import torch
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        if torch.is_autocast_enabled(self.backend):
            return None, "autocast is on, and it was verified without."
        if self.train_mode_only or self.not_written:
            return None, "the module writes to what it is given."
        values = self.served.values_traced(module, leaves)
        if values is None:
            return None, f"it got {len(leaves)} inputs, and was verified with {self.served.leaves}."
        exporting = torch.compiler.is_exporting()
        holds = statically_known_true if exporting else bool
        other = self.served.other_traced(values, holds, anywhere=False)
        if other:
            return None, f"{other} Free sizes need bounds (torch.export.Dim)." if exporting else other
        graded = torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
        if graded and not self.served.as_verified(values, holds):
            return None, "gradients are wanted, which are those of the verified sizes."
        return self.op(*values), ""

    @cached_property
    def op(self) -> Callable[..., Any]:
        """The kernel as a torch operator, registered when the file is imported."""
        return operator_of(self)

    @cached_property
    def _launch(self) -> Launch:
        constants = self.constants.values()
        return Launch(self.name, self.served, tuple(constants), lambda: self._forward, any_alignment=self.any_alignment)

    @property
    def _forward(self) -> Callable[..., Any]:
        arch = self._arch()
        made = self._forwards.get(arch)
        if made is None:
            made = self._forwards[arch] = forward_of(self.source, self.tier, self.backend, arch)
        return made

    @cached_property
    def _forwards(self) -> dict[str, Callable[..., Any]]:
        """The loaded kernel by the architecture that it was built for."""
        return {}

    def _arch(self) -> str:
        if self.backend == "cpu":
            return "sm_90"
        import torch

        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: not what was built or registered here."""
        made = ("served", "op", "_launch", "_forwards")
        return {name: value for name, value in vars(self).items() if name not in made}

    # What files written before December 2026 call.

    def fits(self, module: torch.nn.Module, inputs: Sequence[Any]) -> bool:
        """Return whether this is the call that was verified; warns where it is not."""
        import torch

        values = self._old_values(module, inputs)
        reason = values if isinstance(values, Reason) else self.served.mode()
        if not reason.text and self.train_mode_only and not module.training:
            reason = Reason("training", "training is False, and it was verified in train mode.")
        if not reason.text and torch.is_grad_enabled():
            reason = self.served.graded(values)
        if reason.text:
            warnings.warn(f"The compiled kernel is not used: {reason.text}", stacklevel=3)
        return not reason.text

    def __call__(self, module: torch.nn.Module, inputs: Sequence[Any]) -> Any:
        """Run the kernel; raises ValueError for a call that it does not serve."""
        values = self._old_values(module, inputs)
        if isinstance(values, Reason):
            raise ValueError(f"The kernel was verified for other inputs: {values.text} Ask `fits` first.")
        return self.run(values, self.served.sizes_made(values))

    def _old_values(self, module: torch.nn.Module, inputs: Sequence[Any]) -> list[Any] | Reason:
        from torch.utils import _pytree as pytree

        values = self.served.values(module, pytree.tree_leaves(tuple(inputs)))
        if isinstance(values, Reason):
            return values
        reason = self.served.other(values)
        return reason if reason.text else values
