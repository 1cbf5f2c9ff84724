"""The calls that a kernel was judged for: which sizes are free, and which stay as they were.

Comes in: the problem, and the same problem at the other sizes at which the kernel was right. Goes out: a Contract. A
size is free if it differed there; sizes that moved together bear one name, and multiples of another are told as such.
Of several workloads nothing is free that the kernel's own contract has not free. Knows nothing of kernels and
processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rag_kernels.eval.records import Contract, FunctionalProblem, ServedTensor, TensorSpec

_NAMES = "NMKLPQRSTUVW"
_MOST_PARTS = 32  # a network of five strides of two
_Sizes = tuple[int, ...]  # what one dimension was, at each of the sizes


def contract(fp: FunctionalProblem, others: Sequence[FunctionalProblem], *, any_alignment: bool) -> Contract:
    """Return what was shown: `others` are the sizes at which the kernel was right besides the problem's own."""
    alike = [o for o in others if [a.name for a in o.tensors] == [a.name for a in fp.tensors]]
    sizes = [fp, *alike]
    shapes = [_sizes([p.tensors[i].spec.shape for p in sizes]) for i in range(len(fp.tensors))]
    made = [_sizes([p.outputs[i].shape for p in sizes]) for i in range(len(fp.outputs))]
    names = _named(size for shape in shapes for size in shape)
    served = tuple(
        ServedTensor(a.name, a.spec.dtype, tuple(_told(size, names) for size in shape))
        for a, shape in zip(fp.tensors, shapes, strict=True)
    )
    constants = [name for name, value in fp.constants if any(dict(o.constants).get(name) != value for o in alike)]
    outputs = tuple(tuple(_of_inputs(size, names) for size in shape) for shape in made)
    return Contract(served, tuple(constants), "element" if any_alignment else "allocation", outputs)


def joint_contract(
    fp: FunctionalProblem, own: Contract | None, others: Sequence[FunctionalProblem], *, any_alignment: bool
) -> Contract:
    """Return the contract of a kernel that was judged at several workloads: its own one at the sizes of `fp` where that
    takes the others too, else these very sizes: that a kernel is right at a few says nothing of those between.
    """
    if own is not None and all(_values(own, other) is not None for other in others):
        return replace(own, alignment="element" if any_alignment else "allocation")
    shown = contract(fp, others, any_alignment=any_alignment)
    judged = [tuple(values.items()) for p in (fp, *others) if (values := _values(shown, p))]
    return replace(shown, only=tuple(dict.fromkeys(judged)))


def takes(held: Contract, specs: Sequence[TensorSpec]) -> bool:
    """Return whether a contract is for tensors of these ranks, dtypes and sizes, in its order."""
    values = _free_in(held, specs)
    return values is not None and (not held.only or tuple(values.items()) in held.only)


def _values(held: Contract, fp: FunctionalProblem) -> dict[str, int] | None:
    """Return what the free sizes of a contract are in a problem; None where it does not take these sizes."""
    same = [t.name for t in held.tensors] == [a.name for a in fp.tensors]
    return _free_in(held, [a.spec for a in fp.tensors]) if same else None


