"""The reference worker: runs the problem's own module, and nothing of a candidate.

Role of a forked child (`serve`). It makes draws of inputs and parameters, answers timed calls (eager or compiled) on
the content that the judge has laid out, and has bytes that the judge, or on a GPU this worker, has copied compared
with what is right (`right_answers`). It never sees a candidate.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any, assert_never

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Recipe, compose
from rag_kernels.eval.buffers.shared_arena import ArenaLayout, attach
from rag_kernels.eval.children.baseline_variants import compile_ahead, dispatch_plainly, make
from rag_kernels.eval.children.bound_module import BoundModule
from rag_kernels.eval.children.gpu_buffers import answers, flush_caches
from rag_kernels.eval.children.gpu_delay import delay_until, set_clock
from rag_kernels.eval.children.gpu_exchange import Exchange, KeptOutputs
from rag_kernels.eval.children.gpu_shared_memory import NotShared
from rag_kernels.eval.children.memory import MemoryCount
from rag_kernels.eval.children.right_answers import RightAnswers
from rag_kernels.eval.machine.full_memory import ran_out_of_memory
from rag_kernels.eval.messages.protocol import opens_reference, reference_opening, reference_request
from rag_kernels.eval.messages.to_both import (
    Done,
    Leaf,
    MemoryTaken,
    Settle,
    Shared,
    TellMemory,
    TellShared,
    Unsupported,
)
from rag_kernels.eval.messages.to_reference import (
    AskForProbes,
    BringDraw,
    CallVariant,
    CheckOutputs,
    CompileAhead,
    ComputeAnswer,
    Drawn,
    EmptyExchange,
    Exchanged,
    MakeDraw,
    OfferDraw,
    Opened,
    OpenReference,
    PrepareVariant,
    Probes,
    ReadyVariant,
    ReferenceReply,
    ReferenceRequest,
    ShowPrecision,
    TakeOutputs,
    Timed,
    TookOutputs,
    WriteContent,
)
from rag_kernels.eval.numerics.arranged_inputs import (
    disordered,
    in_runs,
    irregular,
    is_mask,
    is_sorted,
    is_structured,
    lines_moved,
    nearly_as_kept,
    nearly_in_order,
    some_lines_zero,
    uneven,
)
from rag_kernels.eval.numerics.common_elements import in_common
from rag_kernels.eval.numerics.eight_bits import in_float32, narrowed
from rag_kernels.eval.numerics.exactness_probe import probed_contents, probes_of
from rag_kernels.eval.numerics.input_draws import (
    at_constants,
    at_ends,
    ends_of,
    far_parameter,
    on_side_of,
    redraw,
    spoiled,
)
from rag_kernels.eval.numerics.inputs_together import beside_others, put_far_apart, put_same_sums
from rag_kernels.eval.numerics.integer_draws import (
    from_the_end,
    next_to_multiples,
    out_of_range,
    repeated,
    some_ignored,
    widened,
    widest,
)
from rag_kernels.eval.numerics.oracle import (
    double_factories,
    is_constant,
    strict_precision,
    timed_precision,
    vary,
)
from rag_kernels.eval.numerics.searched_inputs import search
from rag_kernels.eval.process.channel import Channel, Failed
from rag_kernels.eval.records import FunctionalProblem, IndexBound, TensorArgument
from rag_kernels.eval.traits.input_kinds import (
    ALIKE,
    AT_CONSTANTS,
    BEGUN,
    DISORDER,
    ENDS,
    FAR_APART,
    FAR_PARAMETERS,
    FROM_END,
    IGNORED,
    INTEGER_KINDS,
    INTEGERS,
    IRREGULAR,
    KEPT,
    LINES,
    MASKED,
    MULTIPLES,
    NEARLY,
    NON_FINITE,
    OF_ITS_SIDE,
    ONE_TWICE_ZEROS,
    OTHER_COLUMNS,
    OUT_OF_RANGE,
    PADDED,
    PROBES,
    REPEATED,
    SAME_SUMS,
    SEARCHED,
    SMALL_WHOLE,
    TWICE,
    UNEVEN,
    UNTRUE,
    WIDEST,
)
from rag_kernels.eval.traits.marked_values import constants_of, ignored_targets
from rag_kernels.eval.traits.steps import alike_inputs, compares, has_to_ascend


def serve_cuda(channel: Channel) -> None:
    """Serve as `serve`, with the GPU's context and its library of products made before there is a problem.

    If that fails (a GPU may be full now), it is tried again when there is one, whose answer then says why.
    """
    with contextlib.suppress(Exception):
        for dtype in (torch.float32, torch.float64):
            some = torch.ones(8, 8, device="cuda", dtype=dtype)
            some @ some
        set_clock()
    serve(channel)


def serve(channel: Channel) -> None:
    """Answer the judge's requests until it hangs up: on one problem, or on one after the other."""
    opening: Message | None = channel.receive_first()
    while opening is not None:
        opening = _serve_one(channel, *opening)


