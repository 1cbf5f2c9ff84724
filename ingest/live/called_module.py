"""From calls of a live module to a Problem: any arguments, and sizes that differ between calls as named sizes.

Comes in: an `nn.Module` and the calls that it gets, each with how often it comes. Goes out: a Problem's text, whose
`get_workloads()` lists the sizes of these calls where they differ. Arguments that are no tensors are constants of the
graph; nested ones are taken apart. Runs the module's forward to trace it: only for processes that run the user's code.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval.records import ProblemError
from rag_kernels.ingest.live.live_module import Drawn, refuse_changes, source_of

Place = tuple[int, int]  # which tensor of a call, and which dimension of it


@dataclass(slots=True)
class Call:
    """One way in which a module is called: the arguments of the first such call, and how many there were."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    count: int = 1

    def leaves(self) -> list[Any]:
        """Return all arguments, nested ones taken apart."""
        return pytree.tree_leaves((self.args, dict(self.kwargs)))

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the arguments."""
        return [leaf for leaf in self.leaves() if isinstance(leaf, torch.Tensor)]

    def kind(self) -> str:
        """Return what must be alike for calls to be one problem: constants, dtypes, ranks, the order of memory."""
        spec = pytree.tree_structure((self.args, dict(self.kwargs)))
        told = [(x.dtype, x.dim(), order_of(x)) if isinstance(x, torch.Tensor) else repr(x) for x in self.leaves()]
        return f"{spec} {told}"


@dataclass(frozen=True, slots=True)
class Made:
    """A problem's text, and what was left out of it."""

    source: str
    notes: tuple[str, ...] = field(default=())


class Called(torch.nn.Module):
    """The module as a function of the tensors of a call alone; returns the tensors of what it returns."""

    def __init__(self, module: torch.nn.Module, call: Call) -> None:
        super().__init__()
        self.module = module
        self.given, self.structure = pytree.tree_flatten((call.args, dict(call.kwargs)))
        self.given = [None if isinstance(x, torch.Tensor) else x for x in self.given]
        self.places = [i for i, x in enumerate(call.leaves()) if isinstance(x, torch.Tensor)]
        self.train(module.training)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = list(self.given)
        for place, tensor in zip(self.places, tensors, strict=True):
            given[place] = tensor
        args, kwargs = pytree.tree_unflatten(given, self.structure)
        found = self.module(*args, **kwargs)
        found = found.to_tuple() if hasattr(found, "to_tuple") else found
        return tuple(x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor))


def problem_of_calls(module: torch.nn.Module, calls: Sequence[Call], name: str) -> Made:
    """Return the problem that a module is for these calls; the most frequent one's sizes are the problem's.

    Raises ProblemError where the module cannot be traced.
    """
    kinds: Counter[str] = Counter()
    for call in calls:
        kinds[call.kind()] += call.count
    kind, most = kinds.most_common(1)[0]
    alike = sorted((c for c in calls if c.kind() == kind), key=lambda c: -c.count)
    if not alike[0].tensors():
        raise ProblemError(f"{name} is called without a tensor: there is nothing to compute from.")
    refuse_changes(name, Called(module, alike[0]), alike[0].tensors(), prefix="module.")
    left = kinds.total() - most
    notes = [f"{left} calls with other constants, dtypes, ranks or layouts are left out"] if left else []
    names = argument_names(module, alike[0])
    free = free_sizes(alike, names)
    if free:
        try:
            return Made(named(source_of_sizes(module, alike, name, free), names), tuple(notes))
        except ProblemError as error:
            told = not_free(str(error.__cause__), free, names) or f"other sizes cannot be traced: {error}".rstrip(".")
            notes.append(f"only the most frequent call is kept, since {told}")
    drawn = [Drawn(layout=order_of(x)) for x in alike[0].tensors()]
    source = source_of(name, Called(module, alike[0]), alike[0].tensors(), drawn=drawn, prefix="module.")
    return Made(named(source, names), tuple(notes))


