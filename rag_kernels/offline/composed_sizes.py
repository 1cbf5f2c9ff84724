"""Sizes in the Python of a composed candidate: told by tensors that are at hand, so that it serves other sizes too.

Comes in: a generated function, whose loops tell which sizes hang together, or a reshape that the library keeps. Goes
out: Python expressions of shapes. What no tensor tells is a number of this problem. Knows nothing of C++.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from rag_kernels.eval.records import FunctionalProblem, Node, TensorSpec
from rag_kernels.offline.codegen.kernel_function import Function
from rag_kernels.offline.fusion.regions import dims_stored, loads_of, loops_read_back
from rag_kernels.offline.ir import values as ir

Told = dict[ir.Atom, str]


def shapes_made(function: Function) -> dict[str, str]:
    """Return the shape of each output as Python, by the shapes of inputs."""
    told = _sizes_told(function)
    made: dict[str, str] = {}
    for region in function.regions:
        for buffer in region.stores:
            if buffer in function.outputs:
                made.setdefault(buffer, _shape(region.dims(buffer), told, function.specs))
    return made


def hold_untold(function: Function) -> None:
    """Make numbers of the sizes from which a slice is taken whose length follows sizes that no input tells.

    Its length is a number of the Python that makes room for it, right at these sizes alone.
    """
    told = _sizes_told(function)
    made = [group for region in function.regions for buffer in region.stores for group in region.dims(buffer)]
    for leaf in (leaf for group in made for leaf in ir.leaves(group) if leaf not in told):
        ir.hold(part.group for _, part in ir.slices(leaf) if part.grows)


def _sizes_told(function: Function) -> Told:
    """Return what each loop's size is by the shapes of inputs, as far as these tell."""
    loads = [v for region in function.regions for v in loads_of(region)]
    written = dims_stored(function.regions)
    pending = [
        (f"{v.buffer}.shape[{d}]", ir.leaves(group))
        for v in loads
        if v.buffer in function.inputs
        for d, group in enumerate(v.stored)
    ]
    read_back = [pair for v in loads for pair in loops_read_back(v, written)]
    between = [(ir.leaves(one), ir.leaves(other)) for one, other in read_back]
    stored = [group for region in function.regions for buffer in region.stores for group in region.dims(buffer)]
    tied = [leaf for group in stored for leaf in ir.leaves(group) if leaf.along]
    told: Told = {leaf: str(leaf.size) for _, group in pending for leaf in group if leaf.fixed}
    before = -1
    while len(told) > before:
        before = len(told)
        equal = [(_product(one, told), other) for one, other in (*between, *(pair[::-1] for pair in between))]
        equal += [(_steps(leaf.along, told), (leaf,)) for leaf in tied if leaf.along]
        for text, group in (*pending, *((text, group) for text, group in equal if text)):
            unknown = [leaf for leaf in group if leaf not in told]
            if len(unknown) == 1:
                rest = _product([leaf for leaf in group if leaf is not unknown[0]], told)
                told[unknown[0]] = _quotient(text, rest)
        if len(told) == before:
            told |= _parted_alike(between, told)
    return told


def _parted_alike(between: Sequence[tuple[Sequence[ir.Atom], Sequence[ir.Atom]]], told: Told) -> Told:
    """Return the parts of a dimension that is read in as many parts, of the same sizes, as it was stored in."""
    for one, other in (*between, *(pair[::-1] for pair in between)):
        alike = [leaf.size for leaf in one] == [leaf.size for leaf in other] and told.keys() >= {*one}
        new = {leaf: told[same] for leaf, same in zip(other, one, strict=True) if leaf not in told} if alike else {}
        if new:
            return new
    return {}


def _quotient(text: str, divisor: str) -> str:
    """Return a size divided by another, as a number where both are."""
    if text.isdigit() and divisor.isdigit():
        return str(int(text) // int(divisor))
    return text if divisor == "1" else f"{text} // ({divisor})"


def _steps(along: ir.Along, told: Told) -> str:
    """Return the number of steps of a loop that runs along groups; "" where it is not told."""
    sizes = [_product(ir.leaves(group), told) for group in along.groups]
    return along.text(sizes, "//") if all(sizes) else ""


def _product(group: Sequence[ir.Atom], told: Told) -> str:
    """Return how many elements a group has; "" where that is not told."""
    if not all(leaf in told or leaf.fixed for leaf in group):
        return ""
    sizes = [told.get(leaf, str(leaf.size)) for leaf in group]
    number = prod(int(text) for text in sizes if text.isdigit())
    compound = [text for text in sizes if not text.isdigit()]
    texts = [f"({text})" if " " in text and len(sizes) > 1 else text for text in compound]
    return " * ".join([*([str(number)] if number != 1 or not texts else []), *texts])


def _shape(dims: Sequence[ir.Group], told: Told, specs: Mapping[str, TensorSpec]) -> str:
    """Return a shape: that of another tensor where it is the very one."""
    texts = [_product(ir.leaves(group), told) or str(ir.size_of(group)) for group in dims]
    for name in dict.fromkeys(text.partition(".shape")[0] for text in texts if not text.isdigit()):
        own = (
            [f"{name}.shape[{d}]" if n != 1 else "1" for d, n in enumerate(specs[name].shape)] if name in specs else []
        )
        if own == texts:
            return f"{name}.shape"
    return f"[{', '.join(texts)}]"


def shape_told(node: Node, fp: FunctionalProblem) -> str:
    """Return the shape that a reshape makes by those of arguments, as far as it follows them; "" where none does."""
    texts = next((made.texts for made in fp.shapes if made.node == node.name), ())
    at_hand = {argument.name for argument in fp.arguments}
    shape = node.outputs[0].shape
    read = [{before.split()[-1] for before in text.split(".shape")[:-1]} for text in texts]
    known = [text if names <= at_hand else "" for text, names in zip(texts, read, strict=True)]
    follow = len(known) == len(shape) and any(text and not text.isdigit() for text in known)
    return f"[{', '.join(text or str(n) for text, n in zip(known, shape, strict=True))}]" if follow else ""


def reshaped(name: str, before: Sequence[int], after: Sequence[int], asked: Sequence[object]) -> str:
    """Return the shape that a tensor of this name is given, by its own: dimensions that stay or merge follow it.

    Of a dimension that is split the outermost part does. `asked` has a -1 where PyTorch finds the size itself.
    """
    texts, i, j = list[str](), 0, 0
    while j < len(after):
        if after[j] == 1:
            texts, j = [*texts, "1"], j + 1
            continue
        first, start = i, j
        i, j = i + 1, j + 1
        while i <= len(before) and prod(before[first:i]) != prod(after[start:j]):
            if prod(before[first:i]) < prod(after[start:j]):
                i += 1
            else:
                j += 1
            if j > len(after):
                break
        if i > len(before) or j > len(after):
            return _numbers(asked)
        texts += _part(name, [d for d in range(first, i) if before[d] != 1], after[start:j], asked[start:j])
    return f"[{', '.join(texts)}]"


def _part(name: str, from_: Sequence[int], to: Sequence[int], asked: Sequence[object]) -> list[str]:
    """Return dimensions that hold the elements of so many dimensions before."""
    size = " * ".join(f"{name}.shape[{d}]" for d in from_)
    if len(to) == 1:
        return ["-1" if asked[0] == -1 else size]
    if len(from_) > 1 or -1 in asked:
        return [str(n) for n in asked]
    return [f"{size} // {prod(to[1:])}", *map(str, to[1:])]


def _numbers(asked: Sequence[object]) -> str:
    return f"[{', '.join(map(str, asked))}]"