def _serve_one(channel: Channel, message: Any, fds: list[int]) -> Message | None:
    """Serve one problem; return the message that opens the next, or None where this one could not be opened."""
    try:
        reference = Reference(reference_opening(message), fds)
        channel.send(codec.encode(reference.describe()))
    except Exception as error:
        channel.send(codec.encode(_failed(error, alive=False)))
        return None
    while True:
        message, fds = channel.receive()
        if opens_reference(message):
            return message, fds
        try:
            with torch.no_grad():
                reply, made = reference.answer(reference_request(message), fds)
            encoded = codec.encode(reply)
        except Exception as error:
            import traceback

            traceback.print_exc()
            encoded, made = codec.encode(_failed(error, alive=answers(reference.device))), []
        channel.send(encoded, made)
        for fd in made:
            os.close(fd)


def _failed(error: Exception, *, alive: bool) -> Failed:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, NotShared):
        return Failed("not_shared", str(error), alive)
    return Failed("memory" if ran_out_of_memory(error) else "raised", text, alive)


SOME_BOUNDS = 64  # of a tensor of bounds
Message = tuple[Any, list[int]]


class Reference:
    """One problem's module with its arguments bound to shared memory."""

    def __init__(self, message: OpenReference, fds: Sequence[int]) -> None:
        self.fp: FunctionalProblem = message.problem
        self.device = torch.device(message.device)
        torch.set_num_threads(message.threads)
        strict_precision()
        self.tf32 = message.tf32
        on_gpu = self.device.type != "cpu"  # there only their forms are of use
        content = attach(fds[0], message.content, writable=False, lazily=on_gpu)
        self.submitted = attach(fds[1], message.outputs, writable=False, lazily=on_gpu)
        self.exchange = Exchange(message.content.specs, message.outputs.specs)
        self.kept_outputs = KeptOutputs()
        self.memory = MemoryCount(self.device)
        self.draws: list[list[torch.Tensor]] = []
        self.begun = 0  # the seed of the one content whose lines come in other orders
        self.module = BoundModule(self.fp, self.device, content, message.seed)
        self.answers = RightAnswers(self.module, self.submitted, operands=message.operands)
        self.is_step = self.fp.step is not None
        self.variants: dict[str, Any] = {"eager": self.module.model}
        self.copies: list[list[Any]] = []  # of the input leaves, for the further calls of a burst
        self.inputs: list[Any] = []  # of the calls that come next
        self.kept: list[Any] = []  # the results of a burst, as a candidate's are kept

    def answer(self, request: ReferenceRequest, fds: Sequence[int]) -> tuple[ReferenceReply, list[int]]:
        """Do what is asked; the reply, and descriptors that go with it. Those that are timed come first."""
        reply: ReferenceReply = Done()
        made: list[int] = []
        dispatch_plainly()
        match request:
            case CallVariant(variant, calls, begin_s):
                reply = self.call(variant, calls, begin_s)
            case ReadyVariant(cold, calls):
                self.ready(cold=cold, calls=calls)
            case WriteContent(recipe):
                self.write(recipe)
            case MakeDraw(seed, kind, layout):
                reply = self.draw(seed, kind, attach(fds[0], layout, writable=True) if fds else [])
            case BringDraw(draw, layout):
                self.bring(draw, layout, fds[0])
            case EmptyExchange():
                reply, made = self.share()
            case OfferDraw(draw):
                self.offer(draw)
            case TakeOutputs(keep):
                reply = self.take(keep=keep)
            case PrepareVariant(variant):
                self.prepare(variant)
            case CompileAhead():
                self.compile_ahead()
            case ComputeAnswer(draw, noisy, moved):
                self.kept.clear()  # a GPU's memory may be needed
                reply = self.answers.compute(draw, noisy=noisy, moved=moved)
            case CheckOutputs(draw, taken, limits, noisy, settle, near):
                self.kept.clear()
                reply = self.answers.check(self._outputs(taken), draw, limits, noisy=noisy, settle=settle, near=near)
            case ShowPrecision(draw, taken, ordinary):
                outputs = self._outputs(taken)
                reply = self.answers.kept_bits(outputs, draw) if ordinary else self.answers.precision(outputs, draw)
            case AskForProbes():
                reply = Probes(probes_of(self.fp))
            case Settle():
                self.memory.settle()
            case TellMemory():
                reply = MemoryTaken(self.memory.peak_bytes())
            case TellShared():
                reply = Shared(self.shared())
            case _ as never:
                assert_never(never)
        return reply, made

    def shared(self) -> tuple[str, ...]:
        """Return which results of the module share elements, with each other or with arguments."""
        self.module.restore()
        results = self.module.call()
        leaves = {a.path: self.module.leaves[int(a.path)] for a in self.fp.tensors if a.role == "input"}
        return in_common(
            results, [leaves.get(a.path, t) for a, t in zip(self.fp.tensors, self.module.values, strict=True)]
        )

    def describe(self) -> Opened:
        """Return what the judge asks once: plain constructor inputs, for `ModelNew` candidates."""
        return Opened(json.dumps(_plain(self.module.init_inputs)), tuple(_plain_leaf(v) for v in self.module.leaves))

    def write(self, recipe: Recipe) -> None:
        """Compose every argument's content of draws (GPU only)."""
        for index, (tensor, part) in enumerate(zip(self.module.values, recipe, strict=True)):
            raw = tensor.reshape(-1).view(torch.uint8)
            compose(raw, [draw[index] for draw in self.draws], part, self.fp.tensors[index].spec)
        torch.cuda.synchronize()

    def draw(self, seed: int, kind: str, arena: list[torch.Tensor]) -> Drawn:
        """Make one draw of all tensor arguments, in the arena or, on a GPU, there; for the kinds see
        `numerics.input_draws`."""
        on_gpu = self.device.type != "cpu"
        places = [torch.empty_like(t) for t in self.module.values] if on_gpu else arena
        target = [in_float32(t) for t in places]  # of eight bits: what is drawn is rounded in the end
        if kind in LINES:  # of one content
            self.begun = self.begun or seed
        torch.manual_seed(self.begun if kind in LINES else seed)
        kind, of_its_side = kind.removesuffix(OF_ITS_SIDE), kind.endswith(OF_ITS_SIDE)
        kind, end = (ENDS, kind.removeprefix(ENDS)) if kind.startswith(ENDS) else (kind, "")
        with self.device:
            drawn = pytree.tree_leaves(list(self.module.get_inputs()))
            leaves = [in_float32(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in drawn]
        generator = torch.Generator(self.device).manual_seed(seed ^ 0x5EED)
        probed = probed_contents(self.fp, kind, generator) if kind in PROBES else {}
        constants = self._constants(leaves) if kind == AT_CONSTANTS else []
        masks = self._masks(leaves) if kind == MASKED else frozenset()
        first = True
        for argument, tensor, place in zip(self.fp.tensors, target, places, strict=True):
            dtype = place.dtype
            if argument.role == "input":
                value = leaves[int(argument.path)].to(self.device)
                if kind in INTEGER_KINDS and kind != PADDED and argument.spec.dtype in INTEGERS:
                    value = self._integers(kind, argument, value, generator)
                elif kind == OUT_OF_RANGE:
                    bound = next((b for b in self.fp.bounds if b.path == argument.path), None)
                    value = value if bound is None else out_of_range(value, bound, generator)
                elif kind == PADDED:
                    value = in_runs(value, generator) if self._may_mask(argument, value) else value
                elif kind in (ALIKE, UNTRUE) and argument.spec.dtype == "bool":
                    value = torch.full_like(value, kind == ALIKE)
                elif kind == ENDS:
                    value = at_ends(value, end, generator)
                elif kind == AT_CONSTANTS:
                    value = value if is_sorted(value) else at_constants(value, constants, generator)
                elif not (kind == "own" or is_sorted(value)):
                    beside = bool(probed) or (bool(masks) and argument.path not in masks)
                    value = redraw("normal" if beside else kind, value, generator, first=first, dtype=dtype)
                    first = False
                elif kind != "own":
                    value = redraw("normal" if probed else kind, value, generator).sort(dim=-1).values
                if of_its_side:
                    value = on_side_of(leaves[int(argument.path)].to(self.device), value)
            else:
                value = in_float32(self.module.initial[argument.name])
                varies = argument.role == "parameter" or is_constant(value)  # running statistics, not masks
                far = kind in FAR_PARAMETERS and argument.role == "parameter"
                value = far_parameter(kind, value, generator) if far else vary(value, generator) if varies else value
                value = (
                    redraw(kind, value, generator) if kind == SMALL_WHOLE and argument.role == "parameter" else value
                )
                value = spoiled(value, generator) if kind == NON_FINITE and argument.role == "parameter" else value
            if argument.name in probed:
                value = probed[argument.name](value)
            if kind in (IRREGULAR, DISORDER, NEARLY, UNEVEN, KEPT):
                value = self._irregular(kind, argument, leaves, generator)
            elif kind in LINES:
                value = value if argument.role == "input" else in_float32(self.module.initial[argument.name])
                if kind != BEGUN and argument.role != "buffer" and not is_structured(value):
                    value = lines_moved(value, -(kind == OTHER_COLUMNS), generator)
            tensor.copy_(value)
        if kind in (AT_CONSTANTS, MULTIPLES):
            self._beside(kind, target, generator)
        if kind in (FAR_APART, SAME_SUMS):
            free = [
                (t, a.spec.dtype)
                for a, t in zip(self.fp.tensors, target, strict=True)
                if self._is_free(a) and not is_sorted(t)
            ]
            if kind == SAME_SUMS:
                put_same_sums([t for t, _ in free], generator)
            else:
                put_far_apart([t for t, dtype in free if "float" in dtype], generator, sided=of_its_side)
        if kind in SEARCHED:
            self._search(kind, target, generator)
        if kind in TWICE:
            first_of = {i: j for i, j in enumerate(alike_inputs(self.fp)) if j < i}
            for j in set(first_of.values()) if kind == ONE_TWICE_ZEROS else ():
                target[j].copy_(some_lines_zero(target[j], generator))
            for i, j in first_of.items():
                target[i].copy_(target[j])
        for place, value in zip(places, target, strict=True):
            if place is not value:
                place.copy_(narrowed(value, place.dtype))
        if on_gpu:
            self.draws.append([t.reshape(-1).view(torch.uint8) for t in places])
        own = kind == "own"
        inputs = [t for a, t in zip(self.fp.tensors, target, strict=True) if a.role == "input"]
        return Drawn(
            tuple(own and is_structured(t) for t in target),
            tuple(own and is_sorted(t) for t in target),
            own and any(is_constant(t) for t in inputs),
            own and any(self._may_mask(a, t) for a, t in zip(self.fp.tensors, target, strict=True)),
            own and self._keeps(generator),
            own and any(ends_of(t) for t in inputs),
        )

    def _is_free(self, argument: TensorArgument) -> bool:
        """Return whether an input may be any other one of its range: no place is computed from it or written there."""
        owed = {*self.fp.as_drawn, *self.fp.mutated}
        return argument.role == "input" and argument.path not in owed and argument.spec.dtype != "bool"

    def _may_mask(self, argument: TensorArgument, value: torch.Tensor) -> bool:
        """Return whether an input may be a mask, and is no index that happens to be so small."""
        owed = {*self.fp.as_drawn, *self.fp.mutated, *(bound.path for bound in self.fp.bounds)}
        return argument.role == "input" and argument.path not in owed and is_mask(value)

    def _masks(self, leaves: Sequence[Any]) -> frozenset[str]:
        """Return the inputs that are masks which are added: what they hide lies beside ordinary numbers."""
        floats = [a for a in self.fp.tensors if a.role == "input" and "float" in a.spec.dtype]
        return frozenset(a.path for a in floats if self._may_mask(a, leaves[int(a.path)].to(self.device)))

    def _irregular(
        self, kind: str, argument: TensorArgument, leaves: Sequence[Any], generator: torch.Generator
    ) -> torch.Tensor:
        """Return what the problem has for an argument, but for a few elements where it is regular, in order or kept."""
        is_input = argument.role == "input"
        own = (leaves[int(argument.path)] if is_input else in_float32(self.module.initial[argument.name])).to(
            self.device
        )
        bound = next((b for b in self.fp.bounds if b.path == argument.path), None)
        if argument.path in self.fp.mutated:
            return own
        if kind == KEPT:
            return self._nearly(argument, own, generator)
        if kind == UNEVEN:
            return uneven(own, generator) if is_input and self._may_be_uneven(argument, own) else own
        if argument.path in self.fp.as_drawn:
            return own
        if kind == NEARLY:
            return nearly_in_order(own, bound, generator) if is_input and not is_structured(own) else own
        if kind == DISORDER:
            return disordered(own, bound, generator, ascends=has_to_ascend(self.fp, argument.name))
        return irregular(own, bound, generator) if is_input or argument.role == "parameter" else own

    def _nearly(self, argument: TensorArgument, own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return what the module keeps, nearly; anything else as it is."""
        owed = {*self.fp.as_drawn, *self.fp.mutated}
        return own if argument.role != "buffer" or argument.path in owed else nearly_as_kept(own, generator)

    def _keeps(self, generator: torch.Generator) -> bool:
        """Return whether the module keeps something that may be another."""
        begun = [(a, in_float32(self.module.initial[a.name])) for a in self.fp.tensors if a.role == "buffer"]
        return any(self._nearly(argument, value, generator) is not value for argument, value in begun)

    def _may_be_uneven(self, argument: TensorArgument, own: torch.Tensor) -> bool:
        """Return whether whole numbers may lie otherwise: several that places are computed from hang together, and on a
        GPU what is out of range ends all work.
        """
        computed = argument.path in self.fp.as_drawn
        bound = next((b for b in self.fp.bounds if b.path == argument.path), None)
        alike = own.numel() > 0 and bool((own == own.reshape(-1)[0]).all())
        if self.device.type != "cpu" and (computed or (bound is not None and alike)):
            return False
        return not computed or len(self.fp.as_drawn) == 1

    def _beside(self, kind: str, values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
        """Put elements of an input at those of other tensors, or at multiples of them, and beside."""
        inputs = [i for i, a in enumerate(self.fp.tensors) if a.role == "input"]
        whole = [i for i, a in enumerate(self.fp.tensors) if a.spec.dtype in INTEGERS]
        for i in inputs:
            others = [v for j, v in enumerate(values) if j != i]
            if kind == AT_CONSTANTS and compares(self.fp) and not is_sorted(values[i]):
                values[i].copy_(beside_others(values[i], others, generator))
            elif kind == MULTIPLES and i in whole and self.fp.tensors[i].path not in self.fp.as_drawn:
                divisors = [values[j] for j in whole if j != i]
                numbers = [int(c) for c in constants_of(self.fp) if math.isfinite(c) and c == int(c)]
                values[i].copy_(next_to_multiples(values[i], divisors, numbers, generator))
            else:
                continue
            return

    def _search(self, kind: str, values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
        """Search for inputs of a kind of results, of those that have the results' form; the module's own must be finite
        there."""
        form = next(s for s in self.fp.outputs if s.dtype == "float32")
        moved = [i for i, a in enumerate(self.fp.tensors) if a.role == "input" and a.spec == form]
        at, own = self.fp.outputs.index(form), [value.clone() for value in values]
        with torch.no_grad(), contextlib.suppress(RuntimeError, TypeError, ValueError), double_factories():
            if moved:
                search(kind, values, moved, lambda v: self.module.call_on(v, wide=True)[at].double(), generator)
        sound = torch.isfinite(self.module.call_on(values, wide=False)[at])
        for i in moved:
            values[i].copy_(torch.where(sound, values[i], own[i]))

    def _constants(self, leaves: Sequence[Any]) -> list[float]:
        """Return the numbers of the graph, and bounds that come as a tensor: some of each."""
        initial = self.module.initial
        held = [leaves[int(a.path)] if a.role == "input" else in_float32(initial[a.name]) for a in self.fp.tensors]
        bounds = [t.reshape(-1)[:: 1 + t.numel() // SOME_BOUNDS] for t in held if is_sorted(t)]
        return [*constants_of(self.fp), *(float(value) for t in bounds for value in t)]

    def _integers(
        self, kind: str, argument: TensorArgument, own: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Return an integer input of a kind of its own."""
        if kind == WIDEST:
            bounded = argument.path in {*(b.path for b in self.fp.bounds), *self.fp.as_drawn}
            return own if bounded else widest(own, generator)
        if kind in (UNTRUE, MULTIPLES):
            return own
        if kind == REPEATED:
            return repeated(own, generator)
        if kind == ALIKE:
            return own.max().expand(own.shape) if own.numel() else own
        if kind == IGNORED:
            marks = ignored_targets(self.fp)
            return some_ignored(own, marks[argument.name], generator) if argument.name in marks else own
        if kind == FROM_END:
            known = next((b for b in self.fp.bounds if b.path == argument.path and b.wraps), None)
            return own if known is None else from_the_end(own, known.high, generator)
        bounds = {b.path: b for b in self.fp.bounds}
        if own.numel():
            spans = (int(own.min()), int(own.max()) + 1)
            bounds |= {path: IndexBound(path, *spans, wraps=False) for path in self.fp.as_drawn}
        return widened(own, bounds.get(argument.path), generator)

    def bring(self, draw: int, layout: ArenaLayout, fd: int) -> None:
        """Write a draw into an arena (GPU only)."""
        for place, mine in zip(attach(fd, layout, writable=True), self.draws[draw], strict=True):
            place.reshape(-1).view(torch.uint8).copy_(mine)

    def share(self) -> tuple[Exchanged, list[int]]:
        """Return the memory for a new candidate, empty, with its descriptor the first time (GPU only)."""
        self.kept_outputs.clear()
        size, made = self.exchange.open()
        self._synchronize()
        return Exchanged(size), made

    def offer(self, draw: int) -> None:
        """Let the candidate's worker copy a draw (GPU only)."""
        self.exchange.offer(self.draws[draw])
        self._synchronize()

    def take(self, *, keep: bool) -> TookOutputs:
        """Copy the outputs that the candidate's worker has handed over, and take their fingerprint (GPU only)."""
        number, image = self.kept_outputs.put(self.exchange.handed(), keep=keep)
        return TookOutputs(number, image)

    def prepare(self, variant: str) -> None:
        """Make a variant callable (compile, autotune, graph), on the current content, and run it once."""
        if variant not in self.variants:
            with timed_precision(tf32=self.tf32):
                self.variants[variant] = make(variant, self.module.model, self.module.inputs(), step=self.is_step)
        self.ready(cold=False, calls=1)
        self.call(variant, 1, 0.0)

    def compile_ahead(self) -> None:
        """Compile what `prepare` will, on the host's cores alone (GPU only: on a CPU they are the device)."""
        if self.device.type == "cuda":
            with timed_precision(tf32=self.tf32):
                compile_ahead(self.module.model, self.module.inputs(), step=self.is_step)

    def ready(self, *, cold: bool, calls: int) -> None:
        """Make ready for a call, or a burst of calls that each have inputs of their own, as a candidate's have."""
        self.module.restore()
        self.kept.clear()
        while len(self.copies) < calls - 1:
            self.copies.append([v.clone() if isinstance(v, torch.Tensor) else v for v in self.module.leaves])
        for copy in self.copies[: calls - 1]:
            for mine, leaf in zip(copy, self.module.leaves, strict=True):
                if isinstance(leaf, torch.Tensor):
                    mine.copy_(leaf)
        self.inputs = [self.module.inputs(v) for v in (self.module.leaves, *self.copies[: calls - 1])]
        if cold:
            flush_caches()
        if self.device.type == "cuda":
            set_clock()
        self._synchronize()

    def call(self, variant: str, calls: int, begin_s: float) -> Timed:
        """Make the timed call, or several with one wait at the end.

        With a moment to begin at (GPU) the calls are queued behind a delay until then.
        """
        run = self.variants[variant]
        events = _events() if begin_s else []
        with timed_precision(tf32=True) if self.tf32 else contextlib.nullcontext():
            if events:
                delay_until(begin_s)
                events[0].record()
            start = perf_counter()
            for inputs in self.inputs[:calls]:
                self.kept.append(run(*inputs))
            host_s = perf_counter() - start
            if events:
                events[1].record()
        self._synchronize()
        return Timed(events[0].elapsed_time(events[1]) / 1e3 if events else 0.0, host_s)

    def _outputs(self, taken: int | None) -> list[torch.Tensor]:
        return self.submitted if taken is None else self.kept_outputs.look_up(taken)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _events() -> list[torch.cuda.Event]:
    """Make two events that take the time."""
    return [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]


def _plain(value: Any) -> Any:
    """Return JSON form of constructor inputs; anything else becomes a description that no constructor accepts."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str | None) else {"unsupported": type(value).__name__}


def _plain_leaf(value: Any) -> Leaf:
    if isinstance(value, bool | int | str | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return Unsupported(f"tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else str(value))