def not_free(said: str, free: Mapping[Place, str], names: Sequence[str]) -> str:
    """Return which sizes torch.export says cannot be free, by input and dimension, and what is to be done; or ""."""
    found = []
    for dim, size in dimensions(free).items():
        if not re.search(rf"Constraints violated \([^)]*\b{dim}\b", said):
            continue
        places = " and ".join(f"size {d} of {names[i]}" for (i, d), known in free.items() if known == size)
        fixed = re.search(rf"You marked {dim} as dynamic but your code specialized it to be a constant \((\d+)\)", said)
        least, most = (re.search(rf"\b{dim} = Dim\('{dim}'.*?\b{which}=(\d+)", said) for which in ("min", "max"))
        bounds = [f"{bound[1]} or {word}" for bound, word in ((least, "more"), (most, "less")) if bound]
        takes = fixed[1] if fixed else " and ".join(bounds)
        found.append(f"{places} cannot be free{takes and f' (the forward was traced for {takes} alone)'}")
    return f"{'; '.join(found)}: give calls that agree there" if found else ""


def dimensions(free: Mapping[Place, str]) -> dict[str, str]:
    """Return the names of free sizes by what torch.export knows them as."""
    return {f"d{i}": size for i, size in enumerate(dict.fromkeys(free.values()))}


def named(source: str, names: Sequence[str]) -> str:
    """Return the text with its inputs under the names of the module's arguments, where these are not taken."""
    for i, name in enumerate(names):
        if not re.search(rf"\b{name}\b", source):
            source = re.sub(rf"\btensors_{i}\b", name, source)
    return source


def source_of_sizes(module: torch.nn.Module, calls: Sequence[Call], name: str, free: Mapping[Place, str]) -> str:
    """Return the text of a problem with named sizes, and the calls as its workloads.

    It is traced at the call whose named sizes are largest: a size of one is taken for a constant.
    """
    largest = max(calls, key=lambda call: sizes_of(call, free)[1])
    dims = {size: torch.export.Dim(dim) for dim, size in dimensions(free).items()}
    shapes = tuple(
        {d: dims[free[i, d]] for d in range(x.dim()) if (i, d) in free} for i, x in enumerate(largest.tensors())
    )
    drawn = [
        Drawn(tuple(free.get((i, d), str(n)) for d, n in enumerate(x.shape)), order_of(x))
        for i, x in enumerate(calls[0].tensors())
    ]
    body = source_of(
        name, Called(module, largest), largest.tensors(), drawn=drawn, prefix="module.", free_sizes=(shapes,)
    )
    heads = "".join(f"{size} = {value}\n" for size, value in sizes_of(calls[0], free)[0].items())
    rows = "\n".join(f"        {sizes_of(call, free)[0] | {'weight': call.count}!r}," for call in calls)
    head, mark, rest = body.partition("\n\n\ndef graph(")
    return f"{head}\n\n{heads.rstrip()}{mark}{rest}\n\ndef get_workloads():\n    return [\n{rows}\n    ]\n"


def sizes_of(call: Call, free: Mapping[Place, str]) -> tuple[dict[str, int], int]:
    """Return a call's named sizes, and the least of them, by which the call to trace at is chosen."""
    tensors = call.tensors()
    sizes = {size: int(tensors[i].shape[d]) for (i, d), size in free.items()}
    return sizes, min(sizes.values())


def free_sizes(calls: Sequence[Call], names: Sequence[str]) -> dict[Place, str]:
    """Return a name for each dimension that differs between calls: those that always agree have one name."""
    columns: dict[Place, tuple[int, ...]] = {}
    for i, tensor in enumerate(calls[0].tensors()):
        for d in range(tensor.dim()):
            columns[i, d] = tuple(int(call.tensors()[i].shape[d]) for call in calls)
    known: dict[tuple[int, ...], str] = {}
    found: dict[Place, str] = {}
    for (i, d), column in columns.items():
        if len(set(column)) > 1:
            found[i, d] = known.setdefault(column, f"{names[i]}_{d}".upper())
    return found


def argument_names(module: torch.nn.Module, call: Call) -> list[str]:
    """Return a name for each tensor of a call: that of forward's argument, numbered where it holds several."""
    bound = inspect.signature(module.forward).bind(*call.args, **call.kwargs)
    names: list[str] = []
    for name, value in bound.arguments.items():
        held = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
        names += [name if len(held) == 1 else f"{name}_{i}" for i in range(len(held))]
    names = [re.sub(r"\W", "_", name) for name in names]
    return names if len(names) == len(call.tensors()) else [f"x{i}" for i in range(len(call.tensors()))]


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a dense tensor from the outermost in memory; none for one that is contiguous.

    A tensor with gaps, or whose elements lie on each other, is drawn contiguous.
    """
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda d: -strides[d]))
    dense = tensor.permute(order).is_contiguous()
    return order if dense and not tensor.is_contiguous() else ()
