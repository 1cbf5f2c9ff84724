"""How each tier's code is loaded and bound to arguments; runs in the candidate worker only.

Comes in: the `CandidateCode` of the judge's opening message. Goes out: a `Code` whose `bind` gives a function of
no arguments for the timed path. Bound once per set of buffers; state of the code is shared between bindings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.build.composed_forward import Kernels, composed_forward, composed_halves, exported
from rag_kernels.eval.build.nvrtc import SplitKernels, kernel_names
from rag_kernels.eval.build.torch_extension import lighten
from rag_kernels.eval.messages.to_candidate import Binding, CandidateCode, Held, InContent
from rag_kernels.eval.source_form import source_form


class Buffers(Protocol):
    """What code is bound to: the arguments' tensors, and where results go (kernel tier) or are kept (others)."""

    tensors: list[torch.Tensor]
    results: list[torch.Tensor]
    fresh: Callable[[], None]


class Code(Protocol):
    def bind(self, buffers: Buffers, binding: Binding) -> Callable[[], Any]: ...


def load(code: CandidateCode, device: torch.device) -> Code:
    """Load the candidate's code; its exceptions are the candidate's."""
    if code.tier == "kernel":
        return KernelCode(code.library, code.cubin, code.source)
    if code.tier == "composed":
        return ComposedCode(code.source, code.library, code.cubin)
    is_pybind = source_form(code.source, tier="module").language != "python"
    if is_pybind or "cpp_extension" in code.source:
        lighten()
    if is_pybind:
        return PybindCode(code.source, device)
    return ModuleCode(code.source, device)


