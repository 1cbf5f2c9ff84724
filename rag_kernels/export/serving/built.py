"""A kernel's library for this machine, from the cache or built by the judge's builder.

Comes in: a source. Goes out: what tvm-ffi loaded. Files that stand alone carry `built_alone` in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.build.compile import BuildError, build, toolchain
from rag_kernels.eval.build.composed_forward import Kernels, composed_forward
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.records import MachineError as MachineError

if TYPE_CHECKING:
    from rag_kernels.eval.records import Backend, Tier


def forward_of(source: str, tier: Tier, backend: Backend, arch: str) -> Callable[..., Any]:
    """Return the loaded forward of a source; raises MachineError where it cannot be built or loaded here."""
    library = _library(kernels_text(source) if tier == "composed" else source, backend, arch)
    if tier == "composed":
        return composed_forward(source, Kernels(library))
    function: Callable[..., Any] = library.get_function("forward")
    return function


def _library(text: str, backend: Backend, arch: str) -> Any:
    [built] = build([(text, backend)], tools=toolchain(arch), cache=default_cache())
    if isinstance(built, BuildError):
        raise MachineError(f"The kernel does not build on this machine: {built.reason}\n{built.log}")
    try:
        import tvm_ffi

        return tvm_ffi.load_module(str(built.library))
    except (ImportError, OSError, RuntimeError) as error:
        raise MachineError(f"The kernel was built and cannot be loaded on this machine: {error}") from error
