"""The reference worker: runs the problem's own module, and nothing of a candidate.

Role of a forked child (`serve`). It makes draws of inputs and parameters, answers timed calls (eager or
compiled) on the content that the judge has laid out, computes the fp64 oracle, and compares outputs with it: bytes
that the judge, or on a GPU this worker, has copied. It never sees a candidate.
Parameters are views over the shared content, so a call always uses the current ones; buffers that the module
updates, and inputs that it changes in place, are private and restored before each call.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, assert_never

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Recipe, compose
from rag_kernels.eval.buffers.shared_arena import ArenaLayout, attach
from rag_kernels.eval.children.baseline_variants import compile_ahead, make
from rag_kernels.eval.children.gpu_buffers import answers, flush_caches, ran_out_of_memory
from rag_kernels.eval.children.gpu_delay import delay_until, set_clock
from rag_kernels.eval.children.gpu_exchange import Exchange, KeptOutputs
from rag_kernels.eval.children.gpu_shared_memory import NotShared
from rag_kernels.eval.children.memory import MemoryCount
from rag_kernels.eval.index_ties import index_source
from rag_kernels.eval.input_kinds import (
    AT_CONSTANTS,
    FROM_END,
    IGNORED,
    INTEGER_KINDS,
    INTEGERS,
    NON_FINITE,
    OTHER_PROBE,
    PROBE,
    REPEATED,
    precision_class,
)
from rag_kernels.eval.marked_values import constants_of, ignored_targets
from rag_kernels.eval.messages.protocol import (
    Answered,
    AskForProbes,
    BringDraw,
    CallVariant,
    Checked,
    CheckOutputs,
    Comparison,
    CompileAhead,
    ComputeAnswer,
    Done,
    Drawn,
    EmptyExchange,
    Exchanged,
    Leaf,
    MakeDraw,
    MemoryTaken,
    OfferDraw,
    Opened,
    OpenReference,
    PrecisionShown,
    PrepareVariant,
    Probes,
    ReadyVariant,
    ReferenceReply,
    ReferenceRequest,
    Settle,
    ShowPrecision,
    TakeOutputs,
    TellMemory,
    Timed,
    TookOutputs,
    Unsupported,
    WriteContent,
    reference_opening,
    reference_request,
)
from rag_kernels.eval.numerics.compare import (
    Yardstick,
    compare,
    decided_by_rounding,
    largest_error,
    own_error,
    yardstick,
)
from rag_kernels.eval.numerics.exactness_probe import one_hot, relative_error, targets
from rag_kernels.eval.numerics.input_draws import (
    at_constants,
    from_the_end,
    is_sorted,
    is_structured,
    redraw,
    repeated,
    some_ignored,
    widened,
    with_zeros,
)
from rag_kernels.eval.numerics.oracle import (
    ExactCasts,
    double_factories,
    doubled,
    is_constant,
    right_answer,
    strict_precision,
    tensors,
    timed_precision,
    vary,
)
from rag_kernels.eval.numerics.rounding_faults import rounding_fault
from rag_kernels.eval.numerics.rounding_noise import RoundingNoise, rounded_anew
from rag_kernels.eval.numerics.steps import Choosing, as_good, excused, far, stepped
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.process.channel import Channel, Failed
from rag_kernels.eval.records import FunctionalProblem, TensorArgument
from rag_kernels.eval.steps import has_steps


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
    """Answer the judge's requests until it hangs up."""
    message, fds = channel.receive()
    try:
        reference = Reference(reference_opening(message), fds)
        channel.send(codec.encode(reference.describe()))
    except Exception as error:
        channel.send(codec.encode(_failed(error, alive=False)))
        return
    while True:
        message, fds = channel.receive()
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


NOISE_RUNS = 3
MOST_RUNS = 16  # each moves about half of the integers that rounding decides


SOME_BOUNDS = 64
FEW = 256  # elements of an output