class KernelCode:
    """A library with `forward(arguments..., constants..., outputs...)`; no Python in its timed path."""

    def __init__(self, library: str, cubin: str, source: str) -> None:
        import tvm_ffi

        self._ffi = tvm_ffi
        self._device_part = SplitKernels(library, cubin, kernel_names(source)) if cubin else None
        self._forward = exported(tvm_ffi.load_module(library), "forward")

    def bind(self, buffers: Buffers, binding: Binding) -> Callable[[], Any]:
        arguments = [*_arguments(buffers, binding), *binding.constants, *buffers.results]
        fixed = [self._ffi.from_dlpack(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        forward = self._forward
        return lambda: forward(*fixed)


class ComposedCode:
    """A `forward` in the subset of Python, with `kernels` from its library."""

    def __init__(self, source: str, library: str, cubin: str) -> None:
        import tvm_ffi

        self._device_part = SplitKernels(library, cubin, kernel_names(kernels_text(source))) if cubin else None
        self.kernels = Kernels(tvm_ffi.load_module(library))
        self._source, self._forward = source, composed_forward(source, self.kernels)

    def bind(self, buffers: Buffers, binding: Binding) -> Callable[[], Any]:
        return self._bound(self._forward, buffers, binding)

    def halves(self, buffers: Buffers, binding: Binding) -> Callable[[], Any]:
        """Bind a training step to be called with another forward between its halves."""
        return self._bound(composed_halves(self._source, self.kernels), buffers, binding)

    @staticmethod
    def _bound(function: Callable[..., Any], buffers: Buffers, binding: Binding) -> Callable[[], Any]:
        arguments, keywords = _arguments(buffers, binding), dict(binding.keywords)
        return keeping(buffers, lambda: function(*arguments, **keywords))


class ModuleCode:
    """A KernelBench `ModelNew`: arbitrary Python."""

    def __init__(self, source: str, device: torch.device) -> None:
        from rag_kernels.eval.problem import load_module

        self._device = device
        self._new = load_module("candidate", source).ModelNew
        self._models: list[torch.nn.Module] = []  # of each binding
        self._shares: bool | None = None

    def bind(self, buffers: Buffers, binding: Binding) -> Callable[[], Any]:
        inputs = _values(buffers, binding.leaves)
        beside = binding.beside
        shares = beside is not None and self._may_be_shared(self._models[beside], binding.held, inputs)
        model = self._models[beside] if beside is not None and shares else self._made(buffers, binding)
        self._models.append(model)
        return keeping(buffers, lambda: model(*inputs))

    def _made(self, buffers: Buffers, binding: Binding) -> torch.nn.Module:
        torch.manual_seed(binding.seed)
        with self._device:
            model: torch.nn.Module = self._new(*json.loads(binding.init_inputs)).to(self._device)
        model.requires_grad_(False)
        self._give_weights(model, buffers, binding.held)
        return model

    def _may_be_shared(self, model: torch.nn.Module, held: Sequence[Held], inputs: list[Any]) -> bool:
        """Return whether the calls of a burst may use one module, as eager's do.

        64 take a tenth longer where calls are short.

        It may have no state, and the results of each call must be tensors of their own.
        """
        if self._shares is None:
            kept = [leaves(model(*inputs)) for _ in range(2)]
            first, second = ({t.untyped_storage().data_ptr() for t in r if isinstance(t, torch.Tensor)} for r in kept)
            self._shares = all(entry.role == "parameter" for entry in held) and not first & second
        return self._shares

    def _give_weights(self, model: torch.nn.Module, buffers: Buffers, held: Sequence[Held]) -> None:
        """Give the problem's weights to a `ModelNew`: by name and shape, else the next one of that shape."""
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        free = dict(own)
        state: list[tuple[torch.Tensor, torch.Tensor]] = []
        plain = {  # tensors that are no buffers
            f"{path}.{name}".lstrip("."): (vars(module), name, value)
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }
        for entry in held:
            tensor = buffers.tensors[entry.place]
            fits = [n for n, p in free.items() if p.shape == tensor.shape and p.dtype == tensor.dtype]
            name = entry.path if entry.path in fits else (fits[0] if fits else None)
            if name is not None and entry.role == "parameter":
                free.pop(name).data = tensor
            elif name is not None:
                state.append((free.pop(name), tensor))
            elif entry.path in plain and plain[entry.path][2].shape == tensor.shape:
                state.append((plain[entry.path][2], tensor))
            elif entry.role == "parameter":
                raise ValueError(f"ModelNew has no parameter of shape {tuple(tensor.shape)} for `{entry.path}`")

        def restore() -> None:  # running statistics go back to what the call's content says, replaced tensors too
            for attributes, name, tensor in plain.values():
                attributes[name] = tensor
            for mine, given in state:
                mine.copy_(given)

        buffers.fresh = restore


class PybindCode:
    """A `.cu` or `.cpp` with a pybind `forward`, as the AI CUDA Engineer wrote them; built here with torch's loader."""

    def __init__(self, source: str, device: torch.device) -> None:
        from torch.utils import cpp_extension

        folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR", ".")).resolve()
        folder.mkdir(exist_ok=True)
        path = folder / ("candidate.cu" if device.type == "cuda" else "candidate.cpp")
        if not path.is_file() or path.read_text() != source:  # sanitizers load what was built before them
            path.write_text(source)
        built = cpp_extension.load(name="candidate", sources=[str(path)], build_directory=str(folder))
        self._forward = built.forward

    def bind(self, buffers: Buffers, binding: Binding) -> Callable[[], Any]:
        arguments = [*_arguments(buffers, binding), *binding.constants]
        return keeping(buffers, lambda: self._forward(*arguments))


def keeping(buffers: Buffers, run: Callable[[], Any]) -> Callable[[], Any]:
    """Keep what code returns as its results, for the judge to pull."""

    def call() -> None:
        returned = run()
        buffers.results = [returned] if type(returned) is torch.Tensor else leaves(returned)

    return call


def leaves(returned: Any) -> list[Any]:
    """Return results in order, of tuples, lists and dicts. Inside the clock: a list could be filled later."""
    if isinstance(returned, tuple):
        return [leaf for part in tuple.__iter__(returned) for leaf in leaves(part)]
    if type(returned) is list:
        return [leaf for part in returned for leaf in leaves(part)]
    if type(returned) is dict:
        return [leaf for part in returned.values() for leaf in leaves(part)]
    return [] if returned is None else [returned]


def _arguments(buffers: Buffers, binding: Binding) -> list[Any]:
    """Return tensors and scalars in the order of the functional call."""
    return _values(buffers, binding.arguments)


def _values(buffers: Buffers, given: Sequence[Any]) -> list[Any]:
    return [buffers.tensors[value.place] if isinstance(value, InContent) else value for value in given]