def _free_in(held: Contract, specs: Sequence[TensorSpec]) -> dict[str, int] | None:
    values: dict[str, int] = {}
    if [(t.dtype, len(t.shape)) for t in held.tensors] != [(spec.dtype, len(spec.shape)) for spec in specs]:
        return None
    for tensor, spec in zip(held.tensors, specs, strict=True):
        for told, size in zip(tensor.shape, spec.shape, strict=True):
            factor, _, name = told.rpartition("*")
            one = int(name) if name.isdigit() else values.setdefault(name, size // int(factor or 1))
            if size != int(factor or 1) * one:
                return None
    return values


def _sizes(shapes: Sequence[Sequence[int]]) -> list[_Sizes]:
    return list(zip(*shapes, strict=True))


def _named(sizes: Iterator[_Sizes]) -> dict[_Sizes, str]:
    """Name the free sizes; one that is a multiple of an earlier, smaller one is named by it."""
    free = sorted({size for size in sizes if len(set(size)) > 1})
    names: dict[_Sizes, str] = {}
    letters = iter([*_NAMES, *(f"N{i}" for i in range(len(free)))])
    for size in free:
        base = next((b for b in names if names[b].isalnum() and _multiple(size, b)), None)
        names[size] = f"{_multiple(size, base)}*{names[base]}" if base else next(letters)
    return names


def _multiple(size: _Sizes, of: _Sizes) -> int:
    """Return by what one size is a multiple of another everywhere, or 0."""
    factor = size[0] // of[0] if of[0] else 0
    return factor if all(a == factor * b for a, b in zip(size, of, strict=True)) else 0


def _of_inputs(size: _Sizes, names: dict[_Sizes, str]) -> str:
    """Return an output's size by the names of the arguments' sizes: as one of them, a multiple, so many more or less
    ("2*N-1"), or a part of that ("(N+1)//2"); "?" where it is none of these.
    """
    found = names.get(size) or (str(size[0]) if len(set(size)) == 1 else None)
    free = [(base, name) for base, name in names.items() if name.isalnum()]
    multiples = (f"{factor}*{name}" for base, name in free if (factor := _multiple(size, base)))
    if told := found or next(multiples, "") or next(filter(None, (_linear(size, *one) for one in free)), ""):
        return told
    parts = [text for one in free for text in _parts(size, *one)]
    return parts[0] if len(parts) == 1 else "?"


def _linear(size: _Sizes, base: _Sizes, name: str) -> str:
    """Return how a size grows with another: the same factor everywhere, and a number; "" where it does not."""
    steps = [(n - size[0], m - base[0]) for n, m in zip(size, base, strict=True)]
    factor = next((n // m for n, m in steps if m), 0)
    if factor < 1 or any(n != factor * m for n, m in steps):
        return ""
    more = size[0] - factor * base[0]
    return f"{f'{factor}*' if factor > 1 else ''}{name}{more:+d}"


def _parts(size: _Sizes, base: _Sizes, name: str) -> list[str]:
    """Return as which parts of another a size can be read, rounded down: what windows with a stride leave of an axis.

    There are several where the sizes that were seen leave a choice, as of even ones alone.
    """
    return [
        f"({name}{more:+d})//{divisor}" if more else f"{name}//{divisor}"
        for divisor in range(2, _MOST_PARTS + 1)
        for more in range(max(divisor * n - m for n, m in zip(size, base, strict=True)), _above(size, base, divisor))
    ]


def _above(size: _Sizes, base: _Sizes, divisor: int) -> int:
    """Return from which number on a part would be more than its size somewhere."""
    return min(divisor * (n + 1) - m for n, m in zip(size, base, strict=True))


def _told(size: _Sizes, names: dict[_Sizes, str]) -> str:
    return names.get(size) or str(size[0])


def contract_line(told: Contract) -> str:
    """Return a contract as a line: `x[N, 1024] float32, weight[1024] float32; N > 0; contiguous, at any alignment`."""
    tensors = ", ".join(f"{t.name}[{', '.join(t.shape)}] {t.dtype}" for t in told.tensors)
    sizes = dict.fromkeys(size.rpartition("*")[2] for t in told.tensors for size in t.shape if not size.isdigit())
    above = f"; {', '.join(sizes)} > 0" if sizes and not told.only else ""
    moved = f"; {', '.join(told.following)} follow the sizes" if told.following else ""
    where = "at any alignment" if told.alignment == "element" else "aligned as PyTorch allocates"
    judged = " or ".join(", ".join(f"{name}={size}" for name, size in values) for values in told.only)
    shown = f"; {judged} alone" if judged else ""
    exported = "" if not sizes or portable(told) else "; as a module or package at its own sizes alone"
    return f"{tensors}{above}{moved}; contiguous, {where}{shown}{exported}"


def portable(told: Contract) -> bool:
    """Return whether a module can serve the free sizes: it makes the outputs, so that their sizes must be known."""
    named = any(not size.isdigit() for tensor in told.tensors for size in tensor.shape)
    known = bool(told.outputs) and not any("?" in shape for shape in told.outputs)
    return named and known and not told.following
