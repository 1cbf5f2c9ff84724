"""The reference worker: runs the problem's own module, and nothing of a candidate.

Role of a forked child (`serve`). It has draws made (`draw_maker`), answers timed calls (eager or compiled) on the
content that the judge has laid out, and has bytes that the judge, or on a GPU this worker, has copied compared
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

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Recipe, compose
from rag_kernels.eval.buffers.shared_arena import ArenaLayout, attach
from rag_kernels.eval.children.gpu.buffers import answers, flush_caches
from rag_kernels.eval.children.gpu.delay import delay_until, set_clock
from rag_kernels.eval.children.gpu.exchange import Exchange, KeptOutputs
from rag_kernels.eval.children.gpu.shared_memory import NotShared
from rag_kernels.eval.children.memory import MemoryCount
from rag_kernels.eval.children.reference.baseline_variants import compile_ahead, dispatch_plainly, make
from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.children.reference.draw_maker import DrawMaker
from rag_kernels.eval.children.reference.right_answers import RightAnswers
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
from rag_kernels.eval.numerics.common_elements import in_common
from rag_kernels.eval.numerics.exactness_probe import probes_of
from rag_kernels.eval.numerics.oracle import strict_precision, timed_precision
from rag_kernels.eval.process.channel import Channel, Failed
from rag_kernels.eval.records import FunctionalProblem


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
        self.module = BoundModule(self.fp, self.device, content, message.seed)
        self.maker = DrawMaker(self.fp, self.module)
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
            case MakeDraw(layout=layout):
                reply = self.draw(request, attach(fds[0], layout, writable=True) if fds else [])
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
            case ComputeAnswer(draw, noisy, moved, partly):
                self.kept.clear()  # a GPU's memory may be needed
                reply = self.answers.compute(draw, noisy=noisy, moved=moved, partly=partly)
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

    def draw(self, wanted: MakeDraw, arena: list[torch.Tensor]) -> Drawn:
        """Make one draw of all tensor arguments, in the arena or, on a GPU, there."""
        on_gpu = self.device.type != "cpu"
        places = [torch.empty_like(t) for t in self.module.values] if on_gpu else arena
        made = self.maker.make(wanted.seed, wanted.kind, places, reals=wanted.reals, wholes=wanted.wholes)
        if on_gpu:
            at = len(self.draws) if wanted.again is None else wanted.again
            self.draws[at : at + 1] = [[t.reshape(-1).view(torch.uint8) for t in places]]
        return made

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
            late = bool(events) and events[0].query()  # type: ignore[no-untyped-call]
            if events:
                events[1].record()
        self._synchronize()
        return Timed(events[0].elapsed_time(events[1]) / 1e3 if events else 0.0, host_s, late)

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
