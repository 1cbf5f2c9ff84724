"""CUDA for the regions of a function: one `__global__` kernel a region, launched in turn on the current stream.

Comes in: a Function and tuning parameters. Goes out: CUDA text of the kernel contract. Where a region can be taken four
elements at a time it has a second kernel, and sizes and addresses decide at each call. Runs nothing on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rag_kernels.offline.codegen.kernel_function import SHORT, Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Names
from rag_kernels.offline.codegen.math_prelude import called
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.attention.attention import attention_text, of_sixteen_bits
from rag_kernels.offline.cuda.attention.chained import chained_text, multiplies_sixteen_bits
from rag_kernels.offline.cuda.elements.choice import VectorizedRegion, wide_region
from rag_kernels.offline.cuda.elements.joined_points import JoinedPoints, together
from rag_kernels.offline.cuda.elements.multi_block_rows import multi_block_region
from rag_kernels.offline.cuda.fixed_texts import fixed_text
from rag_kernels.offline.cuda.gemm.convolutions.joined_pixels import PixelsJoined, pixels_joined
from rag_kernels.offline.cuda.gemm.products import Product, product_of
from rag_kernels.offline.cuda.kernel_text import KernelText
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.cuda.places.order import order_text
from rag_kernels.offline.cuda.places.scatter import scatter_text
from rag_kernels.offline.cuda.places.segments import segment_text
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion, is_near
from rag_kernels.offline.cuda.scans.column_scans import ColumnScans
from rag_kernels.offline.cuda.scans.recurrence import recurrent_text
from rag_kernels.offline.cuda.scans.tiled_scans import TiledScans, tiled_scans
from rag_kernels.offline.cuda.texts.linker import HEAD
from rag_kernels.offline.fusion.regions import (
    AttentionRegion,
    ChainedRegion,
    OrderRegion,
    RecurrentRegion,
    Region,
    ScatterRegion,
    SegmentRegion,
)
from rag_kernels.offline.graph.training_step import DEAR
from rag_kernels.offline.ir.parameters import c_name

__all__ = ["HEAD", "CudaParameters", "Needs", "constants", "fixed_text", "function_text"]


def constants(p: CudaParameters) -> str:
    """Return the declarations that state the tuning parameters in a source."""
    return (
        f"constexpr int THREADS = {p.threads}, LONG_THREADS = {p.long_threads}, TEAM = {p.team}, VECTOR = {p.vector}, "
        f"TILE = {p.tile}, TENSOR = {p.tensor}, PRODUCTS = {p.products}, FEW = {p.few}, SHAPE = {p.shape}, "
        f"CLUSTERS = {p.clusters}, TURNS = {p.turns}, SHARING = {p.sharing}, "
        f"ATTENTION = {p.attention}, KEYS = {p.keys}, IN_TURN = {p.in_turn}"
        f"{f', SHORT = {p.short}' if p.short != SHORT else ''}"
        f"{f', SAVING = {p.saving}' if p.saving != DEAR else ''};  // tuning parameters\n"
    )


@dataclass
class _Kernels:
    """The kernels of one function. `known` has the names of kernels in the file by what these are but for names.

    A kernel that is like another but for names is not written twice, which saves nvcc minutes in a deep network.
    """

    known: dict[str, str]
    texts: list[str] = field(default_factory=list)

    def add(self, text: list[str]) -> None:
        """Add a kernel that no other is compared with."""
        self.texts.extend([*text, ""])

    def kept(self, text: KernelText) -> str:
        """Return the name of this kernel, or of the one in the file that is like it."""
        other = self.known.setdefault(text.unnamed(), text.name)
        if other == text.name:
            self.add(text.lines())
        return other


def function_text(function: Function, parameters: CudaParameters, known: dict[str, str], needs: Needs) -> str:
    """Return the function's kernels and the host function that launches them.

    `known` is that of the file, see `_Kernels`. Kernels note in `needs` what they call.
    """
    names = Names()
    sizes = Sizes(names)
    sizes.solve(function, short=parameters.short, free=parameters.free_sizes)
    for region in function.regions:
        near = is_near(region, function, parameters)
        near = of_sixteen_bits(region.attended) if isinstance(region, AttentionRegion) else near
        near = multiplies_sixteen_bits(region.chained) if isinstance(region, ChainedRegion) else near
        needs.calls |= called(region.stores.values(), on_gpu(near=near))
    kernels, launches, number = _Kernels(known), list[str](), 0
    memory, done = scratch_texts(function, names), set[int]()
    for group in together(function.regions):
        name = f"{function.name}_{number}"
        launch = _joined_launch(name, group, function, sizes, parameters, kernels) if len(group) > 1 else []
        for place, region in enumerate(() if launch else group, number):
            found = pixels_joined(function, place)
            joined = found and _pixels_joined_launch(place, found, function, sizes, parameters, needs, kernels)
            if found and joined:
                launch += ["{", *indent(joined(*memory.pop(found.pixels))), "}"]
                done.add(place + 1)
            elif place not in done:
                launch += _launch(f"{function.name}_{place}", region, function, sizes, parameters, needs, kernels)
        launches += launch
        number += len(group)
    lines = [f"void {function.name}_kernel({function.parameters('cuda')}) {{"]
    lines += ["  " + d for d in sizes.declarations]
    lines += [f'  RK_CHECK({c}, "this kernel needs {c}");' for c in dict.fromkeys(sizes.checks)]
    lines.append(f"  cudaStream_t stream = (cudaStream_t)rk::stream({c_name(function.outputs[0])});")
    lines += indent([*(take for take, _ in memory.values()), *launches, *(give for _, give in memory.values())])
    return "\n".join([*kernels.texts, *lines, "}", f"RK_EXPORT({function.name}, {function.name}_kernel)", ""])


def scratch_texts(function: Function, names: Names) -> dict[str, tuple[str, str]]:
    """Return by scratch buffer the statements that take its memory, and give it back."""
    return {
        b: (
            f"{ctype}* {c_name(b)}_data = scratch<{ctype}>({total}, stream);",
            f"cudaFreeAsync({c_name(b)}_data, stream);",
        )
        for b, ctype, total in function.scratch_memory(names, "cuda")
    }


def _pixels_joined_launch(
    place: int,
    joined: PixelsJoined,
    function: Function,
    sizes: Sizes,
    parameters: CudaParameters,
    needs: Needs,
    kernels: _Kernels,
) -> Callable[[str, str], list[str]] | None:
    """Write the kernels of a convolution whose pixels are joined: one that stores none, and those of both regions.

    Return what makes the statements that choose and launch, by those that take and give back memory for pixels; None
    where there is no such kernel.
    """
    name, (first, second) = f"{function.name}_{place}", function.regions[place : place + 2]
    one = CudaRegion.of(joined.region, function, sizes, parameters)
    product = product_of(one, function, needs)
    made = product and product.joined(f"{name}_joined", joined)
    plain = product_of(CudaRegion.of(first, function, sizes, parameters), function, needs)
    if not made or not plain:
        return None
    needs.calls |= called(joined.region.stores.values(), on_gpu(near=is_near(joined.region, function, parameters)))
    text, launched, condition = made
    kept = kernels.kept(text)
    tiles, launched_in_tiles = plain.in_tiles(name)
    apart = launched_in_tiles(kernels.kept(tiles))
    apart += _launch(f"{function.name}_{place + 1}", second, function, sizes, parameters, needs, kernels)
    joint = launched(kept)
    return lambda take, give: [built(kept), *choice(condition, joint, [take, *apart, give])]


def _launch(
    name: str,
    region: Region,
    function: Function,
    sizes: Sizes,
    parameters: CudaParameters,
    needs: Needs,
    kernels: _Kernels,
) -> list[str]:
    """Write the kernels of a region, and return the statements that launch them."""
    match region:
        case AttentionRegion():
            text, launch = attention_text(name, region, function, sizes, parameters, needs)
        case ChainedRegion():
            text, launch = chained_text(name, region, function, sizes, parameters, needs)
        case ScatterRegion():
            text, launch = scatter_text(name, region, function, sizes, parameters)
        case SegmentRegion():
            needs.segments = True
            text, launch = segment_text(name, region, function, sizes, parameters)
        case RecurrentRegion():
            needs.recurrence = True
            layer, launched = recurrent_text(name, region, function, sizes, parameters)
            return launched(kernels.kept(layer))
        case OrderRegion():
            text, launch = order_text(name, region, function, sizes, parameters, needs)
        case _:
            return _nest_launch(name, region, function, sizes, parameters, needs, kernels)
    kernels.add(text)
    return launch


def _joined_launch(
    name: str,
    regions: tuple[Region, ...],
    function: Function,
    sizes: Sizes,
    parameters: CudaParameters,
    kernels: _Kernels,
) -> list[str]:
    """Write the kernels of several small nests as one, and return the statements that launch it; none where it cannot
    be: one that takes an element at a time, and one that takes vectors in those nests that can.
    """
    seconds = [wide_region(region, function, sizes, parameters) for region in regions]
    if any(second is not None and type(second) is not VectorizedRegion for second in seconds):
        return []  # its blocks share memory, or a thread takes several elements
    first = [CudaRegion.of(region, function, sizes, parameters) for region in regions]
    wide = [second if isinstance(second, VectorizedRegion) else None for second in seconds]
    vectors = JoinedPoints(tuple(second or one for second, one in zip(wide, first, strict=True)))
    terms = [term for one in wide if one for term in one.conditions()]
    plain = JoinedPoints(tuple(first)).text(name, function) if terms or not any(wide) else None
    printed = vectors.text(f"{name}_wide", function) if any(wide) else None
    if plain is None and (printed is None or terms):
        return []
    launch = plain[1](kernels.kept(plain[0])) if plain else []
    if printed is None:
        return launch
    other = printed[1](kernels.kept(printed[0]))
    return choice(" && ".join(dict.fromkeys(terms)), other, launch) if plain else other


def _nest_launch(
    name: str,
    region: Region,
    function: Function,
    sizes: Sizes,
    parameters: CudaParameters,
    needs: Needs,
    kernels: _Kernels,
) -> list[str]:
    """Write the kernels of a loop nest: the one that serves all sizes, and a faster one for those that it takes.

    Return the statements that choose between them at the sizes of a call, and launch.
    """
    kernel: CudaRegion = CudaRegion.of(region, function, sizes, parameters)
    product = product_of(kernel, function, needs)
    if product:
        return _product_launch(name, product, kernels)
    tiles = tiled_scans(region, function, sizes, parameters, single=True)
    columns = ColumnScans.of(region, function, sizes, parameters)
    kernel = tiles or (columns if columns.serves() else kernel)
    text, launched = kernel.text(name, function)
    launch = launched(kernels.kept(text))
    multi_block = multi_block_region(region, function, sizes, parameters)
    tiles = None if multi_block else tiled_scans(region, function, sizes, parameters, single=False)
    needs.scans |= isinstance(kernel, TiledScans) or tiles is not None
    needs.teams |= multi_block is not None
    whole = multi_block is None or multi_block.has_large_clusters()
    wide = tiles or (wide_region(region, function, sizes, parameters) if whole else None)
    for other_name, other in ((f"{name}_wide", wide), (f"{name}_spread", multi_block)):
        if other:
            text, launched = other.text(other_name, function)
            kept = kernels.kept(text)
            launch = choice(other.condition(kept), launched(kept), launch)
    alone = not wide and not multi_block and len(launch) > 1
    return ["{", *indent(launch), "}"] if alone else launch


def _product_launch(name: str, product: Product, kernels: _Kernels) -> list[str]:
    """Write the kernels of a product: the one that serves all sizes, and a faster one for those that it takes."""
    text, launched = product.in_tiles(name)
    launch = launched(kernels.kept(text))
    if few := product.few_rows(f"{name}_few"):
        text, launched, condition = few
        other = launched(kernels.kept(text))
        return ["{", *indent(choice(condition, other, launch)), "}"]
    if copied := product.on_hopper(f"{name}_tma"):
        text, launched, condition = copied
        kept = kernels.kept(text)
        return ["{", *indent([built(kept), *choice(condition, launched(kept), launch)]), "}"]
    return ["{", *indent(launch), "}"] if len(launch) > 1 else launch


def built(kernel: str) -> str:
    """Return the statement that says whether a kernel was built for the device."""
    return f"const bool built = by_device([] {{ return rk::built_for_hopper((const void*){kernel}); }});"


def choice(condition: str, launch: list[str], otherwise: list[str]) -> list[str]:
    """Return statements that launch one kernel under a C condition, and else another."""
    return [f"if ({condition}) {{", *indent(launch), "} else {", *indent(otherwise), "}"]
