"""The `forward` of a composed source as a function, with its kernels.

Comes in: the source, and the library that its kernels were built to. Goes out: a Python function on tensors. The
candidate's worker calls it, and so do exported modules; torch is imported when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.build.step_form import apart, joined

# What a composed forward may call. `__import__` is for torch itself, which imports lazily through its caller's
# builtins; the forward cannot name it (`candidate_form` refuses underscores).
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


def composed_forward(source: str, kernels: Kernels) -> Callable[..., Any]:
    """Return the `forward` of a composed source, which `candidate_form.check_composed` has passed.

    Of a training step it is its `forward` and `backward`, one after the other.
    """
    names = _names(source, kernels)
    forward: Callable[..., Any] = names["forward"]
    return joined(forward, names["backward"]) if "backward" in names else forward


def composed_halves(source: str, kernels: Kernels) -> Callable[..., Any]:
    """Return the step of a composed source with something else between its `forward` and `backward`."""
    names = _names(source, kernels)
    return apart(names["forward"], names["backward"])


def _names(source: str, kernels: Kernels) -> dict[str, Any]:
    import torch

    names: dict[str, Any] = {
        "torch": torch,
        "F": torch.nn.functional,
        "kernels": kernels,
        "__builtins__": SAFE_BUILTINS,
    }
    exec(compile(source.replace(kernels_text(source), ""), "<candidate>", "exec"), names)
    return names


def exported(library: Any, name: str) -> Any:
    """Return a function of a loaded library; raises AttributeError with what to add where it exports none so named."""
    try:
        return library.get_function(name)
    except AttributeError:
        why = f"the source exports no function `{name}`; add RK_EXPORT({name}, your_function)"
        raise AttributeError(why) from None


class Kernels:
    """`kernels.<name>(...)` in a composed forward: the exported functions of its library.

    `_instead` turns every one into a call that does nothing, or copies, to see whether the result needs them; a
    `_recorder` hears of every call before it is made, which is made `_within` something. A forward can name none of
    them (`candidate_form`).
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._instead = ""
        self._within: Callable[[], AbstractContextManager[None]] | None = None
        self._recorder: Callable[[str, Sequence[Any]], None] | None = None

    def __getattr__(self, name: str) -> Any:
        function = exported(self._library, name)

        def call(*arguments: Any) -> Any:
            if self._recorder is not None:
                self._recorder(name, arguments)
            if self._instead:
                return _copy(self._instead, arguments)
            if self._within is None:
                return function(*arguments)
            with self._within():
                return function(*arguments)

        setattr(self, name, call)
        return call


def _copy(which: str, arguments: Sequence[Any]) -> None:
    """Copy one of the arguments that are as large as the last tensor into it, in the order of their elements."""
    import torch

    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    alike = [a for a in tensors[:-1] if a.numel() == tensors[-1].numel() and a.dtype == tensors[-1].dtype]
    if which != "nothing" and alike:
        chosen = alike[0 if which == "the first" else -1]
        tensors[-1].copy_(chosen.reshape(tensors[-1].shape))
