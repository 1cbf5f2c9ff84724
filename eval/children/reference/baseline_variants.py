"""What a candidate is compared with beside eager: torch.compile, its autotuning, and the replay of a CUDA graph."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch


def make(variant: str, model: torch.nn.Module, inputs: Sequence[Any], *, step: bool = False) -> Callable[..., Any]:
    """Return the module as a variant (`compile`, `autotune`, `graph`), called as the module is.

    A graph reads `inputs`. A training `step` is compiled as a loop of training has it (`compiled_step`).
    """
    if variant == "graph":
        return _graph(model, inputs)
    _get_ready_to_compile()
    mode = "max-autotune" if variant == "autotune" else None
    return compiled_step(model, mode=mode) if step else torch.compile(model, mode=mode)


def compiled_step(model: torch.nn.Module, **how: Any) -> torch.nn.Module:
    """Return a training step whose forward is compiled, and with it its backward, which autograd calls.

    A loop has the loss in between: what fuses the gradients with the forward, as one graph of the step would, it cannot
    have. The module itself stays as it is, and owns the parameters of both.
    """
    step, inner = copy.copy(model), copy.copy(model.get_submodule("forward_model"))
    inner.compile(**how)
    step._modules = model._modules | {"forward_model": inner}
    return step


TRACING = ("PythonDispatcher", "Python", "PythonTLSSnapshot")  # keys of what dispatches while something is traced


def dispatch_plainly() -> None:
    """Take PyTorch's tracing dispatchers off this thread, in which nothing is traced now.

    A compilation that ends inside a module's own `torch.inference_mode` leaves them on in PyTorch 2.11, some time after
    (as the error's frames are freed), and it is an internal error to compute anything then.
    """
    for key in TRACING:
        torch._C._dispatch_tls_set_dispatch_key_included(getattr(torch._C.DispatchKey, key), False)


class Stop(BaseException):
    """Ends a compilation before it computes; none of the compiler's own handlers takes it for an error."""


def compile_ahead(model: torch.nn.Module, inputs: Sequence[Any], *, step: bool = False) -> None:
    """Let torch.compile compile the module into its cache on disk, without computing on the device.

    Raises where the module is not one graph. What it would time to choose (whether to pad a product) ends it: then
    nothing is kept, and it is left for later.
    """
    from torch._inductor.fx_passes import pad_mm

    _get_ready_to_compile()
    inductor = torch._TorchCompileInductorWrapper("default", None, None)  # type: ignore[no-untyped-call]

    def stop(*_: Any) -> Any:
        raise Stop

    def compiled_only(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        inductor(graph, examples)
        raise Stop

    get_do_bench, pad_mm.get_do_bench = pad_mm.get_do_bench, lambda: stop
    try:
        with contextlib.suppress(Stop):
            how: dict[str, Any] = {"backend": compiled_only, "fullgraph": True}  # none of it runs in eager
            (compiled_step(model, **how) if step else torch.compile(model, **how))(*inputs)
    finally:
        pad_mm.get_do_bench = get_do_bench
        torch._dynamo.reset()


def _get_ready_to_compile() -> None:
    _keep_headers()
    _keep_probes()
    with contextlib.suppress(AttributeError):  # a torch without it leaves what computes gradients eager
        torch._dynamo.config.trace_autograd_ops = True


def _graph(model: torch.nn.Module, inputs: Sequence[Any]) -> Callable[..., Any]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # capture wants a warmed-up module on a stream that is not the default one
        model(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(*inputs)

    def replay(*_: Any) -> Any:
        graph.replay()
        return result

    return replay


def _keep_headers() -> None:
    """Let Inductor keep its precompiled header beside what it has compiled, where the next process finds it.

    Torch keeps it in the folder for temporary files, also where a cache is named; ours is gone with the process, and
    the header takes g++ eight seconds.
    """
    from torch._inductor import codecache

    if kept := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        codecache._HEADER_DIR = os.path.join(kept, "precompiled_headers")
        codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")


@functools.cache
def _keep_probes() -> None:
    """Let Inductor keep what its probes of the CPU's vectors found, which takes it a second in each process.

    It builds a library for each kind of vectors, and keeps that; whether it loads it asks anew, in a Python of its own.
    Now a note beside the library says that it did: its name tells the compiler, the flags and torch. The widest kind
    comes first, and is the one that is used: narrower ones are not asked then, three seconds each.
    """
    from torch._inductor.cpu_vec_isa import VecISA

    probe, check = getattr(VecISA, "_probe_load", None), getattr(VecISA, "check_build", None)
    if probe is None or check is None:  # another torch
        return
    built: list[VecISA] = []

    def loads(isa: VecISA, library: str) -> bool:
        note = Path(f"{library}.loaded")
        if note.is_file():
            return True
        found = bool(probe(isa, library))
        if found:
            note.touch()
        return found

    def works(isa: VecISA, code: str) -> bool:
        if not built and check(isa, code):
            built.append(isa)
        return bool(built)

    VecISA._probe_load = loads
    VecISA.check_build = works
