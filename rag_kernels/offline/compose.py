"""From a functional problem to the text of one candidate: kernel tier if everything fuses, composed tier otherwise.

Comes in: a FunctionalProblem and tuning parameters, which also name the backend. Goes out: a `Plan` with the candidate
and a summary of it. The composed tier is Python of the judge's subset: library calls in the order of the graph, with
generated kernels in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rag_kernels.eval.records import Backend, Candidate, FunctionalProblem, Node, Ref, TensorArgument, TensorSpec
from rag_kernels.eval.records import Value as Argument
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.codegen import cuda_functions, math_prelude
from rag_kernels.offline.codegen.c_types import headers
from rag_kernels.offline.codegen.contraction import find_contraction
from rag_kernels.offline.codegen.kernel_function import Function, numbers_held, part_function, whole_function
from rag_kernels.offline.codegen.loop_nest import Names, build_nest
from rag_kernels.offline.composed_sizes import hold_untold, reshaped, shape_told, shapes_made
from rag_kernels.offline.cpp import function as cpp
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda import function as cuda
from rag_kernels.offline.cuda.elements.multi_block_rows import MAX_ROW_ELEMENTS
from rag_kernels.offline.cuda.elements.vectorized import KEPT_BYTES
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.foreign_kernel import Foreign, is_foreign
from rag_kernels.offline.fusion.arithmetic.compared_exactly import compared_exactly
from rag_kernels.offline.fusion.arithmetic.quantised import with_quantised
from rag_kernels.offline.fusion.arithmetic.reciprocals import owes_half, with_reciprocals
from rag_kernels.offline.fusion.attention.heads import fix_heads
from rag_kernels.offline.fusion.attention.recognition import find_sites
from rag_kernels.offline.fusion.attention.steps import lowered_with_attention
from rag_kernels.offline.fusion.pieces import read_in_pieces
from rag_kernels.offline.fusion.planner import Planner
from rag_kernels.offline.fusion.regions import (
    AttentionRegion,
    ChainedRegion,
    Region,
)
from rag_kernels.offline.fusion.stores.common_values import shared
from rag_kernels.offline.fusion.stores.joined_scatters import with_scatters_in_place, with_scatters_joined
from rag_kernels.offline.fusion.stores.layouts import laid_as_read
from rag_kernels.offline.fusion.stores.read_from_results import with_products_read_from_results
from rag_kernels.offline.fusion.stores.rematerialize import with_shared_values, without_rematerialization
from rag_kernels.offline.fusion.stores.stored_sooner import with_stores_sooner
from rag_kernels.offline.fusion.sums.components import with_components_apart
from rag_kernels.offline.fusion.sums.online_reduction import one_pass
from rag_kernels.offline.fusion.sums.parts import Split
from rag_kernels.offline.fusion.tiles.pixel_sums import with_pixel_sums
from rag_kernels.offline.fusion.tiles.product_statistics import with_grouped_columns
from rag_kernels.offline.graph.cells import with_cells_written_out
from rag_kernels.offline.graph.complex_parts import with_parts_of_complex
from rag_kernels.offline.graph.convolution_gradients import with_convolution_gradients
from rag_kernels.offline.graph.decompositions import with_decompositions
from rag_kernels.offline.graph.gates import with_gates_apart
from rag_kernels.offline.graph.row_statistics import with_row_statistics
from rag_kernels.offline.graph.small_numbers import tells_small_from_zero
from rag_kernels.offline.graph.softmax_gradients import GRADIENTS, sites_by_rows, with_row_totals
from rag_kernels.offline.graph.training_step import EVERYTHING, NOTHING, halves
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import Number
from rag_kernels.offline.ir.wellformed import Checker
from rag_kernels.offline.lowering.coverage import RULES
from rag_kernels.offline.lowering.lower import FEW_AGAIN, MANY_AGAIN, MANY_LANES, WRITTEN_OUT, Lowering
from rag_kernels.offline.lowering.steps import Library, Lowered
from rag_kernels.offline.lowering.which_products import PRODUCTS, ours_of_complex, product_rules
from rag_kernels.offline.lowering.widened_products import with_wide_products
from rag_kernels.offline.tuning import END as PARAMETERS_END
from rag_kernels.offline.tuning import Parameters
from rag_kernels.offline.used_steps import grouped, needed_after, reads, used


@dataclass(frozen=True, slots=True)
class Plan:
    """A candidate with what was fused: its schedules, the number of loop nests, and the operators left to the library.

    `stopped` names the operators at which fusion ended, with the reason where a rule gave one.
    """

    candidate: Candidate
    schedules: tuple[str, ...]
    regions: int
    library: tuple[str, ...]
    stopped: tuple[str, ...]


def write(
    fp: FunctionalProblem, parameters: Parameters, *, foreign: Sequence[Foreign] = (), bare: bool = False
) -> Plan | None:
    """Return a plan that fuses what can be fused, or None when no kernel would be left.

    A `bare` plan of library calls alone is returned when it is asked for. `foreign` are the kernels that the problem's
    graph calls by their names. None is also returned for a problem that draws random numbers.
    """
    if fp.uses_random:
        return None
    backend: Backend = "cpu" if isinstance(parameters, CpuParameters) else "cuda"
    fp = spelled_out(fp, parameters.products, backend)
    if fp.step is not None:
        return write_step(fp, parameters, foreign=foreign, bare=bare)
    made = planned(told_by_rows(fp, parameters), parameters)
    regions = made.regions
    if not regions and not foreign and not bare:
        return None
    library = library_operators(made.steps)
    whole = len(regions) == len(made.steps) and set(made.lowered.results) <= {b for r in regions for b in r.written}
    if whole and _plain_arguments(fp):
        function = whole_function(fp, regions, made.lowered.results, made.specs)
        text = kernels_source([function], parameters, f"{fp.problem.name}: {summary(regions, ())}")
        return Plan(Candidate(text, "kernel", backend), schedules_of(regions), len(regions), (), ())
    body = composed_body(made)
    text = composed_text(fp, body.functions, parameters, summary(regions, library), foreign)
    text += python_function("forward", made.fp, body.lines)
    return Plan(
        Candidate(text, "composed", backend), schedules_of(regions), len(regions), library, _stopped([made], foreign)
    )


def spelled_out(fp: FunctionalProblem, products: int, backend: Backend) -> FunctionalProblem:
    """Return the problem in operators that rules know, as far as there are such."""
    fp = with_convolution_gradients(fp) if products == 2 and backend == "cuda" else fp
    fp = with_parts_of_complex(with_cells_written_out(fp), ours_of_complex(products, backend))
    fp = with_decompositions(fp, RULES.keys() | product_rules(2, backend).keys())
    return with_wide_products(fp) if products == 1 and backend == "cpu" else fp


def told_by_rows(fp: FunctionalProblem, parameters: Parameters) -> FunctionalProblem:
    """Return the problem with gradients of attention by rows, where kernels of ours take all of them so."""
    by_rows = with_row_totals(fp) if isinstance(parameters, CudaParameters) and parameters.attention else fp
    if by_rows is fp:
        return fp
    parts = [by_rows] if fp.step is None else [(both := halves(by_rows, parameters.saving)).forward, both.backward]
    regions = [region for part in parts for region in planned(part, parameters).regions]
    totals = sum(isinstance(region, AttentionRegion) and bool(region.attended.total) for region in regions)
    weighed = sum(len(region.chained.outer) for region in regions if isinstance(region, ChainedRegion))
    return by_rows if weighed == GRADIENTS * totals and totals == sites_by_rows(by_rows) else fp


def write_step(
    fp: FunctionalProblem, parameters: Parameters, *, foreign: Sequence[Foreign] = (), bare: bool = False
) -> Plan | None:
    """Return the plan of a training step: a forward and a backward with what the parameters say is saved between."""
    backend: Backend = "cpu" if isinstance(parameters, CpuParameters) else "cuda"
    made = halves(told_by_rows(with_row_statistics(fp), parameters), parameters.saving)
    first, second = planned(made.forward, parameters), planned(made.backward, parameters)
    regions = first.regions + second.regions
    if not regions and not foreign and not bare:
        return None
    forward = composed_body(first)
    backward = composed_body(second, begun=len(forward.functions))
    outputs = len(first.lowered.results) - len(made.saved)
    results = first.lowered.results
    ends = f"return {tuple_of(results[:outputs])}, {tuple_of(results[outputs:])}"
    loose = {step.node.name for step in first.steps if isinstance(step, Library)}  # perhaps parts of another tensor
    whole = [f"{name} = {name}.contiguous()" for name in dict.fromkeys(results[outputs:]) if name in loose]
    begins = [f"{tuple_of(names)} = {what}" for what, names in (("grads", made.grads), ("saved", made.saved)) if names]
    library = library_operators([*first.steps, *second.steps])
    functions = [*forward.functions, *backward.functions]
    text = composed_text(fp, functions, parameters, summary(regions, library), foreign)
    text += python_function("forward", made.forward, [*forward.lines[:-1], *whole, ends])
    arguments = ("grads", "saved", *(a.name for a in made.arguments))
    text += "\n\n" + python_function("backward", made.backward, [*begins, *backward.lines], arguments)
    stopped = _stopped([first, second], foreign)
    schedules = (*schedules_of(regions), "step")
    return Plan(Candidate(text, "composed", backend), schedules, len(regions), library, stopped)


def _stopped(made: Sequence[Planned], foreign: Sequence[Foreign]) -> tuple[str, ...]:
    names = {k.function for k in foreign}
    return tuple(dict.fromkeys(name for one in made for name in one.lowered.stopped if name not in names))


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph with the steps that compute it."""

    fp: FunctionalProblem
    lowered: Lowered
    steps: list[Region | Library]
    specs: dict[str, TensorSpec]

    @property
    def regions(self) -> list[Region]:
        return [s for s in self.steps if isinstance(s, Region)]


