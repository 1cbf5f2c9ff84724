"""A region that is a product (a matrix product, a convolution), in the ways in which its kernels compute it.

Comes in: the printer of a region of a Function. Goes out: kernels in tiles, for few rows, and for Hopper's copy engine,
each with its launch and the C condition under which it may run. How each computes stands in `gemm/`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from rag_kernels.offline.codegen.contraction import Contraction, find_contraction
from rag_kernels.offline.codegen.kernel_function import Function
from rag_kernels.offline.codegen.loop_nest import store_access
from rag_kernels.offline.codegen.statements import Printer
from rag_kernels.offline.cuda.gemm.convolutions.joined_pixels import PixelsJoined
from rag_kernels.offline.cuda.gemm.convolutions.pixel_sums import with_filters_joined, with_pixels_joined
from rag_kernels.offline.cuda.gemm.convolutions.pixels import PixelKernel, convolution_kernel
from rag_kernels.offline.cuda.gemm.convolutions.window import by_images
from rag_kernels.offline.cuda.gemm.few_rows import few_rows_kernel
from rag_kernels.offline.cuda.gemm.gemm import Kernel
from rag_kernels.offline.cuda.gemm.hopper.choice import wgmma_kernel
from rag_kernels.offline.cuda.gemm.hopper.groups import GroupsKernel
from rag_kernels.offline.cuda.gemm.hopper.wgmma import WgmmaKernel
from rag_kernels.offline.cuda.gemm.tensor_core import TensorKernel, numbers_of, serves
from rag_kernels.offline.cuda.kernel_text import KernelText, arguments_of, constexprs
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.cuda.region import CudaRegion, Launch
from rag_kernels.offline.ir.parameters import c_name

FEW_RESULTS, DEEP = 1 << 13, 128  # of a product whose results are rows of their own, and how deep these are


def of_few_results(product: Contraction) -> bool:
    """Return whether a product has so few results, of so many terms, that a tile of them would leave a device idle."""
    results = product.count(product.batches) * product.count(product.rows) * product.count(product.columns)
    return results <= FEW_RESULTS and product.count(product.depth) >= DEEP and not serves(product)


@dataclass(frozen=True, slots=True)
class Product:
    """A region that is a product; its kernels note in `needs` what they call."""

    region: CudaRegion
    found: Contraction
    function: Function
    needs: Needs

    def in_tiles(self, name: str) -> tuple[KernelText, Launch]:
        """Return the kernel in tiles, which serves all sizes, and its launch."""
        kernel = self.kernel()
        text, arguments, widths, _ = self.printed(kernel, name)
        checks = self.fits_indices(kernel)
        return text, partial(kernel.launch, arguments=arguments, checks=checks, widths=widths)

    def few_rows(self, name: str) -> tuple[KernelText, Launch, str] | None:
        """Return the kernel for few rows, its launch, and the C condition under which it may run."""
        made = few_rows_kernel(self.kernel(), self.region.parameters.few)
        if not made:
            return None
        text, arguments, _, pointers = self.printed(made, name)
        conditions = [*self.fits_indices(made), made.condition(pointers)]
        return text, partial(made.few_launch, arguments=arguments), " && ".join(conditions)

    def on_hopper(self, name: str) -> tuple[KernelText, Launch, str] | None:
        """Return the kernel for Hopper's copy engine, its launch, and the C condition under which it may run."""
        kernel, p = self.kernel(), self.region.parameters
        wanted = (p.shape, p.clusters, p.turns)
        if not isinstance(kernel, TensorKernel):
            return None
        apart, of = by_images(kernel), GroupsKernel if self.found.grouped else WgmmaKernel
        made = wgmma_kernel(kernel, wanted, of) or (wgmma_kernel(apart, wanted, of) if apart else None)
        made = made or (None if self.found.grouped else convolution_kernel(kernel, wanted))
        return self.fed(made, name) if made else None

    def joined(self, name: str, wanted: PixelsJoined) -> tuple[KernelText, Launch, str] | None:
        """Return the kernel that joins pixels or filters, of which its region stores what each is made to."""
        kernel, p = self.kernel(), self.region.parameters
        made = isinstance(kernel, TensorKernel) and convolution_kernel(kernel, (p.shape, p.clusters, p.turns))
        if not isinstance(made, PixelKernel):
            return None
        stores = {b: store_access(wanted.sums, b, self.found.nest.names) for b in wanted.kinds}
        both = (
            with_filters_joined(made, wanted.kinds, stores)
            if wanted.of_filters
            else with_pixels_joined(made, wanted.kinds)
        )
        return self.fed(both, name) if both else None

    def fed(self, made: WgmmaKernel, name: str) -> tuple[KernelText, Launch, str]:
        """Return a kernel that the copy engine feeds, its launch, and the C condition under which it may run."""
        text, arguments, widths, pointers = self.printed(made, name)
        conditions = [*self.fits_indices(made), made.condition(pointers)]
        launch = partial(made.hopper_launch, arguments=arguments, widths=widths, pointers=pointers)
        return text, launch, " && ".join(["built", *conditions])

    def kernel(self) -> Kernel:
        """Return the kernel in tiles."""
        found, p, of = self.found, self.region.parameters, self.region.printer
        small = all(math.prod(self.function.specs[b].shape) <= 1 << 31 for b in self.region.buffers())
        printer = Printer(found.nest, of.pointers, of.storage, of.form, "uint32_t" if small else "uint64_t")
        kind = "int" if small else "int64_t"
        numbers = numbers_of(found, tf32=p.tensor == 2)
        if serves(found) and (p.tensor or numbers):
            return TensorKernel(found, printer, kind, p.tile, numbers=numbers)
        return Kernel(found, printer, kind, p.tile)

    def fits_indices(self, kernel: Kernel) -> list[str]:
        """Return the C conditions under which the kernel's indices reach all elements."""
        known = sorted(self.region.buffers() - set(self.function.scratch)) if kernel.kind == "int" else []
        return [f"{c_name(b)}.numel() <= (int64_t(1) << 31)" for b in known]

    def printed(self, kernel: Kernel, name: str) -> tuple[KernelText, list[str], dict[str, str], dict[str, str]]:
        """Return a kernel, its arguments, its conditions, and the C pointers of its buffers."""
        kernel.note(self.needs)
        body, scratch = kernel.body(), self.function.scratch
        parameters = self.region.parameters_of(body, self.function, kernel.kind)
        constants = self.region.constants_in(body)
        body = [*constexprs(constants, kernel.kind), *body]
        data = {b: f"{c_name(b)}_data" if b in scratch else f"{c_name(b)}.data" for b in self.region.buffers()}
        widths = kernel.widths(data)
        text = replace(kernel.text(name, parameters, body, widths), constants=tuple(constants))
        return text, arguments_of(parameters), widths, data


def product_of(region: CudaRegion, function: Function, needs: Needs) -> Product | None:
    """Return a region as a product, or None if it is none."""
    found = find_contraction(region.nest.region, region.nest.names)
    if found is None or (region.nest.schedule == "row" and of_few_results(found)):
        return None
    return Product(region, found, function, needs)
