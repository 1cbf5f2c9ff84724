"""Recurrent layers in CUDA: one kernel for all steps of a layer, with its weights in registers.

Comes in: a RecurrentRegion of a Function. Goes out: its kernel and the launch. Both directions of a layer run beside
each other; what its input comes to at all steps is a product before. PyTorch's library launches two kernels or more a
step.
"""

from __future__ import annotations

from collections.abc import Callable

from rag_kernels.eval.errors import Internal
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.own_text import nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.kernel_text import KernelText, Parameter, arguments_of, constexprs
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import RecurrentRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.ir.recurrence import GATES, division_of
from rag_kernels.offline.lowering.steps import Direction, Recurrent


def recurrent_text(
    name: str, region: RecurrentRegion, function: Function, sizes: Sizes, parameters: CudaParameters
) -> tuple[KernelText, Callable[[str], list[str]]]:
    """Return the kernel of a recurrent layer, and the statements that launch one of a name."""
    step, names = region.recurrent, sizes.names
    gates, width, sides = GATES[step.cell], ir.size_of(step.units), len(step.directions)
    division = division_of(step.cell, width, ir.size_of(step.batch), sides)
    if division is None:
        raise Internal("A recurrent layer became a step that no kernel serves.")
    loops = [*step.steps, *step.batch, *step.sides, *step.units, *step.directions[0].gates.dims[2]]
    nest = nest_of(region, ir.leaves(loops), names)
    printer = Printer(nest, function.pointers, function.storage, on_gpu(near=function.near))
    scratch = tuple(c_name(b) for b in function.scratch)
    kernel = CudaRegion(nest, printer, {}, parameters=parameters, constants=sizes.constants, scratch=scratch)
    counts = [names.product(group) for group in (step.steps, step.batch)]
    call = (
        f"recurrence::layer<{gates}, {width}, {division.units}, {division.slices}, {division.parts}, {division.rows}>"
    )
    body = [
        f"const int whole = teams * {division.parts}, side = int(blockIdx.x) / whole;",
        "const int inside = int(blockIdx.x) % whole;",
        f"const int64_t shown = (({counts[1]}) + {division.rows - 1}) / {division.rows} * {2 * division.rows * width};",
        f"const recurrence::Place place = {{board + side * shown, inside / {division.parts}, teams, "
        f"inside % {division.parts}, {counts[0]}, {counts[1]}}};",
        *_step(step),
    ]
    for side, direction in enumerate(step.directions):
        back = str(direction.back).lower()
        run = f"{call}(place, {back}, gate, weight, bias, first, step, put);"
        lines = [*_reads(step, direction, printer), *_put(step, region, printer, side), run]
        body += [f"if (side == {side}) {{", *indent(lines), "}"] if sides > 1 else lines
    given = kernel.parameters_of(body, function)
    constants = kernel.constants_in(body)
    text = KernelText(
        (f"// {step.cell} of {width} units, {division.parts} blocks a team",),
        f"__global__ void __launch_bounds__({division.threads}) ",
        name,
        (Parameter("ulonglong2*", "board"), Parameter("int", "teams"), *given),
        [*constexprs(constants), *body],
        list(constants),
    )
    numbers = f"{division.parts}, {sides}, {division.threads}, {division.rows}, {counts[1]}, {width}, stream"

    def launched(kernel_name: str) -> list[str]:
        call = f"recurrence::launch({', '.join([kernel_name, numbers, *arguments_of(given)])});"
        return [f"if (({counts[0]}) > 0 && ({counts[1]}) > 0)", f"  {call}"]

    return text, launched


def _step(step: Recurrent) -> list[str]:
    """Return the function by which a cell makes a state."""
    gates = GATES[step.cell]
    return [
        f"const auto step = [](const float (&x)[{gates}], const float (&h)[{gates}], float& hidden, float& memory) {{",
        f"  recurrence::step_{step.cell}(x, h, hidden, memory);",
        "};",
    ]


def _reads(step: Recurrent, direction: Direction, printer: Printer) -> list[str]:
    """Return functions that read what the input comes to, weights, a bias and the first state."""
    gate, unit = ir.leaves(direction.gates.dims[2]), ir.leaves(step.units)
    time = {"t": ir.leaves(step.steps), "row": ir.leaves(step.batch)}
    lines = _function("gate", "int64_t t, int64_t row, int n", {**time, "n": gate}, (direction.gates,), printer)
    lines += _function("weight", "int n, int k", {"n": gate, "k": unit}, (direction.weight,), printer)
    lines += _function("bias", "int n", {"n": gate}, (direction.bias,), printer)
    places = {"row": ir.leaves(step.batch), "k": unit}
    return lines + _function("first", "int which, int64_t row, int k", places, direction.first, printer)


def _function(
    name: str, given: str, places: dict[str, tuple[ir.Atom, ...]], values: tuple[ir.Value, ...], printer: Printer
) -> list[str]:
    """Return a function of indices that reads one of some values: the one of number `which`, if these are several."""
    scope = Scope()
    found = [printer.emit(value, scope) for value in values]
    index = [f"const int64_t {printer.nest.var(leaf)} = {at};" for at, leaves in places.items() for leaf in leaves]
    text = f"which == 0 ? {found[0]} : {found[1]}" if len(found) > 1 else found[0]
    return [f"const auto {name} = [&]({given}) -> float {{", *indent([*index, *scope.lines, f"return {text};"]), "};"]


def _put(step: Recurrent, region: RecurrentRegion, printer: Printer, side: int) -> list[str]:
    """Return the function that stores a state, where it is read."""
    nest = printer.nest
    places = {"t": step.steps, "row": step.batch, "unit": step.units, str(side): step.sides}
    index = [f"const int64_t {nest.var(leaf)} = {at};" for at, group in places.items() for leaf in ir.leaves(group)]
    stores = []
    for buffer in region.stores:
        value = "memory" if buffer == step.memory else "hidden"
        only = "" if buffer == step.states else "if (last) "
        stores.append(f"{only}{printer.pointers[buffer]}[{nest.offset(nest.stores[buffer]) or '0'}] = {value};")
    head = "const auto put = [&](int64_t t, int64_t row, int unit, float hidden, float memory, bool last) {"
    return [head, *indent([*index, *stores]), "};"]