def planned(fp: FunctionalProblem, parameters: Parameters) -> Planned:
    """Return the steps of a graph: fused regions, and library calls in between.

    Halves of a product that gate each other are two products where these become one kernel.
    """
    made = _planned(fp, parameters)
    ours = isinstance(parameters, CudaParameters) and parameters.products == 2
    apart = with_gates_apart(fp) if ours else fp
    if apart is fp:
        return made
    gated = _planned(apart, parameters)
    return replace(gated, fp=fp) if len(gated.steps) < len(made.steps) else made


def _planned(fp: FunctionalProblem, parameters: Parameters) -> Planned:
    backend: Backend = "cpu" if isinstance(parameters, CpuParameters) else "cuda"
    rules = RULES | product_rules(parameters.products, backend)
    again = MANY_AGAIN if backend == "cuda" else FEW_AGAIN
    short = min(parameters.short, WRITTEN_OUT)
    recurs = backend == "cuda"
    lanes = MANY_LANES if isinstance(parameters, CudaParameters) and parameters.tensor else 0
    fed = isinstance(parameters, CudaParameters) and parameters.tensor == 2
    begin = partial(
        Lowering,
        fp,
        free=parameters.free_sizes,
        short=short,
        again=again,
        recurs=recurs,
        lanes=lanes,
        fed=fed,
        turns=backend == "cpu",
    )
    if parameters.attention:
        apart = lambda names: begin(apart=names)  # noqa: E731
        lowered = lowered_with_attention(fp, apart, rules, chained=backend == "cuda")
    else:
        lowered = begin().run(rules)
    lowered = with_stores_sooner(with_shared_values(read_in_pieces(with_scatters_in_place(lowered))))
    specs = dict(lowered.buffers)
    checker = Checker(specs)
    lowered = without_rematerialization(lowered.checked(checker, "Lowering")).checked(checker, "Rematerialisation")
    if backend == "cuda":
        lowered = laid_as_read(with_components_apart(with_products_read_from_results(lowered)))
        specs.update(lowered.buffers)
        lowered = lowered.checked(checker, "The layout of temporary values")
        if isinstance(parameters, CudaParameters) and parameters.tensor:
            lowered = with_grouped_columns(lowered, split_of(parameters))
        lowered = one_pass(lowered, KEPT_BYTES).checked(checker, "The rewriting to one pass")
        if isinstance(parameters, CudaParameters) and parameters.tensor == 2:
            lowered = with_pixel_sums(lowered, split_of(parameters))
    if owes_half(fp):
        lowered = with_reciprocals(lowered, on_gpu=backend == "cuda").checked(checker, "The rewriting to reciprocals")
    if backend == "cuda":
        lowered = with_quantised(lowered).checked(checker, "The rewriting of what becomes eight bits")
        lowered = compared_exactly(lowered).checked(checker, "The rounding of what is compared")
    steps = Planner(split_of(parameters), specs).run(lowered)
    steps = with_scatters_joined(used(steps, lowered.results))
    steps = [shared(s) if isinstance(s, Region) else s for s in steps]
    for step in steps:
        if isinstance(step, Region):
            step.check(checker)
    for run in grouped(steps):
        if not isinstance(run, Library):
            fix_heads(run)
    return Planned(fp, lowered, steps, specs)


