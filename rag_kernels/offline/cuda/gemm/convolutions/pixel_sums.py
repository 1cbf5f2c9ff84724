"""Convolutions of which what all pixels of a filter, or all filters of a pixel, come to is stored in place of them.

Comes in: a kernel of `pixels.py`, whose stores are what each pixel is made to, and how these are joined. Goes out:
another kernel for it. Of pixels two lanes of a warp go through those that it has of a filter, and store what these come
to; a kernel behind it joins that for each image, always in the same order. Of filters, all of which are in a tile, a
lane goes through those of a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from rag_kernels.offline.codegen.loop_nest import Access
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm.convolutions import pixels_text
from rag_kernels.offline.cuda.gemm.convolutions.pixels import HIGH, PixelKernel
from rag_kernels.offline.cuda.kernel_text import Parameter
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.ir.reductions import Kind


@dataclass(slots=True)
class JoinedKernel(PixelKernel):
    """A kernel for a convolution that stores what pixels or filters come to."""

    kinds: dict[str, Kind] = field(default_factory=dict)  # how they are joined, by buffer

    def widths(self, pointers: dict[str, str]) -> dict[str, str]:
        return {}

    @property
    def starts(self) -> str:
        """Return the declarators, or assignments, by which a lane begins anew, as C."""
        return ", ".join(f"total{n} = {start_of(kind, 'float32')}" for n, kind in enumerate(self.kinds.values()))

    def strips(self) -> str:
        return f"float {self.starts};\n{PixelKernel.strips(self)}"

    def of_pixel(self, leave: str) -> list[str]:
        """Return the statements that say which pixel a column is, and leave one that is none."""
        inside = self.inside()
        columns = self.contraction.unflatten(self.contraction.columns, "column", self.kind)
        return [*columns, *([f"if (!({inside})) {leave};"] if inside else [])]

    def joining(self, scope: Scope) -> list[str]:
        """Return the statements by which what a pixel is made to joins the others."""
        scope.known[self.contraction.total] = "sum"
        values = {b: self.printer.emit(v, scope) for b, v in self.contraction.nest.region.stores.items()}
        texts = [(C[kind].step_of_floats or C[kind].step, values[b]) for b, kind in self.kinds.items()]
        return [*scope.lines, *(text.format(a=f"total{n}", v=value) for n, (text, value) in enumerate(texts))]

    def filled(self, text: str, parts: dict[str, tuple[list[str], int]]) -> list[str]:
        """Return a text with statements in place of names, each so deep."""
        text = text.replace("STARTS", self.starts)
        for name, (lines, deep) in parts.items():
            made = lines
            for _ in range(deep):
                made = indent(made)
            text = text.replace(f"{name}\n", "".join(f"{line}\n" for line in made))
        return text.splitlines()


@dataclass(slots=True)
class PixelSumsKernel(JoinedKernel):
    """A kernel for a convolution of which all pixels are joined, for each image and filter."""

    def note(self, needs: Needs) -> None:
        PixelKernel.note(self, needs)
        needs.pixel_sums = True

    def factors(self) -> list[tuple[Parameter, str]]:
        return [*PixelKernel.factors(self), (Parameter("float* __restrict__", "pieces"), "pieces")]

    def tails(self, *, several_too: bool = True) -> list[str]:
        """Return what the pixels that a lane has of a filter are made to, and how they join."""
        c, rows, joins = self.contraction, self.of_rows(), list[str]()
        for n, kind in enumerate(self.kinds.values()):
            joins.append(f"total{n} = of_lanes(total{n}, {C[kind].functor}(), 2);")
            joins.append(f"if (leader) pieces[({n} * int64_t(along) * PHASES * 4 + slot) * rows + row] = total{n};")
        of_filter = [*c.unflatten(c.rows, "row", self.kind), *rows.lines]
        pixel = [*self.of_pixel("return"), *self.joining(Scope(rows))]
        return self.filled(
            pixels_text.SUMS_OF_PIXELS, {"FILTER": (of_filter, 1), "PIXEL": (pixel, 2), "JOINS": (joins, 2)}
        )

    def hopper_launch(
        self, name: str, arguments: list[str], widths: dict[str, str], pointers: dict[str, str]
    ) -> list[str]:
        assert self.window
        images, filters = (
            f"int64_t({self.window.images})",
            f"int64_t({self.contraction.extents(self.contraction.rows)})",
        )
        joins = [
            f"tma_join_pieces<<<blocks({images} * tiles({filters}, 32)), 1024, 0, stream>>>(pieces + {n} * count * "
            f"{filters}, {pointers[buffer]}, int({filters}), int(count / {images}), {start_of(kind, 'float32')}, "
            f"{C[kind].functor}());"
            for n, (buffer, kind) in enumerate(self.kinds.items())
        ]
        return [
            f"const int64_t count = int64_t({self.tiles_along('')}) * {self.phases * HIGH};",
            f"float* pieces = scratch<float>({len(self.kinds)} * count * {filters}, stream);",
            *PixelKernel.hopper_launch(self, name, arguments, widths, pointers),
            *joins,
            "cudaFreeAsync(pieces, stream);",
        ]


@dataclass(slots=True)
class FilterSumsKernel(JoinedKernel):
    """A kernel for a convolution of which all filters are joined, for each pixel."""

    @property
    def order(self) -> dict[str, str]:
        return pixels_text.BY_PIXELS

    def tails(self, *, several_too: bool = True) -> list[str]:
        """Return what the filters of a lane's pixel are made to, and how they join."""
        c, rows = self.contraction, self.of_rows()
        of_filter = [*c.unflatten(c.rows, "row", self.kind), *rows.lines, *self.joining(Scope(rows))]
        stores = [f"{self.place(buffer)} = total{n};" for n, buffer in enumerate(self.kinds)]
        return self.filled(
            pixels_text.SUMS_OF_FILTERS,
            {"FILTER": (of_filter, 2), "PIXEL": (self.of_pixel("continue"), 1), "STORES": (stores, 2)},
        )


def with_pixels_joined(kernel: PixelKernel, kinds: dict[str, Kind]) -> PixelSumsKernel:
    """Return the kernel that joins so what pixels are made to, by buffer, and stores that."""
    return PixelSumsKernel(**given(kernel), kinds=kinds)


def with_filters_joined(
    kernel: PixelKernel, kinds: dict[str, Kind], stores: dict[str, Access]
) -> FilterSumsKernel | None:
    """Return the kernel that joins so what filters are made to, and stores that at these places; None where a tile has
    not all of them.
    """
    c = kernel.contraction
    if c.count(c.rows) > kernel.filters:
        return None
    nest = replace(c.nest, stores=stores)
    kept = {"contraction": replace(c, nest=nest), "printer": replace(kernel.printer, nest=nest)}
    return FilterSumsKernel(**(given(kernel) | kept), kinds=kinds)


def given(kernel: PixelKernel) -> dict[str, Any]:
    """Return the fields of a kernel with which it was made."""
    return {f.name: getattr(kernel, f.name) for f in fields(kernel) if f.init}
