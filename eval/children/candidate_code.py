"""How each tier's code is loaded and bound to arguments; runs in the candidate worker only.

Comes in: the judge's opening message (tier, source, library). Goes out: a `Code` whose `bind` gives a function of
no arguments for the timed path. Bound once per set of buffers; state of the code is shared between bindings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.build.nvrtc import SplitKernels, kernel_names
from rag_kernels.eval.build.torch_extension import lighten
from rag_kernels.eval.source_form import source_form

# What a composed forward may call. `__import__` is for torch itself, which imports lazily through its caller's
# builtins; the forward cannot name it (eval.build.candidate_form refuses underscores).
SAFE_BUILTINS = {
    "int": int,
    "float": float,
    "bool": bool,
    "len": len,
    "max": max,
    "min": min,
    "tuple": tuple,
    "__import__": __import__,
}


class Buffers(Protocol):
    """What code is bound to: the arguments' tensors, and where results go (kernel tier) or are kept (others)."""

    tensors: list[torch.Tensor]
    results: list[torch.Tensor]
    fresh: Callable[[], None]


class Code(Protocol):
    def bind(self, buffers: Buffers, message: dict[str, Any]) -> Callable[[], Any]: ...


def load(message: dict[str, Any], device: torch.device) -> Code:
    """Load the candidate's code; its exceptions are the candidate's."""
    if message["tier"] == "kernel":
        return KernelCode(message["library"], message["cubin"], message["source"])
    if message["tier"] == "composed":
        return ComposedCode(message["source"], message["library"], message["cubin"])
    is_pybind = source_form(message["source"], tier="module").language != "python"
    if is_pybind or "cpp_extension" in message["source"]:
        lighten()
    if is_pybind:
        return PybindCode(message["source"], device)
    return ModuleCode(message["source"], device)


