"""One exported kernel function: its arguments, its sizes, its scratch memory, and the regions it runs.

Comes in: a run of regions between library calls. Goes out: the parts that both languages share: parameter list,
size declarations read from tensors, checks that other shapes satisfy the same equations. Knows nothing of loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import isfinite, prod
from operator import mul

from rag_kernels.eval.records import Backend, FunctionalProblem, Node, Scalar, TensorArgument, TensorSpec, Value
from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.loop_nest import Loop, Names, Nest, build_nest
from rag_kernels.offline.codegen.reduction_levels import levels
from rag_kernels.offline.fusion.arithmetic.reciprocals import owes_half
from rag_kernels.offline.fusion.regions import Region, dims_stored, loads_of, loops_named, loops_read_back
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.graph.small_numbers import tells_small_from_zero
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import PAIR, Operator
from rag_kernels.offline.ir.parameters import Number, c_name, numbers, whole_of
from rag_kernels.offline.ir.patterns import NAMES_DTYPE, is_bfloat16, operands

SHORT = 64  # reduced loops this short together, but for products, are unrolled
FEW = 4096  # steps of loops that were written for at most SHORT: a variance of 30,000 had 130 times PyTorch's error


@dataclass(frozen=True)
class Function:
    """One exported function. `order` has all parameters as the call passes them: buffers by name, and numbers."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scratch: tuple[str, ...]
    regions: tuple[Region, ...]
    specs: dict[str, TensorSpec]
    order: tuple[str | Number, ...]
    held: frozenset[str]  # parameters and buffers of the module
    near: bool  # whether functions may be exact to some bits fewer than float32 has
    gradual: bool  # whether exponentials keep what is below the smallest normal number
    held_numbers: tuple[tuple[Number, Scalar], ...] = ()  # parameters that are numbers of the text, too

    def parameters(self, backend: Backend) -> str:
        """Return the C parameter list."""
        texts = []
        for item in self.order:
            if isinstance(item, Number):
                texts.append(f"{item.ctype} {item.name}")
            else:
                const = "" if item in self.outputs else "const "
                texts.append(f"rk::Tensor<{const}{stored_type(self.specs[item].dtype, backend)}> {c_name(item)}")
        return ", ".join(texts)

    def scratch_memory(self, names: Names, backend: Backend) -> list[tuple[str, str, str]]:
        """Return each scratch buffer as (name, C type, number of elements as C)."""
        dims = {b: r.dims(b) for r in self.regions for b in r.stores if b in self.scratch}
        counts = {b: names.product(tuple(a for g in groups for a in g)) for b, groups in dims.items()}
        return [(b, stored_type(self.specs[b].dtype, backend), count) for b, count in counts.items()]

    @cached_property
    def storage(self) -> dict[str, str]:
        """Return the dtype in memory of every buffer."""
        return {buffer: spec.dtype for buffer, spec in self.specs.items()}

    @cached_property
    def pointers(self) -> dict[str, str]:
        """Return the C pointer of every buffer inside of a kernel."""
        return {buffer: f"{c_name(buffer)}_p" for buffer in self.specs}

    def dtypes(self) -> set[str]:
        """Return the dtypes of all tensors that the function reads or writes, and those to which it rounds."""
        every = ir.walk(*(v for region in self.regions for v in region.stores.values()))
        named = {NAMES_DTYPE[v.operator] for v in every if isinstance(v, ir.Op) and v.operator in NAMES_DTYPE}
        return {self.specs[b].dtype for b in (*self.inputs, *self.outputs, *self.scratch)} | named

    def is_below_bfloat16(self) -> bool:
        """Return whether all exponentials of differences from a maximum are of bfloat16's numbers."""
        for v in ir.walk(*(v for region in self.regions for v in region.stores.values())):
            below = operands(v, Operator.EXP_BELOW)
            x = below[0] if below else v.arg if isinstance(v, ir.Reduce) and v.dtype == PAIR else None
            if x is not None and not is_bfloat16(x):
                return False
        return True


