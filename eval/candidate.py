"""The candidate worker: the only place where candidate code is loaded and run.

Role of a forked child (`serve`). It holds the inputs of the current call and buffers for the outputs; never the
problem's source, a reference output, a tolerance, or word of what a call is for: every call is the same request.
All that it says is "done" (or the text of an exception); outputs are bytes that the judge reads and compares.

Covered by `eval.zygote`: process tree, memory, processes, file size, environment. Covered here: inputs are mapped
read-only on a CPU; a composed forward runs without builtins. Not covered: native code may do whatever the user
may do, unless an OS sandbox is around the worker.
"""

from __future__ import annotations

import faulthandler
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eval import codec
from eval.arena import attach
from eval.channel import Channel
from eval.content import compose, rows_of
from eval.records import TensorSpec
from eval.tiers import kernels_text

# What a composed forward may call. `__import__` is for torch itself, which imports lazily through its caller's
# builtins; the forward cannot name it (eval.tiers refuses underscores).
SAFE_BUILTINS = {
    "int": int, "float": float, "bool": bool, "len": len, "max": max, "min": min, "tuple": tuple,
    "__import__": __import__,
}  # fmt: skip


def serve(channel: Channel) -> None:
    """Load the candidate, then answer calls until the judge hangs up."""
    import tvm_ffi  # noqa: F401  (installs a slow handler for SIGSEGV, which is put back here)

    faulthandler.disable()
    faulthandler.enable()
    message, fds = channel.receive()
    try:
        candidate = Loaded(message, fds)
        channel.send({"done": True})
    except Exception as error:
        channel.send({"raised": _sentence(error)})
        return
    while True:
        message, fds = channel.receive()
        try:
            with torch.no_grad():
                reply = getattr(candidate, message.pop("do"))(fds=fds, **message)
        except torch.OutOfMemoryError as error:
            reply = {"memory": _sentence(error)}
        except Exception as error:
            reply = {"raised": _sentence(error)}
        channel.send(reply)


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:4000]


