"""What a module changes in place: a kernel changes nothing, so what it returns of that is copied to where it belongs.

Comes in: the names of what is changed ("input 0", "cache"), the tensors of a call, and a kernel's results. Goes out:
these, of which those that the module returns as the changed tensors are the changed tensors; or why that cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rag_kernels.export.serving.served import NONE, Reason, Served, name_of, state_at

if TYPE_CHECKING:
    import torch

    from rag_kernels.export.serving.results import Results

INPUT = "input "  # which `name_of` has in front of the numbers of inputs


def returned(found: Results, changed: Sequence[str]) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return which results are the changed tensors, by number and name; and why these are not all that is changed."""
    of = [(number, name_of(path), whole) for number, path, whole in found.same if name_of(path) in changed]
    for _, name, whole in of:
        if not whole:
            return (), f"the module returns a part of {name}, which it changes in place."
    lacking = [name for name in changed if name not in {known for _, known, _ in of}]
    if lacking:
        return (), f"the module changes {', '.join(lacking)} in place, and does not return it: no kernel makes it."
    return tuple((number, name) for number, name, _ in of), found.set_by()


def state_of(changed: Sequence[str]) -> list[str]:
    """Return the paths of what is changed of the module itself."""
    return [name for name in changed if not name.startswith(INPUT)]


def targets(module: Any, leaves: Sequence[Any], changed: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a call that are changed, by their names."""
    return {
        name: leaves[int(name.removeprefix(INPUT))] if name.startswith(INPUT) else state_at(module, name)
        for name in changed
    }


def unlike(changed: Mapping[str, torch.Tensor], served: Served, values: Sequence[Any]) -> Reason:
    """Return why a module would perhaps change something else in a call that is served.

    It may take a copy of strided tensors and change that, and what it reads may be what it has written.
    """
    import torch

    others = [values[i] for i in served.tensors if name_of(served.arguments[i].path) not in changed]
    spans = [_span(tensor) for tensor in others]
    for name, tensor in changed.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
            return Reason(name, f"{name}, which the module changes in place, is not contiguous.")
        if torch.is_grad_enabled() and tensor.requires_grad:
            return Reason(name, f"{name}, which the module changes in place, wants a gradient.")
        first, end = _span(tensor)
        if any(first < other_end and other < end for other, other_end in spans):
            return Reason(name, f"{name}, which the module changes in place, shares its memory with another tensor.")
        spans.append((first, end))
    return NONE


def written_to(changed: Mapping[str, torch.Tensor], places: Sequence[tuple[int, str]], made: Any) -> tuple[Any, Reason]:
    """Copy results to the changed tensors, and return them with these in their places; or why they do not fit."""
    import torch

    results = [made] if isinstance(made, torch.Tensor) else list(made)
    for number, name in places:
        one, other = results[number], changed[name]
        if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            return None, Reason(name, f"{name} is of another shape, dtype or device than what the kernel makes of it.")
    held = [_span(tensor) for tensor in changed.values()]
    for number, result in enumerate(results):  # a composed kernel may return what it was given
        first, end = _span(result)
        if any(first < other_end and other < end for other, other_end in held):
            results[number] = result.clone()
    with torch.no_grad():
        for number, name in places:
            changed[name].copy_(results[number])
            results[number] = changed[name]
    return results[0] if isinstance(made, torch.Tensor) else tuple(results), NONE


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor's memory begins and ends."""
    first = tensor.data_ptr()
    if not tensor.numel():
        return first, first
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (steps + 1) * tensor.element_size()