@dataclass(slots=True)
class Answer:
    """The module's own outputs and the oracle's, on the device; `kind` is what the oracle computes in."""

    reference: list[torch.Tensor]
    oracle: list[torch.Tensor]
    kind: Literal["fp64", "own dtype"]
    noise: list[torch.Tensor | None] | None = None
    owed: list[Yardstick | None] = field(default_factory=list)  # one an output, once it was asked for
    raw: list[torch.Tensor] = field(default_factory=list)  # the module's outputs, where steps were taken out

    def yardsticks(self) -> list[Yardstick | None]:
        """Return what each output is held against; None for exact ones."""
        if not self.owed:
            noise = self.noise or [None] * len(self.oracle)
            self.owed = [
                yardstick(own, right, row) if own.is_floating_point() and own.numel() else None
                for own, right, row in zip(self.reference, self.oracle, noise, strict=True)
            ]
        return self.owed


class Reference:
    """One problem's module with its arguments bound to shared memory."""

    def __init__(self, message: OpenReference, fds: Sequence[int]) -> None:
        self.fp: FunctionalProblem = message.problem
        self.device = torch.device(message.device)
        torch.set_num_threads(message.threads)
        strict_precision()
        self.tf32 = message.tf32
        self.operands = message.operands
        self.has_steps = has_steps(self.fp)
        on_gpu = self.device.type != "cpu"  # there only their forms are of use
        self.content = attach(fds[0], message.content, writable=False, lazily=on_gpu)
        self.submitted = attach(fds[1], message.outputs, writable=False, lazily=on_gpu)
        self.exchange = Exchange(message.content.specs, message.outputs.specs)
        self.kept_outputs = KeptOutputs()
        self.memory = MemoryCount(self.device)
        self.answers: dict[int, Answer] = {}
        self.draws: list[list[torch.Tensor]] = []
        module = load_module(self.fp.problem.name, self.fp.problem.source, device=message.device)
        with self.device:
            self.init_inputs = module.get_init_inputs()
            self.get_inputs = module.get_inputs
            torch.manual_seed(message.seed)
            self.model = module.Model(*self.init_inputs).to(self.device)
            self.leaves, self.tree = pytree.tree_flatten(list(module.get_inputs()))
        self.model.requires_grad_(False)
        self.initial = {a.name: self._attribute(a.path).detach().clone() for a in self._held()}
        self.mutated = {path: self._attribute(path).detach().clone() for path in self.fp.mutated}
        plain = [(vars(m), n) for m in self.model.modules() for n, v in vars(m).items() if isinstance(v, torch.Tensor)]
        self.plain = [(held, name, held[name]) for held, name in plain]  # tensors that are no buffers
        self.on_device = on_device(self.content, self.device)
        self._bind()
        self.variants: dict[str, Any] = {"eager": self.model}
        self.copies: list[list[Any]] = []  # of the input leaves, for the further calls of a burst
        self.inputs: list[Any] = []  # of the calls that come next
        self.kept: list[Any] = []  # the results of a burst, as a candidate's are kept

    def answer(self, request: ReferenceRequest, fds: Sequence[int]) -> tuple[ReferenceReply, list[int]]:
        """Do what is asked; the reply, and descriptors that go with it. Those that are timed come first."""
        reply: ReferenceReply = Done()
        made: list[int] = []
        match request:
            case CallVariant(variant, calls, begin_s):
                reply = self.call(variant, calls, begin_s)
            case ReadyVariant(cold, calls):
                self.ready(cold=cold, calls=calls)
            case WriteContent(recipe):
                load_on_device(self.on_device, self.draws, recipe, self.fp)
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
                reply = self.compute(draw, noisy=noisy, moved=moved)
            case CheckOutputs(draw, taken, limits, noisy):
                reply = self.check(draw, taken, limits, noisy=noisy)
            case ShowPrecision(draw, taken):
                reply = self.precision(draw, taken)
            case AskForProbes():
                reply = Probes(bool(targets(self.fp)), bool(targets(self.fp, other=True)))
            case Settle():
                self.memory.settle()
            case TellMemory():
                reply = MemoryTaken(self.memory.peak_bytes())
            case _ as never:
                assert_never(never)
        return reply, made

    def describe(self) -> Opened:
        """Return what the judge asks once: plain constructor inputs, for `ModelNew` candidates."""
        return Opened(json.dumps(_plain(self.init_inputs)), tuple(_plain_leaf(v) for v in self.leaves))

    def _held(self) -> list[TensorArgument]:
        return [a for a in self.fp.tensors if a.role != "input"]

    def _attribute(self, path: str) -> torch.Tensor:
        value: Any = self.model
        for part in path.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{path} of the module is a {type(value).__name__}, not a tensor")
        return value

    def _bind(self) -> None:
        """Let the module's tensors and the input leaves be views of the content."""
        for argument, tensor in zip(self.fp.tensors, self.on_device, strict=True):
            if argument.role == "input":
                self.leaves[int(argument.path)] = tensor.clone() if argument.path in self.fp.written else tensor
            elif argument.path not in self.mutated:
                self._attribute(argument.path).data = tensor

    def _restore(self) -> None:
        """Put replaced tensors back, and updated ones to what the content says (or to what they were)."""
        for held, name, tensor in self.plain:
            held[name] = tensor
        content = {a.path: t for a, t in zip(self.fp.tensors, self.on_device, strict=True)}
        for path, initial in self.mutated.items():
            self._attribute(path).copy_(content.get(path, initial))
        for argument, tensor in zip(self.fp.tensors, self.on_device, strict=True):
            if argument.role == "input" and argument.path in self.fp.written:
                self.leaves[int(argument.path)].copy_(tensor)

    def draw(self, seed: int, kind: str, arena: list[torch.Tensor]) -> Drawn:
        """Make one draw of all tensor arguments, in the arena or, on a GPU, there; for the kinds see
        `numerics.input_draws`."""
        on_gpu = self.device.type != "cpu"
        target = [torch.empty_like(t) for t in self.on_device] if on_gpu else arena
        torch.manual_seed(seed)
        with self.device:
            leaves = pytree.tree_leaves(list(self.get_inputs()))
        generator = torch.Generator(self.device).manual_seed(seed ^ 0x5EED)
        probed = targets(self.fp, other=kind == OTHER_PROBE) if kind in (PROBE, OTHER_PROBE) else {}
        constants = self._constants(leaves) if kind == AT_CONSTANTS else []
        for argument, tensor in zip(self.fp.tensors, target, strict=True):
            if argument.role == "input":
                value = leaves[int(argument.path)].to(self.device)
                if kind in INTEGER_KINDS and argument.spec.dtype in INTEGERS:
                    value = self._integers(kind, argument, value, generator)
                elif kind == AT_CONSTANTS:
                    value = value if is_sorted(value) else at_constants(value, constants, generator)
                elif not (kind == "own" or is_sorted(value)):
                    value = redraw("normal" if probed else kind, value, generator)
                elif kind != "own":
                    value = redraw("normal" if probed else kind, value, generator).sort(dim=-1).values
            else:
                value = self.initial[argument.name]
                varies = argument.role == "parameter" or is_constant(value)  # running statistics, not masks
                value = vary(value, generator) if varies else value
                value = with_zeros(value, generator) if kind == NON_FINITE and argument.role == "parameter" else value
            if argument.name in probed:
                value = one_hot(value, probed[argument.name], generator)
            tensor.copy_(value)
        if on_gpu:
            self.draws.append([t.reshape(-1).view(torch.uint8) for t in target])
        own = kind == "own"
        return Drawn(tuple(own and is_structured(t) for t in target), tuple(own and is_sorted(t) for t in target))

    def _constants(self, leaves: Sequence[Any]) -> list[float]:
        """Return the numbers of the graph, and bounds that come as a tensor: some of each."""
        held = [leaves[int(a.path)] if a.role == "input" else self.initial[a.name] for a in self.fp.tensors]
        bounds = [t.reshape(-1)[:: 1 + t.numel() // SOME_BOUNDS] for t in held if is_sorted(t)]
        return [*constants_of(self.fp), *(float(value) for t in bounds for value in t)]

    def _integers(
        self, kind: str, argument: TensorArgument, own: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Return an integer input of a kind of its own."""
        if kind == REPEATED:
            return repeated(own, generator)
        if kind == IGNORED:
            marks = ignored_targets(self.fp)
            return some_ignored(own, marks[argument.name], generator) if argument.name in marks else own
        if kind == FROM_END:
            known = next((b for b in self.fp.bounds if b.path == argument.path and b.wraps), None)
            return own if known is None else from_the_end(own, known.high, generator)
        return widened(own, {b.path: b for b in self.fp.bounds}.get(argument.path), generator)

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
                self.variants[variant] = make(variant, self.model, pytree.tree_unflatten(self.leaves, self.tree))
        self.ready(cold=False, calls=1)
        self.call(variant, 1, 0.0)

    def compile_ahead(self) -> None:
        """Compile what `prepare` will, on the host's cores alone (GPU only: on a CPU they are the device)."""
        if self.device.type == "cuda":
            with timed_precision(tf32=self.tf32):
                compile_ahead(self.model, pytree.tree_unflatten(self.leaves, self.tree))

    def ready(self, *, cold: bool, calls: int) -> None:
        """Make ready for a call, or a burst of calls that each have inputs of their own, as a candidate's have."""
        self._restore()
        self.kept.clear()
        while len(self.copies) < calls - 1:
            self.copies.append([v.clone() if isinstance(v, torch.Tensor) else v for v in self.leaves])
        for copy in self.copies[: calls - 1]:
            for mine, leaf in zip(copy, self.leaves, strict=True):
                if isinstance(leaf, torch.Tensor):
                    mine.copy_(leaf)
        self.inputs = [pytree.tree_unflatten(v, self.tree) for v in (self.leaves, *self.copies[: calls - 1])]
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

    def compute(self, draw: int, *, noisy: bool, moved: bool) -> Answered:
        """Compute what is right for the current content, and remember it: whole draws come again.

        `noisy` also measures what honest rounding may do there.
        """
        answer = self.answers[draw] = self._compute()
        if noisy:
            answer.noise = self._noise(answer, moved=moved, operands=self.operands)
        pairs = list(zip(answer.reference, answer.oracle, strict=True))
        own = tuple(own_error(r, o) if r.is_floating_point() else 0.0 for r, o in pairs)
        worst = max((relative_error(r, o) for r, o in pairs if r.is_floating_point()), default=0.0)
        self._release()
        return Answered(answer.kind, all(map(math.isfinite, own)), worst, own)

    def check(self, draw: int | None, taken: int | None, limits: tuple[float, float] | None, *, noisy: bool) -> Checked:
        """Compare submitted or taken outputs with the remembered answer, or with one for the current content."""
        outputs = self._outputs(taken)
        answer = self.answers[draw] if draw is not None else self._compute()
        if noisy and draw is None:
            answer.noise = self._noise(answer, operands=self.operands)
        noise = answer.noise or [None] * len(answer.oracle)
        if answer.raw:
            outputs = [_as_pytorch_steps(g.to(self.device), *o) for g, *o in self._stepped(outputs, answer)]
        results = [
            compare(got.to(self.device), reference, oracle, noise=row, limits=limits, owed=owed)
            for got, reference, oracle, row, owed in zip(
                outputs, answer.reference, answer.oracle, noise, answer.yardsticks(), strict=True
            )
        ]
        for at, (result, got) in enumerate(zip(results, outputs, strict=True)):
            if not result.ok:
                results[at] = self._settled(result, at, got.to(self.device), answer, limits)
        if answer.kind == "fp64" and answer.noise is None:  # of ordinary contents
            given = zip(results, outputs, answer.reference, answer.oracle, strict=True)
            results = [replace(r, rounding=rounding_fault(g.to(self.device), own, o)) for r, g, own, o in given]
        self._release()
        return Checked(tuple(results))

    def _stepped(self, outputs: Sequence[torch.Tensor], answer: Answer) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(outputs, answer.raw, answer.oracle, strict=True)

    def _settled(
        self, result: Comparison, at: int, got: torch.Tensor, answer: Answer, limits: tuple[float, float] | None
    ) -> Comparison:
        """Return the result of an output that differs: right if rounding decides where; its content is there."""
        own, right = (answer.raw or answer.reference)[at], answer.oracle[at]
        if got.is_floating_point():
            if not self.has_steps or got.shape != right.shape:
                return result
            put_right = excused(got, own, right, self._again(at))
            noise = answer.noise[at] if answer.noise else None
            known = {"noise": noise, "limits": limits, "owed": answer.yardsticks()[at]}
            return result if put_right is None else compare(put_right, answer.reference[at], right, **known)  # type: ignore[arg-type]
        if result.one_apart and decided_by_rounding(got, own, right, self._again(at)):
            return Comparison(True, 0.0, "")
        return Comparison(True, 0.0, "") if self._chosen_as_well(at, got, right) else result

    def _again(self, at: int) -> Iterator[torch.Tensor]:
        """Yield an output of one run after another with amplified rounding."""
        generator = torch.Generator(self.device).manual_seed(int(torch.randint(1 << 30, ())))
        for _ in range(MOST_RUNS):
            self._restore()
            with RoundingNoise(generator, exact_stays=True):
                results = tensors(self.model(*pytree.tree_unflatten(self.leaves, self.tree)))
            yield results[at]  # outside: what is done with it rounds as ever

    def _chosen_as_well(self, at: int, got: torch.Tensor, right: torch.Tensor) -> bool:
        """Return whether an output of indices chooses values as good as the right ones."""
        source = index_source(self.fp, self.fp.results[at]) if at < len(self.fp.results) else None
        if source is None or (source.exact and source.first):
            return False
        self._restore()
        inputs = pytree.tree_unflatten(self.leaves, self.tree)
        with Choosing() as own:
            self.model(*inputs)
        with (
            contextlib.suppress(RuntimeError, TypeError, ValueError),
            double_factories(),
            ExactCasts(),
            Choosing() as wide,
        ):
            torch.func.functional_call(self.model, self._doubled_state(), tuple(doubled(inputs)))
            if len(own.choices) == len(wide.choices) > source.number:
                pair = wide.choices[source.number], own.choices[source.number]
                return as_good(got, right.to(got.dtype), *pair, exact=source.exact)
        return False

    def _outputs(self, taken: int | None) -> list[torch.Tensor]:
        return self.submitted if taken is None else self.kept_outputs.look_up(taken)

    def precision(self, draw: int, taken: int | None) -> PrecisionShown:
        """Name the precision that outputs show on the probe's draw."""
        both = zip(self._outputs(taken), self.answers[draw].oracle, strict=True)
        pairs = [(got, oracle) for got, oracle in both if got.is_floating_point()]
        error = max((relative_error(g.to(self.device), o) for g, o in pairs), default=0.0)
        return PrecisionShown(precision_class(error, len(targets(self.fp))), error)

    def _compute(self) -> Answer:
        self._restore()
        self.kept.clear()  # a GPU's memory may be needed
        inputs = pytree.tree_unflatten(self.leaves, self.tree)
        results = self._own(tensors(self.model(*inputs)))
        _require_form(results, self.submitted)

        def in_double() -> list[torch.Tensor]:
            return tensors(torch.func.functional_call(self.model, self._doubled_state(), tuple(doubled(inputs))))

        exact = right_answer(in_double, results)
        if exact is None:
            return Answer(results, results, "own dtype")
        answer = self._without_steps(Answer(results, exact, "fp64"))
        # In fp64 the oracle rounds as badly as the module; a few sums that cancel have no scale of their own.
        if any(t.dtype == torch.float64 or t.numel() < FEW for t in results):
            answer.noise = self._noise(answer)
        return answer

    def _without_steps(self, answer: Answer) -> Answer:
        """Return an answer in which PyTorch's own steps by rounding are no errors that others may have anywhere."""
        if not self.has_steps:
            return answer
        raw = answer.reference
        floats = [own.is_floating_point() and own.numel() > 0 for own in raw]
        pairs = zip(raw, answer.oracle, floats, strict=True)
        steps = [stepped(own, right, right) if is_float else None for own, right, is_float in pairs]
        if any(step is not None for step in steps):
            answer.raw = raw
            answer.reference = [
                own if step is None else torch.where(step, right.to(own.dtype), own)
                for own, right, step in zip(raw, answer.oracle, steps, strict=True)
            ]
        return answer

    def _own(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return results that no later call changes: copies of those that are part of the content or of the module."""
        written = [self.leaves[int(leaf)] for leaf in self.fp.written]
        held = [
            *self.on_device,
            *self.model.parameters(),
            *self.model.buffers(),
            *(t for *_, t in self.plain),
            *written,
        ]
        storages = {t.untyped_storage().data_ptr() for t in held}
        return [t.clone() if t.untyped_storage().data_ptr() in storages else t for t in results]

    def _noise(self, answer: Answer, *, moved: bool = False, operands: float = 0.0) -> list[torch.Tensor | None]:
        """Return largest error of a few runs with amplified rounding, element by element; None for exact outputs.

        `operands` is the unit roundoff that those of products in fp32 may have, where a lower precision is allowed.
        With inputs that are `moved` by a rounding, too: where a row is constant, or far from zero, PyTorch may be
        exact by luck, and nobody owes more than the answer to inputs that are as good.
        """
        worst: list[torch.Tensor | None] = [None] * len(answer.oracle)
        generator = torch.Generator(self.device).manual_seed(int(torch.randint(1 << 30, ())))
        for _ in range(NOISE_RUNS):
            self._restore()
            leaves = [rounded_anew(v, generator) for v in self.leaves] if moved else self.leaves
            with RoundingNoise(generator, operands=operands):
                results = tensors(self.model(*pytree.tree_unflatten(leaves, self.tree)))
            for i, (got, oracle) in enumerate(zip(results, answer.oracle, strict=True)):
                if got.is_floating_point():
                    step = stepped(got, oracle, oracle) if self.has_steps else None
                    got = got if step is None else torch.where(step, oracle.to(got.dtype), got)
                    worst[i] = largest_error(got, oracle, worst[i])
        return worst

    def _doubled_state(self) -> dict[str, torch.Tensor]:
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self._restore()
        return {name: t.double() if t.is_floating_point() else t.clone() for name, t in state.items()}

    def _release(self) -> None:
        """Give the GPU memory of fp64 temporaries back: the candidate's worker needs room too."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _as_pytorch_steps(got: torch.Tensor, own: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return an output with the elements set right at which it steps as PyTorch does."""
    if not got.is_floating_point() or got.shape != own.shape:
        return got
    step = stepped(own, right, right)
    return got if step is None else torch.where(step & ~far(got, own, right), right.to(got.dtype), got)


def _events() -> list[torch.cuda.Event]:
    """Make two events that take the time."""
    return [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]


def on_device(content: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the tensors that calls use: the shared memory itself on a CPU, buffers of the same form on a GPU."""
    return content if device.type == "cpu" else [torch.empty_like(t, device=device) for t in content]


def load_on_device(
    target: Sequence[torch.Tensor], draws: Sequence[Sequence[torch.Tensor]], recipe: Recipe, fp: FunctionalProblem
) -> None:
    """Compose every tensor's content on the GPU."""
    for index, (tensor, part) in enumerate(zip(target, recipe, strict=True)):
        raw = tensor.reshape(-1).view(torch.uint8)
        compose(raw, [draw[index] for draw in draws], part, fp.tensors[index].spec)
    torch.cuda.synchronize()


def _require_form(results: Sequence[torch.Tensor], traced: Sequence[torch.Tensor]) -> None:
    got = [(tuple(t.shape), t.dtype) for t in results]
    expected = [(tuple(t.shape), t.dtype) for t in traced]
    if got != expected:
        raise ValueError(f"the module returned {got} where {expected} was traced")


def _plain(value: Any) -> Any:
    """Return JSON form of constructor inputs; anything else becomes a description that no constructor accepts."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str | None) else {"unsupported": type(value).__name__}


def _plain_leaf(value: Any) -> Leaf:
    if isinstance(value, bool | int | str | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return Unsupported(f"tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else str(value))
