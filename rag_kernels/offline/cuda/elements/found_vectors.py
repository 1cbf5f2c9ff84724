"""Which loads and stores of a region are taken as vectors, and how many elements these have.

Comes in: a region. Goes out: a `VectorizedRegion` that knows its vectors, or None. Knows nothing of texts.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.statements import loaded_text
from rag_kernels.offline.cuda.elements.neighbours import axis_of, is_of_row, is_step, neighbours, widest
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.reduce_loops import SCANNED
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE

MOST_WORDS = 256  # of the vectors of a thread without a loop: what unrolled steps load and store would not fit


def vectorized_region(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> VectorizedRegion | None:
    """Return the vectorized kernel of a region, or None where nothing can be taken four at a time."""
    if parameters.vector == 1:
        return None
    found = VectorizedRegion.of(region, function, sizes, parameters)
    if found.nest.schedule == "column":
        return None
    found.width, found.shortens = width_of(found), True
    while found.nest.schedule == "point" and words_of(found) > MOST_WORDS and found.width > 1:
        found.width //= 2
    return found if found.width > 1 and find_quads(found) else None


def words_of(found: VectorizedRegion) -> int:
    """Return the registers of the vectors that a thread would have in flight: all that it loads, and all it stores."""
    storage = found.printer.storage
    buffers = [*found.nest.stores, *(v.buffer for v in found.nest.accesses)]
    return sum(-(-found.width * ITEMSIZE.get(storage[b], 4) // 4) for b in buffers)


def width_of(found: VectorizedRegion) -> int:
    """Return how many elements to take together: sixteen bytes of the narrowest tensor, or less where rows want it."""
    if found.has_scan():
        return SCANNED
    axis = axis_of(found.nest)
    width = widest(narrowest(found, axis)) if axis else SCANNED
    while axis and width > 4 and axis.count % width:
        width //= 2
    return width


def narrowest(found: VectorizedRegion, axis: Loop) -> int:
    """Return the bytes of the narrowest elements that lie along the axis, those of one byte left out beside others."""
    accesses = [*found.nest.stores.values(), *found.nest.accesses.values()]
    names = [*found.nest.stores, *(v.buffer for v in found.nest.accesses)]
    steps = zip(names, accesses, strict=True)
    sizes = [ITEMSIZE.get(found.printer.storage[b], 4) for b, a in steps if is_step(a, axis)]
    truths = any(v.storage == "bool" for v in found.nest.accesses)  # loaded one by one: by few elements of a thread
    return min((size for size in sizes if size > 1), default=1 if sizes and not truths else 4)


def find_quads(found: VectorizedRegion) -> bool:
    """Record the loads and stores that can be taken `width` at a time, and return whether there are any."""
    nest, width, storage = found.nest, found.width, found.printer.storage
    axis = axis_of(nest)
    if axis is None or axis.count % width:
        return False
    found.axis = axis
    for buffer, access in nest.stores.items():
        if storage[buffer] in ITEMSIZE and neighbours(access, axis, nest, width):
            found.targets[buffer] = found.name_of(buffer, access)
    for v in ir.walk(*nest.region.stores.values()):
        plain = isinstance(v, ir.Load) and v.storage in ITEMSIZE.keys() - (set() if found.truths else {"bool"})
        if isinstance(v, ir.Load) and plain and neighbours(nest.accesses[v], axis, nest, width):
            if nest.accesses[v].values and not (found.gathers and v.storage != "bool"):
                continue
            if places := nest.accesses[v].values:
                steady = all(is_of_row(place, nest) for place, _ in places)
                if not steady and found.has_scan():
                    continue
                known = found.gathered if steady else found.followed
                known[v] = found.names[v] = found.name_of(v.buffer, nest.accesses[v])
                continue
            text = loaded_text(found.printer.pointers[v.buffer], nest.offset(nest.accesses[v]) or "0", v.dtype)
            if text not in found.loads:
                name = found.loads[text] = found.name_of(v.buffer, nest.accesses[v])
                if v.storage == "bool":
                    found.vectors[name] = replace(found.vectors[name], ctype="uint8_t", truths=True)
            found.names[v] = found.loads[text]
    return bool(found.loads or found.targets or found.gathered or found.followed)