def named_numbers(regions: Sequence[Region]) -> set[str]:
    """Return the names of the numbers that regions compute with."""
    return {v.name for r in regions for v in ir.walk(*r.stores.values()) if isinstance(v, ir.Const) and v.name}


def numbers_held(
    fp: FunctionalProblem, regions: Sequence[Region], library: Sequence[Node] = ()
) -> tuple[tuple[Number, Scalar], ...]:
    """Return the constants of the call that texts have as numbers: those with which no region computes, such as groups
    and strides, and those of library calls.
    """
    arguments = {a.name for a in fp.arguments}
    read, called = named_numbers(regions), {v for node in library for v in scalars_of(node)}
    constants = [(n, v) for n, v in numbers(fp) if n.python not in arguments and isinstance(v, int | float)]
    return tuple((n, v) for n, v in constants if isfinite(v) and (n.name not in read or v in called))


def scalars_of(node: Node) -> Iterator[Scalar]:
    """Yield the numbers among the arguments of a node."""
    waiting: list[Value] = [*node.args, *(value for _, value in node.kwargs)]
    while waiting:
        match waiting.pop():
            case tuple() as several:
                waiting += several
            case int() | float() as number:
                yield number


def whole_function(
    fp: FunctionalProblem, regions: Sequence[Region], results: Sequence[str], specs: dict[str, TensorSpec]
) -> Function:
    """Return the kernel tier's function: every argument in the order of the contract, then the outputs."""
    known = [n for n, _ in numbers(fp)]
    by_name = {n.python: n for n in known}
    inputs = tuple(a.name for a in fp.arguments if isinstance(a, TensorArgument))
    order: list[str | Number] = [a.name if a.name in inputs else by_name[a.name] for a in fp.arguments]
    order += [n for n in known if n not in order]
    scratch = tuple(dict.fromkeys(b for r in regions for b in r.written if b not in results))
    whole_order = (*order, *results)
    held = held_by_module(fp)
    exact = owes_half(fp), tells_small_from_zero(fp)
    fixed = numbers_held(fp, regions)
    return Function("forward", inputs, tuple(results), scratch, tuple(regions), specs, whole_order, held, *exact, fixed)


def held_by_module(fp: FunctionalProblem) -> frozenset[str]:
    """Return the names of parameters and buffers."""
    return frozenset(a.name for a in fp.tensors if a.role != "input")


def part_function(
    fp: FunctionalProblem,
    name: str,
    regions: Sequence[Region],
    needed: set[str],
    specs: dict[str, TensorSpec],
    *,
    gradual: bool,
    held_numbers: tuple[tuple[Number, Scalar], ...] = (),
) -> Function:
    """Return a function of the composed tier, with only the buffers and numbers that these regions use.

    `needed` buffers are outputs; the others that the regions write are scratch memory. `gradual` and `held_numbers`,
    which it only compares, are as of the function.
    """
    written = list(dict.fromkeys(b for r in regions for b in r.written))
    outputs = tuple(b for b in written if b in needed)
    inputs = tuple(dict.fromkeys(v.buffer for r in regions for v in loads_of(r) if v.buffer not in written))
    used = named_numbers(regions) | {n.name for n, _ in held_numbers}
    order: tuple[str | Number, ...] = (*inputs, *(n for n, _ in numbers(fp) if n.name in used), *outputs)
    scratch = tuple(b for b in written if b not in outputs)
    named = dict.fromkeys([*inputs, *written, *(b for r in regions for b in r.stores)])
    known = {b: specs[b] for b in named if b in specs}
    held, near = held_by_module(fp), owes_half(fp)
    return Function(name, inputs, outputs, scratch, tuple(regions), known, order, held, near, gradual, held_numbers)


def short_loops(nest: Nest) -> list[Loop]:
    """Return the reduced loops of at most SHORT steps; an image that lies together is one loop."""
    return [loop for loop in nest.reduced if loop.count <= SHORT]


def innermost(nest: Nest, most: int) -> list[Loop]:
    """Return the innermost reduced loops, as far as they take at most so many steps together.

    These are worth unrolling: it gains nothing to know how many steps there are of a loop around a longer one.
    """
    loops = nest.reduced[::-1]
    steps = accumulate((loop.count for loop in loops), mul)
    return [loop for loop, together in zip(loops, steps, strict=True) if together <= most]


