"""What a worker does on a GPU before a call, with CPU tensors in place of the device's."""

import os
import random

import numpy as np
import pytest
import torch

from rag_kernels.eval.buffers import output_snapshot
from rag_kernels.eval.buffers.call_content import compose, plain, random_recipe
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot
from rag_kernels.eval.buffers.shared_arena import Arena
from rag_kernels.eval.children.candidate import bound_buffers
from rag_kernels.eval.children.candidate.bound_buffers import Bound
from rag_kernels.eval.children.gpu.buffers import SMALL, compose_all, digest
from rag_kernels.eval.children.gpu.exchange import Exchange, KeptOutputs
from rag_kernels.eval.messages.to_candidate import Bind, Binding
from rag_kernels.eval.records import TensorSpec


def test_every_content_comes_in_the_layout_that_the_code_sees() -> None:
    """Strided copies held the pattern of unwritten memory: honest kernels read indices from it."""
    specs = [TensorSpec((3, 5), "float32"), TensorSpec((4, 2), "int64"), TensorSpec((7,), "float32")]
    content, outputs = Arena(specs), Arena(specs[:1])
    told = Binding((), (), ())
    request = Bind(told, content.describe(), outputs.describe(), writable=True, strided="exchanged", like=None)
    fds = [os.dup(content.fd), os.dup(outputs.fd)]
    bound = Bound(request, fds, torch.device("cpu"), writes=False, like=None)
    draws = [[torch.randn(3, 5), torch.arange(8).reshape(4, 2), torch.randn(7)] for _ in range(2)]
    bound.draws = [[t.reshape(-1).view(torch.uint8) for t in draw] for draw in draws]
    for number in (1, 0):
        compose_all(bound.jobs(plain(number, len(specs))))
        bound.lay_out()
        assert all(torch.equal(mine, given) for mine, given in zip(bound.tensors, draws[number], strict=True))
    assert [t.stride() for t in bound.tensors] == [(1, 3), (1, 4), (1,)]


def test_contents_come_late_the_one_that_is_named_last_and_an_output_is_read_before_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes last comes from a kernel that lets the next begin; only what comes from that can be missed."""
    specs = [TensorSpec((3, 5), "float32"), TensorSpec((64,), "float32"), TensorSpec((), "float32")]
    content, outputs = Arena(specs), Arena(specs[:1])
    request = Bind(Binding((), (), ()), content.describe(), outputs.describe(), writable=True, strided=False, like=None)
    bound = Bound(request, [os.dup(content.fd), os.dup(outputs.fd)], torch.device("cpu"), writes=True, like=None)
    given = [torch.randn(spec.shape) for spec in specs]
    came: list[tuple[int, list[bool]]] = []

    def come_late(to: torch.Tensor, kept: torch.Tensor) -> None:
        there = [torch.equal(content, value) for content, value in zip(bound.contents, given, strict=True)]
        came.append((next((i for i, c in enumerate(bound.contents) if c is to), -1), there))
        to.copy_(kept)

    monkeypatch.setattr(bound_buffers, "come_late", come_late)
    for last in (2, 0):
        for place, value in zip(bound.contents, given, strict=True):
            place.copy_(value)
        bound.keep_back(last)
        assert not any(place.any() for place in bound.contents)
        bound.arrive()
        assert came.pop() == (last, [i != last for i in range(3)])
        assert all(torch.equal(content, value) for content, value in zip(bound.contents, given, strict=True))
    bound.arrive()  # a burst like any other
    assert came == [] and bound.has_waited()
    for early in (False, True):
        bound.results[0].fill_(7.0)
        bound.watch()
        assert bound.has_waited()  # its worker looks back before each burst
        bound.results[0][1, 1] = 8.0 if early else 7.0  # in place of a launch that overtakes the look
        bound.arrive()
        bound.results[0].fill_(1.0)
        assert bound.has_waited() is not early and came.pop()[0] == -1


def test_many_contents_are_composed_together_as_each_by_itself() -> None:
    rng = random.Random(5)
    specs = [TensorSpec((16, 6), "float32"), TensorSpec((40,), "bfloat16"), TensorSpec((3, 700, 800), "float32")]
    draws = [
        [torch.randn(s.shape).to(getattr(torch, s.dtype)).reshape(-1).view(torch.uint8) for s in specs]
        for _ in range(2)
    ]
    jobs, wanted = [], []
    for _ in range(4):
        recipe = random_recipe(specs, [True, True, rng.random() < 0.5], range(2), rng)
        for index, (spec, part) in enumerate(zip(specs, recipe, strict=True)):
            held = [draw[index] for draw in draws]
            jobs.append((torch.zeros_like(held[0]), held, part, spec))
            compose(alone := torch.zeros_like(held[0]), held, part, spec)
            wanted.append(alone)
    assert any(job[0].numel() > SMALL for job in jobs)
    compose_all(jobs)
    assert all(torch.equal(job[0], alone) for job, alone in zip(jobs, wanted, strict=True))


def test_draws_and_outputs_go_through_the_shared_memory() -> None:
    content = [TensorSpec((3, 5), "float32"), TensorSpec((), "int64"), TensorSpec((0, 2), "float32")]
    outputs = [TensorSpec((700,), "bfloat16"), TensorSpec((2,), "bool")]
    ours, theirs = Exchange(content, outputs), Exchange(content, outputs)
    ours.memory = theirs.memory = torch.full((3 * 4096,), 9, dtype=torch.uint8)
    ours.open()
    assert not theirs.memory.any()  # of what another candidate wrote
    draw = [torch.randn(3, 5), torch.tensor(7), torch.empty(0, 2)]
    ours.offer([t.reshape(-1).view(torch.uint8) for t in draw])
    kept = theirs.offered()
    ours.open()
    assert all(torch.equal(a, b.reshape(-1).view(torch.uint8)) for a, b in zip(kept, draw, strict=True))
    wrote = [torch.randn(700).bfloat16(), torch.tensor([True, False])]
    for place, made in zip(theirs.handed(), wrote, strict=True):
        place.copy_(made)
    assert all(torch.equal(a, b) for a, b in zip(ours.handed(), wrote, strict=True))


def test_outputs_are_kept_for_one_check_and_their_fingerprint_is_of_the_copies() -> None:
    kept_outputs, handed = KeptOutputs(), [torch.arange(10), torch.ones(3, dtype=torch.uint8)]
    first, image = kept_outputs.put(handed, keep=True)
    raw = [np.frombuffer(t.numpy().tobytes(), np.uint8) for t in handed]
    assert (
        image == digest(handed) and image.encode() == output_snapshot.digest(raw) == OutputSnapshot(hash=image).digest()
    )
    handed[0][3] = 99  # what is there later is no part of it
    second, other = kept_outputs.put(handed, keep=False)
    assert other != image and kept_outputs.look_up(second)[0][3] == 99 and kept_outputs.look_up(first)[0][3] == 3
    third, _ = kept_outputs.put(handed, keep=False)
    assert third not in (first, second)
    assert digest([torch.arange(11.0)[1:]]) == digest([torch.arange(11.0)[1:].clone()])
    for gone in (first, second):
        with pytest.raises(KeyError):
            kept_outputs.look_up(gone)
    fourth, _ = kept_outputs.put(handed, keep=True)
    kept_outputs.clear()  # another candidate comes
    with pytest.raises(KeyError):
        kept_outputs.look_up(fourth)
    assert kept_outputs.put(handed, keep=False)[0] > fourth