def stopped_at(fp: FunctionalProblem, parameters: Parameters) -> tuple[str, ...]:
    """Return the operators that stay with the library, each with the reason in parentheses."""
    backend: Backend = "cpu" if isinstance(parameters, CpuParameters) else "cuda"
    fp = spelled_out(fp, 2, backend)
    stopped = Lowering(fp, recurs=backend == "cuda").run(RULES | product_rules(2, backend)).stopped
    return tuple(told if told.endswith(")") else f"{told} (no rule)" for told in stopped)


def split_of(parameters: Parameters) -> Split:
    """Return when reductions of few long rows are split, for the backend of these parameters."""
    if isinstance(parameters, CpuParameters):
        return Split(8)
    tiles = 264 if parameters.tensor < 2 else 0  # kernels on tensor cores alone split a depth themselves
    return Split(
        1024,
        columns=1 << 16,
        tiles=tiles,
        pairs=bool(parameters.tensor),
        whole=MAX_ROW_ELEMENTS if parameters.sharing else 0,
        scans=False,
        costly=1 << 22,
    )


def choices(start: Parameters) -> list[Parameters]:
    """Return the parameters to draft with first: one variant for each choice of generated or library products.

    On a CPU: generated products where they are likely faster, then everywhere, then nowhere. On a GPU: everywhere on
    tensor cores, then the same without generated products and where likely faster; products on plain cores come last,
    since which is faster depends on sizes. The last variant has attention as the graph spells it.
    """
    if isinstance(start, CudaParameters):
        cores = start.tensor  # 1 or 2: as exact as fp32, or TF32 where that is allowed
        pairs = ((2, cores), (0, cores), (1, cores), (2, 0))
        made = [replace(start, products=products, tensor=tensor) for products, tensor in pairs]
        return [*made, replace(start, products=1, attention=0)]
    return [*(replace(start, products=products) for products in (1, 2, 0)), replace(start, products=1, attention=0)]


