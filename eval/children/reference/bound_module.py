"""The problem's module with its parameters and inputs bound to the content that the judge has laid out.

Comes in: a FunctionalProblem, a device and the shared content. Goes out: calls of the module, in its own precision or
in fp64. Parameters are views over the content, so a call always uses the current ones; buffers that the module updates,
and inputs that it changes in place, are private and restored before each call. Knows nothing of what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval.numerics.oracle import doubled, seed_draws, tensors
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import FunctionalProblem


class BoundModule:
    """One problem's module; `values` are the tensors that a call uses, one for each tensor argument, in order."""

    def __init__(self, fp: FunctionalProblem, device: torch.device, content: list[torch.Tensor], seed: int) -> None:
        """Load the module, and bind it. `content`, one tensor an argument, is used itself on a CPU.

        Raises TypeError where an argument's path leads to no tensor, and what the problem's own text raises.
        """
        self.fp, self.device = fp, device
        module = load_module(fp.problem.name, fp.problem.source, device=str(device))
        with device:
            self.init_inputs = module.get_init_inputs()
            self.get_inputs = module.get_inputs
            seed_draws(seed, device)
            self.model = module.Model(*self.init_inputs).to(device)
            self.leaves, self.tree = pytree.tree_flatten(list(module.get_inputs()))
        self.model.requires_grad_(False)
        held = [a for a in fp.tensors if a.role != "input"]
        self.initial = {a.name: self._attribute(a.path).detach().clone() for a in held}
        self.mutated = {path: self._attribute(path).detach().clone() for path in fp.mutated}
        plain = [(vars(m), n) for m in self.model.modules() for n, v in vars(m).items() if isinstance(v, torch.Tensor)]
        self.plain = [(held, name, held[name]) for held, name in plain]  # tensors that are no buffers
        rnns = [(name, m) for name, m in self.model.named_modules() if isinstance(m, torch.nn.RNNBase)]
        self.moving = {".".join(filter(None, (name, own))) for name, m in rnns for own, _ in m.named_parameters()}
        on_gpu = device.type != "cpu"
        self.values = [torch.empty_like(t, device=device) for t in content] if on_gpu else content
        self._bind()

    def _attribute(self, path: str) -> torch.Tensor:
        value: Any = self.model
        for part in path.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{path} of the module is a {type(value).__name__}, not a tensor")
        return value

    def _bind(self) -> None:
        """Let the module's tensors and the input leaves be views of the content, but for what `restore` copies."""
        for argument, tensor in zip(self.fp.tensors, self.values, strict=True):
            if argument.role == "input":
                self.leaves[int(argument.path)] = tensor.clone() if argument.path in self.fp.written else tensor
            elif argument.path not in self.mutated and argument.path not in self.moving:
                self._attribute(argument.path).data = tensor

    def restore(self) -> None:
        """Put replaced tensors back, and updated ones to what the content says (or to what they were).

        Weights of an LSTM, GRU or RNN are copied too: on a GPU the module moves them into memory of its own, side by
        side, and does so again after a call on other weights (`flatten_parameters`), so that they are views no more.
        """
        for held, name, tensor in self.plain:
            held[name] = tensor
        content = {a.path: t for a, t in zip(self.fp.tensors, self.values, strict=True)}
        for path, initial in self.mutated.items():
            self._attribute(path).copy_(content.get(path, initial))
        for path in self.moving & content.keys():
            self._attribute(path).copy_(content[path])
        for argument, tensor in zip(self.fp.tensors, self.values, strict=True):
            if argument.role == "input" and argument.path in self.fp.written:
                self.leaves[int(argument.path)].copy_(tensor)

    def inputs(self, leaves: Sequence[Any] | None = None) -> list[Any]:
        """Return the arguments of one call, made of its own leaves or of others."""
        inputs: list[Any] = pytree.tree_unflatten(self.leaves if leaves is None else leaves, self.tree)
        return inputs

    def call(self, leaves: Sequence[Any] | None = None) -> list[torch.Tensor]:
        """Return the outputs of one call as the module stands."""
        return tensors(self.model(*self.inputs(leaves)))

    def call_in_double(self) -> list[torch.Tensor]:
        """Return the outputs of one restored call whose floating-point arguments and state are fp64."""
        return self.call_on(None, wide=True)

    def call_on(self, values: Sequence[torch.Tensor] | None, *, wide: bool) -> list[torch.Tensor]:
        """Return the outputs of one restored call on values, one a tensor argument, or on its own; in fp64 or as they
        are."""
        self.restore()
        state, leaves = dict(self.model.named_parameters()) | dict(self.model.named_buffers()), list(self.leaves)
        for argument, value in zip(self.fp.tensors, values or (), strict=values is not None):
            if argument.role == "input":
                leaves[int(argument.path)] = value
            elif argument.path in state:
                state[argument.path] = value
        state = {name: t.double() if wide and t.is_floating_point() else t.clone() for name, t in state.items()}
        inputs = self.inputs(leaves)
        return tensors(torch.func.functional_call(self.model, state, tuple(doubled(inputs) if wide else inputs)))

    def own_results(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return results that no later call changes: copies of those that are part of the content or of the module."""
        written = [self.leaves[int(leaf)] for leaf in self.fp.written]
        plain = [tensor for *_, tensor in self.plain]
        held = [*self.values, *self.model.parameters(), *self.model.buffers(), *plain, *written]
        storages = {t.untyped_storage().data_ptr() for t in held}
        return [t.clone() if t.untyped_storage().data_ptr() in storages else t for t in results]
