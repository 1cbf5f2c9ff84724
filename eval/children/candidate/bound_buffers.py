"""Buffers that a candidate's code is bound to: arguments, results, and on a GPU the draws that contents are made of.

Comes in: what the judge asks to bind, with descriptors of memory. Goes out: tensors, and whether they, what lies around
them and what was read before a call are as they should be. Knows nothing of the candidate's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rag_kernels.eval.buffers.call_content import Splice
from rag_kernels.eval.buffers.shared_arena import attach
from rag_kernels.eval.children.gpu.buffers import Banded, Job, come_late
from rag_kernels.eval.children.gpu.exchange import Exchange
from rag_kernels.eval.messages.to_candidate import Bind, CallOnFirst, CallOnForms, Strided
from rag_kernels.eval.records import TensorSpec

GAP = 8  # elements between rows
SAMPLED = 256  # elements of an output


def laid_otherwise(tensor: torch.Tensor, how: Strided) -> torch.Tensor:
    """Return a copy of a tensor whose elements lie otherwise in memory."""
    if how == "exchanged":
        return tensor.mT.contiguous().mT
    wide = tensor.new_zeros((*tensor.shape[:-1], tensor.shape[-1] + GAP))
    wide[..., : tensor.shape[-1]] = tensor
    return wide[..., : tensor.shape[-1]]


class Bound:
    """One set of buffers that the code is bound to: arguments, where results go, and on a GPU the held draws."""

    def __init__(
        self, request: Bind, fds: Sequence[int], device: torch.device, *, writes: bool, like: Bound | None
    ) -> None:
        on_cpu = device.type == "cpu"
        how = {"guarded": on_cpu, "lazily": not on_cpu}  # a GPU's content is made there, and few outputs are pulled
        content = attach(fds[0], request.content, writable=request.writable, **how)
        # The judge takes the outputs of all places of a problem from the same memory, one after the other.
        forms = request.content.specs, request.outputs.specs
        self.exchange: Exchange = Exchange(*forms) if like is None else like.exchange
        if request.shared_bytes is not None:
            self.exchange.join(fds[1], request.shared_bytes)
        self.outputs = attach(fds[1], request.outputs, writable=True, **how) if on_cpu else self.exchange.handed()
        self.specs = [TensorSpec(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in content]
        self.banded = [] if on_cpu else [Banded(t, device) for t in content]
        self.contents = content if on_cpu else [b.tensor for b in self.banded]
        self.tensors = self.contents
        if request.strided:
            self.tensors = [laid_otherwise(t, request.strided) if t.dim() > 1 else t for t in self.contents]
        self.draws: list[list[torch.Tensor]] = like.draws if like else []
        self.results: list[torch.Tensor] = []
        if writes and on_cpu:
            self.results = self.outputs
        elif writes:
            places = [Banded(t, device) for t in self.outputs]
            self.banded += places
            self.results = [b.tensor for b in places]
        self.keeps = not writes
        self.late: list[torch.Tensor] = []  # content that comes with the next burst, on its stream
        self.last = 0  # the number of what comes last
        self.watched: list[torch.Tensor] = []  # an output, what stood there, and what a kernel before the call reads
        self.looked = False  # that kernel is queued
        self.forms = [layout_of(t) for t in (*self.tensors, *self.results)]  # a kernel is given views of them
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []  # samples of the last outputs, and where they are
        self.fresh: Callable[[], None] = nothing  # puts state back that a call changes (running statistics)

    def intact(self) -> bool:
        """Return whether what lies around the tensors is as it was, and their sizes and strides are."""
        known = [*self.tensors, *([] if self.keeps else self.results)]
        return all(b.intact() for b in self.banded) and [layout_of(t) for t in known] == self.forms

    def jobs(self, recipe: Sequence[Splice]) -> list[Job]:
        """Return what `compose_all` is to make for this recipe, of the held draws."""
        return [
            (content.reshape(-1).view(torch.uint8), [draw[index] for draw in self.draws], part, self.specs[index])
            for index, (content, part) in enumerate(zip(self.contents, recipe, strict=True))
        ]

    def keep_back(self, last: int) -> None:
        """Leave zeros where the content is to come, of this argument at last."""
        self.late, self.last = [content.clone() for content in self.contents], last
        for content in self.contents:
            content.zero_()
        self.lay_out()

    def watch(self) -> None:
        """Have the largest output read before the next burst. Where the code makes its results there is none."""
        if not self.keeps and (plain := self.plain_results()):
            stands = max(plain, key=torch.Tensor.numel).reshape(-1).view(torch.uint8)
            self.watched = [stands, stands.clone(), torch.empty_like(stands)]

    @property
    def comes_on_stream(self) -> bool:
        """Whether its content, or a look at an output, comes on the stream of the next burst."""
        return bool(self.late or self.watched)

    def arrive(self) -> None:
        """Queue the content that was kept back on the current stream, or a look at what stands in an output."""
        late, self.late = self.late, []
        for number, (content, kept) in enumerate(zip(self.contents, late, strict=bool(late))):
            if number != self.last:
                content.copy_(kept)
        if late:
            come_late(self.contents[self.last], late[self.last])
            self.lay_out()
        if self.watched:
            stands, _, seen = self.watched
            come_late(seen, stands)
            self.looked = True

    def has_waited(self) -> bool:
        """Return whether the last call left alone what was still read before it."""
        if not self.looked:  # or is still to be made
            return True
        (_, stood, seen), self.watched, self.looked = self.watched, [], False
        return torch.equal(stood, seen)

    def plain_results(self) -> list[torch.Tensor]:
        """Return results whose bytes are what they say."""
        written = [t for t in self.results if type(t) is torch.Tensor and t.numel() and t.is_contiguous()]
        return [t for t in written if not (t.is_conj() or t.is_neg())]

    def finish(self) -> None:
        """Wait for the GPU, after a sample was taken of what who comes next on the stream would find in the outputs."""
        samples = [t.reshape(-1)[:: max(1, t.numel() // SAMPLED)] for t in self.plain_results()]
        self.found = [(sample.clone(), sample) for sample in samples]
        torch.cuda.synchronize()

    def in_order(self) -> bool:
        """Return whether what the last call left was there for who came next on the stream.

        A program orders its work by the stream that it calls on: what runs on another one has to be joined to it.
        """
        found, self.found = self.found, []
        return all(torch.equal(then.view(torch.uint8), now.clone().view(torch.uint8)) for then, now in found)

    def lay_out(self) -> None:
        """Bring the composed content into the layout that the code sees."""
        for content, tensor in zip(self.contents, self.tensors, strict=True):
            if tensor is not content:
                tensor.copy_(content)


class FirstLines:
    """What a place is bound to, but for some of the tensors, which have their first lines alone."""

    def __init__(self, bound: Bound, asked: CallOnFirst, count: int) -> None:
        self.tensors = [t[:count] if i in asked.arguments else t for i, t in enumerate(bound.tensors)]
        self.results = [t[:count] if i in asked.results else t for i, t in enumerate(bound.results)]
        self.fresh: Callable[[], None] = nothing


class Crossed:
    """What a place is bound to, but for one argument, which lies where another place has it."""

    def __init__(self, bound: Bound, argument: int, other: Bound) -> None:
        self.tensors = [*bound.tensors[:argument], other.tensors[argument], *bound.tensors[argument + 1 :]]
        self.results = bound.results
        self.fresh: Callable[[], None] = nothing


class OfForms:
    """Tensors of zeros in the place of what a place is bound to, of other shapes."""

    def __init__(self, bound: Bound, asked: CallOnForms) -> None:
        self.tensors = [t.new_zeros(shape) for t, shape in zip(bound.tensors, asked.arguments, strict=True)]
        self.results = [t.new_zeros(shape) for t, shape in zip(bound.results, asked.results, strict=True)]
        self.fresh: Callable[[], None] = nothing


def nothing() -> None:
    """Put no state back."""


def layout_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes and strides."""
    return tuple(tensor.shape), tensor.stride()