def first_plans(fp: FunctionalProblem, start: Parameters) -> Iterator[Plan]:
    """Yield the plans of the first round, one for each choice of products that makes a difference.

    Where nothing is a product in the first, no other choice is drafted.
    """
    seen: set[tuple[object, ...]] = set()
    first, *others = choices(start)
    if fp.step is None and not any(find_sites(fp)):
        others.pop()  # it has attention as the graph spells it: there is none
    savings = [replace(first, saving=n) for n in (NOTHING, EVERYTHING)] if fp.step is not None else []
    for variant in [first, *savings, *others]:
        plan = write(fp, variant)
        if plan:
            body = "".join(line for line in plan.candidate.source.splitlines() if not line.endswith(PARAMETERS_END))
            if (plan.library, body) not in seen:
                seen.add((plan.library, body))
                yield plan
        if variant is first and fp.step is None and not has_products(fp, plan, first):
            return


def has_products(fp: FunctionalProblem, plan: Plan | None, parameters: Parameters) -> bool:
    """Return whether a problem or its plan has anything that a choice of products is about."""
    backend: Backend = "cpu" if isinstance(parameters, CpuParameters) else "cuda"
    named = any(base_name(node.op) in PRODUCTS for node in spelled_out(fp, parameters.products, backend).nodes)
    return named or (plan is not None and not {"product", "attention"}.isdisjoint(plan.schedules))