class KernelCode:
    """A library with `forward(arguments..., constants..., outputs...)`; no Python in its timed path."""

    def __init__(self, library: str, cubin: str, source: str) -> None:
        import tvm_ffi

        self._ffi = tvm_ffi
        self._device_part = SplitKernels(library, cubin, kernel_names(source)) if cubin else None
        self._forward = tvm_ffi.load_module(library).get_function("forward")
        if self._forward is None:
            raise AttributeError("the library exports no function `forward`; add RK_EXPORT(forward, your_function)")

    def bind(self, buffers: Buffers, message: dict[str, Any]) -> Callable[[], Any]:
        arguments = [*_arguments(buffers, message), *message["constants"], *buffers.results]
        fixed = [self._ffi.from_dlpack(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        forward = self._forward
        return lambda: forward(*fixed)


class ComposedCode:
    """A `forward` in the subset of Python, with `kernels` from its library."""

    def __init__(self, source: str, library: str, cubin: str) -> None:
        import tvm_ffi

        self._device_part = SplitKernels(library, cubin, kernel_names(kernels_text(source))) if cubin else None
        self.kernels = Kernels(tvm_ffi.load_module(library))
        self._forward = composed_forward(source, self.kernels)

    def bind(self, buffers: Buffers, message: dict[str, Any]) -> Callable[[], Any]:
        arguments = _arguments(buffers, message)
        keywords = {name: tuple(v) if isinstance(v, list) else v for name, v in message["keywords"].items()}
        return keeping(buffers, lambda: self._forward(*arguments, **keywords))


def composed_forward(source: str, kernels: Kernels) -> Callable[..., Any]:
    """The `forward` of a composed source, which `eval.build.candidate_form.check_composed` has passed."""
    names: dict[str, Any] = {
        "torch": torch,
        "F": torch.nn.functional,
        "kernels": kernels,
        "__builtins__": SAFE_BUILTINS,
    }
    exec(compile(source.replace(kernels_text(source), ""), "<candidate>", "exec"), names)
    forward: Callable[..., Any] = names["forward"]
    return forward


class Kernels:
    """`kernels.<name>(...)` in a composed forward: the exported functions of its library.

    `_muted` turns every one into a call that does nothing, to see whether the result needs them; a `_recorder` hears of
    every call before it is made. A forward can name neither (`eval.build.candidate_form`).
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._muted = False
        self._recorder: Callable[[str, Sequence[Any]], None] | None = None

    def __getattr__(self, name: str) -> Any:
        function = self._library.get_function(name)
        if function is None:
            raise AttributeError(f"the kernels export no function `{name}`")

        def call(*arguments: Any) -> Any:
            if self._recorder is not None:
                self._recorder(name, arguments)
            return None if self._muted else function(*arguments)

        setattr(self, name, call)
        return call


class ModuleCode:
    """A KernelBench `ModelNew`: arbitrary Python."""

    def __init__(self, source: str, device: torch.device) -> None:
        from rag_kernels.eval.problem import load_module

        self._device = device
        self._new = load_module("candidate", source).ModelNew
        self._models: list[torch.nn.Module] = []  # of each binding
        self._shares: bool | None = None

    def bind(self, buffers: Buffers, message: dict[str, Any]) -> Callable[[], Any]:
        inputs = [buffers.tensors[v["content"]] if isinstance(v, dict) else v for v in message["leaves"]]
        beside = message["beside"]
        shares = beside is not None and self._may_be_shared(self._models[beside], message["held"], inputs)
        model = self._models[beside] if shares else self._made(buffers, message)
        self._models.append(model)
        return keeping(buffers, lambda: model(*inputs))

    def _made(self, buffers: Buffers, message: dict[str, Any]) -> torch.nn.Module:
        torch.manual_seed(message["seed"])
        with self._device:
            model: torch.nn.Module = self._new(*message["init_inputs"]).to(self._device)
        model.requires_grad_(False)
        self._give_weights(model, buffers, message["held"])
        return model

    def _may_be_shared(self, model: torch.nn.Module, held: Sequence[dict[str, Any]], inputs: list[Any]) -> bool:
        """Whether the calls of a burst may use one module, as eager's do: 64 take a tenth longer where calls are short.

        It may have no state, and the results of each call must be tensors of their own.
        """
        if self._shares is None:
            kept = [leaves(model(*inputs)) for _ in range(2)]
            first, second = ({t.untyped_storage().data_ptr() for t in r if isinstance(t, torch.Tensor)} for r in kept)
            self._shares = all(entry["role"] == "parameter" for entry in held) and not first & second
        return self._shares

    def _give_weights(self, model: torch.nn.Module, buffers: Buffers, held: Sequence[dict[str, Any]]) -> None:
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
            tensor = buffers.tensors[entry["content"]]
            fits = [n for n, p in free.items() if p.shape == tensor.shape and p.dtype == tensor.dtype]
            name = entry["path"] if entry["path"] in fits else (fits[0] if fits else None)
            if name is not None and entry["role"] == "parameter":
                free.pop(name).data = tensor
            elif name is not None:
                state.append((free.pop(name), tensor))
            elif entry["path"] in plain and plain[entry["path"]][2].shape == tensor.shape:
                state.append((plain[entry["path"]][2], tensor))
            elif entry["role"] == "parameter":
                raise ValueError(f"ModelNew has no parameter of shape {tuple(tensor.shape)} for `{entry['path']}`")

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

    def bind(self, buffers: Buffers, message: dict[str, Any]) -> Callable[[], Any]:
        arguments = [*_arguments(buffers, message), *message["constants"]]
        return keeping(buffers, lambda: self._forward(*arguments))


def keeping(buffers: Buffers, run: Callable[[], Any]) -> Callable[[], Any]:
    """For code that returns its results: keep them for the judge to pull."""

    def call() -> None:
        returned = run()
        buffers.results = [returned] if type(returned) is torch.Tensor else leaves(returned)

    return call


def leaves(returned: Any) -> list[Any]:
    """Results in order, of tuples, lists and dicts. Inside the clock: a list could be filled later."""
    if isinstance(returned, tuple):
        return [leaf for part in tuple.__iter__(returned) for leaf in leaves(part)]
    if type(returned) is list:
        return [leaf for part in returned for leaf in leaves(part)]
    if type(returned) is dict:
        return [leaf for part in returned.values() for leaf in leaves(part)]
    return [] if returned is None else [returned]


def _arguments(buffers: Buffers, message: dict[str, Any]) -> list[Any]:
    """Tensors and scalars in the order of the functional call."""
    return [buffers.tensors[v["content"]] if isinstance(v, dict) else v for v in message["arguments"]]
