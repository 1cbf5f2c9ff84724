"""A verified kernel as the forward of a module: what the files written by `--out best.py` import.

Comes in: the kernel's source and the parameterized call it was verified for. Goes out: tensors. Builds on first use,
from the cache when it can. Says when a call is not one that was verified, so that the caller can fall back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rag_kernels.export.serving.built import forward_of
from rag_kernels.export.serving.changed import INPUT, targets, unlike
from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.launch import KernelRefused, Launch, refused
from rag_kernels.export.serving.served import NONE, Argument, Other, Output, Reason, Served, Sizes, name_of, placed
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
    not_written: tuple[str, ...] = ()  # what the module's own forward changes in place, and the kernel does not
    backward: Backward | None = None  # a kernel for the gradients; without one they are the functional form's
    only: Sequence[dict[str, int]] = ()  # what the free sizes may be together; empty: anything
    others: Sequence[tuple[int, str, Any]] = ()  # as `served.Other`: what a call has beside its tensors
    arranged: Mapping[str, Any] | None = None  # `inputs.arrangement` of each argument of that call, where it is known

    @cached_property
    def served(self) -> Served:
        """The calls that it serves."""
        arguments = [Argument(*argument) for argument in self.arguments]
        outputs, others = [Output(*output) for output in self.outputs], [Other(*other) for other in self.others]
        return Served(arguments, outputs, self.backend, self.only, others)

    def called(
        self, places: Sequence[int], others: Sequence[tuple[int, str, Any]], arranged: Mapping[str, Any] | None
    ) -> CompiledForward:
        """Return it for calls so `arranged`, whose tensors are these leaves in their order, beside `others`."""
        arguments = [
            (role, str(places[int(path)]) if role in ("input", "scalar") else path, *rest)
            for role, path, *rest in self.arguments
        ]
        changed = [
            f"{INPUT}{places[int(name.removeprefix(INPUT))]}" if name.startswith(INPUT) else name
            for name in self.not_written
        ]
        return replace(self, arguments=arguments, not_written=tuple(changed), others=tuple(others), arranged=arranged)

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
            if graded.text:
                reason = graded if self._without(values) else self._no_gradients(values)
        if self.not_written and not reason.text:
            reason = unlike(targets(module, leaves, self.not_written), served, values)
        if reason.text:
            return None, reason
        return self.result(values, None if graded.text else sizes)

    def guarded(self, lines: Lines, names: Sequence[str], values: Sequence[Any]) -> str:
        """Add what `result_or_reason` asks of arguments of these names; return the text of what `result` is given.

        `values` are those of a call that it serves.
        """
        served = self.served
        sizes = lines.let(served.guarded(lines, names, values))
        tensors = [names[i] for i in served.tensors]
        wanted = " or ".join(f"{name}.requires_grad" for name in tensors)
        graded = f"{lines.name(served.torch.is_grad_enabled)}() and ({wanted or False})"
        given = f"[{', '.join(names)}]"
        if self.backward is None:
            lines.refuse(graded)
            return f"{given}, {sizes}"
        if self._step is not None:
            fixed = " or ".join(f"{names[i]}.requires_grad" for i in self._step.fixed)
            lines.refuse(f"{lines.name(served.torch.is_grad_enabled)}() and ({fixed or False})")
            return f"{given}, None if {graded} else {sizes}"
        verified = [f"{names[i]}.shape == {lines.name(tuple(served.arguments[i].shape))}" for i in served.moving]
        lines.refuse(f"{graded} and not ({' and '.join(verified) or True})")
        return f"{given}, None if {graded} else {sizes}"

    def result(self, values: Sequence[Any], sizes: Sequence[Sizes] | None) -> tuple[Any, Reason]:
        """Return the kernel's result for a call that it serves, or why its own checks refuse it.

        By the operator, which has gradients, where the outputs' sizes are None.
        """
        try:
            return self._outputs(self.op(*values) if sizes is None else self.run(values, sizes)), NONE
        except KernelRefused as error:
            return None, Reason("kernel", f"{error} ({self.served.told(values)})")

    @property
    def _step(self) -> Backward | None:
        """The kernel for the gradients where it was judged together with the forward, as a step of training."""
        return self.backward if self.backward is not None and self.backward.saved is not None else None

    @property
    def hidden(self) -> int:
        """How many of the last outputs are not the module's, but what a step's forward saves."""
        return (self._step.saved or 0) if self._step is not None else 0

    @property
    def pulled(self) -> int:
        """How many of the problem's first inputs are gradients of outputs, which a module is not called with."""
        return sum(what == "grad" for what, _ in self._step.takes) if self._step is not None else 0

    def _without(self, values: Sequence[Any]) -> bool:
        """Return whether there is no kernel for the gradients of such a call."""
        return self._step is None and (self.backward is None or not self.served.as_verified(values))

    def _no_gradients(self, values: Sequence[Any]) -> Reason:
        """Return what wants a gradient now and did not when a step of training was judged."""
        for i in self._step.fixed if self._step is not None else ():
            if values[i].requires_grad:
                told = name_of(self.served.arguments[i].path)
                return Reason("gradients", f"a gradient is wanted of {told}, and none was when it was verified.")
        return NONE

    def _outputs(self, result: Any) -> Any:
        """Return the forward's outputs, without what it saves for its backward."""
        if not self.hidden:
            return result
        kept = result[: len(result) - self.hidden]
        return kept[0] if len(kept) == 1 else kept

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
                made = forward(*given, **self.constants)
            except Exception as error:
                raise refused(error, self.backend) from error
        results = (made,) if isinstance(made, torch.Tensor) else tuple(made)
        if sizes is not None and [tuple(r.shape) for r in results] != [tuple(shape) for shape in sizes]:
            found = [tuple(r.shape) for r in results]
            raise KernelRefused(f"The kernel itself refuses the call: it makes outputs of {found}, not of {sizes}.")
        return results[0] if len(results) == 1 else results

    def traced(self, module: torch.nn.Module, leaves: Sequence[Any]) -> tuple[Any, str]:
        """Return the operator's result where its contract holds, else why it does not; conditions become guards.

        Where sizes are symbols of an exported program, which has no guards, only what holds for all of them does.
        """
        import torch
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        if torch.is_autocast_enabled(self.backend):
            return None, "autocast is on, and it was verified without."
        if self.train_mode_only or self.not_written:
            return None, "the module changes tensors in place, and the operator changes none."
        values = self.served.values_traced(module, leaves)
        if values is None:
            return None, f"it got {len(leaves)} inputs, and was verified with {self.served.leaves}."
        exporting = torch.compiler._is_exporting_flag  # PyTorch 2.11 compiles is_exporting() as True
        holds = statically_known_true if exporting else bool
        other = self.served.other_traced(values, holds, anywhere=False)
        if other:
            return None, f"{other} Free sizes need bounds (torch.export.Dim)." if exporting else other
        graded = torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
        if graded and self._step is None and not self.served.as_verified(values, holds):
            return None, "gradients are wanted, which are those of the verified sizes."
        if graded and self._no_gradients(values).text:
            return None, "a gradient is wanted that was not when it was verified."
        return self._outputs(self.op(*values)), ""

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