def library_operators(steps: Sequence[Region | Library]) -> tuple[str, ...]:
    """Return the base names of the operators that stay with PyTorch; views are free and are not counted."""
    names = [base_name(s.node.op) for s in steps if isinstance(s, Library) and not is_foreign(s.node)]
    return tuple(name for name in names if not operator(name).view and name != "getitem")


def _plain_arguments(fp: FunctionalProblem) -> bool:
    return all(a.spec.dtype in ITEMSIZE for a in fp.arguments if isinstance(a, TensorArgument))


def schedules_of(regions: Sequence[Region]) -> tuple[str, ...]:
    """Return the schedules by which these regions run, each once."""
    found = {schedule_of(region) for region in regions}
    return tuple(name for name in ("row", "column", "product", "attention", "point") if name in found)


def schedule_of(region: Region) -> str:
    """Return the schedule by which a region runs, which both languages print."""
    if isinstance(region, AttentionRegion | ChainedRegion):
        return "attention"
    return "product" if find_contraction(region, Names()) else build_nest(region, Names()).schedule


def summary(regions: list[Region], library: tuple[str, ...]) -> str:
    """Return a phrase that counts the fused loop nests and names the library operators in front of them."""
    kernels = f"{len(regions)} fused loop nest{'s' if len(regions) > 1 else ''}"
    return f"{kernels} behind {', '.join(library)}" if library else kernels


def kernels_source(functions: list[Function], parameters: Parameters, idea: str) -> str:
    """Return the C++ or CUDA text of these functions with the fixed text that they need.

    `idea` becomes the comment on the first line.
    """
    if isinstance(parameters, CpuParameters):
        called = cpp.Needs()
        bodies = "\n".join(cpp.function_text(f, parameters, called) for f in functions)
        text = f"{cpp.constants(parameters)}{called.text()}\n{bodies}"
        functions_of = math_prelude.GRADUAL if any(f.gradual for f in functions) else math_prelude.CPP
        return f"// {idea}\n{cpp.HEAD}\n{math_prelude.used(functions_of, called.calls)}{text}"
    known: dict[str, str] = {}
    needs = cuda.Needs()
    bodies = "\n".join(cuda.function_text(f, parameters, known, needs) for f in functions)
    dtypes = {dtype for f in functions for dtype in f.dtypes()}
    head = headers(dtypes) + cuda.HEAD + needs.headers()
    fixed = cuda.fixed_text(parameters, bodies, needs)
    if cuda_functions.EXP_BELOW in needs.calls and all(f.is_below_bfloat16() for f in functions):
        needs.calls = needs.calls - {cuda_functions.EXP_BELOW} | {cuda_functions.EXP_BELOW_OF_BFLOAT16}
    math = math_prelude.used(math_prelude.CUDA, needs.calls)
    return f"// {idea}\n{head}\n{math}{cuda.constants(parameters)}{fixed}\n{bodies}"


@dataclass(frozen=True, slots=True)
class Body:
    """The lines of a composed function, and the generated functions that they call."""

    functions: list[Function]
    lines: list[str]


def composed_body(made: Planned, *, begun: int = 0) -> Body:
    """Return Python that calls library operators, generated functions and foreign kernels in order.

    Generated functions are numbered from `begun`.
    """
    fp, steps, specs, results = made.fp, made.steps, made.specs, made.lowered.results
    functions: list[Function] = []
    lines: list[str] = []
    returned: set[str] = set()  # buffers that may be non-contiguous: whatever the library returned
    readers = Counter(buffer for step in steps for buffer in reads(step))
    gradual = tells_small_from_zero(fp)  # looks through the whole graph
    library = [step.node for step in steps if isinstance(step, Library)]
    fixed = () if begun else numbers_held(fp, made.regions, library)
    for run in grouped(steps):
        if isinstance(run, Library):
            call = foreign_call(run.node, fp, returned) if is_foreign(run.node) else [library_call(run, fp, specs)]
            lines += [f"{run.node.name} = {call[0]}", *call[1:]]
            returned.add(run.node.name)
            continue
        needed = needed_after(run, readers, results)
        f = part_function(fp, f"part_{begun + len(functions)}", run, needed, specs, gradual=gradual, held_numbers=fixed)
        fixed = ()  # the first compares them for all
        hold_untold(f)
        functions.append(f)
        known = {b for other in functions[:-1] for b in other.outputs}  # of a growing concatenation
        shapes = shapes_made(f)
        lines += [f"{b} = {allocate(specs[b], fp, shapes[b])}" for b in f.outputs if b not in known]
        arguments = [
            i.python if isinstance(i, Number) else f"{i}.contiguous()" if i in returned else i for i in f.order
        ]
        lines.append(f"kernels.{f.name}({', '.join(arguments)})")
    lines.append(f"return {', '.join(results)}")
    return Body(functions, lines)