def batch_loops(function: Function) -> set[ir.Atom]:
    """Return the loops that are the first dimension of what a call is given, and no other: how many things there are.

    Of all sizes these differ between calls, so that none of them is a number, however short it is.
    """
    shapes = [v.stored for region in function.regions for v in loads_of(region) if v.buffer in function.inputs]
    given = [
        ir.leaves(v.stored[0])
        for region in function.regions
        for v in loads_of(region)
        if v.buffer in function.inputs and v.buffer not in function.held and v.stored
    ]
    inner = {leaf for shape in shapes for group in shape[1:] for leaf in ir.leaves(group)}
    return {leaves[0] for leaves in given if len(leaves) == 1} - inner


def literal_of(value: Scalar) -> str:
    """Return a number as C has it, to the last bit."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


@dataclass(slots=True)
class Sizes:
    """Declarations of all loop sizes, solved from tensor sizes; a size that cannot be solved is a number of this
    problem.
    """

    names: Names
    declarations: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    known: set[ir.Atom] = field(default_factory=set)
    constants: dict[str, str] = field(default_factory=dict)  # those that are numbers
    free: bool = True
    nests: dict[Region, tuple[Nest, dict[ir.Value, int]]] = field(default_factory=dict)  # as far as they were asked for

    def nest_of(self, region: Region) -> tuple[Nest, dict[ir.Value, int]]:
        """Return the loops of a region and the levels of its values, which every kind of kernel for it asks for."""
        if region not in self.nests:
            self.nests[region] = build_nest(region, self.names), levels(region.stores.values())
        return self.nests[region]

    def solve(self, function: Function, *, short: int = SHORT, free: bool = True) -> None:
        """Declare every size of the function's loops, and collect checks that other shapes satisfy the equations.

        The innermost reduced loops of at most `short` steps are numbers in the source, but for the batch. So are
        sizes that only follow from what a loop runs along, unless they are to be `free`: a GPU divides by numbers
        more quickly.
        """
        self.free = free
        self.checks += [f"{n.name} == {literal_of(value)}" for n, value in function.held_numbers]
        external, internal = self.equations(function)
        plain = [r for r in function.regions if not any(tile_of(v) for v in ir.walk(*r.stores.values()))]
        nests = [build_nest(r, Names()) for r in plain if any(a.size <= SHORT for a in r.reduced)]
        batch = batch_loops(function)
        brief = {leaf for nest in nests for loop in short_loops(nest) for leaf in loop.leaves} - batch
        numbers = {leaf for nest in nests for loop in innermost(nest, short) for leaf in loop.leaves} - batch
        for _, group in external:
            for leaf in ir.leaves(group):
                if leaf.fixed or leaf in numbers:
                    self.declare(leaf, str(leaf.size))
        for leaf in {leaf: None for pair in internal for group in pair for leaf in ir.leaves(group) if leaf.fixed}:
            self.declare(leaf, str(leaf.size))
        pending = list(dict.fromkeys((t, ir.leaves(g)) for t, g in external))
        while True:
            pending = self.settle(pending, internal)
            if self.parted_alike(internal):
                continue
            unknown = [leaf for _, group in pending for leaf in group if leaf not in self.known]
            if not unknown:
                break
            # Which part of a split dimension is a number nobody knows: a short one, or all are, of this problem.
            number = next((leaf for leaf in unknown if leaf in brief), unknown[0])
            if number not in brief:
                self.checks += [f"{t} == {ir.size_of(g)}" for t, g in pending if number in g]
            self.declare(number, str(number.size))
        tied = {leaf for _, group in external for leaf in ir.leaves(group)}
        rest = [leaf for left, right in internal for leaf in (*ir.leaves(left), *ir.leaves(right))]
        numeric = self.following((a for a in self.known if self.names[a] in self.constants), internal, along=False)
        loose = {leaf for leaf in rest if leaf not in self.known | tied and not leaf.fixed}
        loose -= self.following(self.known, internal, along=True)
        loose -= {a for a in loose for _, p in ir.slices(a) if numeric >= {*ir.leaves(p.group)} and not p.grows}
        if loose:
            # A loop that nothing tells the size of (windows or a slice that are summed): right at these sizes only.
            self.checks += [f"{text} == {ir.size_of(group)}" for text, group in dict.fromkeys(external)]
        for leaf in rest:
            self.declare(leaf, str(leaf.size))
        for pair in internal:
            self.checks += self._read_back(*pair)
        in_order = sorted(self.known, key=lambda leaf: leaf.serial)
        runs = [(leaf, along) for leaf in in_order for along in (leaf.along, *leaf.also) if along]
        self.checks += dict.fromkeys(check for leaf, along in runs if (check := self._along(leaf, along)))
        for nest in nests:
            self.checks += self._few(nest)
        for leaf in in_order:
            for sliced, part in ir.slices(leaf):
                self.checks += self._fits(sliced.leaves(), part)
        bounded = [leaf for leaf in in_order if leaf.most]
        self.checks += [f"{self.names[leaf]} > 0 && {self.names[leaf]} <= {leaf.most}" for leaf in bounded]

    def equations(self, function: Function) -> tuple[list[tuple[str, ir.Group]], list[tuple[ir.Group, ir.Group]]]:
        """Return sizes of parameters with their loops, and scratch buffers' loops with those that read them."""
        external: list[tuple[str, ir.Group]] = []
        internal: list[tuple[ir.Group, ir.Group]] = []
        stored = dims_stored(function.regions)
        for region in function.regions:
            for buffer in region.stores:
                if whole_of(buffer) in function.outputs:
                    external += [(f"{c_name(buffer)}.size({d})", g) for d, g in enumerate(region.dims(buffer))]
            for v in loads_of(region):
                if v.buffer in function.inputs:
                    external += [(f"{c_name(v.buffer)}.size({d})", g) for d, g in enumerate(v.stored)]
                else:
                    internal += loops_read_back(v, stored)
            internal += [((a,), (a,)) for a in loops_named(region)]
        return external, internal

    def settle(
        self, pending: list[tuple[str, ir.Group]], internal: list[tuple[ir.Group, ir.Group]]
    ) -> list[tuple[str, ir.Group]]:
        """Solve every equation with one unknown, turn those without any into checks, and return the rest."""
        progress = True
        while progress:
            progress = False
            for text, group in list(pending):
                if len([leaf for leaf in group if leaf not in self.known]) <= 1:
                    pending.remove((text, group))
                    self.solve_one(text, group)
                    progress = True
            for leaf in {leaf: None for pair in internal for group in pair for leaf in ir.leaves(group)}:
                if leaf not in self.known and self.free and leaf.along and self._tells(leaf.along):
                    self.declare(leaf, self._steps(leaf.along))
                    progress = True
            for left, right in internal:
                for mine, other in ((left, right), (right, left)):
                    unknown = [leaf for leaf in ir.leaves(mine) if leaf not in self.known]
                    if len(unknown) == 1 and all(leaf in self.known for leaf in ir.leaves(other)):
                        self.solve_one(self.names.product(other), ir.leaves(mine))
                        progress = True
        return pending

    def following(
        self, told: Iterable[ir.Atom], internal: list[tuple[ir.Group, ir.Group]], *, along: bool
    ) -> set[ir.Atom]:
        """Return the loops whose sizes follow from told ones: they read a buffer or, if so, run `along` others.

        What is a number of the text for want of a tensor that tells it has a check that it is what follows.
        """
        found, before = {*told}, -1
        while len(found) > before:
            before = len(found)
            for left, right in internal:
                for mine, other in ((left, right), (right, left)):
                    rest = [leaf for leaf in ir.leaves(mine) if leaf not in found]
                    if len(rest) == 1 and found.issuperset(ir.leaves(other)):
                        found.add(rest[0])
                    elif along:
                        found.update(leaf for leaf in rest if leaf.along and found.issuperset(leaf.along.leaves()))
        return found

    def parted_alike(self, internal: list[tuple[ir.Group, ir.Group]]) -> bool:
        """Declare the parts of a dimension that is read in as many parts, of the same sizes, as it was stored in.

        Return whether there was one of which they were not known.
        """
        for left, right in internal:
            for mine, other in ((ir.leaves(left), ir.leaves(right)), (ir.leaves(right), ir.leaves(left))):
                alike = [leaf.size for leaf in mine] == [leaf.size for leaf in other] and self.known.issuperset(other)
                if alike and not self.known.issuperset(mine):
                    for leaf, told in zip(mine, other, strict=True):
                        self.declare(leaf, self.names[told])
                    return True
        return False

    def _few(self, nest: Nest) -> list[str]:
        """Return the check that short loops are not so long that a sum over them wants a wider type.

        One thread may add them up, in the type of the values; that of a `free` row is joined in another.
        """
        short = [] if self.free and nest.schedule == "row" else short_loops(nest)
        leaves = tuple(a for loop in short for a in loop.leaves if self.names[a] not in self.constants)
        return [f"{self.names.product(leaves)} <= {max(FEW, ir.size_of(leaves))}"] if leaves else []

    def _tells(self, along: ir.Along) -> bool:
        return all(leaf in self.known for leaf in along.leaves())

    def _steps(self, along: ir.Along) -> str:
        """Return the number of steps of a loop that runs along groups."""
        return along.text(map(self.names.product, along.groups), "/")

    def _read_back(self, left: ir.Group, right: ir.Group) -> list[str]:
        """Return the check that a buffer is read at the sizes at which it was stored, unless one tells the other."""
        mine, other = (self.names.product(group) for group in (left, right))
        told = {f"const int64_t {a} = {b};" for a, b in ((mine, other), (other, mine))}
        numbers = {self._number(left), self._number(right)}
        same = mine == other or (len(numbers) == 1 and None not in numbers) or not told.isdisjoint(self.declarations)
        return [] if same or f"{other} == {mine}" in self.checks else [f"{mine} == {other}"]

    def _fits(self, group: ir.Group, part: ir.Part) -> list[str]:
        """Return the check that a slice ends where what it is a slice of does; none where these are numbers."""
        whole = ir.leaves(part.group)
        if not part.step or not self.known.issuperset((*group, *whole)) or not {*group}.isdisjoint(whole):
            return []
        if None not in (self._number(group), self._number(part.group)):
            return []
        text = part.fits(self.names.product(group), self.names.product(part.group))
        return [] if text in self.checks else [text]

    def _number(self, group: ir.Group) -> int | None:
        """Return how many elements a group has where that is a number."""
        texts = [self.constants.get(self.names[leaf], "") for leaf in ir.leaves(group)]
        return prod(map(int, texts)) if all(texts) else None

    def _along(self, leaf: ir.Atom, along: ir.Along) -> str:
        """Return the check that a loop is as long as what it runs along lets it be; "" where nothing tells."""
        if not self._tells(along) or leaf in along.leaves():
            return ""
        if along.equal:
            return f"{self.names[leaf]} * {along.parts} == {self._steps(replace(along, parts=1))}"
        told = self._steps(along)
        by_it = f"const int64_t {self.names[leaf]} = {told};" in self.declarations
        return "" if by_it else f"{self.names[leaf]} == {told}"

    def solve_one(self, text: str, group: ir.Group) -> None:
        """Declare the one unknown leaf of `text == product of the group`, and check the equation if it has others."""
        unknown = [leaf for leaf in group if leaf not in self.known]
        if unknown:
            rest = tuple(leaf for leaf in group if leaf is not unknown[0])
            self.declare(unknown[0], f"{text} / ({self.names.product(rest)})" if rest else text)
        if not unknown or len(group) > 1:
            self.checks.append(f"{text} == {self.names.product(group)}")

    def declare(self, leaf: ir.Atom, text: str) -> None:
        """Declare a leaf's size, once."""
        if leaf not in self.known:
            self.known.add(leaf)
            if text.isdigit():
                self.constants[self.names[leaf]] = text
            self.declarations.append(f"const int64_t {self.names[leaf]} = {text};")
