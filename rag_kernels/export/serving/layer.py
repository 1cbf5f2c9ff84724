"""A module's forward as an operator where that was verified, for modules that somebody else constructed.

Comes in: the operator, the calls that it serves, and the problem's module, for which it was verified. Goes out: what
Hugging Face's `kernelize` puts in place of a forward. A module of other constants, modes or parts runs its own forward,
with one warning that names the difference. Packages carry this file; of ours it imports only what they carry too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rag_kernels.export.serving.held import WATCHED, Held, outside
from rag_kernels.export.serving.launch import KernelRefused
from rag_kernels.export.serving.results import Results, other_results, results_of
from rag_kernels.export.serving.served import NONE, RELATED, Reason, Served


class LayerCall:
    """Calls of modules like the one that `made` returns."""

    def __init__(self, operator: Callable[..., Any], served: Served, made: Callable[[], nn.Module]) -> None:
        self.operator, self.served, self.made = operator, served, made
        self.told: set[str] = set()
        self.results: Results | None = None  # how the module arranges them, which its first call tells

    def __call__(self, module: nn.Module, inputs: Sequence[Any]) -> Any:
        """Run the operator, or the forward of the module's class where the call is not one that was verified."""
        values = self._values(module, inputs)
        if not isinstance(values, Reason):
            try:
                made = self.operator(*values)
                return made if self.results is None or self.results.plain() else self.results.arranged(made)
            except KernelRefused as error:
                values = Reason("kernel", f"{error} ({self.served.told(values)})")
        if values.what not in self.told:
            self.told.add(values.what)
            warnings.warn(f"The compiled kernel is not used: {values.text}", stacklevel=4)
        return type(module).forward(module, *inputs)

    def _values(self, module: nn.Module, inputs: Sequence[Any]) -> list[Any] | Reason:
        served, reason, leaves = self.served, self.served.mode(), pytree.tree_leaves(tuple(inputs))
        if reason.text:
            return reason
        try:
            reason = self._differs(module)
            while leaves and leaves[-1] is None:
                leaves = leaves[:-1]  # defaults of the forward beyond what was verified
            values = reason if reason.text else served.values(module, leaves)
        except AttributeError as error:
            return Reason("module", f"it is not the module that was verified ({error}).")
        if isinstance(values, Reason):
            return values
        _, reason = served.outputs_of(values, lambda sizes: RELATED if served.related else NONE)
        if not reason.text and torch.is_grad_enabled() and not served.as_verified(values):
            reason = served.graded(values)
        if not reason.text and self.results is None:
            reason = self._arranged(module, inputs)
        return reason if reason.text else values

    def _arranged(self, module: nn.Module, inputs: Sequence[Any]) -> Reason:
        """Keep how the module arranges its results; return why the kernel's cannot be."""
        try:
            found = results_of(MethodType(type(module).forward, module), inputs, {})
        except Exception as error:  # whatever a module raises without data
            return Reason("results", f"how the module arranges its results is not known ({error}).")
        told = other_results(found, len(self.served.outputs), moves=bool(self.served.free)) or found.set_by()
        if not told:
            self.results = found
        return Reason("results", told) if told else NONE

    @cached_property
    def _verified(self) -> tuple[nn.Module, Held, list[tuple[str, Any]]]:
        module = self.made()
        paths = [a.path for a in self.served.arguments if a.role in ("parameter", "buffer")]
        free = [(name, v) for _, told, values in outside([type(module)]) if not told for name, v in values.items()]
        return module, Held(module, paths), free

    def _differs(self, module: nn.Module) -> Reason:
        """Return what the forward reads that is not as in the module for which the kernel was verified."""
        verified, held, free = self._verified
        parts, wanted = dict(module.named_modules()), dict(verified.named_modules())
        for path, values in held.parts.items():
            part = parts.get(path)
            if part is None or (path and type(part).__name__ != type(wanted[path]).__name__):
                return Reason(path, f"{path} was a {type(wanted[path]).__name__} when it was verified.")
            for name, value in values.items():
                if name not in WATCHED and getattr(part, name) != value:
                    told = f"{path}.{name}".lstrip(".")
                    return Reason(told, f"{told} is {getattr(part, name)!r}, and was verified as {value!r}.")
            if path and (part._forward_hooks or part._forward_pre_hooks):
                return Reason(path, f"{path} has hooks, which the kernel does not run.")
        names = type(module).forward.__globals__
        for name, value in free:
            if names.get(name, value) != value:
                return Reason(name, f"{name} is {names[name]!r}, and was verified as {value!r}.")
        return NONE