class Loaded:
    """A candidate bound to its arguments. `call` is the timed path."""

    def __init__(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        self.device = torch.device(message["device"])
        torch.set_num_threads(message["threads"])
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self.content = attach(fds[0], message["content"], writable=False)
        self.outputs = attach(fds[1], message["outputs"], writable=True)
        self.on_cpu = self.device.type == "cpu"
        self.tensors = self.content if self.on_cpu else [t.to(self.device) for t in self.content]
        self.specs = [TensorSpec(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in self.content]
        self.draws: list[list[torch.Tensor]] = []
        self.results: list[torch.Tensor] = []
        loaders = {"kernel": self._load_kernel, "composed": self._load_composed, "module": self._load_module}
        self.run: Callable[[], Any] = loaders[message["tier"]](message)

    # Loading, one function a tier; each returns a function of no arguments for the timed path.

    def _load_kernel(self, message: dict[str, Any]) -> Callable[[], Any]:
        import tvm_ffi

        forward = tvm_ffi.load_module(message["library"]).get_function("forward")
        if forward is None:
            raise AttributeError("the library exports no function `forward`; add RK_EXPORT(forward, your_function)")
        self.results = self.outputs if self.on_cpu else [torch.empty_like(t, device=self.device) for t in self.outputs]
        arguments = [*self._arguments(message), *message["constants"], *self.results]
        fixed = [tvm_ffi.from_dlpack(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        return lambda: forward(*fixed)

    def _load_composed(self, message: dict[str, Any]) -> Callable[[], Any]:
        import tvm_ffi

        library = tvm_ffi.load_module(message["library"])
        names: dict[str, Any] = {
            "torch": torch, "F": torch.nn.functional, "kernels": Kernels(library), "__builtins__": SAFE_BUILTINS,
        }  # fmt: skip
        text = message["source"].replace(kernels_text(message["source"]), "")
        exec(compile(text, "<candidate>", "exec"), names)
        forward, arguments, keywords = names["forward"], self._arguments(message), message["keywords"]
        keywords = {name: tuple(v) if isinstance(v, list) else v for name, v in keywords.items()}
        return lambda: self._keep(forward(*arguments, **keywords))

    def _load_module(self, message: dict[str, Any]) -> Callable[[], Any]:
        if "PYBIND11_MODULE" in message["source"]:
            forward = _load_pybind(message["source"], self.device).forward
            arguments = [*self._arguments(message), *message["constants"]]
            return lambda: self._keep(forward(*arguments))
        from eval.problem import load_module

        namespace = load_module("candidate", message["source"])
        torch.manual_seed(message["seed"])
        with self.device:
            model = namespace.ModelNew(*message["init_inputs"]).to(self.device)
        model.requires_grad_(False)
        self._bind_parameters(model, message["held"])
        inputs = [self.tensors[v["content"]] if isinstance(v, dict) else v for v in message["leaves"]]
        return lambda: self._keep(model(*inputs))

    def _arguments(self, message: dict[str, Any]) -> list[Any]:
        """Tensors and scalars in the order of the functional call."""
        return [self.tensors[v["content"]] if isinstance(v, dict) else v for v in message["arguments"]]

    def _bind_parameters(self, model: torch.nn.Module, held: list[dict[str, Any]]) -> None:
        """Give the problem's weights to a `ModelNew`: by name and shape, else the next one of that shape."""
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        free = dict(own)
        for entry in held:
            tensor = self.tensors[entry["content"]]
            fits = [n for n, p in free.items() if p.shape == tensor.shape and p.dtype == tensor.dtype]
            name = entry["path"] if entry["path"] in fits else (fits[0] if fits else None)
            if name is not None:
                free.pop(name).data = tensor if entry["role"] == "parameter" else tensor.clone()
            elif entry["role"] == "parameter":
                raise ValueError(f"ModelNew has no parameter of shape {tuple(tensor.shape)} for `{entry['path']}`")

    def _keep(self, result: Any) -> None:
        self.results = pytree.tree_leaves(result)

    # The judge's requests.

    def hold(self, *, layout: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """GPU only: bring one whole draw to the device."""
        draw = attach(fds[0], layout, writable=False)
        self.draws.append([t.to(self.device).reshape(-1).view(torch.uint8) for t in draw])
        return {"done": True}

    def load(self, *, recipe: Any, poison: int, fds: Sequence[int]) -> dict[str, Any]:
        """GPU only: compose the content of the next call on the device, and poison the outputs."""
        parts = codec.decode(recipe)
        for index, (tensor, part) in enumerate(zip(self.tensors, parts, strict=True)):
            draws = [draw[index] for draw in self.draws]
            compose(tensor.reshape(-1).view(torch.uint8), draws, part, rows_of(self.specs[index])[0])
        for tensor in self.results:
            if type(tensor) is torch.Tensor and tensor.is_contiguous():
                tensor.reshape(-1).view(torch.uint8).fill_(poison)
        torch.cuda.synchronize()
        return {"done": True}

    def ready(self, *, fds: Sequence[int]) -> dict[str, Any]:
        """Before a call, outside the clock: no result of an earlier call is held."""
        if self.results is not self.outputs and self.on_cpu:
            self.results = []
        return {"done": True}

    def call(self, *, fds: Sequence[int]) -> dict[str, Any]:
        """The timed call."""
        self.run()
        if not self.on_cpu:
            torch.cuda.synchronize()
        return {"done": True}

    def pull(self, *, fds: Sequence[int]) -> dict[str, Any]:
        """Copy the outputs into the judge's memory (where they are not already) and say what form they have."""
        kinds = [type(t) is torch.Tensor or type(t) is torch.nn.Parameter for t in self.results]
        if not all(kinds):
            return {"raised": "TypeError: the candidate returned something that is not a plain tensor"}
        form = [[list(t.shape), str(t.dtype).removeprefix("torch."), t.device.type] for t in self.results]
        expected = [[list(t.shape), str(t.dtype).removeprefix("torch."), self.device.type] for t in self.outputs]
        if form == expected and self.results is not self.outputs:
            for source, place in zip(self.results, self.outputs, strict=True):
                place.copy_(source)
        return {"form": form}

    def input_hash(self, *, fds: Sequence[int]) -> dict[str, Any]:
        """GPU only: a hash of the inputs as they are on the device now."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in self.tensors:
            words = tensor.reshape(-1).view(torch.uint8)
            padded = words[: len(words) // 8 * 8].view(torch.int64)
            digest.update(int(padded.sum()).to_bytes(8, "little", signed=True))
        return {"hash": digest.hexdigest()}


class Kernels:
    """`kernels.<name>(...)` in a composed forward: the exported functions of its library."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        function = self._library.get_function(name)
        if function is None:
            raise AttributeError(f"the kernels export no function `{name}`")
        setattr(self, name, function)
        return function


def _load_pybind(source: str, device: torch.device) -> Any:
    """Build an AI-CUDA-Engineer style source with torch's own extension loader, in the scratch folder."""
    from torch.utils import cpp_extension

    path = Path.cwd() / ("candidate.cu" if device.type == "cuda" else "candidate.cpp")
    path.write_text(source)
    return cpp_extension.load(name="candidate", sources=[str(path)], build_directory=str(Path.cwd()), verbose=False)
