"""From the ATen graph to steps: stored values (to be fused into kernels) and calls that stay with the library.

Comes in: a FunctionalProblem and the rules by operator name. Goes out: a `Lowered` with its steps in order. Nothing is
stored until it is needed: as a graph output, by a library call, or because its loops cannot be shared (`Unfusable`).
Knows nothing of C++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, Scalar, ScalarArgument, TensorSpec
from rag_kernels.eval.records import Value as Argument
from rag_kernels.eval.traits.aten import TAKES_TURNED, base_name, operator
from rag_kernels.offline.graph.growing_concat import growing
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.graph.shared_factors import shared_factors
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import FLOAT8, ITEMSIZE, is_float
from rag_kernels.offline.ir.expressions import Expr, Pointwise, add, apply, cast_value, mul
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.parameters import Number, numbers
from rag_kernels.offline.ir.patterns import NARROWED, before_rounding, narrow_dtype, strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.alike import share_loops
from rag_kernels.offline.lowering.steps import Library, Lowered, Ordered, Scattered, Segmented, Step, Stored

WRITTEN_OUT = 4  # terms of a sum that are an expression and no loop, where each has at most so many loads:
TERM_LOADS = 8
MOST_LOADS = 8  # of a factor that several products read; one that takes more is stored anyway
PLACES = {"start", "step", "index", "shifts", "diagonal", "offset"}  # arguments that say where; those of sizes are told
ONE_PLACE = {"slice", "narrow", "select"}  # along a dimension
JOINS = {Kind.SUM: add, Kind.PROD: mul}
MANY_LANES = 256  # of a product on a GPU
LEFT = "left to the library"  # why a rule does not take a product that it could
TURNS = frozenset({"t", "transpose", "permute"})
FEW_AGAIN, MANY_AGAIN = 6, 32  # expressions that are computed wherever they are read: on a CPU, and on a GPU


@dataclass(slots=True)
class Entry:
    """The meaning of a name of the graph: values (several for a chunk), or one buffer, or both."""

    values: tuple[ir.Value, ...] = ()
    buffer: str = ""
    dtype: str = ""  # of the first value in the graph
    view: Node | None = None  # a pure view of a buffer: a library call can have it for nothing
    turned: Node | None = None  # another order of dimensions of what is computed: so can a product once that is stored


Rule = Callable[["Lowering", Node], ir.Value | tuple[ir.Value, ...]]


@dataclass(slots=True)
class Lowering:
    """The state of one walk over the graph; rules call its methods to build values."""

    fp: FunctionalProblem
    free: bool = False  # pieces of a dimension begin where its size says, not at numbers, which vectors would want
    env: dict[str, Entry] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    loops: ir.Loops = field(default_factory=ir.Loops)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    numbers: list[tuple[Number, Scalar]] = field(default_factory=list)
    loaded: dict[str, ir.Load] = field(default_factory=dict)
    kept: dict[tuple[ir.Value, str], str] = field(default_factory=dict)  # value and dtype that are stored -> buffer
    storage: dict[ir.Value, str] = field(default_factory=dict)  # value -> dtype of the graph, where it is another
    growing: dict[str, Node] = field(default_factory=dict)  # the longest concatenation that begins as this one
    slots: dict[str, tuple[ir.Atom, int]] = field(default_factory=dict)  # its dimension, and how many are in place
    made: set[ir.Value] = field(default_factory=set)  # loads of whole buffers that a step of its own writes
    depths: dict[ir.Value, int] = field(default_factory=dict)  # how many operators stand one behind another in a value
    short: int = 0  # sums of at most so many terms are written out
    shared: frozenset[str] = frozenset()  # names of values that several products read
    recurs: bool = False  # whether recurrent layers have kernels
    again: int = FEW_AGAIN  # expressions that are cheap enough to be computed at every place that reads them
    apart: frozenset[str] = frozenset()  # names of factors that kernels of their own read: not among those
    shapes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what reshapes make, as far as it is known
    moved: frozenset[str] = frozenset()  # nodes with places that are others at other sizes, and with lengths:
    grown: frozenset[str] = frozenset()
    lanes: int = 0  # of a product's other factor, from which one that combines tensors is stored; 0: never
    turns: bool = False  # whether products of the library read other orders of dimensions where they lie
    fed: bool = False  # whether the copy engine brings factors of fp32, so that any that is computed is stored there

    def run(self, rules: dict[str, Rule]) -> Lowered:
        """Return the problem's steps; operators without a rule stay with the library.

        Raises AssertionError when a rule builds a value of another shape than the graph says.
        """
        self.numbers, self.growing, self.shared = numbers(self.fp), growing(self.fp), shared_factors(self.fp)
        self.shared -= self.apart
        self.shapes = {made.node: made.texts for made in self.fp.shapes}
        self.moved = frozenset(node for node, argument in self.fp.follows if argument in PLACES)
        self.grown = frozenset(node for node, argument in self.fp.follows if argument in {"end", "length"})
        for argument in self.fp.arguments:
            if isinstance(argument, ScalarArgument):
                self.scalars[argument.name] = argument.value
            else:
                self.specs[argument.name] = argument.spec
                self.env[argument.name] = Entry(buffer=argument.name)
        for node in self.fp.nodes:
            self.env[node.name] = self.lower(node, rules)
        buffers = tuple(self.buffer(name) for name in self.fp.results)
        share_loops((step.value for step in self.steps if isinstance(step, Stored) and not step.slot), self.loops)
        return Lowered(self.fp, tuple(self.steps), buffers, self.specs, tuple(dict.fromkeys(self.stopped)))

    def lower(self, node: Node, rules: dict[str, Rule]) -> Entry:
        """Return the entry of a node, by its rule or as a library call.

        An Unfusable rule is tried again with its arguments stored.
        """
        if node.op == "getitem":
            return self.item(node)
        name = base_name(node.op)
        reason = "no rule"
        if name in rules:
            for attempt in (1, 2):
                try:
                    found = rules[name](self, node)
                except ir.Unfusable as why:
                    reason = str(why)
                    if attempt == 1:
                        if reason == LEFT:
                            self.store_turned(node)
                        self.store_arguments(node)
                    continue
                found = self.as_stored(found, node)
                if node.name in self.moved:
                    self.hold(node, found)
                if node.name in self.grown and isinstance(found, ir.Value):
                    for leaf in ir.leaves(atom for group in found.dims for atom in group):
                        leaf.within = tuple(replace(part, grows=True) for part in leaf.within)
                values = found if isinstance(found, tuple) else (found,)
                for value, spec in zip(values, node.outputs, strict=False):
                    if value.shape != spec.shape:
                        raise AssertionError(f"{node.op}: lowered to {value.shape}, the graph says {spec.shape}")
                    self.loops.track(value)
                    if value.dtype != spec.dtype:
                        self.storage[value] = spec.dtype
                if isinstance(found, ir.Load) and found.buffer == node.name:  # written slot by slot
                    return Entry(buffer=node.name)
                if made := None if isinstance(found, tuple) else self.already_made(found, node.outputs[0].dtype):
                    return made
                again = node.name in self.shared and isinstance(found, ir.Value) and is_computed_again(found)
                if isinstance(found, ir.Value) and (again or ir.depth(found, self.depths) > ir.DEEPEST):
                    return Entry(buffer=self.store(found, node.name, node.outputs[0].dtype))
                turned = node if self.turns and name in TURNS else None
                view = node if self.is_view(node, name) else None
                return Entry(values, dtype=node.outputs[0].dtype, view=view, turned=turned)
        if not operator(name).view:
            self.stopped.append(f"{name} ({reason})" if name in rules else name)
        return self.keep(node)

    def hold(self, node: Node, found: ir.Value | tuple[ir.Value, ...]) -> None:
        """Make numbers of the sizes of what a node takes and makes: its places are right at these alone."""
        if base_name(node.op) in ONE_PLACE:
            ir.hold([self.value(given(node, 0)).dims[given(node, 1, "dim", 0)]])
            return
        for value in (*map(self.value, map(Ref, refs(node.args))), *(found if isinstance(found, tuple) else (found,))):
            ir.hold(value.dims)

    def is_view(self, node: Node, name: str) -> bool:
        """Return whether the node is a view of something stored."""
        source = node.args[0]
        entry = self.env.get(source.name) if isinstance(source, Ref) else None
        return operator(name).view and entry is not None and bool(entry.buffer or entry.view)

    def keep(self, node: Node) -> Entry:
        """Leave the operator to the library; its tensor arguments become buffers."""
        self.store_turned(node)
        node = replace(
            node,
            args=tuple(self.buffered(a) for a in node.args),
            kwargs=tuple((k, self.buffered(v)) for k, v in node.kwargs),
        )
        self.steps.append(Library(node))
        if len(node.outputs) == 1 and not operator(node.op).pieces:
            self.specs[node.name] = node.outputs[0]
            return Entry(buffer=node.name)
        return Entry(buffer=node.name, view=node)

    def store_turned(self, node: Node) -> None:
        """Store what a product of the library reads in another order of dimensions as it is computed, with a view."""
        read = refs(node.args) if base_name(node.op) in TAKES_TURNED else ()
        for entry in (self.env[name] for name in read if name in self.env):
            if entry.turned is not None and not entry.buffer:
                entry.buffer = self.keep(entry.turned).buffer

    def buffered(self, value: Argument) -> Argument:
        """Return an argument with its names replaced by those of buffers."""
        if isinstance(value, Ref):
            return value if value.name in self.scalars else Ref(self.buffer(value.name))
        return tuple(self.buffered(v) for v in value) if isinstance(value, tuple) else value

    def item(self, node: Node) -> Entry:
        """Return the entry of one output of a node that has several."""
        source, index = node.args
        assert isinstance(source, Ref) and isinstance(index, int)
        entry = self.env[source.name]
        if entry.values:
            value, dtype = entry.values[index], node.outputs[0].dtype
            return self.already_made(value, dtype) or Entry((value,), dtype=dtype)
        self.steps.append(Library(node))
        self.specs[node.name] = node.outputs[0]
        return Entry(buffer=node.name)

    def already_made(self, value: ir.Value, dtype: str) -> Entry | None:
        """Return the buffer that holds a value in a dtype because a step of its own writes it, or None."""
        made = isinstance(value, ir.Load) and value in self.made and value.storage == dtype
        return Entry(buffer=value.buffer) if made and isinstance(value, ir.Load) else None

    def buffer(self, name: str) -> str:
        """Return the buffer that holds a graph name, stored now if it was not."""
        entry = self.env[name]
        if entry.buffer:
            return entry.buffer
        if entry.view is not None:
            entry.buffer = self.keep(entry.view).buffer
        else:
            entry.buffer = self.store(entry.values[0], name, entry.dtype)
            entry.values = ()
        return entry.buffer

    def store(self, value: ir.Value, name: str = "", dtype: str = "") -> str:
        """Write a value to a buffer of its own (once), in its dtype of the graph, and return the buffer's name."""
        dtype = dtype or self.storage.get(value, value.dtype)
        if (value, dtype) not in self.kept:
            name = name or f"part{len(self.kept)}"
            spec = TensorSpec(value.shape, dtype)
            self.specs[name] = spec
            self.steps.append(Stored(name, before_rounding(value, dtype), spec))
            self.kept[value, dtype] = name
        return self.kept[value, dtype]

    def joined(self, node: Node, values: list[ir.Value], dim: int) -> ir.Value:
        """Return values side by side along a dimension, each written to its slot of one buffer.

        The buffer is that of the longest concatenation which begins with them, where the first ones may be already.
        """
        spec, last = node.outputs[0], self.growing.get(node.name, node)
        if self.free and last is node:
            return self.placed(node, values, dim)
        total, filled = self.slots.get(last.name, (ir.Atom(last.outputs[0].shape[dim], fixed=True), 0))
        start = sum(value.shape[dim] for value in values[:filled])
        for value in values[filled:]:
            for leaf in ir.leaves(value.dims[dim]):
                leaf.fixed = True  # the slots' places are numbers in the source
            rounded = before_rounding(value, last.outputs[0].dtype)
            self.steps.append(Stored(last.name, rounded, last.outputs[0], ir.Slot(dim, start, total)))
            start += value.shape[dim]
        self.slots[last.name] = total, max(filled, len(values))
        self.specs[last.name] = last.outputs[0]
        whole = ir.load(last.name, spec.shape, spec.dtype)
        if last.name != node.name:
            for atom in whole.dims[dim]:
                atom.fixed = True
            whole.stored = (*whole.dims[:dim], (total,), *whole.dims[dim + 1 :])
        return whole

    def placed(self, node: Node, values: list[ir.Value], dim: int) -> ir.Value:
        """Return values side by side along a dimension, each behind as many elements as those before it have."""
        spec = node.outputs[0]
        values = [self.reload(v) if len(ir.leaves(v.dims[dim])) > 1 else v for v in values]
        groups = tuple(v.dims[dim] for v in values)
        along = ir.Along(groups)
        total = ir.Atom(spec.shape[dim], along=along) if any(groups) else ir.Atom(spec.shape[dim], fixed=True)
        for i, value in enumerate(values):
            slot = ir.Slot(dim, 0, total, groups[:i])
            self.steps.append(Stored(node.name, before_rounding(value, spec.dtype), spec, slot))
        self.specs[node.name] = spec
        return ir.load(node.name, spec.shape, spec.dtype)

    def store_arguments(self, node: Node) -> None:
        """Detach the arguments from their loops: computed ones are stored, stored ones get new loops."""
        for name in refs(node.args):
            entry = self.env.get(name)
            if entry and entry.buffer:
                self.loaded.pop(entry.buffer, None)
            if entry and entry.values and not all(isinstance(v, ir.Load | ir.Const) for v in entry.values):
                if len(entry.values) == 1:
                    self.buffer(name)
                else:
                    entry.values = tuple(self.reload(v) for v in entry.values)

    def reload(self, value: ir.Value, dtype: str = "") -> ir.Load:
        """Return the value as a load with loops of its own, stored now if it was not; in a dtype if one is named."""
        name = self.store(value, dtype=dtype)
        return ir.load(name, self.specs[name].shape, self.specs[name].dtype)

    def reload_laid(self, value: ir.Value, dtype: str = "", *, as_computed: bool = False) -> ir.Value:
        """Return the value as a load with loops of its own: of what is stored already in another order of dimensions if
        there is such, and of one element along the dimensions in which it is expanded; in a dtype if one is named.

        What is stored now lies as it is read, or `as_computed`."""
        dtype = dtype or self.storage.get(value, value.dtype)
        groups, own = [ir.leaves(group) for group in value.dims], ir.tree_atoms(value)
        if any(group and own.isdisjoint(group) for group in groups):
            narrow = self.with_dims(value, tuple(() if own.isdisjoint(group) else group for group in groups))
            found = self.reload_laid(narrow, dtype, as_computed=as_computed)
            wide = zip(found.dims, groups, strict=True)
            return self.with_dims(found, tuple(group if own.isdisjoint(group) else mine for mine, group in wide))
        for (kept, stored), name in self.kept.items():
            laid = [ir.leaves(group) for group in kept.dims]
            if strip(kept) is not strip(value) or stored != dtype:
                continue
            long = [group for group in groups if group]
            if len(set(long)) == len(long) and {group for group in laid if group} == set(long):
                again = ir.load(name, self.specs[name].shape, dtype)
                dims = tuple(again.dims[laid.index(group)] if group else () for group in groups)
                return self.with_dims(again, dims)
        below = strip(value)
        if as_computed and below is not value and {*groups} == {ir.leaves(group) for group in below.dims}:
            self.store(below, dtype=dtype)
            return self.reload_laid(value, dtype)
        return self.reload(value, dtype)

    def stored(self, value: ir.Value) -> ir.Load:
        """Return the value as a load: itself if it is one."""
        return value if isinstance(value, ir.Load) else self.reload(value)

    # What rules use -------------------------------------------------------------------------------------------

    def value(self, argument: Argument, dtype: str = "float32") -> ir.Value:
        """Return a tensor or number of the graph as a value.

        Raises Unfusable for a dtype that kernels do not have.
        """
        if isinstance(argument, Ref) and argument.name not in self.scalars:
            entry = self.env[argument.name]
            if entry.values:
                return entry.values[0]
            spec = self.specs[entry.buffer]
            if spec.dtype not in ITEMSIZE:
                raise ir.Unfusable(f"dtype {spec.dtype}")
            if entry.buffer not in self.loaded:
                self.loaded[entry.buffer] = ir.load(entry.buffer, spec.shape, spec.dtype)
                self.loops.track(self.loaded[entry.buffer])
            return self.loaded[entry.buffer]
        return self.scalar(argument, dtype)

    def scalar(self, argument: Argument, dtype: str) -> ir.Value:
        """Return a number, under the name of the keyword constant that carries it.

        So a kernel serves other values too. Raises Unfusable for an argument that is not a number.
        """
        number: Argument
        if isinstance(argument, Ref):
            number = self.scalars[argument.name]
            name = next(n.name for n, _ in self.numbers if n.python == argument.name)
        else:
            same = [n.name for n, v in self.numbers if type(v) is type(argument) and v == argument and n.is_operand]
            number, name = argument, same[0] if len(same) == 1 else ""
        if not isinstance(number, bool | int | float):
            raise ir.Unfusable("an argument that is not a number")
        return ir.Const((), dtype, number, name)

    def op(self, function: Pointwise, *args: ir.Value, dtype: str = "") -> ir.Value:
        """Return a pointwise expression over broadcast arguments, in a dtype if one is named."""
        found = function(*(Expr(value) for value in self.align(list(args)))).value
        return self.tracked(cast_value(found, dtype or found.dtype))

    def cast(self, value: ir.Value, dtype: str) -> ir.Value:
        """Return the value in another dtype."""
        return self.tracked(cast_value(value, dtype))

    def as_stored(self, found: ir.Value | tuple[ir.Value, ...], node: Node) -> ir.Value | tuple[ir.Value, ...]:
        """Return what a rule gave, rounded where the graph has eight bits: so coarse that what reads it must see it."""
        if isinstance(found, ir.Value):
            dtype = node.outputs[0].dtype
            return self.rounded(found, dtype) if dtype in FLOAT8 and found.dtype == "float32" else found
        if FLOAT8.isdisjoint(spec.dtype for spec in node.outputs):
            return found
        pairs = zip(found, node.outputs, strict=True)
        return tuple(self.rounded(v, spec.dtype) if spec.dtype in FLOAT8 else v for v, spec in pairs)

    def rounded(self, value: ir.Value, dtype: str) -> ir.Value:
        """Return a value in float32 rounded to a narrow dtype, or itself where it has no more."""
        if narrow_dtype(value) == dtype:
            return value
        return self.tracked(apply(next(o for o, narrow in NARROWED.items() if narrow == dtype), value).value)

    def align(self, values: list[ir.Value]) -> list[ir.Value]:
        """Return broadcast values on shared loops.

        One whose loops clash with the others' is read again from storage.
        """
        done: list[ir.Value] = []
        for value in values:
            try:
                self.unify_with(done, value)
            except ir.Unfusable:
                value = self.fresh(value)
                self.unify_with(done, value)
            self.loops.track(value)
            done.append(value)
        return done

    def unify_with(self, done: list[ir.Value], value: ir.Value) -> None:
        """Unify a value's loops with those of other values of a broadcast.

        Raises Unfusable when one loop would serve two dimensions.
        """
        for other in done:
            for mine, theirs in zip(reversed(value.dims), reversed(other.dims), strict=False):
                if mine and theirs:
                    self.loops.unify(theirs, mine)
        used = [leaf for other in done for leaf in self.positions(other)]
        for atom, position in self.positions(value):
            if any(a is atom and p != position for a, p in used):
                raise ir.Unfusable("one loop would serve two dimensions")

    @staticmethod
    def positions(value: ir.Value) -> list[tuple[ir.Atom, int]]:
        """Return each leaf of a value with its dimension, counted from the end."""
        return [(leaf, -i) for i, group in enumerate(reversed(value.dims)) for leaf in ir.leaves(group)]

    def fresh(self, value: ir.Value) -> ir.Value:
        """Return the same value on loops of its own: rebuilt when that is cheap, otherwise stored and read again."""
        same = {a: ir.Atom(a.size, a.fixed, along=ir.Along(((a,),))) for g in value.dims for a in ir.leaves(g)}
        mapping = {a: ir.Form(((again, 1),)) for a, again in same.items()}
        dims = tuple(tuple(mapping[a].terms[0][0] for a in ir.leaves(g)) for g in value.dims)
        try:
            return ir.rebuild(value, mapping, dims)
        except ir.Unfusable:
            return self.read_in_shape(value) or self.reload(value)

    def read_in_shape(self, value: ir.Value) -> ir.Value | None:
        """Return the value as a load of what is stored of it in another shape, in the same order; None without such."""
        dtype = self.storage.get(value, value.dtype)
        order = [leaf for group in value.dims for leaf in ir.leaves(group)]
        for (kept, stored), name in self.kept.items():
            same = strip(kept) is strip(value) and stored == dtype and kept.shape != value.shape
            if same and [leaf for group in kept.dims for leaf in ir.leaves(group)] == order:
                with suppress(ir.Unfusable):
                    return self.view(ir.load(name, self.specs[name].shape, dtype), value.shape)
        return None

    def tracked(self, value: ir.Value) -> ir.Value:
        """Record the value with the loops that it uses, and return it."""
        self.loops.track(value)
        return value

    def scattered(
        self, base: ir.Value, places: Sequence[ir.Form | ir.Value], value: ir.Value, kind: Kind | None, dtype: str = ""
    ) -> ir.Load:
        """Return `base` in which elements of `value` took or joined those at `places`, one index for each dimension.

        `base` is stored anew, in `dtype` if one is named.
        """
        name = f"scattered{len(self.steps)}"
        while name in self.specs or name in self.env:
            name += "_"
        spec = TensorSpec(base.shape, dtype or base.dtype)
        self.specs[name] = spec
        self.steps.append(Stored(name, base, spec))
        self.steps.append(Scattered(name, base.dims, tuple(places), value, kind))
        made = ir.load(name, spec.shape, spec.dtype)
        self.made.add(made)
        return made

    def segmented(
        self,
        value: ir.Value,
        bounds: tuple[ir.Value, ir.Value],
        kind: Kind,
        *,
        takes: ir.Value | None = None,
        mean: bool = False,
        empty: float = 0,
        storage: str = "",
    ) -> ir.Load:
        """Return the rows of a value joined by segments, which begin and end at `bounds`.

        They are stored in the dtype `storage` if one is named.
        """
        name = f"segments{len(self.steps)}"
        while name in self.specs or name in self.env:
            name += "_"
        begin, end = self.align(list(bounds))
        dims = (begin.dims[0], *value.dims[1:])
        spec = TensorSpec(tuple(map(ir.size_of, dims)), storage or value.dtype)
        self.specs[name] = spec
        self.steps.append(Segmented(name, dims, value, value.dims[0], begin, end, takes, kind, mean, empty))
        made = ir.load(name, spec.shape, spec.dtype)
        self.made.add(made)
        return made

    def ordered(
        self, value: ir.Value, dim: int, count: int | None, *, descending: bool, storage: str = ""
    ) -> tuple[ir.Load, ir.Load]:
        """Return the first `count` elements of a value in order along a dimension, or all, and their indices.

        Elements are stored in the dtype `storage` if one is named.
        """
        over = value.dims[dim] if value.dims else ()
        taken = over if count is None else (ir.Atom(count, fixed=True),)
        return self._in_order(Ordered("", "", value.dims, value, over, taken, descending), storage)

    def ranked(self, value: ir.Value, dim: int, ranks: Sequence[ir.Value], *, nans: bool) -> tuple[ir.Load, ir.Load]:
        """Return the elements of some ranks in place of a dimension, and their indices; of one without that."""
        over, taken = value.dims[dim], (ir.Atom(len(ranks), fixed=True),) if len(ranks) > 1 else ()
        return self._in_order(Ordered("", "", value.dims, value, over, taken, False, tuple(ranks), nans), value.dtype)

    def _in_order(self, step: Ordered, storage: str) -> tuple[ir.Load, ir.Load]:
        """Add a step that makes two buffers, and return loads of them."""
        storage = storage or step.value.dtype
        names = [f"{what}{len(self.steps)}" for what in ("ordered", "order")]
        while any(name in self.specs or name in self.env for name in names):
            names = [name + "_" for name in names]
        shape = tuple(map(ir.size_of, step.stored))
        self.specs |= {names[0]: TensorSpec(shape, storage), names[1]: TensorSpec(shape, "int64")}
        self.steps.append(replace(step, elements=names[0], places=names[1]))
        found = ir.load(names[0], shape, storage), ir.load(names[1], shape, "int64")
        self.made.update(found)
        return found

    def reduce(self, kind: str, value: ir.Value, dims: Iterable[int], *, keep: bool, dtype: str = "") -> ir.Value:
        """Return the reduction of a value over some dimensions, which `keep` leaves with size one."""
        chosen = {d % len(value.dims) for d in dims} if value.dims else set()
        over = tuple(a for i, g in enumerate(value.dims) if i in chosen for a in g)
        left = [() if i in chosen else g for i, g in enumerate(value.dims)]
        out = tuple(g for i, g in enumerate(left) if keep or i not in chosen)
        if not over:
            return ir.Op(out, dtype or value.dtype, Operator.CAST if dtype else Operator.SAME, (value,))
        if len(chosen) == 1 and dtype in {"", value.dtype}:
            found = self.written_out(Kind(kind), value, *chosen)
            if found is not None:
                return self.with_dims(found, tuple(g for i, g in enumerate(found.dims) if keep or i not in chosen))
        return self.tracked(ir.Reduce(out, dtype or value.dtype, Kind(kind), value, over))

    def written_out(self, kind: Kind, value: ir.Value, dim: int) -> ir.Value | None:
        """Return a sum or product of a few cheap terms as an expression, or None where it is another reduction.

        Matrices of 3 x 3, colours and places in space are pointwise then, with what stands around them.
        """
        join, group = JOINS.get(kind), ir.leaves(value.dims[dim])
        few = len(group) == 1 and 1 < group[0].size <= self.short
        if join is None or not few or not is_float(value.dtype) or not is_cheap(value, loads=TERM_LOADS):
            return None
        group[0].fixed = True
        total, *others = [self.reindex(value, dim, partial(_one, place)) for place in range(group[0].size)]
        for term in others:
            total = self.op(join, total, term)
        return total

    def size(self, group: ir.Group, dtype: str) -> ir.Value:
        """Return the number of elements of a group as a value."""
        return ir.Size((), dtype, group)

    def view(self, value: ir.Value, shape: Iterable[int], *, fixed: Iterable[int] = ()) -> ir.Value:
        """Return the value in another shape, on the same loops.

        Raises Unfusable where that cuts across dimensions.
        """
        atoms = tuple(a for group in value.dims for a in group)
        dims = ir.regroup(atoms, tuple(shape), fixed=fixed)
        return self.with_dims(value, dims)

    def with_dims(self, value: ir.Value, dims: tuple[ir.Group, ...]) -> ir.Value:
        """Return the value with its dimensions listed in another way (no loop changes)."""
        return self.tracked(ir.Op(dims, value.dtype, Operator.SAME, (value,)))

    def reindex(
        self,
        value: ir.Value,
        dim: int,
        form: Callable[[], tuple[ir.Form, ir.Group]],
        along: Callable[[ir.Group], ir.Along | None] = lambda group: None,
        *,
        windows: bool = False,
        part: tuple[int, int] = (0, 0),
    ) -> ir.Value:
        """Return the value with one dimension indexed by an affine form over new loops (slice, flip, window).

        `along` says of how many steps the first of them is, by those of the dimension; `part` where a slice begins, and
        its step. Where `windows` is true no
        element is read twice, so that sums over short windows need not be stored first.
        """
        group = ir.leaves(value.dims[dim])
        if len(group) > 1:
            value = self.reload(value)
            group = ir.leaves(value.dims[dim])
        index, new = form()
        if new:
            new[0].along, new[0].within = new[0].along or along(group), (ir.Part(group, *part),)
        dims = (*value.dims[:dim], new, *value.dims[dim + 1 :])
        if not group:
            return self.with_dims(value, dims)
        try:
            return self.tracked(ir.rebuild(value, {group[0]: index}, dims, windows=windows))
        except ir.Unfusable:
            again = self.reload(value)
            if new:
                new[0].along, new[0].within = along(again.dims[dim]), (ir.Part(again.dims[dim], *part),)
            dims = (*again.dims[:dim], new, *again.dims[dim + 1 :])
            return self.tracked(ir.rebuild(again, {ir.leaves(again.dims[dim])[0]: index}, dims))


def _one(place: int) -> tuple[ir.Form, ir.Group]:
    return ir.Form((), place), ()


def is_computed_again(value: ir.Value) -> bool:
    """Return whether products would compute a factor wherever they read it: it is no tensor, and takes little."""
    return not isinstance(strip(value), ir.Load | ir.Const) and is_cheap(value, loads=MOST_LOADS)


def is_cheap(value: ir.Value, *, loads: int) -> bool:
    """Return whether a value takes no costly operation, no reduction, and at most so many loads."""
    every = list(ir.walk(value))
    costly = any(
        isinstance(v, ir.Reduce | ir.Scan) or (isinstance(v, ir.Op) and v.operator.traits.costly) for v in every
    )
    return not costly and sum(isinstance(v, ir.Load) for v in every) <= loads