def composed_text(
    fp: FunctionalProblem, functions: list[Function], parameters: Parameters, told: str, foreign: Sequence[Foreign]
) -> str:
    """Return the `KERNELS` of a composed source: these functions and the foreign kernels."""
    text = '#include "rag_kernel.h"\n'
    if functions:
        text = kernels_source(functions, parameters, f"{fp.problem.name}: {told}")
    text += "".join(f"\n{kernel.text}" for kernel in foreign)
    return f"KERNELS = r'''\n{text}'''\n\n\n"


def python_function(name: str, fp: FunctionalProblem, lines: Sequence[str], arguments: Sequence[str] = ()) -> str:
    """Return the text of a composed function, with a problem's arguments unless others are named."""
    names = [*(arguments or (a.name for a in fp.arguments))]
    keywords = [name for name, _ in fp.constants]
    header = ", ".join([*names, *(["*", *keywords] if keywords else [])])
    body = "\n".join("    " + line for line in lines)
    return f"def {name}({header}):\n{body}\n"


def tuple_of(names: Sequence[str]) -> str:
    """Return a tuple as Python spells it."""
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def allocate(spec: TensorSpec, fp: FunctionalProblem, shape: str = "") -> str:
    """Return the Python expression that allocates a tensor, of a shape in Python where that is told."""
    device = next((a.name for a in fp.arguments if isinstance(a, TensorArgument)), "")
    where = f", device={device}.device" if device else ""
    return f"torch.empty({shape or list(spec.shape)}, dtype=torch.{spec.dtype}{where})"


def foreign_call(node: Node, fp: FunctionalProblem, made: set[str]) -> list[str]:
    """Return two Python expressions: one that allocates a foreign kernel's outputs, one that calls it."""
    outputs = [allocate(spec, fp) for spec in node.outputs]
    names = [f"{node.name}[{i}]" for i in range(len(outputs))] if len(outputs) > 1 else [node.name]
    inputs = [f"{python(v)}.contiguous()" if isinstance(v, Ref) and v.name in made else python(v) for v in node.args]
    room = f"({', '.join(outputs)})" if len(outputs) > 1 else outputs[0]
    return [room, f"kernels.{base_name(node.op)}({', '.join([*inputs, *names])})"]


def library_call(step: Library, fp: FunctionalProblem, specs: Mapping[str, TensorSpec]) -> str:
    """Return the Python expression that calls a library operator."""
    node = step.node
    if node.op == "getitem":
        return f"{python(node.args[0])}[{python(node.args[1])}]"
    arguments = [python(a) for a in node.args]
    match node.args:
        case Ref(name=name), tuple() as asked if operator(base_name(node.op)).reshape and name in specs:
            arguments[1] = shape_told(node, fp) or reshaped(name, specs[name].shape, node.outputs[0].shape, asked)
    arguments += [f"{k}={python(v)}" for k, v in node.kwargs if k not in {"device", "pin_memory", "layout"}]
    first = next((a.name for a in fp.arguments if isinstance(a, TensorArgument)), "")
    if first and operator(base_name(node.op)).names_device:
        arguments.append(f"device={first}.device")
    owner = node.op if node.op.startswith("torch.") else f"torch.ops.{node.op}"
    return f"{owner}({', '.join(arguments)})"


def python(value: Argument) -> str:
    """Return an argument of the graph as a Python expression."""
    match value:
        case Ref(name=name):
            return name
        case tuple():
            return f"[{', '.join(python(v) for v in value)}]"
        case str() if value.startswith("torch."):
            return value
        case float() if value in (float("inf"), float("-inf")) or value != value:
            return f"float('{value}')"
        case _:
            return repr(value)
